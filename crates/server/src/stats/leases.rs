//! `stats leases`: a line for each key that is being computed.
//!
//! A list, not figures: a key's fields stand in one line, behind the key, and no exporter reads them.

use std::fmt::Write as _;

use cattlegrid_engine::Now;
use cattlegrid_herd::LeaseView;

use super::Lines;
use super::definition::{Kind, Row, Unit, Value, gauge, text, value};
use crate::state::Shared;

/// Longest list of leases, in bytes, as memcached's longest dump.
const LEASES_BYTES: usize = 2 << 20;

/// The fields of a line, in their order.
pub(super) static FIELDS: &[Row<LeaseView>] = &[
    gauge("token", Unit::Clock, "The lease's token.", |_, lease| lease.token),
    text("kind", "The state of the key's value: absent, stale, or early (soon to expire).", |_, lease| {
        Some(Value::text(lease.kind.name()))
    }),
    text(
        "holder",
        "The connection that computes, by name if its client asked for the lease with a token; queued: it waits for a slot of \
         `rule_computers`.",
        |_, lease| {
            let holder =
                lease.holder.map_or_else(|| "queued".to_owned(), |number| format!("connection {number}"));
            Some(Value::text(holder + if lease.explicit { " by name" } else { "" }))
        },
    ),
    gauge("age_ms", Unit::Milliseconds, "Time since the computation began.", |_, lease| lease.age_ms),
    value(
        "left_ms",
        Kind::Gauge,
        Unit::Milliseconds,
        "Time until the lease ends.",
        |_, lease: &LeaseView| lease.holder.map(|_| lease.left_ms.into()),
    )
    .when("while a client computes"),
    gauge("waiters", Unit::Count, "Gets that wait for the key.", |_, lease| lease.waiters.into()),
    gauge("computers", Unit::Count, "Clients that compute the key.", |_, lease| lease.computers.into()),
];

/// Writes the list. Lines are made while no shard is locked.
pub(super) fn list(lines: &mut Lines, shared: &Shared, now: Now) {
    shared.engine.each_lease(now.ms, |lease| {
        if lines.0.len() > LEASES_BYTES {
            return false;
        }
        // A key sent as base64 may hold anything.
        let _ok = write!(lines.0, "STAT {}", crate::watch::Escaped(&lease.key));
        for field in FIELDS {
            if let Some(value) = field.read(shared, &lease) {
                let _ok = write!(lines.0, " {}={value}", field.definition.name);
            }
        }
        lines.0.push_str("\r\n");
        true
    });
}
