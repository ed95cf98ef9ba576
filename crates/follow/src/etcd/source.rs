//! Follows the log of an etcd and writes into it: one connection, and the [`Follower`] between it and the node.
//!
//! All requests share the connection: the watch, the question for the head, batches, the lease. When one of them is not answered within
//! a second, or the connection ends, it is made anew to the server that answers first.

mod batches;
mod feeds;
mod seat;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::etcd::entry::{Bump, Read};
use crate::etcd::feed::{Feed, Sightings};
use crate::etcd::fleet::{Fleet, Listed};
use crate::etcd::grpc::{Channel, GrpcError, Responses};
use crate::etcd::link::{self, Mark, Opened, RESPONSE_MAX, head_request};
use crate::etcd::membership::{self, Registered, Seat};
use crate::etcd::messages::{Event, KeyValue, PutResponse, RangeResponse, WatchResponse};
use crate::etcd::outbox::{Outbox, Wait};
use crate::etcd::place::Place;
use crate::etcd::record::{NodeState, Record};
use crate::follower::{Action, Follower, Settings, Told};
use crate::log::{Log, Snapshot};
use crate::names::Names;
use crate::node::{Notice, Order, Standing, Wish};
use crate::postgres::{LeftOut, Missing};
use feeds::{Fed, Feeds, VIA};
use seat::{OwnName, RECORD_AGAIN_MS, REGISTER_MS};

/// How long a client waits for a batch at most, in milliseconds: then the log is lost for all clients that write.
pub const CONFIRM_MS_MAX: u64 = 400;

/// How long leaving the list may take.
const LEAVE_MAX: Duration = Duration::from_millis(300);

/// A node of a fleet, which obeys the log.
pub trait Node: crate::node::Node {
    /// A client's request that waits for a bump.
    type Waiter: Send + 'static;
    /// Tells waiters that their bump is confirmed, or is not.
    fn tell(&mut self, waiters: Vec<Self::Waiter>, is_confirmed: bool);
    /// All is obeyed that was committed before this moment in the database whose log has this name and is followed by one node for all.
    fn fed(&mut self, name: &str, asked_at_ms: u64);
    /// Takes note of the nodes that are listed.
    fn fleet(&mut self, nodes: Vec<Listed>);
}

/// This node as the others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// The node's name, unique in its fleet.
    pub name: String,
    /// Where clients reach it, `HOST:PORT`.
    pub address: String,
    /// The node's release.
    pub release: String,
    /// Another number after each start.
    pub instance: u64,
}

/// Where lanes leave bumps for the log.
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
    /// Where it is.
    pub place: Place,
    /// How the certificate of each server is verified; empty: connections are not encrypted.
    pub tls: Vec<Arc<rustls::ClientConfig>>,
    /// How it is followed.
    pub settings: Settings,
    /// This node.
    pub own: Own,
}

struct Etcd;

impl Log for Etcd {
    type Position = i64;
    type Transaction = ();
    type Snapshot = All;
    type Identity = Cluster;
    const IS_VISIBLE_ON_ARRIVAL: bool = true;
}

/// An entry stands for what was changed before.
struct All;

impl Snapshot<()> for All {
    fn sees(&self, (): &()) -> bool {
        true
    }

    fn running(&self) -> Vec<()> {
        Vec::new()
    }
}

/// The cluster's identifier.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cluster(u64);

impl std::fmt::Display for Cluster {
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
    /// With the databases' logs that one node follows for all.
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

    /// A database's log was confirmed: what was committed before `asked_at_ms` has been left here, up to `ticket`.
    pub fn say(&self, feed: &Feed, asked_at_ms: u64, ticket: u64, standing: Option<Standing>) {
        let seen = self.sightings().before(asked_at_ms);
        feed.say(seen, ticket, standing);
        self.ready.notify_one();
    }

    /// Leaves a bump that has been obeyed here. Returns its ticket.
    pub fn push(&self, bump: &Bump) -> u64 {
        let line = bump.line();
        let ticket = self.lock().push(&line);
        self.ready.notify_one();
        ticket
    }

    /// Whether a ticket must be waited for, and if so, by whom; `is_barrier`: until all nodes have obeyed.
    pub fn wait(&self, ticket: u64, is_barrier: bool, who: W) -> Wait {
        let wait = self.lock().wait(ticket, is_barrier, who);
        if is_barrier {
            self.ready.notify_one();
        }
        wait
    }

