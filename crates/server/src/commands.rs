//! Commands without a key: `stats`, `flush_all`, `verbosity`, `watch`, `lru_crawler` and the like.

use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_protocol::{Admin, Words, reply, strict_i32, strict_u32};

use crate::connection::unsent::pinned_cap;
use crate::dump::{Dump, DumpFormat};
use crate::turns::Turn;
use crate::watch::Topics;
use crate::{log, stats};

/// The highest level of the command `verbosity`, as in memcached; a higher number means this level.
const VERBOSITY_MAX: u32 = 2;
/// The largest class number of memcached under its default options; 0 is its pool of pages.
const SLAB_CLASSES: i32 = 39;

/// The caller's next step for the connection.
pub(crate) enum ConnectionAction {
    GoOn,
    Close,
    Watch(Topics),
    Dump(Dump),
}

/// Executes a command without a key for the connection `token`. The reply, unless it follows later, is
/// appended to `turn.out`.
pub(crate) fn admin(admin: &Admin<'_>, token: u64, turn: &mut Turn<'_>) -> ConnectionAction {
    match *admin {
        Admin::Version => {
            turn.out.bytes.extend_from_slice(b"VERSION ");
            reply::line(&mut turn.out.bytes, stats::VERSION);
        }
        Admin::Verbosity { level, noreply } => {
            if let Some(level) = level {
                let level = level.min(VERBOSITY_MAX) as u8;
                log::set_verbosity(level);
                turn.shared.watchers.log_requests(level >= log::REQUESTS);
                turn.shared.note_watched();
            }
            answer_line(turn, noreply, "OK");
        }
        Admin::FlushAll { delay, noreply } => flush_all(delay, noreply, turn),
        Admin::Stats(words) if turn.shared.settings.track_sizes && is_sizes(words) => {
            return ConnectionAction::Dump(Dump::of_sizes(turn.lane, token));
        }
        Admin::Stats(words) => stats::stats(words, turn),
        Admin::Quit => return ConnectionAction::Close,
        Admin::Shutdown { graceful } => return shutdown(graceful, turn),
        Admin::Watch(words) => return watch(words, turn),
        Admin::LruCrawler(words) => return lru_crawler(words, token, turn),
        Admin::Lru(words) => answer_line(turn, words.noreply(), lru(words)),
        Admin::Slabs(words) => answer_line(turn, words.noreply(), slabs(words)),
        Admin::CacheMemlimit { mebibytes, noreply } => cache_memlimit(mebibytes, noreply, turn),
        Admin::RefreshCerts => refresh_certs(turn),
        Admin::Debugtime(words) => debugtime(words, turn),
    }
    ConnectionAction::GoOn
}

/// Whether the command is `stats sizes`, with or without arguments.
fn is_sizes(mut words: Words<'_>) -> bool {
    words.next() == Some(b"sizes")
}

fn answer_line(turn: &mut Turn<'_>, noreply: bool, text: &str) {
    if !noreply {
        reply::line(&mut turn.out.bytes, text);
    }
}

fn flush_all(delay: i64, noreply: bool, turn: &mut Turn<'_>) {
    turn.counters.cmd_flush.add(1);
    if !turn.shared.settings.flush {
        return answer_line(turn, noreply, reply::error::FLUSH_NOT_ALLOWED);
    }
    // A delay is an exptime: relative up to 30 days, a Unix time above; 0 and times in the past mean now. As
    // in memcached it takes effect a second early, so that a delay of 1 is none.
    let now = turn.now.second;
    let last = if delay <= 0 { now.saturating_sub(1) } else { turn.now.expiry(delay).saturating_sub(1) };
    turn.shared.engine.flush(last.max(now), turn.now);
    // memcached calls this time oldest_live.
    turn.shared.gauges.oldest.store(last, Relaxed);
    answer_line(turn, noreply, "OK");
}

