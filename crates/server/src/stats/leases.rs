//! `stats leases`: a line for each key that is being computed.
//!
//! This is a list and not a group of figures: a key's fields are in one line, after the key, and no exporter
//! reads them.

use std::fmt::Write as _;

use cattlegrid_engine::Now;
use cattlegrid_herd::LeaseView;

use super::StatLines;
use super::definition::{StatRow, Unit, Value, ValueKind, gauge, text, value};
use crate::shared::Shared;

/// The longest list of leases, in bytes, which is memcached's longest dump.
const LEASES_BYTES: usize = 2 << 20;

/// The fields of a line, in their order.
pub(super) static FIELDS: &[StatRow<LeaseView>] = &[
    gauge("token", Unit::Clock, "The lease's token.", |_, lease| lease.token),
    text("kind", "The state of the key's value: absent, stale, or early (soon to expire).", |_, lease| {
        Some(Value::text(lease.kind.name()))
    }),
    text(
        "holder",
        "The connection that computes, by name if its client asked for the lease with a token; or the loader that does, \
         refresh if no client waits for its job; queued: it waits for a slot of `rule_computers`; put off: two jobs of the key \
         run already.",
        |shared, lease| {
            if lease.loader {
                return Some(Value::text(of_loader(shared, lease)));
            }
            let holder =
                lease.holder.map_or_else(|| "queued".to_owned(), |number| format!("connection {number}"));
            Some(Value::text(holder + if lease.explicit { " by name" } else { "" }))
        },
    ),
    gauge("age_ms", Unit::Milliseconds, "Time since the computation began.", |_, lease| lease.age_ms),
    value(
        "left_ms",
        ValueKind::Gauge,
        Unit::Milliseconds,
        "Time until the lease ends.",
        |_, lease: &LeaseView| (lease.loader || lease.holder.is_some()).then(|| lease.left_ms.into()),
    )
    .when("while a client or a loader computes"),
    gauge("waiters", Unit::Count, "Gets that wait for the key.", |_, lease| lease.waiters.into()),
    gauge("computers", Unit::Count, "Clients that compute the key.", |_, lease| lease.computers.into()),
];

/// The holder of a loader's lease.
fn of_loader(shared: &Shared, lease: &LeaseView) -> String {
    if !lease.job_out {
        return "loader put off".to_owned();
    }
    let job = shared.loaders.job_of(lease.token);
    job.map_or_else(
        // The job is ending at this moment.
        || "loader".to_owned(),
        |job| format!("loader {}{}", job.loader, if job.is_refresh { " refresh" } else { "" }),
    )
}

/// Writes the list; lines are formatted while no shard is locked.
pub(super) fn list(lines: &mut StatLines, shared: &Shared, now: Now) {
    each(shared, now, |key, fields| {
        if lines.0.len() > LEASES_BYTES {
            return false;
        }
        let _ok = write!(lines.0, "STAT {key}");
        for (name, value) in fields {
            let _ok = write!(lines.0, " {name}={value}");
        }
        lines.0.push_str("\r\n");
        true
    });
}

/// Calls `each` with each key, as it is shown, and its fields, until it returns false. No shard is locked
/// meanwhile.
pub(crate) fn each(shared: &Shared, now: Now, mut each: impl FnMut(&str, &[(&'static str, Value)]) -> bool) {
    shared.engine.each_lease(now.ms, |lease| {
        let fields: Vec<_> = FIELDS
            .iter()
            .filter_map(|field| Some((field.definition.name, field.read(shared, &lease)?)))
            .collect();
        // Keys are escaped, since a key sent as base64 may contain any byte.
        each(&crate::watch::escaped(&lease.key).to_string(), &fields)
    });
}
