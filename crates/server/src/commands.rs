//! Commands that are not about a key.

use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_protocol::{Admin, Words, reply};

use crate::connection::Turn;
use crate::dump::{Dump, Form};
use crate::watch::Topics;
use crate::{log, stats};

/// What is to happen to the connection.
pub(crate) enum After {
    GoOn,
    Close,
    Watch(Topics),
    Dump(Dump),
}

/// Executes a command that is not about a key; the reply, if there is one at once, goes to `turn.out`.
pub(crate) fn admin(admin: &Admin<'_>, turn: &mut Turn<'_>) -> After {
    match *admin {
        Admin::Version => {
            turn.out.bytes.extend_from_slice(b"VERSION ");
            reply::line(&mut turn.out.bytes, stats::VERSION);
        }
        Admin::Verbosity { level, noreply } => {
            if let Some(level) = level {
                log::set_verbosity(u8::try_from(level).unwrap_or(u8::MAX));
            }
            say(turn, noreply, "OK");
        }
        Admin::FlushAll { delay, noreply } => flush_all(delay, noreply, turn),
        Admin::Stats(words) => stats::stats(words, turn),
        Admin::Quit => return After::Close,
        Admin::Shutdown { graceful } => return shutdown(graceful, turn),
        Admin::Watch(words) => return watch(words, turn),
        Admin::LruCrawler(words) => return lru_crawler(words, turn),
        Admin::Lru(words) => lru(words, turn),
        Admin::Slabs(words) => slabs(words, turn),
        Admin::CacheMemlimit { mebibytes, noreply } => cache_memlimit(mebibytes, noreply, turn),
        Admin::RefreshCerts => refresh_certs(turn),
        Admin::Debugtime(words) => debugtime(words, turn),
    }
    After::GoOn
}

fn say(turn: &mut Turn<'_>, noreply: bool, text: &str) {
    if !noreply {
        reply::line(&mut turn.out.bytes, text);
    }
}

fn flush_all(delay: i64, noreply: bool, turn: &mut Turn<'_>) {
    turn.counters.cmd_flush.add(1);
    if !turn.shared.settings.flush {
        return say(turn, noreply, reply::error::FLUSH_NOT_ALLOWED);
    }
    // A delay is an exptime: relative up to 30 days, a Unix time above; 0 and what has passed is now.
    let second = if delay <= 0 { turn.now.second } else { turn.now.expiry(delay) };
    turn.shared.engine.flush(second, turn.now);
    say(turn, noreply, "OK");
}

fn shutdown(graceful: bool, turn: &mut Turn<'_>) -> After {
    if !turn.shared.settings.shutdown_command {
        say(turn, false, reply::error::SHUTDOWN_NOT_ENABLED);
        return After::GoOn;
    }
    log::notice(if graceful { "shutdown graceful asked by a client" } else { "shutdown asked by a client" });
    turn.shared.stop_asked.store(true, Relaxed);
    turn.shared.control.wake();
    After::Close
}

fn watch(words: Words<'_>, turn: &mut Turn<'_>) -> After {
    if !turn.shared.settings.watch {
        say(turn, false, reply::error::WATCH_NOT_ALLOWED);
        return After::GoOn;
    }
    let mut topics = Topics::default();
    let mut any = false;
    for word in words {
        any = true;
        let Some(topic) = Topics::parse(word) else {
            say(turn, false, "ERROR");
            return After::GoOn;
        };
        topics = topics.with(topic);
    }
    // As memcached: without a word, fetchers.
    After::Watch(if any { topics } else { Topics::engine(cattlegrid_engine::Interest::FETCHERS) })
}

fn lru_crawler(mut words: Words<'_>, turn: &mut Turn<'_>) -> After {
    let noreply = words.noreply();
    let (verb, argument) = (words.next().unwrap_or_default(), words.next());
    let form = match verb {
        b"metadump" => Some(Form::Meta),
        b"mgdump" => Some(Form::MetaGet),
        _ => None,
    };
    if let Some(form) = form {
        if !turn.shared.settings.dump {
            say(turn, false, "ERROR metadump not allowed");
            return After::GoOn;
        }
        return match argument.map(is_class_list) {
            None => {
                say(turn, false, "ERROR");
                After::GoOn
            }
            Some(false) => {
                say(turn, false, "BADCLASS invalid class id");
                After::GoOn
            }
            Some(true) => After::Dump(Dump::new(form, !turn.shared.settings.cas)),
        };
    }
    // There is no crawler: segments expire as wholes. What steers memcached's answers as if it were steered.
    let text = match (verb, argument) {
        (b"enable" | b"disable", None) => "OK",
        (b"sleep" | b"tocrawl", Some(number)) => {
            if parse::<u32>(number).is_some() {
                "OK"
            } else {
                reply::error::BAD_FORMAT
            }
        }
        (b"crawl", Some(list)) => {
            if is_class_list(list) {
                "OK"
            } else {
                "BADCLASS invalid class id"
            }
        }
        _ => "ERROR",
    };
    say(turn, noreply, text);
    After::GoOn
}