fn shutdown(graceful: bool, turn: &mut Turn<'_>) -> ConnectionAction {
    if !turn.shared.settings.shutdown_command {
        answer_line(turn, false, reply::error::SHUTDOWN_NOT_ENABLED);
        return ConnectionAction::GoOn;
    }
    log::notice(if graceful { "shutdown graceful asked by a client" } else { "shutdown asked by a client" });
    turn.shared.stop_asked.store(true, Relaxed);
    turn.shared.control.wake();
    ConnectionAction::Close
}

fn watch(words: Words<'_>, turn: &mut Turn<'_>) -> ConnectionAction {
    if !turn.shared.settings.watch {
        answer_line(turn, false, reply::error::WATCH_NOT_ALLOWED);
        return ConnectionAction::GoOn;
    }
    let mut topics = Topics::default();
    let mut any = false;
    for word in words {
        any = true;
        let Some(topic) = Topics::parse(word) else {
            answer_line(turn, false, "ERROR");
            return ConnectionAction::GoOn;
        };
        topics = topics.with(topic);
    }
    // Without an argument, fetchers are watched, as in memcached.
    ConnectionAction::Watch(if any { topics } else { Topics::engine(cattlegrid_engine::Interest::FETCHERS) })
}

fn lru_crawler(mut words: Words<'_>, token: u64, turn: &mut Turn<'_>) -> ConnectionAction {
    let noreply = words.noreply();
    let (verb, argument) = (words.next().unwrap_or_default(), words.next());
    let form = match verb {
        b"metadump" => Some(DumpFormat::Meta),
        b"mgdump" => Some(DumpFormat::MetaGet),
        _ => None,
    };
    if let Some(form) = form {
        return match start_dump(form, argument, token, turn) {
            Ok(dump) => {
                answer_line(turn, false, "OK");
                ConnectionAction::Dump(dump)
            }
            Err(refusal) => {
                answer_line(turn, false, refusal);
                ConnectionAction::GoOn
            }
        };
    }
    // There is no crawler, since whole segments expire. Options that steer it have the answers of memcached.
    let text = match (verb, argument) {
        (b"enable" | b"disable", None) => "OK",
        (b"sleep", Some(micros)) => match strict_u32(micros) {
            Some(0..=1_000_000) => "OK",
            Some(_) => "CLIENT_ERROR sleep must be one second or less",
            None => reply::error::BAD_FORMAT,
        },
        (b"tocrawl", Some(number)) if strict_u32(number).is_some() => "OK",
        (b"tocrawl", Some(_)) => reply::error::BAD_FORMAT,
        (b"crawl", Some(list)) => {
            if has_first_class(list).is_none() {
                BAD_CLASS
            } else if turn.shared.dumps.is_running() {
                DUMP_RUNS
            } else {
                "OK"
            }
        }
        _ => "ERROR",
    };
    answer_line(turn, noreply, text);
    ConnectionAction::GoOn
}

const BAD_CLASS: &str = "BADCLASS invalid class id";
const DUMP_RUNS: &str = "BUSY currently processing crawler request";

/// Begins a dump for the connection `token`.
///
/// # Errors
/// Another dump runs, or the connection cannot have one; the text is the reply.
fn start_dump(
    form: DumpFormat,
    classes: Option<&[u8]>,
    token: u64,
    turn: &Turn<'_>,
) -> Result<Dump, &'static str> {
    let (forbidden, pipelined) = match form {
        DumpFormat::Meta => {
            ("ERROR metadump not allowed", "ERROR cannot pipeline other commands before metadump")
        }
        DumpFormat::MetaGet | DumpFormat::Sizes => {
            ("ERROR key dump not allowed", "ERROR cannot pipeline other commands before mgdump")
        }
    };
    let classes = classes.ok_or("ERROR")?;
    if !turn.shared.settings.dump {
        return Err(forbidden);
    }
    if !turn.out.is_empty() {
        return Err(pipelined);
    }
    let has_items = has_first_class(classes).ok_or(BAD_CLASS)?;
    let hide_cas = !turn.shared.settings.cas;
    turn.shared.dumps.begin(form, hide_cas, has_items, turn.lane, token).ok_or(DUMP_RUNS)
}

