//! A session against a peer of a few lines whose replies can be made wrong.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use cattlegrid_protocol::{Block, Limits, PacketCommand, Parsed, Request as Command, parse_packet, reply};

use super::*;
use crate::{Binary, Memcached, Mix, Popularity, Sizes, Ttls};

fn plan() -> Plan {
    Plan {
        keys: 50,
        key_bytes: 20,
        sizes: Sizes::fixed(40),
        ttls: Ttls::never(),
        flags: 3,
        get_share: 0.5,
        multiget: 3,
        popularity: Popularity::Uniform,
        drift: 0,
        one_hit_share: 0.0,
        fill_on_miss: false,
        seed: 1,
        run: *b"abcdef",
    }
}

/// Serves one connection from a map; `edit` may change a reply to a get, or empty it to hang up.
fn serve(stream: &TcpStream, edit: impl Fn(usize, Vec<u8>) -> Vec<u8>) -> io::Result<()> {
    let mut items = std::collections::HashMap::new();
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    let mut line = String::new();
    let mut gets = 0;
    while {
        line.clear();
        input.read_line(&mut line)?
    } > 0
    {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        if words[0] == "set" {
            let mut value = vec![0; words[4].parse::<usize>().unwrap() + 2];
            input.read_exact(&mut value)?;
            items.insert(words[1].clone(), (words[2].clone(), value));
            output.write_all(b"STORED\r\n")?;
            continue;
        }
        let mut reply = Vec::new();
        for key in &words[1..] {
            let Some((flags, value)) = items.get(key) else { continue };
            reply.extend_from_slice(format!("VALUE {key} {flags} {}\r\n", value.len() - 2).as_bytes());
            reply.extend_from_slice(value);
        }
        reply.extend_from_slice(b"END\r\n");
        gets += 1;
        let reply = edit(gets, reply);
        if reply.is_empty() {
            break;
        }
        output.write_all(&reply)?;
    }
    Ok(())
}

/// The same in the binary protocol: `edit` may change the replies to the keys of a get and to its noop.
fn serve_packets(
    mut stream: &TcpStream,
    edit: impl Fn(usize, Vec<Vec<u8>>) -> Vec<Vec<u8>>,
) -> io::Result<()> {
    let mut items = std::collections::HashMap::new();
    let (mut input, mut buffer) = (Vec::new(), [0; 4096]);
    let (mut gets, mut replies) = (0, Vec::new());
    loop {
        let Parsed::Complete { request, used } = parse_packet(&input, &Limits::default()) else {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                received => input.extend_from_slice(&buffer[..received]),
            }
            continue;
        };
        let mut out = Vec::new();
        match request {
            Command::MetaSet(set, Block::Here(value)) => {
                items.insert(set.key.sent.to_vec(), (set.set.client_flags, value.to_vec()));
                reply::packet::done(&mut out, set.packet.unwrap(), 1);
                stream.write_all(&out)?;
            }
            Command::PacketGet(get) => {
                if let Some((flags, value)) = items.get(get.key) {
                    reply::packet::value_header(&mut out, get.packet, get.key, *flags, value.len(), 1);
                    out.extend_from_slice(value);
                    replies.push(out);
                } else if !get.packet.is_quiet() {
                    reply::packet::miss(&mut out, get.packet, get.key);
                    replies.push(out);
                }
                if !get.packet.is_quiet() {
                    gets += 1;
                    stream.write_all(&edit(gets, std::mem::take(&mut replies)).concat())?;
                }
            }
            Command::Packet(packet, PacketCommand::Noop) => {
                reply::packet::done(&mut out, packet, 0);
                replies.push(out);
                gets += 1;
                stream.write_all(&edit(gets, std::mem::take(&mut replies)).concat())?;
            }
            other => panic!("{other:?}"),
        }
        input.drain(..used);
    }
}

/// One connection, 16 deep, 2,000 requests.
fn run(plan: Plan, edit: impl Fn(usize, Vec<u8>) -> Vec<u8> + Send + 'static) -> Result<Tally, BenchError> {
    run_over(Memcached, plan, move |stream| serve(stream, edit))
}

