//! `cattlegrid check FILE --try KEY`: starts a loader, lets it compute one value, and shows the value.
//!
//! The worker is started and asked as a server does it. What it writes, and why it fails, goes to standard
//! error as in a server's log.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cattlegrid_config::LoaderTrial;
use cattlegrid_engine::{Load, LoadEnd, LoadOrder, LoadOutcome};
use cattlegrid_loader::{Finished, Host, Loaders, Severity, StartError};
use cattlegrid_server::log_loader;
use cattlegrid_server::time::Clock;
use percent_encoding::percent_decode;

/// Why there is no value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrialError {
    /// The program did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The job has failed.
    #[error("loader {loader}: {key}: {why} (after {took})")]
    Failed {
        /// The name of the loader.
        loader: String,
        /// The key.
        key: String,
        /// The reason, as clients are told that ask for it.
        why: String,
        /// How long the job took.
        took: String,
    },
}

/// A server that waits for one result.
struct TrialHost {
    clock: Clock,
    sender: Mutex<Sender<Finished>>,
}

impl Host for TrialHost {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn log(&self, severity: Severity, text: &str) {
        log_loader(severity, text);
    }

    fn finished(&self, _lane: usize, finished: Finished) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        // The receiver is there until the loaders have stopped.
        sender.send(finished).unwrap_or_default();
    }
}

/// Runs the loader once; what it answered, in lines.
///
/// # Errors
/// It did not start, or has no value for the key.
pub(crate) fn run(trial: LoaderTrial) -> Result<String, TrialError> {
    let clock = Clock::new();
    let (sender, receiver) = channel();
    let host = Arc::new(TrialHost { clock: clock.clone(), sender: Mutex::new(sender) });
    let LoaderTrial { key, prefix_len, rule, loader, settings } = trial;
    let name = loader.name.clone();
    // The first job should not wait for a worker.
    let loaders = Loaders::start(&[loader], settings.item_bytes_max, host)?;
    let load = Load {
        key: key.as_bytes().into(),
        prefix_len,
        token: 1,
        rule: Arc::clone(&rule),
        hint: None,
        stale: None,
        is_refresh: false,
        ordered_ms: 0,
    };
    let begun = clock.now();
    loaders.submit(0, vec![LoadOrder::Start(load)]);
    let finished = receiver.recv();
    let took = millis(clock.now().duration_since(begun));
    loaders.stop();
    let failed =
        |why: String| TrialError::Failed { loader: name.clone(), key: key.clone(), why, took: took.clone() };
    let finished = finished.map_err(|_| failed("the job has no end".to_owned()))?;
    let ttl_s = rule.loading.as_ref().map_or(0, |loading| i64::from(loading.ttl_s));
    let shown = finished.with_end(|end| match *end {
        LoadEnd::Value { data, flags, ttl_s: own, tags } => {
            let tags = tags.iter().map(|tag| tag.escape_ascii().to_string());
            let captures = rule.pattern.match_key(&key.as_bytes()[prefix_len..]);
            let of_rule = rule.tags.iter().filter_map(|tag| Some(tag.name(captures.as_ref()?)));
            Ok(format!(
                "value  {} bytes: {}\nflags  {flags}\nttl    {}\ntags   {}\ntime   {took}\n",
                data.len(),
                text(data),
                ttl(own.unwrap_or(ttl_s)),
                of_rule.chain(tags).collect::<Vec<_>>().join(" ")
            ))
        }
        LoadEnd::NotFound { ttl_s: own } => {
            let ttl_s = own.unwrap_or(rule.negative_ttl_s);
            Ok(format!("not found, for {ttl_s} s\ntime   {took}\n"))
        }
        LoadEnd::Failed { text, .. } => Err(failed(percent_decode(text).decode_utf8_lossy().into_owned())),
    });
    finished.landed(if shown.is_ok() { LoadOutcome::Stored } else { LoadOutcome::Failed });
    shown
}

fn ttl(seconds: i64) -> String {
    match seconds {
        0 => "it does not expire".to_owned(),
        ..0 => "for the clients that wait; it is not kept".to_owned(),
        _ => format!("{seconds} s"),
    }
}

/// The value's beginning: as it is if it is text, otherwise escaped.
fn text(data: &[u8]) -> String {
    let cut = &data[..data.len().min(SHOWN_MAX)];
    let more = if cut.len() < data.len() { "..." } else { "" };
    let is_text = |text: &&str| !text.contains(char::is_control);
    match std::str::from_utf8(cut).ok().filter(is_text) {
        Some(text) => format!("{text}{more}"),
        None => format!("{}{more}", cut.escape_ascii()),
    }
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// Most bytes of a value that are shown.
const SHOWN_MAX: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_text_or_escaped_and_cut() {
        assert_eq!(text(b""), "");
        assert_eq!(text("<h1>\u{fc}</h1>".as_bytes()), "<h1>\u{fc}</h1>");
        assert_eq!(text(b"a\r\n\xff"), "a\\r\\n\\xff");
        assert_eq!(text(&[b'x'; SHOWN_MAX]), "x".repeat(SHOWN_MAX));
        assert_eq!(text(&[b'x'; SHOWN_MAX + 1]), format!("{}...", "x".repeat(SHOWN_MAX)));
        // A character that is cut makes it bytes, which are escaped.
        assert!(
            text("\u{fc}".repeat(SHOWN_MAX / 2).replacen('\u{fc}', "x\u{fc}", 1).as_bytes())
                .ends_with("\\xc3...")
        );
    }

    #[test]
    fn times_to_live_in_words() {
        assert_eq!(
            [0, -1, 60].map(ttl),
            ["it does not expire", "for the clients that wait; it is not kept", "60 s"]
        );
    }
}
