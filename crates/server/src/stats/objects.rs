//! `stats objects`: for each type its objects, and the results of each method's calls; then all types
//! together.
//!
//! Counts of methods are sums over the lanes. One call in [`TIMED_EVERY`] is timed, and so is each call that
//! takes several steps or is of a slow method.
//!
//! [`TIMED_EVERY`]: cattlegrid_engine::TIMED_EVERY

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_engine::{MethodCounter, ObjectsUsage};
use cattlegrid_objects::{HostUsage, Registry};
use cattlegrid_store::ObjectUsage;

use super::definition::{Export, Sink, StatRow, Unit, Value, ValueKind, counter, gauge, put_all, value};
use crate::shared::Shared;

/// Sums of a method's counters over the lanes.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct MethodCounts {
    calls: u64,
    errors: u64,
    misses: u64,
    waited: u64,
    bytes: u64,
    timed: u64,
    timed_ns: u64,
    longest_ns: u64,
}

impl MethodCounts {
    fn add(&mut self, lane: &MethodCounter) {
        self.calls += lane.calls.get();
        self.errors += lane.errors.get();
        self.misses += lane.misses.get();
        self.waited += lane.waited.get();
        self.bytes += lane.bytes.get();
        self.timed += lane.timed.get();
        self.timed_ns += lane.timed_ns.get();
        self.longest_ns = self.longest_ns.max(lane.longest_ns.get());
    }
}

/// The source of the last lines.
pub(super) struct ObjectTotals {
    usage: ObjectsUsage,
    sum: ObjectUsage,
    registry: Arc<Registry>,
    /// The sum over all lanes.
    script_errors: u64,
    script_moved: u64,
    host: HostUsage,
}

/// The lines of each type that is switched on, then of all together; none while objects are switched off.
pub(super) fn collect(shared: &Shared, sink: &mut dyn Sink) {
    let Some(registry) = shared.engine.objects() else { return };
    let usage = shared.engine.objects_usage();
    let mut methods = vec![MethodCounts::default(); Registry::numbers_max()];
    for lane in shared.lanes.iter() {
        for (sum, own) in methods.iter_mut().zip(lane.counters.methods.all()) {
            sum.add(own);
        }
    }
    let mut sum = ObjectUsage::default();
    usage.types.values().for_each(|own| sum.add(own));
    for one in registry.types() {
        let own = usage.types.get(&one.id).copied().unwrap_or_default();
        put_all(TYPES, &[&one.name], shared, &own, sink);
        for (number, definition) in registry.numbered_methods(one.id) {
            let method = &methods[number];
            if method.calls > 0 {
                let labels: &[&dyn Display] = &[&one.name, &definition.name];
                put_all(METHODS, labels, shared, method, sink);
            }
        }
    }
    let lanes = shared.lanes.iter().map(|lane| &lane.counters);
    let (mut script_errors, mut script_moved) = (0, 0);
    lanes.for_each(|counters| {
        script_errors += counters.script_errors.get();
        script_moved += counters.script_moved.get();
    });
    let host = registry.host().map(|host| host.usage()).unwrap_or_default();
    put_all(
        ALL,
        &[],
        shared,
        &ObjectTotals { usage, sum, registry, script_errors, script_moved, host },
        sink,
    );
}

const fn of_type(row: StatRow<ObjectUsage>) -> StatRow<ObjectUsage> {
    row.labelled("{type}:", &["type"])
}

const fn of_method(row: StatRow<MethodCounts>) -> StatRow<MethodCounts> {
    row.labelled("{type}:{method}:", &["type", "method"]).when("of methods that were called")
}

/// The rows of a type.
pub(super) static TYPES: &[StatRow<ObjectUsage>] = &[
    of_type(gauge("items", Unit::Count, "Objects of the type.", |_, own| own.items)),
    of_type(gauge(
        "bytes",
        Unit::Bytes,
        "Bytes that they hold: in the log, in trees, and values too long for the log.",
        |_, own| own.held_bytes(),
    )),
    of_type(gauge(
        "tree_bytes",
        Unit::Bytes,
        "Of these, bytes in trees of members, which collections above 2 KiB have.",
        |_, own| own.tree_bytes,
    )),
];

