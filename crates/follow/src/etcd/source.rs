//! Follows the log of an etcd and writes into it: one connection, and the [`Follower`] between it and the
//! node.
//!
//! All requests share the connection: the watch, the question for the head, batches, the lease. When one of
//! them is not answered within a second, or the connection ends, it is made anew to the server that answers
//! first.

mod batches;
mod feeds;
mod seat;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::etcd::address::EtcdAddress;
use crate::etcd::entry::{Bump, EntryValue};
use crate::etcd::feed::{Feed, Sightings};
use crate::etcd::fleet::{Fleet, ListedNode};
use crate::etcd::grpc::{Channel, GrpcError, Responses};
use crate::etcd::link::{self, LogMark, OpenedLink, RESPONSE_MAX, head_request};
use crate::etcd::membership::{self, Registration, Seat};
use crate::etcd::messages::{KeyValue, PutResponse, RangeResponse, WatchEvent, WatchResponse};
use crate::etcd::outbox::{Outbox, TicketState};
use crate::etcd::record::{NodeRecord, NodeState};
use crate::follower::{Action, Follower, FollowerEvent, Settings};
use crate::log::{Log, Snapshot};
use crate::names::Names;
use crate::node::{LogOrder, Notice, ResumePoint, SourceRequest};
use crate::postgres::{LeftOut, Missing};
use feeds::{FeedResult, Feeds, VIA};
use seat::{NameState, RECORD_AGAIN_MS, REGISTER_MS};

/// Longest time for which a client waits for a batch, in milliseconds. After it the log counts as lost for
/// all clients that write.
pub const CONFIRM_MS_MAX: u64 = 400;

/// Longest time for leaving the list.
const LEAVE_MAX: Duration = Duration::from_millis(300);

/// A node of a fleet, which obeys the log.
pub trait FleetNode: crate::node::Node {
    /// A client's request that waits for a bump.
    type Waiter: Send + 'static;
    /// Tells waiters that their bump is confirmed, or is not.
    fn tell(&mut self, waiters: Vec<Self::Waiter>, is_confirmed: bool);
    /// Called when everything is obeyed that was committed before `asked_at_ms` in a database whose log one
    /// node follows for all. `name`: of that log.
    fn fed(&mut self, name: &str, asked_at_ms: u64);
    /// Takes note of the nodes that are listed.
    fn fleet(&mut self, nodes: Vec<ListedNode>);
}

/// This node as the others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The node's name, unique in its fleet.
    pub name: String,
    /// The address where clients reach the node, `HOST:PORT`.
    pub address: String,
    /// The node's release.
    pub release: String,
    /// The number of this start of the node: another one after each start.
    pub instance: u64,
}

/// The mailbox in which lanes leave bumps for the log.
#[derive(Debug)]
pub struct Mailbox<W> {
    outbox: Mutex<Outbox<W>>,
    sightings: Mutex<Sightings>,
    feeds: Vec<Arc<Feed>>,
    ready: Notify,
}

/// An etcd's log.
#[derive(Clone)]
pub struct Source {
    /// The servers and the prefix.
    pub place: EtcdAddress,
    /// How the certificate of each server is verified; empty: connections are not encrypted.
    pub tls: Vec<Arc<rustls::ClientConfig>>,
    /// How it is followed.
    pub settings: Settings,
    /// This node.
    pub own: NodeIdentity,
}

struct Etcd;

impl Log for Etcd {
    type Position = i64;
    type Transaction = ();
    type Snapshot = FullSnapshot;
    type Identity = ClusterId;
    const IS_VISIBLE_ON_ARRIVAL: bool = true;
}

/// All transactions are visible: an entry is written after the change that it stands for.
struct FullSnapshot;

impl Snapshot<()> for FullSnapshot {
    fn sees(&self, (): &()) -> bool {
        true
    }

    fn running(&self) -> Vec<()> {
        Vec::new()
    }
}

/// The cluster's identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ClusterId(u64);

impl std::fmt::Display for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cluster {:x}", self.0)
    }
}

