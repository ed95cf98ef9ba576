//! `stats items` and `stats slabs`: all items in one class, number 1.

use cattlegrid_engine::{Counts, Now};

use super::definition::{Definition, Export, Sink, StatRow, Unit, ValueKind, counter, gauge, put_all, zero};
use super::general::{Snapshot, counted, help, maintainer};
use crate::shared::Shared;

/// The source of `stats items`.
pub(super) struct Items {
    base: Snapshot,
    /// The second of the last use of the item that has been unused longest.
    oldest: u32,
}

/// The number of the only class.
const CLASS: u32 = 1;

const NO_LRU: &str = "Always 0: there is no LRU list.";
const NO_CRAWLER: &str = "Always 0: there is no LRU crawler that reclaims items.";

/// The lines of `stats items`; none if there are no items.
pub(super) fn collect_items(shared: &Shared, now: Now, sink: &mut dyn Sink) {
    let base = Snapshot::take(shared, now);
    if base.usage.items > 0 {
        let oldest = shared.engine.oldest_use().unwrap_or(now.second);
        put_all(ITEMS, &[&CLASS], shared, &Items { base, oldest }, sink);
    }
}

/// The lines of `stats slabs`; none of the class if there are no segments.
pub(super) fn collect_slabs(shared: &Shared, now: Now, sink: &mut dyn Sink) {
    let base = Snapshot::take(shared, now);
    if base.usage.segments > 0 {
        put_all(SLABS, &[&CLASS], shared, &base, sink);
    }
    put_all(ALL_SLABS, &[], shared, &base, sink);
}

const fn item<S>(row: StatRow<S>) -> StatRow<S> {
    row.labelled("items:{class}:", &["class"])
}

/// A row that exists only with memcached's LRU maintainer: without it there is one queue.
const fn queue(row: StatRow<Items>) -> StatRow<Items> {
    maintainer(item(row))
}

const fn no_lru(name: &'static str) -> StatRow<Items> {
    queue(zero(name, ValueKind::Counter, Unit::Count, NO_LRU))
}

/// The rows in memcached's order.
pub(super) static ITEMS: &[StatRow<Items>] = &[
    item(gauge("number", Unit::Count, "Items stored.", |_, s| s.base.usage.items)),
    queue(zero("number_hot", ValueKind::Gauge, Unit::Count, NO_LRU)),
    queue(gauge(
        "number_warm",
        Unit::Count,
        "Items in the main queue, that of keys that were used again.",
        |_, s| s.base.usage.queue_items[1],
    )),
    queue(gauge(
        "number_cold",
        Unit::Count,
        "Items in the small and the blind queue, where keys begin.",
        |_, s| s.base.usage.queue_items[0] + s.base.usage.queue_items[2],
    )),
    queue(zero("age_hot", ValueKind::Gauge, Unit::Seconds, NO_LRU)),
    queue(zero("age_warm", ValueKind::Gauge, Unit::Seconds, NO_LRU)),
    item(gauge(
        "age",
        Unit::Seconds,
        "Seconds that an item in the oldest segment has been unused. Updated each second, from the first 32 KiB of the \
         oldest segment of each shard.",
        |_, s| s.base.now.second.saturating_sub(s.oldest).into(),
    )),
    item(gauge(
        "mem_requested",
        Unit::Bytes,
        "Bytes of items in segments, padding included, and of large values.",
        |_, s| s.base.usage.bytes,
    )),
    item(counter("evicted", Unit::Count, "Live items dropped to make room.", |_, s| s.base.store.evictions)),
    item(counter("evicted_nonzero", Unit::Count, "Items evicted that had a time to live.", |_, s| {
        s.base.store.evicted_nonzero
    })),
    item(gauge(
        "evicted_time",
        Unit::Seconds,
        "Seconds for which the item that was evicted last had not been used; 0 before the first eviction. Of shards that have evicted in \
         the same second it is the mean. If it is short, the cache is too small for what is used, unless `evicted_unfetched` grows as fast as \
         `evicted`: keys that are not read again leave early, and make room for the others, which `age` tells about.",
        |_, s| s.base.store.last_evicted.idle_seconds(),
    )),
    item(counter("outofmemory", Unit::Count, help("store_no_memory"), |_, s| s.base.counts.store_no_memory)),
    item(zero("tailrepairs", ValueKind::Counter, Unit::Count, NO_LRU)),
    item(counter(
        "reclaimed",
        Unit::Count,
        "Dead items removed, by a look-up or when their segment was emptied.",
        |_, s| s.base.store.reclaimed,
    )),
    item(counter(
        "expired_unfetched",
        Unit::Count,
        "Dead items removed when their segment was emptied that were never read.",
        |_, s| s.base.store.expired_unfetched,
    )),
    item(counter("evicted_unfetched", Unit::Count, "Items evicted that were never read.", |_, s| {
        s.base.store.evicted_unfetched
    })),
    no_lru("evicted_active"),
    item(zero("crawler_reclaimed", ValueKind::Counter, Unit::Count, NO_CRAWLER)),
    item(zero("crawler_items_checked", ValueKind::Counter, Unit::Count, NO_CRAWLER)),
    item(zero("lrutail_reflocked", ValueKind::Counter, Unit::Count, NO_LRU)),
    no_lru("moves_to_cold"),
    queue(counter("moves_to_warm", Unit::Count, "Items moved because their segment was emptied.", |_, s| {
        s.base.store.moved
    })),
    no_lru("moves_within_lru"),
    no_lru("direct_reclaims"),
    no_lru("hits_to_hot"),
    no_lru("hits_to_warm"),
    queue(counter("hits_to_cold", Unit::Count, help("get_hits"), |_, s| s.base.counts.get_hits))
        .export(Export::Nothing),
    no_lru("hits_to_temp"),
];

