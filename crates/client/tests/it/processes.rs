//! Computing over many processes: crowds at a cold key, at an expired one, and processes that fail, die and
//! stop.
//!
//! Each test runs against memcached, Cattlegrid without a rule, and Cattlegrid with a rule for the keys used.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, its helpers too, and prints what it has measured"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;

use crate::servers::{Ended, Kind, Ledger, Process, Server, on_servers, pause, until_held};

fn one_computation_for_fifty_processes(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let crew = ledger.crew(50, &compute(&server, "h:cold", "--takes 300 --compute-time 10000"));
    let ended = ends(&crew);
    assert_eq!(ledger.computed().len(), 1);
    assert_eq!(count(&ended)["computed"], 1, "{ended:?}");
    assert_eq!(count(&ended)["value"], 49, "{ended:?}");
    assert!(ended.iter().all(|one| one.text == ended[0].text), "{ended:?}");
    say(kind, "50 processes, a cold key", &ended);
}
on_servers!(one_computation_for_fifty_processes);

/// Over memcached the next computes when the lock's time is over, with a rule as soon as the connection has
/// ended.
fn the_winner_is_killed(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let lock = if kind == Kind::Rules { 9000 } else { 1500 };
    let mut winner =
        ledger.process(&compute(&server, "h:killed", &format!("--mode hang --compute-time {lock}")));
    winner.go();
    winner.computes();
    let options = "--takes 100 --compute-time 10000 --wait 30000";
    let crew = ledger.crew(5, &compute(&server, "h:killed", options));
    pause(300);
    winner.kill();
    let ended = ends(&crew);
    assert_eq!(ledger.computed().len(), 2, "the winner and one more");
    assert_eq!(count(&ended)["computed"], 1, "{ended:?}");
    assert!(ended.iter().all(|one| one.text == ended[0].text), "{ended:?}");
    if kind == Kind::Rules {
        let longest = ended.iter().map(|one| one.took).max();
        assert!(
            longest < Some(Duration::from_millis(lock - 1000)),
            "no wait lasts as long as the lease: {ended:?}"
        );
    }
    say(kind, "5 wait, the winner is killed", &ended);
}
on_servers!(the_winner_is_killed);

fn the_winner_ends_before_others_ask(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let mut winner = ledger.process(&compute(&server, "h:own", "--mode kill --compute-time 1500"));
    winner.go();
    winner.computes();
    let mut next = ledger.process(&compute(&server, "h:own", "--compute-time 1500 --wait 30000"));
    next.go();
    assert_eq!(next.ended().outcome, "computed");
    assert_eq!(ledger.computed().len(), 2);
}
on_servers!(the_winner_ends_before_others_ask);

/// A stopped process keeps its connection: the next computes when the lock's time is over, and the late value
/// is not stored.
fn the_winner_is_stopped_and_comes_back(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let mut winner =
        ledger.process(&compute(&server, "h:stopped", "--compute-time 1500 --takes 2500 --value late"));
    winner.go();
    winner.computes();
    winner.signal(Signal::SIGSTOP);
    let options = "--compute-time 10000 --wait 30000";
    let crew = ledger.crew(5, &compute(&server, "h:stopped", &format!("{options} --value next")));
    let ended = ends(&crew);
    assert!(ended.iter().all(|one| one.text == "next"), "{ended:?}");
    assert_eq!(ledger.computed().len(), 2);
    say(kind, "5 wait, the winner is stopped", &ended);

    winner.signal(Signal::SIGCONT);
    assert_eq!(winner.ended().text, "late", "its own caller gets what it computed");
    let mut reader = ledger.process(&compute(&server, "h:stopped", options));
    reader.go();
    assert_eq!(reader.ended().text, "next");
    assert_eq!(ledger.computed().len(), 2);
}
on_servers!(the_winner_is_stopped_and_comes_back);