impl<W> Default for Mailbox<W> {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl<W> Mailbox<W> {
    /// A mailbox with the databases' logs that one node follows for all.
    pub fn new(feeds: Vec<Arc<Feed>>) -> Self {
        Self { outbox: Mutex::default(), sightings: Mutex::default(), feeds, ready: Notify::new() }
    }

    /// Records why this node cannot follow a database's log for all; None: it can.
    pub fn report(&self, feed: &Feed, says: Option<String>) {
        feed.report(says.map(Into::into));
        self.ready.notify_one();
    }

    /// The names and marks of these logs.
    pub fn feeds(&self) -> Vec<(String, u64)> {
        self.feeds.iter().map(|feed| (feed.name.clone(), feed.mark)).collect()
    }

    /// The feed of the database's log of this name.
    pub fn feed(&self, name: &str) -> Option<&Arc<Feed>> {
        self.feeds.iter().find(|feed| feed.name == name)
    }

    /// Records a confirmation of a database's log: the bumps of everything committed before `asked_at_ms` are
    /// in the mailbox, up to `ticket`.
    pub fn confirm(&self, feed: &Feed, asked_at_ms: u64, ticket: u64, standing: Option<ResumePoint>) {
        let seen = self.sightings().before(asked_at_ms);
        feed.confirm(seen, ticket, standing);
        self.ready.notify_one();
    }

    /// Leaves a bump that this node has obeyed. Returns its ticket.
    pub fn push(&self, bump: &Bump) -> u64 {
        let line = bump.line();
        let ticket = self.lock().push(&line);
        self.ready.notify_one();
        ticket
    }

    /// Lets `who` wait for a ticket, if it is not committed yet. `is_barrier`: until all nodes have obeyed.
    pub fn wait(&self, ticket: u64, is_barrier: bool, who: W) -> TicketState {
        let wait = self.lock().wait(ticket, is_barrier, who);
        if is_barrier {
            self.ready.notify_one();
        }
        wait
    }

    /// The number of bumps that are not in the log yet.
    pub fn backlog(&self) -> usize {
        self.lock().backlog()
    }

    /// Empties the mailbox when the log is not followed any more. Returns the waiters.
    pub fn close(&self) -> Vec<W> {
        let mut outbox = self.lock();
        let waiters = outbox.set_up(false);
        *outbox = Outbox::default();
        waiters
    }