/// Whether `all`, `hash` or a list of class numbers includes class 1, which has all items. None: the word is
/// none of these.
fn has_first_class(word: &[u8]) -> Option<bool> {
    if word == b"all" || word == b"hash" {
        return Some(true);
    }
    word.split(|b| *b == b',').try_fold(false, |found, class| {
        let class = parse::<u8>(class).filter(|class| (1..64).contains(class))?;
        Some(found || class == 1)
    })
}

/// Answers `lru tune|mode|temp_ttl`, which have no effect, as memcached does.
fn lru(words: Words<'_>) -> &'static str {
    let words: Vec<&[u8]> = words.collect();
    match words[..] {
        [b"tune", hot, warm, hot_factor, warm_factor, ..] => {
            let (Some(hot), Some(warm), Some(hot_factor), Some(warm_factor)) =
                (strict_u32(hot), strict_u32(warm), parse::<f64>(hot_factor), parse::<f64>(warm_factor))
            else {
                return "ERROR";
            };
            if hot.wrapping_add(warm) > 80 {
                "ERROR hot and warm pcts must not exceed 80"
            } else if hot_factor <= 0.0 || warm_factor <= 0.0 {
                "ERROR hot/warm age factors must be greater than 0"
            } else {
                "OK"
            }
        }
        [b"mode", b"flat" | b"segmented", ..] => "OK",
        [b"temp_ttl", seconds, ..] if strict_i32(seconds).is_some() => "OK",
        _ => "ERROR",
    }
}

/// Answers `slabs reassign|automove`, which have no effect: there are no slabs.
fn slabs(words: Words<'_>) -> &'static str {
    let words: Vec<&[u8]> = words.collect();
    match words[..] {
        [b"reassign", from, to] => match (strict_i32(from), strict_i32(to)) {
            (Some(from), Some(to)) if from == to => "SAME src and dst class are identical",
            (Some(0..=SLAB_CLASSES), Some(0..=SLAB_CLASSES)) => "NOSPARE source class has no spare pages",
            (Some(_), Some(_)) => "BADCLASS invalid src or dst class id",
            _ => reply::error::BAD_FORMAT,
        },
        [b"automove", b"ratio" | b"freeratio", ref rest @ ..] => match rest {
            [ratio, ..] if parse::<f64>(ratio).is_some() => "OK",
            _ => "ERROR",
        },
        [b"automove", b"window", ref rest @ ..] => match rest {
            [window, ..] if strict_u32(window).is_some() => "OK",
            _ => reply::error::BAD_FORMAT,
        },
        [b"automove", level, ..] => match strict_u32(level) {
            Some(0..=2) => "OK",
            Some(_) => "ERROR",
            None => reply::error::BAD_FORMAT,
        },
        _ => "ERROR",
    }
}

fn cache_memlimit(mebibytes: u64, noreply: bool, turn: &mut Turn<'_>) {
    let set = |mebibytes: u64| {
        let bytes = usize::try_from(mebibytes).ok()?.checked_mul(1 << 20)?;
        let pinned_max = pinned_cap(bytes, turn.shared.settings.item_bytes_max);
        turn.shared.engine.set_memory_limit(bytes, pinned_max).ok()
    };
    let text = match mebibytes {
        // memcached, too, refuses less than eight pages.
        ..8 => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        1_000_000_001.. => "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
        _ if set(mebibytes).is_some() => {
            log::notice(format_args!("memory limit is now {mebibytes} MiB"));
            "OK"
        }
        _ => "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
    };
    answer_line(turn, noreply, text);
}

fn refresh_certs(turn: &mut Turn<'_>) {
    let text = match &turn.shared.tls {
        None => "ERROR".to_owned(),
        Some(tls) => match tls.reload() {
            Ok(()) => {
                turn.shared.gauges.certificates_read.store(turn.now.second, Relaxed);
                "OK".to_owned()
            }
            Err(error) => {
                // Only the log shows paths, since clients need not know them.
                log::error(format_args!("certificates kept as they were: {error}"));
                "SERVER_ERROR the certificates stay as they were; the server's log says why".to_owned()
            }
        },
    };
    answer_line(turn, false, &text);
}

fn debugtime(mut words: Words<'_>, turn: &mut Turn<'_>) {
    match words.next().and_then(parse::<u32>) {
        Some(seconds) => {
            turn.shared.clock.advance(seconds);
            // The rest of this turn uses the new time.
            turn.now.second = turn.shared.clock.seconds();
            answer_line(turn, false, "OK");
        }
        None => answer_line(turn, false, reply::error::BAD_FORMAT),
    }
}

fn parse<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use cattlegrid_protocol::{Limits, Parsed, Request, parse};

    use super::*;

    /// The reply to a line, as memcached 1.6.45 chooses it.
    fn said(line: &str) -> &'static str {
        let line = format!("{line}\r\n");
        match parse(line.as_bytes(), &Limits::default()) {
            Parsed::Complete { request: Request::Admin(Admin::Lru(words)), .. } => lru(words),
            Parsed::Complete { request: Request::Admin(Admin::Slabs(words)), .. } => slabs(words),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tuning_of_the_lru() {
        for (line, reply) in [
            ("lru", "ERROR"),
            ("lru tune 20 40 0.2 2.0", "OK"),
            ("lru tune 40 40 0.2 2.0", "OK"),
            ("lru tune 41 40 0.2 2.0", "ERROR hot and warm pcts must not exceed 80"),
            ("lru tune 4294967295 40 0.2 2.0", "OK"),
            ("lru tune 4294967296 40 0.2 2.0", "ERROR"),
            ("lru tune 20 40 0 2.0", "ERROR hot/warm age factors must be greater than 0"),
            ("lru tune 20 40 0.2 -1", "ERROR hot/warm age factors must be greater than 0"),
            ("lru tune 20 40 0.2", "ERROR"),
            ("lru tune 20 x 0.2 2.0", "ERROR"),
            ("lru mode flat", "OK"),
            ("lru mode round", "ERROR"),
            ("lru temp_ttl -2147483648", "OK"),
            ("lru temp_ttl 2147483647", "OK"),
            ("lru temp_ttl 2147483648", "ERROR"),
            ("lru temp_ttl 1.5", "ERROR"),
        ] {
            assert_eq!(said(line), reply, "{line}");
        }
    }

    #[test]
    fn moving_of_slabs() {
        for (line, reply) in [
            ("slabs", "ERROR"),
            ("slabs reassign 1 2", "NOSPARE source class has no spare pages"),
            ("slabs reassign 0 39", "NOSPARE source class has no spare pages"),
            ("slabs reassign 60 1", "BADCLASS invalid src or dst class id"),
            ("slabs reassign 1 40", "BADCLASS invalid src or dst class id"),
            ("slabs reassign -1 1", "BADCLASS invalid src or dst class id"),
            ("slabs reassign 2147483647 1", "BADCLASS invalid src or dst class id"),
            ("slabs reassign 2147483648 1", "CLIENT_ERROR bad command line format"),
            ("slabs reassign 60 60", "SAME src and dst class are identical"),
            ("slabs reassign 1", "ERROR"),
            ("slabs automove 2", "OK"),
            ("slabs automove 3", "ERROR"),
            ("slabs automove 4294967295", "ERROR"),
            ("slabs automove 4294967296", "CLIENT_ERROR bad command line format"),
            ("slabs automove ratio 0.8", "OK"),
            ("slabs automove ratio", "ERROR"),
            ("slabs automove window 4294967295", "OK"),
            ("slabs automove window 4294967296", "CLIENT_ERROR bad command line format"),
            ("slabs automove", "ERROR"),
        ] {
            assert_eq!(said(line), reply, "{line}");
        }
    }
}
