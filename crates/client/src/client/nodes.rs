//! The servers of a client that are those of a fleet's list.
//!
//! Commands ask for the list: the first one waits for it, later ones begin a question in the background when
//! an interval has passed since the last answer, and wait for it only when the list is older than [`OLD`]
//! intervals, which is so after a pause of the program. So a program that sends nothing asks for nothing, and
//! nothing depends on a task or a runtime that lives.
//!
//! A question goes to the node that has answered last, to others of the list, and to the addresses that were
//! given, one after the other until one answers, over connections of their own: an answer that is late ends
//! no connection of commands.
//!
//! # Invariants
//! * One question at a time. Only it replaces [`Nodes::current`].
//! * Without a list that has a server which gets keys, the servers stay as they are: those of the last list,
//!   or the addresses that were given.

mod leases;
mod list;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::client::servers::Servers;
use crate::error::Error;
use crate::item::Item;
use crate::net::address::Address;
use crate::net::connection::TimeLimit;
use crate::net::node::{Node, NodeSettings, random};
use crate::net::wire::{Command, Reply};
use crate::route::Options;

use leases::LeaseTable;

/// A list that is older than this many intervals is asked for before a command is sent.
const OLD: u32 = 3;
/// Most nodes of the list that are asked in one question, before the addresses that were given.
const NODES_MAX: usize = 4;
/// Longest wait for the answer of one node.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// When a server fails the list is asked for again and again for this long, since it may be leaving.
const LEAVING: Duration = Duration::from_millis(250);
/// The time between two questions in it.
const LEAVING_PAUSE: Duration = Duration::from_millis(10);
/// After it none begins for this long, for the same server.
const LEAVING_AGAIN: Duration = Duration::from_secs(1);

/// How a list is asked for.
#[derive(Debug, Clone)]
pub(crate) struct ListSource {
    /// The addresses that are asked first.
    pub(crate) seeds: Vec<Address>,
    pub(crate) key: String,
    pub(crate) interval: Duration,
}

/// See the module's text.
pub(crate) struct Nodes {
    asking: ListSource,
    options: Options,
    /// Settings of the connections for commands.
    settings: Arc<NodeSettings>,
    /// Settings of the connections that ask for the list.
    own: Arc<NodeSettings>,
    /// How long one node may take to answer.
    answer: Duration,
    current: RwLock<Arc<Servers>>,
    /// A list was had.
    has_list: AtomicBool,
    is_asked: AtomicBool,
    /// Counts questions that have ended.
    asked: watch::Sender<u64>,
    /// The node that has answered last.
    last: Mutex<Option<Arc<Node>>>,
    /// Times are counted from here, in milliseconds.
    began: Instant,
    /// When the next question is due.
    due_ms: AtomicU64,
    /// From when on the list is old.
    old_ms: AtomicU64,
    pub(crate) leases: LeaseTable,
}

impl Nodes {
    pub(crate) fn new(
        asking: ListSource,
        servers: Servers,
        options: Options,
        settings: &Arc<NodeSettings>,
    ) -> Self {
        let answer = (settings.timeout / 4).clamp(Duration::from_millis(10), ANSWER_MAX);
        // What is asked here is none of the program's requests.
        let own = NodeSettings {
            timeout: answer,
            connect_timeout: settings.connect_timeout.min(answer),
            connections: 1,
            metrics: Arc::default(),
            ..NodeSettings::clone(settings)
        };
        Self {
            asking,
            options,
            settings: settings.clone(),
            own: Arc::new(own),
            answer,
            current: RwLock::new(Arc::new(servers)),
            has_list: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            asked: watch::Sender::new(0),
            last: Mutex::default(),
            began: Instant::now(),
            due_ms: AtomicU64::new(0),
            old_ms: AtomicU64::new(0),
            leases: LeaseTable::default(),
        }
    }

    /// The servers as of now.
    pub(crate) fn current(&self) -> Arc<Servers> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The servers for a command. Waits for a list that is old, at most for half of the command's time.
    pub(crate) async fn servers(self: &Arc<Self>, limit: TimeLimit) -> Arc<Servers> {
        let now_ms = self.ms();
        if now_ms >= self.due_ms.load(Ordering::Acquire) {
            let answered = self.asked.subscribe();
            self.ask();
            if now_ms >= self.old_ms.load(Ordering::Acquire) {
                wait(answered, limit.at.checked_sub(limit.in_all / 2).unwrap_or(limit.at)).await;
            }
        }
        self.current()
    }

    /// The servers when they are others than those in which this node has failed: a server that leaves is
    /// listed as leaving within milliseconds, which are waited for once. None: they are the same.
    pub(crate) async fn after_failure(
        self: &Arc<Self>,
        seen: &Arc<Servers>,
        failed: &Node,
        limit: TimeLimit,
    ) -> Option<Arc<Servers>> {
        let end = failed.may_leave_until(LEAVING, LEAVING_AGAIN).map(|until| until.min(limit.at));
        loop {
            let current = self.current();
            if !Arc::ptr_eq(&current, seen) {
                return Some(current);
            }
            let end = end.filter(|end| Instant::now() < *end)?;
            let answered = self.asked.subscribe();
            self.ask();
            wait(answered, end).await;
            if Arc::ptr_eq(&self.current(), seen) {
                sleep_until(end.min(Instant::now() + LEAVING_PAUSE)).await;
            }
        }
    }

