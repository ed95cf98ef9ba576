//! One job of a loader, without a server: `cattlegrid check FILE --try KEY`.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cattlegrid_config::Trial;
use cattlegrid_engine::rules::Rule;
use cattlegrid_engine::{Load, LoadEnd};
use cattlegrid_pool::{Error, LogChunk};

use crate::answer::Answer;
use crate::job;
use crate::pool::builder;

/// Runs the loader of a key once, with one worker, and ends it. The report: value, flags, time to live, tags and the time
/// that it took. `now`: the time.
///
/// # Errors
/// Why there is no answer, with the last words of the worker.
pub fn try_once(trial: &Trial, now: &dyn Fn() -> Instant) -> Result<String, String> {
    let Trial { key, rule, loader, settings } = trial;
    let failed = |reason: &dyn std::fmt::Display| format!("loader {}: {reason}", loader.name);
    let began = now();
    let output = Arc::new(Mutex::new(String::new()));
    let words = Arc::clone(&output);
    let builder = builder(loader, settings.item_bytes_max).map_err(|error| failed(&error))?;
    let builder = builder
        .max(1)
        .idle(0)
        .spare(0)
        // A failure is the outcome of the start or of the job.
        .on_error(|_| {})
        .on_log(move |chunk| note(&words, &chunk));
    let said = || output.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let pool = builder.spawn().wait().map_err(|error| failed(&error))?;
    let ready = now();
    let load = Load {
        key: key.as_bytes().into(),
        token: 0,
        rule: Arc::clone(rule),
        hint: None,
        stale: None,
        is_refresh: false,
    };
    let outcome = pool.job(job::args(&load, loader.mode)).idempotent(true).call().wait();
    let ended = now();
    pool.shutdown_now().wait();
    let reply = outcome.map_err(|error| failed(&full(&error)) + &said_of(&said()))?;
    let bytes = reply.parts().encoded_parts().len();
    let answer = Answer::read(reply, loader.mode).map_err(|error| failed(&error) + &said_of(&said()))?;
    if answer.value_len() > settings.item_bytes_max {
        let (value, most) = (answer.value_len(), settings.item_bytes_max);
        return Err(failed(&format_args!("the value has {value} bytes; -I allows {most}")));
    }
    let mut report =
        format!("key {key}\nrule {}: {}\nloader {}\n", rule.number, rule.pattern.text(), loader.name);
    answer.with_end(|end| describe(end, rule, key, &mut report));
    let (start, run) = (ready.duration_since(began), ended.duration_since(ready));
    say(&mut report, format_args!("answer {bytes} bytes in {}, after a start of {}\n", ms(run), ms(start)));
    report.push_str(&said_of(&said()));
    Ok(report)
}

fn note(words: &Mutex<String>, chunk: &LogChunk<'_>) {
    let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
    if words.len() < WORDS_BYTES_MAX {
        words.push_str(String::from_utf8_lossy(chunk.bytes).trim_end());
        words.push('\n');
    }
}

/// The error with its detail, such as a traceback.
fn full(error: &Error) -> String {
    match error {
        Error::Worker { detail, .. } if !detail.is_empty() => format!("{error}\n{}", detail.trim_end()),
        _ => error.to_string(),
    }
}

fn said_of(words: &str) -> String {
    if words.is_empty() {
        return String::new();
    }
    let lines: Vec<String> = words.lines().map(|line| format!("\n  {line}")).collect();
    format!("\noutput of the loader:{}\n", lines.concat())
}

fn describe(end: &LoadEnd<'_>, rule: &Rule, key: &str, report: &mut String) {
    match *end {
        LoadEnd::Value { data, flags, ttl_s, tags } => {
            say(report, format_args!("value {} bytes: {}\n", data.len(), shown(data)));
            say(report, format_args!("flags {flags}\n"));
            let own = rule.loading.as_ref().map_or(0, |loading| loading.ttl_s);
            match ttl_s {
                None => say(report, format_args!("ttl {} (the rule's)\n", seconds(own.into()))),
                Some(ttl) => say(report, format_args!("ttl {}\n", seconds(ttl))),
            }
            let captures = rule.pattern.match_key(key.as_bytes());
            for tag in &rule.tags {
                if let Some(captures) = &captures {
                    say(report, format_args!("tag {} (the rule's)\n", tag.name(captures)));
                }
            }
            for tag in tags {
                say(report, format_args!("tag {}\n", tag.escape_ascii()));
            }
        }
        LoadEnd::NotFound { ttl_s } => {
            let ttl = ttl_s.unwrap_or(rule.negative_ttl_s);
            let whose = if ttl_s.is_none() { " (the rule's)" } else { "" };
            say(report, format_args!("not found\nttl {ttl}s{whose}\n"));
        }
        LoadEnd::Failed { .. } => unreachable!("an answer is no failure"),
    }
}

fn seconds(ttl: i64) -> String {
    match ttl {
        0 => "0: it does not expire".to_owned(),
        1.. => format!("{ttl}s"),
        _ => format!("{ttl}: it goes to the waiters and is not kept"),
    }
}

/// The value as text, or its bytes escaped; a long one is cut.
fn shown(data: &[u8]) -> String {
    let head = &data[..data.len().min(VALUE_BYTES_SHOWN)];
    let text = match std::str::from_utf8(data) {
        Ok(text) => {
            let end = (0..=head.len()).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            text[..end].escape_debug().to_string()
        }
        Err(_) => head.escape_ascii().to_string(),
    };
    if head.len() < data.len() { format!("{text}... ({} more)", data.len() - head.len()) } else { text }
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

fn say(report: &mut String, arguments: std::fmt::Arguments<'_>) {
    report.write_fmt(arguments).expect("writing to a String cannot fail");
}

/// Bytes of a value that are shown.
const VALUE_BYTES_SHOWN: usize = 1000;
/// About how many bytes of the worker's output are shown.
const WORDS_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_text_and_cut() {
        assert_eq!(shown(b"a\"b\n"), "a\\\"b\\n");
        assert_eq!(shown(b"\xff\n"), "\\xff\\n");
        assert_eq!(shown(&[b'x'; 1000]).len(), 1000);
        assert!(shown(&[b'x'; 1001]).ends_with("x... (1 more)"));
        let wide = "\u{fc}".repeat(600);
        assert!(shown(wide.as_bytes()).ends_with("\u{fc}... (200 more)"));
    }
}