/// The same in the binary protocol.
fn run_packets(
    plan: Plan,
    edit: impl Fn(usize, Vec<Vec<u8>>) -> Vec<Vec<u8>> + Send + 'static,
) -> Result<Tally, BenchError> {
    run_over(Binary::default(), plan, move |stream| serve_packets(stream, edit))
}

fn run_over<W: Wire + Clone>(
    wire: W,
    plan: Plan,
    serve: impl FnOnce(&TcpStream) -> io::Result<()> + Send + 'static,
) -> Result<Tally, BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || {
        let stream = listener.accept().unwrap().0;
        stream.set_nodelay(true).unwrap();
        serve(&stream).unwrap_or_default();
        stream.shutdown(Shutdown::Both).unwrap_or_default();
    });
    let peer = Arc::new(Peer::new(&address, &plan)?);
    let plan = Arc::new(plan);
    let mut mix = Mix::new(Arc::clone(&plan), 0);
    let mut session = Session::open(wire, plan, peer, 1, 16)?;
    let tally = session.run(&mut mix, Until::Requests(2000), &Meter::default());
    drop(session);
    server.join().unwrap();
    tally
}

/// At the 200th get, when every key has been set, one replacement.
fn replace(from: &'static str, to: &'static str) -> impl Fn(usize, Vec<u8>) -> Vec<u8> + Send + 'static {
    move |gets, reply| {
        if gets < 200 {
            return reply;
        }
        String::from_utf8(reply).unwrap().replacen(from, to, 1).into_bytes()
    }
}

#[test]
fn a_right_server_is_right() {
    let tally = run(plan(), |_, reply| reply).unwrap();
    assert_eq!(tally.requests, 2000);
    let gets = tally.requests - tally.sets;
    assert!((800..1200).contains(&gets), "{gets}");
    assert_eq!(tally.keys_got, 3 * gets);
    assert!(tally.hits > tally.keys_got * 8 / 10 && tally.hits < tally.keys_got);
    assert!(tally.latency(1.0) > Duration::ZERO && tally.elapsed > Duration::ZERO);
}

#[test]
fn a_right_server_is_right_in_packets() {
    for multiget in [1, 3] {
        let tally = run_packets(Plan { multiget, ..plan() }, |_, replies| replies).unwrap();
        let gets = tally.requests - tally.sets;
        assert!(tally.requests == 2000 && (800..1200).contains(&gets), "{gets}");
        assert_eq!(tally.keys_got, multiget as u64 * gets);
        assert!(tally.hits > tally.keys_got * 8 / 10 && tally.hits < tally.keys_got);
        let filled = Plan { get_share: 1.0, fill_on_miss: true, multiget, ..plan() };
        let tally = run_packets(filled, |_, replies| replies).unwrap();
        assert!(tally.sets >= 50 && tally.hits > tally.keys_got * 8 / 10);
    }
}

#[test]
fn values_of_any_size_in_pieces() {
    // One batch has replies that fit the shared buffer and some that do not.
    let long =
        [BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES + 7].map(|n| format!("{n}:1"));
    let sizes: Sizes = format!("0:1,{}", long.join(",")).parse().unwrap();
    let tally = run(Plan { sizes, keys: 20, ..plan() }, |_, reply| reply).unwrap();
    assert!(tally.requests == 2000 && tally.hits > tally.keys_got * 8 / 10);
}

#[test]
fn a_start_is_kept_with_room_for_its_rest() {
    let mut input = InputBuffer::default();
    assert!(input.is_empty() && input.takes_fresh());
    input.keep(b"abc");
    assert!(!input.takes_fresh());
    let room = input.room();
    assert!(room.len() >= ROOM_BYTES);
    room[..2].copy_from_slice(b"de");
    input.filled += 2;
    assert_eq!(input.filled(), b"abcde");
    input.consume(4);
    assert_eq!(input.filled(), b"e");
    input.consume(1);
    assert!(input.takes_fresh(), "little room was made");
    input.keep(&vec![1; BUFFER_BYTES]);
    input.consume(BUFFER_BYTES);
    assert!(input.is_empty() && !input.takes_fresh(), "long replies have room");
}