/// The lock is free at once, although its time would be 10 seconds.
fn the_computation_fails(kind: Kind) {
    for (mode, outcome) in [("fail", "failed"), ("panic", "panicked")] {
        let (server, ledger) = (kind.start(), Ledger::new());
        let key = format!("h:{mode}");
        let options = format!("--mode {mode} --takes 500 --compute-time 10000");
        let mut winner = ledger.process(&compute(&server, &key, &options));
        winner.go();
        winner.computes();
        let crew = ledger.crew(5, &compute(&server, &key, "--compute-time 10000"));
        assert_eq!(winner.ended().outcome, outcome);
        let ended = ends(&crew);
        assert_eq!(ledger.computed().len(), 2, "{mode}: the winner and one more");
        assert!(ended.iter().all(|one| one.text == ended[0].text), "{ended:?}");
        assert!(
            ended.iter().all(|one| one.took < Duration::from_secs(9)),
            "{mode}: no wait lasts as long as the lock: {ended:?}"
        );
        say(kind, &format!("5 wait, the computation ends by: {mode}"), &ended);
    }
}
on_servers!(the_computation_fails);

/// Only the process that computes takes the 5 seconds of the computation.
fn the_stale_value_is_served_to_all_but_one(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let key = "h:stale";
    one(&ledger, &compute(&server, key, "--value old --expiration 1 --compute-time 20000"));
    pause(2500);
    let options = "--value new --takes 5000 --expiration 60 --compute-time 20000";
    let crew = ledger.crew(20, &compute(&server, key, options));
    let ended = ends(&crew);
    let counts = count(&ended);
    assert_eq!(ledger.computed().len(), 2);
    assert_eq!((counts["computed"], counts["stale"]), (1, 19), "{ended:?}");
    for call in ended.iter().filter(|call| call.outcome == "stale") {
        assert_eq!(call.text, "old");
        assert!(call.took < Duration::from_secs(4), "{call:?}");
    }
    say(kind, "20 processes, an expired key", &ended);
    let read = one(&ledger, &compute(&server, key, "--compute-time 20000"));
    assert_eq!((&*read.outcome, &*read.text), ("value", "new"));
}
on_servers!(the_stale_value_is_served_to_all_but_one);

fn expiration_0_is_for_ever(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let words = compute(&server, "h:ever", "--expiration 0 --compute-time 1000");
    assert_eq!(one(&ledger, &words).outcome, "computed");
    pause(3000);
    let crew = ledger.crew(10, &words);
    assert_eq!(count(&ends(&crew))["value"], 10);
    assert_eq!(ledger.computed().len(), 1);
}
on_servers!(expiration_0_is_for_ever);

fn an_expiration_above_30_days_is_a_unix_time(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let unix = unix_time() + 6;
    let words = compute(&server, "h:unix", &format!("--expiration {unix} --compute-time 1000"));
    let first = one(&ledger, &words);
    assert_eq!(first.outcome, "computed");
    let early = one(&ledger, &words);
    // Unless the machine was so slow that the time of the lock or the value is over.
    let in_time = first.took < Duration::from_millis(900) && unix_time() + 2 < unix;
    assert!(early.outcome == "value" || !in_time, "{early:?}");
    // Beyond the second in which servers may drop it, and beyond the time for which it is served when it is
    // old.
    while unix_time() < unix + 4 {
        pause(100);
    }
    let later = compute(&server, "h:unix", &format!("--expiration {} --compute-time 10000", unix + 600));
    assert_eq!(one(&ledger, &later).outcome, "computed");
    assert_eq!(one(&ledger, &later).outcome, "value");

    let past = compute(&server, "h:past", &format!("--expiration {} --compute-time 1000", unix - 1000));
    for _ in 0..2 {
        assert_eq!(
            one(&ledger, &past).outcome,
            "computed",
            "the value of a time that has passed is not stored"
        );
    }
    assert_eq!(ledger.computed().len(), 4 + usize::from(early.outcome == "computed"));
}
on_servers!(an_expiration_above_30_days_is_a_unix_time);

