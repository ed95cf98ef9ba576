//! `stats shares`: the memory of the keys of each `[[share]]`, and of all other keys.

use cattlegrid_store::{ShareBounds, ShareUsage};

use super::definition::{Sink, StatRow, Unit, Value, ValueKind, counter, gauge, put_all, text, value};
use crate::shared::Shared;

/// The source of a share's lines.
pub(super) struct ShareStats {
    /// None for all other keys.
    bounds: Option<ShareBounds>,
    usage: ShareUsage,
    kept: f64,
}

/// The lines of each share in the order of the file, numbered from 1, then of all other keys as number 0;
/// none without shares.
pub(super) fn collect(shared: &Shared, sink: &mut dyn Sink) {
    let bounds = shared.engine.memory().share_bounds();
    if bounds.is_empty() {
        return;
    }
    let usage = shared.engine.share_usage(bounds.len());
    let kept = shared.engine.memory().kept_of_least();
    let (others, own) =
        usage.split_first().map_or((ShareUsage::default(), &[][..]), |(others, own)| (*others, own));
    let each = bounds.into_iter().zip(own).map(|(bounds, usage)| (Some(bounds), *usage));
    for (number, (bounds, usage)) in (1..).zip(each) {
        let number: u32 = number;
        put_all(ROWS, &[&number], shared, &ShareStats { bounds, usage, kept }, sink);
    }
    put_all(ROWS, &[&0], shared, &ShareStats { bounds: None, usage: others, kept }, sink);
}

const fn of_share(row: StatRow<ShareStats>) -> StatRow<ShareStats> {
    row.labelled("{share}:", &["share"])
}

pub(super) static ROWS: &[StatRow<ShareStats>] = &[
    of_share(text("prefix", "With which its keys begin.", |_, one| {
        let prefix = &one.bounds.as_ref()?.prefix;
        Some(Value::text(String::from_utf8_lossy(prefix).into_owned()))
    }))
    .when("of a share of the rule file"),
    of_share(gauge("items", Unit::Count, "Items.", |_, one| one.usage.items)),
    of_share(gauge(
        "bytes",
        Unit::Bytes,
        "Bytes of its items with header and key, and of its large values and objects. Dead items that were not yet removed are among \
         them, the index is not.",
        |_, one| one.usage.bytes,
    )),
    of_share(value(
        "at_least_bytes",
        ValueKind::Gauge,
        Unit::Bytes,
        "Its items are not evicted for others while they have no more.",
        |_, one| Some((one.bounds.as_ref()?.least as u64).into()),
    ))
    .when("of a share of the rule file"),
    of_share(value(
        "kept",
        ValueKind::Gauge,
        Unit::Share,
        "The part of that which is kept now: below 1, all shares together have at least more than there is room for, beside pinned objects or \
         where items are tiny. Each keeps the same part then, and a tenth of the room is left to all keys. The log says it once.",
        |_, one| one.bounds.as_ref().map(|_| Value::Decimal(one.kept, 3)),
    ))
    .when("of a share of the rule file"),
    of_share(value(
        "at_most_bytes",
        ValueKind::Gauge,
        Unit::Bytes,
        "A write beyond this evicts others of the share.",
        |_, one| Some((one.bounds.as_ref()?.most as u64).into()),
    ))
    .when("of a share of the rule file"),
    of_share(counter("evictions", Unit::Count, "Items that were evicted.", |_, one| one.usage.evictions)),
];
