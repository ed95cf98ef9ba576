//! A database's log that one node of a fleet follows for all of them: the *feed*.
//!
//! The node that leads writes what the database's log bumps into the log of etcd, as its clients' bumps. When
//! that is committed it writes a *claim* under `PREFIX/via/NAME/claim`:
//!
//! ```text
//! cattlegrid 1 00c0ffee00c0ffee
//! follows 8c5e21b7a3d0f946
//! seen 4711
//! standing postgres 7301... 1 0/16B3748 - - 5c1e... 4711
//! ```
//!
//! # What a claim promises
//! Whatever was committed in the database before the leader asked it is bumped in the log of etcd before the
//! claim. And before it asked, it had seen the revision `seen`. So a node that asked etcd for its revision at
//! a time *a* and was told less than `seen` knows that the leader asked after *a*: revisions are given out in
//! order, and the one that the leader had seen was not there yet. When the claim has come to the node, behind
//! all that is before it, what was committed in the database before *a* is obeyed. No clocks are compared.
//!
//! A claim is as true when two nodes lead, as after one was stopped for a while: each writes claims of what
//! it has itself followed and written. The lease decides only who has the database's slot.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::node::ResumePoint;

/// The first words of a claim, with the format's version.
const MAGIC: &str = "cattlegrid 1 ";

/// Revisions seen within this time count as seen at its end, in milliseconds.
const STEP_MS: u64 = 20;

/// Most steps that are remembered. They last for more than a minute; a log that lags by more gets no claims.
const STEPS_MAX: usize = 4096;

/// Most characters of the reason why a node cannot follow.
const SAYS_CHARS_MAX: usize = 1000;

/// Most questions for a revision that no claim has answered yet.
const ASKED_MAX: usize = 256;

/// Most confirmations of the database's log that are not claimed yet.
const CONFIRMATIONS_MAX: usize = 64;

/// A leader's claim. See the module's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The instance of the node that leads.
    pub instance: u64,
    /// The leader's [`Feed::mark`].
    pub mark: u64,
    /// A revision that the leader had seen before it asked the database; 0: none.
    pub seen: u64,
    /// The state from which another node can continue; None: no node can.
    pub standing: Option<Box<str>>,
    /// Why the leader cannot follow, for the log of the other nodes; None: it follows.
    pub says: Option<Box<str>>,
}

impl Claim {
    /// The value that is written.
    pub fn text(&self) -> Vec<u8> {
        let Self { instance, mark, seen, standing, says } = self;
        let mut text = format!("{MAGIC}{instance:016x}\nfollows {mark:016x}\nseen {seen}");
        if let Some(standing) = standing {
            text.extend(["\nstanding ", standing]);
        }
        if let Some(says) = says {
            text.push_str("\nsays ");
            text.extend(
                says.chars().map(|char| if char.is_control() { ' ' } else { char }).take(SAYS_CHARS_MAX),
            );
        }
        text.into_bytes()
    }

    /// Reads a value. Unknown lines are of later releases and ignored. `None`: the value is no claim.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let mut lines = text.lines();
        let instance = lines.next()?.strip_prefix(MAGIC)?.split(' ').next()?;
        let mut claim = Self {
            instance: u64::from_str_radix(instance, 16).ok()?,
            mark: 0,
            seen: 0,
            standing: None,
            says: None,
        };
        for (name, value) in lines.filter_map(|line| line.split_once(' ')) {
            match name {
                "follows" => claim.mark = u64::from_str_radix(value, 16).ok()?,
                "seen" => claim.seen = value.parse().ok()?,
                "standing" => claim.standing = Some(value.into()),
                "says" => claim.says = Some(value.into()),
                _ => {}
            }
        }
        Some(claim)
    }
}

/// The revisions that a node had seen at each time.
#[derive(Debug, Default)]
pub struct Sightings(VecDeque<(u64, u64)>);

impl Sightings {
    /// Records that a revision has been seen.
    pub fn see(&mut self, revision: u64, now_ms: u64) {
        let at_ms = (now_ms / STEP_MS + 1) * STEP_MS;
        match self.0.back_mut() {
            Some((_, last)) if *last >= revision => {}
            Some((last_ms, last)) if *last_ms == at_ms => *last = revision,
            _ => {
                if self.0.len() == STEPS_MAX {
                    self.0.pop_front();
                }
                self.0.push_back((at_ms, revision));
            }
        }
    }