    fn sightings(&self) -> MutexGuard<'_, Sightings> {
        self.sightings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Outbox<W>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of a request.
enum TaskResult {
    Probed { number: u64, result: Result<RangeResponse, GrpcError> },
    Put(Result<PutResponse, GrpcError>),
    Registered(Result<Registration, GrpcError>),
    Renewed(Result<bool, GrpcError>),
    Written(Result<(), GrpcError>),
    Fed(usize, FeedResult),
}

/// A connection.
struct EtcdLink {
    channel: Channel,
    watch: Responses,
    cluster: u64,
    tasks: JoinSet<TaskResult>,
    /// When the batch under way was sent, in milliseconds.
    put_ms: Option<u64>,
    /// A request about the node's place in the list is under way.
    is_seating: bool,
    is_renewing: bool,
}

struct EtcdLoop<W> {
    source: Source,
    follower: Follower<Etcd>,
    mail: Arc<Mailbox<W>>,
    fleet: Fleet<W>,
    link: Option<EtcdLink>,
    /// The server that is tried first, as an index.
    first: usize,
    /// Whether the log was compacted beyond this node's position, so that the watch cannot resume.
    is_compacted: bool,
    cluster: u64,
    mark: Option<LogMark>,
    state: NodeState,
    applied: i64,
    /// The revision at which the watch began.
    from: i64,
    confirmed_ms: Option<u64>,
    lease: Option<i64>,
    seat: Option<Seat>,
    /// The state and the position in the record that was written last, and when, in milliseconds.
    written: Option<(NodeState, i64, u64)>,
    /// The revision that this node's record must reach, because barriers wait for it.
    barrier_at: i64,
    register_ms: u64,
    renew_ms: u64,
    /// When the last renewal was sent that etcd has answered.
    leased_ms: u64,
    feeds: Feeds,
    /// When the next batch is due, in milliseconds; `None`: there was nothing to write.
    batch_ms: Option<u64>,
    batches: u64,
    maintained_ms: u64,
    /// The reason why etcd refuses bumps, which the operator was told.
    refused: Option<String>,
    name: NameState,
    /// Since when this node is listed under another name than its seat's, in milliseconds.
    stray_ms: Option<u64>,
    /// Keys among the nodes' that other programs wrote, which the operator was told.
    foreign: HashSet<Vec<u8>>,
    is_list_new: bool,
}

/// The next step after the follower's actions.
enum EtcdStep {
    /// Make a connection.
    Connect { resume: Option<i64> },
    /// Wait for an event.
    Wait,
}

enum EtcdEvent {
    Watched(Result<Option<WatchResponse>, GrpcError>),
    Done(TaskResult),
    Time,
    Wished,
}

impl Source {
    /// Checks whether the log can be followed and written: the requirements that are not met, or none.
    ///
    /// # Errors
    /// The log cannot be reached, or refuses.
    pub async fn check(&self, password: Option<&str>) -> Result<Vec<Missing>, GrpcError> {
        let opened = match link::open(&self.place, password, &self.tls, 0, None, None).await {
            Ok(opened) => opened,
            Err(error) if error.is_refusal() => return Ok(vec![self.refusal(&error)]),
            Err(error) => return Err(error),
        };
        let mut missing = Vec::new();
        // The key is written under a lease and goes with it. It shows whether this user may write, and
        // whether there is space.
        let name = format!("check-{:016x}", self.own.instance);
        let value = b"cattlegrid check".to_vec();
        let prefix = self.place.prefix.clone();
        let seated = membership::register(opened.channel.clone(), prefix, name, value, (5, None, None)).await;
        match seated {
            Ok(Registration::Seated(Seat { lease, .. }) | Registration::Taken { lease }) => {
                membership::leave(&opened.channel, lease, LEAVE_MAX).await;
            }
            Err(error) if error.is_refusal() => missing.push(self.refusal(&error)),
            Err(error) => return Err(error),
        }
        let foreign =
            |kv: &&KeyValue| NodeRecord::parse(&kv.value).is_none() && !kv.value.starts_with(b"cattlegrid");
        if let Some(kv) = opened.nodes.iter().find(foreign) {
            missing.push(Missing {
                what: format!("{} was not written by a node", String::from_utf8_lossy(&kv.key)),
                mend: "name a prefix that nothing else uses".to_owned(),
                is_fatal: false,
            });
        }
        Ok(missing)
    }

    fn refusal(&self, error: &GrpcError) -> Missing {
        let prefix = &self.place.prefix;
        let mend = if error.is_out_of_space() {
            "compact and defragment it (`etcdctl compact`, `etcdctl defrag`), then `etcdctl alarm disarm`"
                .to_owned()
        } else {
            format!("etcdctl role grant-permission ROLE readwrite --prefix=true {prefix}/")
        };
        Missing { what: format!("etcd takes no bumps ({error})"), mend, is_fatal: false }
    }

