//! Objects in the built server, and `cattlegrid objects` without one.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cattlegrid_load::harness::{Client, Server, Start, until};
use nix::sys::signal::Signal;

/// A server with three threads and objects.
fn start(rules: &str) -> Server {
    start_with("64", rules)
}

/// With this memory limit in MiB.
fn start_with(memory_limit: &str, rules: &str) -> Server {
    let words = ["-p", "-1", "-u", "root", "-t", "3", "-m", memory_limit];
    let program = Path::new(env!("CARGO_BIN_EXE_cattlegrid"));
    Server::start(&Start { rules: Some(rules), ..Start::new(program, &words) }).unwrap()
}

fn connect(server: &Server) -> Client {
    server.connect().unwrap()
}

/// `cattlegrid objects` with these words: its status, what it printed, and what it logged.
fn objects(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cattlegrid"));
    let Output { status, stdout, stderr } = command.arg("objects").args(words).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn stat(client: &mut Client, name: &str) -> Option<String> {
    client.stats("objects").unwrap().into_iter().find(|(own, _)| own == name).map(|(_, value)| value)
}

/// Members of the large set, in order: more than a call reads at once.
fn members() -> Vec<String> {
    (0..12_000).map(|number| format!("m{number:06}")).collect()
}

/// Makes `set::big` of [`members`]; the reply to a call that lists them, as `NAME`.
fn make_big(client: &mut Client, name: &str) -> String {
    client.ask("get set:new:big\r\n", "VALUE set:new:big 0 7\r\nCREATED\r\nEND\r\n");
    for some in members().chunks(25) {
        let key = format!("set:put:big:{}", some.join(":"));
        client.ask(&format!("get {key}\r\n"), &format!("VALUE {key} 0 7\r\nSUCCESS\r\nEND\r\n"));
    }
    let text = members().join("\r\n") + "\r\n";
    format!("VALUE {name} 0 {}\r\n{text}\r\nEND\r\n", text.len())
}

#[test]
fn calls_by_every_form() {
    let server = start("[objects]\n");
    let mut client = connect(&server);
    client.ask("get quota:new:u:10:1h\r\n", "VALUE quota:new:u:10:1h 0 7\r\nCREATED\r\nEND\r\n");
    client.ask("get quota:addandcheck:u:9\r\n", "VALUE quota:addandcheck:u:9 0 8\r\nQUOTA_OK\r\nEND\r\n");
    client.ask("mg quota:addandcheck:u:2 v\r\n", "VA 14\r\nQUOTA_EXCEEDED\r\n");
    client.ask("mg quota::u v k Aaddandcheck:1\r\n", "VA 8 kquota::u\r\nQUOTA_OK\r\n");
    client.ask("ms quota::u 1 v Aaddandcheck\r\n1\r\n", "VA 14\r\nQUOTA_EXCEEDED\r\n");
    client.ask("mg cXVvdGE6OnU= v b k Areset\r\n", "VA 8 kcXVvdGE6OnU= b\r\nQUOTA_OK\r\n");
    client.ask("set quota:reset:u 0 0 1\r\nx\r\n", "CLIENT_ERROR quota:reset is a method\r\n");
    client.ask("delete quota::u\r\n", "DELETED\r\n");
    client.ask("get quota:addandcheck:u:1\r\n", "END\r\n");
    server.stop();
}

#[test]
fn without_objects_nothing_is_a_call() {
    let server = start("");
    let mut client = connect(&server);
    client.ask("set quota:reset:u 0 0 1\r\nx\r\n", "STORED\r\n");
    client.ask("get quota:reset:u\r\n", "VALUE quota:reset:u 0 1\r\nx\r\nEND\r\n");
    client.ask("stats objects\r\n", "END\r\n");
    server.stop();
}

#[test]
fn statistics_are_exact() {
    let server = start(
        "[objects]\ntypes = [\"counter\", \"set\"]\npinned_max = \"2MiB\"\n[objects.counter]\nevict = \"never\"\n",
    );
    let mut client = connect(&server);
    for _ in 0..3 {
        client.send("get counter:add:k:1\r\n").unwrap();
        client.next(|_, _| ()).unwrap();
        client.next(|_, _| ()).unwrap();
    }
    client.ask("get counter:add:k:x\r\n", &error_of_counter(&server));
    client.ask("get set:count:none\r\n", "END\r\n");
    for (name, value) in [
        ("counter:items", "1"),
        ("counter:tree_bytes", "0"),
        ("counter:add:calls", "5"),
        ("counter:add:errors", "2"),
        ("counter:add:bytes", "3"),
        ("set:count:calls", "1"),
        ("set:count:misses", "1"),
        ("objects", "1"),
        ("pinned_max", "2097152"),
        ("busy", "0"),
        ("running", "0"),
    ] {
        assert_eq!(stat(&mut client, name).as_deref(), Some(value), "{name}");
    }
    let pinned = |client: &mut Client| stat(client, "pinned").unwrap().parse::<u64>().unwrap();
    assert!(pinned(&mut client) > 0);
    assert_eq!(stat(&mut client, "bytes"), stat(&mut client, "counter:bytes"));
    client.ask("stats reset\r\n", "RESET\r\n");
    assert_eq!(stat(&mut client, "counter:add:calls"), None);
    assert_eq!(stat(&mut client, "counter:items").as_deref(), Some("1"));
    client.ask("get counter:drop:k\r\n", "VALUE counter:drop:k 0 7\r\nDELETED\r\nEND\r\n");
    assert_eq!((pinned(&mut client), stat(&mut client, "objects")), (0, Some("0".to_owned())));
    server.stop();
}

/// The text of the error, which is the business of the type.
fn error_of_counter(server: &Server) -> String {
    let mut client = connect(server);
    client.send("get counter:add:k:x\r\n").unwrap();
    let line = client.line().unwrap();
    assert!(line.starts_with("CLIENT_ERROR counter.add: arg 1 must be "), "{line}");
    line
}

/// Calls that read much take several steps, on the lane that is their object's home, and others wait for
/// them.
#[test]
fn long_calls_are_answered_on_every_thread() {
    let server = start("[objects]\n");
    let mut clients: Vec<Client> = (0..6).map(|_| connect(&server)).collect();
    let expected = make_big(&mut clients[0], "set:getall:big");
    for _ in 0..5 {
        for client in &mut clients {
            client.send("get set:getall:big\r\nget set:count:big\r\nmn\r\n").unwrap();
        }
        for client in &mut clients {
            client.expect(&expected);
            client.expect("VALUE set:count:big 0 5\r\n12000\r\nEND\r\nMN\r\n");
        }
    }
    let waited = stat(&mut clients[0], "set:getall:waited").unwrap();
    assert_eq!(waited, "30", "each of them took several steps");
    for name in ["busy", "running"] {
        until(name, || stat(&mut clients[0], name).as_deref() == Some("0"));
    }
    // A client that goes away while its call runs is missed by nobody.
    for _ in 0..10 {
        let mut client = connect(&server);
        client.send("get set:getall:big\r\n").unwrap();
        client.reset().unwrap();
    }
    clients[1].ask("get set:getall:big\r\n", &expected);
    until("all calls have ended", || stat(&mut clients[0], "running").as_deref() == Some("0"));
    let held: u64 = stat(&mut clients[0], "set:tree_bytes").unwrap().parse().unwrap();
    assert!(held >= 12_000 * 7, "{held} bytes for 12,000 members");
    clients[2].ask("delete set::big\r\n", "DELETED\r\n");
    until("the memory is given back", || stat(&mut clients[0], "bytes").as_deref() == Some("0"));
    server.stop();
}

#[test]
fn long_calls_end_before_the_server_leaves() {
    let mut server = start("[objects]\n");
    let mut clients: Vec<Client> = (0..6).map(|_| connect(&server)).collect();
    let expected = make_big(&mut clients[0], "set:getall:big");
    for client in &mut clients {
        client.send("get set:getall:big\r\n").unwrap();
    }
    server.signal(Signal::SIGTERM);
    for client in &mut clients {
        client.expect(&expected);
        client.expect_end();
    }
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_reload_takes_types_whole_or_not_at_all() {
    let server = start("[objects]\ntypes = [\"counter\"]\n");
    let mut client = connect(&server);
    let reload = |text: &str| {
        // The reload before may still read: an empty file would switch all types off.
        let new = server.rule_file().with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, server.rule_file()).unwrap();
        server.signal(Signal::SIGHUP);
    };
    client.ask("set quota:reset:u 0 0 1\r\nx\r\n", "STORED\r\n");
    client.ask("get counter:add:k:1\r\n", "VALUE counter:add:k:1 0 1\r\n1\r\nEND\r\n");
    reload("[objects]\ntypes = [\"counter\", \"quota\"]\n");
    until("the new type is there", || stat(&mut client, "quota:items").is_some());
    client.ask("get quota:take:u:1:1:hour\r\n", "VALUE quota:take:u:1:1:hour 0 8\r\nQUOTA_OK\r\nEND\r\n");
    client.ask("get quota:reset:u\r\n", "VALUE quota:reset:u 0 8\r\nQUOTA_OK\r\nEND\r\n");
    client.ask("get counter:add:k:1\r\n", "VALUE counter:add:k:1 0 1\r\n2\r\nEND\r\n");
    // A mistake changes nothing, not even the rules of the file; the next reload shows that it has been read.
    reload("[[rule]]\nmatch = \"a\"\n[objects]\ntypes = [\"quotas\"]\n");
    reload("[objects]\ntypes = [\"counter\", \"quotas\"]\n");
    reload("[objects]\ntypes = [\"counter\", \"quota\"]\njson_flags = 5\n");
    until("the last file is in force", || {
        client.send("mg quota::u f Apeek\r\n").unwrap();
        client.line().unwrap() == "HD f5\r\n"
    });
    client.ask("get counter:add:k:1\r\n", "VALUE counter:add:k:1 0 1\r\n3\r\nEND\r\n");
    // A type that is switched off loses its objects, and its names are keys again.
    reload("[objects]\ntypes = [\"quota\"]\n");
    until("the type is off", || stat(&mut client, "counter:items").is_none());
    client.ask("set counter:add:k:1 0 0 1\r\ny\r\n", "STORED\r\n");
    client.ask("get counter:add:k:1\r\n", "VALUE counter:add:k:1 0 1\r\ny\r\nEND\r\n");
    reload("");
    until("all types are off", || client.stats("objects").unwrap().is_empty());
    client.ask("set quota:reset:u 0 0 1\r\nz\r\n", "STORED\r\n");
    server.stop();
}

#[test]
fn dumps_name_objects() {
    let server = start("[objects]\nprefix = \"o.\"\n");
    let mut client = connect(&server);
    client.ask("get o.counter:add:a%3Ab:5\r\n", "VALUE o.counter:add:a%3Ab:5 0 1\r\n5\r\nEND\r\n");
    client.ask("lru_crawler mgdump all\r\n", "OK\r\nmg o.counter::a:b Adump\r\nEN\r\n");
    client.ask("mg o.counter::a:b Adump v\r\n", "VA 11\r\n{\"value\":5}\r\n");
    client.send("lru_crawler metadump all\r\n").unwrap();
    client.expect("OK\r\n");
    let line = client.line().unwrap();
    assert!(line.starts_with("key=o.counter%3A%3Aa%3Ab exp=-1 la="), "{line}");
    client.expect("END\r\n");
    server.stop();
}

#[test]
fn evicted_objects_are_watched_by_their_names() {
    let server = start_with("4", "[objects]\ntypes = [\"counter\"]\n[server]\nmax_item_size = \"1MiB\"\n");
    let (mut client, mut watcher) = (connect(&server), connect(&server));
    watcher.ask("watch evictions\r\n", "OK\r\n");
    client.ask("get counter:add:first:5\r\n", "VALUE counter:add:first:5 0 1\r\n5\r\nEND\r\n");
    let seen = std::thread::spawn(move || {
        loop {
            // On a busy machine the memory takes long to fill.
            let line = match watcher.line() {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                line => line.unwrap(),
            };
            if let Some((_, rest)) = line.split_once("type=eviction key=counter%3A%3Ak") {
                let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
                return number;
            }
        }
    });
    for number in 0..200_000 {
        let name = format!("counter:add:k{number}:1");
        client.ask(&format!("get {name}\r\n"), &format!("VALUE {name} 0 1\r\n1\r\nEND\r\n"));
        if seen.is_finished() {
            break;
        }
    }
    until("the eviction is told of", || seen.is_finished());
    let name = format!("counter:exists:k{}", seen.join().unwrap());
    client.ask(&format!("get {name}\r\n"), &format!("VALUE {name} 0 9\r\nNOT_FOUND\r\nEND\r\n"));
    server.stop();
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/objects")
}

/// The transcripts show what happens, and an engine in this process answers as a server does.
#[test]
fn the_transcripts_of_the_examples() {
    let paths = fs::read_dir(examples()).unwrap().map(|entry| entry.unwrap().path());
    // Directories have types of users' own.
    let mut files: Vec<String> =
        paths.filter(|path| !path.is_dir()).map(|path| path.display().to_string()).collect();
    files.sort();
    assert!(files.len() >= 5 && files.iter().all(|file| file.contains(".memc")), "{files:?}");
    let words: Vec<&str> = ["test"].into_iter().chain(files.iter().map(String::as_str)).collect();
    let (status, said, log) = objects(&words);
    assert_eq!((status, log.as_str()), (Some(0), ""));
    assert_eq!(said.lines().count(), files.len(), "{said}");
    for (line, file) in said.lines().zip(&files) {
        let requests =
            line.strip_prefix(&format!("{file}: ")).and_then(|rest| rest.strip_suffix(" requests"));
        assert!(
            requests.and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| number > 2),
            "{line}"
        );
    }
}

