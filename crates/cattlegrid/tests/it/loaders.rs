//! Loaders in a whole server: its gets are answered by worker processes, which start, change and end with it.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cattlegrid_load::harness::{Server, Start, StartError, comes_true, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// A directory with a program, whose processes have the directory's name among their words.
struct Program(TempDir);

/// A worker whose key says what it does: `page:none`, `page:raise`, `page:sleep-2`.
const PAGES: &str = r#"
import sys, time
sys.path.insert(0, "PYTHON")
sys.dont_write_bytecode = True
from cattlegrid import loader

@loader.load
def load(job):
    what, _, rest = job.args["id"].partition("-")
    if what == "none":
        return loader.not_found()
    if what == "raise":
        raise ValueError("no luck")
    if what == "sleep":
        time.sleep(float(rest))
    return loader.Value("value of " + job.key, flags=7)

loader.serve()
"#;

impl Program {
    fn new() -> Self {
        let program = Self(tempfile::tempdir().unwrap());
        program.write(PAGES);
        program
    }

    fn write(&self, text: &str) {
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/src");
        std::fs::write(self.path(), text.replace("PYTHON", sdk.to_str().unwrap())).unwrap();
    }

    fn path(&self) -> String {
        self.0.path().join("pages.py").display().to_string()
    }

    /// A rule file with it as loader, and these further lines.
    fn rules(&self, more: &str) -> String {
        format!(
            "[[rule]]\nmatch = \"page:{{id}}\"\nloader = \"pages\"\nhold = \"60s\"\nhold_behind = \"60s\"\nttl = \"60s\"\n\
             [loader.pages]\ncommand = [\"python3\", \"{}\"]\nmax = 2\ntimeout = \"60s\"\n{more}\n",
            self.path()
        )
    }

    /// The loader's processes.
    fn processes(&self) -> Vec<String> {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().into_string().ok());
        let of_program = |pid: &String| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words);
            // Its interpreter may be a script that looks for the real one.
            words.contains("python3") && words.contains(&self.path())
        };
        pids.filter(of_program).collect()
    }
}

/// Whether the test, or what it has shown, is over.
struct Ends(AtomicBool);

/// Says so, also when the test fails.
struct Told<'e>(&'e Ends);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Relaxed);
    }
}

fn start(rules: &str) -> Result<Server, StartError> {
    let words = ["-p", "-1", "-u", "root", "-t", "2"];
    let program = Path::new(env!("CARGO_BIN_EXE_cattlegrid"));
    Server::start(&Start { rules: Some(rules), ..Start::new(program, &words) })
}

/// The server's log.
fn said(server: &Server) -> String {
    std::fs::read_to_string(server.rule_file().with_file_name("said")).unwrap()
}

fn count(server: &Server, name: &str) -> u64 {
    let stats = server.connect().unwrap().stats("loaders").unwrap();
    let line = stats.iter().find(|(other, _)| other == name);
    line.unwrap_or_else(|| panic!("{name} in {stats:?}")).1.parse().unwrap()
}

#[test]
fn a_get_is_answered_by_a_worker_once_for_all_clients() {
    let program = Program::new();
    let server = start(&program.rules("")).unwrap();
    let mut clients: Vec<_> = (0..20).map(|_| server.connect().unwrap()).collect();
    for client in &mut clients {
        client.send("get page:sleep-1\r\n").unwrap();
    }
    for client in &mut clients {
        client.expect("VALUE page:sleep-1 7 21\r\nvalue of page:sleep-1\r\nEND\r\n");
    }
    assert_eq!(count(&server, "pages:jobs"), 1);
    assert_eq!(count(&server, "pages:values"), 1);
    let client = &mut clients[0];
    client.ask("get page:none\r\n", "END\r\n");
    client.ask("mg page:raise v N30 Pw60000\r\n", "EN PeValueError:%20no%20luck\r\n");
    client.ask(
        "get page:1 page:2\r\n",
        "VALUE page:1 7 15\r\nvalue of page:1\r\nVALUE page:2 7 15\r\nvalue of page:2\r\nEND\r\n",
    );
    assert_eq!(count(&server, "pages:jobs"), 5);
    assert_eq!(count(&server, "pages:errors"), 1);
    assert_eq!(count(&server, "pages:not_found"), 1);
    until("no job runs", || count(&server, "pages:running") == 0 && count(&server, "transit_bytes") == 0);
    until("the traceback is in the log", || said(&server).contains("loader pages: ValueError: no luck"));
    assert!(client.stats("").unwrap().iter().any(|(name, value)| name == "cmd_set" && value == "0"));
    server.stop();
    until("the workers have ended", || program.processes().is_empty());
}