    /// Follows the log, and writes what is left in the mailbox, until it is told to stop, or the sender is
    /// gone.
    pub async fn follow<N: FleetNode>(
        self,
        node: &mut N,
        mail: Arc<Mailbox<N::Waiter>>,
        mut wish: watch::Receiver<SourceRequest>,
    ) {
        let mut running = EtcdLoop {
            follower: Follower::new(self.settings),
            first: usize::try_from(self.own.instance).unwrap_or(0) % self.place.servers.len().max(1),
            source: self,
            feeds: Feeds::new(&mail),
            mail,
            fleet: Fleet::default(),
            link: None,
            is_compacted: false,
            cluster: 0,
            mark: None,
            state: NodeState::Joining,
            applied: 0,
            from: 0,
            confirmed_ms: None,
            lease: None,
            seat: None,
            written: None,
            barrier_at: 0,
            register_ms: 0,
            renew_ms: 0,
            leased_ms: 0,
            batch_ms: None,
            batches: 0,
            maintained_ms: 0,
            refused: None,
            name: NameState::Free,
            stray_ms: None,
            foreign: HashSet::new(),
            is_list_new: true,
        };
        running.follower.tick(node.now_ms());
        loop {
            if wish.borrow().drains {
                running.state = NodeState::Draining;
            }
            let next = running.act(node);
            running.maintain(node);
            node.state(running.follower.state(), LeftOut::default());
            if let EtcdStep::Connect { resume } = next {
                tokio::select! {
                    () = running.connect(resume, node) => {}
                    () = stops(&mut wish) => break,
                }
            } else {
                let event = running.event(&mut wish, node.now_ms()).await;
                if matches!(event, EtcdEvent::Wished) {
                    let is_stopped = wish.borrow_and_update().stops;
                    if is_stopped || wish.has_changed().is_err() {
                        break;
                    }
                }
                running.take(event, node);
            }
        }
        running.end_feeds();
        // Writes the lines that are left.
        let _late = tokio::time::timeout(LEAVE_MAX, running.write_rest(node)).await;
        let waiters = running.mail.close();
        node.tell(waiters, false);
        node.tell(running.fleet.take_all(), false);
        // A node that has left serves nothing any more, so no barrier waits for it.
        running.state = NodeState::Draining;
        let is_said = running.written.is_some_and(|(state, ..)| state == NodeState::Draining);
        if let (Some(link), Some(seat), false) = (&running.link, running.seat.clone(), is_said) {
            let (prefix, value) = (running.source.place.prefix.clone(), running.record(node.now_ms()).text());
            let written = membership::write(link.channel.clone(), prefix, seat, value);
            let _late = tokio::time::timeout(LEAVE_MAX, written).await;
        }
        if let (Some(link), Some(lease)) = (&running.link, running.lease) {
            membership::leave(&link.channel, lease, LEAVE_MAX).await;
        }
    }
}

/// Returns when the log need not be followed any more.
async fn stops(wish: &mut watch::Receiver<SourceRequest>) {
    // An error: the sender is gone.
    let _stopped = wish.wait_for(|wish| wish.stops).await;
}

impl<W: Send + 'static> EtcdLoop<W> {
    /// Executes the follower's actions.
    fn act(&mut self, node: &mut impl FleetNode<Waiter = W>) -> EtcdStep {
        while let Some(action) = self.follower.poll_action() {
            match action {
                Action::Bump(names) => node.order(LogOrder::Bump(names)),
                Action::Flush(reason) => node.order(LogOrder::Flush(reason)),
                Action::Confirmed { asked_at_ms } => {
                    // All before the watch's beginning has been obeyed, or flushed for.
                    self.applied = self.applied.max(self.from);
                    // A node that is not listed is not waited for by barriers.
                    if self.seat.is_some() {
                        if self.state == NodeState::Joining {
                            self.state = NodeState::Up;
                        }
                        self.confirmed_ms = Some(asked_at_ms);
                        node.order(LogOrder::Confirmed { asked_at_ms });
                    }
                    // Revisions of other keys count, too: if nothing is bumped for long, the last bump may be
                    // compacted.
                    let seen = self.mail.sightings().before(asked_at_ms);
                    let position = i64::try_from(seen).unwrap_or(0);
                    self.follower.handle(FollowerEvent::Passed { position }, node.now_ms());
                }
                Action::Acknowledge(position) => self.applied = position,
                Action::Connect { resume } => return EtcdStep::Connect { resume },
                Action::Disconnect { reason } => self.unlink(reason, node),
                Action::Probe { number } => {
                    self.feeds.asks(number, node.now_ms());
                    let request = head_request(&self.source.place);
                    self.spawn(|channel| async move {
                        let result = channel.unary("KV/Range", &request, RESPONSE_MAX).await;
                        TaskResult::Probed { number, result }
                    });
                }
                // The head is an entry's revision: the entry arrives without help.
                Action::Nudge => {}
            }
        }
        self.obey_claims(node);
        EtcdStep::Wait
    }

    fn spawn<F>(&mut self, request: impl FnOnce(Channel) -> F)
    where
        F: Future<Output = TaskResult> + Send + 'static,
    {
        if let Some(link) = &mut self.link {
            link.tasks.spawn(request(link.channel.clone()));
        }
    }

