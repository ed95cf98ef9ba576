//! Numbers at the boundaries of 31, 32, 63 and 64 bits, in every place of every command that takes one.
//!
//! These tables are memcached 1.6.45's. The client flags and the exptime of a classic store are read as C's
//! `strtoul` and `strtol` do, with 64 bits, and cut to their lower 32, so that the exptime 4294967295 is -1
//! (clients send -1 as unsigned); a minus sign negates flags: a magnitude above 2^63 then comes out positive
//! and is taken. All other numbers are digits only: exptimes of 32 bits with an optional `-`, 11 characters
//! at most; the flag `F` of 32 bits, 11 characters at most; CAS numbers, deltas and initial values of 64
//! bits, 22 digits at most.

use cattlegrid_protocol::{Admin, Limits, Parsed, Request, parse};

use crate::common::LIMITS;

const FORMAT: &str = "CLIENT_ERROR bad command line format";
const EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";

/// A word, its exptime in a store, and its exptime elsewhere.
const EXPTIMES: [(&str, Option<i64>, Option<i64>); 28] = [
    ("0", Some(0), Some(0)),
    ("-0", Some(0), Some(0)),
    ("-", None, Some(0)),
    ("-1", Some(-1), Some(-1)),
    ("+7", Some(7), None),
    ("7\t", Some(7), None),
    ("7\r", Some(7), None),
    ("7\tx", Some(7), None),
    ("00000000007", Some(7), Some(7)),
    ("000000000007", Some(7), None),
    ("2147483646", Some(2_147_483_646), Some(2_147_483_646)),
    ("2147483647", Some(2_147_483_647), Some(2_147_483_647)),
    ("2147483648", Some(-2_147_483_648), None),
    ("2147483649", Some(-2_147_483_647), None),
    ("-2147483648", Some(-2_147_483_648), Some(-2_147_483_648)),
    ("-2147483649", Some(2_147_483_647), None),
    ("4102444800", Some(-192_522_496), None),
    ("4294967294", Some(-2), None),
    ("4294967295", Some(-1), None),
    ("4294967296", Some(0), None),
    ("4294967297", Some(1), None),
    ("9223372036854775807", Some(-1), None),
    ("9223372036854775808", None, None),
    ("-9223372036854775808", Some(0), None),
    ("-9223372036854775809", None, None),
    ("18446744073709551615", None, None),
    ("18446744073709551616", None, None),
    ("99999999999999999999999999", None, None),
];

/// A word, its number of 64 bits as client flags of a classic store are read, and its strict one.
const UNSIGNED: [(&str, Option<u64>, Option<u64>); 26] = [
    ("0", Some(0), Some(0)),
    ("-0", Some(0), None),
    ("-", None, None),
    ("+5", Some(5), None),
    ("-1", None, None),
    ("2147483647", Some(2_147_483_647), Some(2_147_483_647)),
    ("2147483648", Some(2_147_483_648), Some(2_147_483_648)),
    ("-2147483648", None, None),
    ("4294967295", Some(4_294_967_295), Some(4_294_967_295)),
    ("4294967296", Some(4_294_967_296), Some(4_294_967_296)),
    ("-4294967296", None, None),
    ("9223372036854775807", Some(i64::MAX as u64), Some(i64::MAX as u64)),
    ("9223372036854775808", Some(1 << 63), Some(1 << 63)),
    ("-9223372036854775807", None, None),
    ("-9223372036854775808", None, None),
    ("-9223372036854775809", Some(i64::MAX as u64), None),
    ("18446744073709551615", Some(u64::MAX), Some(u64::MAX)),
    ("-18446744073709551615", Some(1), None),
    ("18446744073709551616", None, None),
    ("-18446744073709551616", None, None),
    ("99999999999999999999999999", None, None),
    ("5\t", Some(5), None),
    ("5\r", Some(5), None),
    ("5\tx", Some(5), None),
    ("0000000000000000000012", Some(12), Some(12)),
    ("00000000000000000000012", Some(12), None),
];

