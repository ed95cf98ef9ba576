//! The state machine that follows one log. It knows which entries have arrived and are not visible yet, and
//! which heads the stream has passed; it decides when to ask the server and when to connect again. The
//! histories are at the top of the crate.
//!
//! # Invariants
//! * An entry is bumped after a snapshot has seen its transaction, and acknowledged after it has been bumped.
//! * A head is confirmed when the stream has passed its position and no entry below it waits.
//! * Nothing is confirmed by a stream that may have left something out before everything has been flushed.

use std::collections::VecDeque;
use std::fmt;

use crate::again::RepeatedBumps;
use crate::log::{Log, Snapshot};
use crate::names::{NAMES_BYTES_MAX, Names};

/// Longest time between two heads, in milliseconds; a sixth of `max_lag_ms` if that is shorter.
pub const PROBE_EVERY_MS: u64 = 500;

/// Time in milliseconds after which the node writes an entry of its own, if the stream has not passed a head.
/// Without it a log whose last entry belongs to an open transaction would confirm nothing.
pub const NUDGE_AFTER_MS: u64 = 250;

/// Longest pause before a new attempt to connect, in milliseconds. The first pause is a twentieth of it; each
/// further one doubles.
pub const RETRY_MS_MAX: u64 = 4000;

/// Most heads that the stream has not passed yet. When there are more, a new head replaces the last one.
pub const HEADS_MAX: usize = 64;

/// Pause before the next snapshot is asked for, in milliseconds, when the last one did not see all waiting
/// entries.
const LOOK_AGAIN_MS: u64 = 5;

/// Least time without a reply or progress after which both connections are given up, in milliseconds. The
/// time is twice `max_lag_ms` if that is longer.
const SILENT_MS_MIN: u64 = 5000;

/// Time in milliseconds: takeovers of the stream within it are counted as by the same other node.
const OUTBID_MS: u64 = 60_000;

/// Longest pause of the caller that is not counted as silence of the server, in milliseconds: the machine may
/// have been suspended.
const STALLED_MS_MAX: u64 = 10_000;

/// How a log is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long the node may go on without a confirmation, in milliseconds, at least 100.
    pub max_lag_ms: u64,
    /// Each entry is bumped once more after this time, in milliseconds; 0: once.
    pub again_ms: u64,
}

/// An event that a source reports to its follower.
#[derive(Debug, Clone)]
pub enum FollowerEvent<L: Log> {
    /// Both connections are open.
    Connected {
        /// The identity of the server that the stream comes from.
        identity: L::Identity,
        /// Whether the stream begins at the last acknowledged position or before it. The position was
        /// acknowledged by this follower, or, at its first connection, by an earlier one whose effects are
        /// still there.
        resumes: bool,
    },
    /// A transaction's tags, in the order of the log. The position is at most the log's end.
    Entry {
        /// The position after the entry.
        position: L::Position,
        /// The transaction.
        transaction: L::Transaction,
        /// The names that the entry bumps.
        names: Names,
        /// Whether the node has written the entry itself: its bumps were obeyed here before it was written.
        /// They may be obeyed once more later.
        is_own: bool,
    },
    /// All entries before a position have arrived.
    Passed {
        /// No entry before this position is still to come.
        position: L::Position,
    },
    /// The reply to [`Action::Probe`], on the second connection.
    Probed {
        /// The number of the probe.
        number: u64,
        /// The identity of the server that replied.
        identity: L::Identity,
        /// A position after everything that was committed before the probe was sent.
        head: L::Position,
        /// The transactions that a reader sees that begins now.
        snapshot: L::Snapshot,
        /// Whether the server works for the stream at this moment. Then it may be silent for minutes, while
        /// it reads a large transaction, and a new connection would make it start again.
        works: bool,
    },
    /// The stream is alive but cannot continue where it stopped: entries were left out.
    Gap {
        /// Why, for the log.
        reason: String,
    },
    /// The result of comparing the catalog of the database with what is followed.
    Covers {
        /// Things that the log lacks, as text for the log; `None`: it lacks nothing.
        missing: Option<String>,
    },
    /// A connection ended, or could not be made.
    Lost {
        /// Why, for the log.
        reason: String,
    },
}

