//! Waits of other connections while methods in Luau run away.
//!
//! Each method of the types made here never ends, so that it is stopped at the limit of time; one is called
//! at a time, without a pause, and at most four times, since the fifth would switch it off. Readers ask for a
//! plain value and wait for it, alternately with and without runaways.

#![expect(clippy::disallowed_methods, reason = "it measures what connections wait")]

use std::fmt::Write as _;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cattlegrid_load::harness::Server;

use crate::clients::{Clients, Exchange};

/// Connections that read; the server gives them to its two threads in turn.
const READERS: usize = 8;
const TYPES: usize = 8;
const METHODS: usize = 50;
/// The limit of time in the rule file.
const LIMIT_MS: u64 = 10;
/// Between two gets of a reader.
const PAUSE: Duration = Duration::from_millis(1);

/// Times of one reader, in microseconds.
#[derive(Debug, Default, Clone)]
struct Waits {
    quiet: Vec<u64>,
    away: Vec<u64>,
}

/// Sources of types whose methods never end.
pub(crate) fn sources() -> impl Iterator<Item = (String, String)> {
    (0..TYPES).map(|place| {
        let mut text = "local T = { create = {} }\nfunction T.new() return {} end\n".to_owned();
        for method in 0..METHODS {
            writeln!(text, "function T.m{method}(self) while true do end end").expect("a text grows");
        }
        text.push_str("return T\n");
        (format!("away{place}.luau"), text)
    })
}

/// Measures on a server with two threads and the types of [`sources`].
pub(crate) fn measure(server: &Server, rounds: u32, out: &mut dyn Write) -> Result<()> {
    let mut clients = Clients::open(server.address(), 1)?;
    let stored = Exchange { request: b"set plain 0 0 1\r\nv\r\n".to_vec(), reply: b"STORED\r\n".to_vec() };
    clients.run(1, 1, || stored.clone())?;
    let (over, is_away) = (AtomicBool::new(false), AtomicBool::new(false));
    let called = AtomicU64::new(0);
    let mut waits = std::thread::scope(|scope| {
        let readers: Vec<_> =
            (0..READERS).map(|_| scope.spawn(|| read(server.address(), &over, &is_away))).collect();
        let result = call_all(&mut clients, rounds, &is_away, &called);
        over.store(true, Ordering::SeqCst);
        let waits: Result<Vec<_>> =
            readers.into_iter().map(|reader| reader.join().expect("no panic")).collect();
        result.and(waits)
    })?;
    waits.sort_by_key(|waits| quantile(&waits.away, 99));
    writeln!(
        out,
        "## {READERS} readers, {} runaways of {LIMIT_MS} ms each, two threads\n",
        called.into_inner()
    )?;
    writeln!(out, "| reader | quiet, p50 p99 most, us | with runaways, p50 p99 most, us |\n|---|---|---|")?;
    for (place, one) in waits.iter().enumerate() {
        let row = |times: &[u64]| {
            format!("{} {} {}", quantile(times, 50), quantile(times, 99), quantile(times, 100))
        };
        writeln!(out, "| {} | {} | {} |", place + 1, row(&one.quiet), row(&one.away))?;
    }
    writeln!(out)?;
    Ok(())
}

/// Rounds of as much time with as without runaways, until all methods have been called.
fn call_all(clients: &mut Clients, rounds: u32, is_away: &AtomicBool, called: &AtomicU64) -> Result<()> {
    for round in 0..(rounds as usize).min(4 * TYPES) {
        std::thread::sleep(Duration::from_millis(LIMIT_MS * METHODS as u64));
        is_away.store(true, Ordering::SeqCst);
        for method in 0..METHODS {
            let (kind, name) = (round % TYPES, format!("m{method}"));
            let request = format!("get away{kind}:{name}:k\r\n").into_bytes();
            let reply = format!("SERVER_ERROR script away{kind}.{name}: took longer than {LIMIT_MS} ms\r\n");
            clients.run(1, 1, || Exchange { request: request.clone(), reply: reply.clone().into_bytes() })?;
            called.fetch_add(1, Ordering::SeqCst);
        }
        is_away.store(false, Ordering::SeqCst);
    }
    Ok(())
}

fn read(address: &str, over: &AtomicBool, is_away: &AtomicBool) -> Result<Waits> {
    let mut clients = Clients::open(address, 1)?;
    let mut waits = Waits::default();
    while !over.load(Ordering::SeqCst) {
        let away = is_away.load(Ordering::SeqCst);
        let since = Instant::now();
        clients.run(1, 1, || Exchange::get("plain", "v"))?;
        let micros = u64::try_from(since.elapsed().as_micros()).context("no wait is this long")?;
        // A get that began in one state and ended in the other belongs to neither.
        if is_away.load(Ordering::SeqCst) == away {
            if away { &mut waits.away } else { &mut waits.quiet }.push(micros);
        }
        std::thread::sleep(PAUSE);
    }
    waits.quiet.sort_unstable();
    waits.away.sort_unstable();
    ensure!(!waits.quiet.is_empty() && !waits.away.is_empty(), "a reader has not had a turn");
    Ok(waits)
}

/// A quantile of sorted times; percent from 1 to 100.
fn quantile(times: &[u64], percent: usize) -> u64 {
    times[(times.len() * percent).div_ceil(100).saturating_sub(1)]
}
