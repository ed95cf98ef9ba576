//! What all threads of the server share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
use crate::unsent::{UnsentOutput, pinned_cap};
use crate::uploads::Uploads;
use crate::watch::{self, Record, RecordContent, Watcher, Watchers};

pub(crate) mod build;

/// The server, as every thread sees it.
pub(crate) struct Shared {
    /// The settings, with absolute paths.
    pub(crate) settings: Settings,
    /// Time since the start.
    pub(crate) clock: Clock,
    /// Who may log in; None without `-Y` and `-S`.
    pub(crate) auth: Option<AuthFile>,
    /// What was said of requests that users may not make.
    pub(crate) not_allowed: RefusalLog,
    /// TLS; None without `-Z`.
    pub(crate) tls: Option<TlsAcceptor>,
    /// What protects the pages for monitoring.
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
    /// The time of a request, read at `now`.
    pub(crate) fn now_at(&self, now: std::time::Instant) -> Now {
        let ms = self.clock.millis_at(now);
        Now {
            second: u32::try_from(ms / 1000).unwrap_or(u32::MAX),
            ms,
            unix_of_zero: i64::try_from(self.clock.unix_seconds_of_start()).unwrap_or(i64::MAX),
        }
    }

    /// Whether unsent output is near its cap.
    #[inline]
    pub(crate) fn is_output_scarce(&self) -> bool {
        self.unsent.is_scarce(self.unsent_values())
    }

    /// Bytes of values that only connections keep: those copied for requests that wait, and large ones that have left the
    /// store.
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

    /// Which engine events are wanted.
    pub(crate) fn interest(&self) -> Interest {
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

    /// Tells watchers of the events that turns have left, and counts them by prefix. `fd`: the connection's; 0 if no
    /// connection has caused them. `stands_for`: how many turns a sampled one stands for, whose events count for hot keys; 0: it is not
    /// sampled.
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

    /// A connection of this lane is gone; its descriptor closes here, unless the caller has another reference.
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
