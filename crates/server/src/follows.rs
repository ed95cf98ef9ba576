//! Following of logs: a thread for each log, which executes its bumps.
//!
//! No request waits for it. A log that cannot be reached does not keep the server from starting or reloading:
//! it counts as behind.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use cattlegrid_config::{FollowOrigin, FollowSettings, FollowTable};
use cattlegrid_engine::Now;
use cattlegrid_follow::postgres::{LeftOut, Missing, TlsError};
use cattlegrid_follow::{FollowerState, LogOrder, Name, Names, Node, Notice, SourceRequest};
use cattlegrid_herd::WhenBehind;
use cattlegrid_tags::{BumpKind, PrefixId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::watch;

use crate::database::Database;
#[cfg(feature = "etcd")]
use crate::fleet::{self, BumpWriter};
#[cfg(feature = "etcd")]
use crate::followed::FleetView;
use crate::followed::LogView;
use crate::log;
use crate::shared::Shared;
use crate::time::nanos;
#[cfg(feature = "etcd")]
use crate::via::{self, Via};

/// The longest time that a password program may run.
const PASSWORD_TIME: Duration = Duration::from_secs(10);

/// Longest password, in bytes.
const PASSWORD_BYTES_MAX: usize = 8192;

/// The time between two log lines about connections that ended or failed for the same reason, and between two
/// lines about connections made.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// The most reasons that are remembered as logged.
const SAID_MAX: usize = 8;

/// The threads that follow logs, in the order of the rule file.
#[derive(Debug, Default)]
pub(crate) struct Follows(Mutex<Vec<RunningLog>>);

#[derive(Debug)]
struct RunningLog {
    settings: FollowSettings,
    #[cfg(feature = "etcd")]
    writer: Option<Arc<BumpWriter>>,
    /// The way by which this log's bumps reach the other nodes.
    #[cfg(feature = "etcd")]
    via: Option<Via>,
    view: Arc<Mutex<LogView>>,
    wish: watch::Sender<SourceRequest>,
    thread: Option<JoinHandle<()>>,
}

impl Follows {
    /// Follows exactly these logs from now on. Threads of logs with unchanged settings continue.
    pub(crate) fn follow(&self, shared: &Arc<Shared>, follows: &[FollowSettings]) {
        let mut running = self.lock();
        let mut before = std::mem::take(&mut *running);
        let followed = follows.iter().map(FollowSettings::followed).collect();
        shared.engine.follow_logs(followed, shared.clock.millis());
        // Logs of etcd start before the logs that are relayed by them.
        let (vias, others): (Vec<_>, Vec<_>) = follows.iter().partition(|own| own.etcd().is_some());
        for settings in vias.into_iter().chain(others) {
            let start = PlannedLog::new(settings, follows, &running);
            let same = before.iter().position(|own| start.is_same(own));
            match same {
                Some(at) => {
                    let own = before.swap_remove(at);
                    // A reload may have followed a correction of the database, so that it is checked again.
                    own.wish.send_modify(|wish| wish.looks += 1);
                    running.push(own);
                }
                None => running.extend(start.run(shared)),
            }
        }
        running.sort_by_key(|own| follows.iter().position(|settings| settings.name == own.settings.name));
        drop(running);
        #[cfg(feature = "etcd")]
        let was_led: Vec<String> =
            before.iter().filter_map(|own| Some(own.via.as_ref()?.leads()?.to_owned())).collect();
        // This waits outside of the lock, since a thread may be running a password program.
        for own in &mut before {
            own.end();
            let Some(log) = own.settings.postgres() else { continue };
            // A log that one node follows for the fleet is reported by that node.
            #[cfg(feature = "etcd")]
            if own.via.as_ref().is_some_and(|_| !was_led.contains(&own.settings.name)) {
                continue;
            }
            let is_kept = |other: &FollowSettings| {
                other.postgres().is_some_and(|other| other.slot == log.slot && other.address == log.address)
            };
            if let Some(slot) = log.slot.as_ref().filter(|_| !follows.iter().any(is_kept)) {
                let (name, address) = (&own.settings.name, &log.address);
                log::warning(format_args!(
                    "log {name}: is not followed any more; its slot stays at {address}, which keeps its log for it: \
                     SELECT pg_drop_replication_slot('{slot}')"
                ));
            }
        }
    }

    /// Marks this node as leaving, for the other nodes. They count on its answers until it has left.
    pub(crate) fn drain(&self) {
        self.lock().iter().for_each(|own| own.wish.send_modify(|wish| wish.drains = true));
    }

    /// Ends all threads.
    pub(crate) fn stop(&self) {
        let mut running = std::mem::take(&mut *self.lock());
        running.iter().for_each(RunningLog::tell);
        running.iter_mut().for_each(RunningLog::end);
    }

    /// The settings and the state of each log, by name.
    pub(crate) fn views(&self) -> Vec<(FollowSettings, LogView)> {
        let copy = |own: &RunningLog| {
            let view = lock(&own.view).clone();
            #[cfg(feature = "etcd")]
            let view = LogView { fleet: own.writer.as_deref().map(FleetView::of), ..view };
            (own.settings.clone(), view)
        };
        self.lock().iter().map(copy).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RunningLog>> {
        lock(&self.0)
    }
}

impl RunningLog {
    fn tell(&self) {
        self.wish.send_modify(|wish| wish.stops = true);
    }

    fn end(&mut self) {
        self.tell();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error(format_args!("log {}: its thread panicked", self.settings.name));
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A log that is about to be followed.
struct PlannedLog<'a> {
    settings: &'a FollowSettings,
    /// The logs that are relayed by this one: names and marks.
    #[cfg(feature = "etcd")]
    feeds: Vec<(String, u64)>,
    /// The way by which this log is relayed.
    #[cfg(feature = "etcd")]
    via: Option<Via>,
}

impl<'a> PlannedLog<'a> {
    #[cfg(not(feature = "etcd"))]
    fn new(settings: &'a FollowSettings, _: &[FollowSettings], _: &[RunningLog]) -> Self {
        Self { settings }
    }

    #[cfg(feature = "etcd")]
    fn new(settings: &'a FollowSettings, follows: &[FollowSettings], running: &[RunningLog]) -> Self {
        let writer = |name: &str| running.iter().find(|own| own.settings.name == name)?.writer.as_ref();
        let via = settings.via().and_then(|via| writer(&via.name)?.via(&settings.name));
        Self { settings, feeds: Via::feeds(follows, &settings.name), via }
    }

    #[cfg(not(feature = "etcd"))]
    fn is_same(&self, own: &RunningLog) -> bool {
        own.settings == *self.settings
    }

    /// Whether `own` follows this log with the same settings and by the same way.
    #[cfg(feature = "etcd")]
    fn is_same(&self, own: &RunningLog) -> bool {
        let is_same_way = match (&self.via, &own.via) {
            (Some(via), Some(other)) => Arc::ptr_eq(&via.mail, &other.mail),
            (via, other) => via.is_none() && other.is_none(),
        };
        let feeds = own.writer.as_ref().map(|writer| writer.mail.feeds()).unwrap_or_default();
        own.settings == *self.settings && is_same_way && feeds == self.feeds
    }

    /// Starts the thread. None: it cannot be started; the log counts as behind, and the server's log says
    /// why.
    fn run(self, shared: &Arc<Shared>) -> Option<RunningLog> {
        start(shared, self)
    }
}

fn start(shared: &Arc<Shared>, start: PlannedLog<'_>) -> Option<RunningLog> {
    let settings = start.settings.clone();
    let (wish, wished) = watch::channel(SourceRequest::default());
    #[cfg(feature = "etcd")]
    let writer = settings.etcd().map(|etcd| Arc::new(BumpWriter::new(&settings, etcd, &start.feeds)));
    #[cfg(feature = "etcd")]
    let view = start.via.as_ref().map(|via| Arc::clone(&via.view)).unwrap_or_default();
    #[cfg(not(feature = "etcd"))]
    let view = Arc::new(Mutex::new(LogView::default()));
    let now_ms = shared.clock.millis();
    let states = shared.engine.shared().log_states(now_ms);
    let is_new = states.iter().all(|state| *state.name != *settings.name || state.confirmed_ms.is_none());
    let mut node = FollowContext {
        #[cfg(feature = "etcd")]
        writer: writer.clone(),
        #[cfg(feature = "etcd")]
        via: start.via.clone(),
        shared: Arc::clone(shared),
        settings: settings.clone(),
        view: Arc::clone(&view),
        said: RecentMessages::default(),
        wished: wished.clone(),
        starts_ms: is_new.then_some(now_ms),
        behind_since_ms: None,
    };
    if is_new {
        node.say_start();
    }
    if settings.tables().iter().any(|own| !own.delete_keys.is_empty()) {
        log::notice(format_args!(
            "log {}: this server invalidates the tags of bump; delete_keys is for `cattlegrid follow` and memcached servers",
            settings.name
        ));
    }
    let name = settings.name.clone();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        match runtime {
            Ok(runtime) => runtime.block_on(follow(&mut node, wished)),
            Err(error) => log::error(format_args!("log {}: is not followed: {error}", node.settings.name)),
        }
    };
    match std::thread::Builder::new().name(format!("log {name}")).spawn(run) {
        Ok(thread) => {
            #[cfg(feature = "etcd")]
            if writer.is_some() {
                shared.fleet.set(writer.clone());
            }
            Some(RunningLog {
                settings,
                #[cfg(feature = "etcd")]
                writer,
                #[cfg(feature = "etcd")]
                via: start.via,
                view,
                wish,
                thread: Some(thread),
            })
        }
        Err(error) => {
            log::error(format_args!("log {name}: is not followed: no thread for it: {error}"));
            None
        }
    }
}

/// Follows the log until it is told to stop.
async fn follow(node: &mut FollowContext, mut wished: watch::Receiver<SourceRequest>) {
    let origin = node.settings.origin.clone();
    match &origin {
        #[cfg(feature = "etcd")]
        FollowOrigin::Postgres(_) | FollowOrigin::Mysql(_) if node.via.is_some() => {
            via::follow(node, wished).await;
        }
        FollowOrigin::Postgres(_) | FollowOrigin::Mysql(_) => {
            let make = |node: &FollowContext| database(&node.settings);
            if let Some(Some(database)) = until_found(node, &mut wished, make).await {
                database.follow(node, wished).await;
            }
        }
        #[cfg(feature = "etcd")]
        FollowOrigin::Etcd(log) => {
            let Some(writer) = node.writer.clone() else { return };
            let make = |node: &FollowContext| fleet::source(&node.shared, &node.settings, log, &writer);
            if let Some(source) = until_found(node, &mut wished, make).await {
                source.follow(node, Arc::clone(&writer.mail), wished).await;
            }
            node.shared.fleet.unset(&writer);
        }
        #[cfg(not(feature = "etcd"))]
        FollowOrigin::Etcd(_) => debug_assert!(false, "the rule file is refused"),
    }
}

/// The database of a log, for following its tags.
pub(crate) fn database(settings: &FollowSettings) -> Result<Option<Database>, TlsError> {
    Database::of(settings, |own| own.table.clone(), false)
}

/// Calls `make` until its file of certificates can be read. None: the thread is told to stop.
pub(crate) async fn until_found<S>(
    node: &mut FollowContext,
    wished: &mut watch::Receiver<SourceRequest>,
    make: impl Fn(&FollowContext) -> Result<S, TlsError>,
) -> Option<S> {
    loop {
        match make(node) {
            Ok(source) => return Some(source),
            Err(error) => {
                node.notice(Notice::Lost { reason: error.to_string() });
                let wait = tokio::time::sleep(Duration::from_secs(5));
                tokio::select! {
                    () = wait => {}
                    _ = wished.wait_for(|wish| wish.stops) => return None,
                }
            }
        }
    }
}

/// Messages about connections that were logged lately, so that an unstable database does not flood the log.
#[derive(Default)]
pub(crate) struct RecentMessages(Vec<(String, u64)>);

impl RecentMessages {
    /// Whether this message was not logged lately, and so must be logged now.
    pub(crate) fn is_new(&mut self, text: &str) -> bool {
        let now = nanos();
        self.0.retain(|(_, at)| now < at + SAID_EVERY.as_nanos() as u64);
        // Digits are ignored, since process ids and positions differ each time.
        let text: String = text.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        if self.0.iter().any(|(said, _)| *said == text) {
            return false;
        }
        if self.0.len() == SAID_MAX {
            self.0.remove(0);
        }
        self.0.push((text, now));
        true
    }
}

/// The server as the follower of one log sees it.
pub(crate) struct FollowContext {
    pub(crate) shared: Arc<Shared>,
    pub(crate) settings: FollowSettings,
    /// The way by which bumps are written into the log, if it takes them.
    #[cfg(feature = "etcd")]
    pub(crate) writer: Option<Arc<BumpWriter>>,
    /// The way by which this log's bumps reach the other nodes, if this node may follow it for them.
    #[cfg(feature = "etcd")]
    pub(crate) via: Option<Via>,
    pub(crate) view: Arc<Mutex<LogView>>,
    pub(crate) said: RecentMessages,
    wished: watch::Receiver<SourceRequest>,
    /// When following began, in milliseconds; None after the first confirmation.
    starts_ms: Option<u64>,
    /// Since when the log is behind, in milliseconds, as far as it was logged.
    behind_since_ms: Option<u64>,
}

impl FollowContext {
    fn now(&self) -> Now {
        self.shared.now_at(self.shared.clock.now())
    }

    /// How items with tags are treated while the log is behind, for a log line.
    fn behind_policy(&self) -> String {
        let lag = self.settings.max_lag;
        match self.settings.when_behind {
            WhenBehind::Refresh => format!("items with tags that are older than {lag:?} are computed again"),
            WhenBehind::Miss => format!("items with tags that are older than {lag:?} are misses"),
            WhenBehind::Serve => "items may be older than the database".to_owned(),
        }
    }

    /// Logs that the log begins behind, since the first confirmation may take long.
    fn say_start(&self) {
        let (name, address) = (&self.settings.name, &self.settings.origin);
        log::notice(format_args!(
            "log {name}: is behind until {address} has confirmed it for the first time: {}",
            self.behind_policy()
        ));
    }

    /// Logs changes of the state; called while the log is silent.
    #[cfg(feature = "etcd")]
    pub(crate) fn look(&mut self) {
        self.say_behind();
    }

    /// Logs that the log fell behind, or is confirmed, for the first time or again.
    fn say_behind(&mut self) {
        let now_ms = self.shared.clock.millis();
        let states = self.shared.engine.shared().log_states(now_ms);
        let Some(state) = states.iter().find(|state| *state.name == *self.settings.name) else { return };
        let name = &self.settings.name;
        if let (Some(started_ms), Some(_)) = (self.starts_ms, state.confirmed_ms) {
            let ms = now_ms.saturating_sub(started_ms);
            log::notice(format_args!("log {name}: is confirmed for the first time, after {ms} ms"));
            self.starts_ms = None;
        }
        // The time before the first confirmation does not count as falling behind.
        let since_ms = state.behind_since_ms.filter(|_| state.confirmed_ms.is_some());
        match (self.behind_since_ms, since_ms) {
            (None, Some(_)) => {
                let lag = self.settings.max_lag;
                log::warning(format_args!(
                    "log {name}: is behind, not confirmed for {lag:?}: {}",
                    self.behind_policy()
                ));
            }
            (Some(before_ms), None) => {
                let seconds = now_ms.saturating_sub(before_ms) / 1000;
                log::notice(format_args!("log {name}: is confirmed again, after {seconds} s"));
            }
            _ => {}
        }
        self.behind_since_ms = since_ms;
    }

    /// Bumps a tag behind each prefix of its table.
    fn bump(&mut self, name: &Name, now: Now) {
        lock(&self.view).bumps += 1;
        #[cfg(feature = "etcd")]
        if self.writer.is_some() {
            return self.execute_bump(name, now);
        }
        let Name { scope, tag } = name;
        let kind = if self.settings.soft { BumpKind::Soft } else { BumpKind::Hard };
        let table = self.settings.tables().get(usize::from(*scope));
        let known = self.shared.engine.shared().prefixes();
        let none = std::iter::once((PrefixId::NONE, &b""[..]));
        let all = none.chain(known.all());
        let own = table.and_then(|own: &FollowTable| own.prefixes.as_ref());
        for (prefix, text) in all {
            if own.is_some_and(|own| !own.iter().any(|own| own.as_bytes() == text)) {
                continue;
            }
            self.shared.engine.bump_followed(prefix, tag, kind, now);
            #[cfg(feature = "etcd")]
            if let (Some(via), Some(_)) = (&mut self.via, own) {
                via.bump(kind, Some(text), tag);
            }
        }
        #[cfg(feature = "etcd")]
        if let (Some(via), None) = (&mut self.via, own) {
            via.bump(kind, None, tag);
        }
    }
}

impl Node for FollowContext {
    fn now_ms(&self) -> u64 {
        self.shared.clock.millis()
    }

    fn unix_now(&self) -> Duration {
        crate::time::unix_now()
    }

    fn order(&mut self, order: LogOrder) {
        let now = self.now();
        let invalidates = !matches!(order, LogOrder::Confirmed { .. });
        match order {
            LogOrder::Bump(Names::Some { names, .. }) => names.iter().for_each(|name| self.bump(name, now)),
            LogOrder::Bump(Names::All { .. }) => debug_assert!(false, "it is a flush"),
            LogOrder::Flush(reason) => {
                self.shared.engine.shared().flush_log(&self.settings.name, now.ms);
                let name = &self.settings.name;
                log::notice(format_args!("log {name}: all items with tags are computed again: {reason}"));
                #[cfg(feature = "etcd")]
                if let Some(via) = &mut self.via {
                    via.flush(&reason.to_string());
                }
            }
            // This node's claim returns by the log of etcd.
            #[cfg(feature = "etcd")]
            LogOrder::Confirmed { asked_at_ms } if self.via.is_some() => {
                self.via.iter().for_each(|via| via.confirmed(asked_at_ms));
            }
            LogOrder::Confirmed { asked_at_ms } => {
                self.shared.engine.shared().log_confirmed(&self.settings.name, asked_at_ms, now.ms);
                #[cfg(feature = "etcd")]
                self.note_confirmed(asked_at_ms);
                lock(&self.view).confirmed(asked_at_ms, now.ms);
            }
        }
        if invalidates {
            // Lanes are woken, since leases may have ended.
            self.shared.lanes[0].tell(crate::lane::handle::Message::Wakes(Vec::new()));
        }
    }

    #[cfg(feature = "etcd")]
    fn note_resume_point(&mut self, standing: cattlegrid_follow::ResumePoint) {
        self.via.iter_mut().for_each(|via| via.note_resume_point(standing.clone()));
    }

    #[cfg(feature = "etcd")]
    fn obeyed(&mut self, position: u64) -> u64 {
        // Other nodes do not need positions that are claimed.
        self.via.as_ref().map_or(position, |via| position.min(via.feed.kept().unwrap_or(0)))
    }

    fn notice(&mut self, notice: Notice) {
        if self.wished.borrow().stops {
            return;
        }
        let name = &self.settings.name;
        let mut view = lock(&self.view);
        match notice {
            Notice::Connected { identity, resumes } => {
                (view.connects, view.lost) = (view.connects + 1, None);
                let how = if resumes { "goes on where it stopped" } else { "begins" };
                if self.said.is_new(&format!("connected to {identity}")) {
                    log::notice(format_args!(
                        "log {name}: connected to {} ({identity}): {how}",
                        self.settings.origin
                    ));
                }
                view.identity = identity;
            }
            Notice::Lost { reason } => {
                view.losses += 1;
                if self.said.is_new(&reason) {
                    log::warning(format_args!("log {name}: no connection, it is tried again: {reason}"));
                }
                view.lost = Some(reason);
            }
            Notice::Missing(missing) => {
                for one in &missing {
                    log::warning(format_args!("log {name}: is behind until this is mended: {one}"));
                }
                if missing.is_empty() && !view.missing.is_empty() {
                    log::notice(format_args!("log {name}: nothing is missing any more"));
                }
                view.missing = missing;
            }
            Notice::Advice(advice) => {
                let advice = advice.to_string();
                if self.said.is_new(&advice) {
                    log::warning(format_args!("log {name}: {advice}"));
                }
            }
            #[cfg(feature = "etcd")]
            Notice::Takes(missing) => {
                let refused = missing.as_ref().map(ToString::to_string);
                fleet::say_takes(name, refused.as_deref());
                view.missing = missing.into_iter().collect();
            }
            #[cfg(feature = "etcd")]
            Notice::NameTaken { name: own, by, instead } => log::warning(format_args!(
                "log {name}: another node ({by}) is listed as {own}, perhaps this server before it was started again: it is \
                 {instead} until that one is gone; give each server a name of its own, [server] node"
            )),
            #[cfg(feature = "etcd")]
            Notice::Foreign { key } => log::warning(format_args!(
                "log {name}: {key} was not written by a node, and is passed over: name a prefix that nothing else uses"
            )),
            #[cfg(not(feature = "etcd"))]
            Notice::Takes(_) | Notice::NameTaken { .. } | Notice::Foreign { .. } => {}
        }
        #[cfg(feature = "etcd")]
        if let Some(via) = &self.via {
            via.report(view.missing.first().map(ToString::to_string).or_else(|| view.lost.clone()));
        }
    }

    fn state(&mut self, state: FollowerState, left_out: LeftOut) {
        let mut view = lock(&self.view);
        (view.state, view.left_out) = (Some(state), left_out);
        drop(view);
        self.say_behind();
    }

    fn password(&mut self) -> Result<Option<String>, String> {
        password(&self.settings, || self.wished.borrow().stops)
    }
}

/// The password from `password_file` or `password_command`, if one is set.
pub(crate) fn password(
    settings: &FollowSettings,
    is_stopped: impl Fn() -> bool,
) -> Result<Option<String>, String> {
    if let Some(path) = &settings.password_file {
        let failed = |reason: String| format!("password_file {}: {reason}", path.display());
        let text = cattlegrid_config::read_file(path).map_err(|error| failed(error.to_string()))?;
        return first_line(&text).map(Some).map_err(failed);
    }
    let Some((program, arguments)) = settings.password_command.split_first() else { return Ok(None) };
    let failed = |reason: String| format!("password_command {program}: {reason}");
    let printed = printed(program, arguments, is_stopped).map_err(failed)?;
    first_line(&printed).map(Some).map_err(failed)
}

/// Missing settings of these logs' databases, as comments of a rule file, and whether nothing is missing.
pub fn check_logs(follows: &[FollowSettings]) -> (String, bool) {
    let (mut text, mut is_good) = (String::new(), true);
    if follows.is_empty() {
        text.push_str("# no log is followed\n");
    }
    for settings in follows {
        let (name, address) = (&settings.name, &settings.origin);
        let lines = match missing_settings(settings) {
            Ok(missing) if missing.is_empty() => vec![format!("{address}: ok, nothing is missing")],
            Ok(missing) => {
                is_good = false;
                missing.iter().map(|one| format!("{}\n#   {}", one.what, one.mend)).collect()
            }
            Err(reason) => {
                is_good = false;
                vec![reason]
            }
        };
        for line in lines {
            text.extend(["# log ", name, ": ", &line, "\n"]);
        }
    }
    (text, is_good)
}

/// The settings that the database or the etcd of this log lacks, each with its correction. The function
/// connects, and takes at most about ten seconds.
///
/// # Errors
/// The database cannot be asked, for the reason in the text.
pub fn log_lacks(settings: &FollowSettings) -> Result<Vec<(String, String)>, String> {
    missing_settings(settings).map(|all| all.into_iter().map(|one| (one.what, one.mend)).collect())
}

fn missing_settings(settings: &FollowSettings) -> Result<Vec<Missing>, String> {
    let password = password(settings, || false)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    match &settings.origin {
        FollowOrigin::Postgres(_) | FollowOrigin::Mysql(_) => {
            let database =
                Database::of(settings, FollowTable::of_all, false).map_err(|error| error.to_string())?;
            let database =
                database.ok_or("this server was built without the cargo feature of its database")?;
            runtime.block_on(database.check(password.as_deref())).map_err(|error| error.with_causes())
        }
        #[cfg(feature = "etcd")]
        FollowOrigin::Etcd(log) => {
            let password = password.or_else(|| log.place.password.clone());
            let source = fleet::bare_source(settings, log).map_err(|error| error.to_string())?;
            runtime.block_on(source.check(password.as_deref())).map_err(|error| error.to_string())
        }
        #[cfg(not(feature = "etcd"))]
        FollowOrigin::Etcd(_) => Err("this server was built without the cargo feature `etcd`".to_owned()),
    }
}

fn first_line(text: &[u8]) -> Result<String, String> {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| "the password is not UTF-8".to_owned())?;
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() { Err("the password is empty".to_owned()) } else { Ok(line.to_owned()) }
}

/// The first line that a program prints, if it ends in time and with status 0. Processes that it has started
/// may continue, but do not keep our own output open: its standard error is copied by this thread while it
/// runs.
fn printed(program: &str, arguments: &[String], is_stopped: impl Fn() -> bool) -> Result<Vec<u8>, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(text)?;
    let mut output = child.stdout.take().ok_or("has no output")?;
    let mut errors = child.stderr.take().ok_or("has no output")?;
    let end = nanos() + PASSWORD_TIME.as_nanos() as u64;
    let (mut printed, mut status, mut is_open, mut has_errors) = (Vec::new(), None, true, true);
    loop {
        let has_line = printed.contains(&b'\n') || printed.len() >= PASSWORD_BYTES_MAX;
        if status.is_none() {
            status = child.try_wait().map_err(text)?;
        }
        let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let is_wanted = is_open && !has_line;
        let mut polled = Vec::with_capacity(2);
        polled.extend(is_wanted.then(|| PollFd::new(&output, PollFlags::IN)));
        polled.extend(has_errors.then(|| PollFd::new(&errors, PollFlags::IN)));
        let has_more = poll(&mut polled, Some(&pause)).is_ok_and(|ready| ready > 0);
        let is_ready = |at: usize| polled.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let (prints, fails) = (is_wanted && is_ready(0), has_errors && is_ready(usize::from(is_wanted)));
        let mut some = [0; 1024];
        if has_more && prints {
            let count = output.read(&mut some).map_err(text)?;
            is_open = count > 0;
            printed.extend_from_slice(&some[..count]);
        } else if has_more && fails && nanos() < end {
            let count = errors.read(&mut some).map_err(text)?;
            has_errors = count > 0;
            std::io::stderr().write_all(&some[..count]).unwrap_or_default();
        } else if let Some(status) = status {
            return if status.success() { Ok(printed) } else { Err(format!("ended with {status}")) };
        }
        let is_stopped = is_stopped();
        if nanos() >= end || is_stopped {
            // Processes that the program has started are killed too.
            kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap_or_default();
            drop(child.wait());
            return Err(if is_stopped {
                "was ended: the log is not followed any more".to_owned()
            } else {
                format!("has not ended within {} s", PASSWORD_TIME.as_secs())
            });
        }
    }
}
