//! Types of users' own in the built server and in `cattlegrid objects`: settings, reloads, statistics,
//! commands.

#![cfg(feature = "scripts")]
#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cattlegrid_load::harness::{Client, Server, Start, StartError, until};
use nix::sys::signal::Signal;
use tempfile::TempDir;

const TALLY: &str = "local Tally = { create = {}, ttl = 3600 }\n\
    function Tally.new(start: string?) return { n = tonumber(start or '0') } end\n\
    function Tally.add(self, n: string)\n  self.n = self.n + tonumber(n)\n  return self.n\nend\n\
    function Tally.tell(self, text: string)\n  cg.event('told', { text = text })\n  cg.log('told ' .. text)\nend\n\
    function Tally.fail(self)\n  error('broken')\nend\n\
    function Tally.spin(self) while true do end end\n\
    return Tally\n";

const OTHER: &str = "return { new = function() return {} end, get = function() return 'o' end }";

/// A directory of types, and a rule file that names it.
struct Types {
    dir: TempDir,
    more: &'static str,
}

impl Types {
    fn new(sources: &[(&str, &str)]) -> Self {
        let types = Self { dir: tempfile::tempdir().unwrap(), more: "" };
        fs::create_dir(types.path()).unwrap();
        for (name, text) in sources {
            types.write(name, text);
        }
        types
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("types")
    }

    /// Writes a file as an editor saves it: a reader never sees half of it.
    fn write(&self, name: &str, text: &str) {
        let new = self.dir.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path().join(name)).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }

    fn rules(&self) -> String {
        format!("[objects]\ndir = {:?}\n{}", self.path().to_str().unwrap(), self.more)
    }

    fn start(&self) -> Result<Server, StartError> {
        let program = Path::new(env!("CARGO_BIN_EXE_cattlegrid"));
        let words = ["-p", "-1", "-u", "root", "-t", "2", "-m", "16"];
        Server::start(&Start { rules: Some(&self.rules()), ..Start::new(program, &words) })
    }
}

fn value(client: &mut Client, name: &str, value: &str) {
    client.ask(&format!("get {name}\r\n"), &format!("VALUE {name} 0 {}\r\n{value}\r\nEND\r\n", value.len()));
}

fn stat(client: &mut Client, name: &str) -> Option<String> {
    client.stats("objects").unwrap().into_iter().find(|(own, _)| own == name).map(|(_, value)| value)
}

fn log(server: &Server) -> String {
    fs::read_to_string(server.rule_file().with_file_name("said")).unwrap()
}

/// Waits until the log has this many lines with `text`.
fn logged(server: &Server, text: &str, times: usize) {
    let count = || log(server).lines().filter(|line| line.contains(text)).count();
    until(text, || count() >= times);
    assert_eq!(count(), times, "{text} in {}", log(server));
}

fn reload(server: &Server, text: &str, times: usize) {
    server.signal(Signal::SIGHUP);
    logged(server, text, times);
}