#[test]
fn a_transcript_that_differs() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.memc");
    let path = file.display().to_string();
    let run = |text: &str| {
        fs::write(&file, text).unwrap();
        let (status, said, log) = objects(&["test", &path]);
        assert!(said.is_empty() || status == Some(0), "{said}");
        (status, log)
    };
    let right = "@ 5\nget counter:add:k:5\nVALUE counter:add:k:5 0 1\n5\nEND\n";
    assert_eq!(run(right), (Some(0), String::new()));
    assert_eq!(run(&right.replace('\n', "\r\n")), (Some(0), String::new()));
    assert_eq!(
        run(&format!("@ 4102444800\n+ 0s\n@ 1\n{right}")),
        (Some(0), String::new()),
        "the clock before a request"
    );
    let differs = |text: &str, line: u32, expected: &str, got: &str| {
        let (status, log) = run(text);
        let wanted = format!("cattlegrid: {path}:{line}: expected {expected}\ncattlegrid:   got {got}\n");
        assert_eq!((status, log), (Some(1), wanted), "{text}");
    };
    differs(&right.replace("\n5\n", "\n6\n"), 4, "6", "5");
    differs(&right.replace("END\n", ""), 5, "", "END");
    differs(&right.replace("\nEND\n", ""), 5, "the end of the file", "END");
    differs(&right.replace("END\n", "END\nEND\n"), 6, "END", "nothing more");
    differs(&format!("{right}get counter:add:k:5\n-- a\n"), 7, "-- a", "VALUE counter:add:k:5 0 2");
    differs("-- a\nnonsense\n", 2, "nonsense", "nothing more: it is no request");
    differs(&format!("{right}gett a\n"), 6, "gett a", "nothing more: it is no request");
    let first_column = "nothing more: requests begin at the first column";
    differs(&format!("{right} get counter:add:k:5\n"), 6, " get counter:add:k:5", first_column);
    let refused = |text: &str, line: &str| {
        let (status, log) = run(text);
        assert_eq!((status, log), (Some(2), format!("cattlegrid: {path}:{line}\n")), "{text}");
    };
    refused(
        "@ noon\n",
        "1: @ noon: must be a time such as 2026-01-01T00:00:00Z, or Unix seconds, from 1970 to 2100",
    );
    let is_none = "is no request, comment, time or setting";
    refused(&format!("\u{feff}{right}"), "1: begins with a byte order mark: save the file without it");
    refused(&format!("\0{right}"), &format!("1: \\x00@ 5: {is_none}"));
    refused(&format!("junk\n{right}"), &format!("1: junk: {is_none}"));
    refused(" get counter:add:k:5\n", &format!("1:  get counter:add:k:5: {is_none}"));
    for nothing in ["", "\n", "-- a\n", "@ 5\n", "[objects]\n"] {
        refused(nothing, " has no requests, such as get counter:add:visits:1");
    }
    refused("@ 5\nmn\nMN\n@ 4\n", "4: @ 4: the clock only goes forward");
    refused("+ 1d\n+ 36500d\n", "2: + 36500d: the clock goes to the year 2100");
    refused("+ 1\n", "1: + 1: must be a time with ms, s, m, h or d, such as 90s");
    refused("-- a\nset k 0 0 1\n", "2: the data block is missing");
    refused("\n[objects]\ntype = 1\n-- a\n", "3: [objects]: type: is unknown; did you mean types?");
    let (status, _, log) = objects(&["test", "/no/such.memc"]);
    assert_eq!(status, Some(2));
    assert!(log.starts_with("cattlegrid: /no/such.memc: cannot be read: "), "{log}");
    // The others are run all the same.
    fs::write(&file, right.replace("\n5\n", "\n6\n")).unwrap();
    let (status, _, log) = objects(&["test", &path, &path]);
    assert_eq!((status, log.lines().count()), (Some(1), 4));
}