/// A task for the caller, which does all tasks in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action<P> {
    /// Bump these tags; each bump takes the next number of the node's clock.
    Bump(Names),
    /// Invalidate all tagged items.
    Flush(FlushReason),
    /// Everything that was committed before this moment is obeyed.
    Confirmed {
        /// The moment, in milliseconds of the caller's clock.
        asked_at_ms: u64,
    },
    /// Tell the log that the node does not need entries before this position any more.
    Acknowledge(P),
    /// Ask on the second connection for the head and a snapshot; then report [`FollowerEvent::Probed`].
    Probe {
        /// The number that [`FollowerEvent::Probed`] gives back.
        number: u64,
    },
    /// Write an entry of this node to the log, on the second connection, because the stream has not passed a
    /// head.
    Nudge,
    /// Close what is left of the old connections and open both, from `resume` on if the log can. Then report
    /// [`FollowerEvent::Connected`] or [`FollowerEvent::Lost`].
    Connect {
        /// The position that was acknowledged last.
        resume: Option<P>,
    },
    /// Close both connections. [`Action::Connect`] follows.
    Disconnect {
        /// Why, for the log.
        reason: String,
    },
}

/// Why all tagged items are invalidated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlushReason {
    /// The stream begins: earlier changes are in no entry.
    Begins,
    /// The stream continues after a gap.
    Gap(String),
    /// Transactions have ended that may have committed before the stream's beginning.
    Ended,
    /// An entry bumps everything.
    Entry(Box<str>),
}

impl fmt::Display for FlushReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begins => f.write_str("the log is followed from now on"),
            Self::Gap(reason) => write!(f, "entries were left out: {reason}"),
            Self::Ended => f.write_str("transactions ended that ran when the log was first followed"),
            Self::Entry(reason) => f.write_str(reason),
        }
    }
}

/// The progress of a follower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowerState {
    /// Whether both connections are open.
    pub is_connected: bool,
    /// The moment up to which all commits are obeyed, in milliseconds of the caller's clock; None: nothing is
    /// confirmed yet.
    pub confirmed_ms: Option<u64>,
    /// Entries that have arrived and are not visible yet.
    pub waiting: usize,
    /// Memory in bytes of names that wait, or that will be bumped again.
    pub names_bytes: usize,
}

/// Follows one log.
#[derive(Debug)]
pub struct Follower<L: Log> {
    settings: Settings,
    link: StreamState<L>,
    /// The server's identity of the last stream. `acknowledged` is the position acknowledged there.
    identity: Option<L::Identity>,
    acknowledged: Option<L::Position>,
    unseen: UnseenTransactions<L>,
    /// Things that the log lacks: while there are any, nothing is confirmed.
    missing: Option<String>,
    /// When `unseen` last caused a flush of everything, in milliseconds.
    flushed_ms: u64,
    /// Names that were bumped and will be bumped again, in order of time.
    again: RepeatedBumps,
    names_bytes: usize,
    confirmed_ms: Option<u64>,
    probes: u64,
    failures: u32,
    /// When another node last took over this stream, and how often in a row.
    outbid: Option<(u64, u32)>,
    actions: VecDeque<Action<L::Position>>,
}

#[derive(Debug)]
enum StreamState<L: Log> {
    Down { retry_ms: u64 },
    Connecting,
    Up(StreamProgress<L>),
}

#[derive(Debug)]
struct StreamProgress<L: Log> {
    /// The position before which all entries have arrived.
    received: Option<L::Position>,
    waiting: VecDeque<WaitingEntry<L>>,
    /// Heads that are not confirmed, in order of the time at which they were asked for.
    heads: VecDeque<AskedHead<L::Position>>,
    probe: ProbeState,
    /// Time of the last reply, or of the stream's last progress.
    replied_ms: u64,
    passed_ms: u64,
    nudged_ms: u64,
}

#[derive(Debug)]
struct WaitingEntry<L: Log> {
    /// The position of the entry before this one.
    before: Option<L::Position>,
    position: L::Position,
    transaction: L::Transaction,
    names: Names,
}

#[derive(Debug)]
struct AskedHead<P> {
    asked_at_ms: u64,
    position: P,
}

/// Transactions that may have committed before the stream's beginning and were not visible when everything
/// was flushed (history 5).
#[derive(Debug)]
enum UnseenTransactions<L: Log> {
    /// Nothing was flushed yet, for this reason.
    Unknown(FlushReason),
    /// The transactions that were not visible. `ended`: some have ended since the last flush.
    Known { running: Vec<L::Transaction>, ended: bool },
}

#[derive(Debug)]
enum ProbeState {
    /// A probe was sent at `at_ms`. `arrived`: entries have come since.
    Sent {
        number: u64,
        at_ms: u64,
        arrived: bool,
    },
    Due {
        at_ms: u64,
    },
}