/// A word, and its strict numbers of 32 bits: with a sign, and without one.
const STRICT: [(&str, Option<i32>, Option<u32>); 19] = [
    ("0", Some(0), Some(0)),
    ("-1", Some(-1), None),
    ("+1", None, None),
    ("1\t", None, None),
    ("1\r", None, None),
    ("-0", Some(0), None),
    ("-", Some(0), None),
    ("4294967301", None, None),
    ("00000000001", Some(1), Some(1)),
    ("000000000001", None, None),
    ("2147483647", Some(i32::MAX), Some(2_147_483_647)),
    ("2147483648", None, Some(2_147_483_648)),
    ("-2147483648", Some(i32::MIN), None),
    ("-2147483649", None, None),
    ("4294967295", None, Some(u32::MAX)),
    ("4294967296", None, None),
    ("99999999999", None, None),
    ("9223372036854775808", None, None),
    ("18446744073709551616", None, None),
];

/// The result of a line: the number that `of` picks from the request, or the reply of the refusal.
fn read<T>(line: &str, of: impl Fn(&Request<'_>) -> T) -> Result<T, &'static str> {
    match parse(line.as_bytes(), &Limits { max_item_bytes: 4096, ..LIMITS }) {
        Parsed::Complete { request, .. } => Ok(of(&request)),
        Parsed::Refused(refused) => Err(refused.reply),
        other @ Parsed::Incomplete { .. } => panic!("{line}: {other:?}"),
    }
}

#[test]
fn exptimes_of_stores() {
    let of = |request: &Request<'_>| match request {
        Request::Store(store) => store.exptime,
        other => panic!("{other:?}"),
    };
    for (word, stored, _) in EXPTIMES {
        for verb in ["set", "add", "replace", "append", "prepend"] {
            let line = format!("{verb} k 0 {word} 1\r\nx\r\n");
            assert_eq!(read(&line, of), stored.ok_or(FORMAT), "{line}");
        }
        let line = format!("cas k 0 {word} 1 5\r\nx\r\n");
        assert_eq!(read(&line, of), stored.ok_or(FORMAT), "{line}");
    }
}

#[test]
fn exptimes_elsewhere() {
    for (word, _, exptime) in EXPTIMES {
        let line = format!("touch k {word}\r\n");
        let touched = read(&line, |request| match request {
            Request::Touch(touch) => touch.exptime,
            other => panic!("{other:?}"),
        });
        assert_eq!(touched, exptime.ok_or(EXPTIME), "{line}");
        for (letter, of) in [('T', 0), ('N', 1), ('R', 2)] {
            let of = |request: &Request<'_>| match request {
                Request::MetaGet(meta)
                | Request::MetaSet(meta, _)
                | Request::MetaDelete(meta)
                | Request::MetaArith(meta) => [meta.set.exptime, meta.set.vivify, meta.set.recache][of],
                other => panic!("{other:?}"),
            };
            for line in [
                format!("mg k {letter}{word}\r\n"),
                format!("md k {letter}{word}\r\n"),
                format!("ms k 1 {letter}{word}\r\nx\r\n"),
            ] {
                assert_eq!(read(&line, of), exptime.ok_or(TOKEN), "{line}");
            }
            let line = format!("ma k {letter}{word}\r\n");
            assert_eq!(read(&line, of), exptime.ok_or("CLIENT_ERROR invalid or duplicate flag"), "{line}");
        }
    }
    // These two take digits only.
    for (word, strict, _) in STRICT {
        for verb in ["gat", "gats"] {
            let line = format!("{verb} {word} k\r\n");
            let touched = read(&line, |request| match request {
                Request::Get(get) => get.touch.unwrap(),
                other => panic!("{other:?}"),
            });
            assert_eq!(touched, strict.map(i64::from).ok_or(EXPTIME), "{line}");
        }
        let line = format!("flush_all {word}\r\n");
        let delay = read(&line, |request| match request {
            Request::Admin(Admin::FlushAll { delay, .. }) => *delay,
            other => panic!("{other:?}"),
        });
        assert_eq!(delay, strict.map(i64::from).ok_or(EXPTIME), "{line}");
    }
}

