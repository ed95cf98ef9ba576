//! `stats cattlegrid`: statistics that memcached does not have.

use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_engine::{HerdUsage, Now};

use super::definition::{Export, StatRow, Unit, Value, ValueKind, counter, gauge, text, value};
use super::general::Snapshot;
use crate::log::LogCounts;
use crate::ready::reasons_against;
use crate::shared::Shared;

/// The source of `stats cattlegrid`.
pub(super) struct OwnStats {
    base: Snapshot,
    herd: HerdUsage,
    log: LogCounts,
}

impl OwnStats {
    pub(super) fn take(shared: &Shared, now: Now) -> Self {
        Self {
            base: Snapshot::take(shared, now),
            herd: shared.engine.herd_usage(),
            log: crate::log::counts(),
        }
    }
}

/// The rows in the order in which they are printed.
pub(super) static ROWS: &[StatRow<OwnStats>] = &[
    text("version", "The server's own version.", |_, _| Some(Value::text(env!("CARGO_PKG_VERSION"))))
        .export(Export::As("server_version")),
    gauge(
        "ready",
        Unit::Count,
        "1 while clients may come, as `/readyz` says it: 0 from SIGTERM on, and while a loader's template has failed.",
        |shared, _| u64::from(reasons_against(shared).is_empty()),
    ),
    gauge(
        "reload_generation",
        Unit::Count,
        "Which reading of the files is in force: 1 at the start, and one more after each reload (SIGHUP, or changed types of objects) \
         that took effect.",
        |shared, _| shared.reload_status().count + 1,
    ),
    gauge(
        "reload_time",
        Unit::UnixSeconds,
        "When the last reload has ended, whether it took effect or not; before the first one that of the start.",
        |shared, _| shared.reload_status().unix,
    ),
    text(
        "reload_error",
        "Why the last reload changed nothing: the first line of what the log has, up to 256 bytes. none: it took effect, or there was none.",
        |shared, _| Some(Value::text(first_line(shared.reload_status().error.as_deref()))),
    ),
    gauge(
        "shards",
        Unit::Count,
        "Parts of the key space, each with a lock of its own; follows from `-t` and `-m`.",
        |shared, _| shared.engine.shard_count() as u64,
    ),
    counter(
        "lock_waits",
        Unit::Count,
        "Times that a batch of commands has waited for a shard that another thread had locked.",
        |shared, _| shared.engine.lock_waits(),
    ),
    gauge(
        "io_uring",
        Unit::Count,
        "Threads that send replies by io_uring: those of `-t` with `-o io_uring`, unless the kernel refuses it.",
        |shared, _| shared.gauges.io_uring.load(Relaxed) as u64,
    ),
    gauge("memory_limit", Unit::Bytes, "Bytes that items and index may take.", |shared, _| {
        shared.engine.memory().limit_bytes() as u64
    }),
    gauge(
        "memory_for_rules",
        Unit::Bytes,
        "Bytes of `-m` that leases, misses, fences and tags have; 0 without a rule file.",
        |shared, _| (shared.engine.limit_bytes() - shared.engine.memory().limit_bytes()) as u64,
    ),
    gauge(
        "memory_used",
        Unit::Bytes,
        "Bytes taken of `memory_limit`: index, segments, large values (those included that are no longer stored and still \
         have to be sent, and what is free in pages that they share) and the ghost queue.",
        |shared, _| shared.engine.memory().used_bytes() as u64,
    ),
    gauge("index_bytes", Unit::Bytes, "Bytes of `memory_used` that the index has.", |_, s| {
        s.base.usage.index_bytes
    }),
    gauge("segments", Unit::Count, "Segments that hold items.", |_, s| s.base.usage.segments),
    gauge("segment_bytes", Unit::Bytes, "Bytes of segments, those kept in reserve included.", |_, s| {
        s.base.usage.segment_bytes
    }),
    gauge(
        "segment_dead_bytes",
        Unit::Bytes,
        "Bytes of `segment_bytes` that are free and cannot be used until their segment is emptied: items that were replaced or removed, and \
         gaps; and segments in reserve.",
        |_, s| s.base.usage.dead_bytes,
    ),
    gauge("huge_bytes", Unit::Bytes, "Bytes of stored values too large for a segment.", |_, s| {
        s.base.usage.huge_bytes
    }),
    gauge(
        "huge_free_bytes",
        Unit::Bytes,
        "Bytes that are free in pages which the ends of such values share. Another one's end takes them; nothing else does.",
        |shared, _| shared.engine.memory().divided_free_bytes() as u64,
    ),
    gauge(
        "pinned_bytes",
        Unit::Bytes,
        "Bytes of values too large for a segment that are no longer stored and still have to be sent to clients.",
        |shared, _| shared.engine.memory().pinned_bytes() as u64,
    ),
    gauge(
        "memory_stranded",
        Unit::Bytes,
        "Free bytes of `memory_limit` that no segment can have, since they lie in pieces. 0 unless four times `-m` of addresses are \
         used up, or with `-k`.",
        |shared, _| shared.engine.stranded_bytes() as u64,
    ),
    gauge(
        "ghost_bytes",
        Unit::Bytes,
        "Bytes of the ghost queue, which remembers recently evicted keys, and of recent misses.",
        |_, s| s.base.usage.ghost_bytes,
    ),
    gauge(
        "items_small",
        Unit::Count,
        "Items in the small queue, where keys begin that were missed before.",
        |_, s| s.base.usage.queue_items[0],
    ),
    gauge(
        "items_blind",
        Unit::Count,
        "Items in the blind queue, where keys begin that were stored without a miss.",
        |_, s| s.base.usage.queue_items[2],
    ),
    gauge(
        "items_main",
        Unit::Count,
        "Items in the main queue, that of keys that were used again.",
        |_, s| s.base.usage.queue_items[1],
    ),
    counter("items_moved", Unit::Count, "Items moved because their segment was emptied.", |_, s| {
        s.base.store.moved
    }),
    counter(
        "collected_in_haste",
        Unit::Count,
        "Segments emptied by a write that found no room; 0 while upkeep runs ahead of writes.",
        |_, s| s.base.store.collected_in_haste,
    ),
    counter(
        "no_free_segment",
        Unit::Count,
        "Times that there was no segment to keep a used item in or to store an item; 0 unless memory is too small.",
        |_, s| s.base.store.no_free_segment,
    ),
    gauge(
        "partial_bytes",
        Unit::Bytes,
        "Bytes of input that connections keep: parts of commands, of any size, and commands that wait. What is giving way counts, so it is \
         above the limit for moments.",
        |shared, _| shared.uploads.bytes() as u64,
    ),
    counter(
        "uploads_refused",
        Unit::Count,
        "Uploads refused because they found no memory when they began or grew.",
        |shared, _| shared.uploads.refused(),
    ),
    counter(
        "uploads_displaced",
        Unit::Count,
        "Uploads that gave way to uploads of other clients.",
        |shared, _| shared.uploads.displaced(),
    ),
    counter(
        "uploads_closed",
        Unit::Count,
        "Connections closed without a reply because there was no memory for what they keep: commands that wait, a header of the binary protocol, \
         a part of a record of TLS. Each counts in `uploads_refused` or `uploads_displaced` as well.",
        |shared, _| shared.uploads.closed(),
    ),
    gauge(
        "announced_keys",
        Unit::Count,
        "Keys for which tags are announced (`@tags:KEY`), at most 65,536. Those that have ended go within a second.",
        |_, s| s.herd.announced as u64,
    ),
    counter(
        "auth_closed",
        Unit::Count,
        "Connections closed after five wrong logins, or after a login of `auth_unseen`.",
        |shared, _| shared.gauges.auth_closed.load(Relaxed),
    ),
    counter(
        "auth_unseen",
        Unit::Count,
        "Logins that were answered as wrong without a look at them, after 100 wrong ones of their client's address within a minute.",
        |shared, _| shared.gauges.auth_unseen.load(Relaxed),
    ),
    counter(
        "not_allowed",
        Unit::Count,
        "Requests that were refused since their user has not the right to make them, or since a key is outside of the user's prefix \
         (`[[user]]`).",
        |shared, _| shared.gauges.not_allowed.load(Relaxed),
    ),
    counter(
        "memory_refused",
        Unit::Count,
        "Connections closed or not accepted because the system has no memory for them.",
        |shared, _| shared.shortage.refused.load(Relaxed),
    ),
    counter(
        "dumps_stalled",
        Unit::Count,
        "Dumps ended, with their connection, because their reader took nothing for 5 seconds.",
        |shared, _| shared.dumps.stalled.load(Relaxed),
    ),
    gauge(
        "unsent_bytes",
        Unit::Bytes,
        "Bytes of replies that clients have not taken yet: what sockets did not take, encrypted pieces of it, replies behind \
         a held get and values copied for it, and `pinned_bytes`.",
        |shared, _| (shared.unsent.bytes() + shared.unsent_values()) as u64,
    ),
    counter(
        "unsent_paused",
        Unit::Count,
        "Times that a connection was not served because unsent replies were near their limit and its client had not taken \
         what was sent.",
        |shared, _| shared.unsent.paused(),
    ),
    counter(
        "unsent_stalled",
        Unit::Count,
        "Connections closed because unsent replies were near their limit and the client had taken nothing for 10 seconds.",
        |shared, _| shared.unsent.stalled(),
    ),
    counter(
        "unsent_displaced",
        Unit::Count,
        "Connections closed because unsent replies were above their limit, or `pinned_bytes` above a quarter of `-m`.",
        |shared, _| shared.unsent.displaced(),
    ),
    counter(
        "accept_errors",
        Unit::Count,
        "Times that the system had no descriptor or memory for a connection. The client got an error, as at the limit of \
         `-c`, and counts in `rejected_connections`, or it waited: that is tried again up to 20 times a second, and \
         counts in `listen_disabled_num` once.",
        |shared, _| shared.gauges.accept_errors.load(Relaxed),
    ),
    counter("log_lines_written", Unit::Count, "Lines of the log written.", |_, s| s.log.written),
    counter(
        "log_lines_dropped",
        Unit::Count,
        "Lines of the log dropped because standard error was closed, full or not read in time; the next line says how many.",
        |_, s| s.log.dropped,
    ),
    counter(
        "log_lines_limited",
        Unit::Count,
        "Lines of the log left out because there were more than ten of their kind in a second; a line says how many.",
        |_, s| s.log.limited,
    ),
    counter(
        "slow_noted",
        Unit::Count,
        "Computations, loads and calls of objects that were slow, since the start: `get @slow` has the last 128 (`--slow-log`, `--slow-calls`).",
        |shared, _| shared.engine.shared().slow().count(),
    ),
    counter(
        "clock",
        Unit::Clock,
        "The last number given out; each write, delete and flush takes one.",
        |shared, _| shared.engine.shared().clock(),
    ),
    gauge(
        "leases",
        Unit::Count,
        "Keys that are being computed or wait for a slot of `rule_computers`.",
        |_, s| s.herd.leases as u64,
    ),
    gauge(
        "held",
        Unit::Count,
        "Keys that held gets wait for; a get of several keys counts once for each.",
        |shared, _| shared.engine.held() as u64,
    ),
    gauge(
        "misses_outstanding",
        Unit::Count,
        "Keys with misses that have not been filled yet. A miss that is too old leaves within a second, in a very large table \
         within some seconds.",
        |_, s| s.herd.outstanding as u64,
    ),
    gauge(
        "misses_lost_slots",
        Unit::Count,
        "Places that stand for misses that found no room: if it is above 0, raise `ledger_memory`.",
        |_, s| s.herd.slots_in_loss as u64,
    ),
    gauge(
        "fence_slots",
        Unit::Count,
        "Places for the last delete, write and soft invalidation of keys.",
        |_, s| s.herd.fence_slots as u64,
    ),
    value(
        "fence_collisions",
        ValueKind::Counter,
        Unit::Count,
        "Fills that met another key's event in their place, at most: each may have been dropped for no reason. If it grows \
         with `fills_dropped`, raise `fence_memory`.",
        |_, s| Some(Value::Decimal(s.herd.fence_collisions, 1)),
    ),
    gauge(
        "peers",
        Unit::Count,
        "Clients by address, or by process on a Unix socket, that have a connection.",
        |shared, _| shared.engine.shared().peers().len() as u64,
    ),
    gauge(
        "peers_uncrossed",
        Unit::Count,
        "Clients of these with several connections that have stored 1,000 values or more under rules, each on the connection that was \
         answered the miss: for them `owner = \"connection\"` may be right.",
        |shared, _| shared.engine.shared().peers().keep_connections() as u64,
    ),
];

/// The first line of an error, as the value of a statistic.
fn first_line(error: Option<&str>) -> String {
    let line = error.and_then(|error| error.lines().next()).unwrap_or("none");
    let end = (0..=line.len().min(256)).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
    line[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_bounded_length() {
        assert_eq!(first_line(None), "none");
        assert_eq!(first_line(Some("rules.toml:4: a\nrules.toml:5: b")), "rules.toml:4: a");
        assert_eq!(first_line(Some(&"\u{fc}".repeat(200))).len(), 256);
        assert_eq!(first_line(Some(&format!("a{}", "\u{fc}".repeat(200)))).len(), 255);
    }
}
