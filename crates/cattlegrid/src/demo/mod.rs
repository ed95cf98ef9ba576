//! The tour: servers on free ports, clients that need them, and tables of what happened.
//!
//! One server has rules and a loader, whose worker is this program; the scenes of herd protection, loading,
//! invalidation and objects are its. The other has none and is loaded. Every scene checks what is promised,
//! and ends the tour with an error if it is not kept. A scene runs in a thread of its own, while this one
//! shows how far it is and listens for Ctrl-C. Whatever happens, the servers are stopped at the end, unless
//! the server with rules is kept.

mod crowd;
mod database;
mod fleet;
mod invalidation;
mod loading;
mod opened;
mod picture;
mod plain;
mod protection;
mod quota;
mod scenes;
mod server;
mod table;
pub(crate) mod worker;

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use cattlegrid_load::{BenchError, Meter, count};
use cattlegrid_server::poller::{Poller, Wish};
use cattlegrid_server::signals::{Signal, Signals};
use cattlegrid_server::sys;
use cattlegrid_server::time::Clock;

use scenes::Stage;
use table::DemoTable;

/// The reason why the tour ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    /// The server did not start.
    #[error("demo: the server did not start: {0}")]
    Server(String),
    /// A load failed. An interruption counts as a failure.
    #[error("demo: {0}")]
    Load(#[from] BenchError),
    /// The server did not keep a promise.
    #[error("demo: a promise is broken: {0}")]
    Broken(String),
    /// A system call failed.
    #[error("demo: {what}: {error}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The call's error.
        error: io::Error,
    },
}

impl DemoError {
    /// Whether Ctrl-C has ended the tour.
    fn is_interruption(&self) -> bool {
        matches!(self, Self::Load(BenchError::Interrupted))
    }

    fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Io { what, error }
    }
}

/// Scenes that share a table.
struct Act {
    /// The headings of the table's columns. The first one is the act's title.
    heads: &'static [&'static str],
    scenes: &'static [Scene],
}

/// A part of the tour.
struct Scene {
    title: &'static str,
    run: fn(&mut Stage) -> Result<SceneOutcome, DemoError>,
}

/// The result of a scene.
struct SceneOutcome {
    /// Rows of the act's table.
    rows: Vec<Vec<String>>,
    /// A sentence below the tables.
    note: Option<String>,
}

const ACTS: &[Act] = &[
    protection::ACT,
    loading::ACT,
    invalidation::SHOP,
    database::ACT,
    fleet::ACT,
    invalidation::FLUSH,
    quota::ACT,
    scenes::ACT,
];
/// The rule file of the server with rules.
const RULES: &str = include_str!("rules.toml");
/// Most connections that are open at once.
const CONNECTIONS_MAX: usize = 2200;
const STEP: Duration = Duration::from_millis(100);