#[test]
fn calls_without_a_server_print_a_transcript() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.toml");
    fs::write(&file, "[objects]\nprefix = \"o.\"\n[objects.quota]\ncreate = [1, \"minute\"]\n").unwrap();
    let path = file.to_str().unwrap();
    let words = ["call", "--config", path, "--at", "2026-01-01T00:00:30Z", "o.quota:addandcheck:u:1"];
    let (status, said, log) =
        objects(&[&words[..], &["o.quota:addandcheck:u:1", "+30s", "o.quota:addandcheck:u:1"]].concat());
    let one = |reply: &str| {
        let len = reply.len();
        format!("get o.quota:addandcheck:u:1\nVALUE o.quota:addandcheck:u:1 0 {len}\n{reply}\nEND\n")
    };
    let expected = format!(
        "@ 2026-01-01T00:00:30Z\n{}{}@ 2026-01-01T00:01:00Z\n{}",
        one("QUOTA_OK"),
        one("QUOTA_EXCEEDED"),
        one("QUOTA_OK")
    );
    assert_eq!((status, said.as_str(), log.as_str()), (Some(0), expected.as_str(), ""));

    // What was printed is a transcript.
    let transcript = dir.path().join("t.memc");
    fs::write(&transcript, format!("{}\n{said}", fs::read_to_string(&file).unwrap())).unwrap();
    assert_eq!(objects(&["test", transcript.to_str().unwrap()]).0, Some(0));

    for (name, problem) in [
        (
            "quota:addandcheck:u:1",
            "is no name of a call; cattlegrid objects list shows the types and their methods",
        ),
        ("o.quota::u", "is the name of an object; write type:method:key"),
        ("a b", "must be a key, up to 250 bytes without blanks"),
    ] {
        let (status, said, log) = objects(&["call", "--config", path, name]);
        assert_eq!(
            (status, said.as_str(), log),
            (Some(2), "", format!("cattlegrid: objects call {name}: {problem}\n"))
        );
    }
    fs::write(&file, "").unwrap();
    let (status, _, log) = objects(&["call", "--config", path, "counter:add:k:1"]);
    assert_eq!(
        (status, log),
        (Some(2), format!("cattlegrid: {path}: has no [objects], so no type is switched on; add it\n"))
    );
}