    /// Begins a question in the background, unless there is one.
    fn ask(self: &Arc<Self>) {
        if self.is_asked.swap(true, Ordering::AcqRel) {
            return;
        }
        let question = ListRequest(self.clone());
        tokio::spawn(async move {
            question.0.ask_all().await;
            drop(question);
        });
    }

    async fn ask_all(&self) {
        self.leases.forget_old(Instant::now());
        let mut behind = None;
        for address in self.to_ask() {
            match self.ask_one(address).await {
                Ok(list) if list.is_behind => behind = behind.or(Some(list)),
                Ok(list) => return self.take(list),
                Err(error) => self.settings.metrics.no_list(&error),
            }
        }
        // An old list is better than none.
        if let Some(list) = behind.filter(|_| !self.has_list.load(Ordering::Acquire)) {
            self.take(list);
        }
    }

    /// Whom to ask, in this order: the node that has answered last, others from a random one on, and what was
    /// given.
    fn to_ask(&self) -> Vec<Address> {
        let servers = self.current();
        let listed: Vec<_> = servers.nodes.iter().map(|node| &node.address).collect();
        let last = self.last().as_ref().map(|node| node.address.clone());
        let mut all: Vec<Address> = Vec::new();
        let mut add = |address: &Address| {
            if !all.iter().any(|own| own.name == address.name) {
                all.push(address.clone());
            }
        };
        // A node that gets no keys may be about to go.
        last.iter().filter(|last| listed.iter().any(|own| own.name == last.name)).for_each(&mut add);
        #[expect(clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "1000 servers at most")]
        let first = (random() * listed.len() as f64) as usize;
        listed.iter().cycle().skip(first).take(listed.len().min(NODES_MAX)).for_each(|own| add(own));
        self.asking.seeds.iter().for_each(add);
        all
    }

    async fn ask_one(&self, address: Address) -> Result<list::NodeList, Error> {
        let kept = self.last().take().filter(|node| node.name() == &*address.name);
        let node = kept.unwrap_or_else(|| Arc::new(Node::new(address, self.own.clone())));
        let command = Command::Get { key: self.asking.key.as_bytes(), cas: false };
        let reply = node.one(&command, true, TimeLimit::after(self.answer)).await?;
        let Reply::Value { item: Item { data, .. }, .. } = reply else {
            return Err(wrong(&node, "has no list of nodes: it has no [follow.NAME] of etcd".to_owned()));
        };
        let list = list::read(&data).map_err(|why| wrong(&node, why))?;
        if list.servers.is_empty() {
            return Err(wrong(&node, "its list has no node that gets keys".to_owned()));
        }
        *self.last() = Some(node);
        Ok(list)
    }

    /// The servers are those of this list from now on.
    fn take(&self, list: list::NodeList) {
        self.has_list.store(true, Ordering::Release);
        let before = self.current();
        let same = list.servers.iter().map(|server| &*server.name);
        if same.eq(before.nodes.iter().map(|node| node.name())) {
            return;
        }
        match before.next(list.servers, self.options, &self.settings) {
            Ok(servers) => {
                let names: Vec<_> = servers.nodes.iter().map(|node| node.name().to_owned()).collect();
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(servers);
                self.settings.metrics.servers(&names.iter().map(String::as_str).collect::<Vec<_>>());
            }
            Err(error) => self.settings.metrics.no_list(&Error::Usage(error.to_string())),
        }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<Arc<Node>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ms(&self) -> u64 {
        ms(self.began.elapsed())
    }
}

/// A question that is under way. It ends when this is dropped, also with its runtime.
struct ListRequest(Arc<Nodes>);

impl Drop for ListRequest {
    fn drop(&mut self) {
        let Self(nodes) = self;
        let (now_ms, interval) = (nodes.ms(), nodes.asking.interval);
        // Clients that were started together do not ask together.
        let pause = interval.mul_f64(0.75 + random() / 2.0);
        nodes.due_ms.store(now_ms.saturating_add(ms(pause)), Ordering::Release);
        nodes.old_ms.store(now_ms.saturating_add(ms(interval.saturating_mul(OLD))), Ordering::Release);
        nodes.is_asked.store(false, Ordering::Release);
        nodes.asked.send_modify(|asked| *asked += 1);
    }
}

/// Waits for the end of a question, until this time.
async fn wait(mut answered: watch::Receiver<u64>, until: Instant) {
    // The sender lives as long as the list.
    drop(timeout_at(until, answered.changed()).await);
}

fn wrong(node: &Node, message: String) -> Error {
    Error::Protocol { server: node.name().to_owned(), message }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