const fn slab(row: StatRow<Snapshot>) -> StatRow<Snapshot> {
    row.labelled("{class}:", &["class"])
}

/// The size of a memcached page in bytes, by which dashboards multiply `total_pages`.
const PAGE_BYTES: u64 = 1 << 20;

/// The rows of the only class: its pages have memcached's size, and its chunks are the items in them.
pub(super) static SLABS: &[StatRow<Snapshot>] = &[
    slab(gauge("chunk_size", Unit::Bytes, "Mean bytes of an item.", |_, s| chunk(s))),
    slab(gauge("chunks_per_page", Unit::Count, "Items of that size that a MiB has room for.", |_, s| {
        PAGE_BYTES.checked_div(chunk(s)).unwrap_or(0)
    })),
    slab(gauge(
        "total_pages",
        Unit::Count,
        "Memory of items, in MiB, rounded up: segments, large values and objects.",
        |_, s| (s.usage.segment_bytes + s.usage.huge_bytes + s.usage.tree_bytes).div_ceil(PAGE_BYTES),
    )),
    slab(gauge("total_chunks", Unit::Count, "Items stored.", |_, s| s.usage.items)),
    slab(gauge("used_chunks", Unit::Count, "Items stored.", |_, s| s.usage.items)),
    slab(zero("free_chunks", ValueKind::Gauge, Unit::Count, "Always 0: there are no chunks.")),
    slab(zero("free_chunks_end", ValueKind::Gauge, Unit::Count, "Always 0: there are no chunks.")),
    slab(counted!(get_hits)),
    slab(counted!(cmd_set)),
    slab(counted!(delete_hits)),
    slab(counted!(incr_hits)),
    slab(counted!(decr_hits)),
    slab(counted!(cas_hits)),
    slab(counted!(cas_badval)),
    slab(counted!(touch_hits)),
];

/// The rows of all classes together.
pub(super) static ALL_SLABS: &[StatRow<Snapshot>] = &[
    gauge("active_slabs", Unit::Count, "Classes that hold items: 1, or 0 before the first.", |_, s| {
        (s.usage.segments > 0).into()
    }),
    gauge(
        "total_malloced",
        Unit::Bytes,
        "Bytes taken of the memory limit: index, segments, large values and the ghost queue.",
        |shared, _| shared.engine.memory().used_bytes() as u64,
    ),
];

/// The mean size of an item in bytes; 0 without items.
fn chunk(s: &Snapshot) -> u64 {
    s.usage.bytes.checked_div(s.usage.items).unwrap_or(0)
}

/// The line of `stats sizes` without `-o track_sizes`; with it, a [dump](crate::dump) answers.
pub(super) static SIZES: Definition = {
    let definition = Definition::new("sizes_status", ValueKind::Text, Unit::None, "Always disabled.");
    Definition { when: "without `-o track_sizes`", ..definition }
};
