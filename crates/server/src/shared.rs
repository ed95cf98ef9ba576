//! The state that all threads of the server share.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard};

use cattlegrid_config::Settings;
use cattlegrid_engine::{Counts, Effects, Engine, Interest, Now};
use cattlegrid_loader::Loaders;
use cattlegrid_protocol::Limits;

use crate::acceptor::Acceptor;
use crate::admin::Secrets;
use crate::auth::AuthFile;
use crate::auth::rights::RefusalLog;
use crate::caps::Caps;
use crate::connection::info::ConnectionInfo;
use crate::connection::unsent::{UnsentOutput, pinned_cap};
use crate::detail::Detail;
use crate::dump::Dumps;
use crate::follows::Follows;
use crate::gauges::Gauges;
use crate::lane::handle::{LaneHandle, Message};
use crate::listen::ListenerInfo;
use crate::poller::Waker;
use crate::reload::ReloadStatus;
use crate::reload::in_force::InForce;
use crate::shortage::Shortage;
use crate::time::Clock;
use crate::tls::TlsAcceptor;
use crate::uploads::Uploads;
use crate::watch::{self, Record, RecordContent, Topics, Watcher, Watchers};

pub(crate) mod build;

/// States that are rare and that every turn must know of, as bits of one word: a turn that finds none of them
/// looks no further.
#[derive(Debug, Default)]
pub(crate) struct RareStates(AtomicU32);

impl RareStates {
    /// A watcher, the log or `stats detail` wants requests or events.
    const WATCHED: u32 = 1;
    /// The system may refuse memory, or does.
    const MEMORY_LIMITED: u32 = 2;
    /// Input that connections keep has most of its memory.
    const INPUT_SCARCE: u32 = 4;

    #[inline]
    fn has(&self, state: u32) -> bool {
        self.0.load(Relaxed) & state != 0
    }

    /// Sets or clears a state, as `is_so` says now. Of threads that do this at once the last one says what is
    /// so.
    fn update(&self, state: u32, is_so: impl Fn() -> bool) {
        loop {
            let on = is_so();
            if on {
                self.0.fetch_or(state, SeqCst)
            } else {
                self.0.fetch_and(!state, SeqCst)
            };
            if is_so() == on {
                return;
            }
        }
    }
}

/// The server, as every thread sees it.
pub(crate) struct Shared {
    /// The settings, with absolute paths.
    pub(crate) settings: Settings,
    /// Time since the start.
    pub(crate) clock: Clock,
    /// The users who may log in; None without `-Y` and `-S`.
    pub(crate) auth: Option<AuthFile>,
    /// What was said of requests that users may not make.
    pub(crate) not_allowed: RefusalLog,
    /// TLS; None without `-Z`.
    pub(crate) tls: Option<TlsAcceptor>,
    /// The secrets that protect the pages for monitoring.
    pub(crate) admin: Arc<Secrets>,
    pub(crate) engine: Engine,
    pub(crate) lanes: Arc<[LaneHandle]>,
    /// They compute missing values; their processes have ended when the server has left.
    pub(crate) loaders: Loaders,
    /// They obey logs of databases; their threads have ended when the server has left.
    pub(crate) follows: Follows,
    /// Takes the bumps of clients into the log of the fleet.
    #[cfg(feature = "etcd")]
    pub(crate) fleet: Arc<crate::fleet::Fleet>,
    pub(crate) watchers: Watchers,
    pub(crate) detail: Detail,
    pub(crate) limits: Limits,
    pub(crate) gauges: Gauges,
    pub(crate) caps: Caps,
    /// Commands that arrive in pieces.
    pub(crate) uploads: Uploads,
    /// States that are rare and that every turn must know of.
    pub(crate) rare: RareStates,
    /// Memory that the system refuses.
    pub(crate) shortage: Shortage,
    /// `lru_crawler metadump` and `mgdump`.
    pub(crate) dumps: Dumps,
    /// Output that clients have not taken yet.
    pub(crate) unsent: UnsentOutput,
    /// Every open connection, by descriptor, for `stats conns`.
    pub(crate) connections: Mutex<BTreeMap<i32, Arc<ConnectionInfo>>>,
    /// Where the server listens.
    pub(crate) listeners: Mutex<Vec<Arc<ListenerInfo>>>,
    /// Accepts connections.
    pub(crate) acceptor: Acceptor,
    /// Wakes the control thread.
    pub(crate) control: Waker,
    /// A client asked the server to stop (`shutdown`).
    pub(crate) stop_asked: AtomicBool,
    pub(crate) in_force: Mutex<InForce>,
    /// How reloads have gone.
    pub(crate) reload_status: Mutex<ReloadStatus>,
}