    /// Bumps that are not in the log yet.
    pub fn backlog(&self) -> usize {
        self.lock().backlog()
    }

    /// The log is followed no more. Returns the waiters.
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
enum Done {
    Probed { number: u64, result: Result<RangeResponse, GrpcError> },
    Put(Result<PutResponse, GrpcError>),
    Registered(Result<Registered, GrpcError>),
    Renewed(Result<bool, GrpcError>),
    Written(Result<(), GrpcError>),
    Fed(usize, Fed),
}

/// A connection.
struct Link {
    channel: Channel,
    watch: Responses,
    cluster: u64,
    tasks: JoinSet<Done>,
    /// Since when a batch is under way, in milliseconds.
    put_ms: Option<u64>,
    /// A request about the node's place in the list is under way.
    is_seating: bool,
    is_renewing: bool,
}

struct Running<W> {
    source: Source,
    follower: Follower<Etcd>,
    mail: Arc<Mailbox<W>>,
    fleet: Fleet<W>,
    link: Option<Link>,
    /// The server that is tried first.
    first: usize,
    /// Nothing of the last watch is resumed: it was compacted past us.
    is_compacted: bool,
    cluster: u64,
    mark: Option<Mark>,
    state: NodeState,
    applied: i64,
    /// Where the watch began.
    from: i64,
    confirmed_ms: Option<u64>,
    lease: Option<i64>,
    seat: Option<Seat>,
    /// The state and the position in the record that was written last, and when, in milliseconds.
    written: Option<(NodeState, i64, u64)>,
    /// Barriers wait until the record says that this revision is obeyed.
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
    /// Why bumps are refused; said already.
    refused: Option<String>,
    name: OwnName,
    /// Since when this node is listed under a name that is not its seat's, in milliseconds.
    stray_ms: Option<u64>,
    /// Keys of others; said already.
    foreign: HashSet<Vec<u8>>,
    is_list_new: bool,
}

/// The next step after the follower's actions.
enum Next {
    /// Make a connection.
    Connect { resume: Option<i64> },
    /// Wait for something to happen.
    Wait,
}

enum Heard {
    Watched(Result<Option<WatchResponse>, GrpcError>),
    Done(Done),
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
        // Written and taken away with its lease: a right to write, and space for it.
        let name = format!("check-{:016x}", self.own.instance);
        let value = b"cattlegrid check".to_vec();
        let prefix = self.place.prefix.clone();
        let seated = membership::register(opened.channel.clone(), prefix, name, value, (5, None, None)).await;
        match seated {
            Ok(Registered::Seated(Seat { lease, .. }) | Registered::Taken { lease }) => {
                membership::leave(&opened.channel, lease, LEAVE_MAX).await;
            }
            Err(error) if error.is_refusal() => missing.push(self.refusal(&error)),
            Err(error) => return Err(error),
        }
        let foreign =
            |kv: &&KeyValue| Record::parse(&kv.value).is_none() && !kv.value.starts_with(b"cattlegrid");
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

