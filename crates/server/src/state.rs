//! What all threads of the server share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use cattlegrid_config::{Objects, RuleFile, Settings};
use cattlegrid_engine::{Counters, Counts, Effects, Engine, Interest, Now, RunningCall, Wake};
use cattlegrid_herd::PeerKey;
use cattlegrid_loader::{Finished, Loaders};
use cattlegrid_objects::{HostType, ObjectType, Registry, native};
use cattlegrid_protocol::Limits;

use crate::admin::Secrets;
use crate::auth::AuthFile;
use crate::auth::rights::{self, Said};
use crate::detail::Detail;
use crate::door::Door;
use crate::dump::Dumps;
use crate::error::ServeError;
use crate::follows::Follows;
use crate::hot::Hot;
use crate::latency::Latency;
use crate::listen::Address;
use crate::log;
use crate::poller::Waker;
use crate::share::{rules_config, shares};
use crate::shortage::Shortage;
use crate::time::Clock;
use crate::tls::TlsAcceptor;
use crate::unsent::{Unsent, pinned_cap};
use crate::uploads::Uploads;
use crate::watch::{self, Record, Watcher, Watchers, What};

/// The server, as every thread sees it.
pub(crate) struct Shared {
    /// The settings, with absolute paths.
    pub(crate) settings: Settings,
    /// Time since the start.
    pub(crate) clock: Clock,
    /// Who may log in; None without `-Y` and `-S`.
    pub(crate) auth: Option<AuthFile>,
    /// What was said of requests that users may not make.
    pub(crate) not_allowed: Said,
    /// TLS; None without `-Z`.
    pub(crate) tls: Option<TlsAcceptor>,
    /// What protects the pages for monitoring.
    pub(crate) admin: Arc<Secrets>,
    pub(crate) engine: Engine,
    pub(crate) lanes: Arc<[LanePart]>,
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
    pub(crate) unsent: Unsent,
    /// Every open connection, by descriptor, for `stats conns`.
    pub(crate) connections: Mutex<BTreeMap<i32, Arc<ConnectionInfo>>>,
    /// Where the server listens.
    pub(crate) listeners: Mutex<Vec<Arc<ListenerInfo>>>,
    /// Accepts connections.
    pub(crate) door: Door,
    /// Wakes the control thread.
    pub(crate) control: Waker,
    /// A client asked the server to stop (`shutdown`).
    pub(crate) stop_asked: AtomicBool,
    pub(crate) in_force: Mutex<InForce>,
    /// How reloads have gone.
    pub(crate) reloaded: Mutex<Reloaded>,
}

/// How reloads have gone.
#[derive(Debug, Default, Clone)]
pub(crate) struct Reloaded {
    /// Reloads that have taken effect.
    pub(crate) count: u64,
    /// Unix time at the end of the last one, or of the start.
    pub(crate) unix: u64,
    /// Why the last one has changed nothing.
    pub(crate) error: Option<String>,
}

impl Reloaded {
    /// A reload has ended.
    pub(crate) fn note(&mut self, error: Option<String>, unix: u64) {
        self.count += u64::from(error.is_none());
        (self.unix, self.error) = (unix, error);
    }
}

/// What the last reload has read, or the start: only reloads change it.
#[derive(Debug, Default)]
pub(crate) struct InForce {
    pub(crate) rule_file: Option<RuleFile>,
    pub(crate) objects: Option<Objects>,
}

impl InForce {
    /// The directory to look for changes in, and what it looked like when it was read.
    pub(crate) fn watched(&self) -> Option<(PathBuf, u64)> {
        let objects = self.objects.as_ref().filter(|objects| objects.watch)?;
        Some((objects.dir.clone()?, objects.seen))
    }
}

/// What other threads need of a lane.
pub(crate) struct LanePart {
    pub(crate) counters: Counters,
    /// How long its requests take.
    pub(crate) latency: Latency,
    /// Which keys it is asked for.
    pub(crate) hot: Hot,
    pub(crate) waker: Waker,
    /// Number of the control thread's last question whether it lives, and of the last one that it has answered.
    asked: AtomicU32,
    answered: AtomicU32,
    /// Connections that it serves, with those on their way to it.
    pub(crate) connections: AtomicUsize,
    inbox: Mutex<Vec<Message>>,
}