impl<L: Log> Follower<L> {
    /// A follower without connections; [`Follower::tick`] connects at once.
    pub fn new(settings: Settings) -> Self {
        debug_assert!(settings.max_lag_ms >= 100, "a shorter one is refused with the settings");
        Self {
            settings,
            link: StreamState::Down { retry_ms: 0 },
            identity: None,
            acknowledged: None,
            unseen: UnseenTransactions::Unknown(FlushReason::Begins),
            missing: None,
            flushed_ms: 0,
            again: RepeatedBumps::new(settings.again_ms),
            names_bytes: 0,
            confirmed_ms: None,
            probes: 0,
            failures: 0,
            outbid: None,
            actions: VecDeque::new(),
        }
    }

    /// A follower that continues after another one of the same log: everything before `position` is obeyed,
    /// and the transactions `running` had not ended at the last flush of everything.
    pub fn resumed(
        settings: Settings,
        identity: L::Identity,
        position: L::Position,
        running: Vec<L::Transaction>,
    ) -> Self {
        Self {
            identity: Some(identity),
            acknowledged: Some(position),
            unseen: UnseenTransactions::Known { running, ended: false },
            ..Self::new(settings)
        }
    }

    /// The transactions that had not ended at the last flush of everything, without those bumped since.
    /// `None`: another follower can continue here only after a flush.
    pub fn running(&self) -> Option<&[L::Transaction]> {
        match &self.unseen {
            UnseenTransactions::Known { running, ended: false } => Some(running),
            UnseenTransactions::Known { .. } | UnseenTransactions::Unknown(_) => None,
        }
    }

    /// Whether everything that has arrived is obeyed, and no entry before it was left out.
    pub fn is_whole(&self) -> bool {
        matches!(self.link, StreamState::Up(_)) && self.missing.is_none() && self.unseen.is_settled()
    }

    /// The next action for the caller; None: it has done all.
    pub fn poll_action(&mut self) -> Option<Action<L::Position>> {
        self.actions.pop_front()
    }

    /// The follower's progress.
    pub fn state(&self) -> FollowerState {
        let (is_connected, waiting) = match &self.link {
            StreamState::Up(stream) => (true, stream.waiting.len()),
            StreamState::Down { .. } | StreamState::Connecting => (false, 0),
        };
        FollowerState {
            is_connected,
            confirmed_ms: self.confirmed_ms,
            waiting,
            names_bytes: self.names_bytes + self.again.bytes(),
        }
    }

    /// Takes an event of the source. `now_ms`: the caller's clock.
    pub fn handle(&mut self, event: FollowerEvent<L>, now_ms: u64) {
        match event {
            FollowerEvent::Connected { identity, resumes } => self.connected(identity, resumes, now_ms),
            FollowerEvent::Entry { position, names, is_own, .. } if L::IS_VISIBLE_ON_ARRIVAL => {
                self.visible(position, names, is_own, now_ms);
            }
            FollowerEvent::Entry { position, transaction, names, .. } => {
                self.entry(position, transaction, names, now_ms);
            }
            FollowerEvent::Passed { position } => self.passed(position, now_ms),
            FollowerEvent::Probed { number, identity, head, snapshot, works } => {
                if let (StreamState::Up(stream), true) = (&mut self.link, works) {
                    stream.passed_ms = now_ms;
                }
                self.probed(number, &identity, head, &snapshot, now_ms);
            }
            FollowerEvent::Gap { reason } => {
                // Places before it may be of another history.
                self.acknowledged = None;
                self.unseen = UnseenTransactions::Unknown(FlushReason::Gap(reason));
            }
            FollowerEvent::Covers { missing } => {
                if self.missing.is_some() && missing.is_none() {
                    let reason = "the log has all that is followed again".to_owned();
                    self.unseen = UnseenTransactions::Unknown(FlushReason::Gap(reason));
                }
                self.missing = missing;
            }
            FollowerEvent::Lost { .. } => self.lost(now_ms),
        }
        self.tick(now_ms);
    }

    /// Called when the stream ends because another node takes it over, and would do so again. From the second
    /// time within a minute on the pause before the next attempt doubles, although the stream was confirmed.
    /// [`FollowerEvent::Lost`] follows.
    pub fn outbid(&mut self, now_ms: u64) {
        let before = self.outbid.filter(|(at_ms, _)| now_ms < at_ms + OUTBID_MS);
        let count = before.map_or(0, |(_, count)| count + 1);
        self.outbid = Some((now_ms, count));
        self.failures = self.failures.max(count);
    }

