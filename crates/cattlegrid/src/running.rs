//! The reports of running servers for `nodes`, and for `check --server`, which compares their rules.

use std::io::{self, Read, Write};
use std::time::Duration;

use crate::socket::connect_tcp;

/// For how long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of its reply: those of a thousand rules are less.
const REPLY_MAX: u64 = 16 << 20;

/// Lines for the end of what `check` prints, comments of a rule file: rules that have matched no key, and
/// prefixes that keep keys from their rules.
///
/// # Errors
/// The server does not answer, or has no rule file. The text begins with its address.
pub(crate) fn matches(address: &str) -> Result<String, String> {
    let failed = |error: io::Error| format!("{address}: {error}");
    let lines = lines_of(address, "stats rules").map_err(failed)?;
    let stats: Vec<(&str, &str)> =
        lines.iter().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' ')).collect();
    if stats.is_empty() {
        return Err(format!("{address}: has no rule file; start it with --config"));
    }
    let mut said = Vec::new();
    for (name, pattern) in &stats {
        let Some(rule) = name.strip_suffix(":match") else { continue };
        let is = |name: &str, value: &str| {
            stats.iter().any(|(own, said)| *own == format!("{rule}:{name}") && *said == value)
        };
        if is("matched", "0") {
            said.push(format!("rule {rule} `{pattern}` has matched no key"));
        }
    }
    let hints: Vec<&str> =
        stats.iter().filter(|(name, _)| name.starts_with("hint_")).map(|(_, hint)| *hint).collect();
    // A hint says that its rule has matched no key.
    said.retain(|line| !hints.iter().any(|hint| hint.starts_with(line)));
    said.extend(hints.into_iter().map(str::to_owned));
    if said.is_empty() {
        said.push("every rule has matched keys, and no prefix is missing".to_owned());
    }
    let lines: Vec<String> = said.iter().map(|line| format!("# server {address}: {line}")).collect();
    Ok(lines.join("\n") + "\n")
}

/// The lines of the reply to a command, the last of them `END`.
pub(crate) fn lines_of(address: &str, command: &str) -> io::Result<Vec<String>> {
    let failed = |error| in_words(error, PATIENCE);
    ask(connect_tcp(address, PATIENCE).map_err(failed)?, command).map_err(failed)
}

/// Whether a server has been silent for as long as it may.
pub(crate) fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The error of a server that was silent for `patience` says so; others stay as they are. `patience`: whole
/// seconds.
pub(crate) fn in_words(error: io::Error, patience: Duration) -> io::Error {
    if is_silence(&error) {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", patience.as_secs()))
    } else {
        error
    }
}

/// The lines of the reply, the last of them `END`; the stream's timeout says how long it may be silent.
pub(crate) fn ask(mut stream: impl Read + Write, command: &str) -> io::Result<Vec<String>> {
    stream.write_all(format!("{command}\r\nquit\r\n").as_bytes())?;
    let mut reply = String::new();
    stream.take(REPLY_MAX).read_to_string(&mut reply)?;
    let lines: Vec<String> = reply.lines().map(str::to_owned).collect();
    match lines.last().map(String::as_str) {
        Some("END") => Ok(lines),
        Some(line) => Err(io::Error::other(format!("it answers {line:?}"))),
        None => Err(io::Error::other("it closes the connection")),
    }
}
