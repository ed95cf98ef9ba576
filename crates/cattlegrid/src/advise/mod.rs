//! `cattlegrid advise`: watches a running server for a while, and prints a rule file that fits its traffic.
//!
//! It is an ordinary watcher (`watch fetchers mutations deletions`), and reads `stats` and `lru_crawler
//! metadump`. It never writes to that server. The server leaves out lines that come too fast for the watcher,
//! and counts them.

mod dump;
mod link;
mod observations;
mod report;
mod shadow;
mod tap;
mod together;

use std::io;
use std::time::Duration;

use cattlegrid_config::AdviseCommand;
use cattlegrid_server::time::nanos;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use dump::{DumpExtent, StoredShapes};
use link::{WatchedServer, problem_of};
use observations::{Observations, Sorter, WatchLine};
use report::ReportContext;
use shadow::Shadow;
use tap::Tap;

/// Pause between two checks for a signal.
const LOOK: Duration = Duration::from_millis(200);
/// Pause between two checks for a signal with a shadow, whose commands must be sent in time.
const TURN: Duration = Duration::from_millis(1);
/// Longest time for reading the dump after a signal.
const SHORT: Duration = Duration::from_secs(2);
/// Longest delay of a line, in microseconds.
const LATE_US: u64 = 1_200_000;

/// The advice, and the rule file that follows from it.
#[derive(Debug)]
pub(crate) struct Advice {
    /// The rule file; empty: nothing was seen.
    pub(crate) text: String,
    /// Why the server was not watched, or not for as long as it was asked for.
    pub(crate) problem: Option<String>,
}

impl Advice {
    fn none(problem: String) -> Self {
        Self { text: String::new(), problem: Some(problem) }
    }
}

/// Watches the server for the time that the command says, and returns a rule file. SIGINT, SIGTERM and the
/// end of the connection stop it early; then the file rests on the lines seen so far.
pub(crate) fn advise(command: &AdviseCommand) -> Advice {
    let address = &command.address;
    let server = match WatchedServer::new(address, command.tls.as_ref(), command.login.as_ref()) {
        Ok(server) => server,
        Err(problem) => return Advice::none(problem),
    };
    let signals = match signals() {
        Ok(signals) => signals,
        Err(error) => return Advice::none(error.to_string()),
    };
    let (mut tap, shadow) = match begin(command, &server, &signals) {
        Ok(both) => both,
        Err(problem) => return Advice::none(problem),
    };
    let mut watching = LineSink { seen: Observations::default(), sorter: Sorter::default(), shadow };
    let begun = nanos();
    let end = begun.saturating_add(command.seconds.saturating_mul(1_000_000_000));
    let watched = watching.gather(&mut tap, end, &signals);
    let seconds = nanos().saturating_sub(begun).div_ceil(1_000_000_000).min(command.seconds);
    let stopped = nanos() < end;
    let shows_deletes = tap.shows_deletes;
    drop(tap);
    let (seen, shadow) = watching.end(&signals);
    let mut problem = watched.err().map(|error| problem_of(address, &error));
    if seen.lines == 0 && problem.is_none() {
        problem = server.stats("").err().map(|error| problem_of(address, &error));
    }
    if seen.lines == 0 && problem.is_some() {
        return Advice { text: String::new(), problem };
    }
    let time_max = if stopped { SHORT } else { dump::TIME_MAX };
    let stored = (command.dump && problem.is_none()).then(|| stored(&server, time_max, &signals));
    let context = ReportContext { address: address.clone(), seconds, shows_deletes, stored };
    let mut text = report::report(&seen, &context);
    if let Some(shadow) = shadow.filter(|_| problem.is_none()) {
        let (compared, failed) = shadow.report(&server);
        text.push_str(&compared);
        problem = failed;
    }
    Advice { text, problem }
}