    /// Called when the caller was busy for this time and read nothing: the limits of silence are extended by
    /// it, by a minute at most.
    pub fn stalled(&mut self, for_ms: u64) {
        let for_ms = for_ms.min(STALLED_MS_MAX);
        if let StreamState::Up(stream) = &mut self.link {
            stream.replied_ms += for_ms;
            stream.passed_ms += for_ms;
        }
    }

    /// Does everything that is due. The caller calls it at the time [`Follower::next_ms`].
    pub fn tick(&mut self, now_ms: u64) {
        while let Some(names) = self.again.take(now_ms) {
            self.actions.push_back(bump(names));
        }
        let silent_ms = (2 * self.settings.max_lag_ms).max(SILENT_MS_MIN);
        match &mut self.link {
            StreamState::Down { retry_ms } if *retry_ms <= now_ms => {
                self.link = StreamState::Connecting;
                self.actions.push_back(Action::Connect { resume: self.acknowledged.clone() });
            }
            StreamState::Connecting | StreamState::Down { .. } => {}
            StreamState::Up(stream) => {
                if let Some(reason) = stream.silent(now_ms, silent_ms) {
                    return self.disconnect(reason.to_owned(), now_ms);
                }
                if stream.nudges(now_ms) {
                    self.actions.push_back(Action::Nudge);
                }
                if let ProbeState::Due { at_ms } = stream.probe
                    && at_ms <= now_ms
                {
                    self.probes += 1;
                    stream.probe = ProbeState::Sent { number: self.probes, at_ms: now_ms, arrived: false };
                    self.actions.push_back(Action::Probe { number: self.probes });
                }
            }
        }
    }

    /// When [`Follower::tick`] is due, in milliseconds of the caller's clock; `None`: not before the next
    /// event.
    pub fn next_ms(&self) -> Option<u64> {
        let again = self.again.next_ms();
        let silent_ms = (2 * self.settings.max_lag_ms).max(SILENT_MS_MIN);
        let link = match &self.link {
            StreamState::Connecting => None,
            StreamState::Down { retry_ms } => Some(*retry_ms),
            StreamState::Up(stream) => Some(stream.next_ms(silent_ms)),
        };
        again.into_iter().chain(link).min()
    }

    fn connected(&mut self, identity: L::Identity, resumes: bool, now_ms: u64) {
        match &self.identity {
            // Unacknowledged entries come again. Transactions that may be before the first stream's beginning
            // stay noted.
            Some(last) if *last == identity && resumes => {}
            Some(last) if *last == identity => {
                let reason = "the stream begins later than the last one ended".to_owned();
                self.unseen = UnseenTransactions::Unknown(FlushReason::Gap(reason));
            }
            Some(last) => {
                let reason = format!("it was {last} and is {identity}");
                self.unseen = UnseenTransactions::Unknown(FlushReason::Gap(reason));
            }
            // Another process has obeyed everything that it acknowledged, without gaps.
            None if resumes => self.unseen = UnseenTransactions::Known { running: Vec::new(), ended: false },
            None => {}
        }
        if !resumes || self.identity.as_ref().is_some_and(|last| *last != identity) {
            // A position of the last stream has no meaning in this one.
            self.acknowledged = None;
        }
        self.identity = Some(identity);
        self.link = StreamState::Up(StreamProgress {
            received: None,
            waiting: VecDeque::new(),
            heads: VecDeque::new(),
            probe: ProbeState::Due { at_ms: now_ms },
            replied_ms: now_ms,
            passed_ms: now_ms,
            nudged_ms: now_ms,
        });
    }

    fn entry(&mut self, position: L::Position, transaction: L::Transaction, mut names: Names, now_ms: u64) {
        let StreamState::Up(stream) = &mut self.link else { return };
        if names.is_empty() {
            return self.passed(position, now_ms);
        }
        if self.names_bytes + names.bytes() > NAMES_BYTES_MAX {
            names.all("more tags than there is memory for");
        }
        self.names_bytes += names.bytes();
        if let UnseenTransactions::Known { running, .. } = &mut self.unseen {
            running.retain(|other| *other != transaction);
        }
        let before = stream.received.replace(position.clone());
        stream.passed_ms = now_ms;
        stream.waiting.push_back(WaitingEntry { before, position, transaction, names });
        match &mut stream.probe {
            ProbeState::Sent { arrived, .. } => *arrived = true,
            // An earlier entry waits for a snapshot that sees it, and sets the pace.
            ProbeState::Due { at_ms } if stream.waiting.len() == 1 => *at_ms = now_ms,
            ProbeState::Due { at_ms } => *at_ms = (*at_ms).min(now_ms + LOOK_AGAIN_MS),
        }
    }

