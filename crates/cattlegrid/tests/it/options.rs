//! The built binary under odd command lines: what it says, with what status it leaves, what it leaves behind.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cattlegrid_load::harness::{Server, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cattlegrid"));
    command
        .args(words)
        .env_remove("MEMCACHED_PORT_FILENAME")
        .env_remove("MEMCACHED_SASL_PWDB")
        .stdin(Stdio::null());
    command
}

/// Runs to the end and gives standard error.
fn refused(words: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command(words).output().unwrap();
    assert!(stdout.is_empty(), "{words:?}");
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// A server in the foreground.
fn spawn(command: Command) -> Server {
    Server::spawn(command).unwrap()
}

/// Asks a server to leave; its status and what it said.
fn stop(mut server: Server, signal: Signal) -> (Option<i32>, String) {
    server.signal(signal);
    let mut said = String::new();
    server.take_log().unwrap().read_to_string(&mut said).unwrap();
    (server.wait().unwrap().code(), said)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn usage_errors_are_one_line_and_status_2() {
    for (words, part) in [
        (&["-B", "http"][..], "-B http: must be one of auto, ascii"),
        (&["-c", "0"], "-c 0: must be"),
        (&["-c", "-1"], "-c -1: must be"),
        (&["-t", "0"], "-t 0: must be"),
        (&["-I", "1000"], "-I 1000: must be"),
        (&["-I", "256m"], "above half of the memory"),
        (&["-I", "2g", "-m", "8192"], "-I 2g: must be"),
        (&["-U", "1"], "there is no UDP"),
        (&["-S"], "-S: SASL"),
        (&["-e", "file"], "-e: items do not outlive"),
        (&["-o", "ext_path=/mnt/x:1G"], "-o ext_path: items are kept in memory only"),
        (&["-o", "proxy_config=x"], "-o proxy_config: the proxy"),
        (&["-Q"], "-Q: unknown option"),
        (&["--fooble=1"], "--fooble: unknown option"),
        (&["-p"], "-p: needs a value"),
        (&["-l", "127.0.0.1:fooble"], "fooble is not a port"),
        (&["-Y", "/no/such/file"], "-Y /no/such/file: cannot be read: No such file or directory"),
        (&["-Z", "-o", "ssl_chain_cert=/no/such/file"], "-o ssl_chain_cert /no/such/file: cannot be read"),
    ] {
        let (status, said) = refused(&[&["-u", "root"], words].concat());
        assert_eq!(status, Some(2), "{words:?}: {said}");
        assert!(said.starts_with("cattlegrid: ") && said.contains(part), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
    }
}

#[test]
fn what_the_machine_refuses_is_status_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let in_use = format!("cattlegrid: failed to listen on TCP port {port}: Address already in use\n");
    for (words, part) in [
        (&["-l", "fooble.invalid"][..], "failed to listen on one of interface(s) fooble.invalid"),
        (&["-p", &port], &in_use),
        (&["-dp", &port], &in_use),
        (
            &["-s", "/no/such/directory/socket"],
            "failed to listen on UNIX socket: /no/such/directory/socket: No such",
        ),
        (&["-c", "2000000000"], "failed to set rlimit for open files"),
    ] {
        let (status, said) = refused(&[&["-u", "root"], words].concat());
        assert_eq!(status, Some(1), "{words:?}: {said}");
        assert!(said.contains(part), "{words:?}: {said}");
    }
}

/// Scripts read the version of what is called `memcached`.
/// Settings are checked before any socket is opened: a port that is taken is another mistake.
#[test]
fn an_admin_address_without_protection_is_status_2_whatever_is_taken() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for words in [
        &["-p", "0", "-s", "gone/s", "--admin", &format!("0.0.0.0:{port}")][..],
        &["-p", &port, "--admin", "0.0.0.0:9"],
    ] {
        let (status, said) = refused(words);
        assert!(
            said.contains("--admin 0.0.0.0:") && said.contains("--admin-token <file>"),
            "{words:?}: {said}"
        );
        assert_eq!(status, Some(2), "{words:?}: {said}");
    }
}

/// A rule file's hints are warnings, at the start as at a reload.
#[test]
fn hints_about_the_rule_file_are_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f.toml");
    fs::write(&file, "[loader.pages]\nmode = \"stdio\"\ncommand = [\"cat\"]\n").unwrap();
    // The address ends the start.
    let (status, said) = refused(&["--config", text(&file), "-l", "192.0.2.1:11999"]);
    assert_eq!(status, Some(1), "{said}");
    for hint in
        ["loader pages: no [[rule]] names it", "loader pages: mode = \"stdio\" goes with the next release"]
    {
        assert!(said.contains(&format!("cattlegrid: warning: {hint}")), "{said}");
    }
}

