//! `stats`: the server's counters and gauges, as memcached prints them.
//!
//! Each statistic is defined once, in a table (see `definition`). `collect` passes all statistics of a group
//! to a sink, here one that prints. Settings, and the lists of leases, keys and prefixes, are not statistics,
//! and are printed directly.
//!
//! # Invariants
//! * The lines have memcached's order, and by default memcached's number.
//! * No line is formatted while a shard is locked, and reading a shard's figures is not a traversal.

mod conns;
mod definition;
mod follow;
mod general;
mod items;
mod latency;
mod leases;
mod loaders;
mod objects;
mod own;
mod reference;
mod rules;
mod settings;
mod shares;
mod tags;
#[cfg(test)]
mod tests;

use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_engine::{Cursor, Now};
use cattlegrid_protocol::{Words, reply, strict_u32};

use crate::shared::Shared;
use crate::turns::Turn;
use definition::put_all;
pub(crate) use definition::{Definition, Export, Histogram, Sink, Unit, Value, ValueKind};

pub(crate) use leases::each as each_lease;
pub use reference::reference_markdown;
pub(crate) use rules::{advice, collect as collect_rules};
#[cfg(test)]
pub(crate) use tests::every_definition;

/// The version of memcached whose behaviour the server has. Clients parse it: digits and points only. `stats
/// cattlegrid` has the server's own version.
pub(crate) const VERSION: &str = "1.6.45";

/// A group of statistics that are printed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum StatGroup {
    /// `stats`.
    General,
    /// `stats cattlegrid`.
    Own,
    Items,
    Slabs,
    Sizes,
    Conns,
    Rules,
    Tags,
    Loaders,
    Follow,
    Objects,
    Latency,
    Shares,
}

impl StatGroup {
    fn of_word(word: &[u8]) -> Option<Self> {
        Some(match word {
            b"cattlegrid" => Self::Own,
            b"items" => Self::Items,
            b"slabs" => Self::Slabs,
            b"sizes" => Self::Sizes,
            b"conns" => Self::Conns,
            b"rules" => Self::Rules,
            b"tags" => Self::Tags,
            b"loaders" => Self::Loaders,
            b"follow" => Self::Follow,
            b"objects" => Self::Objects,
            b"latency" => Self::Latency,
            b"shares" => Self::Shares,
            _ => return None,
        })
    }
}

/// Passes all statistics of a group that have a value at `now` to `sink`, in the order in which they are
/// printed.
pub(crate) fn collect(group: StatGroup, shared: &Shared, now: Now, sink: &mut dyn Sink) {
    match group {
        StatGroup::General => {
            put_all(general::ROWS, &[], shared, &general::GeneralStats::take(shared, now), sink);
        }
        StatGroup::Own => put_all(own::ROWS, &[], shared, &own::OwnStats::take(shared, now), sink),
        StatGroup::Items => items::collect_items(shared, now, sink),
        StatGroup::Slabs => items::collect_slabs(shared, now, sink),
        StatGroup::Sizes => sink.put(&items::SIZES, &[], &Value::text("disabled")),
        StatGroup::Conns => conns::collect(shared, now, sink),
        StatGroup::Rules => rules::collect(shared, None, sink),
        StatGroup::Tags => tags::collect(shared, now, sink),
        StatGroup::Loaders => loaders::collect(shared, sink),
        StatGroup::Follow => follow::collect(shared, now, sink),
        StatGroup::Objects => objects::collect(shared, sink),
        StatGroup::Latency => latency::collect(shared, sink),
        StatGroup::Shares => shares::collect(shared, sink),
    }
}

/// Executes `stats` with its arguments.
pub(crate) fn stats(mut words: Words<'_>, turn: &mut Turn<'_>) {
    let mut lines = StatLines(String::new());
    match words.next() {
        None => collect(StatGroup::General, turn.shared, turn.now, &mut lines),
        Some(b"settings") => settings::settings(&mut lines, turn.shared),
        Some(b"leases") => leases::list(&mut lines, turn.shared, turn.now),
        Some(b"cachedump") => return cachedump(words, turn),
        Some(b"detail") => return detail(words, turn),
        Some(b"reset") => {
            reset(turn.shared);
            return turn.out.bytes.extend_from_slice(reply::RESET);
        }
        Some(word) => match StatGroup::of_word(word) {
            Some(group) => collect(group, turn.shared, turn.now, &mut lines),
            None => return reply::line(&mut turn.out.bytes, "ERROR"),
        },
    }
    turn.out.bytes.extend_from_slice(lines.0.as_bytes());
    turn.out.bytes.extend_from_slice(reply::END);
}