    /// Follows the log, and writes what is left in the mailbox, until it is told to stop, or the sender is gone.
    pub async fn follow<N: Node>(
        self,
        node: &mut N,
        mail: Arc<Mailbox<N::Waiter>>,
        mut wish: watch::Receiver<Wish>,
    ) {
        let mut running = Running {
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
            name: OwnName::Free,
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
            if let Next::Connect { resume } = next {
                tokio::select! {
                    () = running.connect(resume, node) => {}
                    () = stops(&mut wish) => break,
                }
            } else {
                let event = running.event(&mut wish, node.now_ms()).await;
                if matches!(event, Heard::Wished) {
                    let is_stopped = wish.borrow_and_update().stops;
                    if is_stopped || wish.has_changed().is_err() {
                        break;
                    }
                }
                running.take(event, node);
            }
        }
        running.end_feeds();
        // What is on its way is written.
        let _late = tokio::time::timeout(LEAVE_MAX, running.write_rest(node)).await;
        let waiters = running.mail.close();
        node.tell(waiters, false);
        node.tell(running.fleet.take_all(), false);
        // A node that leaves by itself serves nothing any more: no barrier waits for it.
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

/// Comes back when the log is followed no more.
async fn stops(wish: &mut watch::Receiver<Wish>) {
    // An error: the sender is gone.
    let _stopped = wish.wait_for(|wish| wish.stops).await;
}

impl<W: Send + 'static> Running<W> {
    /// Executes what the follower wants.
    fn act(&mut self, node: &mut impl Node<Waiter = W>) -> Next {
        while let Some(action) = self.follower.poll_action() {
            match action {
                Action::Bump(names) => node.order(Order::Bump(names)),
                Action::Flush(reason) => node.order(Order::Flush(reason)),
                Action::Confirmed { asked_at_ms } => {
                    // All before the watch's beginning has been obeyed, or flushed for.
                    self.applied = self.applied.max(self.from);
                    // A node that is not listed is not waited for by barriers.
                    if self.seat.is_some() {
                        if self.state == NodeState::Joining {
                            self.state = NodeState::Up;
                        }
                        self.confirmed_ms = Some(asked_at_ms);
                        node.order(Order::Confirmed { asked_at_ms });
                    }
                    // Revisions of other keys, too: where nothing is bumped for long, the last bump may be compacted.
                    let seen = self.mail.sightings().before(asked_at_ms);
                    let position = i64::try_from(seen).unwrap_or(0);
                    self.follower.told(Told::Passed { position }, node.now_ms());
                }
                Action::Acknowledge(position) => self.applied = position,
                Action::Connect { resume } => return Next::Connect { resume },
                Action::Disconnect { reason } => self.unlink(reason, node),
                Action::Probe { number } => {
                    self.feeds.asks(number, node.now_ms());
                    let request = head_request(&self.source.place);
                    self.spawn(|channel| async move {
                        let result = channel.unary("KV/Range", &request, RESPONSE_MAX).await;
                        Done::Probed { number, result }
                    });
                }
                // The head is that of an entry, which comes or does not.
                Action::Nudge => {}
            }
        }
        self.obey_claims(node);
        Next::Wait
    }

    fn spawn<F>(&mut self, request: impl FnOnce(Channel) -> F)
    where
        F: Future<Output = Done> + Send + 'static,
    {
        if let Some(link) = &mut self.link {
            link.tasks.spawn(request(link.channel.clone()));
        }
    }

    /// The connection is gone: so is what was under way on it.
    fn unlink(&mut self, reason: String, node: &mut impl Node<Waiter = W>) {
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

    fn lose(&mut self, reason: String, node: &mut impl Node<Waiter = W>) {
        self.unlink(reason.clone(), node);
        self.follower.told(Told::Lost { reason }, node.now_ms());
    }

    async fn connect(&mut self, resume: Option<i64>, node: &mut impl Node<Waiter = W>) {
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

    fn opened(&mut self, opened: Opened, node: &mut impl Node<Waiter = W>) {
        let Opened { channel, watch, cluster, from, resumes, nodes, feeds } = opened;
        let now_ms = node.now_ms();
        (self.is_compacted, self.cluster, self.from) = (false, cluster, from);
        if !resumes {
            // Obeyed when everything has been flushed; barriers over what was left out are told then.
            (self.mark, self.applied, self.barrier_at) = (None, 0, from);
        }
        let prefix = format!("{}/node/", self.source.place.prefix);
        let record = |kv: &KeyValue| {
            let name = kv.key.strip_prefix(prefix.as_bytes())?;
            Some((String::from_utf8_lossy(name).into_owned(), Record::parse(&kv.value)?))
        };
        self.fleet.replace(nodes.iter().filter_map(record), now_ms);
        self.fleet.see(u64::try_from(from).unwrap_or(0));
        // Its record may have gone meanwhile, or be that of another cluster.
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
        self.link = Some(Link {
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
        node.notice(Notice::Connected { identity: Cluster(cluster).to_string(), resumes });
        self.follower.told(Told::Connected { identity: Cluster(cluster), resumes }, now_ms);
        self.follower.told(Told::Passed { position: from }, now_ms);
    }

    /// Does what is due besides the follower's: batches, the lease, the record, barriers.
    fn maintain(&mut self, node: &mut impl Node<Waiter = W>) {
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

    /// When something is due, in milliseconds.
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
        // What was due then is done, or waits for something else than the time.
        let times = times.into_iter().filter(|at_ms| *at_ms > self.maintained_ms);
        times.chain(self.follower.next_ms()).min()
    }

    async fn event(&mut self, wish: &mut watch::Receiver<Wish>, now_ms: u64) -> Heard {
        let next_ms = self.next_ms();
        let wait =
            Duration::from_millis(next_ms.map_or(1000, |next_ms| next_ms.saturating_sub(now_ms)).min(1000));
        let mail = Arc::clone(&self.mail);
        let Some(link) = &mut self.link else {
            return tokio::select! {
                () = tokio::time::sleep(wait) => Heard::Time,
                _ = wish.changed() => Heard::Wished,
            };
        };
        let Link { watch, tasks, .. } = link;
        tokio::select! {
            response = watch.next::<WatchResponse>() => Heard::Watched(response),
            Some(done) = tasks.join_next() => match done {
                Ok(done) => Heard::Done(done),
                Err(_) => Heard::Time,
            },
            () = mail.ready.notified() => Heard::Time,
            _ = wish.changed() => Heard::Wished,
            () = tokio::time::sleep(wait) => Heard::Time,
        }
    }

    fn take(&mut self, event: Heard, node: &mut impl Node<Waiter = W>) {
        let now_ms = node.now_ms();
        match event {
            Heard::Watched(Ok(Some(response))) => self.watched(response, node),
            Heard::Watched(Ok(None)) => self.lose("the watch has ended".to_owned(), node),
            Heard::Watched(Err(error)) => self.lose(error.to_string(), node),
            Heard::Done(done) => self.done(done, node),
            Heard::Time | Heard::Wished => self.follower.tick(now_ms),
        }
    }

    fn done(&mut self, done: Done, node: &mut impl Node<Waiter = W>) {
        let now_ms = node.now_ms();
        let Some(link) = &mut self.link else { return };
        match done {
            Done::Probed { number, result: Ok(range) } => {
                let header = range.header.unwrap_or_default();
                let cluster = header.cluster_id;
                let head = range.kvs.first().map_or(0, |kv| kv.mod_revision);
                let revision = u64::try_from(header.revision).unwrap_or(0);
                if cluster == link.cluster {
                    self.feeds.told(number, revision);
                    self.mail.sightings().see(revision, now_ms);
                }
                let identity = Cluster(cluster);
                self.follower
                    .told(Told::Probed { number, identity, head, snapshot: All, works: false }, now_ms);
            }
            Done::Put(result) => self.put(result, node),
            Done::Probed { result: Err(error), .. } => self.lose(error.to_string(), node),
            Done::Registered(result) => {
                link.is_seating = false;
                self.registered(result, node);
            }
            Done::Fed(at, done) => {
                if let Err(error) = self.feed_done(at, done, now_ms) {
                    self.lose(error.to_string(), node);
                }
            }
            Done::Renewed(result) => {
                link.is_renewing = false;
                match result {
                    Ok(true) => self.leased_ms = self.renew_ms.saturating_sub(self.renew_after_ms()),
                    Ok(false) => (self.lease, self.seat, self.register_ms) = (None, None, 0),
                    Err(_) => self.renew_ms = now_ms + REGISTER_MS,
                }
            }
            Done::Written(result) => {
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

    fn watched(&mut self, response: WatchResponse, node: &mut impl Node<Waiter = W>) {
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
            let Event { kind, kv: Some(kv) } = &event else { continue };
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

    fn entry(&mut self, kv: &KeyValue, node: &mut impl Node<Waiter = W>) {
        let (mut names, mut is_own) = (Names::default(), false);
        match Read::parse(&kv.value) {
            Read::Entry(entry) => {
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
            Read::Later { .. } => names.all("an entry that a node of a later release has written"),
            Read::Foreign => {
                if self.foreign.len() < 100 && self.foreign.insert(kv.key.clone()) {
                    node.notice(Notice::Foreign { key: String::from_utf8_lossy(&kv.key).into_owned() });
                }
            }
        }
        let head = kv.value.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec();
        self.mark = Some(Mark { key: kv.key.clone(), revision: kv.mod_revision, head });
        let told = Told::Entry { position: kv.mod_revision, transaction: (), names, is_own };
        self.follower.told(told, node.now_ms());
    }
}
