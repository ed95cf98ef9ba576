//! Rule files from a grammar, most of them nearly right, and what must hold of each text:
//!
//! * it is accepted, or refused with a line for each thing that is wrong, which names the file and a line of it;
//! * what is accepted is accepted again as `check` prints it, means the same, and is printed the same;
//! * an engine takes its rules, and looks up any key under them.

mod text;

use std::path::Path;
use std::sync::Arc;

use cattlegrid_config::{RuleFile, explain};
use cattlegrid_engine::rules::Change;
use cattlegrid_engine::{
    Context, Counters, Effects, Engine, EngineConfig, GetPiece, Interest, Now, Output, PieceResult,
    RulesConfig, Step, Ticket,
};
use cattlegrid_herd::{Caller, PeerKey, Session};
use cattlegrid_protocol::{Limits, Parsed, Request, parse};

use crate::draw::Draw;
use text::{document, key, mutated, right_document};

/// Checks the text that `bytes` stand for; whether it was accepted.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let mut draw = Draw::new(bytes);
    let keys: Vec<Vec<u8>> = (0..3).map(|_| key(&mut draw)).collect();
    let style = draw.below(8);
    let text = match style {
        0 => String::from_utf8_lossy(draw.rest()).into_owned(),
        1 | 2 => document(&mut draw),
        3 => mutated(document(&mut draw).into_bytes(), &mut draw),
        4 => mutated(right_document(&mut draw).into_bytes(), &mut draw),
        _ => right_document(&mut draw),
    };
    check_text(&text, &keys)
}

fn check_text(text: &str, keys: &[Vec<u8>]) -> bool {
    match RuleFile::parse(Path::new("f.toml"), text) {
        Ok(file) => {
            check_printed(&file);
            check_lookups(&file, keys);
            true
        }
        Err(error) => {
            let lines = text.split('\n').count();
            assert!(!error.lines().is_empty());
            assert_eq!(error.to_string().split('\n').count(), error.lines().len(), "a line each");
            for line in error.lines() {
                let rest = line.strip_prefix("f.toml:").expect("it begins with the file");
                let (number, problem) = rest.split_once(": ").expect("a line, and what is wrong");
                let number: usize = number.parse().expect("a number of a line");
                assert!((1..=lines).contains(&number), "{line}");
                assert!(!problem.trim().is_empty(), "{line}");
                assert!(!line.chars().any(char::is_control), "{line:?}");
            }
            false
        }
    }
}

/// What `check` prints is a rule file that means the same.
fn check_printed(file: &RuleFile) {
    let printed = match explain(file, None) {
        Ok(printed) => printed,
        // Sizes and options that contradict each other have no line of their own.
        Err(error) => {
            assert!(!error.lines().is_empty());
            error.lines().iter().for_each(|line| assert!(line.starts_with("f.toml: ") && line.len() > 20));
            return;
        }
    };
    let again = RuleFile::parse(&file.path, &printed).unwrap_or_else(|error| panic!("{error} in\n{printed}"));
    assert_eq!(explain(&again, None).as_ref(), Ok(&printed));
    assert_eq!(again.rules.rules().len(), file.rules.rules().len());
    for (again, rule) in again.rules.rules().iter().zip(file.rules.rules()) {
        assert_eq!((&again.pattern, &again.policy), (&rule.pattern, &rule.policy));
        assert_eq!((&again.tags, again.negative_ttl_s), (&rule.tags, rule.negative_ttl_s));
        assert_eq!(again.loading, rule.loading);
    }
    assert_eq!(again.loaders, file.loaders);
    assert_eq!(again.warns_of_loaders(), file.warns_of_loaders());
    assert_eq!(again.rules.all_cascades().count(), file.rules.all_cascades().count());
    for (again, cascade) in again.rules.all_cascades().zip(file.rules.all_cascades()) {
        assert_eq!((&again.pattern, &again.bump), (&cascade.pattern, &cascade.bump));
        assert!(Change::ALL.into_iter().all(|change| again.on.has(change) == cascade.on.has(change)));
    }
}

