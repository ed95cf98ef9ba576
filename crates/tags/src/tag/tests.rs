//! Names, hashes, lists and prefixes.

use super::*;

fn hasher() -> TagHasher {
    TagHasher::new(7)
}

fn hashes(names: &[&[u8]]) -> Vec<u64> {
    names.iter().map(|name| hasher().hash(name).unwrap().get()).collect()
}

#[test]
fn a_list_is_split_at_commas() {
    let list = hasher().parse_list(b"user:12543,product:54929873").unwrap();
    assert_eq!(list.hashes(), hashes(&[b"user:12543", b"product:54929873"]));
}

#[test]
fn escapes_stand_for_comma_and_per_cent_sign() {
    let list = hasher().parse_list(b"a%2Cb,100%25,%252C,%2c").unwrap();
    assert_eq!(list.hashes(), hashes(&[b"a,b", b"100%", b"%2C", b","]));
}

#[test]
fn other_escapes_are_refused() {
    for text in [&b"%"[..], b"a%", b"%2", b"a%2,b", b"%20", b"%41", b"%%", b"a,b%2X"] {
        assert_eq!(hasher().parse_list(text), Err(TagError::Escape), "{}", text.escape_ascii());
    }
}

#[test]
fn tags_have_1_to_200_bytes() {
    for text in [&b""[..], b",", b"a,", b",a", b"a,,b"] {
        assert_eq!(hasher().parse_list(text), Err(TagError::Empty), "{}", text.escape_ascii());
    }
    let mut name = vec![b'x'; 200];
    assert!(hasher().hash(&name).is_ok() && hasher().parse_list(&name).is_ok());
    name.push(b'x');
    assert_eq!(hasher().hash(&name), Err(TagError::TooLong));
    assert_eq!(hasher().parse_list(&name), Err(TagError::TooLong));
    assert_eq!(hasher().parse_list(&b"%25".repeat(200)).unwrap().hashes(), hashes(&[&[b'%'; 200]]));
    assert_eq!(hasher().parse_list(&b"%25".repeat(201)), Err(TagError::TooLong));
}

#[test]
fn an_item_has_at_most_8_tags_and_none_twice() {
    assert_eq!(hasher().parse_list(b"a,b,c,d,e,f,g,h").unwrap().hashes().len(), 8);
    assert_eq!(hasher().parse_list(b"a,b,c,d,e,f,g,h,i"), Err(TagError::TooMany));
    assert_eq!(hasher().parse_list(b"a,b,c,d,e,f,g,h,a,b").unwrap().hashes().len(), 8);
    assert_eq!(hasher().parse_list(b"b,a,b,a").unwrap().hashes(), hashes(&[b"b", b"a"]));
}

#[test]
fn a_union_has_each_tag_once() {
    let parse = |text: &str| hasher().parse_list(text.as_bytes()).unwrap();
    assert_eq!(parse("a,b,c").union(&parse("d,c,a")), Ok(parse("a,b,c,d")));
    assert_eq!(TagList::new().union(&TagList::new()), Ok(TagList::new()));
    assert_eq!(parse("a,b,c,d,e,f").union(&parse("f,g,h")).map(|list| list.hashes().len()), Ok(8));
    assert_eq!(parse("a,b,c,d,e,f").union(&parse("g,h,i")), Err(TagError::TooMany));
}

#[test]
fn a_text_has_no_blanks_or_control_characters() {
    assert_eq!(hasher().parse_text(PrefixId::NONE, b"user:1,a%2Cb"), hasher().parse_list(b"user:1,a%2Cb"));
    for text in [&b"a b"[..], b"a, b", b"a\r", b"a\tb", b"\x7f", b"a\0", b"a\n"] {
        assert_eq!(
            hasher().parse_text(PrefixId::NONE, text),
            Err(TagError::Blank),
            "{}",
            text.escape_ascii()
        );
    }
    assert_eq!(hasher().parse_text(PrefixId::NONE, b""), Err(TagError::Empty));
    assert!(hasher().parse_text(PrefixId::NONE, "k\u{e4}se".as_bytes()).is_ok());
}