/// The rows of a method that was called.
pub(super) static METHODS: &[StatRow<MethodCounts>] = &[
    of_method(counter("calls", Unit::Count, "Calls, failed ones and misses included.", |_, one| one.calls)),
    of_method(counter("errors", Unit::Count, "Calls answered with an error.", |_, one| one.errors)),
    of_method(counter("misses", Unit::Count, "Calls answered as a miss.", |_, one| one.misses)),
    of_method(counter(
        "waited",
        Unit::Count,
        "Calls that took several steps, or waited for an object of such a call.",
        |_, one| one.waited,
    )),
    of_method(counter("bytes", Unit::Bytes, "Bytes of the values answered.", |_, one| one.bytes)),
    of_method(value(
        "time_avg_us",
        ValueKind::Gauge,
        Unit::Microseconds,
        "Mean time of the calls that were timed: one in 64 of each thread, all that took several steps, and all of a method whose calls take long.",
        |_, one| one.timed_ns.checked_div(one.timed).map(micros),
    )),
    of_method(value(
        "time_max_us",
        ValueKind::Gauge,
        Unit::Microseconds,
        "Time of the longest of these.",
        |_, one| (one.timed > 0).then(|| micros(one.longest_ns)),
    )),
];

/// The rows of all types together.
pub(super) static ALL: &[StatRow<ObjectTotals>] = &[
    gauge("objects", Unit::Count, "Objects of all types.", |_, all: &ObjectTotals| all.sum.items)
        .export(Export::Nothing),
    gauge("bytes", Unit::Bytes, "Bytes that they hold.", |_, all: &ObjectTotals| all.sum.held_bytes())
        .export(Export::Nothing),
    gauge(
        "pinned",
        Unit::Bytes,
        "Bytes of objects that are never evicted (`evict = \"never\"`).",
        |shared, _| shared.engine.memory().pinned_object_bytes() as u64,
    ),
    gauge(
        "pinned_max",
        Unit::Bytes,
        "Most such bytes. Beyond them no more such objects are made, and none grows; the call that reaches them may take some pages more.",
        |_, all| all.registry.settings().pinned_max as u64,
    ),
    gauge("busy", Unit::Count, "Objects that a call reads in steps. Other calls of them wait.", |_, all| {
        all.usage.busy as u64
    }),
    gauge("running", Unit::Count, "Calls that have steps left, or wait for such an object.", |_, all| {
        all.usage.running as u64
    }),
    gauge("scripts", Unit::Count, "Types of your own that are loaded.", |_, all| {
        all.registry.host().map_or(0, |host| host.types().len() as u64)
    }),
    counter(
        "script_errors",
        Unit::Count,
        "Calls of methods of such types that failed by the fault of their script, by a limit or by a state that is too large.",
        |_, all| all.script_errors,
    ),
    counter(
        "script_moved",
        Unit::Count,
        "Runs of such methods whose result was dropped because their object had changed meanwhile; the call was made again.",
        |_, all| all.script_moved,
    ),
    gauge(
        "scripts_disabled",
        Unit::Count,
        "Methods that have exceeded their limits too often, and are refused until the types are loaded again.",
        |_, all| all.host.disabled,
    ),
    gauge("script_vms", Unit::Count, "Virtual machines that run such methods.", |_, all| all.host.vms),
    gauge("script_vm_bytes", Unit::Bytes, "Memory that they took after the last call of each.", |_, all| {
        all.host.vm_bytes
    }),
];

/// A time in microseconds.
fn micros(ns: u64) -> Value {
    Value::Decimal(Duration::from_nanos(ns).as_secs_f64() * 1e6, 1)
}
