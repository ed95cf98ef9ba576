//! Counters of a worker: each has one writer, and is read by any thread that answers `stats`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter with one writer. Adding is a load and a store, without a locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

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

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// A worker's counters of commands, named as in `stats`.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)+
        }

        impl Counters {
            /// Names, in the order of [`Counters::values`].
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// All counts.
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$name.get()),+]
            }

            /// Sets all to zero: `stats reset`.
            pub fn reset(&self) {
                $(self.$name.reset();)+
            }
        }
    };
}

counters! {
    /// Keys asked for.
    cmd_get,
    /// Storing commands.
    cmd_set,
    /// `flush_all`.
    cmd_flush,
    /// `touch`, `gat`, `mg ... T`.
    cmd_touch,
    /// Meta commands.
    cmd_meta,
    /// Keys found.
    get_hits,
    /// Keys not found.
    get_misses,
    /// Of these, expired.
    get_expired,
    /// Of these, from before a flush.
    get_flushed,
    /// Deletes of keys that were there.
    delete_hits,
    /// Deletes of keys that were not.
    delete_misses,
    /// `incr` of keys that were there.
    incr_hits,
    /// `incr` of keys that were not.
    incr_misses,
    /// `decr` of keys that were there.
    decr_hits,
    /// `decr` of keys that were not.
    decr_misses,
    /// `cas` that stored.
    cas_hits,
    /// `cas` of keys that were not there.
    cas_misses,
    /// `cas` with another CAS than the item's.
    cas_badval,
    /// Touches of keys that were there.
    touch_hits,
    /// Touches of keys that were not.
    touch_misses,
    /// Values above the limit.
    store_too_large,
    /// Writes for which no room could be made.
    store_no_memory,
    /// Authentications tried.
    auth_cmds,
    /// Of these, refused.
    auth_errors,
    /// Bytes received.
    bytes_read,
    /// Bytes sent.
    bytes_written,
    /// Times a connection had to wait for the others.
    conn_yields,
    /// Connections whose TLS handshake failed or was broken off.
    ssl_handshake_errors,
    /// Connections that broke the rules of TLS after their handshake.
    ssl_proto_errors,
    /// Lines made for watchers.
    log_worker_written,
    /// Lines not made, because one turn had too many.
    log_worker_dropped,
}