impl Shared {
    /// The time of a request, read at `now`. The caller holds no lock of a shard.
    pub(crate) fn now_at(&self, now: std::time::Instant) -> Now {
        let ms = self.clock.millis_at(now);
        self.clock.note_running(now, |for_ms| self.engine.note_stop(for_ms, ms));
        Now {
            second: u32::try_from(ms / 1000).unwrap_or(u32::MAX),
            ms,
            unix_of_zero: i64::try_from(self.clock.unix_seconds_of_start()).unwrap_or(i64::MAX),
        }
    }

    /// Whether unsent output is near its cap.
    #[inline]
    pub(crate) fn is_output_scarce(&self) -> bool {
        let values = self.unsent_values();
        (values > 0 || self.unsent.bytes() > 0) && self.unsent.is_scarce(values)
    }

    /// Bytes of values that only connections keep: those copied for requests that wait, and large ones that
    /// have left the store.
    #[inline]
    pub(crate) fn unsent_values(&self) -> usize {
        self.engine.delivered_bytes() + self.engine.memory().pinned_bytes()
    }

    /// Most bytes of large values that have left the store.
    pub(crate) fn pinned_cap(&self) -> usize {
        pinned_cap(self.engine.limit_bytes(), self.settings.item_bytes_max)
    }

    /// Whether there are more of them.
    #[inline]
    pub(crate) fn is_too_much_pinned(&self) -> bool {
        let pinned = self.engine.memory().pinned_bytes();
        pinned > 0 && pinned > self.pinned_cap()
    }