    /// The last revision seen before this time; 0: none is known.
    pub fn before(&self, at_ms: u64) -> u64 {
        let count = self.0.partition_point(|(seen_ms, _)| *seen_ms < at_ms);
        count.checked_sub(1).and_then(|last| self.0.get(last)).map_or(0, |(_, revision)| *revision)
    }

    /// Forgets all revisions: from now on they are those of another log.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// The revisions that etcd has told this node, each with the time of the question.
#[derive(Debug, Default)]
pub struct AskedRevisions(VecDeque<(u64, u64)>);

impl AskedRevisions {
    /// Records that etcd, when asked at `asked_at_ms`, was at `revision` or later.
    pub fn record(&mut self, asked_at_ms: u64, revision: u64) {
        // Of several questions with the same answer only the last one is kept: it knows most.
        self.0.retain(|(at_ms, other)| *at_ms > asked_at_ms || *other < revision);
        if self.0.len() == ASKED_MAX {
            self.0.pop_front();
        }
        self.0.push_back((asked_at_ms, revision));
    }

    /// The time up to which the database's log is obeyed once a claim with `seen` has come; None: no question
    /// fits.
    pub fn obeyed(&self, seen: u64) -> Option<u64> {
        self.0.iter().filter(|(_, revision)| *revision < seen).map(|(at_ms, _)| *at_ms).max()
    }

    /// Forgets all revisions: from now on they are those of another log.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// The leader of a feed, as this node knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FeedLead {
    /// Whether this node leads.
    pub is_own: bool,
    /// The leader; None: no node leads.
    pub leader: Option<String>,
    /// The state in the last claim when this node began to lead.
    pub standing: Option<Box<str>>,
    /// Whether the leader follows other tables, or in another way.
    pub is_other: bool,
    /// Why the leader cannot follow; None: it follows.
    pub says: Option<Box<str>>,
}

/// A confirmation of the database's log. It is claimed when its bumps are in the log of etcd.
#[derive(Debug)]
struct Confirmation {
    seen: u64,
    /// The ticket of the last of its bumps.
    ticket: u64,
    standing: Option<ResumePoint>,
}

/// State that the threads of the two logs share. See the module's text.
#[derive(Debug)]
pub struct Feed {
    /// The name of the database's log.
    pub name: String,
    /// A fingerprint of the tables and the way in which they are followed. Nodes with another mark ignore
    /// claims.
    pub mark: u64,
    lead: watch::Sender<FeedLead>,
    state: Mutex<FeedState>,
}

#[derive(Debug, Default)]
struct FeedState {
    confirmations: VecDeque<Confirmation>,
    /// The position up to which the claims in the log stand.
    kept: Option<u64>,
    /// Whether this node leads but cannot follow the database, so that another one should.
    resigns: bool,
    /// Why this node cannot follow the database; None: it can.
    says: Option<Box<str>>,
}

impl Feed {
    /// A feed of the log of this name. No node leads.
    pub fn new(name: String, mark: u64) -> Self {
        Self { name, mark, lead: watch::Sender::default(), state: Mutex::default() }
    }

    /// The leader, and its changes.
    pub fn lead(&self) -> watch::Receiver<FeedLead> {
        self.lead.subscribe()
    }

    pub(crate) fn set_lead(&self, lead: FeedLead) {
        self.lead.send_if_modified(|own| {
            // The state of the last claim counts only when this node begins to lead.
            let is_new =
                FeedLead { standing: None, ..own.clone() } != FeedLead { standing: None, ..lead.clone() };
            if is_new {
                *own = lead;
            }
            is_new
        });
    }

    /// Records a confirmation of the database's log. `seen`: the revision seen before the database was asked;
    /// `ticket`: of the last bump before the confirmation.
    pub fn confirm(&self, seen: u64, ticket: u64, standing: Option<ResumePoint>) {
        let mut state = self.lock();
        if state.confirmations.len() == CONFIRMATIONS_MAX {
            state.confirmations.pop_front();
        }
        state.confirmations.push_back(Confirmation { seen, ticket, standing });
    }

    /// The position before which the database may forget its log; None: no claim of this node is committed
    /// yet.
    pub fn kept(&self) -> Option<u64> {
        self.lock().kept
    }

    /// Whether [`Feed::take`] would return a confirmation.
    pub fn has_confirmation(&self, committed: u64) -> bool {
        self.lock().confirmations.front().is_some_and(|confirmation| confirmation.ticket <= committed)
    }