#[test]
fn called_as_memcached_it_says_which() {
    use std::os::unix::process::CommandExt as _;
    let said = |name: &str, words: &[&str]| {
        let output = command(words).arg0(name).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{name} {words:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let own = said("cattlegrid", &["-V"]);
    assert!(own.starts_with("cattlegrid "), "{own}");
    for name in ["memcached", "/usr/bin/memcached"] {
        for word in ["-V", "--version"] {
            assert_eq!(said(name, &[word]), format!("memcached 1.6.45\n{own}"));
        }
        let help = said(name, &["-h"]);
        assert!(help.starts_with("memcached 1.6.45\ncattlegrid "), "{help}");
        for option in ["enable-sasl", "enable-ssl", "no_drop_privileges", "udp-port", "slab_reassign"] {
            assert!(help.contains(option), "scripts look for {option}");
        }
        assert_eq!(said(name, &["demo", "-V"]), said(name, &["-V"]), "it has no subcommands");
    }
    assert_eq!(said("memcached.old", &["-V"]), own);
}

#[test]
fn help_version_and_license_leave_with_0() {
    for (word, start) in [
        ("-h", concat!("cattlegrid ", env!("CARGO_PKG_VERSION"), "\n\nUsage: cattlegrid")),
        ("--help", "cattlegrid "),
        ("--help-all", "cattlegrid "),
        ("version", concat!("cattlegrid ", env!("CARGO_PKG_VERSION"), "\n")),
        ("help", "cattlegrid "),
        ("-V", concat!("cattlegrid ", env!("CARGO_PKG_VERSION"), "\n")),
        ("-i", "cattlegrid "),
    ] {
        let Output { status, stdout, stderr } = command(&[word]).output().unwrap();
        assert_eq!(status.code(), Some(0), "{word}");
        assert!(stdout.starts_with(start.as_bytes()) && stderr.is_empty(), "{word}");
    }
}

#[test]
fn the_port_file_appears_whole_and_every_signal_ends_it_well() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1] {
        let dir = tempfile::tempdir().unwrap();
        let (ports, pid) = (dir.path().join("ports"), dir.path().join("pid"));
        let mut command = command(&["-p", "-1", "-u", "root", "-P", text(&pid), "-o", "modern"]);
        command.env("MEMCACHED_PORT_FILENAME", &ports);
        let server = spawn(command);
        until("pid file", || pid.exists());
        let said = fs::read_to_string(&ports).unwrap();
        let port: u16 = said.strip_prefix("TCP INET: ").unwrap().trim_end().parse().unwrap();
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(fs::read_to_string(&pid).unwrap(), format!("{}\n", server.pid()));
        let (status, said) = stop(server, signal);
        assert_eq!(status, Some(0), "{signal}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("-o modern: accepted without effect"), "{said}");
        assert!(!pid.exists(), "{signal}");
    }
}

#[test]
fn a_daemon_is_ready_when_its_command_returns() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, pid) = (dir.path().join("socket"), dir.path().join("pid"));
    // Relative paths, which -d must not lose on its way to /.
    let output = command(&["-d", "-s", "socket", "-a", "660", "-P", "pid", "-u", "root"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    UnixStream::connect(&socket).unwrap();
    let mode = fs::metadata(&socket).unwrap();
    assert!(mode.file_type().is_socket());
    assert_eq!(mode.permissions().mode() & 0o777, 0o660);

    let number: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let proc = format!("/proc/{number}");
    assert_eq!(fs::read_link(format!("{proc}/cwd")).unwrap(), Path::new("/"));
    for descriptor in 0..3 {
        let file = fs::read_link(format!("{proc}/fd/{descriptor}")).unwrap();
        assert_eq!(file, Path::new("/dev/null"), "{descriptor}");
    }
    // Neither the leader of its session, nor in the session of this test.
    let stat = fs::read_to_string(format!("{proc}/stat")).unwrap();
    let session: i32 = stat.rsplit(')').next().unwrap().split(' ').nth(4).unwrap().parse().unwrap();
    assert!(session != number && session != nix::unistd::getsid(None).unwrap().as_raw());

    // A second one warns of the first's pid and fails on its socket.
    let (status, said) = refused(&["-s", text(&socket), "-P", text(&pid), "-u", "root"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("Address already in use"), "{said}");
    UnixStream::connect(&socket).unwrap();

    kill(Pid::from_raw(number), Signal::SIGTERM).unwrap();
    until("the daemon's end", || !pid.exists() && !socket.exists());
}

#[test]
fn a_running_pid_in_the_pid_file_is_worth_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    let own = format!("{}\n", std::process::id());
    fs::write(&pid, &own).unwrap();
    let server = spawn(command(&["-p", "-1", "-u", "root", "-P", text(&pid)]));
    until("pid file", || fs::read_to_string(&pid).is_ok_and(|text| text != own));
    let (status, said) = stop(server, Signal::SIGTERM);
    assert_eq!(status, Some(0));
    let warning = format!("warning: -P: the pid file contained the following (running) pid: {own}");
    assert!(said.contains(&warning), "{said}");
}

#[test]
fn a_reload_is_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (pid, users) = (dir.path().join("pid"), dir.path().join("users"));
    fs::write(&users, "foo:bar\n").unwrap();
    let words = ["-p", "-1", "-u", "root", "-P", text(&pid), "-Y", text(&users), "--log-format", "json"];
    let server = spawn(command(&words));
    until("pid file", || pid.exists());
    fs::write(&users, "no colon\n").unwrap();
    server.signal(Signal::SIGHUP);
    let mut server = server;
    let mut stderr = server.take_log().unwrap();
    let mut said = String::new();
    let mut byte = [0];
    while !said.ends_with('\n') {
        stderr.read_exact(&mut byte).unwrap();
        said.push(byte[0].into());
    }
    assert!(said.starts_with("{\"ts\":") && said.contains("\"level\":\"error\""), "{said}");
    assert!(said.contains("nothing reloaded: -Y ") && said.contains("line 1: has no colon"), "{said}");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

/// The lines a server says, as they come.
fn next_line(stderr: &mut impl std::io::Read) -> String {
    let mut said = Vec::new();
    let mut byte = [0];
    while !said.ends_with(b"\n") {
        stderr.read_exact(&mut byte).unwrap();
        said.push(byte[0]);
    }
    String::from_utf8(said).unwrap()
}

/// A rule file is read again as a whole or not at all, and what needs a restart is named.
#[test]
fn sighup_reads_the_rule_file_again() {
    let dir = tempfile::tempdir().unwrap();
    let (rules, pid) = (dir.path().join("rules.toml"), dir.path().join("pid"));
    fs::write(&rules, "[server]\nthreads = 1\nport = -1\n[[rule]]\nmatch = \"a:{b}\"\n").unwrap();
    let options = dir.path().join("options");
    fs::write(&options, "-l 127.0.0.1\n-m 64\n").unwrap();
    let given = format!("-{}", text(&options));
    let words = ["-u", "root", "-P", text(&pid), "--options-file", &given, "--config", text(&rules)];
    let mut server = spawn(command(&words));
    let mut stderr = server.take_log().unwrap();
    until("pid file", || pid.exists());

    fs::write(&options, "-l 127.0.0.1\n-m 65\n").unwrap();
    server.signal(Signal::SIGHUP);
    for line in [
        format!("warning: {}: its options have changed since the start: needs a restart", text(&options)),
        "reload: no rule, cascade or loader has changed".to_owned(),
        "reloaded".to_owned(),
    ] {
        assert_eq!(next_line(&mut stderr), format!("cattlegrid: {line}\n"));
    }
    fs::write(&options, "# as before\n-l 127.0.0.1\n-m 64\n").unwrap();

    fs::write(&rules, "[server]\nport = -1\nthreads = 2\nwaiters = 7\n[[rule]]\nmatch = \"c\"\n").unwrap();
    server.signal(Signal::SIGHUP);
    let path = text(&rules);
    let expected = [
        format!("warning: {path}:3: [server]: threads was 1 at the start and is 2 now: needs a restart"),
        format!("warning: {path}:4: [server]: waiters = 7 is new: needs a restart"),
        "reload: rules added: c".to_owned(),
        "reload: rules removed: a:{b}".to_owned(),
        "reloaded".to_owned(),
    ];
    for line in expected {
        assert_eq!(next_line(&mut stderr), format!("cattlegrid: {line}\n"));
    }

    fs::write(&rules, "[[rule]]\nmatch = \"c\"\nhodl = 1\ntags = [\"{x}\"]\n").unwrap();
    server.signal(Signal::SIGHUP);
    let expected = [
        "3: rule c: hodl: is unknown; did you mean hold?",
        "4: rule c: tags \"{x}\": {x}: the pattern has no such capture; it has none",
    ];
    for line in expected {
        assert_eq!(next_line(&mut stderr), format!("cattlegrid: nothing reloaded: {path}:{line}\n"));
    }

    for (empty, line, change) in [
        ("[server]\nthreads = 1\nport = -1\n", 1, "rules removed: c"),
        ("# later\n", 3, "no rule, cascade or loader has changed"),
    ] {
        fs::write(&rules, empty).unwrap();
        server.signal(Signal::SIGHUP);
        // What the start had and this has not needs a restart.
        (1..line).for_each(|_| assert!(next_line(&mut stderr).ends_with("needs a restart\n")));
        let warning = format!("warning: {path}: has no [[rule]] and no [[cascade]]: no key has a rule now");
        assert_eq!(next_line(&mut stderr), format!("cattlegrid: {warning}\n"));
        assert_eq!(next_line(&mut stderr), format!("cattlegrid: reload: {change}\n"));
        assert_eq!(next_line(&mut stderr), "cattlegrid: reloaded\n");
    }
    server.signal(Signal::SIGTERM);
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn a_wrong_rule_file_is_status_2_and_a_line_for_each_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.toml");
    let path = text(&rules);
    fs::write(&rules, "[[rule]]\nmatch = \"a b\"\n\n[servr]\n").unwrap();
    let expected = format!(
        "cattlegrid: {path}:2: rule a b: match \"a b\": must be a pattern, up to 1000 bytes without blanks\n\
         cattlegrid: {path}:4: servr: is unknown; did you mean server?\n"
    );
    assert_eq!(refused(&["-p", "-1", "--config", path]), (Some(2), expected.clone()));
    assert_eq!(refused(&["check", path]), (Some(2), expected.clone()));
    assert_eq!(refused(&["check", path, "--key", "k"]), (Some(2), expected));
}

#[test]
fn the_example_is_right() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/example.toml");
    let Output { status, stdout, stderr } =
        command(&["check", example, "--key", "page:42"]).output().unwrap();
    assert_eq!((status.code(), stderr), (Some(0), Vec::new()));
    let expected = "key page:42\nrule 1: page:{id} (line 10)\n  id = 42\n  tag page:42\n  tag pages\n  hold = \"400ms\" ";
    let said = String::from_utf8(stdout).unwrap();
    assert!(said.starts_with(expected), "{said}");
    let Output { stdout, .. } = command(&["check", example, "--key", "clock:a"]).output().unwrap();
    let said = String::from_utf8(stdout).unwrap();
    let begins = said.starts_with("key clock:a\nrule 4: clock:{name} (line ")
        && said.contains("\nloader clock (line ");
    assert!(begins && said.contains("\n  name = a\n  loader clock, gets name\n"), "{said}");
    let expected = format!(
        "cattlegrid: {example}: --try \"page:42\": its rule 1, page:{{id}}, names no loader; clients compute the value\n"
    );
    assert_eq!(refused(&["check", example, "--try", "page:42"]), (Some(2), expected));
    let Output { status, stdout, .. } = command(&["check", example]).output().unwrap();
    assert!(status.success() && stdout.starts_with(b"[server]\n"));
}

