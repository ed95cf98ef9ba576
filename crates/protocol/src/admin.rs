//! Commands that are not about a key, and unknown commands.

use crate::command::{Admin, Parsed, Request};
use crate::line::{self, Limits, Line, Words, close};
use crate::number;
use crate::reply::error;

/// Parses such a command. `name` is the text before the first blank, `rest` the text after it, `text` both.
/// Here a name may follow leading blanks, as in memcached, which looks these commands up separately.
pub(crate) fn parse<'a>(
    line: Line<'a>,
    name: &'a [u8],
    rest: &'a [u8],
    text: &'a [u8],
    limits: &Limits,
) -> Parsed<'a> {
    let complete = |admin| Parsed::Complete { request: Request::Admin(admin), used: line.used };
    match name {
        b"version" => return complete(Admin::Version),
        b"stats" => return complete(Admin::Stats(Words { rest })),
        b"quit" => return complete(Admin::Quit),
        b"watch" => return complete(Admin::Watch(Words { rest })),
        _ => {}
    }
    if line.used < SHORTEST {
        return line.refuse(error::BAD_FORMAT);
    }
    let mut rest = text;
    let name = line::take(&mut rest);
    let noreply = line::noreply(rest);
    let first = line::take(&mut &*rest);
    match name {
        b"flush_all" if first.is_empty() || (noreply && words_of(rest) == 1) => {
            complete(Admin::FlushAll { delay: 0, noreply })
        }
        b"flush_all" => match number::strict_i32(first) {
            Some(delay) => complete(Admin::FlushAll { delay: delay.into(), noreply }),
            None => line.refuse_unless(noreply, error::INVALID_EXPTIME),
        },
        b"verbosity" => match number::strict_u32(first) {
            level @ Some(_) => complete(Admin::Verbosity { level, noreply }),
            None => line.refuse_unless(noreply, error::BAD_FORMAT),
        },
        b"shutdown" if first.is_empty() => complete(Admin::Shutdown { graceful: false }),
        b"shutdown" if first == b"graceful" && words_of(rest) == 1 => {
            complete(Admin::Shutdown { graceful: true })
        }
        b"shutdown" => line.refuse_unless(noreply, error::INVALID_SHUTDOWN),
        b"lru_crawler" => complete(Admin::LruCrawler(Words { rest })),
        b"lru" => complete(Admin::Lru(Words { rest })),
        b"slabs" => complete(Admin::Slabs(Words { rest })),
        b"cache_memlimit" => match number::strict_u32(first) {
            Some(n) => complete(Admin::CacheMemlimit { mebibytes: n.into(), noreply }),
            None => line.refuse_unless(noreply, error::ERROR),
        },
        b"refresh_certs" => complete(Admin::RefreshCerts),
        b"debugtime" if limits.debugtime => complete(Admin::Debugtime(Words { rest })),
        // HTTP, for instance from a browser: the lines that follow must not run as commands.
        _ if line::last(rest).starts_with(b"HTTP/") => close(line.input),
        _ => line.refuse(error::ERROR),
    }
}

fn words_of(rest: &[u8]) -> usize {
    Words { rest }.count()
}

/// Length below which a line, with its LF, is a format error instead of an unknown command, as in memcached.
const SHORTEST: usize = 4;
