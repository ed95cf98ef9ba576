//! Messages of tests that fail: values of any bytes, lines, lengths.

use super::fails;

/// The line of a failure of the second line of a test, and its text.
fn failed_at(line: usize, check: &str, expected: &str) {
    assert_eq!(fails(&format!("\n{check}")), format!("quota.test.luau:{line}: {expected}"), "{check}");
}

#[test]
fn bytes_are_shown_escaped() {
    for (check, expected) in [
        (r#"t.eq("\255", "\254")"#, r#"expected "\xfe", got "\xff""#),
        (r#"t.eq("\0\1", "\0\2")"#, r#"expected "\x00\x02", got "\x00\x01""#),
        (r#"t.eq("a\r\n\t", "é\x7f")"#, r#"expected "é\x7f", got "a\r\n\t""#),
        (r#"t.eq({ ["\255"] = "\254", "\1" }, {})"#, r#"expected {}, got {"\x01", \xff = "\xfe"}"#),
        (r#"t.eq(1, 2, "\255\1 what")"#, r"\xff\x01 what: expected 2, got 1"),
        (
            r#"t.error(function() error("\253", 0) end, "\254")"#,
            r#"expected an error with "\xfe", got "\xfd""#,
        ),
        (r#"t.plain("k", "\255\0") t.eq(t.plain("k"), "")"#, r#"expected "", got "\xff\x00""#),
        (r#"t.plain("a\1\255")"#, r#"the key "a\x01\xff" has a blank or a control character"#),
        (r#"t.call("\255")"#, r"no call: \xff"),
        (r#"t.at("\255")"#, r#""\xff" is no time: write "2026-01-31T23:59:59Z""#),
        ("t.at({})", r#"t.at takes a time such as "2026-01-31T23:59:59Z", not a table"#),
        (r#"error("a\1\nb")"#, r"a\x01\nb"),
    ] {
        failed_at(3, check, expected);
    }
}

#[test]
fn limits_within_checks_have_the_line_of_the_test() {
    let chain = "local function mk() local c = {} for _ = 1, 20000 do c = {c} end return c end\n";
    failed_at(4, &format!("{chain}t.eq(mk(), mk())"), "stack overflow");
    let shared = "local function mk() local c = {} for _ = 1, 40 do c = {c, c} end return c end\n";
    failed_at(4, &format!("{shared}t.eq(mk(), mk())"), "takes longer than 1 s");
    failed_at(4, &format!("{shared}coroutine.wrap(t.eq)(mk(), mk())"), "takes longer than 1 s");
    let broken = "local k = setmetatable({}, { __tostring = function() error('no') end })\n";
    failed_at(3, &format!("{broken}t.eq({{ [k] = 1, a = 2 }}, nil)"), "no");
}

#[test]
fn errors_have_their_line_once_and_an_end() {
    let long = "e".repeat(400);
    failed_at(3, "error(string.rep('e', 1e6))", &format!("{long}... (1000000 bytes)"));
    failed_at(
        3,
        "t.eq(1, 2, string.rep('e', 500000))",
        &format!("{long}... (500000 bytes): expected 2, got 1"),
    );
    for (check, expected) in [
        ("error({})", "table"),
        ("error('x', 0)", "x"),
        ("coroutine.wrap(function() error('x') end)()", "x"),
        ("coroutine.wrap(function() while true do end end)()", "takes longer than 1 s"),
    ] {
        failed_at(3, check, expected);
    }
}

#[test]
fn a_test_without_memory_has_one_line() {
    let fill = "local function fill() local a = {} for i = 1, 1e9 do\na[i] = {i} end end\n";
    for (line, check) in [
        (4, "fill()"),
        (4, "return { test_a = function() fill() end }"),
        (4, "local f = coroutine.wrap(fill)\nf()"),
        (4, "t.error(fill)"),
        (4, "pcall(fill)"),
    ] {
        let found = fails(&format!("\n{fill}{check}"));
        assert!(found.ends_with(" needed more than 64 MiB"), "{check}: {found}");
        let at = found.strip_prefix("quota.test.luau:").and_then(|rest| rest.split(':').next()?.parse().ok());
        assert!(at.is_some_and(|at: usize| (line..=line + 2).contains(&at)), "{check}: {found}");
    }
}
