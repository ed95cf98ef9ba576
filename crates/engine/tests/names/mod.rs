//! Random bytes as names of calls and objects, as arguments and as data, by every command: each request gets
//! a reply in the form of its command, and nothing crashes. Run by a fuzz target, and here from seeds.

use std::sync::Arc;

use cattlegrid_objects::{Eviction, Registry, Settings};
use cattlegrid_protocol::{Limits, Parsed, parse};

use crate::draw::Draw;
use crate::world::{World, config};

/// Most requests of a run.
const REQUESTS: usize = 200;

/// Arguments that types treat in a way of their own, or might.
const WORDS: &[&[u8]] = &[
    b"",
    b"0",
    b"1",
    b"-1",
    b"3",
    b"10",
    b"99",
    b"100",
    b"101",
    b"1.5",
    b"-0.0",
    b"1e400",
    b"nan",
    b"inf",
    b"+7",
    b"007",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"18446744073709551615",
    b"4294967296",
    b"hour",
    b"month",
    b"day",
    b"week",
    b"minute",
    b"90s",
    b"0s",
    b"1ms",
    b"60m",
    b"4294967295s",
    b"99999999999d",
    b"a",
    b"b",
    b"owner",
    b"%3A",
    b"%25",
    b"%",
    b"%zz",
    b"\xff\x00\n",
    b"0.01",
    b"1000000",
    b"65536",
];

/// Executes what the bytes say.
pub(crate) fn check(bytes: &[u8]) {
    let mut draw = Draw::new(bytes);
    let mut world = world(&mut draw);
    let client = world.connect();
    for _ in 0..REQUESTS {
        if draw.is_done() {
            break;
        }
        if draw.once_in(12) {
            let ms = [1, 999, 61_000, 4_000_000][draw.below(4)];
            world.pass(ms);
        }
        let line = request(&mut draw);
        let limits = Limits { max_item_bytes: 8 << 20, extensions: true, ..Limits::default() };
        // What the parser refuses is not for the engine.
        if !matches!(parse(&line, &limits), Parsed::Complete { used, .. } if used == line.len()) {
            continue;
        }
        world.send_bytes(client, &line);
        assert_eq!(world.waiting(client), 0, "every call ends");
        check_reply(&line, &world.take_sent(client));
    }
    world.engine.verify();
    assert!(world.engine.is_quiet());
}

fn world(draw: &mut Draw<'_>) -> World {
    let mut settings = Settings::default();
    let choices = draw.byte();
    settings.compat = choices & 1 != 0;
    settings.result_max = if choices & 2 != 0 { 100 } else { 1 << 20 };
    settings.prefix = if choices & 4 != 0 { b"p.".to_vec() } else { Vec::new() };
    settings.pinned_max = if choices & 8 != 0 { 2000 } else { 1 << 20 };
    for own in &mut settings.types {
        let choices = draw.byte();
        own.evict = if choices & 1 != 0 { Eviction::Never } else { Eviction::Normal };
        own.ttl_s = [0, 1, u32::MAX][usize::from(choices >> 1) % 3];
        if choices & 64 != 0 {
            own.create = Some(vec![b"10".to_vec(), b"hour".to_vec()]);
        }
    }
    let own = Registry::new(settings.clone());
    let registry = own.unwrap_or_else(|_| {
        // Its `new` refuses these arguments.
        settings.types.iter_mut().for_each(|own| own.create = None);
        Registry::new(settings).expect("the settings are right")
    });
    let mut world = World::with(&[], &config(), 2 << 20, 1);
    world.engine.set_objects(Some(Arc::new(registry)));
    world.pass(1000);
    world
}

fn word(draw: &mut Draw<'_>) -> Vec<u8> {
    match draw.below(8) {
        0 => (0..draw.below(40)).map(|_| draw.byte()).collect(),
        1 => vec![b'x'; draw.below(300)],
        2 => vec![b'k', b'0' + draw.byte() % 3],
        _ => WORDS[draw.below(WORDS.len())].to_vec(),
    }
}