/// Commands with keys of all sorts, in an engine under the rules.
fn check_lookups(file: &RuleFile, keys: &[Vec<u8>]) {
    let engine = Engine::new(EngineConfig {
        memory_bytes: 4 << 20,
        threads: 1,
        evictions: true,
        hide_cas: false,
        large_pages: false,
        max_item_bytes: 1 << 20,
        tag_bytes: 1 << 16,
        allows_flush: true,
        explain: |_| String::new(),
        nanos: || 0,
        seed: 7,
        shares: Vec::new(),
        prefixes: cattlegrid_engine::Prefixes::default(),
    })
    .expect("there is memory");
    let config = RulesConfig {
        tag_bytes: 1 << 16,
        ledger_bytes: 1 << 16,
        fence_bytes: 1 << 16,
        waiters: 10,
        control: (*b"@").into(),
        prefixes: cattlegrid_engine::Prefixes::default(),
    };
    engine.set_rules(Some(Arc::clone(&file.rules)), &config, 2_000).expect("there is memory");
    let filled = file.rules.rules().iter().take(20).map(|rule| fill_in(rule.pattern.text()));
    for key in filled.chain(keys.iter().cloned()) {
        if key.is_empty() || key.len() > 250 || key.iter().any(|byte| *byte <= b' ' || *byte == 127) {
            continue;
        }
        if let Ok(key) = std::str::from_utf8(&key) {
            drop(explain(file, Some(key)));
        }
        for command in ["get %\r\n", "set % 0 9 1\r\nx\r\n", "gat 5 %\r\n", "incr % 1\r\n", "delete %\r\n"] {
            let (before, after) = command.split_once('%').expect("a place for the key");
            run(&engine, &[before.as_bytes(), &key, after.as_bytes()].concat());
        }
    }
    engine.verify();
    engine.set_rules(None, &config, 10_000).expect("it gives memory back");
}

/// A key of a pattern: each capture holds a digit.
fn fill_in(pattern: &str) -> Vec<u8> {
    let (mut key, mut rest) = (String::new(), pattern);
    while let Some(at) = rest.find(['{', '}']) {
        key.push_str(&rest[..at]);
        let (brace, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            key.push_str(brace);
            rest = after;
        } else {
            key.push('7');
            rest = after.split_once('}').map_or("", |(_, after)| after);
        }
    }
    (key + rest).into_bytes()
}

/// Executes one command on a connection of its own.
fn run(engine: &Engine, line: &[u8]) {
    let limits = Limits { max_item_bytes: 1 << 20, extensions: true, ..Limits::default() };
    let Parsed::Complete { request, .. } = parse(line, &limits) else {
        panic!("{:?} is a command", line.escape_ascii().to_string())
    };
    let peer = engine.shared().peers().join(PeerKey::Process(1));
    let mut session = Session::new(Arc::new(Caller::new(1, 0, 1, peer)));
    let (mut out, mut effects) = (Output::default(), Effects::default());
    let counters = Counters::default();
    let mut cx = Context {
        step: Step {
            now: Now { second: 10, ms: 10_000, unix_of_zero: 1_700_000_000 },
            counters: &counters,
            interest: Interest::none(),
            effects: &mut effects,
        },
        ticket: Ticket { connection: 1, request: 1 },
        session: &mut session,
        out: &mut out,
    };
    let Some(hash) = engine.hash(&request) else { return };
    let mut lock = engine.shard_lock();
    let parked = match &request {
        Request::Get(get) => match engine.get(get, hash, GetPiece::ALL, &mut lock, &mut cx) {
            PieceResult::Parked(parked) | PieceResult::ParkedMore(parked, _) => Some(parked),
            PieceResult::Done | PieceResult::More(_) => None,
        },
        _ => engine.execute(&request, hash, &mut lock, &mut cx),
    };
    drop(lock);
    if let Some(mut parked) = parked {
        engine.release(&mut parked, &mut cx);
    }
    engine.leave(false, &mut cx);
    engine.shared().peers().leave(session.caller().peer());
}