    /// The last confirmation whose bumps are committed up to this ticket: the revision it had seen, and the
    /// state to continue from.
    pub fn take(&self, committed: u64) -> Option<(u64, Option<ResumePoint>)> {
        let mut state = self.lock();
        let mut last = None;
        while state.confirmations.front().is_some_and(|confirmation| confirmation.ticket <= committed) {
            last = state.confirmations.pop_front();
        }
        last.map(|confirmation| (confirmation.seen, confirmation.standing))
    }

    /// Records that a claim is committed.
    pub fn note_committed(&self, position: u64) {
        let mut state = self.lock();
        state.kept = state.kept.max(Some(position));
    }

    /// Forgets confirmations that are not claimed yet: the node does not lead any more, or the log of etcd is
    /// another one.
    pub fn forget(&self) {
        self.lock().confirmations.clear();
    }

    /// Asks for another leader, because this node cannot follow the database.
    pub fn resign(&self) {
        self.lock().resigns = true;
    }

    /// Records why this node cannot follow; None: it can.
    pub(crate) fn report(&self, says: Option<Box<str>>) {
        self.lock().says = says;
    }

    pub(crate) fn obstacle(&self) -> Option<Box<str>> {
        self.lock().says.clone()
    }

    /// Ends the wish for another leader.
    pub(crate) fn clear_resignation(&self) {
        self.lock().resigns = false;
    }

    pub(crate) fn resigns(&self) -> bool {
        self.lock().resigns
    }

    /// Starts again: this node follows the database's log anew.
    pub fn begin(&self) {
        *self.lock() = FeedState::default();
    }

    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for standing in [None, Some("7301 1 0/16B3748 -".into())] {
            let says = standing.clone();
            let claim = Claim { instance: 7, mark: u64::MAX, seen: 12, standing, says };
            assert_eq!(Claim::parse(&claim.text()), Some(claim.clone()));
            let later = [&claim.text()[..], b"\nweight 3"].concat();
            assert_eq!(Claim::parse(&later), Some(claim));
        }
        for foreign in [&b""[..], b"hello", b"cattlegrid 2 1\nseen 1", b"cattlegrid 1 1\nseen x", b"\xff"] {
            assert_eq!(Claim::parse(foreign), None);
        }
    }

    #[test]
    fn a_revision_counts_when_it_was_seen_before_the_question() {
        let mut seen = Sightings::default();
        assert_eq!(seen.before(1000), 0);
        seen.see(5, 100);
        seen.see(6, 119);
        assert_eq!((seen.before(119), seen.before(120), seen.before(121)), (0, 0, 6));
        seen.see(6, 500);
        seen.see(4, 600);
        seen.see(9, 700);
        assert_eq!((seen.before(700), seen.before(721), seen.before(u64::MAX)), (6, 9, 9));
        for step in 0..2 * STEPS_MAX as u64 {
            seen.see(10 + step, 1000 + step * STEP_MS);
        }
        assert_eq!((seen.0.len(), seen.before(2000)), (STEPS_MAX, 0), "forgotten: none is known");
    }

    #[test]
    fn a_claim_obeys_what_was_asked_before_the_leader_asked() {
        let mut asked = AskedRevisions::default();
        assert_eq!(asked.obeyed(100), None);
        asked.record(1000, 10);
        asked.record(1500, 10);
        asked.record(2000, 12);
        assert_eq!((asked.obeyed(10), asked.obeyed(11), asked.obeyed(12)), (None, Some(1500), Some(1500)));
        assert_eq!(asked.obeyed(13), Some(2000));
        // A question whose answer came late was asked earlier, and knows more.
        asked.record(1900, 14);
        assert_eq!((asked.obeyed(13), asked.obeyed(15)), (Some(2000), Some(2000)));
        for step in 0..2 * ASKED_MAX as u64 {
            asked.record(3000 + step, 20 + step);
        }
        assert_eq!(asked.0.len(), ASKED_MAX);
    }

    #[test]
    fn what_is_said_is_claimed_when_its_bumps_are_committed() {
        let feed = Feed::new("shop".to_owned(), 1);
        let standing = |position| Some(ResumePoint { position, text: position.to_string().into() });
        feed.confirm(7, 3, standing(70));
        feed.confirm(8, 5, standing(80));
        feed.confirm(9, 6, None);
        assert_eq!(feed.take(2), None);
        assert_eq!(feed.take(5), Some((8, standing(80))));
        assert_eq!(feed.take(5), None);
        feed.forget();
        assert_eq!(feed.take(100), None);
        assert_eq!(feed.kept(), None);
        feed.note_committed(80);
        feed.note_committed(70);
        assert_eq!(feed.kept(), Some(80));
        feed.begin();
        assert_eq!(feed.kept(), None);
    }
}