/// Links that the user has planted in its own directory are not followed with root's rights: the files are
/// written as that user, who can remove them in the end.
#[test]
fn files_are_written_as_the_user() {
    if !nix::unistd::Uid::effective().is_root() {
        return;
    }
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [victim, own, pid, ports] =
        ["victim", "own", "own/pid", "own/ports"].map(|name| dir.path().join(name));
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&victim, "precious").unwrap();
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw())).unwrap();
    for planted in ["pid", "pid.tmp", "ports", "ports.tmp"] {
        std::os::unix::fs::symlink(&victim, own.join(planted)).unwrap();
    }
    let mut server = command(&["-p", "-1", "-u", "nobody", "-P", text(&pid)]);
    server.env("MEMCACHED_PORT_FILENAME", &ports);
    let server = spawn(server);
    for file in [&pid, &ports] {
        until("the file is written", || file.symlink_metadata().is_ok_and(|data| data.is_file()));
        assert_eq!(fs::metadata(file).unwrap().uid(), nobody.uid.as_raw());
    }
    let (status, said) = stop(server, Signal::SIGTERM);
    assert_eq!(status, Some(0), "{said}");
    assert!(!pid.exists(), "{said}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");

    // Where it could not be removed it is not written.
    let pid = dir.path().join("pid");
    let socket = own.join("socket");
    let server = spawn(command(&["-s", text(&socket), "-u", "nobody", "-P", text(&pid)]));
    // It accepts before it handles signals, and handles them before it answers.
    until("it answers", || {
        let asked = UnixStream::connect(&socket).and_then(|mut client| {
            client.write_all(b"version\r\n")?;
            client.read(&mut [0; 64])
        });
        asked.is_ok_and(|bytes| bytes > 0)
    });
    let (status, said) = stop(server, Signal::SIGTERM);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("-P: could not write the pid file") && !pid.exists(), "{said}");
}

