//! The async and the blocking client have the same methods, with the same arguments.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;

/// The public methods of `impl NAME` blocks: names, and the names of their arguments.
fn methods(sources: &[&str], header: &str) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    for source in sources {
        let mut inside = false;
        let lines: Vec<_> = source.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if line.starts_with("impl") {
                inside = line.starts_with(header) && !line.contains(" for ");
            }
            let rest = line.strip_prefix("    pub ").map(|rest| rest.strip_prefix("async ").unwrap_or(rest));
            let Some(rest) = rest.and_then(|rest| rest.strip_prefix("fn ")).filter(|_| inside) else {
                continue;
            };
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let text = lines[at..].join(" ");
            all.insert(name, arguments(&text));
        }
    }
    all
}

/// The names of a function's arguments: the text begins with its head.
fn arguments(text: &str) -> Vec<String> {
    let name = text.find("fn ").unwrap();
    let text = &text[name..];
    // Generics come before.
    let mut depth = 0;
    let mut previous = ' ';
    let begin = text.char_indices().find(|(_, c)| {
        match c {
            '<' => depth += 1,
            '>' if previous != '-' => depth -= 1,
            _ => {}
        }
        previous = *c;
        *c == '(' && depth == 0
    });
    let text = &text[begin.unwrap().0 + 1..];
    let (mut depth, mut names, mut part) = (0, Vec::new(), String::new());
    for c in text.chars() {
        match c {
            '(' | '[' | '<' => depth += 1,
            ')' if depth == 0 => break,
            ')' | ']' => depth -= 1,
            '>' if !part.ends_with('-') => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 {
            names.push(std::mem::take(&mut part));
        } else {
            part.push(c);
        }
    }
    names.push(part);
    let name = |part: &String| part.split(':').next().unwrap().trim().trim_start_matches("mut ").to_owned();
    names.iter().map(name).filter(|name| !name.is_empty() && !name.ends_with("self")).collect()
}

#[test]
fn clients_have_the_same_methods() {
    let ours = methods(
        &[
            include_str!("../../src/client.rs"),
            include_str!("../../src/client/typed.rs"),
            include_str!("../../src/client/calls.rs"),
            include_str!("../../src/herd/client.rs"),
        ],
        "impl Client {",
    );
    let blocking = methods(
        &[include_str!("../../src/blocking/client.rs"), include_str!("../../src/blocking/computing.rs")],
        "impl Client {",
    );
    assert!(ours.len() > 40, "{ours:?}");
    assert_eq!(ours, blocking);
}

#[test]
fn what_computes_has_the_same_methods() {
    let ours = methods(
        &[
            include_str!("../../src/herd.rs"),
            include_str!("../../src/herd/one.rs"),
            include_str!("../../src/herd/many.rs"),
            include_str!("../../src/herd/fetch.rs"),
        ],
        "impl<C: Cache + 'static> Herd<C> {",
    );
    // How it is made over another library's connection, which is async.
    let made = ["new", "with_clock", "cache"];
    let ours: BTreeMap<_, _> = ours.into_iter().filter(|(name, _)| !made.contains(&&**name)).collect();
    let blocking = methods(&[include_str!("../../src/blocking/computing.rs")], "impl Herd {");
    assert!(ours.len() > 10, "{ours:?}");
    assert_eq!(ours, blocking);
}

#[test]
fn namespacers_and_tokens_have_the_same_methods() {
    let mut ours =
        methods(&[include_str!("../../src/namespace/namespacer.rs")], "impl<C: Cache> Namespacer<C> {");
    let blocking = methods(&[include_str!("../../src/blocking/names.rs")], "impl Namespacer {");
    // For tests, and the connection itself.
    for name in ["with_clock", "cache"] {
        ours.remove(name);
    }
    // The blocking one borrows its client, whose runtime it shares.
    ours.insert("new".to_owned(), vec!["client".to_owned(), "options".to_owned()]);
    assert_eq!(ours, blocking);
    let ours = methods(&[include_str!("../../src/herd/fetch.rs")], "impl<C: Cache + 'static> Token<C> {");
    let blocking = methods(&[include_str!("../../src/blocking/computing.rs")], "impl Token {");
    assert_eq!(ours, blocking);
}
