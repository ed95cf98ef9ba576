//! `stats`: memcached's names in memcached's order, with this server's values.
//!
//! Statistics of slabs, the LRU crawler and other parts that do not exist here are 0 or an equivalent value.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cattlegrid_engine::{Counters, Counts, Now};
use cattlegrid_store::{StoreStats, StoreUsage};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::definition::{Export, StatRow, Unit, Value, ValueKind, counter, gauge, text, value, zero};
use crate::shared::Shared;

/// The source of most statistics.
pub(super) struct Snapshot {
    pub(super) now: Now,
    pub(super) counts: Counts,
    pub(super) usage: StoreUsage,
    pub(super) store: StoreStats,
}

/// The source of `stats`.
pub(super) struct GeneralStats {
    base: Snapshot,
    /// CPU time of the process in seconds: in user mode, and in the kernel.
    cpu: [f64; 2],
    /// Lines given to watchers, and lines for which there was no room.
    watcher_lines: (u64, u64),
}

impl Snapshot {
    pub(super) fn take(shared: &Shared, now: Now) -> Self {
        let (usage, store) = shared.engine.usage();
        Self { now, counts: shared.counts(), usage, store }
    }
}

impl GeneralStats {
    pub(super) fn take(shared: &Shared, now: Now) -> Self {
        Self {
            base: Snapshot::take(shared, now),
            cpu: cpu(),
            watcher_lines: shared.watchers.lines_sent_and_skipped(),
        }
    }
}

fn cpu() -> [f64; 2] {
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    let seconds = |time: TimeVal| {
        (Duration::from_secs(part(time.tv_sec())) + Duration::from_micros(part(time.tv_usec()))).as_secs_f64()
    };
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or([0.0; 2], |usage| [seconds(usage.user_time()), seconds(usage.system_time())])
}

impl AsRef<Counts> for Snapshot {
    fn as_ref(&self) -> &Counts {
        &self.counts
    }
}

impl AsRef<Counts> for GeneralStats {
    fn as_ref(&self) -> &Counts {
        &self.base.counts
    }
}

/// The row of a counter of [`Counters`]; its unit is given if it is not the thing that the help counts.
macro_rules! counted {
    ($name:ident) => {
        $crate::stats::general::counted!($name, Count)
    };
    ($name:ident, $unit:ident) => {
        $crate::stats::definition::counter(
            stringify!($name),
            $crate::stats::definition::Unit::$unit,
            $crate::stats::general::help(stringify!($name)),
            |_, source| AsRef::<Counts>::as_ref(source).$name,
        )
    };
}
pub(super) use counted;

/// The description of a counter of [`Counters`].
pub(super) const fn help(name: &str) -> &'static str {
    let mut at = 0;
    loop {
        let (other, help) = Counters::HELP[at];
        if is_same(other.as_bytes(), name.as_bytes()) {
            return help;
        }
        at += 1;
    }
}

/// `==` for constants, where the operator cannot be used.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

const NO_SLABS: &str = "Always 0: there are no slabs to move.";
const NO_LRU: &str = "Always 0: there is no LRU list.";
const NO_CRAWLER: &str = "Always 0: there is no LRU crawler that reclaims items.";
const NO_POOL: &str = "Always 0: replies have no objects of their own.";

const WITH_TLS: &str = "with `-Z`";

/// A line of memcached's LRU crawler, which is missing where the crawler is switched off, as in memcached.
/// [`maintainer`] and [`mover`] do the same for the LRU maintainer and the mover of slabs.
pub(super) const fn crawler<S>(row: StatRow<S>) -> StatRow<S> {
    row.only(|shared| is_tuned_on(shared, "lru_crawler"), "without `-o no_lru_crawler`")
}

/// See [`crawler`].
pub(super) const fn maintainer<S>(row: StatRow<S>) -> StatRow<S> {
    row.only(|shared| is_tuned_on(shared, "lru_maintainer_thread"), "without `-o no_lru_maintainer`")
}

const fn mover<S>(row: StatRow<S>) -> StatRow<S> {
    row.only(|shared| is_tuned_on(shared, "slab_reassign"), "without `-o no_slab_reassign`")
}

/// Whether a setting that only statistics show is on.
fn is_tuned_on(shared: &Shared, name: &str) -> bool {
    shared.settings.tuning.get(name).is_none_or(|value| value != "no")
}