fn a_value_is_not_stored_after_its_key_was_deleted(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let words = compute(&server, "h:deleted", "--takes 1000 --value before --compute-time 10000");
    let mut before = ledger.process(&words);
    before.go();
    before.computes();
    let mut client = server.connect().unwrap();
    client.send(b"delete h:deleted\r\n").unwrap();
    client.line().unwrap();
    assert_eq!(before.ended().text, "before");
    let after = one(&ledger, &compute(&server, "h:deleted", "--value after --compute-time 10000"));
    assert_eq!((&*after.outcome, &*after.text), ("computed", "after"));
    assert_eq!(ledger.computed().len(), 2);
}
on_servers!(a_value_is_not_stored_after_its_key_was_deleted);

/// The promoted process gets the hint of the first, whether that dies or drops its token.
fn a_hint_is_handed_on(kind: Kind) {
    for mode in ["hang", "drop"] {
        let (server, ledger) = (kind.start(), Ledger::new());
        let key = format!("h:{mode}");
        let lock = if kind == Kind::Rules || mode == "drop" { 9000 } else { 1500 };
        let release = ledger.release();
        let options = format!(
            "--hint first --mode {mode} --until {} --compute-time {lock} --wait 30000",
            release.display()
        );
        let mut first = ledger.process(&fetch(&server, &key, &options));
        let mut second = ledger.process(&fetch(
            &server,
            &key,
            &format!("--hint second --compute-time {lock} --wait 30000"),
        ));
        first.go();
        assert_eq!(first.line(), "computes first");
        second.go();
        second.has_asked();
        until_held(kind, &server, 1);
        if mode == "hang" {
            first.kill();
        } else {
            ledger.let_go();
        }
        assert_eq!(second.line(), "computes first");
        let ended = second.ended();
        assert_eq!(ended.outcome, "computed");
        if mode == "drop" {
            assert!(ended.took < Duration::from_secs(8), "a dropped token frees the key at once: {ended:?}");
        }
    }
}
on_servers!(a_hint_is_handed_on);

fn the_text_of_a_failure_reaches_all_that_wait(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let release = ledger.release();
    let options = format!("--mode fail --until {} --compute-time 10000", release.display());
    let mut first = ledger.process(&fetch(&server, "h:paper", &options));
    let mut crew = ledger.processes(5, &fetch(&server, "h:paper", "--compute-time 10000"));
    first.go();
    first.computes();
    crew.iter_mut().for_each(Process::go);
    crew.iter().for_each(Process::has_asked);
    until_held(kind, &server, 5);
    let failed = now();
    ledger.let_go();
    let ended = ends(&crew);
    // Without leases the text is there for a second at least: who looks later computes.
    if kind == Kind::Rules || failed.elapsed() < Duration::from_secs(1) {
        let told = |one: &Ended| one.outcome == "error" && one.text == "out of paper, 100 %";
        assert!(ended.iter().all(told), "{ended:?}");
        assert_eq!(ledger.computed().len(), 1);
    }
    say(kind, "5 wait, the computation fails", &ended);
}
on_servers!(the_text_of_a_failure_reaches_all_that_wait);

/// Ten processes ask for the same 20 keys at once: each key is computed once.
fn many_keys_are_computed_once_each(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let keys: Vec<_> = (0..20).map(|number| format!("h:many{number}")).collect();
    let words = many(server.address(), &keys, "--takes 50 --compute-time 5000 --wait 20000");
    each_once(&ledger, &ledger.crew(10, &words), &keys);
}
on_servers!(many_keys_are_computed_once_each);

/// A ring with a server of each kind: what each key gets is what its server can do.
#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn a_ring_may_mix_servers() {
    let all = [Kind::Memcached, Kind::Rules, Kind::Plain].map(Kind::start);
    let addresses: Vec<_> = all.iter().map(Server::address).collect();
    let keys: Vec<_> = (0..40).map(|number| format!("h:mixed{number}")).collect();
    let ledger = Ledger::new();
    let words = many(&addresses.join(","), &keys, "--takes 20 --compute-time 5000 --wait 20000");
    each_once(&ledger, &ledger.crew(10, &words), &keys);
    for server in &all {
        let mut client = server.connect().unwrap();
        let items = client.stats("").unwrap().into_iter().find(|(name, _)| name == "curr_items").unwrap();
        assert_ne!(items.1, "0", "each has some of the keys");
    }
}