#[test]
fn misses_are_filled_if_asked_for() {
    let filled = Plan { get_share: 1.0, fill_on_miss: true, ..plan() };
    let tally = run(filled, |_, reply| reply).unwrap();
    assert!(tally.sets >= 50 && tally.hits > tally.keys_got * 8 / 10);
    assert_eq!(run(Plan { get_share: 1.0, ..plan() }, |_, reply| reply).unwrap().hits, 0);
}

#[test]
fn wrong_replies_are_found() {
    for (from, to, fault) in [
        (" 3 40\r\n", " 4 40\r\n", "flags 4 instead of 3"),
        (" 40\r\n", " 39\r\n", "a wrong reply: get was answered with"),
        ("VALUE abcdef", "VALUE abcdeg", "which was not asked for there"),
        ("END\r\n", "ERROR\r\n", "get was answered with \"ERROR\""),
        ("\r\n0000", "\r\n1000", "its value is not what was stored"),
        ("END\r\n", "END\r\nEND\r\n", "a wrong reply"),
    ] {
        let error = run(plan(), replace(from, to)).expect_err(fault).to_string();
        assert!(error.contains(fault), "{fault}: {error}");
    }
}

#[test]
fn wrong_packets_are_found() {
    type Edit = fn(&mut Vec<Vec<u8>>);
    // A reply has 24 bytes of header, the opaque at 12, then 4 bytes of flags, a key of 20 and a value.
    let edits: [(Edit, &str); 9] = [
        (|replies| replies[0][27] = 4, "flags 4 instead of 3"),
        (|replies| replies[0][30] = b'x', "which was not asked for there"),
        (|replies| replies.swap(0, 1), "which was not asked for there"),
        (|replies| replies[1] = replies[0].clone(), "which was not asked for there"),
        (|replies| replies[0][48] ^= 1, "its value is not what was stored"),
        (|replies| replies[0][12] ^= 1, "opaque "),
        (|replies| replies[0][1] = 0x0c, "opcode 0x0c instead of 0x0d"),
        (|replies| replies[3][7] = 0x85, "get was answered with \"status 0x85"),
        (|replies| replies[0] = b"ERROR\r\n".to_vec(), "does not speak the binary protocol"),
    ];
    for (wrong, fault) in edits {
        let error = run_packets(plan(), move |gets, mut replies| {
            // From the 200th get on, when every key has been set; of different keys.
            let is_all = replies.len() == 4 && replies[0][28..48] != replies[1][28..48];
            if gets >= 200 && is_all {
                wrong(&mut replies);
            }
            replies
        });
        let error = error.expect_err(fault).to_string();
        assert!(error.contains(fault), "{fault}: {error}");
    }
}

#[test]
fn an_old_value_is_found() {
    let kept = std::sync::Mutex::new(Vec::new());
    // One key: from the 200th get on its first value again.
    let plan = Plan { keys: 1, multiget: 1, ..plan() };
    let error = run(plan, move |gets, reply| {
        let mut kept = kept.lock().unwrap();
        if kept.is_empty() && reply.len() > 5 {
            kept.clone_from(&reply);
        }
        if gets < 200 { reply } else { kept.clone() }
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("had been stored"), "{error}");
}

#[test]
fn a_server_that_goes_away_is_an_error() {
    let error = run(plan(), |gets, reply| if gets < 200 { reply } else { Vec::new() });
    assert!(matches!(error, Err(BenchError::Lost(_))), "{error:?}");
}

#[test]
fn nobody_listens() {
    // The port is taken, and it has no listener.
    let bound = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    bound.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = bound.local_addr().unwrap().as_socket().unwrap().to_string();
    let plan = Arc::new(plan());
    let peer = Arc::new(Peer::new(&address, &plan).unwrap());
    assert!(matches!(Session::open(Memcached, plan, peer, 1, 1), Err(BenchError::Connect { .. })));
}