/// Sets the counters to 0.
fn reset(shared: &Shared) {
    shared.lanes.iter().for_each(|lane| {
        lane.counters.reset();
        lane.latency.reset();
    });
    shared.engine.reset_stats();
    if let Some(active) = shared.engine.shared().rules().as_ref() {
        active.each().for_each(|(_, state)| state.counters().reset());
    }
    shared.gauges.total.store(0, Relaxed);
    shared.gauges.rejected.store(0, Relaxed);
    shared.uploads.reset_stats();
    shared.watchers.reset_stats();
    shared.unsent.reset_stats();
    shared.detail.reset();
    shared.loaders.reset_stats();
}

/// `STAT` lines.
#[derive(Default)]
pub(crate) struct StatLines(String);

impl StatLines {
    #[cfg(test)]
    pub(crate) fn text(self) -> String {
        self.0
    }

    fn stat(&mut self, name: impl Display, value: impl Display) {
        // Writing to a string cannot fail.
        let _ok = write!(self.0, "STAT {name} {value}\r\n");
    }
}

impl Sink for StatLines {
    fn put(&mut self, definition: &'static Definition, labels: &[&dyn Display], value: &Value) {
        self.stat(definition.line(labels), value);
    }
}

/// `stats cachedump <class> <limit>`: some keys of the only class; at most 2 MiB, as in memcached.
fn cachedump(words: Words<'_>, turn: &mut Turn<'_>) {
    const MOST: usize = 2 << 20;
    let arguments: Vec<&[u8]> = words.collect();
    let text = match arguments[..] {
        _ if !turn.shared.settings.dump => "CLIENT_ERROR stats cachedump not allowed",
        // Further arguments are ignored, as in memcached.
        [class, limit, ..] => match (strict_u32(class), strict_u32(limit)) {
            (Some(class), Some(limit)) if class < 64 => {
                let limit = if limit == 0 { usize::MAX } else { limit as usize };
                return dump_class(class, limit, MOST, turn);
            }
            (Some(_), Some(_)) => "CLIENT_ERROR Illegal slab id",
            _ => "CLIENT_ERROR bad command line format",
        },
        _ => "CLIENT_ERROR bad command line",
    };
    reply::line(&mut turn.out.bytes, text);
}

fn dump_class(class: u32, limit: usize, most: usize, turn: &mut Turn<'_>) {
    let (engine, now, out) = (&turn.shared.engine, turn.now, &mut turn.out.bytes);
    let end = out.len() + most;
    let mut left = if class == 1 { limit } else { 0 };
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor.filter(|_| left > 0 && out.len() < end) {
        cursor = engine.list(at, 64, |item| {
            if left > 0 && !item.is_object() && item.key().iter().all(u8::is_ascii_graphic) {
                left -= 1;
                out.extend_from_slice(b"ITEM ");
                out.extend_from_slice(item.key());
                let expiry = if item.expiry() == 0 { 0 } else { now.unix(item.expiry()) };
                out.extend_from_slice(format!(" [{} b; {expiry} s]\r\n", item.value_len()).as_bytes());
            }
        });
    }
    out.extend_from_slice(reply::END);
}

fn detail(mut words: Words<'_>, turn: &mut Turn<'_>) {
    let detail = &turn.shared.detail;
    match words.next() {
        Some(b"on") => {
            detail.switch(true);
            turn.shared.note_watched();
        }
        Some(b"off") => {
            detail.switch(false);
            turn.shared.note_watched();
        }
        Some(b"dump") => return detail.dump(&mut turn.out.bytes),
        _ => return reply::line(&mut turn.out.bytes, "CLIENT_ERROR usage: stats detail on|off|dump"),
    }
    reply::line(&mut turn.out.bytes, "OK");
}