    /// Takes an entry that is visible to readers, or this node's own.
    fn visible(&mut self, position: L::Position, names: Names, is_own: bool, now_ms: u64) {
        let StreamState::Up(_) = &self.link else { return };
        if is_own {
            self.again.note(&names, now_ms);
        } else if !names.is_empty() {
            self.names_bytes += names.bytes();
            self.bump(names, now_ms);
        }
        self.passed(position, now_ms);
    }

    fn passed(&mut self, position: L::Position, now_ms: u64) {
        let StreamState::Up(stream) = &mut self.link else { return };
        if stream.received.as_ref().is_some_and(|received| *received >= position) {
            return;
        }
        stream.received = Some(position);
        stream.passed_ms = now_ms;
        self.confirm();
    }

    fn probed(
        &mut self,
        number: u64,
        identity: &L::Identity,
        head: L::Position,
        snapshot: &L::Snapshot,
        now_ms: u64,
    ) {
        let StreamState::Up(stream) = &mut self.link else { return };
        let ProbeState::Sent { number: sent, at_ms, arrived } = stream.probe else { return };
        if sent != number {
            // History 6.
            return;
        }
        if self.identity.as_ref() != Some(identity) {
            // History 3.
            let reason = format!(
                "the stream and the log's head are not from the same server: that of the head is {identity}"
            );
            return self.disconnect(reason, now_ms);
        }
        stream.replied_ms = now_ms;
        self.unseen.note_ended(snapshot);
        let every_ms = self.settings.max_lag_ms / 3;
        let is_due = now_ms >= self.flushed_ms + every_ms;
        if let Some(reason) = self.unseen.flush_due(snapshot, &stream.waiting, is_due) {
            self.flushed_ms = now_ms;
            self.actions.push_back(Action::Flush(reason));
        }
        let mut seen = Vec::new();
        stream.waiting = std::mem::take(&mut stream.waiting)
            .into_iter()
            .filter_map(|entry| {
                if !snapshot.sees(&entry.transaction) {
                    return Some(entry);
                }
                seen.push(entry.names);
                None
            })
            .collect();
        let every_ms = PROBE_EVERY_MS.min(self.settings.max_lag_ms / 6);
        let wait_ms = match stream.waiting.is_empty() {
            true => (at_ms + every_ms).saturating_sub(now_ms),
            false if arrived => 0,
            false => LOOK_AGAIN_MS,
        };
        stream.probe = ProbeState::Due { at_ms: now_ms + wait_ms };
        if stream.heads.len() == HEADS_MAX {
            stream.heads.pop_back();
        }
        stream.heads.push_back(AskedHead { asked_at_ms: at_ms, position: head });
        let mut is_flushed = false;
        for names in seen {
            // Once is enough for all that became visible together.
            if matches!(names, Names::All { .. }) && std::mem::replace(&mut is_flushed, true) {
                self.names_bytes -= names.bytes();
            } else {
                self.bump(names, now_ms);
            }
        }
        self.confirm();
    }

    /// Bumps the names of an entry that is visible, and notes them for later if they are bumped once more.
    fn bump(&mut self, names: Names, now_ms: u64) {
        self.again.note(&names, now_ms);
        self.names_bytes -= names.bytes();
        self.actions.push_back(bump(names));
    }

    /// Confirms the heads that are passed, and acknowledges what is applied.
    fn confirm(&mut self) {
        let StreamState::Up(stream) = &mut self.link else { return };
        let (mut confirmed, is_whole) = (None, self.missing.is_none() && self.unseen.is_settled());
        while let Some(head) = stream.heads.front()
            && is_whole
            && stream.is_applied(&head.position)
        {
            confirmed = Some(head.asked_at_ms);
            stream.heads.pop_front();
        }
        if let Some(asked_at_ms) = confirmed {
            self.failures = 0;
            self.confirmed_ms = Some(asked_at_ms);
            self.actions.push_back(Action::Confirmed { asked_at_ms });
        }
        let applied = stream.waiting.front().map_or(stream.received.as_ref(), |first| first.before.as_ref());
        if let Some(applied) = applied
            && is_whole
            && self.acknowledged.as_ref() != Some(applied)
        {
            self.acknowledged = Some(applied.clone());
            self.actions.push_back(Action::Acknowledge(applied.clone()));
        }
    }

