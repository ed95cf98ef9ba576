//! Runs of quiet gets: which are held, for how long, and what is answered when.

use crate::world;

use cattlegrid_herd::{LeaseTime, OnBusy, Policy};
use cattlegrid_protocol::opcode;
use world::World;

fn policy() -> Policy {
    Policy { lease: LeaseTime::Fixed(3000), hold_ms: 400, hold_many_ms: 100, ..Policy::default() }
}

/// A client has the lease of `page:1`, and `page:2` and `page:3` are there.
fn scene(policy: Policy) -> (World, u64, u64) {
    let mut w = World::new(&[("page:{id}", policy)]);
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "set page:2 0 0 3|two|set page:3 0 0 5|three|", "STORED|STORED|");
    w.expect(a, "get page:1|", "END|");
    (w, a, b)
}

/// A packet of one key without a value; its opaque is `number`.
fn packet(opcode: u8, key: &str, number: u8) -> Vec<u8> {
    let mut out = vec![0; 24];
    (out[0], out[1], out[3], out[11], out[15]) = (0x80, opcode, key.len() as u8, key.len() as u8, number);
    out.extend_from_slice(key.as_bytes());
    out
}

/// The replies to packets: opcode, status, opaque, and the body without flags.
fn replies(w: &mut World, connection: u64) -> Vec<(u8, u8, u8, String)> {
    let sent = w.take_sent(connection);
    let (mut rest, mut all) = (&sent[..], Vec::new());
    while !rest.is_empty() {
        let (head, more) = rest.split_at(24);
        let (body, more) = more.split_at(usize::from(head[11]));
        let text = String::from_utf8(body[usize::from(head[4])..].to_vec()).expect("texts");
        all.push((head[1], head[7], head[15], text));
        rest = more;
    }
    all
}

#[test]
fn a_run_waits_once_and_its_end_with_it() {
    let (mut w, a, b) = scene(policy());
    w.expect(b, "mg page:2 k v q|mg page:1 k v q|mg page:3 k v q|mn|", "VA 3 kpage:2|two|");
    w.pass(60);
    assert_eq!(w.waiting(b), 1);
    w.expect(a, "set page:1 0 0 3|one|", "STORED|");
    assert_eq!(w.replies(b), "VA 3 kpage:1|one|VA 5 kpage:3|three|MN|");

    w.expect(a, "get page:4|", "END|");
    w.expect(b, "mg page:4 k v q|mg page:3 k v q|mn|", "");
    w.pass(99);
    assert_eq!(w.replies(b), "");
    w.pass(2);
    assert_eq!(w.replies(b), "VA 5 kpage:3|three|MN|");
    assert_eq!((w.count("held"), w.count("hold_expired")), (2, 1));
}

#[test]
fn packets_wait_as_well_and_a_quiet_miss_stays_quiet() {
    let (mut w, a, b) = scene(policy());
    let run = |end: Vec<u8>| {
        let gets = [("page:1", 1), ("page:2", 2), ("page:9", 3)];
        gets.iter()
            .flat_map(|(key, number)| packet(opcode::GETKQ, key, *number))
            .chain(end)
            .collect::<Vec<u8>>()
    };
    w.expect(a, "get page:9|", "END|");
    w.send_bytes(b, &run(packet(opcode::NOOP, "", 4)));
    assert_eq!(replies(&mut w, b), []);
    w.expect(a, "set page:1 0 0 3|one|", "STORED|");
    assert_eq!(replies(&mut w, b), [], "of page:9 nothing is known yet");
    w.pass(101);
    let two = [(opcode::GETKQ, 0, 1, "page:1one".to_owned()), (opcode::GETKQ, 0, 2, "page:2two".to_owned())];
    let noop = (opcode::NOOP, 0, 4, String::new());
    assert_eq!(replies(&mut w, b), [&two[..], &[noop]].concat());

    // The first loud get is the end, and has a reply of its own.
    w.expect(a, "delete page:1|get page:1|", "DELETED|END|");
    w.send_bytes(b, &run(packet(opcode::GETK, "page:3", 4)));
    w.pass(99);
    assert_eq!(replies(&mut w, b), []);
    w.pass(2);
    let three = (opcode::GETK, 0, 4, "page:3three".to_owned());
    assert_eq!(replies(&mut w, b), [two[1].clone(), three]);
}