/// Only root can do this: become another user, which then owns the socket and cannot become root again.
#[test]
fn root_becomes_the_user_and_gives_up_the_rest() {
    if !nix::unistd::Uid::effective().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (socket, pid) = (dir.path().join("socket"), dir.path().join("pid"));
    let server = spawn(command(&[
        "-s",
        text(&socket),
        "-P",
        text(&pid),
        "-c3000",
        "-rku",
        "nobody",
        "-o",
        "drop_privileges",
        "-v",
    ]));
    let status_file = format!("/proc/{}/status", server.pid());
    let field = |name: &str| {
        let status = fs::read_to_string(&status_file).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
    };
    until("no_new_privs", || field("NoNewPrivs:") == "1");
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    assert!(field("Uid:").split('\t').all(|uid| uid == nobody.uid.as_raw().to_string()));
    assert!(field("Gid:").split('\t').all(|gid| gid == nobody.gid.as_raw().to_string()));
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&field(set), 16), Ok(0), "{set}");
    }
    assert_eq!(fs::metadata(&socket).unwrap().uid(), nobody.uid.as_raw());
    // The system shows who may not dump core as root's.
    let shown = || fs::metadata(&status_file).map(|data| data.uid());
    until("-r: may dump core", || shown().is_ok_and(|uid| uid == nobody.uid.as_raw()));
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let limit = |name: &str| -> Vec<String> {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().take(2).map(ToOwned::to_owned).collect()
    };
    let core = limit("Max core file size");
    assert_eq!(core[0], core[1], "-r: as far as allowed");
    assert!(limit("Max open files")[0].parse::<u64>().unwrap() >= 3000, "-c 3000");
    let locked = field("VmLck:");
    let (status, said) = stop(server, Signal::SIGTERM);
    assert_eq!(status, Some(0), "{said}");
    assert!(locked != "0 kB" || said.contains("-k invalid, mlockall() failed"), "{locked} {said}");
    assert!(!socket.exists() && !pid.exists(), "{said}");
}

#[test]
fn root_without_a_user_is_worth_one_warning() {
    if !nix::unistd::Uid::effective().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    let server = spawn(command(&["-p", "-1", "-P", text(&pid)]));
    until("pid file", || pid.exists());
    let (status, said) = stop(server, Signal::SIGTERM);
    assert_eq!(status, Some(0));
    assert_eq!(said, "cattlegrid: warning: running as root; -u <user> names a user to become\n");
}