/// What a lane is told.
pub(crate) enum Message {
    /// A new connection.
    Serve(Arc<ConnectionInfo>),
    /// A watcher of yours has lines.
    Lines(u64),
    /// Requests of connections of yours need not wait any more.
    Wakes(Vec<Wake>),
    /// Calls of objects whose home you are.
    #[expect(clippy::vec_box, reason = "as the engine hands them out")]
    Calls(Vec<Box<RunningCall>>),
    /// Jobs of loaders that you have ordered have ended.
    Loaded(Vec<Finished>),
    /// An upload of a connection of yours gives way to another.
    GiveWay {
        /// The connection.
        token: u64,
        /// The upload, if the connection still has it.
        upload: u64,
    },
    /// The reader of the dump of a connection of yours takes nothing.
    EndDump(u64),
    /// There is more unsent output than may be, and most of it may be yours.
    MakeRoom,
    /// Free memory of your heap goes back to the system.
    ReturnHeap,
    /// Finish what was received, send what waits, leave.
    Drain,
    /// What users may do has changed.
    Rights,
    /// Leave.
    Stop,
}

/// Numbers about connections.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) current: AtomicUsize,
    pub(crate) total: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) most: AtomicUsize,
    pub(crate) listen_disabled: AtomicU64,
    pub(crate) listen_disabled_micros: AtomicU64,
    pub(crate) accepting: AtomicBool,
    /// It takes no new connection any more.
    pub(crate) leaving: AtomicBool,
    pub(crate) idle_kicks: AtomicU64,
    /// Second in which the certificates were read.
    pub(crate) certificates_read: AtomicU32,
    /// Connections closed after too many wrong logins.
    pub(crate) auth_closed: AtomicU64,
    /// Logins that were not looked at, after too many wrong ones of their address.
    pub(crate) auth_unseen: AtomicU64,
    /// Requests that were refused since their users may not make them.
    pub(crate) not_allowed: AtomicU64,
    /// The second up to which the last `flush_all` has removed items, or will.
    pub(crate) oldest: AtomicU32,
    /// Calls of objects that lanes have yet to continue.
    pub(crate) calls: AtomicUsize,
    /// Times that no connection could be accepted for lack of descriptors or memory.
    pub(crate) accept_errors: AtomicU64,
    /// Lanes that send by `io_uring`.
    pub(crate) io_uring: AtomicUsize,
    /// A lane could not, and has said so.
    pub(crate) io_uring_refused: AtomicBool,
}

/// Limits of connections that are no options. Tests lower them, so that they are reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    /// The buffer of a command that arrives in pieces grows by this many bytes at most, or to twice its size.
    pub(crate) growth_bytes: usize,
    /// Most bytes of all input together that is kept.
    pub(crate) uploads_bytes: usize,
    /// Replies of one connection in one turn, in bytes; the rest has to wait for the next turn.
    pub(crate) output_bytes: usize,
    /// Keys of `get`s of one connection in one turn: the `get` that reaches this many may go on for as many.
    pub(crate) turn_keys: usize,
    /// Replies of one connection in one turn while unsent output is scarce, in bytes; also what is kept then of what was executed behind a request that waits.
    pub(crate) scarce_output_bytes: usize,
    /// Most bytes of replies that are encrypted before the socket has taken what was encrypted before.
    pub(crate) encrypted_bytes: usize,
    /// Most bytes of all unsent output together.
    pub(crate) unsent_bytes: usize,
    /// Bytes kept of what was executed behind a request that waits; no more is executed then.
    pub(crate) read_ahead_bytes: usize,
    /// Bytes of the buffer that a lane's connections share to receive into.
    pub(crate) receive_bytes: usize,
    /// Least room in it for a receive, in bytes.
    pub(crate) receive_room_bytes: usize,
    /// Most bytes of a receive while input that is kept is near its cap.
    pub(crate) scarce_receive_bytes: usize,
    /// Longest line of `get gets gat gats`, in bytes.
    pub(crate) get_line_bytes: usize,
    /// Bytes of the receive behind a value that has pages of its own.
    pub(crate) begin_bytes: usize,
    /// Bytes for which a value that arrives takes pages at first.
    pub(crate) piece_bytes: usize,
    /// All values that are not whole have at most one part in this many of the memory.
    pub(crate) arriving_part: usize,
}