#[test]
fn a_run_that_computes_a_key_is_answered_at_once() {
    let (mut w, a, b) = scene(policy());
    w.expect(b, "mg page:4 k v q|mg page:1 k v q|mn|", "MN|");
    w.expect(b, "mg page:1 k v q|mg page:5 k v q|mg page:3 k v q|mn|", "VA 5 kpage:3|three|MN|");
    assert_eq!(w.count("leases"), 3);
    w.expect(a, "mg page:4 k v q|mn|", "");
    w.expect(b, "set page:4 0 0 4|four|", "STORED|");
    assert_eq!(w.replies(a), "VA 4 kpage:4|four|MN|");
    // The next run may wait again.
    w.expect(b, "mg page:1 k v q|mn|", "");
}

#[test]
fn any_other_command_ends_a_run() {
    let policy = Policy { hold_behind_ms: 50, ..policy() };
    let (mut w, a, b) = scene(policy);
    w.expect(b, "mg page:1 k v q|mg page:2 k v q|touch page:3 9|", "");
    w.pass(49);
    assert_eq!(w.replies(b), "");
    w.pass(2);
    assert_eq!(w.replies(b), "VA 3 kpage:2|two|TOUCHED|");
    // A get that is not quiet is the last of its run, whatever follows.
    w.expect(b, "mg page:1 k v q|mg page:2 k v|mg page:4 k v q|mn|", "");
    w.expect(a, "set page:1 0 0 3|one|", "STORED|");
    assert_eq!(w.replies(b), "VA 3 kpage:1|one|VA 3 kpage:2|two|MN|");
}

#[test]
fn the_next_to_compute_hears_of_it() {
    let (mut w, a, b) = scene(policy());
    w.expect(b, "mg page:1 k v q|mg page:2 k v q|mn|", "");
    w.close(a, false);
    assert_eq!(w.replies(b), "VA 3 kpage:2|two|MN|");
    let c = w.connect();
    w.expect(c, "get page:1|", "");
    w.expect(b, "set page:1 0 0 3|one|", "STORED|");
    assert_eq!(w.replies(c), "VALUE page:1 0 3|one|END|");
}

#[test]
fn one_key_twice_in_a_run() {
    let (mut w, a, b) = scene(policy());
    w.expect(b, "mg page:1 k v q|mg page:1 k v q|mn|", "");
    w.expect(a, "set page:1 0 0 3|one|", "STORED|");
    assert_eq!(w.replies(b), "VA 3 kpage:1|one|VA 3 kpage:1|one|MN|");
    w.expect(b, "mg page:6 k v q|mg page:6 k v q|mn|", "MN|");
}

#[test]
fn a_longer_run_is_not_held() {
    let (mut w, _a, b) = scene(policy());
    let run = |most: usize| (0..most).fold(String::new(), |run, n| run + &format!("mg other:{n} v q|"));
    w.expect(b, &format!("mg page:1 v q|{}mn|", run(1024)), "MN|");
    w.expect(b, &format!("mg page:1 v q|{}mn|", run(1023)), "");
}

/// Clients take an error in place of a quiet get's reply for the reply to another key.
#[test]
fn quiet_packets_are_not_told_that_the_server_is_busy() {
    let (mut w, a, b) = scene(Policy { on_busy: OnBusy::Error, max_waiters: 0, ..policy() });
    let run =
        [packet(opcode::GETQ, "page:1", 1), packet(opcode::GETQ, "page:2", 2), packet(opcode::NOOP, "", 3)];
    w.send_bytes(b, &run.concat());
    let two = (opcode::GETQ, 0, 2, "two".to_owned());
    assert_eq!(replies(&mut w, b), [two, (opcode::NOOP, 0, 3, String::new())]);
    w.send_bytes(b, &packet(opcode::GET, "page:1", 4));
    assert_eq!(replies(&mut w, b), [(opcode::GET, 0x85, 4, "SERVER_ERROR busy".to_owned())]);
    // Its miss is on record, as any other.
    w.expect(a, "delete page:1|", "NOT_FOUND|");
    w.expect(b, "set page:1 0 0 3|old|", "STORED|");
    w.expect(b, "get page:1|", "END|");
}

