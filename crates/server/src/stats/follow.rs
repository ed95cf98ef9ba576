//! `stats follow`: for each followed log its progress, and what keeps it from being up to date.

use std::fmt::Display;

use cattlegrid_config::FollowSettings;
use cattlegrid_engine::{LogState, Now};

use super::definition::{Sink, StatRow, Unit, Value, ValueKind, counter, gauge, put_all, text, value};
use crate::followed::LogView;
use crate::shared::Shared;

/// The source of a log's lines.
pub(super) struct FollowStats {
    settings: FollowSettings,
    view: LogView,
    state: LogState,
    now_ms: u64,
}

/// The lines of each log, in the order of the rule file.
pub(super) fn collect(shared: &Shared, now: Now, sink: &mut dyn Sink) {
    let states = shared.engine.shared().log_states(now.ms);
    for (settings, view) in shared.follows.views() {
        let Some(state) = states.iter().find(|state| *state.name == *settings.name).cloned() else {
            continue;
        };
        let source = FollowStats { settings, view, state, now_ms: now.ms };
        let labels: &[&dyn Display] = &[&source.settings.name];
        put_all(LOGS, labels, shared, &source, sink);
    }
}

const fn of_log(row: StatRow<FollowStats>) -> StatRow<FollowStats> {
    row.labelled("{log}:", &["log"])
}

/// The rows of a log.
pub(super) static LOGS: &[StatRow<FollowStats>] = &[
    of_log(text(
        "state",
        "confirmed; connected: the log is being read, and has not been confirmed for `max_lag`; connecting: for the first time; lost: there is no \
         connection.",
        |_, log| {
            Some(Value::text(match (&log.state.behind_since_ms, &log.view.lost) {
                (_, Some(_)) => "lost",
                (None, None) => "confirmed",
                (Some(_), None) if log.view.connects == 0 && log.view.leader.is_none() => "connecting",
                (Some(_), None) => "connected",
            }))
        },
    )),
    of_log(
        value(
            "lag_ms",
            ValueKind::Gauge,
            Unit::Milliseconds,
            "Age of the last confirmation: everything that was committed before it has been obeyed. Below 1,000 on a log that is well, \
             since it is confirmed twice a second; below 2,000 with `via`.",
            |_, log: &FollowStats| Some(Value::Number(log.now_ms.saturating_sub(log.state.confirmed_ms?))),
        )
        .when("the log has been confirmed"),
    ),
    of_log(gauge(
        "lag_ms_max",
        Unit::Milliseconds,
        "Longest time between the question how far the log is and the moment at which all before it was obeyed, in this minute and the \
         last.",
        |_, log| log.view.lag_ms_max[0].max(log.view.lag_ms_max[1]),
    )),
    of_log(gauge("behind", Unit::Flag, "Whether it has not been confirmed for `max_lag`.", |_, log| {
        u64::from(log.state.behind_since_ms.is_some())
    })),
    of_log(gauge("behind_s", Unit::Seconds, "For how long it has been behind.", |_, log| {
        log.state.behind_since_ms.map_or(0, |since_ms| log.now_ms.saturating_sub(since_ms) / 1000)
    })),
    of_log(counter("times_behind", Unit::Count, "Times at which it fell behind, that of the start included.", |_, log| {
        log.state.times_behind
    })),
    of_log(counter("bumps", Unit::Count, "Tags that it invalidated, each once a transaction.", |_, log| log.view.bumps)),
    of_log(counter(
        "flushes",
        Unit::Count,
        "Times at which all items with tags were invalidated: at the first connection, after a gap, at a TRUNCATE, for too many tags.",
        |_, log| log.state.flushes,
    )),
    of_log(gauge("waiting", Unit::Count, "Transactions that have arrived, and that readers do not see yet.", |_, log| {
        log.view.state.map_or(0, |state| state.waiting as u64)
    })),
    of_log(gauge("names_bytes", Unit::Bytes, "Memory of the tags of these.", |_, log| {
        log.view.state.map_or(0, |state| state.names_bytes as u64)
    })),
    of_log(counter("null_left_out", Unit::Count, "Tags that were left out since a column was NULL.", |_, log| {
        log.view.left_out.null
    })),
    of_log(counter("long_left_out", Unit::Count, "Tags that were left out since they were longer than 1,000 bytes.", |_, log| {
        log.view.left_out.long
    })),
    of_log(counter("connects", Unit::Count, "Connections that were made.", |_, log| log.view.connects)),
    of_log(counter("losses", Unit::Count, "Connections that ended, or could not be made.", |_, log| log.view.losses)),
    of_log(text("lost", "Why there is no connection.", |_, log: &FollowStats| {
        log.view.lost.as_ref().map(|reason| Value::Text(reason.clone().into()))
    })
    .when("there is none")),
    of_log(text("missing", "The first thing that the database lacks, and what mends it.", |_, log: &FollowStats| {
        log.view.missing.first().map(|missing| Value::Text(missing.to_string().into()))
    })
    .when("something is missing")),
    of_log(text("leader", "The node that follows it for all.", |_, log: &FollowStats| {
        log.view.leader.as_ref().map(|leader| Value::Text(leader.clone().into()))
    })
    .when("the log has `via`")),
    of_log(
        value("nodes", ValueKind::Gauge, Unit::Count, "Nodes that are listed, this one included.", |_, log: &FollowStats| {
            Some(Value::Number(log.view.fleet.as_ref()?.nodes))
        })
        .when("the log is of etcd"),
    ),
    of_log(
        value("backlog", ValueKind::Gauge, Unit::Count, "Bumps of clients that are not in the log yet.", |_, log: &FollowStats| {
            Some(Value::Number(log.view.fleet.as_ref()?.backlog))
        })
        .when("the log is of etcd"),
    ),
    of_log(
        value("sent", ValueKind::Counter, Unit::Count, "Bumps of clients, which go into the log.", |_, log: &FollowStats| {
            Some(Value::Number(log.view.fleet.as_ref()?.sent))
        })
        .when("the log is of etcd"),
    ),
    of_log(
        value("waited", ValueKind::Counter, Unit::Count, "Replies that waited for the log.", |_, log: &FollowStats| {
            Some(Value::Number(log.view.fleet.as_ref()?.waited))
        })
        .when("the log is of etcd"),
    ),
    of_log(
        value("not_confirmed", ValueKind::Counter, Unit::Count, "Replies that said that a bump is not confirmed.", |_, log: &FollowStats| {
            Some(Value::Number(log.view.fleet.as_ref()?.not_confirmed))
        })
        .when("the log is of etcd"),
    ),
];