    /// Drops the connection, with everything under way on it.
    fn unlink(&mut self, reason: String, node: &mut impl FleetNode<Waiter = W>) {
        self.link = None;
        self.first += 1;
        let waiters = {
            let mut outbox = self.mail.lock();
            outbox.give_back();
            outbox.set_up(false)
        };
        node.tell(waiters, false);
        node.notice(Notice::Lost { reason });
    }

    fn lose(&mut self, reason: String, node: &mut impl FleetNode<Waiter = W>) {
        self.unlink(reason.clone(), node);
        self.follower.handle(FollowerEvent::Lost { reason }, node.now_ms());
    }

    async fn connect(&mut self, resume: Option<i64>, node: &mut impl FleetNode<Waiter = W>) {
        let place = &self.source.place;
        let password = match node.password() {
            Ok(password) => password.or_else(|| place.password.clone()),
            Err(reason) => return self.lose(reason, node),
        };
        let resume = resume.filter(|_| !self.is_compacted).map(|at| (at, self.cluster, self.mark.clone()));
        let feeds = (!self.mail.feeds.is_empty()).then_some(VIA);
        let opened =
            link::open(place, password.as_deref(), &self.source.tls, self.first, resume, feeds).await;
        match opened {
            Ok(opened) => self.opened(opened, node),
            Err(error) if error.is_refusal() => self.lose(self.source.refusal(&error).to_string(), node),
            Err(error) => self.lose(error.to_string(), node),
        }
    }

    fn opened(&mut self, opened: OpenedLink, node: &mut impl FleetNode<Waiter = W>) {
        let OpenedLink { channel, watch, cluster, from, resumes, nodes, feeds } = opened;
        let now_ms = node.now_ms();
        (self.is_compacted, self.cluster, self.from) = (false, cluster, from);
        if !resumes {
            // Obeyed when everything has been flushed; barriers over what was left out are told then.
            (self.mark, self.applied, self.barrier_at) = (None, 0, from);
        }
        let prefix = format!("{}/node/", self.source.place.prefix);
        let record = |kv: &KeyValue| {
            let name = kv.key.strip_prefix(prefix.as_bytes())?;
            Some((String::from_utf8_lossy(name).into_owned(), NodeRecord::parse(&kv.value)?))
        };
        self.fleet.replace(nodes.iter().filter_map(record), now_ms);
        self.fleet.see(u64::try_from(from).unwrap_or(0));
        // The record may have gone meanwhile, or the cluster may be another one.
        let is_listed = |seat: &Seat| {
            self.fleet.get(&seat.name).is_some_and(|record| record.instance == self.source.own.instance)
        };
        if !self.seat.as_ref().is_some_and(is_listed) {
            (self.seat, self.lease) = (None, None);
        }
        (self.register_ms, self.renew_ms, self.written) = (0, 0, None);
        self.is_list_new = true;
        self.batch_ms = None;
        let tasks = JoinSet::new();
        self.link = Some(EtcdLink {
            channel,
            watch,
            cluster,
            tasks,
            put_ms: None,
            is_seating: false,
            is_renewing: false,
        });
        self.feeds_opened(&feeds, resumes);
        let _none = self.mail.lock().set_up(true);
        node.notice(Notice::Connected { identity: ClusterId(cluster).to_string(), resumes });
        self.follower.handle(FollowerEvent::Connected { identity: ClusterId(cluster), resumes }, now_ms);
        self.follower.handle(FollowerEvent::Passed { position: from }, now_ms);
    }

    /// Does everything that is due besides the follower's tasks: batches, the lease, the record, barriers.
    fn maintain(&mut self, node: &mut impl FleetNode<Waiter = W>) {
        let now_ms = node.now_ms();
        self.maintained_ms = now_ms;
        let passed = self.fleet.take_passed(now_ms);
        if !passed.is_empty() {
            node.tell(passed, true);
        }
        if let Some(link) = &self.link
            && link.put_ms.is_some_and(|since_ms| now_ms >= since_ms + CONFIRM_MS_MAX)
        {
            let waiters = self.mail.lock().set_up(false);
            node.tell(waiters, false);
        }
        if self.link.is_some() {
            self.write_batch(now_ms);
            self.keep_seat(now_ms);
        }
        self.keep_feeds(now_ms);
        if std::mem::take(&mut self.is_list_new) {
            node.fleet(self.fleet.nodes().collect());
        }
    }

