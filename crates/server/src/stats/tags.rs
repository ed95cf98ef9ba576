//! `stats tags`: bumps, the arrays that hold their numbers, and floors.

use cattlegrid_engine::{Now, RollingFloor, TagStats};

use super::definition::{Sink, StatRow, Unit, Value, ValueKind, counter, gauge, put_all, value};
use crate::shared::Shared;

/// The source of `stats tags`.
pub(super) struct AllTags {
    stats: TagStats,
    gradual: u64,
    now_ms: u64,
}

/// The source of the lines of a rolling flush.
pub(super) struct RollingFlush {
    floor: RollingFloor,
    now_ms: u64,
}

/// Waits for a bump in progress; no shard is locked.
pub(super) fn collect(shared: &Shared, now: Now, sink: &mut dyn Sink) {
    let tags = shared.engine.shared().tags();
    let (stats, gradual) = (tags.stats(), tags.purges_running(now.ms) as u64);
    let all = AllTags { stats, gradual, now_ms: now.ms };
    put_all(BEFORE_ROLLING, &[], shared, &all, sink);
    for (place, floor) in (1..).zip(all.stats.rolling.iter().flatten()) {
        let place: u32 = place;
        put_all(ROLLING, &[&place], shared, &RollingFlush { floor: *floor, now_ms: now.ms }, sink);
    }
    put_all(BEHIND_ROLLING, &[], shared, &all, sink);
}

/// The rows before those of rolling flushes.
pub(super) static BEFORE_ROLLING: &[StatRow<AllTags>] = &[
    counter("hard_bumps", Unit::Count, "Hard invalidations by tag.", |_, all| {
        all.stats.hard_bumps
    }),
    counter("soft_bumps", Unit::Count, "Soft invalidations by tag.", |_, all| {
        all.stats.soft_bumps
    }),
    counter(
        "self_bumped",
        Unit::Count,
        "Changes of an item that set off a cascade which invalidated a tag of the item itself. The item stayed; the rules \
         are probably not meant this way.",
        |_, all| all.stats.self_bumped,
    ),
    gauge("gradual", Unit::Count, "Gradual purges of tags that are running: their periods are not over.", |_, all| {
        all.gradual
    }),
    counter("gradual_purges", Unit::Count, "Gradual purges of tags that were begun.", |_, all| {
        all.stats.gradual_purges
    }),
    counter(
        "gradual_at_once",
        Unit::Count,
        "Gradual purges that took effect at once, as soft invalidations, because 64 others were running.",
        |_, all| all.stats.gradual_at_once,
    ),
    gauge("last_bump", Unit::Clock, "The number of the last invalidation by tag; 0 before the first.", |_, all| {
        all.stats.last_bump
    }),
    gauge("memory_bytes", Unit::Bytes, "Bytes of the arrays that remember bumps.", |_, all| {
        all.stats.memory_bytes as u64
    }),
    gauge("slots", Unit::Count, "Places of each of their two rows.", |_, all| all.stats.slots_per_row as u64),
    gauge("hard_slots_used", Unit::Count, "Places that hard bumps have used, in the fuller row.", |_, all| {
        all.stats.hard_slots_used
    }),
    gauge("soft_slots_used", Unit::Count, "Places that soft bumps have used, in the fuller row.", |_, all| {
        all.stats.soft_slots_used
    }),
    value(
        "false_stale",
        ValueKind::Gauge,
        Unit::Share,
        "Share of tags that look invalidated although they were not: a running mean over some of the looks at tagged items \
         that are older than the last invalidation: one in 4,096, and one in 16 at the start and when many tags have been \
         invalidated since. Above 0.05 the log says it once: raise `tag_memory`.",
        |_, all: &AllTags| all.stats.false_stale.map(|share| Value::Decimal(share, 6)),
    )
    .when("once 64 looks have been sampled, about 1,000 looks: fewer say little"),
    counter(
        "left_out",
        Unit::Count,
        "Invalidations by logs that are followed of tags which no item and no open miss had: they are not recorded.",
        |_, all| all.stats.left_out,
    ),
    value(
        "noted_share",
        ValueKind::Gauge,
        Unit::Share,
        "How full the notes are of which tags items and open misses have. Above 0.5 many invalidations are recorded without need: raise \
         `tag_memory`.",
        |_, all: &AllTags| all.stats.noted_share.map(|share| Value::Decimal(share, 6)),
    )
    .when("while invalidations may be left out: a log is followed, and the longest `fill_window` has passed since the rules were read"),
    gauge(
        "hard_floor",
        Unit::Clock,
        "Items that count as of a smaller number are gone: the number of the last `flush_all`.",
        |_, all| all.stats.hard_floor,
    ),
];

const fn of_rolling(row: StatRow<RollingFlush>) -> StatRow<RollingFlush> {
    row.labelled("rolling_{place}:", &["place"]).when("while a flush is phased in; the oldest has place 1")
}

/// The rows of a rolling flush.
pub(super) static ROLLING: &[StatRow<RollingFlush>] = &[
    of_rolling(gauge(
        "number",
        Unit::Clock,
        "The number of the flush: items that count as of a smaller one go.",
        |_, one| one.floor.number,
    )),
    of_rolling(gauge("seconds", Unit::Seconds, "The period over which the flush is spread.", |_, one| {
        one.floor.period_ms / 1000
    })),
    of_rolling(value(
        "served",
        ValueKind::Gauge,
        Unit::Share,
        "Share of the old items that are still served.",
        |_, one| Some(Value::Decimal(one.floor.share_served(one.now_ms), 4)),
    )),
];

/// The rows after those of rolling flushes.
pub(super) static BEHIND_ROLLING: &[StatRow<AllTags>] = &[value(
    "flush_in",
    ValueKind::Gauge,
    Unit::Seconds,
    "Seconds until a delayed `flush_all`.",
    |_, all: &AllTags| {
        let at_ms = all.stats.pending_flush_ms?;
        Some(at_ms.saturating_sub(all.now_ms).div_ceil(1000).into())
    },
)
.when("while there is one")];
