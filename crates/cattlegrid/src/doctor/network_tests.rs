use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use super::*;
use cattlegrid_config::{Command, parse_args};

fn settings(words: &[&str]) -> Settings {
    match parse_args(words.iter().copied()).unwrap() {
        Command::Serve(settings) => *settings,
        other => panic!("{other:?}"),
    }
}

fn list(to: &Findings) -> Vec<String> {
    to.list.iter().map(|finding| format!("{}: {} {}", finding.check, finding.found, finding.mend)).collect()
}

#[test]
fn a_port_that_is_free_and_a_port_that_is_taken() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let files = SystemFiles::at(Path::new("/"));
    let judged = |own| {
        let mut to = Findings::default();
        judge_ports(&settings(&["-p", &port]), &files, own, &[], &mut to);
        to
    };
    let said = list(&judged(None));
    let pid = std::process::id();
    assert!(said.len() == 1 && said[0].contains(&format!("process {pid}")), "{said:?}");
    assert!(list(&judged(Some(pid))).is_empty(), "it is the server itself");
    assert_eq!(list(&judged(Some(pid + 1))).len(), 1, "it is another program");
    drop(listener);
    assert!(list(&judged(None)).is_empty());
    assert!(
        TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse().unwrap())).is_ok(),
        "nothing was left there"
    );
}

#[test]
fn refusals_say_what_mends_them() {
    let said = |why, who| {
        let mut to = Findings::default();
        refused("port", ([127, 0, 0, 1], 80).into(), why, "text", who, &mut to);
        assert!(!to.is_good());
        list(&to).remove(0)
    };
    let memcached = SocketOwner { pid: 9, name: "memcached".to_owned() };
    assert!(
        said(AddressRefusal::Taken, AddressOwner::Process(memcached))
            .contains("systemctl disable --now memcached")
    );
    assert!(said(AddressRefusal::Taken, AddressOwner::Unknown).contains("ss -ltnp sport = :80"));
    assert!(said(AddressRefusal::Forbidden, AddressOwner::Unknown).contains("CAP_NET_BIND_SERVICE"));
    assert!(
        said(AddressRefusal::NotHere, AddressOwner::Unknown)
            .contains("no interface of this machine has 127.0.0.1")
    );
}

#[test]
fn a_process_that_is_not_here_is_not_to_be_killed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let files = SystemFiles::at(Path::new("/"));
    let stats = |pid: u32| super::super::running::RunningStats {
        general: [("pid".to_owned(), pid.to_string())].into(),
        ..Default::default()
    };
    let inode = of_port(&listening(&files, None), address).map(|socket| socket.inode);
    let who = |pid| {
        says_who(
            address,
            &files,
            inode,
            &[(Endpoint::Tcp(address), StatsAnswer::Stats(Box::new(stats(pid))))],
        )
    };
    assert!(matches!(who(std::process::id()), AddressOwner::Process(_)));
    assert_eq!(who(1), AddressOwner::Elsewhere, "it has not this socket");
    assert_eq!(says_who(address, &files, inode, &[]), AddressOwner::Unknown);
    let mut to = Findings::default();
    refused("port", address, AddressRefusal::Taken, "text", AddressOwner::Elsewhere, &mut to);
    let said = list(&to).remove(0);
    assert!(said.contains("another pid namespace?") && !said.contains("kill"), "{said}");
}

#[test]
fn an_address_that_is_named_twice() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let judged = |addresses: &str| {
        let mut to = Findings::default();
        let words = ["-p", &port.to_string(), "-l", addresses];
        judge_ports(&settings(&words), &SystemFiles::at(Path::new("/")), None, &[], &mut to);
        list(&to)
    };
    let twice = judged("127.0.0.1,127.0.0.1");
    assert!(twice.len() == 1 && twice[0].contains("is named twice"), "{twice:?}");
    assert!(judged("127.0.0.1,0.0.0.0")[0].contains("of one port"));
    assert!(judged("127.0.0.1,127.0.0.2").is_empty());
}

#[test]
fn an_address_of_another_machine() {
    let mut to = Findings::default();
    judge_ports(
        &settings(&["-l", "192.0.2.1", "-p", "23456"]),
        &SystemFiles::at(Path::new("/")),
        None,
        &[],
        &mut to,
    );
    assert!(list(&to)[0].contains("no interface of this machine has 192.0.2.1"), "{:?}", to.list);
}

#[test]
fn unix_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let judged = |path: &Path, own| {
        let mut to = Findings::default();
        judge_unix(&settings(&["-s", path.to_str().unwrap()]), own, &mut to);
        list(&to)
    };
    let path = dir.path().join("socket");
    assert!(judged(&path, false).is_empty());
    let listener = UnixListener::bind(&path).unwrap();
    assert!(judged(&path, false)[0].contains("a server listens"));
    assert!(judged(&path, true).is_empty());
    drop(listener);
    assert!(judged(&path, false).is_empty(), "the server replaces it");
    assert!(judged(&dir.path().join("x".repeat(120)), false)[0].contains("the system allows 107"));
    assert!(judged(&dir.path().join("none/socket"), false)[0].contains("cannot make files"));
    std::fs::write(dir.path().join("file"), "").unwrap();
    assert!(judged(&dir.path().join("file"), false)[0].contains("something else"));
}

#[test]
fn who_can_reach_the_server() {
    let judged = |words: &[&str]| {
        let mut to = Findings::default();
        judge_exposure(&settings(words), &mut to);
        (to.is_good(), to.list.len())
    };
    let with_certificates = ["-Z", "-o", "ssl_chain_cert=c,ssl_verify_mode=2,ssl_ca_cert=a"];
    let tls = ["-Z", "-o", "ssl_chain_cert=c"];
    assert_eq!(judged(&[]), (true, 0));
    for public in ["*", "0.0.0.0", "203.0.113.7", "::"] {
        assert_eq!(judged(&["-l", public]), (false, 1), "{public}");
        assert_eq!(judged(&[&["-l", public], &tls[..]].concat()), (false, 1), "{public}");
        assert_eq!(judged(&[&["-l", public], &with_certificates[..]].concat()), (true, 0), "{public}");
        assert_eq!(judged(&["-l", public, "-Y", "/users"]), (true, 1), "passwords in the clear");
        assert_eq!(judged(&[&["-l", public, "-Y", "/users"], &tls[..]].concat()), (true, 0), "{public}");
    }
    for private in ["10.1.2.3", "192.168.0.1", "172.20.1.1", "100.64.0.1", "fd00::1"] {
        assert_eq!(judged(&["-l", private]), (true, 1), "{private}");
    }
    assert_eq!(judged(&["--admin", "0.0.0.0"]), (false, 1));
    assert_eq!(judged(&["--admin", "127.0.0.1"]), (true, 0));
}
