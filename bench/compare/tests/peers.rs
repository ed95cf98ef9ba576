//! Servers that the user names and that cannot be compared: each is an error of one kind, and nothing is left
//! running.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

fn compare(peer: &str) -> (Option<i32>, String) {
    let words = ["--parts", "connections", "--quick", "--cattlegrid", "/no/such/cattlegrid", "--peer", peer];
    let Output { status, stderr, .. } =
        Command::new(env!("CARGO_BIN_EXE_cattlegrid-compare")).args(words).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// A script that can be run, and its path.
fn script(directory: &Path, text: &str) -> String {
    let file = directory.join("peer");
    let mut out = std::fs::File::create(&file).unwrap();
    write!(out, "#!/bin/sh\n{text}\n").unwrap();
    out.set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn commands_that_start_no_server() {
    let (code, said) = compare("x=memcached");
    assert!(code == Some(2) && said.contains("no argument with {port}"), "{said}");
    let (code, said) = compare("x=/no/such/server {port}");
    assert!(
        code == Some(1) && said.contains("--peer x: /no/such/server") && said.contains("No such file"),
        "{said}"
    );
    let (code, said) = compare("x=/bin/false {port}");
    assert!(code == Some(1) && said.contains("--peer x: /bin/false") && said.contains("it ended"), "{said}");
    let directory = tempfile::tempdir().unwrap();
    let (code, said) =
        compare(&format!("x={} {{port}}", script(directory.path(), "echo the port is taken >&2")));
    assert!(code == Some(1) && said.contains("the port is taken"), "{said}");
}

/// A server of another protocol is named with its reply, and its process ends, as does a process that it has
/// started.
#[test]
fn a_server_of_another_protocol() {
    let directory = tempfile::tempdir().unwrap();
    let server = "exec python3 -c '
import socket, subprocess, sys, time
open(sys.argv[2], \"w\").write(str(subprocess.Popen([\"sleep\", \"60\"]).pid))
listener = None
while not listener:
    try:
        listener = socket.create_server((\"127.0.0.1\", int(sys.argv[1])))
    except OSError:
        # It was free a moment ago: a connection of another program has it.
        time.sleep(0.1)
while True:
    connection, _ = listener.accept()
    if connection.recv(100):
        connection.sendall(b\"-ERR what\\r\\n\")
' \"$@\"";
    let pid = directory.path().join("pid");
    let peer = format!("x={} {{port}} {}", script(directory.path(), server), pid.display());
    let (code, said) = compare(&peer);
    assert!(code == Some(1) && said.contains("--peer x") && said.contains("answered \"-ERR what"), "{said}");
    let pid = std::fs::read_to_string(&pid).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat"));
    cattlegrid_load::harness::until("nothing is left", || state().map_or(true, |stat| stat.contains(") Z ")));
}
