//! Single cases that the recorded answers do not cover.

use cattlegrid_protocol::{
    Block, Limits, MetaKey, Parsed, Refusal, RefusalCause, Request, StoreVerb, parse, parse_apart, parse_from,
};

use crate::common::{Event, LIMITS, check, check_need, check_splits};

fn refused(input: &[u8]) -> Refusal<'_> {
    match parse(input, &LIMITS) {
        Parsed::Refused(refused) => refused,
        other => panic!("{other:?}"),
    }
}

fn request(input: &[u8]) -> Request<'_> {
    match parse(input, &LIMITS) {
        Parsed::Complete { request, used } => {
            assert_eq!(used, input.len());
            request
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn stores_borrow_what_was_sent() {
    let Request::Store(store) = request(b"cas k 5 -1 4 77 noreply\r\n\r\n\0\xff\r\n") else { panic!() };
    assert_eq!((store.verb, store.key), (StoreVerb::Cas(77), &b"k"[..]));
    assert_eq!((store.flags, store.exptime, store.noreply), (5, -1, true));
    assert_eq!(store.data, Block::Here(b"\r\n\0\xff"));
}

/// `noreply` is a word after the key; a key may have that name, as with memcached.
#[test]
fn a_key_named_noreply() {
    for (line, key, noreply) in [
        ("delete noreply", "noreply", false),
        ("delete  noreply  ", "noreply", false),
        ("delete noreply noreply", "noreply", true),
        ("delete noreply 0", "noreply", false),
        ("delete k noreply", "k", true),
    ] {
        let input = format!("{line}\r\n");
        let Request::Delete(delete) = request(input.as_bytes()) else { panic!("{line}") };
        assert_eq!((delete.key, delete.noreply), (key.as_bytes(), noreply), "{line}");
    }
}

#[test]
fn incomplete_wants_exactly_what_is_missing() {
    check_need(b"set k 0 0 5\r\nhello\r\n", 13, &LIMITS);
    check_need(b"ms k 5 T0 q\r\nhello\r\n", 13, &LIMITS);
    check_need(b"get k\r\n", 7, &LIMITS);
}

/// The refusal of a store whose block is incomplete: reply, key whose old value is dropped, token.
#[test]
fn a_block_on_its_way_says_how_to_refuse_it() {
    const SAID: &str = "SERVER_ERROR out of memory storing object";
    for (line, reply, key, token) in [
        ("set k 0 0 9", SAID, Some(&b"k"[..]), None),
        ("set  k   0 0 9", SAID, Some(b"k"), None),
        ("set k 0 0 9 noreply", "", Some(b"k"), None),
        ("add k 0 0 9", SAID, None, None),
        ("replace k 0 0 9", SAID, None, None),
        ("append k 0 0 9 noreply", "", None, None),
        ("prepend k 0 0 9", SAID, None, None),
        ("cas k 0 0 9 7", SAID, None, None),
        ("ms k 9", SAID, Some(b"k"), None),
        ("ms  k 9 q ME", SAID, Some(b"k"), None),
        ("ms Zm9v 9 b MA C7", SAID, Some(b"foo"), Some(7)),
    ] {
        for sent in ["", "12345", "123456789", "123456789\r"] {
            let input = format!("{line}\r\n{sent}");
            let parsed = parse(input.as_bytes(), &LIMITS);
            let Parsed::Incomplete { need, block: Some(refused) } = parsed else { panic!("{input}") };
            assert_eq!(need, line.len() + 2 + 11);
            assert_eq!((refused.reply, refused.cause, refused.close), (reply, RefusalCause::NoMemory, false));
            assert_eq!(refused.invalidated().as_ref().map(MetaKey::bytes), key, "{input}");
            assert_eq!((refused.used, refused.swallow), (input.len(), (need - input.len()) as u64));
            assert_eq!(refused.token, token);
        }
        let line = &line.as_bytes()[..line.len()];
        assert!(matches!(parse(line, &LIMITS), Parsed::Incomplete { block: None, .. }));
    }
    let line = format!("get {}", "k ".repeat(2000));
    assert!(matches!(parse(line.as_bytes(), &LIMITS), Parsed::Incomplete { block: None, .. }));
}

#[test]
fn lf_alone_ends_a_line_but_not_a_data_block() {
    assert!(matches!(request(b"get a\n"), Request::Get(_)));
    assert_eq!(request(b"mn\n"), Request::MetaNoop);
    let events = check(b"set a 0 0 1\nx\nmn\r\n", &LIMITS);
    assert_eq!(events[0], Event::Refused("CLIENT_ERROR bad data chunk", 15, None));
}

#[test]
fn an_item_at_the_limit_passes_and_one_above_goes_with_the_old() {
    // 4096 less 59 bytes of overhead and the key; client flags take 4 more.
    for (key, flags, fits) in [("k", 0, 4036), ("k", 1, 4032), ("kkkkk", 0, 4032)] {
        for (len, passes) in [(fits, true), (fits + 1, false)] {
            let set = format!("set {key} {flags} 0 {len}\r\n{}\r\n", "x".repeat(len));
            assert_eq!(
                matches!(parse(set.as_bytes(), &LIMITS), Parsed::Complete { .. }),
                passes,
                "{key} {flags} {len}"
            );
        }
    }
    let data = "x".repeat(4097);
    for (line, invalidated) in [
        ("set k 0 0 4097", Some(&b"k"[..])),
        ("set k 0 0 4097 noreply", Some(b"k")),
        ("add k 0 0 4097", None),
        ("append k 0 0 4097", None),
        ("cas k 0 0 4097 1", None),
        ("ms k 4097", Some(b"k")),
        ("ms k 4097 MA", Some(b"k")),
        ("ms Zm9v 4097 b", Some(b"foo")),
    ] {
        let whole = format!("{line}\r\n{data}\r\nmn\r\n");
        let refused = refused(&whole.as_bytes()[..line.len() + 2]);
        let quiet = line.ends_with("noreply");
        assert_eq!(refused.reply, if quiet { "" } else { "SERVER_ERROR object too large for cache" });
        assert_eq!((refused.used, refused.swallow), (line.len() + 2, 4099));
        assert_eq!(refused.invalidated().as_ref().map(MetaKey::bytes), invalidated, "{line}");
        let store = refused.store.expect("its line is valid");
        let key = if line.contains("Zm9v") { &b"foo"[..] } else { b"k" };
        assert_eq!(store.key().as_ref().map(MetaKey::bytes), Some(key), "{line}");
        assert_eq!(store.classic, !line.starts_with("ms"), "{line}");
        assert_eq!(
            store.verb == StoreVerb::Set,
            line.starts_with("set") || line.starts_with("ms") && !line.contains("MA"),
            "{line}"
        );
        assert_eq!(check(whole.as_bytes(), &LIMITS).len(), 2);
    }
}

#[test]
fn noreply_silences_errors_once_the_line_has_its_words() {
    for (line, reply) in [
        ("set k x 0 1 noreply\r\nx\r\n", ""),
        ("set k 0 0 noreply\r\n", "CLIENT_ERROR bad command line format"),
        ("incr k noreply\r\n", ""),
        ("incr noreply\r\n", "CLIENT_ERROR bad command line format"),
        ("touch k x noreply\r\n", ""),
        ("flush_all x noreply\r\n", ""),
        ("verbosity noreply\r\n", ""),
        ("bogus noreply\r\n", "ERROR"),
        ("set k 0 0 1 noreply\r\nxyz", ""),
        ("ms k 1 q\r\nxyz", "CLIENT_ERROR bad data chunk"),
        ("mg k q ^\r\n", "CLIENT_ERROR invalid flag"),
    ] {
        assert_eq!(refused(line.as_bytes()).reply, reply, "{line}");
    }
}

#[test]
fn meta_errors_have_an_order() {
    let long = "k".repeat(251);
    for (line, reply) in [
        ("mg k v v !".to_owned(), "CLIENT_ERROR bad command line format"),
        (format!("mg {long} v v"), "CLIENT_ERROR bad command line format"),
        (format!("ma {long} !"), "CLIENT_ERROR bad command line format"),
        (format!("ma {long}"), "CLIENT_ERROR invalid or duplicate flag"),
        (
            "mg k b c f h k l q s t u v x N1 T1 R1 C1 O1 P1 L1".into(),
            "CLIENT_ERROR options flags are too long",
        ),
        ("mg k Tx a".into(), "CLIENT_ERROR invalid flag"),
        ("mg k Fx".into(), "CLIENT_ERROR bad command line format"),
        ("mg k Tx Fx".into(), "CLIENT_ERROR bad token in command line format"),
        ("mg k Fx Dx".into(), "CLIENT_ERROR invalid numeric delta value"),
        ("mg k Dx Jx".into(), "CLIENT_ERROR invalid numeric initial value"),
        ("mg k Tx b".into(), "CLIENT_ERROR error decoding key"),
        ("mg k b Tx".into(), "CLIENT_ERROR bad token in command line format"),
        (format!("mg k O{}", "x".repeat(32)), "CLIENT_ERROR opaque token too long"),
        ("ma k M".into(), "CLIENT_ERROR invalid mode for ma M token"),
        ("mg k 1".into(), "CLIENT_ERROR invalid flag"),
        ("mg k \u{e9}".into(), "CLIENT_ERROR bad command line format"),
    ] {
        assert_eq!(refused(format!("{line}\r\n").as_bytes()).reply, reply, "{line}");
    }
    assert!(matches!(request(b"mg k Oxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n"), Request::MetaGet(_)));
}

#[test]
fn meta_flags_are_read() {
    let line = b"ms Zm9v 2 b C1 E2 F3 T-4 N5 R6 J7 D8 MA k q\r\nhi\r\n";
    let Request::MetaSet(meta, Block::Here(b"hi")) = request(line) else { panic!() };
    assert_eq!((meta.key.sent, meta.key.bytes(), meta.key.is_binary()), (&b"Zm9v"[..], &b"foo"[..], true));
    let set = meta.set;
    assert_eq!((set.compare_cas, set.explicit_cas, set.client_flags, set.exptime), (1, 2, 3, -4));
    assert_eq!((set.vivify, set.recache, set.initial, set.delta, set.mode), (5, 6, 7, 8, b'A'));
    assert!(set.has(b'q') && set.has(b'b') && !set.has(b'v'));
    assert_eq!(meta.flags.map(|token| token[0]).collect::<Vec<_>>(), b"bCEFTNRJDMkq");
}

#[test]
fn extension_letters_only_when_on() {
    let on = Limits { extensions: true, ..LIMITS };
    for line in [
        "ms k 0 n Gtag,other\r\n\r\n",
        "mg k G\r\n",
        "md k G I\r\n",
        "ma k G\r\n",
        "mg k Am:1 v\r\n",
        "ms k 1 v Ax\r\n1\r\n",
    ] {
        assert!(matches!(parse(line.as_bytes(), &on), Parsed::Complete { .. }), "{line}");
        assert!(matches!(parse(line.as_bytes(), &LIMITS), Parsed::Refused(_)), "{line}");
    }
    for line in ["mg k n\r\n", "mg k Am Ax\r\n", "md k Ax\r\n", "ma k Ax\r\n", "ma k n\r\n"] {
        assert!(matches!(parse(line.as_bytes(), &on), Parsed::Refused(_)), "{line}");
    }
}

#[test]
fn a_method_is_the_text_behind_its_letter() {
    let on = Limits { extensions: true, ..LIMITS };
    let method = |line: &'static str| match parse(line.as_bytes(), &on) {
        Parsed::Complete { request: Request::MetaGet(meta) | Request::MetaSet(meta, _), .. } => {
            meta.method().map(|text| std::str::from_utf8(text).unwrap())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(method("mg quota::u v Aaddandcheck:10 k\r\n"), Some("addandcheck:10"));
    assert_eq!(method("mg quota::u v A\r\n"), Some(""), "a call without a name is for the engine to refuse");
    assert_eq!(method("mg quota::u v OA k\r\n"), None);
    assert_eq!(method("ms quota::u 0 MA\r\n\r\n"), None, "a mode");
    assert_eq!(method("ms set::u 2 MA Aput:x%20y q v\r\nhi\r\n"), Some("put:x%20y"));
    assert_eq!(method("mg quota::u v AA\r\n"), Some("A"));
}

#[test]
fn one_long_key_refuses_the_whole_get() {
    let line = format!("get a {} b\r\n", "k".repeat(251));
    assert_eq!(refused(line.as_bytes()).reply, "CLIENT_ERROR bad command line format");
    let line = format!("get {} {0} {0}\r\n", "k".repeat(250));
    assert!(matches!(request(line.as_bytes()), Request::Get(_)));
}

#[test]
fn only_gets_have_long_lines() {
    let ends = |name: &str, len: usize| {
        let line = format!("{name} {}x\r\n", "x ".repeat(len));
        check(&line.as_bytes()[..line.len().min(len)], &LIMITS);
        let lf = line.len() - 1;
        match check(line.as_bytes(), &LIMITS).pop() {
            Some(Event::Closed("")) => format!("closed {}", lf > 2048),
            Some(Event::Request(..)) => "request".to_owned(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ends("get", 4000), "request");
    assert_eq!(ends("gets", 1200), "request");
    assert_eq!(ends("gat 1", 1200), "request");
    assert_eq!(ends("stats", 1200), "closed true");
    assert_eq!(ends("get", 5000), "closed true");
    let line = |blanks: usize| format!("version{}\r\n", " ".repeat(blanks));
    assert!(matches!(request(line(2048 - 8).as_bytes()), Request::Admin(_)));
    assert!(refused(line(2049 - 8).as_bytes()).close);
}

#[test]
fn a_hint_saves_the_search_and_changes_nothing() {
    let line = [&b"get "[..], &b"key ".repeat(1000), b"\r\n"].concat();
    for scanned in [0, 1, 2048, 2049, 3000, line.len() - 1] {
        assert_eq!(parse_from(&line, scanned, &LIMITS), parse(&line, &LIMITS));
    }
}

#[test]
fn strangers_are_turned_away() {
    for stream in ["GET / HTTP/1.1\r\nHost: flush_all\r\n", "POST /x HTTP/1.0\r\n"] {
        assert_eq!(check(stream.as_bytes(), &LIMITS), [Event::Closed("")], "{stream}");
    }
    assert_eq!(refused(b"GET /\r\n").reply, "ERROR");
    assert_eq!(refused(b" get a\r\n").reply, "ERROR");
    assert_eq!(refused(b"ab\n").reply, "CLIENT_ERROR bad command line format");
}

#[test]
fn admin() {
    for line in [
        "version x\r\n",
        "verbosity 1 noreply\r\n",
        "flush_all\r\n",
        " flush_all noreply\r\n",
        "flush_all 10 noreply\r\n",
        "flush_all -1\r\n",
        "stats items\r\n",
        "quit\r\n",
        "shutdown\r\n",
        "shutdown graceful\r\n",
        "watch fetchers mutations\r\n",
        "lru_crawler metadump all\r\n",
        "lru mode flat\r\n",
        "slabs automove 1\r\n",
        "cache_memlimit 64\r\n",
        "refresh_certs\r\n",
        "debugtime 3\r\n",
    ] {
        assert!(matches!(request(line.as_bytes()), Request::Admin(_)), "{line}");
    }
    for (line, reply) in [
        ("shutdown now\r\n", "CLIENT_ERROR invalid shutdown mode"),
        ("cache_memlimit x\r\n", "ERROR"),
        ("flush_all noreply x\r\n", "CLIENT_ERROR invalid exptime argument"),
    ] {
        assert_eq!(refused(line.as_bytes()).reply, reply, "{line}");
    }
    assert!(matches!(parse(b"debugtime 3\r\n", &Limits::default()), Parsed::Refused(_)));
}

#[test]
fn every_split_of_a_conversation() {
    check_splits(
        b"set a 1 0 3\r\nabc\r\nget a b c\r\nms b 2 T30 c\r\nzz\r\nmg b v t k Oq\r\nset a x 0 3\r\nabc\r\n\
          ms a 2\r\nxyz\r\nma n N0 J5\r\nmd Zm9v b q\r\nms Zm9v 5000 b\r\nincr n 1 noreply\r\nbogus\r\nmn\r\n",
        &LIMITS,
    );
}

#[test]
fn a_line_without_its_block_is_incomplete_and_apart_it_is_whole() {
    for line in [&b"set k 0 0 5\r\n"[..], b"cas k 1 2 5 77 noreply\n", b"ms aw== 5 b k MR F3\r\n"] {
        let Parsed::Incomplete { need, block: Some(_) } = parse(line, &LIMITS) else { panic!() };
        assert_eq!(need, line.len() + 7);
        let Parsed::Complete { used, .. } = parse_apart(line, true, &LIMITS) else { panic!() };
        assert_eq!(used, line.len());
    }
    // What the line decides is decided as with a block.
    for line in [&b"set k 0 0 5000\r\n"[..], b"set k x 0 5\r\n", b"get k\r\n", b"ms k 5 MX\r\n"] {
        assert_eq!(parse_apart(line, true, &LIMITS), parse(line, &LIMITS));
        assert_eq!(parse_apart(line, false, &LIMITS), parse(line, &LIMITS));
    }
    let Parsed::Incomplete { block: None, .. } = parse_apart(b"set k 0 0 5", true, &LIMITS) else { panic!() };
}