    /// Whether anything of requests is wanted: by watchers, by the log, for `stats detail`.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.rare.has(RareStates::WATCHED)
    }

    /// Notes what is wanted, after that has changed: in [`Shared::watchers`] or [`Shared::detail`].
    pub(crate) fn note_watched(&self) {
        let is_so = || self.watchers.wanted() != Topics::default() || self.detail.is_on();
        self.rare.update(RareStates::WATCHED, is_so);
    }

    /// Whether lanes must receive less at a time.
    #[inline]
    pub(crate) fn is_input_scarce(&self) -> bool {
        self.rare.has(RareStates::INPUT_SCARCE)
    }

    /// Notes whether it is, after [`Shared::uploads`] has changed. Changes of its bytes and of the state have
    /// one order, so that of threads that change it at once the last one notes it.
    pub(crate) fn note_uploads(&self) {
        let noted = self.rare.0.load(SeqCst) & RareStates::INPUT_SCARCE != 0;
        if self.uploads.is_scarce() != noted {
            self.rare.update(RareStates::INPUT_SCARCE, || self.uploads.is_scarce());
        }
    }

    /// Looks at the limits of the system's memory, once a second.
    pub(crate) fn look_at_memory_limits(&self) {
        self.shortage.look_at_limits();
        self.rare.update(RareStates::MEMORY_LIMITED, || self.shortage.may_be());
    }

    /// Where the system may refuse memory: tries whether there is room, once a millisecond at most.
    #[inline]
    pub(crate) fn look_at_memory(&self, now_ms: u64) {
        if self.rare.has(RareStates::MEMORY_LIMITED) {
            self.shortage.look(now_ms);
        }
    }

    /// Whether connections must give up their buffers.
    #[inline]
    pub(crate) fn is_memory_short(&self) -> bool {
        self.rare.has(RareStates::MEMORY_LIMITED) && self.shortage.is_short()
    }

    /// Which engine events are wanted.
    #[inline]
    pub(crate) fn interest(&self) -> Interest {
        if self.is_watched() { self.interest_of_watchers() } else { Interest::none() }
    }

    #[cold]
    fn interest_of_watchers(&self) -> Interest {
        let watched = self.watchers.wanted().interest();
        if self.detail.is_on() { watched.with(Detail::INTEREST) } else { watched }
    }

    /// How reloads have gone.
    pub(crate) fn reload_status(&self) -> MutexGuard<'_, ReloadStatus> {
        self.reload_status.lock().expect("nobody panics with it held")
    }

    /// What is in force.
    pub(crate) fn in_force(&self) -> MutexGuard<'_, InForce> {
        self.in_force.lock().expect("nobody panics with it held")
    }

    /// Leaves a record for watchers.
    pub(crate) fn record(&self, lane: usize, record: Record) {
        let counters = &self.lanes[lane].counters;
        let kept = self.watchers.record(lane, record);
        if kept { counters.log_worker_written.add(1) } else { counters.log_worker_dropped.add(1) }
    }

    /// Tells watchers of the events that turns have left, and counts them by prefix. `fd`: the connection's;
    /// 0 if no connection has caused them. `stands_for`: how many turns a sampled one stands for, whose
    /// events count for hot keys; 0: it is not sampled.
    pub(crate) fn publish(&self, fd: i32, lane: usize, stands_for: u32, effects: &mut Effects) {
        if effects.events.is_empty() {
            return;
        }
        if stands_for > 0 {
            let events = effects.events.iter().map(|(_, event)| event);
            self.lanes[lane].hot.count(events, (fd, stands_for), self.clock.millis());
        }
        let time = crate::time::unix_now();
        for (_, event) in effects.events.drain(..) {
            if self.detail.is_on() {
                self.detail.count(&event);
            }
            if self.watchers.wanted().has(watch::topic(&event.kind)) {
                self.record(lane, Record { time, fd, what: RecordContent::Event(event) });
            }
        }
    }

    /// Tells a watcher's lane that there are lines.
    pub(crate) fn tell_of_lines(&self, watcher: &Watcher) {
        self.lanes[watcher.lane].tell(Message::Lines(watcher.token));
    }

    /// A connection for this lane is accepted. [`Shared::forget`] undoes it.
    pub(crate) fn count_in(&self, lane: usize) {
        self.lanes[lane].connections.fetch_add(1, Relaxed);
        self.gauges.total.fetch_add(1, Relaxed);
        let current = self.gauges.current.fetch_add(1, Relaxed) + 1;
        self.gauges.most.fetch_max(current, Relaxed);
    }

    /// A connection of this lane is gone; its descriptor closes here, unless the caller has another
    /// reference.
    pub(crate) fn forget(&self, lane: usize, info: Arc<ConnectionInfo>) {
        use std::os::fd::AsRawFd as _;
        self.connections.lock().expect("nobody panics with it held").remove(&info.fd.as_raw_fd());
        self.lanes[lane].connections.fetch_sub(1, Relaxed);
        self.gauges.current.fetch_sub(1, Relaxed);
        drop(info);
        if !self.gauges.accepting.load(Relaxed) {
            self.control.wake();
        }
    }

    /// Sums of all lanes' counters.
    pub(crate) fn counts(&self) -> Counts {
        let mut sums = Counts::default();
        self.lanes.iter().for_each(|lane| sums.add(&lane.counters));
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::build::alone;

    #[test]
    fn what_is_wanted_is_known_from_the_word_of_rare_states() {
        let shared = alone(Settings::default());
        assert!(!shared.is_watched() && shared.interest() == Interest::none());
        shared.detail.switch(true);
        shared.note_watched();
        assert!(shared.is_watched() && shared.interest() == Detail::INTEREST);
        shared.watchers.log_requests(true);
        shared.detail.switch(false);
        shared.note_watched();
        assert!(
            shared.is_watched() && shared.interest() == Interest::none(),
            "the log wants lines, no events"
        );
        shared.watchers.log_requests(false);
        shared.note_watched();
        assert!(!shared.is_watched());
    }
}