    /// When the next task is due, in milliseconds.
    fn next_ms(&self) -> Option<u64> {
        let mut times: Vec<u64> = self.fleet.next_ms().into_iter().chain(self.feeds_next_ms()).collect();
        if let Some(link) = &self.link {
            times.extend(link.put_ms.map(|since_ms| since_ms + CONFIRM_MS_MAX));
            if link.put_ms.is_none() {
                times.extend(self.batch_ms);
            }
            if self.lease.is_some() && !link.is_renewing {
                times.push(self.renew_ms);
            }
            if !link.is_seating {
                let (_, applied, at_ms) = self.written.unwrap_or_default();
                if self.seat.is_none() {
                    times.push(self.register_ms);
                } else if self.owes(applied) {
                    times.push(at_ms + self.record_ms());
                } else if self.has_grown(applied) {
                    times.push(at_ms + RECORD_AGAIN_MS);
                }
            }
        }
        // Tasks that were due have been done, or wait for something other than time.
        let times = times.into_iter().filter(|at_ms| *at_ms > self.maintained_ms);
        times.chain(self.follower.next_ms()).min()
    }

    async fn event(&mut self, wish: &mut watch::Receiver<SourceRequest>, now_ms: u64) -> EtcdEvent {
        let next_ms = self.next_ms();
        let wait =
            Duration::from_millis(next_ms.map_or(1000, |next_ms| next_ms.saturating_sub(now_ms)).min(1000));
        let mail = Arc::clone(&self.mail);
        let Some(link) = &mut self.link else {
            return tokio::select! {
                () = tokio::time::sleep(wait) => EtcdEvent::Time,
                _ = wish.changed() => EtcdEvent::Wished,
            };
        };
        let EtcdLink { watch, tasks, .. } = link;
        tokio::select! {
            response = watch.next::<WatchResponse>() => EtcdEvent::Watched(response),
            Some(done) = tasks.join_next() => match done {
                Ok(done) => EtcdEvent::Done(done),
                Err(_) => EtcdEvent::Time,
            },
            () = mail.ready.notified() => EtcdEvent::Time,
            _ = wish.changed() => EtcdEvent::Wished,
            () = tokio::time::sleep(wait) => EtcdEvent::Time,
        }
    }

    fn take(&mut self, event: EtcdEvent, node: &mut impl FleetNode<Waiter = W>) {
        let now_ms = node.now_ms();
        match event {
            EtcdEvent::Watched(Ok(Some(response))) => self.watched(response, node),
            EtcdEvent::Watched(Ok(None)) => self.lose("the watch has ended".to_owned(), node),
            EtcdEvent::Watched(Err(error)) => self.lose(error.to_string(), node),
            EtcdEvent::Done(done) => self.done(done, node),
            EtcdEvent::Time | EtcdEvent::Wished => self.follower.tick(now_ms),
        }
    }