/// `cattlegrid` with these words: its status, what it printed, and what it logged.
fn run(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cattlegrid"));
    let Output { status, stdout, stderr } = command.args(words).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn a_type_of_a_directory_is_served_and_counted() {
    let types = Types::new(&[("tally.luau", TALLY)]);
    let server = types.start().unwrap();
    logged(&server, &format!("objects: 1 type of your own loaded from {}: tally", types.path().display()), 1);
    let (mut client, mut watcher) = (server.connect().unwrap(), server.connect().unwrap());
    watcher.ask("watch objects\r\n", "OK\r\n");
    value(&mut client, "tally:add:k:2", "2");
    client.send("mg tally::k v t Aadd:5\r\n").unwrap();
    let said = client.line().unwrap();
    let left = said.strip_prefix("VA 1 t").and_then(|rest| rest.strip_suffix("\r\n7\r\n"));
    // Seconds may have passed since the object was made.
    assert!(left.is_some_and(|left| (3500..=3600).contains(&left.parse().unwrap())), "{said}");
    client.ask("get tally:tell:k:hi\r\n", "END\r\n");
    let line = watcher.line().unwrap();
    assert!(
        line.contains(" type=script key=tally%3A%3Ak event=told table=%7B%22text%22%3A%22hi%22%7D"),
        "{line}"
    );
    logged(&server, "objects: told hi", 1);
    client.ask("get tally:fail:k\r\n", "SERVER_ERROR script tally.fail: tally.luau:12: broken\r\n");
    client.ask("get tally:add:k\r\n", "CLIENT_ERROR tally.add: takes n\r\n");
    for (name, value) in [
        ("tally:items", "1"),
        ("tally:add:calls", "3"),
        ("tally:add:errors", "1"),
        ("tally:fail:errors", "1"),
        ("tally:tell:misses", "1"),
        ("objects", "1"),
        ("scripts", "1"),
        ("script_errors", "1"),
        ("script_moved", "0"),
        ("scripts_disabled", "0"),
    ] {
        assert_eq!(stat(&mut client, name).as_deref(), Some(value), "{name}");
    }
    let number = |client: &mut Client, name: &str| stat(client, name).unwrap().parse::<u64>().unwrap();
    assert!(
        (1..=3).contains(&number(&mut client, "script_vms")),
        "the lanes that have called, and the start"
    );
    assert!(number(&mut client, "script_vm_bytes") > 10_000);
    client.ask("stats reset\r\n", "RESET\r\n");
    assert_eq!(stat(&mut client, "script_errors").as_deref(), Some("0"));
    server.stop();
}

#[test]
fn a_reload_takes_all_types_or_none() {
    let types = Types::new(&[("tally.luau", TALLY), ("other.luau", OTHER)]);
    let server = types.start().unwrap();
    let mut client = server.connect().unwrap();
    value(&mut client, "tally:add:k:1", "1");
    value(&mut client, "counter:add:k:1", "1");
    value(&mut client, "other:new:k", "CREATED");

    // A mistake in one source: the others, although they are right, are not taken either.
    types.write("tally.luau", &TALLY.replace("return self.n\n", "return self.n + 100\n"));
    types.write("other.luau", "return {\n");
    reload(&server, "nothing reloaded: ", 1);
    let wrong = log(&server).lines().find(|line| line.contains("nothing reloaded: ")).unwrap().to_owned();
    assert!(wrong.contains("other.luau:2: "), "{wrong}");
    value(&mut client, "tally:add:k:1", "2");

    // The new source finds the object; a type that is gone is told, and a type that takes the place of a
    // shipped type.
    types.remove("other.luau");
    types.write(
        "counter.luau",
        "return { new = function() return {} end, hi = function() return 'mine' end }",
    );
    reload(&server, "objects: other is switched off, and its objects are removed", 1);
    logged(&server, "objects: counter is another type now, and its objects are removed", 1);
    logged(&server, "cattlegrid: reloaded", 1);
    value(&mut client, "tally:add:k:1", "103");
    assert_eq!(stat(&mut client, "tally:add:calls").as_deref(), Some("3"), "it goes on counting");
    client.ask("get counter:hi:k\r\n", "END\r\n");
    value(&mut client, "counter:new:k", "CREATED");
    value(&mut client, "counter:hi:k", "mine");
    client.ask("get counter:add:k:1\r\n", "END\r\n");
    client.ask("get other:get:k\r\n", "END\r\n");
    server.stop();
}

#[test]
fn a_reload_names_the_types_whose_objects_are_removed() {
    let types = Types::new(&[("tally.luau", TALLY), ("other.luau", OTHER)]);
    let server = types.start().unwrap();
    let mut client = server.connect().unwrap();
    value(&mut client, "counter:add:k:1", "1");
    value(&mut client, "tally:add:k:1", "1");
    fs::write(server.rule_file(), format!("{}types = [\"quota\"]\n", types.rules())).unwrap();
    reload(&server, "cattlegrid: reloaded", 1);
    let log = log(&server);
    let removed: Vec<_> = log.lines().filter(|line| line.contains("are removed")).collect();
    let line =
        |name| format!("cattlegrid: warning: objects: {name} is switched off, and its objects are removed");
    assert_eq!(removed, [line("tally"), line("counter")], "no type without objects, own types first");
    server.stop();
}

#[test]
fn failing_tests_keep_the_old_types() {
    let test = "local t = cg.test\nlocal q = t.new('tally', 'k', '1')\nt.eq(q:add('1'), '2')\n";
    let types = Types::new(&[("tally.luau", TALLY), ("tally.test.luau", test)]);
    let server = types.start().unwrap();
    types.write("tally.luau", &TALLY.replace("self.n + tonumber(n)", "self.n + 1 + tonumber(n)"));
    reload(&server, "nothing reloaded: ", 1);
    let wrong = log(&server).lines().find(|line| line.contains("nothing reloaded: ")).unwrap().to_owned();
    assert!(wrong.contains("tally.test.luau:3: "), "{wrong}");
    value(&mut server.connect().unwrap(), "tally:add:k:1", "1");
    server.stop();
}

#[test]
fn watched_files_are_loaded_when_they_have_changed() {
    let types = Types { more: "watch = true\n", ..Types::new(&[("tally.luau", TALLY)]) };
    let server = types.start().unwrap();
    let mut client = server.connect().unwrap();
    value(&mut client, "tally:add:k:1", "1");
    types.write("tally.luau", "return {\n");
    logged(&server, "nothing reloaded: ", 1);
    types.write("tally.luau", &TALLY.replace("return self.n\n", "return self.n + 100\n"));
    logged(&server, "cattlegrid: reloaded", 1);
    value(&mut client, "tally:add:k:1", "102");
    types.write("second.luau", "return { new = function() return {} end, hi = function() return 'hi' end }");
    logged(&server, "cattlegrid: reloaded", 2);
    value(&mut client, "second:new:k", "CREATED");
    // Once for each change: what had a mistake was not reported again, and what was loaded is not loaded
    // again.
    logged(&server, "nothing reloaded: ", 1);
    server.stop();
}

#[test]
fn the_first_source_of_a_watched_directory_is_loaded() {
    let types = Types { more: "watch = true\n", ..Types::new(&[]) };
    let server = types.start().unwrap();
    // Before the server looks at the directory for the first time.
    types.write("tally.luau", TALLY);
    logged(&server, "cattlegrid: reloaded", 1);
    value(&mut server.connect().unwrap(), "tally:add:k:1", "1");
    server.stop();
}

#[test]
fn a_call_that_runs_away_ends_in_a_daemon_too() {
    let types = Types { more: "time_limit = \"20ms\"\n", ..Types::new(&[("tally.luau", TALLY)]) };
    let dir = types.dir.path();
    let (rules, pid, socket) = (dir.join("rules.toml"), dir.join("pid"), dir.join("socket"));
    fs::write(&rules, types.rules()).unwrap();
    let word = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let (rules, pid_word, socket_word) = (word(&rules), word(&pid), word(&socket));
    let words =
        ["-d", "-u", "root", "-m", "16", "-t", "2", "--config", &rules, "-P", &pid_word, "-s", &socket_word];
    let (status, _, log) = run(&words);
    assert_eq!(status, Some(0), "{log}");
    let number: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let ended = Ends(nix::unistd::Pid::from_raw(number));
    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut replies = BufReader::new(client.try_clone().unwrap());
    let mut ask = |line: &str| {
        client.write_all(line.as_bytes()).unwrap();
        let mut reply = String::new();
        replies.read_line(&mut reply).unwrap();
        reply
    };
    assert_eq!(ask("get tally:spin:k\r\n"), "SERVER_ERROR script tally.spin: took longer than 20 ms\r\n");
    assert_eq!(ask("mg tally::k v Aadd:1\r\n"), "VA 1\r\n");
    drop(ended);
}

/// Ends a process, which need not be a child, when it is dropped.
struct Ends(nix::unistd::Pid);

impl Drop for Ends {
    fn drop(&mut self) {
        nix::sys::signal::kill(self.0, Signal::SIGKILL).unwrap_or_default();
    }
}

#[test]
fn a_directory_with_a_mistake_is_no_start() {
    let types = Types::new(&[("tally.luau", TALLY), ("bad.luau", "return {}\nlocal x = = 1\n")]);
    let path = types.path();
    let path = path.to_str().unwrap();
    for words in [
        &["--objects", path][..],
        &["objects", "list", "--objects", path],
        &["objects", "call", path, "a:b:c"],
    ] {
        let (status, _, log) = run(words);
        assert_eq!(status, Some(2), "{log}");
        assert!(log.starts_with(&format!("cattlegrid: --objects {path}: {path}/bad.luau:2: ")), "{log}");
    }
    let rules = types.dir.path().join("f.toml");
    fs::write(&rules, types.rules()).unwrap();
    let (status, _, log) = run(&["check", rules.to_str().unwrap()]);
    assert_eq!(status, Some(2));
    assert!(log.contains("f.toml:2: [objects]: dir ") && log.contains("bad.luau:2: "), "{log}");
    let (status, said, _) = run(&["objects", "lint", path]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.starts_with(&format!("{path}/bad.luau:2: ")), "{said}");
}

#[test]
fn types_of_a_directory_are_listed_called_and_timed() {
    let types = Types::new(&[("tally.luau", TALLY)]);
    let path = types.path();
    let path = path.to_str().unwrap();
    let (status, said, _) = run(&["objects", "list", path, "tally"]);
    assert_eq!(status, Some(0));
    let listed = "tally: A type of your own.\n  tally:add:KEY:n\n  tally:fail:KEY\n  tally:new:KEY[:start]\n  \
                  tally:spin:KEY\n  tally:tell:KEY:text\n\n";
    assert!(said.starts_with(listed), "{said}");
    let (status, said, _) = run(&["objects", "list", path]);
    assert!(status == Some(0) && said.starts_with("quota: ") && said.contains("\ntally: "), "{said}");
    let words = ["objects", "call", path, "--at", "2026-01-01T00:00:00Z", "tally:new:k:5", "tally:add:k:2"];
    let (status, said, log) = run(&words);
    let expected = "@ 2026-01-01T00:00:00Z\nget tally:new:k:5\nVALUE tally:new:k:5 0 7\nCREATED\nEND\n\
                    get tally:add:k:2\nVALUE tally:add:k:2 0 1\n7\nEND\n";
    assert_eq!((status, said.as_str(), log.as_str()), (Some(0), expected, ""));
    types.write("counter.luau", "return { create = {}, new = function() return {n = 0} end, add = function(self, n) self.n += n return self.n end }");
    let words =
        ["objects", "bench", path, "tally:new:k:1", "tally:add:k:1", "counter:add:k:1", "--count", "5"];
    let (status, said, log) = run(&words);
    assert_eq!((status, log.as_str()), (Some(0), ""), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines[1].starts_with("tally:add:k:1 ") && lines[1].ends_with("  7"), "{said}");
    assert!(lines[2].starts_with("counter:add:k:1 ") && lines[2].ends_with("  6"), "{said}");
    assert!(lines[3].starts_with("  the shipped type ") && lines[3].ends_with("  6"), "{said}");
}

#[test]
fn tests_and_transcripts_of_a_directory_are_run() {
    let test = "local t = cg.test\nlocal q = t.new('tally', 'k', '1')\nt.eq(q:add('1'), '2')\n";
    let transcript = "get tally:add:k:2\nVALUE tally:add:k:2 0 1\n2\nEND\n";
    let types = Types::new(&[("tally.luau", TALLY), ("tally.test.luau", test), ("tally.memc", transcript)]);
    let path = types.path();
    let path = path.to_str().unwrap();
    let (status, said, log) = run(&["objects", "test", path]);
    assert_eq!((status, log.as_str()), (Some(0), ""));
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 3 && lines[1].starts_with(&format!("{path}/tally.test.luau: ")), "{said}");
    assert_eq!(lines[0], format!("{path}: types: tally"));
    assert_eq!(lines[2], format!("{path}/tally.memc: 1 request"));
    let (status, said, _) = run(&["objects", "test", &format!("{path}/tally.test.luau")]);
    assert!(status == Some(0) && said.lines().count() == 1, "{said}");
    // A transcript alone has the types beside it, unless it names others; a type is neither.
    let (status, said, log) = run(&["objects", "test", &format!("{path}/tally.memc")]);
    assert_eq!(
        (status, said.as_str(), log.as_str()),
        (Some(0), &*format!("{path}/tally.memc: 1 request\n"), "")
    );
    let (status, _, log) = run(&["objects", "test", &format!("{path}/tally.luau")]);
    assert!(
        status == Some(2) && log.contains("/tally.luau: is a type, which is tested by its *.test.luau"),
        "{log}"
    );
    // In the place of a shipped type, with what its source says.
    let counter = TALLY.replace("ttl = 3600", "ttl = 60");
    let of_counter =
        "cg.test.eq(cg.test.call('counter:add:k:1'), '1')\ncg.test.eq(cg.test.call('counter:ttl:k'), '60')";
    let replaced = Types::new(&[("counter.luau", &counter), ("counter.test.luau", of_counter)]);
    let (status, said, log) = run(&["objects", "test", replaced.path().to_str().unwrap()]);
    assert!(status == Some(0) && said.ends_with("counter.test.luau: 2 checks\n"), "{said}{log}");
    let alone = format!("[objects]\ndir = \".\"\n{transcript}");
    types.write("alone.memc", &alone);
    assert_eq!(run(&["objects", "test", &format!("{path}/alone.memc")]).0, Some(0));
    types.write("tally.memc", &transcript.replace("\n2\n", "\n3\n"));
    let (status, _, log) = run(&["objects", "test", path]);
    assert_eq!(status, Some(1));
    assert!(log.starts_with(&format!("cattlegrid: {path}/tally.memc:3: expected 3")), "{log}");
    types.write("tally.test.luau", &test.replace("'2')", "'3')"));
    let (status, _, log) = run(&["objects", "test", path]);
    assert_eq!(status, Some(1));
    assert!(log.starts_with(&format!("cattlegrid: {path}/tally.test.luau:3: ")), "{log}");
    assert!(log.ends_with(&format!("cattlegrid: {path}: 2 transcripts were not run\n")), "{log}");
    let empty = tempfile::tempdir().unwrap();
    let (status, _, log) = run(&["objects", "test", empty.path().to_str().unwrap()]);
    assert!(status == Some(2) && log.contains("has no tests: "), "{log}");
}
