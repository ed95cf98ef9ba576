//! Counters of a lane, a thread that serves connections: each counter has one writer, and every thread that
//! answers `stats` reads it.
//!
//! A counter is defined once, here: its name and what it counts. Statistics, their reference page and
//! exporters take both from [`Counters::HELP`].

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_objects::Registry;

/// One call of this many is timed.
pub const TIMED_EVERY: u64 = 64;

/// Mean time of a call, in nanoseconds, above which a method's calls take long.
const SLOW_NS: u64 = 20_000;

/// A counter with one writer. Adding is a load and a store, without a locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// A lane's counters of commands, named as in `stats`. A field's text is the help of its statistic.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: Counter,)+
            /// Calls of objects, by method.
            pub methods: MethodCounters,
        }

        /// Sums of the [`Counters`] of all lanes, read at one moment.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct Counts {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Names, each with what it counts: one sentence or more in plain text.
            pub const HELP: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), concat!($($doc),+).trim_ascii_start())),+];

            /// Sets all to zero: `stats reset`.
            pub fn reset(&self) {
                $(self.$name.reset();)+
                self.methods.reset();
            }
        }

        impl Counts {
            /// Adds a lane's.
            pub fn add(&mut self, counters: &Counters) {
                $(self.$name = self.$name.wrapping_add(counters.$name.get());)+
            }
        }
    };
}

counters! {
    /// Keys asked for by `get`, `gets`, `gat`, `gats` and `mg`, and by gets of the binary protocol except its
    /// `gat`: those of the statistic `cmd_get`, and [`get_touches`](Self::get_touches).
    cmd_get,
    /// Keys among `cmd_get` that count in `cmd_touch`.
    get_touches,
    /// Storing commands: `set`, `add`, `replace`, `append`, `prepend`, `cas` and `ms`.
    cmd_set,
    /// Commands `flush_all`, those refused under `-F` included.
    cmd_flush,
    /// Keys of commands that set an expiry without a value: `touch`, `gat`, `gats`, and `mg` with the flag T
    /// if the key was found or has a rule with leases; otherwise such an `mg` counts as a get.
    cmd_touch,
    /// Meta commands about a key: `mg`, `ms`, `md`, `ma` and `me`.
    cmd_meta,
    /// Keys asked for that were found, except by a command that touches: see `touch_hits`.
    get_hits,
    /// Keys asked for that were not found, expired and flushed ones included, except by a command that
    /// touches.
    get_misses,
    /// Keys asked for whose item had expired; each counts in `get_misses` or `touch_misses` as well.
    get_expired,
    /// Keys asked for whose item was older than a flush; each counts in `get_misses` or `touch_misses` as
    /// well.
    get_flushed,
    /// Deletes of keys that were found.
    delete_hits,
    /// Deletes of keys that were not found.
    delete_misses,
    /// Increments of keys that were found.
    incr_hits,
    /// Increments of keys that were not found.
    incr_misses,
    /// Decrements of keys that were found.
    decr_hits,
    /// Decrements of keys that were not found.
    decr_misses,
    /// Compare-and-set commands that stored their value.
    cas_hits,
    /// Compare-and-set commands whose key was not found.
    cas_misses,
    /// Compare-and-set commands refused because the item had changed since the client read it.
    cas_badval,
    /// Keys that were found by `touch`, `gat`, `gats` and `mg` with the flag T.
    touch_hits,
    /// Keys that were not found by `touch`, `gat` and `gats`, and under a rule with leases by `mg` with the
    /// flag T.
    touch_misses,
    /// Values refused because they are larger than `-I` allows.
    store_too_large,
    /// Writes refused because no memory could be freed for them.
    store_no_memory,
    /// Logins tried, refused ones included.
    auth_cmds,
    /// Logins refused.
    auth_errors,
    /// Bytes received from clients; over TLS what they have encrypted.
    bytes_read,
    /// Bytes sent to clients; over TLS without what it adds: counted when they are encrypted.
    bytes_written,
    /// Times that a connection had more commands to execute and others got their turn first.
    conn_yields,
    /// TLS handshakes that failed or were broken off.
    ssl_handshake_errors,
    /// Connections closed because their client broke the rules of TLS after the handshake.
    ssl_proto_errors,
    /// Calls of methods of users' own types that failed by the fault of their script, by a limit or by a
    /// state that is too large.
    script_errors,
    /// Runs of methods of users' own types whose result was dropped because their object had changed
    /// meanwhile; the call was made again.
    script_moved,
    /// Events recorded for watchers.
    log_worker_written,
    /// Events not recorded for watchers because a thread's queue was full (`-o worker_logbuf_size`).
    log_worker_dropped,
}