/// The rows in memcached's order.
pub(super) static ROWS: &[StatRow<GeneralStats>] = &[
    gauge("pid", Unit::Count, "Process id of the server.", |_, _| std::process::id().into()),
    gauge("uptime", Unit::Seconds, "Seconds since the server started.", |_, s| {
        s.base.now.second.saturating_sub(2).into()
    }),
    value("time", ValueKind::Gauge, Unit::UnixSeconds, "The server's time of day.", |_, s| {
        let now = s.base.now;
        Some(u64::try_from(now.unix(now.second)).unwrap_or(0).into())
    }),
    text(
        "version",
        "The version of memcached that it behaves as: 1.6.45. Its own is in `stats cattlegrid`.",
        |_, _| Some(Value::text(super::VERSION)),
    ),
    text("libevent", "Always none: the server does not use libevent.", |_, _| Some(Value::text("none")))
        .export(Export::Nothing),
    gauge("pointer_size", Unit::Bits, "Bits of a pointer.", |_, _| usize::BITS.into()),
    value(
        "rusage_user",
        ValueKind::Counter,
        Unit::Seconds,
        "CPU time of the process in its own code.",
        |_, s| Some(Value::Decimal(s.cpu[0], 6)),
    ),
    value(
        "rusage_system",
        ValueKind::Counter,
        Unit::Seconds,
        "CPU time of the system on behalf of the process.",
        |_, s| Some(Value::Decimal(s.cpu[1], 6)),
    ),
    gauge("max_connections", Unit::Count, "Connections that may be open at once (`-c`).", |shared, _| {
        shared.settings.connections_max as u64
    }),
    gauge("curr_connections", Unit::Count, "Connections that are open.", |shared, _| {
        shared.gauges.current.load(Relaxed) as u64
    }),
    counter("total_connections", Unit::Count, "Connections accepted.", |shared, _| {
        shared.gauges.total.load(Relaxed)
    })
    .export(Export::As("connections")),
    counter(
        "rejected_connections",
        Unit::Count,
        "Connections refused at the limit of `-c`, or for want of a descriptor.",
        |shared, _| shared.gauges.rejected.load(Relaxed),
    )
    .only(|shared| shared.settings.connections_max_fast, "without `-o no_maxconns_fast`"),
    gauge(
        "connection_structures",
        Unit::Count,
        "The most connections that have been open at once.",
        |shared, _| shared.gauges.most.load(Relaxed) as u64,
    ),
    zero("response_obj_oom", ValueKind::Counter, Unit::Count, NO_POOL),
    zero("response_obj_count", ValueKind::Gauge, Unit::Count, NO_POOL),
    zero("response_obj_bytes", ValueKind::Gauge, Unit::Bytes, NO_POOL),
    gauge("read_buf_count", Unit::Count, "Receive buffers, one for each thread.", |shared, _| {
        shared.settings.threads as u64
    })
    .export(Export::As("read_buffers")),
    gauge(
        "read_buf_bytes",
        Unit::Bytes,
        "Bytes of the receive buffers, and of what has arrived of uploads.",
        |shared, _| (shared.settings.threads * shared.caps.receive_bytes + shared.uploads.bytes()) as u64,
    ),
    zero("read_buf_bytes_free", ValueKind::Gauge, Unit::Bytes, "Always 0: no receive buffer is kept unused."),
    counter(
        "read_buf_oom",
        Unit::Count,
        "Lines of `get` for which there was no memory; their connections were closed.",
        |shared, _| shared.uploads.lines_refused(),
    ),
    gauge("reserved_fds", Unit::Count, "Descriptors that are not for connections.", |shared, _| {
        (shared.settings.threads * 2 + 8) as u64
    }),
    counter(
        "cmd_get",
        Unit::Count,
        "Keys asked for by `get`, `gets` and `mg`, and by gets of the binary protocol, except by a command that touches: see \
         `cmd_touch`. Each ends in `get_hits` or `get_misses`, a held one when it is answered; only keys answered `SERVER_ERROR \
         busy`, and those of connections that were reset while they were held, end in neither.",
        |_, s| s.base.counts.cmd_get.saturating_sub(s.base.counts.get_touches),
    ),
    counted!(cmd_set),
    counted!(cmd_flush),
    counted!(cmd_touch),
    counted!(cmd_meta),
    counted!(get_hits),
    counted!(get_misses),
    counted!(get_expired),
    counted!(get_flushed),
    counted!(delete_misses),
    counted!(delete_hits),
    counted!(incr_misses),
    counted!(incr_hits),
    counted!(decr_misses),
    counted!(decr_hits),
    counted!(cas_misses),
    counted!(cas_hits),
    counted!(cas_badval),
    counted!(touch_hits),
    counted!(touch_misses),
    counted!(store_too_large),
    counted!(store_no_memory),
    counted!(auth_cmds),
    counted!(auth_errors),
    counted!(bytes_read, Bytes),
    counted!(bytes_written, Bytes),
    gauge(
        "limit_maxbytes",
        Unit::Bytes,
        "The memory limit for items, index and rules: `-m`, or what `cache_memlimit` has set.",
        |shared, _| shared.engine.limit_bytes() as u64,
    )
    .export(Export::As("limit")),
    gauge("accepting_conns", Unit::Flag, "1 while new connections are accepted.", |shared, _| {
        shared.gauges.accepting.load(Relaxed).into()
    }),
    counter(
        "listen_disabled_num",
        Unit::Count,
        "Times that new connections were left waiting: for want of a descriptor, or by `-o no_maxconns_fast` at the limit of \
         `-c`.",
        |shared, _| shared.gauges.listen_disabled.load(Relaxed),
    ),
    counter(
        "time_in_listen_disabled_us",
        Unit::Microseconds,
        "Time for which new connections were left waiting.",
        |shared, _| shared.gauges.listen_disabled_micros.load(Relaxed),
    ),
    gauge("threads", Unit::Count, "Threads that serve connections (`-t`).", |shared, _| {
        shared.settings.threads as u64
    }),
    counted!(conn_yields),
    gauge("hash_power_level", Unit::Bits, "Bits of the size of the index: the largest shard's.", |_, s| {
        s.base.usage.hash_power.into()
    }),
    gauge("hash_bytes", Unit::Bytes, "Bytes of the index.", |_, s| s.base.usage.index_bytes),
    zero(
        "hash_is_expanding",
        ValueKind::Gauge,
        Unit::Flag,
        "Always 0: the index grows by one bucket at a time.",
    ),
    mover(zero("slab_reassign_rescues", ValueKind::Counter, Unit::Count, NO_SLABS)),
    mover(zero("slab_reassign_chunk_rescues", ValueKind::Counter, Unit::Count, NO_SLABS)),
    mover(zero("slab_reassign_inline_reclaim", ValueKind::Counter, Unit::Count, NO_SLABS)),
    mover(zero("slab_reassign_busy_items", ValueKind::Counter, Unit::Count, NO_SLABS)),
    mover(zero("slab_reassign_busy_deletes", ValueKind::Counter, Unit::Count, NO_SLABS)),
    mover(zero("slab_reassign_busy_nomem", ValueKind::Counter, Unit::Count, NO_SLABS)),
    mover(text("slab_reassign_last_busy_status", "Always none: there are no slabs to move.", |_, _| {
        Some(Value::text("none"))
    }))
    .export(Export::Nothing),
    mover(zero("slab_reassign_running", ValueKind::Gauge, Unit::Flag, NO_SLABS)),
    mover(zero("slabs_moved", ValueKind::Counter, Unit::Count, NO_SLABS)),
    crawler(gauge(
        "lru_crawler_running",
        Unit::Flag,
        "1 while there is a dump (`lru_crawler metadump`).",
        |shared, _| shared.dumps.is_running().into(),
    )),
    crawler(counter("lru_crawler_starts", Unit::Count, "Dumps begun.", |shared, _| shared.dumps.started())),
    maintainer(zero("lru_maintainer_juggles", ValueKind::Counter, Unit::Count, NO_LRU)),
    zero(
        "malloc_fails",
        ValueKind::Counter,
        Unit::Count,
        "Always 0: see `memory_refused` of `stats cattlegrid`.",
    ),
    counted!(log_worker_dropped),
    counted!(log_worker_written),
    counter(
        "log_watcher_skipped",
        Unit::Count,
        "Lines for which a watcher's buffer had no room (`-o watcher_logbuf_size`); the watcher is told how many.",
        |_, s| s.watcher_lines.1,
    ),
    counter(
        "log_watcher_sent",
        Unit::Count,
        "Lines given to watchers, each counted once for each watcher.",
        |_, s| s.watcher_lines.0,
    ),
    gauge("log_watchers", Unit::Count, "Connections that watch, 20 at most.", |shared, _| {
        shared.watchers.count() as u64
    }),
    zero("unexpected_napi_ids", ValueKind::Counter, Unit::Count, "Always 0: NAPI ids are not used."),
    zero("round_robin_fallback", ValueKind::Counter, Unit::Count, "Always 0: NAPI ids are not used."),
    gauge(
        "bytes",
        Unit::Bytes,
        "Bytes of items in segments, padding included, and of large values.",
        |_, s: &GeneralStats| s.base.usage.bytes,
    )
    .export(Export::As("items")),
    gauge(
        "curr_items",
        Unit::Count,
        "Items stored, including items that have died and have not been removed yet.",
        |_, s| s.base.usage.items,
    ),
    counter("total_items", Unit::Count, "Items stored since the start.", |_, s: &GeneralStats| {
        s.base.store.total
    })
    .export(Export::As("items_stored")),
    zero("slab_global_page_pool", ValueKind::Gauge, Unit::Count, NO_SLABS),
    counter(
        "expired_unfetched",
        Unit::Count,
        "Dead items removed when their segment was emptied that were never read.",
        |_, s| s.base.store.expired_unfetched,
    ),
    counter("evicted_unfetched", Unit::Count, "Items evicted that were never read.", |_, s| {
        s.base.store.evicted_unfetched
    }),
    maintainer(zero("evicted_active", ValueKind::Counter, Unit::Count, NO_LRU)),
    counter("evictions", Unit::Count, "Live items dropped to make room.", |_, s| s.base.store.evictions),
    counter(
        "reclaimed",
        Unit::Count,
        "Dead items removed, by a look-up or when their segment was emptied.",
        |_, s| s.base.store.reclaimed,
    ),
    zero("crawler_reclaimed", ValueKind::Counter, Unit::Count, NO_CRAWLER),
    zero("crawler_items_checked", ValueKind::Counter, Unit::Count, NO_CRAWLER),
    zero("lrutail_reflocked", ValueKind::Counter, Unit::Count, NO_LRU),
    maintainer(zero("moves_to_cold", ValueKind::Counter, Unit::Count, NO_LRU)),
    maintainer(zero("moves_to_warm", ValueKind::Counter, Unit::Count, NO_LRU)),
    maintainer(zero("moves_within_lru", ValueKind::Counter, Unit::Count, NO_LRU)),
    maintainer(zero("direct_reclaims", ValueKind::Counter, Unit::Count, NO_LRU)),
    maintainer(zero("lru_bumps_dropped", ValueKind::Counter, Unit::Count, NO_LRU)),
    value(
        "idle_kicks",
        ValueKind::Counter,
        Unit::Count,
        "Connections closed because they were idle for too long.",
        |shared, _: &GeneralStats| {
            shared.settings.idle_timeout?;
            Some(shared.gauges.idle_kicks.load(Relaxed).into())
        },
    )
    .when("with `-o idle_timeout`"),
    value(
        "ssl_handshake_errors",
        ValueKind::Counter,
        Unit::Count,
        help("ssl_handshake_errors"),
        |shared, s: &GeneralStats| shared.tls.as_ref().map(|_| s.base.counts.ssl_handshake_errors.into()),
    )
    .when(WITH_TLS),
    value(
        "ssl_proto_errors",
        ValueKind::Counter,
        Unit::Count,
        help("ssl_proto_errors"),
        |shared, s: &GeneralStats| shared.tls.as_ref().map(|_| s.base.counts.ssl_proto_errors.into()),
    )
    .when(WITH_TLS),
    value(
        "time_since_server_cert_refresh",
        ValueKind::Gauge,
        Unit::Seconds,
        "Seconds since certificates and key were read.",
        |shared, s: &GeneralStats| {
            let read = shared.gauges.certificates_read.load(Relaxed);
            shared.tls.as_ref().map(|_| u64::from(s.base.now.second.saturating_sub(read)).into())
        },
    )
    .when(WITH_TLS),
];