/// Connects the watcher, and prepares the shadow.
fn begin(
    command: &AdviseCommand,
    server: &WatchedServer,
    signals: &SignalFd,
) -> Result<(Tap, Option<Shadow>), String> {
    let failed = |error: &io::Error| problem_of(&command.address, error);
    let Some(address) = &command.shadow else {
        return Ok((Tap::open(server, false).map_err(|error| failed(&error))?, None));
    };
    let mut shadow = Shadow::open(address, server)?;
    let mut probe = Tap::open(server, false).map_err(|error| failed(&error))?;
    shadow.probe(&mut probe)?;
    drop(probe);
    if command.dump {
        shadow.preload(server, || has_come(signals));
    }
    let tap = Tap::open(server, true).map_err(|error| failed(&error))?;
    Ok((tap, Some(shadow)))
}

/// A descriptor for SIGINT and SIGTERM. They interrupt no thread from now on.
fn signals() -> io::Result<SignalFd> {
    let asked: SigSet = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect();
    asked.thread_block()?;
    Ok(SignalFd::with_flags(&asked, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

fn has_come(signals: &SignalFd) -> bool {
    matches!(signals.read_signal(), Ok(Some(_)))
}

/// The sink of the lines that the server sends.
struct LineSink {
    seen: Observations,
    sorter: Sorter,
    shadow: Option<Shadow>,
}

impl LineSink {
    /// Handles lines until this time, or until a signal comes.
    fn gather(&mut self, tap: &mut Tap, end: u64, signals: &SignalFd) -> io::Result<()> {
        loop {
            let left = end.saturating_sub(nanos());
            if left == 0 || signals.read_signal()?.is_some() {
                return Ok(());
            }
            let most = if self.shadow.is_some() { TURN } else { LOOK };
            let wait = Duration::from_nanos(left).clamp(Duration::from_millis(1), most);
            tap.lines(wait, |text| self.take(WatchLine::parse(text)))?;
            self.turn();
        }
    }

    fn take(&mut self, line: WatchLine) {
        let Self { seen, sorter, shadow } = self;
        if let Some(shadow) = shadow {
            shadow.arrives(&line);
        }
        if let WatchLine::Skipped(count) = line {
            seen.skipped += count;
        }
        sorter.push(line, &mut note(seen, shadow));
    }

    fn turn(&mut self) {
        let Self { seen, sorter, shadow } = self;
        if let Some(now_us) = shadow.as_ref().and_then(Shadow::clock_us) {
            sorter.pass(now_us.saturating_sub(LATE_US), &mut note(seen, shadow));
        }
        if let Some(shadow) = shadow {
            shadow.turn();
        }
    }

    /// Handles the lines that are left. The shadow gets its remaining commands at their times, unless a
    /// signal comes.
    fn end(self, signals: &SignalFd) -> (Observations, Option<Shadow>) {
        let Self { mut seen, sorter, mut shadow } = self;
        sorter.end(&mut note(&mut seen, &mut shadow));
        seen.together.end();
        if let Some(shadow) = &mut shadow {
            let ended_us = shadow.clock_us().unwrap_or(0);
            while !shadow.is_done(ended_us) && !has_come(signals) {
                shadow.turn();
                shadow.rest(TURN);
            }
        }
        (seen, shadow)
    }
}

fn note(seen: &mut Observations, shadow: &mut Option<Shadow>) -> impl FnMut(observations::WatchEvent) {
    move |event| {
        if let Some(shadow) = shadow {
            shadow.push(event.clone());
        }
        seen.note(event);
    }
}

/// Reads the stored items by the shapes of their keys.
fn stored(server: &WatchedServer, time_max: Duration, signals: &SignalFd) -> Result<StoredShapes, String> {
    let now = server.stats("").map_err(|error| problem_of(&server.address, &error))?.number("time");
    let mut stored = StoredShapes::default();
    let extent = dump::read(server, time_max, || has_come(signals), |item| stored.note(item, now))?;
    stored.part = extent == DumpExtent::Part;
    Ok(stored)
}