/// Arguments with colons before them.
fn arguments(draw: &mut Draw<'_>, out: &mut Vec<u8>) {
    for _ in 0..draw.below(6) {
        out.push(b':');
        out.extend(word(draw));
    }
}

fn request(draw: &mut Draw<'_>) -> Vec<u8> {
    let (object_type, method) = Registry::numbered(draw.below(Registry::methods_max())).expect("it is one");
    let method = if draw.once_in(20) { "none" } else { method.name };
    let prefix: &[u8] = if draw.once_in(3) { b"p." } else { b"" };
    let key = [b'k', b'0' + draw.byte() % 3];
    let mut call = [prefix, object_type.name.as_bytes(), b":", method.as_bytes(), b":", &key].concat();
    arguments(draw, &mut call);
    if draw.once_in(8) {
        call = word(draw);
    }
    let object = [prefix, object_type.name.as_bytes(), b"::", &key].concat();
    let mut flag = method.as_bytes().to_vec();
    arguments(draw, &mut flag);
    let data: Vec<u8> = if draw.once_in(10) { vec![b'd'; draw.below(70_000)] } else { word(draw) };
    let len = data.len().to_string().into_bytes();
    let parts: Vec<&[u8]> = match draw.below(14) {
        0..3 => vec![b"get ", &call],
        3 => vec![b"gets plain ", &call, b" ", &object, b" ", &call],
        4 => vec![b"mg ", &call, b" v t s f c k"],
        5 | 6 => vec![b"mg ", &object, b" v A", &flag],
        7..10 => vec![b"ms ", &object, b" ", &len, b" v A", &flag, b"\r\n", &data],
        10 => vec![b"delete ", &object],
        11 => vec![b"md ", &object, b" O1"],
        12 => vec![b"set ", &call, b" 0 0 ", &len, b"\r\n", &data],
        _ => vec![b"gat 5 ", &call],
    };
    [parts.concat().as_slice(), b"\r\n"].concat()
}

/// The reply is there, and is one.
fn check_reply(line: &[u8], sent: &[u8]) {
    let text = || format!("{} to {}", sent.escape_ascii(), line.escape_ascii());
    assert!(sent.ends_with(b"\r\n"), "{}", text());
    let end = sent.windows(2).position(|two| two == b"\r\n").expect("it ends so");
    let first = &sent[..end];
    let word = first.split(|byte| *byte == b' ').next().unwrap_or_default();
    if [&b"CLIENT_ERROR"[..], b"SERVER_ERROR"].contains(&word) {
        assert_eq!(sent.len(), first.len() + 2, "{}", text());
        return;
    }
    let is_fine = match line.get(..3).unwrap_or_default() {
        b"get" | b"gat" => [&b"VALUE"[..], b"END"].contains(&word) && sent.ends_with(b"END\r\n"),
        b"mg " => [&b"VA"[..], b"HD", b"EN"].contains(&word),
        b"ms " => [&b"VA"[..], b"HD", b"NF"].contains(&word),
        b"del" => [&b"DELETED"[..], b"NOT_FOUND"].contains(&word),
        b"md " => [&b"HD"[..], b"NF"].contains(&word),
        _ => word == b"STORED",
    };
    assert!(is_fine, "{}", text());
    if word == b"VA" {
        let len = first.split(|byte| *byte == b' ').nth(1).and_then(|len| std::str::from_utf8(len).ok());
        let len: usize = len.and_then(|len| len.parse().ok()).expect("a length");
        assert_eq!(sent.len(), first.len() + 2 + len + 2, "{}", text());
    }
}

#[cfg(test)]
#[test]
fn random_names_and_arguments_get_replies() {
    let mut state = 1_u64;
    for _ in 0..150 {
        let bytes: Vec<u8> = (0..3000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        check(&bytes);
    }
}