/// Runs the tour. `keep` leaves the server with rules running; `open` continues with traffic for its
/// dashboard until Ctrl-C; `picture` is a file for a chart of the stampedes.
pub(crate) fn demo(keep: bool, open: bool, picture: Option<&Path>) -> Result<(), DemoError> {
    // The file is created now, so that an error does not come after a minute.
    let mut picture = picture.map(File::create).transpose().map_err(DemoError::io("the picture"))?;
    // Signals are blocked before the first thread starts, which inherits the mask.
    let mut signals = Signals::block().map_err(DemoError::io("signals cannot be received"))?;
    sys::raise_open_files(CONNECTIONS_MAX, 1, 0).map_err(|error| DemoError::Server(error.to_string()))?;
    let admin = if open { Some(server::free_address()?) } else { None };
    let ruled = server::start(CONNECTIONS_MAX, Some(RULES), admin.as_deref())?;
    let mut screen = DemoOutput::new();
    DemoOutput::line(&format!("cattlegrid demo: a server on {}, process {}", ruled.address(), ruled.pid()));
    let dashboard = admin.map(|admin| format!("dashboard: http://{admin}/"));
    if let Some(dashboard) = &dashboard {
        DemoOutput::line(dashboard);
    }
    let loaded = server::start(CONNECTIONS_MAX, None, None)?;

    let meter = Arc::new(Meter::default());
    let mut stage = Stage::new(&ruled, &loaded, Arc::clone(&meter))?;
    let scenes: usize = ACTS.iter().map(|act| act.scenes.len()).sum();
    let (mut number, mut text, mut notes) = (0, String::new(), Vec::new());
    for act in ACTS {
        let mut table = DemoTable::new(act.heads);
        for scene in act.scenes {
            number += 1;
            let head = format!("[{number}/{scenes}] {}", scene.title);
            let outcome = thread::scope(|scope| {
                let running = scope.spawn(|| (scene.run)(&mut stage));
                watch(running, &mut screen, &mut signals, &meter, &head)
            })?;
            table.add(outcome.rows);
            notes.extend(outcome.note);
        }
        text = format!("{text}\n{table}");
    }
    if let (Some(file), [without, with]) = (&mut picture, &stage.stampedes[..]) {
        file.write_all(picture::svg(without, with).as_bytes()).map_err(DemoError::io("the picture"))?;
    }
    let notes: Vec<String> = notes.iter().map(|note| table::wrapped(note)).collect();
    DemoOutput::line(&format!("{text}\n{}", notes.join("\n")));
    loaded.stop();
    if let Some(dashboard) = &dashboard {
        DemoOutput::line(&format!("\nA stampede every few seconds, until Ctrl-C. {dashboard}"));
        let ended = thread::scope(|scope| {
            let running = scope.spawn(|| opened::run(&stage));
            watch(running, &mut screen, &mut signals, &meter, "the demo goes on")
        });
        if let Err(error) = ended
            && !error.is_interruption()
        {
            return Err(error);
        }
    }
    drop(stage);
    if keep {
        DemoOutput::line(&server::keep(ruled));
    } else {
        ruled.stop();
    }
    Ok(())
}

/// Shows the progress of a scene until it ends.
fn watch(
    running: ScopedJoinHandle<'_, Result<SceneOutcome, DemoError>>,
    screen: &mut DemoOutput,
    signals: &mut Signals,
    meter: &Meter,
    head: &str,
) -> Result<SceneOutcome, DemoError> {
    let mut poller = Poller::new().map_err(DemoError::io("no epoll"))?;
    poller.add(&*signals, 0, Wish::Read).map_err(DemoError::io("epoll"))?;
    let before = meter.answered.load(Ordering::Relaxed);
    screen.start();
    while !running.is_finished() {
        poller.wait(Some(STEP), |_| {}).map_err(DemoError::io("epoll"))?;
        let signal = signals.next().map_err(DemoError::io("signals cannot be received"))?;
        if matches!(signal, Some(Signal::Drain | Signal::LeaveNow)) {
            meter.stop.store(true, Ordering::Relaxed);
        }
        screen.progress(head, meter.answered.load(Ordering::Relaxed) - before);
    }
    let outcome = running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    screen.end(head, meter.answered.load(Ordering::Relaxed) - before);
    outcome
}

/// Standard output: on a terminal a line that changes, elsewhere lines that stay.
struct DemoOutput {
    terminal: bool,
    clock: Clock,
    started: Instant,
}

impl DemoOutput {
    fn new() -> Self {
        let clock = Clock::new();
        Self { terminal: io::stdout().is_terminal(), started: clock.now(), clock }
    }

    /// It is no error if the reader has gone (`cattlegrid demo | head`).
    fn write(text: &str) {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).unwrap_or_default();
    }

    fn line(text: &str) {
        Self::write(&format!("{text}\n"));
    }

    fn start(&mut self) {
        self.started = self.clock.now();
    }

    fn progress(&self, head: &str, answered: u64) {
        if self.terminal {
            // Without wrapping it stays one line, however narrow the terminal is.
            Self::write(&format!("\r\x1b[?7l{}\x1b[K\x1b[?7h", self.state(head, answered)));
        }
    }

    fn end(&self, head: &str, answered: u64) {
        let state = self.state(head, answered);
        Self::line(&if self.terminal { format!("\r\x1b[K{state}") } else { state });
    }

    fn state(&self, head: &str, answered: u64) -> String {
        let seconds = self.clock.now().duration_since(self.started).as_secs_f64();
        format!("{head}: {} replies, {seconds:.1} s", count(answered))
    }
}