/// Twenty wait for a key when its server dies: all return within the client's timeout, or have computed.
fn nobody_hangs_when_the_server_dies(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let options = "--compute-time 20000 --timeout 5000";
    let mut winner = ledger.process(&compute(&server, "h:dies", &format!("{options} --mode hang")));
    winner.go();
    winner.computes();
    let crew = ledger.crew(20, &compute(&server, "h:dies", options));
    pause(500);
    drop(server);
    let ended = ends(&crew);
    assert!(ended.iter().all(|one| one.took < Duration::from_secs(30)), "{ended:?}");
    say(kind, "20 wait, the server is killed", &ended);
}
on_servers!(nobody_hangs_when_the_server_dies);

/// The same as [`nobody_hangs_when_the_server_dies`] for a server that keeps its connections and does not
/// answer.
fn nobody_hangs_when_the_server_stops(kind: Kind) {
    let (server, ledger) = (kind.start(), Ledger::new());
    let options = "--compute-time 3000 --timeout 3000";
    let mut winner = ledger.process(&compute(&server, "h:stops", &format!("{options} --mode hang")));
    winner.go();
    winner.computes();
    let crew = ledger.crew(20, &compute(&server, "h:stops", options));
    pause(500);
    server.signal(Signal::SIGSTOP);
    let ended = ends(&crew);
    assert!(ended.iter().all(|one| one.took < Duration::from_secs(30)), "{ended:?}");
    say(kind, "20 wait, the server is stopped", &ended);
}
on_servers!(nobody_hangs_when_the_server_stops);

fn compute(server: &Server, key: &str, options: &str) -> String {
    format!("{} compute {key} {options}", server.address())
}

fn fetch(server: &Server, key: &str, options: &str) -> String {
    format!("{} fetch {key} {options}", server.address())
}

fn many(servers: &str, keys: &[String], options: &str) -> String {
    format!("{servers} many {} {options}", keys.join(","))
}

/// One call of one process.
fn one(ledger: &Ledger, words: &str) -> Ended {
    let mut process = ledger.process(words);
    process.go();
    process.ended()
}

fn ends(crew: &[Process]) -> Vec<Ended> {
    crew.iter().map(Process::ended).collect()
}

/// How many calls had each outcome.
fn count(ended: &[Ended]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::from([("value", 0), ("computed", 0), ("stale", 0)]);
    for one in ended {
        *counts.entry(&*one.outcome).or_default() += 1;
    }
    counts
}

/// Each process has each key's one value, which was computed once.
fn each_once(ledger: &Ledger, crew: &[Process], keys: &[String]) {
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    for process in crew {
        for _ in keys {
            let one = process.ended();
            assert!(["computed", "value"].contains(&&*one.outcome), "{one:?}");
            let value = values.entry(one.key.clone()).or_insert_with(|| one.text.clone());
            assert_eq!(*value, one.text, "{}", one.key);
        }
    }
    let mut computed = ledger.computed();
    computed.sort();
    let mut keys = keys.to_vec();
    keys.sort();
    assert_eq!(computed, keys);
}

fn unix_time() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "an expiry as a Unix time, on a server with a clock of its own"
    )]
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "how long another process has had")]
    Instant::now()
}

/// Prints the figures: no test depends on them.
fn say(kind: Kind, what: &str, ended: &[Ended]) {
    let mut took: Vec<_> = ended.iter().map(|one| one.took.as_millis()).collect();
    took.sort_unstable();
    println!("{kind:?}: {what}: median {} ms, longest {} ms", took[took.len() / 2], took[took.len() - 1]);
}