/// Values behind the missing one that are more than one turn sends: the part before them is held, then the
/// rest is answered.
#[test]
fn large_values_behind_the_missing_one() {
    for form in ["run", "get", "gets"] {
        let policy = Policy { hold_many_ms: 100, ..policy() };
        let (mut w, a, b) = scene(policy);
        w.most = 40;
        let fat = "f".repeat(50);
        w.expect(a, &format!("set page:4 0 0 50|{fat}|set page:5 0 0 50|{fat}|"), "STORED|STORED|");
        let ask = match form {
            "run" => "mg page:1 k v q|mg page:4 k v q|mg page:5 k v q|mg page:2 k v q|mn|".to_owned(),
            verb => format!("{verb} page:1 page:4 page:5 page:2|"),
        };
        let values = |one: bool, cas: &[u64]| -> String {
            let all = [("page:1", "one"), ("page:4", &fat[..]), ("page:5", &fat[..]), ("page:2", "two")];
            let mut text = String::new();
            for (n, (key, value)) in all.iter().enumerate().skip(usize::from(!one)) {
                let len = value.len();
                let block = match form {
                    "run" => format!("VA {len} k{key}|{value}|"),
                    "get" => format!("VALUE {key} 0 {len}|{value}|"),
                    _ => format!("VALUE {key} 0 {len} {}|{value}|", cas[n]),
                };
                text.push_str(&block);
            }
            text + if form == "run" { "MN|" } else { "END|" }
        };
        let cas = |w: &mut World| -> Vec<u64> {
            ["page:1", "page:4", "page:5", "page:2"]
                .map(|key| {
                    let item = w.ask(a, &format!("mg {key} c|"));
                    item.trim_end_matches('|').rsplit(" c").next().unwrap_or_default().parse().unwrap_or(0)
                })
                .to_vec()
        };
        w.expect(b, &ask, "");
        w.pass(60);
        assert_eq!((w.replies(b).as_str(), w.count("held")), ("", 1), "{form}");
        w.expect(a, "set page:1 0 0 3|one|", "STORED|");
        let now = cas(&mut w);
        assert_eq!(w.replies(b), values(true, &now), "{form}");

        w.expect(a, "delete page:1|get page:1|", "DELETED|END|");
        w.expect(b, &ask, "");
        w.pass(101);
        assert_eq!(w.replies(b), values(false, &now), "{form}: once, and for hold_many");
        assert_eq!(w.count("hold_expired"), 1);
        // Of the rest of it no other key is waited for.
        w.expect(a, "get page:1|delete page:2|get page:2|", "END|DELETED|END|");
    }
}

/// In part of a get there is no place for an error: what would be one is a miss, and on record.
#[test]
fn a_part_of_a_get_is_not_told_that_the_server_is_busy() {
    let (mut w, a, b) = scene(Policy { on_busy: OnBusy::Error, max_computers: 1, ..policy() });
    w.most = 40;
    let fat = "f".repeat(50);
    w.expect(a, &format!("set page:4 0 0 50|{fat}|"), "STORED|");
    w.expect(b, "get page:1 page:4 page:2|", "");
    w.pass(101);
    assert_eq!(w.replies(b), format!("VALUE page:4 0 50|{fat}|VALUE page:2 0 3|two|END|"));
    w.expect(a, "delete page:1|", "NOT_FOUND|");
    w.expect(b, "set page:1 0 0 3|old|", "STORED|");
    w.expect(b, "mg page:1 v|", "EN|");
}

/// Its client may take none of the replies before it has seen the end.
#[test]
fn a_client_that_gives_up_a_held_run_may_compute_the_keys_before_it() {
    for (orderly, in_packets) in [(true, false), (false, false), (true, true), (false, true)] {
        let (mut w, a, b) = scene(Policy { hold_many_ms: 2000, ..policy() });
        let c = w.connect();
        if in_packets {
            let gets = ["page:2", "page:1", "page:3"].map(|key| packet(opcode::GETKQ, key, 1));
            w.send_bytes(b, &[&gets.concat()[..], &packet(opcode::NOOP, "", 4)].concat());
        } else {
            w.send(b, "mg page:2 k v q|mg page:1 k v q|mg page:3 k v q|mn|");
        }
        assert_eq!(w.waiting(b), 1);
        w.close(b, orderly);
        w.expect(a, "set page:1 0 0 3|one|", "STORED|");
        for key in ["page:2", "page:1", "page:3"] {
            w.expect(a, &format!("delete {key}|"), "DELETED|");
            w.expect(c, &format!("set {key} 0 0 3|old|"), "STORED|");
            let shown = w.ask(a, &format!("get {key}|"));
            assert_eq!(shown, "END|", "{key}, orderly: {orderly}, in packets: {in_packets}");
        }
    }
}

#[test]
fn a_client_shortens_the_hold_of_a_run() {
    let (mut w, _, b) = scene(Policy { hold_many_ms: 400, ..policy() });
    w.expect(b, "mg page:1 k v q Pw90|mg page:2 k v q Pw90|mg page:3 k v q Pw90|mn|", "");
    w.pass(89);
    assert_eq!(w.replies(b), "");
    w.pass(2);
    assert_eq!(w.replies(b), "VA 3 kpage:2|two|VA 5 kpage:3|three|MN|");
    // It cannot prolong it.
    w.expect(b, "mg page:1 k v q Pw9000|mg page:2 k v q Pw9000|mn|", "");
    w.pass(401);
    assert_eq!(w.replies(b), "VA 3 kpage:2|two|MN|");
}
