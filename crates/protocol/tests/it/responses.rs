//! Replies that any server may write, read back by the client's side, however they are split; requests that
//! the client's side writes, read back by the server's.

use cattlegrid_protocol::{Block, Parsed, Request, StoreVerb, parse, reply, request};
use proptest::prelude::*;

use crate::common::LIMITS;
use crate::elements::check_splits;

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(0x21..=0x7e_u8, 1..=250)
}

/// One element as the server writes it.
fn written() -> impl Strategy<Value = Vec<u8>> {
    let data = || prop::collection::vec(any::<u8>(), 0..60);
    let lines = vec![
        &b"END\r\n"[..],
        b"STORED\r\n",
        b"NOT_STORED\r\n",
        b"EXISTS\r\n",
        b"NOT_FOUND\r\n",
        b"DELETED\r\n",
        b"TOUCHED\r\n",
        b"OK\r\n",
        b"RESET\r\n",
        b"MN\r\n",
        b"17\r\n",
        b"HD\r\n",
        b"EN\r\n",
        b"NF Oq\r\n",
        b"NS\r\n",
        b"EX c5 W\r\n",
        b"STAT pid 1\r\n",
        b"ERROR\r\n",
        b"CLIENT_ERROR bad\r\n",
        b"SERVER_ERROR busy\r\n",
        b"VERSION 1.6.45\r\n",
    ];
    prop_oneof![
        prop::sample::select(lines).prop_map(<[u8]>::to_vec),
        (key(), any::<u32>(), any::<Option<u64>>(), data()).prop_map(|(key, flags, cas, data)| {
            let mut out = Vec::new();
            reply::value_header(&mut out, &key, flags, data.len(), cas);
            out.extend_from_slice(&data);
            reply::end_line(&mut out);
            out
        }),
        (any::<u32>(), data()).prop_map(|(flags, data)| {
            let mut out = Vec::new();
            reply::va(&mut out, data.len());
            reply::client_flags(&mut out, flags);
            reply::end_line(&mut out);
            out.extend_from_slice(&data);
            reply::end_line(&mut out);
            out
        }),
    ]
}

/// Pieces that make up replies, so that random streams get past the first word.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let words =
        ["VALUE ", "VA ", "k ", "0 ", "1 ", "2 ", "9 ", "-1 ", "END", "HD ", "STAT ", "\r", "\n", "xy", " "];
    prop_oneof![
        12 => prop::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        6 => Just(b"\r\n".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn replies_are_read_as_they_were_written(replies in prop::collection::vec(written(), 0..8)) {
        let elements = check_splits(&replies.concat());
        prop_assert_eq!(elements.len(), replies.len() + 1);
        prop_assert_eq!(elements.last().map(String::as_str), Some("0 left"));
    }

    #[test]
    fn any_reply_splits(fragments in prop::collection::vec(fragment(), 0..40)) {
        check_splits(&fragments.concat());
    }

    #[test]
    fn sets_are_read_as_they_were_written(
        key in key(),
        flags: u32,
        exptime in 0..=0x7fff_ffff_u32,
        data in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut out = Vec::new();
        request::set(&mut out, &key, flags, exptime, &data);
        let Parsed::Complete { request: Request::Store(store), used } = parse(&out, &LIMITS) else {
            panic!("{}", out.escape_ascii());
        };
        prop_assert_eq!(used, out.len());
        prop_assert_eq!((store.verb, store.key, store.flags), (StoreVerb::Set, &key[..], flags));
        prop_assert_eq!((store.exptime, store.data, store.noreply), (i64::from(exptime), Block::Here(&data), false));
    }

    #[test]
    fn gets_are_read_as_they_were_written(keys in prop::collection::vec(key(), 1..20)) {
        let mut out = Vec::new();
        request::get(&mut out, "gets", keys.iter().map(Vec::as_slice));
        let Parsed::Complete { request: Request::Get(get), used } = parse(&out, &LIMITS) else {
            panic!("{}", out.escape_ascii());
        };
        prop_assert_eq!(used, out.len());
        prop_assert_eq!(get.keys.map(|key| key.unwrap().to_vec()).collect::<Vec<_>>(), keys);
    }

    #[test]
    fn meta_commands_are_read_as_they_were_written(
        key in key(),
        data in prop::collection::vec(any::<u8>(), 0..600),
        exptime in 0..=0x7fff_ffff_u32,
    ) {
        let exptime = format!("T{exptime}");
        let flags = [exptime.as_bytes(), b"Oq"];
        let mut out = Vec::new();
        request::meta_set(&mut out, &key, &data, flags);
        let set_bytes = out.len();
        request::meta(&mut out, "mg", &key, flags);
        let Parsed::Complete { request: Request::MetaSet(set, stored), used } = parse(&out, &LIMITS) else {
            panic!("{}", out.escape_ascii());
        };
        prop_assert_eq!((used, stored, set.key.bytes()), (set_bytes, Block::Here(&data), &key[..]));
        let Parsed::Complete { request: Request::MetaGet(get), used } = parse(&out[set_bytes..], &LIMITS) else {
            panic!("{}", out.escape_ascii());
        };
        prop_assert_eq!((used + set_bytes, get.key.bytes()), (out.len(), &key[..]));
        prop_assert_eq!(get.flags.collect::<Vec<_>>(), flags.to_vec());
    }
}