#[test]
fn a_lease_of_a_loader_is_listed_and_explained() {
    let program = Program::new();
    let server = start(&program.rules("")).unwrap();
    let (mut waits, mut client) = (server.connect().unwrap(), server.connect().unwrap());
    waits.send("get page:sleep-600\r\n").unwrap();
    until("it is listed", || {
        let leases = client.stats("leases").unwrap();
        leases.iter().any(|(key, fields)| {
            key == "page%3Asleep-600"
                && fields.contains(" holder=loader pages ")
                && fields.contains(" left_ms=")
        })
    });
    until("its job runs", || {
        let why = client.get(["@why:page:sleep-600"]).unwrap().remove(0).1;
        why.contains("\"job\":\"running\"")
    });
    server.stop();
}

#[test]
fn held_gets_are_answered_and_workers_end_when_the_server_stops_or_is_killed() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let program = Program::new();
        let mut server = start(&program.rules("")).unwrap();
        let mut client = server.connect().unwrap();
        client.send("get page:sleep-600\r\n").unwrap();
        until("it runs", || count(&server, "pages:busy") == 1);
        server.signal(signal);
        if signal == Signal::SIGTERM {
            client.expect("END\r\n");
            assert!(server.wait().unwrap().success());
        }
        until("the workers have ended", || program.processes().is_empty());
    }
}

#[test]
fn a_loader_that_does_not_start_ends_the_server_with_its_last_words() {
    let program = Program::new();
    program.write("raise RuntimeError('this is broken')");
    let Err(StartError::Refused(_)) = start(&program.rules("")) else { panic!("it must not start") };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.toml");
    std::fs::write(&file, program.rules("")).unwrap();
    let socket = directory.path().join("socket");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_cattlegrid"))
        .args(["-u", "root", "--config"])
        .arg(&file)
        .arg("-s")
        .arg(&socket)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("loader pages: ") && text.contains("this is broken"), "{text}");
    assert!(!socket.exists(), "its socket is gone");
    until("nothing is left", || program.processes().is_empty());
}

#[test]
fn a_server_whose_loader_does_not_get_ready_leaves_when_it_is_told() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let program = Program::new();
        program.write("import time\ntime.sleep(600)");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("rules.toml");
        std::fs::write(&file, program.rules("start_timeout = \"60s\"")).unwrap();
        let socket = directory.path().join("socket");
        let mut server = std::process::Command::new(env!("CARGO_BIN_EXE_cattlegrid"))
            .args(["-u", "root", "--config"])
            .arg(&file)
            .arg("-s")
            .arg(&socket)
            .spawn()
            .unwrap();
        until("the loader starts", || !program.processes().is_empty());
        kill(Pid::from_raw(server.id().try_into().unwrap()), signal).unwrap();
        assert!(server.wait().unwrap().success(), "{signal}");
        assert!(!socket.exists(), "its socket is gone");
        until("nothing is left", || program.processes().is_empty());
    }
}

