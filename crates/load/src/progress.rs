//! How far a run is, on standard error, while it goes on: a line that changes on a terminal, else one every
//! ten seconds.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::{Meter, count};

/// Shows the count of a meter until it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The count to show.
    pub(crate) meter: Arc<Meter>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

const ON_TERMINAL: Duration = Duration::from_millis(250);
const ELSEWHERE: Duration = Duration::from_secs(10);

impl Progress {
    pub(crate) fn start() -> Self {
        let meter = Arc::new(Meter::default());
        let (stop, stopped) = mpsc::channel();
        let own = Arc::clone(&meter);
        let thread = thread::spawn(move || show(&own, &stopped));
        Self { meter, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It only prints.
            thread.join().unwrap_or_default();
        }
    }
}

fn show(meter: &Meter, stopped: &mpsc::Receiver<()>) {
    let terminal = std::io::stderr().is_terminal();
    let every = if terminal { ON_TERMINAL } else { ELSEWHERE };
    let mut before = 0;
    let mut shown = false;
    while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let answered = meter.answered.load(Relaxed);
        let line = line(answered, answered - before, every);
        let mut out = std::io::stderr().lock();
        // Without wrapping it stays one line, however narrow the terminal is.
        let written =
            if terminal { write!(out, "\r\x1b[?7l{line}\x1b[K\x1b[?7h") } else { writeln!(out, "{line}") };
        if written.and_then(|()| out.flush()).is_err() {
            return;
        }
        shown = true;
        before = answered;
    }
    if terminal && shown {
        write!(std::io::stderr(), "\r\x1b[K").unwrap_or_default();
    }
}

fn line(answered: u64, since: u64, every: Duration) -> String {
    let rate = u128::from(since) * 1000 / every.as_millis();
    format!("{} requests answered, {} per second", count(answered), count(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line() {
        let line = line(1_234_567, 25_000, Duration::from_millis(250));
        assert_eq!(line, "1,234,567 requests answered, 100,000 per second");
    }
}
