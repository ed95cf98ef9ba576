//! `stats rules`, `stats leases`, `stats tags`, and what `stats cattlegrid` says of them.

use cattlegrid_engine::Engine;
use cattlegrid_herd::{LeaseTime, RuleCounters, RuleState, WAIT_BUCKETS_MS};
use std::sync::atomic::Ordering::Relaxed;

use super::Lines;
use crate::turn::Turn;

/// Longest list of leases, in bytes, as memcached's longest dump.
const LEASES_BYTES: usize = 2 << 20;

/// Each rule's terms, what it has learned and counted; then the sums of all as `total`.
pub(super) fn rules(lines: &mut Lines, turn: &Turn<'_>) {
    let active = turn.shared.engine.shared().rules();
    let Some(active) = active.as_ref() else { return };
    let mut sums = vec![0_u64; RuleCounters::NAMES.len()];
    for (rule, state) in active.each() {
        let number = rule.number;
        lines.stat(format_args!("{number}:match"), rule.pattern.text());
        let lease = match state.policy().lease {
            LeaseTime::Auto => "auto",
            LeaseTime::Fixed(_) => "fixed",
        };
        lines.stat(format_args!("{number}:lease"), lease);
        lines.stat(format_args!("{number}:lease_ms"), state.lease_ms());
        lines.stat(format_args!("{number}:fill_window_ms"), state.fill_window_ms());
        lines.stat(format_args!("{number}:computing"), state.computing());
        learned(lines, number, state);
        if let Some(percent) = state.abandoned_percent() {
            let advice = abandoned(percent);
            lines.stat(format_args!("{number}:advice"), advice);
        }
        for ((name, count), sum) in RuleCounters::NAMES.iter().zip(state.counters().values()).zip(&mut sums) {
            lines.stat(format_args!("{number}:{name}"), count);
            *sum += count;
        }
        let waits = &state.counters().waits_ms;
        for (most, count) in WAIT_BUCKETS_MS.iter().zip(waits) {
            lines.stat(format_args!("{number}:waits_to_{most}ms"), count.load(Relaxed));
        }
        lines.stat(format_args!("{number}:waits_longer"), waits[WAIT_BUCKETS_MS.len()].load(Relaxed));
    }
    for (name, sum) in RuleCounters::NAMES.iter().zip(sums) {
        lines.stat(format_args!("total:{name}"), sum);
    }
}

/// What helps a rule of which many fills are dropped for misses that nobody fills.
pub(crate) fn abandoned(percent: u32) -> String {
    format!(
        "{percent} % of the fills in the last minute were dropped because of misses that nobody filled: for clients that \
         connect anew for each request, or that read without ever storing, set owner = \"connection\", or let them \
         use lease tokens"
    )
}

/// Nothing until something is learned.
fn learned(lines: &mut Lines, number: u32, state: &RuleState) {
    let Some([p50, p90, p99]) = state.learned_ms() else { return };
    lines.stat(format_args!("{number}:p50_ms"), p50);
    lines.stat(format_args!("{number}:p90_ms"), p90);
    lines.stat(format_args!("{number}:p99_ms"), p99);
}

/// Who computes what, and how many wait for it.
pub(super) fn leases(lines: &mut Lines, turn: &Turn<'_>) {
    turn.shared.engine.each_lease(turn.now.ms, |lease| {
        if lines.0.len() > LEASES_BYTES {
            return;
        }
        // A key sent as base64 may hold anything.
        let key = crate::watch::Escaped(&lease.key);
        let holder =
            lease.holder.map_or_else(|| "queued".to_owned(), |number| format!("connection {number}"));
        let how = if lease.explicit { " by name" } else { "" };
        let left = if lease.holder.is_some() { format!(" left_ms={}", lease.left_ms) } else { String::new() };
        lines.stat(
            key,
            format_args!(
                "token={} kind={} holder={holder}{how} age_ms={}{left} waiters={} computers={}",
                lease.token,
                lease.kind.name(),
                lease.age_ms,
                lease.waiters,
                lease.computers
            ),
        );
    });
}

/// Bumps, the arrays that remember them, and floors.
pub(super) fn tags(lines: &mut Lines, turn: &Turn<'_>) {
    let shared = turn.shared.engine.shared();
    let stats = shared.tags().stats();
    lines.stat("hard_bumps", stats.hard_bumps);
    lines.stat("soft_bumps", stats.soft_bumps);
    lines.stat("self_bumped", stats.self_bumped);
    lines.stat("last_bump", stats.last_bump);
    lines.stat("memory_bytes", stats.memory_bytes);
    lines.stat("slots", stats.slots_per_row);
    lines.stat("hard_slots_used", stats.hard_slots_used);
    lines.stat("soft_slots_used", stats.soft_slots_used);
    // Nothing until enough was looked at.
    if let Some(share) = stats.false_stale {
        lines.stat("false_stale", format_args!("{share:.6}"));
    }
    lines.stat("hard_floor", stats.hard_floor);
    for (place, floor) in stats.rolling.iter().flatten().enumerate() {
        let place = place + 1;
        lines.stat(format_args!("rolling_{place}:number"), floor.number);
        lines.stat(format_args!("rolling_{place}:seconds"), floor.period_ms / 1000);
        lines.stat(
            format_args!("rolling_{place}:served"),
            format_args!("{:.4}", floor.share_served(turn.now.ms)),
        );
    }
    if let Some(ms) = stats.pending_flush_ms {
        lines.stat("flush_in", ms.saturating_sub(turn.now.ms).div_ceil(1000));
    }
}

/// What all shards' herds hold.
pub(super) fn usage(lines: &mut Lines, engine: &Engine, now_ms: u64) {
    let usage = engine.herd_usage(now_ms);
    lines.stat("leases", usage.leases);
    lines.stat("held", engine.held());
    lines.stat("misses_outstanding", usage.outstanding);
    lines.stat("misses_lost_slots", usage.slots_in_loss);
    lines.stat("fence_slots", usage.fence_slots);
    lines.stat("fence_collisions", format_args!("{:.1}", usage.fence_collisions));
    lines.stat("peers", engine.shared().peers().len());
}