#[test]
fn a_reload_takes_the_new_program_or_changes_nothing_while_clients_are_served() {
    let program = Program::new();
    let server = start(&program.rules("")).unwrap();
    let ends = Ends(AtomicBool::new(false));
    let newer = PAGES.replace("value of ", "newer ");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut number = 0_u64;
            while !ends.0.load(Relaxed) {
                // A connection each: accepting goes on.
                let mut client = server.connect().unwrap();
                let key = format!("page:{number}");
                let got = client.get([key.as_str()]).unwrap();
                let value = &got.first().unwrap_or_else(|| panic!("{key} was not answered")).1;
                assert!([format!("value of {key}"), format!("newer {key}")].contains(value), "{value}");
                number += 1;
            }
            number
        });
        let told = Told(&ends);
        let reloaded = |word: &str, times: usize| {
            server.signal(Signal::SIGHUP);
            until(word, || said(&server).matches(word).count() >= times);
        };
        program.write("raise RuntimeError('this is broken')");
        reloaded("nothing reloaded: loader pages: ", 1);
        assert!(said(&server).contains("this is broken"));
        program.write(&newer);
        reloaded("cattlegrid: reloaded", 1);
        let mut client = server.connect().unwrap();
        client.ask("get page:after\r\n", "VALUE page:after 7 16\r\nnewer page:after\r\nEND\r\n");
        // The rules go with the loaders, or not at all.
        std::fs::write(server.rule_file(), program.rules("").replace("page:{id}", "leaf:{id}")).unwrap();
        program.write("raise RuntimeError('this is broken')");
        reloaded("nothing reloaded: loader pages: ", 2);
        client.ask("get page:still\r\n", "VALUE page:still 7 16\r\nnewer page:still\r\nEND\r\n");
        drop(told);
        assert!(reader.join().unwrap() > 0);
    });
    program.write(PAGES);
    server.signal(Signal::SIGHUP);
    until("the new rules are in force", || said(&server).matches("cattlegrid: reloaded").count() == 2);
    let mut client = server.connect().unwrap();
    client.ask("get page:new\r\n", "END\r\n");
    client.ask("get leaf:new\r\n", "VALUE leaf:new 7 17\r\nvalue of leaf:new\r\nEND\r\n");
    until("the old generation has ended", || count(&server, "pages:draining") == 0);
    server.stop();
    until("the workers have ended", || program.processes().is_empty());
}

#[test]
fn twenty_reloads_in_a_row_end_in_the_last_program() {
    let program = Program::new();
    let server = start(&program.rules("")).unwrap();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    let before = descriptors();
    for number in 0..20 {
        program.write(&PAGES.replace("value of ", &format!("{number} ")));
        server.signal(Signal::SIGHUP);
    }
    let mut client = server.connect().unwrap();
    let mut key = 0;
    until("the last program answers", || {
        key += 1;
        client.get([format!("page:{key}").as_str()]).unwrap()[0].1.starts_with("19 ")
    });
    until("old generations have ended", || {
        // A template, a worker at most twice, and what they were forked through.
        count(&server, "pages:draining") == 0 && program.processes().len() <= 3
    });
    until("their descriptors are closed", || descriptors() <= before + 16);
    server.stop();
    until("the workers have ended", || program.processes().is_empty());
}

/// While the server is stopped a worker answers; the loader's lease and the waits of clients run out. What has
/// arrived goes before both.
#[test]
fn an_answer_that_arrives_during_a_stop_counts() {
    let program = Program::new();
    let rules = program.rules("").replace("hold = \"60s\"", "hold = \"3s\"");
    let server = start(&rules.replace("timeout = \"60s\"", "timeout = \"2s\"")).unwrap();
    let get = |key: &str| {
        let mut client = server.connect().unwrap();
        client.send(format!("get {key}\r\n")).unwrap();
        client
    };
    let value = |key: &str| format!("VALUE {key} 7 {}\r\nvalue of {key}\r\nEND\r\n", 9 + key.len());
    get("page:1").expect(&value("page:1"));
    let before = count(&server, "pages:jobs");
    let key = "page:sleep-1";
    let clients: Vec<_> = (0..8).map(|_| get(key)).collect();
    until("the job is at a worker", || count(&server, "pages:busy") == 1);
    server.signal(Signal::SIGSTOP);
    // Longer than `hold`, and than the lease, which is a second longer than the timeout.
    assert!(!comes_true(Duration::from_secs(6), || false));
    server.signal(Signal::SIGCONT);
    for mut client in clients {
        client.expect(&value(key));
    }
    assert_eq!(count(&server, "pages:jobs"), before + 1, "it is computed once");
}