/// `all`, `hash`, or class numbers with commas; all items are in class 1.
fn is_class_list(word: &[u8]) -> bool {
    word == b"all"
        || word == b"hash"
        || word.split(|b| *b == b',').all(|class| parse::<u8>(class).is_some_and(|c| (1..64).contains(&c)))
}

/// `lru tune|mode|temp_ttl`: there is nothing to tune; valid arguments are accepted.
fn lru(mut words: Words<'_>, turn: &mut Turn<'_>) {
    let noreply = words.noreply();
    let mut word = || words.next().unwrap_or_default();
    let number = |w: &[u8]| parse::<f64>(w).is_some_and(f64::is_finite);
    let text = match word() {
        b"tune" => {
            if number(word()) && number(word()) && number(word()) && number(word()) {
                "OK"
            } else {
                reply::error::BAD_FORMAT
            }
        }
        b"mode" => match word() {
            b"flat" | b"segmented" => "OK",
            _ => "ERROR",
        },
        b"temp_ttl" => {
            if number(word()) {
                "OK"
            } else {
                reply::error::BAD_FORMAT
            }
        }
        _ => "ERROR",
    };
    say(turn, noreply, text);
}

/// `slabs reassign|automove`: there are no slabs to move.
fn slabs(mut words: Words<'_>, turn: &mut Turn<'_>) {
    let noreply = words.noreply();
    let mut word = || words.next().unwrap_or_default();
    let text = match word() {
        b"reassign" => match (parse::<i32>(word()), parse::<i32>(word())) {
            (Some(from), Some(to)) if from == to && from > 0 => "SAME src and dst class are identical",
            (Some(_), Some(to)) if (1..64).contains(&to) => "NOSPARE source class has no spare pages",
            (Some(_), Some(_)) => "BADCLASS invalid src or dst class id",
            _ => reply::error::BAD_FORMAT,
        },
        b"automove" => match parse::<u8>(word()) {
            Some(0..=2) => "OK",
            Some(_) => "ERROR",
            None => reply::error::BAD_FORMAT,
        },
        _ => "ERROR",
    };
    say(turn, noreply, text);
}

fn cache_memlimit(mebibytes: u64, noreply: bool, turn: &mut Turn<'_>) {
    let bytes = usize::try_from(mebibytes).ok().and_then(|m| m.checked_mul(1 << 20));
    let text = match bytes {
        Some(bytes) if mebibytes >= 8 => match turn.shared.engine.set_memory_limit(bytes) {
            Ok(()) => {
                log::notice(format_args!("memory limit is now {mebibytes} MiB"));
                "OK".to_owned()
            }
            Err(error) => format!("SERVER_ERROR {error}"),
        },
        // As memcached, which refuses less than eight pages.
        _ => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m".to_owned(),
    };
    say(turn, noreply, &text);
}

fn refresh_certs(turn: &mut Turn<'_>) {
    let text = match &turn.shared.tls {
        None => "ERROR".to_owned(),
        Some(tls) => match tls.reload() {
            Ok(()) => "OK".to_owned(),
            Err(error) => {
                log::error(format_args!("certificates kept as they were: {error}"));
                format!("SERVER_ERROR {error}")
            }
        },
    };
    say(turn, false, &text);
}

fn debugtime(mut words: Words<'_>, turn: &mut Turn<'_>) {
    match words.next().and_then(parse::<u32>) {
        Some(seconds) => {
            turn.shared.clock.advance(seconds);
            // Later commands of this turn count from there.
            turn.now.second = turn.shared.clock.seconds();
            say(turn, false, "OK");
        }
        None => say(turn, false, reply::error::BAD_FORMAT),
    }
}

fn parse<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