impl Caps {
    /// Those of a server whose items have `item_bytes_max` at most, and its unsent output `unsent_bytes`.
    pub(crate) fn new(item_bytes_max: usize, unsent_bytes: usize) -> Self {
        Self {
            growth_bytes: 64 << 10,
            uploads_bytes: (64 << 20).max(2 * item_bytes_max),
            output_bytes: 64 << 10,
            turn_keys: 1024,
            scarce_output_bytes: 4 << 10,
            encrypted_bytes: 64 << 10,
            unsent_bytes,
            read_ahead_bytes: 256 << 10,
            receive_bytes: 256 << 10,
            receive_room_bytes: 16 << 10,
            scarce_receive_bytes: 2 << 10,
            get_line_bytes: Limits::default().max_get_line_bytes,
            begin_bytes: 4 << 10,
            piece_bytes: 64 << 10,
            arriving_part: 4,
        }
    }
}

/// A connection, as `stats conns` shows it.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) fd: std::os::fd::OwnedFd,
    /// From 1 on, never reused.
    pub(crate) number: u64,
    /// The client's; none through a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    /// The client's machine or process.
    pub(crate) peer_key: PeerKey,
    pub(crate) listener: Arc<ListenerInfo>,
    /// Second of the last command.
    pub(crate) last_command: AtomicU32,
    /// It waits for its client to read.
    pub(crate) writing: AtomicBool,
    /// One of its requests waits for a value.
    pub(crate) held: AtomicBool,
    /// What it does otherwise: a [`Doing`].
    pub(crate) doing: AtomicU8,
}

/// What a connection does, for `stats conns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Doing {
    /// It waits for a command.
    Read,
    /// It executes one.
    Execute,
    /// It waits for the rest of a data block.
    Block,
    /// It drops the rest of a refused command's data block.
    Swallow,
    /// It watches.
    Watch,
}

impl Doing {
    const ALL: [Self; 5] = [Self::Read, Self::Execute, Self::Block, Self::Swallow, Self::Watch];

    /// As memcached calls the state.
    fn name(self) -> &'static str {
        match self {
            Self::Read => "conn_read",
            Self::Execute => "conn_parse_cmd",
            Self::Block => "conn_nread",
            Self::Swallow => "conn_swallow",
            Self::Watch => "conn_watch",
        }
    }
}

impl ConnectionInfo {
    /// The client, as it is named in the log.
    pub(crate) fn peer(&self) -> PeerName<'_> {
        PeerName { address: self.address, listener: &self.listener.address }
    }

    /// Says what it does now.
    #[inline]
    pub(crate) fn set_doing(&self, doing: Doing) {
        if self.doing.load(Relaxed) != doing as u8 {
            self.doing.store(doing as u8, Relaxed);
        }
    }

    /// Its state, as memcached calls it.
    pub(crate) fn state(&self) -> &'static str {
        if self.writing.load(Relaxed) {
            return "conn_mwrite";
        }
        if self.held.load(Relaxed) {
            return "conn_waiting";
        }
        let doing = self.doing.load(Relaxed);
        Doing::ALL.get(usize::from(doing)).map_or("conn_read", |doing| doing.name())
    }
}

/// A client's address, or where it came in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerName<'a> {
    pub(crate) address: Option<SocketAddr>,
    pub(crate) listener: &'a Address,
}

impl std::fmt::Display for PeerName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.listener, self.address) {
            (Address::Unix(path), _) => write!(f, "unix:{}", path.display()),
            (Address::Tcp(_), Some(address)) => address.fmt(f),
            (Address::Tcp(_), None) => f.write_str("unknown"),
        }
    }
}

/// Where a connection came in.
#[derive(Debug)]
pub(crate) struct ListenerInfo {
    /// Its descriptor's number.
    pub(crate) fd: i32,
    pub(crate) address: Address,
    pub(crate) tls: bool,
}

impl ListenerInfo {
    /// As `stats conns` shows it.
    pub(crate) fn name(&self) -> String {
        match &self.address {
            Address::Tcp(address) => format!("tcp:{address}"),
            Address::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

impl LanePart {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            counters: Counters::default(),
            latency: Latency::default(),
            hot: Hot::default(),
            waker: Waker::new()?,
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            connections: AtomicUsize::new(0),
            inbox: Mutex::default(),
        })
    }

