//! Properties of any stream, and the round trip of requests that were made to be valid.

use cattlegrid_protocol::{Block, Limits, Parsed, Request, StoreVerb, parse};
use proptest::prelude::*;

use crate::common::{Event, LIMITS, check, check_splits, drive};

fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("a key byte", |b| !matches!(b, b' ' | b'\n' | b'\r'));
    prop::collection::vec(byte, 1..=250)
}

/// Pieces that make up lines, so that random streams get past the first word.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "get ",
        "gets ",
        "gat ",
        "set ",
        "add ",
        "append ",
        "cas ",
        "incr ",
        "touch ",
        "delete ",
        "mg ",
        "ms ",
        "md ",
        "ma ",
        "me ",
        "mn",
        "k ",
        "Zm9v ",
        "0 ",
        "1 ",
        "2 ",
        "-1 ",
        "5000 ",
        "noreply",
        "b ",
        "v ",
        "T0 ",
        "Tx ",
        "MS ",
        "C7 ",
        "Oq ",
        "q ",
        " ",
        "\n",
        "flush_all ",
        "stats ",
        "HTTP/1.1",
        "xy\r\n",
        "set a 0 0 2\r\n",
        "ms k 2\r\n",
    ];
    prop_oneof![
        12 => prop::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        6 => Just(b"\r\n".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..6),
        1 => (1..300usize).prop_map(|n| vec![b'k'; n]),
    ]
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(fragment(), 0..60).prop_map(|fragments| fragments.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check(&bytes, &LIMITS);
    }

    #[test]
    fn any_split(stream in stream(), extensions in any::<bool>()) {
        check_splits(&stream, &Limits { extensions, ..LIMITS });
    }

    #[test]
    fn any_chunks(stream in stream(), chunks in prop::collection::vec(1..50usize, 1..40)) {
        prop_assert_eq!(drive(&stream, &chunks, &LIMITS), drive(&stream, &[usize::MAX], &LIMITS));
    }

    #[test]
    fn any_store(
        key in key(),
        verb in 0..6usize,
        flags: u32,
        exptime: i32,
        cas: u64,
        data in prop::collection::vec(any::<u8>(), 0..600),
        noreply: bool,
    ) {
        let name = ["set", "add", "replace", "append", "prepend", "cas"][verb];
        let unique = if verb == 5 { format!(" {cas}") } else { String::new() };
        let tail = format!(" {flags} {exptime} {}{unique}{}\r\n", data.len(), if noreply { " noreply" } else { "" });
        let sent = [name.as_bytes(), b" ", &key, tail.as_bytes(), &data, b"\r\n"].concat();
        let Parsed::Complete { request: Request::Store(store), used } = parse(&sent, &LIMITS) else {
            panic!("{:?}", parse(&sent, &LIMITS));
        };
        prop_assert_eq!(used, sent.len());
        prop_assert_eq!(store.verb == StoreVerb::Cas(cas), verb == 5);
        prop_assert_eq!((store.key, store.flags, store.exptime), (&key[..], flags, i64::from(exptime)));
        prop_assert_eq!((store.data, store.noreply), (Block::Here(&data), noreply));
    }

    #[test]
    fn any_get(keys in prop::collection::vec(key(), 1..30), blanks in 1..4usize) {
        let mut sent = b"gets".to_vec();
        for key in &keys {
            sent.resize(sent.len() + blanks, b' ');
            sent.extend_from_slice(key);
        }
        sent.extend_from_slice(b"\r\n");
        let Parsed::Complete { request: Request::Get(get), used } = parse(&sent, &LIMITS) else {
            panic!("{:?}", parse(&sent, &LIMITS));
        };
        prop_assert_eq!(used, sent.len());
        let got: Vec<_> = get.keys.map(|key| key.unwrap().to_vec()).collect();
        prop_assert_eq!(got, keys);
    }

    #[test]
    fn any_meta(key in key(), cas: u64, exptime: i32, opaque in "[!-~]{0,31}", order: bool) {
        let flags = [format!("C{cas}"), format!("T{exptime}"), format!("O{opaque}"), "v".into(), "q".into()];
        let mut flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        if order {
            flags.reverse();
        }
        let sent = [b"mg ", &key[..], b" ", flags.join(" ").as_bytes(), b"\r\n"].concat();
        let Parsed::Complete { request: Request::MetaGet(meta), used } = parse(&sent, &LIMITS) else {
            panic!("{:?}", parse(&sent, &LIMITS));
        };
        prop_assert_eq!(used, sent.len());
        prop_assert_eq!(meta.key.bytes(), &key[..]);
        prop_assert_eq!((meta.set.compare_cas, meta.set.exptime), (cas, i64::from(exptime)));
        let tokens: Vec<_> = meta.flags.map(|token| String::from_utf8(token.to_vec()).unwrap()).collect();
        prop_assert_eq!(tokens, flags);
    }

    #[test]
    fn pipelined_requests_stay_apart(data in prop::collection::vec(any::<u8>(), 0..40), n in 1..6usize) {
        let one = [format!("ms k {}\r\n", data.len()).as_bytes(), &data, b"\r\nmn\r\n"].concat();
        let events = check(&one.repeat(n), &LIMITS);
        prop_assert_eq!(events.len(), 2 * n);
        prop_assert!(events.iter().all(|event| matches!(event, Event::Request(..))));
    }
}
