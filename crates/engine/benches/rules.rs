//! Nanoseconds to find a key's rule among 100, and to load the rules in force, best of several rounds:
//! `cargo bench -p cattlegrid-engine`.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench reads the clock and prints"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use cattlegrid_engine::EngineShared;
use cattlegrid_engine::rules::{Pattern, Rule, Rules};
use cattlegrid_herd::Policy;

fn main() {
    // Typical applications: a name for each kind of key, some with several parts, some with a common
    // beginning.
    let kinds = rules((0..100).map(|n| match n % 4 {
        0 => format!("kind{n:02}:{{id}}"),
        1 => format!("kind{n:02}:{{user}}:{{product}}"),
        2 => format!("app:kind{n:02}:{{id:int}}:{{rest*}}"),
        _ => format!("app:kind{n:02}-{{id}}-html"),
    }));
    show("100 kinds, first", &kinds, b"kind00:1234567", Some(1));
    show("100 kinds, middle", &kinds, b"kind49:1234567:98765", Some(50));
    show("100 kinds, last", &kinds, b"app:kind99-1234567-html", Some(100));
    show("100 kinds, none", &kinds, b"app:kind98:x", None);
    show("100 kinds, none alike", &kinds, b"session:0123456789abcdef", None);

    // The worst case: one beginning for all, so that only the rest distinguishes them.
    let alike = rules((0..100).map(|n| format!("page:{{id}}:part{n:02}")));
    show("100 of one prefix, first", &alike, b"page:1234567:part00", Some(1));
    show("100 of one prefix, last", &alike, b"page:1234567:part99", Some(100));
    show("100 of one prefix, none", &alike, b"page:1234567:partxx", None);

    let shared = EngineShared::new(false, 1 << 20, 0, 1);
    shared.set_rules(Some(Arc::new(kinds)), 0);
    let read = || shared.rules().as_ref().map_or(0, |rules| rules.rules().rules().len() as u32);
    println!("{:26} {:6.1} ns", "the rules in force", measure(read));
}

fn rules(patterns: impl Iterator<Item = String>) -> Rules {
    let rule = |(number, text): (u32, String)| Rule {
        number,
        pattern: Pattern::parse(&text).unwrap(),
        policy: Policy::default(),
        tags: Vec::new(),
        negative_ttl_s: 0,
        loading: None,
        prefix: None,
    };
    Rules::new((1..).zip(patterns).map(rule).collect(), Vec::new())
}

fn show(name: &str, rules: &Rules, key: &[u8], expected: Option<u32>) {
    let find = || rules.find(black_box(key)).map(|(rule, captures)| (rule.number, captures));
    assert_eq!(find().map(|(number, _)| number), expected, "{name}");
    println!("{name:26} {:6.1} ns", measure(|| find().map_or(0, |(number, _)| number)));
}

fn measure(mut once: impl FnMut() -> u32) -> f64 {
    const TURNS: u32 = 200_000;
    let round = |_| {
        let start = Instant::now();
        for _ in 0..TURNS {
            black_box(once());
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(TURNS)
    };
    (0..20).map(round).fold(f64::INFINITY, f64::min)
}
