//! The tour from its start to its end, and interrupted.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A tour whose first line has been read: it and the pid of the tour's server.
fn start(words: &[&str], temporary: &Path) -> (Child, BufReader<ChildStdout>, u32) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cattlegrid"))
        .arg("demo")
        .args(words)
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let pid = line.trim_end().rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(line, format!("cattlegrid demo: a server on {}, process {pid}\n", address(&line)));
    (child, output, pid)
}

fn address(line: &str) -> &str {
    line.split(' ').find(|word| word.starts_with("127.0.0.1:")).unwrap().trim_end_matches(',')
}

fn errors(child: &mut Child) -> String {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

fn runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
}

/// Both ends in one test: side by side they would only slow each other down.
#[test]
fn the_tour_to_its_end_and_interrupted() {
    let temporary = tempfile::tempdir().unwrap();
    let pictures = tempfile::tempdir().unwrap();
    // A file that cannot be written is said before the tour.
    let nowhere = pictures.path().join("none/stampede.svg");
    let mut program = Command::new(env!("CARGO_BIN_EXE_cattlegrid"));
    let refused = program.arg("demo").arg("--picture").arg(nowhere).output().unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    assert!(String::from_utf8(refused.stderr).unwrap().contains("the picture"));
    let picture = pictures.path().join("stampede.svg");
    let (mut child, mut output, server) = start(&["--picture", picture.to_str().unwrap()], temporary.path());
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}{}", errors(&mut child));
    let picture = std::fs::read_to_string(picture).unwrap();
    for part in ["no rule: 1,000 computations", "under a rule: 1 computation,"] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    for part in [
        "[1/",
        "computed",
        "a worker fills the misses",
        "0 of 6",
        "a shop on PostgreSQL",
        "at 1 s",
        "QUOTA_EXCEEDED",
        "requests/s",
        "64 clients ask",
        "bytes of RAM each",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(wide.is_empty(), "wider than a terminal: {wide:?}");
    let scenes = text.lines().filter(|line| line.starts_with('[')).count();
    let last = format!("[{scenes}/{scenes}] ");
    assert!(text.contains(&last) && !text.contains(&format!("[{}/", scenes + 1)), "a line a scene: {text}");
    assert!(!runs(server), "the server has been stopped and collected");

    let (mut child, _output, server) = start(&[], temporary.path());
    send(child.id(), Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let said = errors(&mut child);
    assert!(said.ends_with("demo: interrupted\n"), "{said}");
    assert!(!runs(server));
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_kept_server_goes_on() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut child, mut output, server) = start(&["--keep"], temporary.path());
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}{}", errors(&mut child));
    assert!(runs(server));
    assert!(text.contains(&format!("kill {server}")), "{text}");
    send(server, Signal::SIGTERM);
}

#[test]
fn the_dashboard_is_there_from_the_beginning() {
    let temporary = tempfile::tempdir().unwrap();
    let (mut child, mut output, server) = start(&["--open"], temporary.path());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let address = line.strip_prefix("dashboard: http://").unwrap().trim_end().trim_end_matches('/');
    let mut page = TcpStream::connect(address).unwrap();
    page.write_all(format!("GET / HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    page.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("<title>Cattlegrid</title>"), "{text}");
    send(child.id(), Signal::SIGINT);
    child.wait().unwrap();
    assert!(!runs(server));
}