/// Counters of all methods of a lane; without objects there are none.
#[derive(Debug, Default)]
pub struct MethodCounters {
    shipped: OnceLock<Box<[MethodCounter]>>,
    /// Counters of the methods of users' own types.
    own: OnceLock<Box<[MethodCounter]>>,
}

/// Counters of a method of a lane.
#[derive(Debug, Default)]
pub struct MethodCounter {
    /// Calls, failed ones and misses included.
    pub calls: Counter,
    /// Calls answered with an error.
    pub errors: Counter,
    /// Calls answered as a miss.
    pub misses: Counter,
    /// Calls that waited for an object that was busy, or took several steps.
    pub waited: Counter,
    /// Bytes of values answered.
    pub bytes: Counter,
    /// Calls that were timed: one of [`TIMED_EVERY`], all that took several steps, and all of a method whose
    /// calls take long.
    pub timed: Counter,
    /// Nanoseconds that these took.
    pub timed_ns: Counter,
    /// Nanoseconds that the longest of these took.
    pub longest_ns: Counter,
}

impl Counter {
    /// Adds; only the writer may call it.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Sets it to zero. An addition at the same moment can be lost or can undo it.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

impl MethodCounter {
    /// Whether calls of the method take long, as far as they were timed: then each is timed, so that a turn
    /// with many of them ends. A single long one, which the system may have interrupted, is soon outweighed.
    #[inline]
    pub(crate) fn is_slow(&self) -> bool {
        self.timed_ns.get() > self.timed.get().wrapping_mul(SLOW_NS)
    }

    /// Counts the time of a call.
    pub(crate) fn time(&self, ns: u64) {
        self.timed.add(1);
        self.timed_ns.add(ns);
        self.longest_ns.add(ns.saturating_sub(self.longest_ns.get()));
    }
}

impl MethodCounters {
    /// The counters of the method with this number, see [`Registry::number`].
    pub fn of(&self, number: usize) -> &MethodCounter {
        let some = |count: usize| (0..count).map(|_| MethodCounter::default()).collect();
        let shipped = self.shipped.get_or_init(|| some(Registry::methods_max()));
        shipped.get(number).unwrap_or_else(|| {
            let own = self.own.get_or_init(|| some(Registry::numbers_max() - shipped.len()));
            &own[number - shipped.len()]
        })
    }

    /// All that were counted, by the methods' numbers; none if no method was called.
    pub fn all(&self) -> impl Iterator<Item = &MethodCounter> {
        let own = self.own.get().map_or(&[][..], |own| own);
        self.shipped.get().map_or(&[][..], |shipped| shipped).iter().chain(own)
    }

    /// Sets all to zero.
    pub fn reset(&self) {
        for one in self.all() {
            let MethodCounter { calls, errors, misses, waited, bytes, timed, timed_ns, longest_ns } = one;
            for counter in [calls, errors, misses, waited, bytes, timed, timed_ns, longest_ns] {
                counter.reset();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_all_counters_and_a_reset_ends_them() {
        let lanes = [Counters::default(), Counters::default()];
        lanes[0].cmd_get.add(3);
        lanes[1].cmd_get.add(4);
        lanes[1].log_worker_dropped.add(1);
        let sums = || {
            let mut counts = Counts::default();
            for counters in &lanes {
                counts.add(counters);
            }
            counts
        };
        assert_eq!(sums(), Counts { cmd_get: 7, log_worker_dropped: 1, ..Counts::default() });
        lanes.iter().for_each(Counters::reset);
        assert_eq!(sums(), Counts::default());
    }
}
