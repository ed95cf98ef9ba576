use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;

use super::*;

#[test]
fn mute_places_are_asked_side_by_side() {
    let mute: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let places = mute.iter().map(|one| Endpoint::Tcp(one.local_addr().unwrap())).collect();
    let begun = time::nanos();
    let answers = ask_all(places, true);
    assert!(time::nanos() - begun < 4_000_000_000, "each would be 2 s");
    assert!(answers.iter().all(|(_, answer)| *answer == StatsAnswer::Silent), "{answers:?}");
    let mut to = Findings::default();
    assert!(
        silent(&answers, |at| (at == 0).then_some(7), &mut to),
        "of the others it is not known whose they are"
    );
    assert!(to.list.len() == 1 && !to.is_good());
    assert!(
        to.list[0].found.ends_with("accepts connections and does not answer within 2 s"),
        "{:?}",
        to.list
    );
    assert!(to.list[0].mend.contains("kill -CONT 7"));
}

/// Answers one command on each connection, as a server does.
fn serve(mut stream: impl io::Read + io::Write) {
    let mut bytes = [0; 256];
    let count = stream.read(&mut bytes).unwrap();
    let reply = match &bytes[..count] {
        b"stats\r\nquit\r\n" => "STAT pid 1\r\nEND\r\n",
        b"stats cattlegrid\r\nquit\r\n" => "STAT shards 4\r\nEND\r\n",
        _ => "END\r\n",
    };
    stream.write_all(reply.as_bytes()).unwrap();
}

#[test]
fn unix_sockets_are_asked_also_abstract_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let name = format!("cattlegrid-doctor-{}", std::process::id());
    let by_path = UnixListener::bind(&path).unwrap();
    let by_name = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name).unwrap()).unwrap();
    for listener in [by_path, by_name] {
        std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    }
    let files = SystemFiles::at(Path::new("/"));
    let own = places_of(&files, std::process::id());
    assert!(
        own.contains(&Endpoint::Unix(path.clone())) && own.contains(&Endpoint::Abstract(name.clone())),
        "{own:?}"
    );
    for (place, answer) in ask_all(vec![Endpoint::Unix(path.clone()), Endpoint::Abstract(name)], true) {
        assert!(
            matches!(&answer, StatsAnswer::Stats(stats) if running::is_ours(stats)),
            "{place:?}: {answer:?}"
        );
    }
    let mut settings = Settings::default();
    settings.unix_socket = Some(path);
    let mut to = Findings::default();
    let (live, _) = find(&settings, Some(std::process::id()), &files, &mut to);
    assert!(live.unwrap().stats.is_some() && to.unseen.is_empty());
}

#[test]
fn a_process_that_is_only_named_is_not_judged() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let files = SystemFiles::at(Path::new("/"));
    let inode = network::of_port(&machine::listening(&files, None), address).unwrap().inode;
    let own = std::process::id();
    assert!(is_it(&files, own, Some(inode)));
    let mut other = std::process::Command::new("sleep").arg("20").spawn().unwrap();
    assert!(!is_it(&files, other.id(), Some(inode)), "its descriptors are seen, and it has not this one");
    assert!(!is_it(&files, other.id(), None), "it has another name");
    assert!(!answers(&files, other.id()));
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(!is_it(&files, u32::MAX, Some(inode)), "there is no such process");
}
