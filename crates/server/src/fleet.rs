//! This server as a node of a fleet, which shares a log in etcd: bumps of this server's clients are written
//! to it, and bumps of other nodes are read from it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use cattlegrid_config::{BumpReply, EtcdLog, FollowSettings};
use cattlegrid_engine::{BumpLog, BumpWait, BumpWaiter, Now, SentBump};
use cattlegrid_follow::etcd::{
    Bump, CONFIRM_MS_MAX, Feed, FleetNode, ListedNode, Mailbox, NodeIdentity as OwnNode, Source, TicketState,
};
use cattlegrid_follow::postgres::{SslMode, TlsError, client_config};
use cattlegrid_follow::{Name, Settings};
use cattlegrid_tags::{BumpKind, PrefixId};

use crate::followed::LogView;
use crate::follows::{FollowContext, lock};
use crate::lane::handle::Message;
use crate::listen::Address;
use crate::log;
use crate::shared::Shared;
use crate::via::Via;

/// The time that a barrier allows beyond `max_lag`, in milliseconds: the longest lease of a silent node, and
/// the delay of etcd.
const LEASE_MS: u64 = 8_000;

/// The log for bumps of clients. A reload may replace it.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    is_on: AtomicBool,
    writer: ArcSwapOption<BumpWriter>,
}

/// The way to write bumps into one log.
#[derive(Debug)]
pub(crate) struct BumpWriter {
    pub(crate) mail: Arc<Mailbox<BumpWaiter>>,
    /// Views of the databases' logs that arrive by this log, in the order of the mailbox's feeds.
    views: Vec<Arc<Mutex<LogView>>>,
    reply: BumpReply,
    barrier_ms: u64,
    instance: u64,
    seen: Mutex<FleetState>,
    /// Bumps of clients that were handed to the log.
    pub(crate) sent: AtomicU64,
    /// Replies that waited for the log, and replies whose bumps were not confirmed.
    pub(crate) waited: AtomicU64,
    pub(crate) not_confirmed: AtomicU64,
}

/// The nodes and the progress of the fleet.
#[derive(Debug, Default, Clone)]
pub(crate) struct FleetState {
    pub(crate) nodes: Vec<ListedNode>,
    /// When the log was last confirmed, in milliseconds since the start.
    pub(crate) confirmed_ms: Option<u64>,
}

impl Fleet {
    /// Sends bumps to the log of this writer from now on; None: to no log.
    pub(crate) fn set(&self, writer: Option<Arc<BumpWriter>>) {
        self.is_on.store(writer.is_some(), Relaxed);
        self.writer.store(writer);
    }

    /// Stops sending bumps to this writer's log.
    pub(crate) fn unset(&self, writer: &Arc<BumpWriter>) {
        if self.writer.load().as_ref().is_some_and(|own| Arc::ptr_eq(own, writer)) {
            self.set(None);
        }
    }
}

impl BumpWriter {
    pub(crate) fn new(settings: &FollowSettings, etcd: &EtcdLog, feeds: &[(String, u64)]) -> Self {
        let feeds: Vec<_> =
            feeds.iter().map(|(name, mark)| Arc::new(Feed::new(name.clone(), *mark))).collect();
        let max_lag_ms = u64::try_from(settings.max_lag.as_millis()).unwrap_or(u64::MAX);
        Self {
            views: feeds.iter().map(|_| Arc::default()).collect(),
            mail: Arc::new(Mailbox::new(feeds)),
            reply: etcd.bump_reply,
            barrier_ms: 2 * max_lag_ms + LEASE_MS,
            instance: random(),
            seen: Mutex::default(),
            sent: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            not_confirmed: AtomicU64::new(0),
        }
    }

    /// The way by which the database's log `name` is written into this log.
    pub(crate) fn via(&self, name: &str) -> Option<Via> {
        let at = self.mail.feeds().iter().position(|(own, _)| own == name)?;
        let (feed, view) = (self.mail.feed(name)?, self.views.get(at)?);
        Some(Via::new(Arc::clone(feed), Arc::clone(&self.mail), Arc::clone(view)))
    }