    /// Asks the lane whether it lives.
    pub(crate) fn ask(&self, question: u32) {
        self.asked.store(question, Relaxed);
        self.waker.wake();
    }

    /// The lane, when it was woken: it lives.
    pub(crate) fn answer(&self) {
        self.answered.store(self.asked.load(Relaxed), Relaxed);
    }

    pub(crate) fn has_answered(&self, question: u32) -> bool {
        self.answered.load(Relaxed) == question
    }

    /// Leaves a message.
    pub(crate) fn tell(&self, message: Message) {
        self.push(|inbox| inbox.push(message));
    }

    /// Leaves the end of a job, in one message with those that wait there last.
    pub(crate) fn tell_finished(&self, finished: Finished) {
        self.push(|inbox| match inbox.last_mut() {
            Some(Message::Loaded(others)) => others.push(finished),
            _ => inbox.push(Message::Loaded(vec![finished])),
        });
    }

    /// The first message wakes the lane, and those that come until it takes them need not:
    ///
    /// 1. A leaves a message in the empty inbox and wakes the lane, both under the lock. 2. B finds the inbox used, so a wake-up
    ///    stands. 3. The lane takes the wake-up back, then the lock, and has both messages.
    ///
    /// 1. The lane takes a wake-up back. 2. B finds the message of A and does not wake. 3. The lane takes the lock and has both. It
    ///    never sleeps between the two.
    fn push(&self, add: impl FnOnce(&mut Vec<Message>)) {
        let mut inbox = self.inbox.lock().expect("nobody panics with it held");
        let is_first = inbox.is_empty();
        add(&mut inbox);
        if is_first {
            // Under the lock: a thread that finds a message here may rely on the wake-up.
            self.waker.wake();
        }
    }

    /// Takes all messages. Called by the lane alone, after a wake-up.
    pub(crate) fn take_messages(&self) -> Vec<Message> {
        self.waker.reset();
        std::mem::take(&mut *self.inbox.lock().expect("nobody panics with it held"))
    }
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

    /// Reads the rule file, with its objects, certificates and the authentication file again and starts new loaders: all, or
    /// on any error none.
    /// SIGHUP. Takes as long as the slowest loader needs to start, while `goes_on` says so. `files_are_read` is called before that, or not
    /// at all.
    pub(crate) fn reload(
        &self,
        files_are_read: impl FnOnce(),
        goes_on: impl Fn() -> bool,
    ) -> Result<(), ServeError> {
        let users =
            self.auth.as_ref().map(|auth| auth.read_again().map(|users| (auth, users))).transpose()?;
        let config = self.tls.as_ref().map(|tls| tls.read_again().map(|config| (tls, config))).transpose()?;
        let admin = self.admin.read_again()?;
        let rule_file = self
            .settings
            .rule_file
            .as_ref()
            .map(|file| {
                let newer = file.read_again()?;
                newer.for_server().map(|()| (file, newer))
            })
            .transpose()?;
        let newer_file = rule_file.as_ref().map(|(_, newer)| newer);
        let read = users.as_ref().map(|(_, users)| users);
        let grants = rights::grants_of(self.auth.as_ref(), read, newer_file)?;
        let objects = self.settings.objects_under(newer_file)?;
        let registry = objects.as_ref().map(|objects| Arc::new(objects.registry()));
        self.check_versions(registry.as_deref())?;
        files_are_read();
        log::lines(log::Level::Warning, self.settings.options_need_restart().unwrap_or_default());
        if let Some((file, newer)) = &rule_file {
            newer.check_loaders(&self.settings)?;
            let loaders = self.loaders.prepare(&newer.running, &goes_on)?;
            log::lines(log::Level::Warning, newer.warns_of_loaders().join("\n"));
            log::lines(log::Level::Warning, newer.warns_of_patterns().join("\n"));
            log::lines(log::Level::Warning, file.needs_restart(newer).join("\n"));
            if let Some(text) = newer.warns_of_no_rules() {
                log::warning(text);
            }
            let rules = rules_config(&self.settings.protection);
            self.loaders
                .commit(loaders, || {
                    self.engine.set_rules(Some(Arc::clone(&newer.rules)), &rules, self.clock.millis())
                })
                .map_err(|error| ServeError::Io { what: "the rules cannot be changed", error })?;
            self.engine.memory().set_shares(&shares(newer));
            // Clients that wait for a key without a rule now must be answered, and all lanes may sleep.
            self.lanes[0].tell(Message::Wakes(Vec::new()));
        }
        let before = self.in_force().rule_file.clone();
        let newer = rule_file.map(|(_, newer)| newer);
        if let (Some(before), Some(newer)) = (&before, &newer) {
            let changes = before.changes(newer).into_iter().map(|line| format!("reload: {line}"));
            log::lines(log::Level::Notice, changes.collect::<Vec<_>>().join("\n"));
        }
        self.set_objects(newer, objects, registry);
        if let Some((auth, users)) = users {
            auth.replace(users);
        }
        if let (Some(auth), Some(grants)) = (&self.auth, grants) {
            if let Some(line) = grants.notice() {
                log::notice(line);
            }
            auth.grant(grants);
            self.lanes.iter().for_each(|lane| lane.tell(Message::Rights));
        }
        if let Some((tls, config)) = config {
            tls.replace(config);
            self.gauges.certificates_read.store(self.clock.seconds(), Relaxed);
        }
        self.admin.replace(admin);
        Ok(())
    }