    fn done(&mut self, done: TaskResult, node: &mut impl FleetNode<Waiter = W>) {
        let now_ms = node.now_ms();
        let Some(link) = &mut self.link else { return };
        match done {
            TaskResult::Probed { number, result: Ok(range) } => {
                let header = range.header.unwrap_or_default();
                let cluster = header.cluster_id;
                let head = range.kvs.first().map_or(0, |kv| kv.mod_revision);
                let revision = u64::try_from(header.revision).unwrap_or(0);
                if cluster == link.cluster {
                    self.feeds.answered(number, revision);
                    self.mail.sightings().see(revision, now_ms);
                }
                let identity = ClusterId(cluster);
                self.follower.handle(
                    FollowerEvent::Probed { number, identity, head, snapshot: FullSnapshot, works: false },
                    now_ms,
                );
            }
            TaskResult::Put(result) => self.put(result, node),
            TaskResult::Probed { result: Err(error), .. } => self.lose(error.to_string(), node),
            TaskResult::Registered(result) => {
                link.is_seating = false;
                self.registered(result, node);
            }
            TaskResult::Fed(at, done) => {
                if let Err(error) = self.feed_done(at, done, now_ms) {
                    self.lose(error.to_string(), node);
                }
            }
            TaskResult::Renewed(result) => {
                link.is_renewing = false;
                match result {
                    Ok(true) => self.leased_ms = self.renew_ms.saturating_sub(self.renew_after_ms()),
                    Ok(false) => (self.lease, self.seat, self.register_ms) = (None, None, 0),
                    Err(_) => self.renew_ms = now_ms + REGISTER_MS,
                }
            }
            TaskResult::Written(result) => {
                link.is_seating = false;
                match result {
                    Ok(()) => {}
                    Err(GrpcError::Status { message, .. }) if message.contains("lease not found") => {
                        (self.lease, self.seat, self.register_ms) = (None, None, 0);
                    }
                    Err(_) => {
                        self.written = self.written.map(|(state, _, at_ms)| (state, 0, at_ms + REGISTER_MS));
                    }
                }
            }
        }
    }

    fn watched(&mut self, response: WatchResponse, node: &mut impl FleetNode<Waiter = W>) {
        let now_ms = node.now_ms();
        if response.compact_revision > 0 {
            self.is_compacted = true;
            return self.lose("it was compacted past what this node has obeyed".to_owned(), node);
        }
        if response.canceled {
            return self.lose(format!("the watch was ended: {}", response.cancel_reason), node);
        }
        if let Some((link, header)) = self.link.as_ref().zip(response.header.as_ref())
            && header.cluster_id != link.cluster
        {
            return self.lose("the cluster is another one".to_owned(), node);
        }
        for event in response.events {
            let WatchEvent { kind, kv: Some(kv) } = &event else { continue };
            let own = &self.source.place.prefix;
            let rest = kv.key.strip_prefix(own.as_bytes()).unwrap_or_default();
            if let Some(name) = rest.strip_prefix(b"/node/") {
                let name = String::from_utf8_lossy(name).into_owned();
                self.listed(name, (*kind == 0).then_some(&*kv.value), now_ms);
            } else if rest.starts_with(b"/bump/") && *kind == 0 {
                self.entry(kv, node);
            } else {
                self.fed(&event, true);
            }
            let revision = u64::try_from(kv.mod_revision).unwrap_or(0);
            self.fleet.see(revision);
            self.mail.sightings().see(revision, now_ms);
        }
    }

    fn entry(&mut self, kv: &KeyValue, node: &mut impl FleetNode<Waiter = W>) {
        let (mut names, mut is_own) = (Names::default(), false);
        match EntryValue::parse(&kv.value) {
            EntryValue::Entry(entry) => {
                is_own = entry.instance == self.source.own.instance;
                if entry.has_barrier && !is_own {
                    self.barrier_at = self.barrier_at.max(kv.mod_revision);
                }
                for line in &entry.lines {
                    match Bump::parse(line) {
                        Some(Bump::All { reason }) => names.all(if reason.is_empty() {
                            "more bumps than a node had room for while the log was lost"
                        } else {
                            &reason
                        }),
                        Some(Bump::Nothing) => {}
                        Some(_) => names.add(0, line),
                        None => names.all("a bump that a node of another release has written"),
                    }
                }
            }
            EntryValue::Later { .. } => names.all("an entry that a node of a later release has written"),
            EntryValue::Foreign => {
                if self.foreign.len() < 100 && self.foreign.insert(kv.key.clone()) {
                    node.notice(Notice::Foreign { key: String::from_utf8_lossy(&kv.key).into_owned() });
                }
            }
        }
        let head = kv.value.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec();
        self.mark = Some(LogMark { key: kv.key.clone(), revision: kv.mod_revision, head });
        let told = FollowerEvent::Entry { position: kv.mod_revision, transaction: (), names, is_own };
        self.follower.handle(told, node.now_ms());
    }
}