#[test]
fn the_first_line_of_a_value() {
    for (value, line) in [
        (&b""[..], TagLine::None),
        (b"@tags", TagLine::None),
        (b"@tag:a\nx", TagLine::None),
        (b" @tags:a\nx", TagLine::None),
        (b"@tags:\n", TagLine::Names(b"", 7)),
        (b"@tags:a\n", TagLine::Names(b"a", 8)),
        (b"@tags:a,b\r\nx\n", TagLine::Names(b"a,b", 11)),
        (b"@tags:a\r\r\nx", TagLine::Names(b"a\r", 10)),
        (b"@tags:a,b\\\nx", TagLine::Names(b"a,b", 11)),
        (b"@tags:a\\\r\\\nx", TagLine::Names(b"a", 11)),
        (b"@tags:a", TagLine::Endless),
        (b"@tags:", TagLine::Endless),
    ] {
        assert_eq!(TagLine::of(value), line, "{}", value.escape_ascii());
    }
    let mut long = [TAG_LINE, &[b'x'; TAG_LINE_MAX - TAG_LINE.len() - 1], b"\n"].concat();
    assert!(matches!(TagLine::of(&long), TagLine::Names(_, TAG_LINE_MAX)));
    long.insert(7, b'x');
    assert_eq!(TagLine::of(&long), TagLine::Endless);
}

#[test]
fn hashes_depend_on_seed_and_name() {
    let other = TagHasher::new(8);
    assert_ne!(hasher().hash(b"a"), other.hash(b"a"));
    assert_ne!(hasher().hash(b"a"), hasher().hash(b"b"));
    assert_eq!(hasher().hash(b"a"), hasher().clone().hash(b"a"));
    let key_hash = rapidhash_v3_inline::<true, true, false>(b"a", &RapidSecrets::seed(7));
    assert_ne!(hasher().hash(b"a").map(TagHash::get), Ok(key_hash));
}

#[test]
fn messages_name_the_tag() {
    for error in [
        TagError::Empty,
        TagError::TooLong,
        TagError::TooMany,
        TagError::Escape,
        TagError::Blank,
        TagError::Endless,
    ] {
        assert!(error.to_string().starts_with("invalid tag"), "{error}");
    }
}

#[test]
fn the_longest_prefix_is_taken() {
    let all = Prefixes::new(&[":1:", "shop:", "shop:production:1:"]).unwrap();
    let split = |key: &'static str| {
        let (prefix, rest) = all.split(key.as_bytes());
        (prefix.number(), std::str::from_utf8(rest).unwrap())
    };
    assert_eq!(split(":1:page:7"), (1, "page:7"));
    assert_eq!(split("shop:page:7"), (2, "page:7"));
    assert_eq!(split("shop:production:1:page:7"), (3, "page:7"));
    assert_eq!(split("shop:production:2:page:7"), (2, "production:2:page:7"));
    for key in ["page:7", ":2:page:7", "sho", ":1", ""] {
        assert_eq!(split(key), (0, key));
    }
    assert_eq!(split(":1:"), (1, ""));
    assert_eq!(all.text(PrefixId::of_number(3)), b"shop:production:1:");
    assert_eq!(all.text(PrefixId::NONE), b"");
    assert_eq!(all.find(b"shop:"), Some(PrefixId::of_number(2)));
    assert_eq!(all.find(b"shop"), None);
    assert_eq!(all.all().count(), 3);
}

#[test]
fn none_takes_nothing() {
    let none = Prefixes::default();
    assert_eq!(none, Prefixes::new::<&str>(&[]).unwrap());
    assert!(none.is_empty());
    assert_eq!(none.split(b":1:x"), (PrefixId::NONE, &b":1:x"[..]));
    assert_eq!(none.all().count(), 0);
}

#[test]
fn wrong_ones_are_refused() {
    let long = "x".repeat(PREFIX_BYTES_MAX + 1);
    assert_eq!(Prefixes::new(&["a", ""]), Err(PrefixError::Length(1)));
    assert_eq!(Prefixes::new(&[&*long]), Err(PrefixError::Length(0)));
    assert!(Prefixes::new(&[&long[1..]]).is_ok());
    assert_eq!(Prefixes::new(&["a", "b", "a"]), Err(PrefixError::Twice(2)));
    let many: Vec<String> = (0..=PREFIXES_MAX).map(|number| format!("{number}:")).collect();
    assert_eq!(Prefixes::new(&many), Err(PrefixError::TooMany(33)));
    assert!(Prefixes::new(&many[1..]).is_ok());
}
