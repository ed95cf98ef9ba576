//! The refusals of memcached 1.6.45.
//!
//! `data/memcached-1.6.45-parse.tsv` is derived from recorded answers. Each line has the bytes sent (escaped,
//! `K` is a key) and then, separated by tabs, the answers that the parser gives, in order. `<silent>`: the
//! bytes sent left a data block open, which took the `mn` that followed.

use crate::common::{Event, check};
use cattlegrid_protocol::Limits;

#[test]
fn refusals_are_memcacheds() {
    let cases = include_str!("data/memcached-1.6.45-parse.tsv");
    let mut checked = 0;
    for case in cases.lines() {
        let mut columns = case.split('\t');
        let sent = unescape(columns.next().unwrap());
        let mut expected: Vec<&str> = columns.collect();
        let silent = expected.pop_if(|reply| *reply == "<silent>").is_some();
        let stream = [&with_key(&sent)[..], b"mn\r\n"].concat();
        let events = check(&stream, &Limits::default());
        let refused: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Refused(reply, ..) => Some(*reply),
                Event::Closed(_) => Some("<closed>"),
                _ => None,
            })
            .collect();
        assert_eq!(refused, expected, "{case}");
        let noop = Event::Request("MetaNoop".into(), 4);
        assert_eq!(events.last() != Some(&noop), silent, "{case}: {events:?}");
        checked += 1;
    }
    assert_eq!(checked, 1394);
}

/// `K` alone is a key that is not base64.
fn with_key(sent: &[u8]) -> Vec<u8> {
    let word = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let mut out = Vec::new();
    for (i, &b) in sent.iter().enumerate() {
        let alone = !word(i.checked_sub(1).map(|i| &sent[i])) && !word(sent.get(i + 1));
        if b == b'K' && alone {
            out.extend_from_slice(b"t12345");
        } else {
            out.push(b);
        }
    }
    out
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('r') => out.push(b'\r'),
                Some('n') => out.push(b'\n'),
                Some('t') => out.push(b'\t'),
                Some('\\') => out.push(b'\\'),
                Some('x') => {
                    let hex: String = chars.by_ref().take(2).collect();
                    out.push(u8::from_str_radix(&hex, 16).expect("two hex digits"));
                }
                other => panic!("escape {other:?}"),
            },
            _ => out.push(u8::try_from(c).expect("ASCII")),
        }
    }
    out
}
