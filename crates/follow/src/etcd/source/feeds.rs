//! The databases' logs that one node follows for all: which node leads, and the confirmations that its claims
//! give. See [`crate::etcd::feed`].

use std::sync::Arc;

use crate::etcd::feed::{AskedRevisions, Claim, Feed, FeedLead};
use crate::etcd::grpc::{Channel, GrpcError};
use crate::etcd::link::RESPONSE_MAX;
use crate::etcd::membership::{self, lease_s};
use crate::etcd::messages::{DeleteRequest, EmptyMessage, KeyValue, PutRequest, PutResponse, WatchEvent};
use crate::etcd::record::NodeState;
use crate::node::ResumePoint;

use super::{EtcdLoop, FleetNode, Mailbox, TaskResult};

/// Between two attempts to lead, in milliseconds.
const LEAD_MS: u64 = 1000;

/// Shortest time between two claims, in milliseconds. A twelfth of the log's `max_lag` if that is shorter.
const CLAIM_MS: u64 = 250;

/// Time for which a node that could not follow the database does not try to lead, in milliseconds.
const RESIGNED_MS: u64 = 10_000;

/// The beginning of all feeds' keys, after the fleet's prefix.
pub(super) const VIA: &str = "/via/";

/// The first word of the value that names the leader.
const MAGIC: &str = "cattlegrid 1 ";

/// A feed, as this node sees it.
pub(super) struct FeedView {
    feed: Arc<Feed>,
    /// The node that leads, with its instance.
    leader: Option<(u64, String)>,
    /// Whether the leader follows other tables, or in another way.
    is_other: bool,
    /// The state in the last claim.
    standing: Option<Box<str>>,
    /// Why the leader cannot follow, as the last claim says it. `said`: the text that this node has logged
    /// last.
    says: Option<Box<str>>,
    said: Option<Box<str>>,
    /// The revisions of the leader's key and of the claim: older events of these keys do not count.
    leader_at: i64,
    claim_at: i64,
    /// The revision that a claim had seen, if the claim has come and is not obeyed yet.
    seen: Option<u64>,
    /// Whether a request to lead, or to leave the lead, is under way.
    is_asking: bool,
    is_claiming: bool,
    lead_ms: u64,
    /// The time until which this node leaves the lead to others, and the time of the next claim, in
    /// milliseconds.
    rests_ms: u64,
    claim_ms: u64,
}

/// The result of a request for a feed.
pub(super) enum FeedResult {
    /// A request to lead, or to leave the lead.
    Asked,
    /// A claim, with the position that it claims.
    Claimed(Result<PutResponse, GrpcError>, Option<u64>),
}

/// The feeds, and the revisions that their claims are compared with.
#[derive(Default)]
pub(super) struct Feeds {
    all: Vec<FeedView>,
    asked: AskedRevisions,
    /// The open question for the head: its number, and when it was asked, in milliseconds.
    questions: Option<(u64, u64)>,
}

impl Feeds {
    pub(super) fn new<W>(mail: &Mailbox<W>) -> Self {
        let via = |feed: &Arc<Feed>| FeedView {
            feed: Arc::clone(feed),
            leader: None,
            is_other: false,
            standing: None,
            says: None,
            said: None,
            leader_at: 0,
            claim_at: 0,
            seen: None,
            is_asking: false,
            is_claiming: false,
            lead_ms: 0,
            rests_ms: 0,
            claim_ms: 0,
        };
        Self { all: mail.feeds.iter().map(via).collect(), ..Self::default() }
    }

    /// Records that a question for the log's head is sent.
    pub(super) fn asks(&mut self, number: u64, now_ms: u64) {
        self.questions = Some((number, now_ms));
    }

    /// Records that the question of this number was answered at this revision.
    pub(super) fn answered(&mut self, number: u64, revision: u64) {
        if let Some((_, at_ms)) = self.questions.take_if(|(asked, _)| *asked == number) {
            self.asked.record(at_ms, revision);
        }
    }
}