    /// Loads the types of users' own again, all or on any error none. Nothing else is read again.
    pub(crate) fn reload_objects(&self) -> Result<(), ServeError> {
        let file = self.in_force().rule_file.clone();
        let objects = self.settings.objects_again(file.as_ref())?;
        let registry = objects.as_ref().map(|objects| Arc::new(objects.registry()));
        self.check_versions(registry.as_deref())?;
        self.set_objects(file, objects, registry);
        Ok(())
    }

    /// A type of users' own that has objects, which another version has written, must have a `migrate` for them.
    fn check_versions(&self, newer: Option<&Registry>) -> Result<(), ServeError> {
        let before = self.engine.objects();
        let types = |registry: Option<&Registry>| registry.and_then(Registry::host).cloned();
        let (Some(before), Some(newer)) = (types(before.as_deref()), types(newer)) else { return Ok(()) };
        let usage = self.engine.objects_usage();
        let has_objects = |id: u16| usage.types.get(&id).is_some_and(|own| own.items > 0);
        let lines = unread_versions(before.types(), newer.types(), has_objects);
        if lines.is_empty() { Ok(()) } else { Err(ServeError::Objects(lines.join("\n"))) }
    }

    /// How reloads have gone.
    pub(crate) fn reloaded(&self) -> MutexGuard<'_, Reloaded> {
        self.reloaded.lock().expect("nobody panics with it held")
    }

    /// What is in force.
    pub(crate) fn in_force(&self) -> MutexGuard<'_, InForce> {
        self.in_force.lock().expect("nobody panics with it held")
    }

    /// Switches types of objects on and others off.
    fn set_objects(
        &self,
        rule_file: Option<RuleFile>,
        objects: Option<Objects>,
        registry: Option<Arc<Registry>>,
    ) {
        if let Some(objects) = &objects {
            log::lines(log::Level::Warning, objects.warns(rule_file.as_ref()).join("\n"));
            log_own_types(objects);
        }
        let before = self.engine.objects();
        let usage = self.engine.objects_usage();
        let of_before: Vec<_> = before.iter().flat_map(|before| before.types()).collect();
        let now: Vec<_> = registry.iter().flat_map(|registry| registry.types()).collect();
        let has_objects = |id: u16| usage.types.get(&id).is_some_and(|own| own.items > 0);
        log::lines(log::Level::Warning, removed_types(&of_before, &now, has_objects).join("\n"));
        self.engine.set_objects(registry);
        *self.in_force() = InForce { rule_file, objects };
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
                self.record(lane, Record { time, fd, what: What::Event(event) });
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

/// A line for each type that has objects, which are removed when `now` takes the place of `before`; types of users' own
/// first.
fn removed_types(
    before: &[&ObjectType],
    now: &[&ObjectType],
    has_objects: impl Fn(u16) -> bool,
) -> Vec<String> {
    let is_gone = |one: &&&ObjectType| now.iter().all(|other| other.id != one.id) && has_objects(one.id);
    let mut gone: Vec<_> = before.iter().filter(is_gone).collect();
    gone.sort_by_key(|one| native::TYPES.iter().any(|shipped| shipped.id == one.id));
    let line = |one: &&&ObjectType| {
        let is_replaced = now.iter().any(|other| other.name == one.name);
        let what = if is_replaced { "another type now" } else { "switched off" };
        format!("objects: {} is {what}, and its objects are removed", one.name)
    };
    gone.iter().map(line).collect()
}

/// A line for each type whose objects a newer version of its source could not read.
fn unread_versions(
    before: &[HostType],
    newer: &[HostType],
    has_objects: impl Fn(u16) -> bool,
) -> Vec<String> {
    let line = |one: &HostType| {
        let id = one.object_type.id;
        let old = before.iter().find(|old| old.object_type.id == id)?;
        let is_unread = old.version != one.version && !one.migrates && has_objects(id);
        is_unread.then(|| {
            let (name, old, new) = (one.object_type.name, old.version, one.version);
            format!("objects: {name} is of version {new} and has no migrate for its objects of version {old}: add migrate, or remove them first by flush_all or drop")
        })
    };
    newer.iter().filter_map(line).collect()
}

/// Says which types of users' own were loaded.
pub(crate) fn log_own_types(objects: &Objects) {
    let (Some(own), Some(dir)) = (&objects.own, &objects.dir) else { return };
    let (names, libraries) = (own.names(), &own.libraries);
    let for_require =
        if libraries.is_empty() { String::new() } else { format!("; for require: {}", libraries.join(", ")) };
    let types = if names.len() == 1 { "type" } else { "types" };
    log::notice(format_args!(
        "objects: {} {types} of your own loaded from {}: {}{for_require}",
        names.len(),
        dir.display(),
        names.join(", ")
    ));
}

#[cfg(test)]
mod tests {
    use cattlegrid_config::{Command, parse_args};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// A lane that sleeps whenever nothing wakes it gets all messages of many threads.
    #[test]
    fn one_wake_up_for_many_messages_loses_none() {
        const THREADS: u64 = 4;
        const EACH: u64 = 20_000;
        let lane = LanePart::new().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let lane = &lane;
                scope.spawn(move || {
                    for number in 0..EACH {
                        lane.tell(Message::EndDump(thread * EACH + number));
                    }
                });
            }
            let (mut seen, mut wakes) = (vec![false; (THREADS * EACH) as usize], 0_u64);
            let mut left = seen.len();
            while left > 0 {
                let mut fds = [PollFd::new(&lane.waker, PollFlags::IN)];
                let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
                assert_eq!(poll(&mut fds, Some(&patience)).unwrap(), 1, "{left} messages without a wake-up");
                wakes += 1;
                for message in lane.take_messages() {
                    let Message::EndDump(number) = message else { panic!("another message") };
                    assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} came twice");
                    left -= 1;
                }
            }
            assert!(wakes <= THREADS * EACH);
        });
        assert!(lane.take_messages().is_empty());
        let mut fds = [PollFd::new(&lane.waker, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())).unwrap(), 0, "nothing wakes an empty lane");
    }

    #[test]
    fn a_reload_takes_the_rules_whole_or_not_at_all() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write("[[rule]]\nmatch = \"a:{b}\"\n");
        let Ok(Command::Serve(settings)) = parse_args(["--config", path, "-m", "16"]) else {
            panic!("options")
        };
        let shared = crate::share::alone(*settings);
        let patterns = || -> Vec<String> {
            let rules = shared.engine.shared().rules();
            let rules = rules.as_ref().unwrap().rules();
            rules.rules().iter().map(|rule| rule.pattern.text().to_owned()).collect()
        };
        assert_eq!(patterns(), ["a:{b}"]);

        write("[[rule]]\nmatch = \"c\"\n[[rule]]\nmatch = \"a:{b}\"\n");
        shared.reload(|| {}, || true).unwrap();
        assert_eq!(patterns(), ["c", "a:{b}"]);

        write("[[rule]]\nmatch = \"d\"\n[[rule]]\nmatch = \"{b\"\n");
        let error = shared.reload(|| {}, || true).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{path}:4: rule {{b: match")), "{error}");
        assert_eq!(patterns(), ["c", "a:{b}"]);

        std::fs::remove_file(file.path()).unwrap();
        assert!(shared.reload(|| {}, || true).unwrap_err().to_string().contains("cannot be read"));
        assert_eq!(patterns(), ["c", "a:{b}"]);
    }
}