#[test]
fn client_flags() {
    for (word, number, _) in UNSIGNED {
        let flags = number.map(|n| n as u32);
        let line = format!("set k {word} 0 1\r\nx\r\n");
        let of = |request: &Request<'_>| match request {
            Request::Store(store) => store.flags,
            Request::MetaSet(meta, _) => meta.set.client_flags,
            other => panic!("{other:?}"),
        };
        assert_eq!(read(&line, of), flags.ok_or(FORMAT), "{line}");
    }
    for (word, _, flags) in STRICT {
        let of = |request: &Request<'_>| match request {
            Request::MetaGet(meta)
            | Request::MetaSet(meta, _)
            | Request::MetaDelete(meta)
            | Request::MetaArith(meta) => meta.set.client_flags,
            other => panic!("{other:?}"),
        };
        for line in
            [format!("ms k 1 F{word}\r\nx\r\n"), format!("mg k F{word}\r\n"), format!("md k F{word}\r\n")]
        {
            assert_eq!(read(&line, of), flags.ok_or(FORMAT), "{line}");
        }
        let line = format!("ma k F{word}\r\n");
        assert_eq!(read(&line, of), flags.ok_or("CLIENT_ERROR invalid or duplicate flag"), "{line}");
    }
}

#[test]
fn cas_numbers_deltas_and_first_numbers() {
    for (word, _, number) in UNSIGNED {
        let line = format!("cas k 0 0 1 {word}\r\nx\r\n");
        let cas = read(&line, |request| match request {
            Request::Store(store) => store.verb,
            other => panic!("{other:?}"),
        });
        assert_eq!(cas, number.map(cattlegrid_protocol::StoreVerb::Cas).ok_or(FORMAT), "{line}");
        for verb in ["incr", "decr"] {
            let line = format!("{verb} k {word}\r\n");
            let delta = read(&line, |request| match request {
                Request::Arith(arith) => arith.delta,
                other => panic!("{other:?}"),
            });
            assert_eq!(delta, number.ok_or(DELTA), "{line}");
        }
        for (letter, of, reply) in [
            ('C', 0, TOKEN),
            ('E', 1, TOKEN),
            ('D', 2, "CLIENT_ERROR invalid numeric delta value"),
            ('J', 3, "CLIENT_ERROR invalid numeric initial value"),
        ] {
            let of = |request: &Request<'_>| match request {
                Request::MetaGet(meta) | Request::MetaSet(meta, _) | Request::MetaArith(meta) => {
                    let set = meta.set;
                    [set.compare_cas, set.explicit_cas, set.delta, set.initial][of]
                }
                other => panic!("{other:?}"),
            };
            for line in [format!("mg k {letter}{word}\r\n"), format!("ms k 1 {letter}{word}\r\nx\r\n")] {
                assert_eq!(read(&line, of), number.ok_or(reply), "{line}");
            }
            let line = format!("ma k {letter}{word}\r\n");
            assert_eq!(read(&line, of), number.ok_or("CLIENT_ERROR invalid or duplicate flag"), "{line}");
        }
    }
}

#[test]
fn lengths_of_values() {
    for (word, strict, _) in STRICT {
        // Two bytes for the line end must fit as well.
        let fits = strict.is_some_and(|n| (0..=i32::MAX - 2).contains(&n));
        for line in [format!("set k 0 0 {word}\r\n"), format!("ms k {word}\r\n")] {
            let parsed = parse(line.as_bytes(), &LIMITS);
            let bad = matches!(&parsed, Parsed::Refused(refused) if refused.reply == FORMAT && refused.swallow == 0);
            assert_eq!(!bad, fits, "{line}: {parsed:?}");
        }
    }
    for (word, fits) in [("2147483645", true), ("2147483646", false)] {
        let line = format!("set k 0 0 {word}\r\n");
        let Parsed::Refused(refused) = parse(line.as_bytes(), &LIMITS) else { panic!("{line}") };
        assert_eq!(refused.swallow, if fits { 2_147_483_647 } else { 0 }, "{line}");
    }
}

#[test]
fn numbers_of_administration() {
    for (word, _, strict) in STRICT {
        let line = format!("verbosity {word}\r\n");
        let level = read(&line, |request| match request {
            Request::Admin(Admin::Verbosity { level, .. }) => level.unwrap(),
            other => panic!("{other:?}"),
        });
        assert_eq!(level, strict.ok_or(FORMAT), "{line}");
        let line = format!("cache_memlimit {word}\r\n");
        let mebibytes = read(&line, |request| match request {
            Request::Admin(Admin::CacheMemlimit { mebibytes, .. }) => *mebibytes,
            other => panic!("{other:?}"),
        });
        assert_eq!(mebibytes, strict.map(u64::from).ok_or("ERROR"), "{line}");
    }
}