    /// A copy of the fleet's state.
    pub(crate) fn seen(&self) -> FleetState {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn update_state(&self, act: impl FnOnce(&mut FleetState)) {
        act(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

impl BumpLog for Fleet {
    fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    fn push(&self, bump: &SentBump<'_>) -> u64 {
        let writer = self.writer.load();
        let Some(writer) = writer.as_ref() else { return 0 };
        writer.sent.fetch_add(1, Relaxed);
        writer.mail.push(&match *bump {
            SentBump::Tag { prefix, name, kind } => {
                Bump::Tag { is_soft: kind == BumpKind::Soft, prefix: prefix.to_vec(), name: name.to_vec() }
            }
            SentBump::Gradual { prefix, name, seconds } => {
                Bump::Gradual { seconds, prefix: prefix.to_vec(), name: name.to_vec() }
            }
            SentBump::Flush { seconds } => Bump::Flush { seconds },
        })
    }

    fn wait(&self, ticket: u64, is_barrier: bool, who: BumpWaiter, now_ms: u64) -> BumpWait {
        let writer = self.writer.load();
        let Some(writer) = writer.as_ref() else { return BumpWait::Lost };
        if writer.reply == BumpReply::Local && !is_barrier {
            return BumpWait::Over;
        }
        match writer.mail.wait(ticket, is_barrier || writer.reply == BumpReply::Barrier, who) {
            TicketState::Over => BumpWait::Over,
            TicketState::Lost => {
                writer.not_confirmed.fetch_add(1, Relaxed);
                BumpWait::Lost
            }
            TicketState::Waits => {
                writer.waited.fetch_add(1, Relaxed);
                BumpWait::Until(now_ms + if is_barrier { writer.barrier_ms } else { CONFIRM_MS_MAX })
            }
        }
    }

    fn nodes(&self, now_ms: u64) -> String {
        let writer = self.writer.load();
        let Some(writer) = writer.as_ref() else { return "[]".to_owned() };
        let seen = writer.seen();
        let nodes = seen.nodes.iter().map(|ListedNode { name, record }| {
            let is_own = record.instance == writer.instance;
            let lag_ms = match (is_own, seen.confirmed_ms) {
                (true, Some(at_ms)) => Some(now_ms.saturating_sub(at_ms)),
                _ => record.lag_ms,
            };
            serde_json::json!({
                "name": name,
                "address": record.address,
                "state": record.state.name(),
                "applied": record.applied,
                "lag_ms": lag_ms,
                "max_lag_ms": record.max_lag_ms,
                "version": record.release,
                "self": is_own,
            })
        });
        serde_json::Value::Array(nodes.collect()).to_string()
    }
}

impl FleetNode for FollowContext {
    type Waiter = BumpWaiter;

    fn tell(&mut self, waiters: Vec<BumpWaiter>, is_confirmed: bool) {
        if let Some(writer) = self.writer.as_ref().filter(|_| !is_confirmed) {
            writer.not_confirmed.fetch_add(waiters.len() as u64, Relaxed);
        }
        let mut by_lane: Vec<Vec<_>> = self.shared.lanes.iter().map(|_| Vec::new()).collect();
        for waiter in waiters {
            let lane = waiter.lane();
            by_lane[lane].push(waiter.wake(is_confirmed));
        }
        for (lane, wakes) in by_lane.into_iter().enumerate().filter(|(_, wakes)| !wakes.is_empty()) {
            self.shared.lanes[lane].tell(Message::Wakes(wakes));
        }
    }

    fn fed(&mut self, name: &str, asked_at_ms: u64) {
        let now_ms = self.shared.clock.millis();
        self.shared.engine.shared().log_confirmed(name, asked_at_ms, now_ms);
        if let Some(via) = self.writer.as_ref().and_then(|writer| writer.via(name)) {
            lock(&via.view).confirmed(asked_at_ms, now_ms);
        }
    }

    fn fleet(&mut self, nodes: Vec<ListedNode>) {
        if let Some(writer) = &self.writer {
            writer.update_state(|seen| seen.nodes = nodes);
        }
    }
}

impl FollowContext {
    /// Notes that the log was confirmed at `at_ms`, in milliseconds since the start.
    pub(crate) fn note_confirmed(&self, at_ms: u64) {
        if let Some(writer) = &self.writer {
            writer.update_state(|seen| seen.confirmed_ms = Some(at_ms));
        }
    }

    /// Executes a bump of another node.
    pub(crate) fn execute_bump(&self, Name { tag: line, .. }: &Name, now: Now) {
        let shared = self.shared.engine.shared();
        // No item on this server has a prefix that it does not know.
        let find = |prefix: &[u8]| match prefix {
            [] => Some(PrefixId::NONE),
            _ => shared.prefixes().find(prefix),
        };
        match Bump::parse(line) {
            Some(Bump::Tag { is_soft, prefix, name }) => {
                let kind = if is_soft || self.settings.soft { BumpKind::Soft } else { BumpKind::Hard };
                if let Some(prefix) = find(&prefix) {
                    self.shared.engine.bump_followed(prefix, &name, kind, now);
                }
            }
            Some(Bump::Each { is_soft, name }) => {
                let kind = if is_soft || self.settings.soft { BumpKind::Soft } else { BumpKind::Hard };
                let all = shared.prefixes().all().map(|(prefix, _)| prefix);
                for prefix in std::iter::once(PrefixId::NONE).chain(all) {
                    self.shared.engine.bump_followed(prefix, &name, kind, now);
                }
            }
            Some(Bump::Gradual { seconds, prefix, name }) => {
                if let Some(prefix) = find(&prefix) {
                    self.shared.engine.purge_followed(prefix, &name, seconds, now);
                }
            }
            Some(Bump::Flush { seconds }) => drop(shared.flush_rolling(now.ms, seconds * 1000)),
            Some(Bump::All { .. } | Bump::Nothing) | None => debug_assert!(false, "the source knows these"),
        }
    }
}

/// The data that other nodes see of this server.
fn own_node(shared: &Shared, instance: u64) -> OwnNode {
    let host = || {
        let read = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Some(read.trim().to_owned()).filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".to_owned())
    };
    let listeners = shared.listeners.lock().unwrap_or_else(PoisonError::into_inner);
    let bound = listeners.iter().find_map(|listener| match &listener.address {
        Address::Tcp(address) => Some(*address),
        Address::Unix(_) => None,
    });
    drop(listeners);
    let at = bound.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));
    let address = if at.ip().is_unspecified() { format!("{}:{}", host(), at.port()) } else { at.to_string() };
    let name = shared.settings.protection.node.clone().unwrap_or_else(|| format!("{}:{}", host(), at.port()));
    OwnNode { name, address, release: env!("CARGO_PKG_VERSION").to_owned(), instance }
}

/// The source by which this server follows the log.
pub(crate) fn source(
    shared: &Shared,
    settings: &FollowSettings,
    etcd: &EtcdLog,
    writer: &BumpWriter,
) -> Result<Source, TlsError> {
    Ok(Source { own: own_node(shared, writer.instance), ..bare_source(settings, etcd)? })
}

/// The source by which a command inspects the log without being a node.
pub(crate) fn bare_source(settings: &FollowSettings, etcd: &EtcdLog) -> Result<Source, TlsError> {
    let mut tls = Vec::new();
    if etcd.place.ssl != SslMode::Disable {
        let own = settings.ssl_own.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        for (host, _) in &etcd.place.servers {
            tls.push(client_config(etcd.place.ssl, settings.ssl_ca.as_deref(), host, own)?);
        }
    }
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(Source {
        place: etcd.place.clone(),
        tls,
        settings: Settings { max_lag_ms: ms(settings.max_lag), again_ms: ms(settings.again) },
        own: OwnNode {
            name: String::new(),
            address: String::new(),
            release: String::new(),
            instance: random(),
        },
    })
}

/// Logs that a log takes no bumps, or takes them again.
pub(crate) fn say_takes(name: &str, refused: Option<&str>) {
    match refused {
        Some(reason) => log::warning(format_args!(
            "log {name}: takes no bumps of this server, which answers {:?} until this is mended: {reason}",
            "CLIENT_ERROR bump not confirmed"
        )),
        None => log::notice(format_args!("log {name}: takes bumps again")),
    }
}