impl<W: Send + 'static> EtcdLoop<W> {
    /// Takes the feeds' keys that a new connection has read. `resumes`: the revisions are of the same log as
    /// before.
    pub(super) fn feeds_opened(&mut self, keys: &[KeyValue], resumes: bool) {
        self.feeds.questions = None;
        if !resumes {
            self.feeds.asked.clear();
            self.mail.sightings().clear();
        }
        for via in &mut self.feeds.all {
            (via.is_asking, via.is_claiming, via.lead_ms, via.seen) = (false, false, 0, None);
            // The keys were read after the watch began: earlier events of the same keys do not count.
            (via.leader, via.leader_at) = (None, 0);
            if !resumes {
                (via.standing, via.claim_at) = (None, 0);
                via.feed.forget();
            }
        }
        for kv in keys {
            self.fed(&WatchEvent { kind: 0, kv: Some(kv.clone()) }, false);
        }
    }

    /// Handles a change of a feed's key. `is_streamed`: the change came behind everything written before it.
    pub(super) fn fed(&mut self, event: &WatchEvent, is_streamed: bool) {
        let Some(kv) = &event.kv else { return };
        let rest = kv.key.strip_prefix(self.source.place.prefix.as_bytes());
        let Some(rest) = rest.and_then(|rest| rest.strip_prefix(VIA.as_bytes())) else { return };
        let Some(at) = rest.iter().position(|byte| *byte == b'/') else { return };
        let (name, what) = rest.split_at(at);
        let via = self.feeds.all.iter_mut().find(|via| via.feed.name.as_bytes() == name);
        let Some(via) = via else { return };
        match what {
            b"/claim" if event.kind == 0 && kv.mod_revision > via.claim_at => {
                let Some(claim) = Claim::parse(&kv.value) else { return };
                via.claim_at = kv.mod_revision;
                via.says = claim.says;
                via.is_other = claim.mark != via.feed.mark;
                via.standing = claim.standing.filter(|_| !via.is_other);
                if is_streamed && !via.is_other {
                    via.seen = via.seen.max(Some(claim.seen));
                }
            }
            b"/leader" if kv.mod_revision > via.leader_at => {
                via.leader_at = kv.mod_revision;
                via.leader = (event.kind == 0).then(|| leader(&kv.value)).flatten();
                via.lead_ms = 0;
            }
            _ => {}
        }
    }

    /// Confirms the databases' logs whose claims have come, because everything before a claim is obeyed.
    pub(super) fn obey_claims(&mut self, node: &mut impl FleetNode<Waiter = W>) {
        let is_whole = self.follower.is_whole() && self.seat.is_some();
        for via in &mut self.feeds.all {
            // While entries may be missing a claim proves nothing; the next one does.
            let Some(seen) = via.seen.take().filter(|_| is_whole) else { continue };
            if let Some(asked_at_ms) = self.feeds.asked.obeyed(seen) {
                node.fed(&via.feed.name, asked_at_ms);
            }
        }
    }

    /// Leads if no other node does, and writes claims.
    pub(super) fn keep_feeds(&mut self, now_ms: u64) {
        if self.feeds.all.is_empty() {
            return;
        }
        let (own, prefix) = (self.source.own.instance, self.source.place.prefix.clone());
        let leaves = self.state == NodeState::Draining;
        let is_leased =
            self.lease.is_some() && now_ms < self.leased_ms + lease_s(self.source.settings.max_lag_ms) * 1000;
        let is_ready = self.follower.is_whole() && self.seat.is_some();
        let committed = self.mail.lock().committed();
        let claim_ms = CLAIM_MS.min(self.source.settings.max_lag_ms / 12);
        for at in 0..self.feeds.all.len() {
            let via = &mut self.feeds.all[at];
            let is_own = via.leader.as_ref().is_some_and(|(instance, _)| *instance == own);
            if !is_own {
                via.feed.clear_resignation();
            }
            let leaves = leaves || via.feed.resigns();
            let leads = is_own && is_leased && !leaves;
            // A node that waits for its own name is listed under another one.
            let name = |(instance, name): &(u64, String)| {
                self.fleet.names_of(*instance).next().unwrap_or(name).to_owned()
            };
            via.feed.set_lead(FeedLead {
                is_own: leads,
                leader: via.leader.as_ref().map(name),
                says: via.says.clone().filter(|_| !is_own),
                standing: via.standing.clone().filter(|_| leads),
                is_other: via.is_other && !is_own && via.leader.is_some(),
            });
            if !leads {
                via.feed.forget();
            }
            let Some(link) = &mut self.link else { continue };
            let channel = || link.channel.clone();
            let key = |what: &str| format!("{prefix}{VIA}{}/{what}", via.feed.name);
            if !via.is_asking && now_ms >= via.lead_ms {
                if is_own && leaves {
                    (via.is_asking, via.lead_ms) = (true, now_ms + LEAD_MS);
                    via.rests_ms = now_ms + RESIGNED_MS;
                    let left = leave(channel(), key("leader"));
                    link.tasks.spawn(async move { TaskResult::Fed(at, left.await) });
                } else if via.leader.is_none()
                    && is_ready
                    && !leaves
                    && now_ms >= via.rests_ms
                    && let Some(seat) = &self.seat
                {
                    (via.is_asking, via.lead_ms) = (true, now_ms + LEAD_MS);
                    let value = format!("{MAGIC}{own:016x}\nnode {}", seat.name).into_bytes();
                    let led = lead(channel(), key("leader"), value, seat.lease);
                    link.tasks.spawn(async move { TaskResult::Fed(at, led.await) });
                }
            }
            if !leads || via.is_claiming || now_ms < via.claim_ms {
                continue;
            }
            let (taken, says) = (via.feed.take(committed), via.feed.obstacle());
            if taken.is_none() && says == via.said {
                continue;
            }
            (via.is_claiming, via.claim_ms) = (true, now_ms + claim_ms);
            via.said.clone_from(&says);
            // A claim without a revision carries only the reason why this node cannot follow.
            let last = (0, via.standing.clone().map(|text| ResumePoint { position: 0, text }));
            let (seen, standing) = taken.unwrap_or(last);
            let (position, standing) =
                standing.map(|ResumePoint { position, text }| (position, text)).unzip();
            let claim = Claim { instance: own, mark: via.feed.mark, seen, standing, says };
            let request = PutRequest { key: key("claim").into_bytes(), value: claim.text(), lease: 0 };
            let channel = channel();
            link.tasks.spawn(async move {
                let put = channel.unary("KV/Put", &request, RESPONSE_MAX).await;
                TaskResult::Fed(at, FeedResult::Claimed(put, position))
            });
        }
    }

    /// When [`EtcdLoop::keep_feeds`] is due even if nothing happens, in milliseconds.
    pub(super) fn feeds_next_ms(&self) -> Option<u64> {
        let leads_ms = self.leased_ms + lease_s(self.source.settings.max_lag_ms) * 1000;
        let own = self.source.own.instance;
        if self.feeds.all.is_empty() {
            return None;
        }
        let committed = self.mail.lock().committed();
        let times = self.feeds.all.iter().filter_map(|via| match &via.leader {
            None => Some(via.lead_ms.max(via.rests_ms)),
            Some((instance, _)) if *instance != own => None,
            Some(_)
                if !via.is_claiming
                    && (via.feed.has_confirmation(committed) || via.feed.obstacle() != via.said) =>
            {
                Some(leads_ms.min(via.claim_ms))
            }
            Some(_) => Some(leads_ms),
        });
        times.min()
    }

    /// Ends the lead of all feeds: no node of this process leads any more.
    pub(super) fn end_feeds(&self) {
        for via in &self.feeds.all {
            via.feed.set_lead(FeedLead::default());
        }
    }

    /// Handles the result of a request for a feed. An error: the connection is of no use.
    pub(super) fn feed_done(&mut self, at: usize, done: FeedResult, now_ms: u64) -> Result<(), GrpcError> {
        let Some(via) = self.feeds.all.get_mut(at) else { return Ok(()) };
        match done {
            // The watch brings the result.
            FeedResult::Asked => via.is_asking = false,
            FeedResult::Claimed(Ok(response), position) => {
                let cluster = response.header.as_ref().map(|header| header.cluster_id);
                if cluster != self.link.as_ref().map(|link| link.cluster) {
                    return Err(GrpcError::Protocol("the cluster is another one"));
                }
                via.is_claiming = false;
                if let Some(position) = position {
                    via.feed.note_committed(position);
                }
                let revision = response.header.map_or(0, |header| header.revision);
                self.mail.sightings().see(u64::try_from(revision).unwrap_or(0), now_ms);
            }
            // etcd is out of space: the next claim may fit.
            FeedResult::Claimed(Err(error), _) if error.is_refusal() => via.is_claiming = false,
            FeedResult::Claimed(Err(error), _) => return Err(error),
        }
        Ok(())
    }
}

/// The instance and the name of the leader.
fn leader(value: &[u8]) -> Option<(u64, String)> {
    let text = std::str::from_utf8(value).ok()?;
    let mut lines = text.lines();
    let instance = u64::from_str_radix(lines.next()?.strip_prefix(MAGIC)?.split(' ').next()?, 16).ok()?;
    let name = lines.find_map(|line| line.strip_prefix("node "));
    Some((instance, name.unwrap_or_default().to_owned()))
}

/// Leads if no node does, for as long as the node's own lease lasts.
async fn lead(channel: Channel, key: String, value: Vec<u8>, lease: i64) -> FeedResult {
    // The watch brings the result.
    let _known_later = membership::claim(&channel, key, value, lease, None).await;
    FeedResult::Asked
}

/// Leaves the lead to another node.
async fn leave(channel: Channel, key: String) -> FeedResult {
    let request = DeleteRequest { key: key.into_bytes() };
    // Without it the lease runs out.
    let _left = channel.unary::<_, EmptyMessage>("KV/DeleteRange", &request, RESPONSE_MAX).await;
    FeedResult::Asked
}