    fn disconnect(&mut self, reason: String, now_ms: u64) {
        self.actions.push_back(Action::Disconnect { reason });
        self.lost(now_ms);
    }

    fn lost(&mut self, now_ms: u64) {
        if let StreamState::Down { .. } = self.link {
            return;
        }
        if let StreamState::Up(stream) = &self.link {
            self.names_bytes -= stream.waiting.iter().map(|entry| entry.names.bytes()).sum::<usize>();
        }
        let pause_ms = ((RETRY_MS_MAX / 20) << self.failures.min(8)).min(RETRY_MS_MAX);
        self.failures += 1;
        self.link = StreamState::Down { retry_ms: now_ms + pause_ms };
    }
}

impl<L: Log> StreamProgress<L> {
    fn is_applied(&self, position: &L::Position) -> bool {
        let passed = self.received.as_ref().is_some_and(|received| received >= position);
        passed && self.waiting.front().is_none_or(|first| first.position > *position)
    }

    /// The reason to give up both connections, if the server has been silent for too long.
    fn silent(&self, now_ms: u64, silent_ms: u64) -> Option<&'static str> {
        if matches!(self.probe, ProbeState::Sent { .. }) && now_ms >= self.replied_ms + silent_ms {
            return Some("no reply to the question for the log's head");
        }
        let is_silent = self.lags_since_ms().is_some_and(|since_ms| now_ms >= since_ms + silent_ms);
        is_silent
            .then_some("the stream is silent though the log has grown, and its server does nothing for it")
    }

    /// Whether the log must write an entry of our own, so that the stream passes its head.
    fn nudges(&mut self, now_ms: u64) -> bool {
        let due = self.nudge_ms().is_some_and(|due_ms| due_ms <= now_ms);
        if due {
            self.nudged_ms = now_ms;
        }
        due
    }

    fn nudge_ms(&self) -> Option<u64> {
        Some((self.lags_since_ms()? + NUDGE_AFTER_MS).max(self.nudged_ms + 2 * NUDGE_AFTER_MS))
    }

    /// Since when the stream has made no progress although it has not passed a head.
    fn lags_since_ms(&self) -> Option<u64> {
        let lags = |head: &&AskedHead<L::Position>| {
            self.received.as_ref().is_none_or(|received| *received < head.position)
        };
        self.heads.iter().find(lags).map(|head| head.asked_at_ms.max(self.passed_ms))
    }

    fn next_ms(&self, silent_ms: u64) -> u64 {
        let probe = match self.probe {
            ProbeState::Sent { .. } => self.replied_ms + silent_ms,
            ProbeState::Due { at_ms } => at_ms,
        };
        let silent = self.lags_since_ms().map(|since_ms| since_ms + silent_ms);
        [Some(probe), silent, self.nudge_ms()].into_iter().flatten().min().unwrap_or(probe)
    }
}

impl<L: Log> UnseenTransactions<L> {
    /// Whether no transaction is left for which everything would have to be flushed.
    fn is_settled(&self) -> bool {
        matches!(self, Self::Known { ended: false, .. })
    }

    /// Notes which of the transactions that ran at the beginning have ended, without an entry of their own.
    fn note_ended(&mut self, snapshot: &L::Snapshot) {
        if let Self::Known { running, ended } = self {
            let before = running.len();
            running.retain(|transaction| !snapshot.sees(transaction));
            *ended |= running.len() < before;
        }
    }

    /// The reason to flush everything now, if there is one. `is_due`: also because transactions have ended.
    /// Transactions that end soon after each other share a flush.
    fn flush_due(
        &mut self,
        snapshot: &L::Snapshot,
        waiting: &VecDeque<WaitingEntry<L>>,
        is_due: bool,
    ) -> Option<FlushReason> {
        match self {
            Self::Unknown(reason) => {
                let reason = reason.clone();
                let mut running = snapshot.running();
                // Transactions with a waiting entry are bumped with it.
                running.retain(|other| waiting.iter().all(|entry| entry.transaction != *other));
                *self = Self::Known { running, ended: false };
                Some(reason)
            }
            Self::Known { ended, .. } if *ended && is_due => {
                *ended = false;
                Some(FlushReason::Ended)
            }
            Self::Known { .. } => None,
        }
    }
}

fn bump<P>(names: Names) -> Action<P> {
    match names {
        Names::All { reason } => Action::Flush(FlushReason::Entry(reason)),
        names @ Names::Some { .. } => Action::Bump(names),
    }
}
