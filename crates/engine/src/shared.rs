//! State that all shards share: the clock, floors and tags, the rules, and the counters of waiting requests.

use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwapOption, Guard};
use cattlegrid_herd::{Admission, AfterStart, Clock, Events, Peers, RecordStart, RuleState, WaitGraph};
use cattlegrid_objects::Registry;
use cattlegrid_protocol::Limits;
use cattlegrid_store::Item;
use cattlegrid_tags::{
    BumpKind, FloorClass, PrefixId, Prefixes, PurgeOutcome, TagHash, TagHasher, Tags, Validity,
};

use crate::ages::Ages;
use crate::bump_log::{BumpLog, SentBump};
use crate::delivered::DeliveredBytes;
use crate::following::{Following, class_of};
use crate::rules::unmatched::UnmatchedPrefixes;
use crate::rules::{ActiveRules, Rules};
use crate::slow::SlowLog;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::time::Now;
use crate::walk::NameWalk;

/// The numbers that decide which values may be served, and the options that commands obey.
#[derive(Debug)]
pub struct EngineShared {
    /// The last number given out. Every write, delete and flush takes the next one; a write's number is its
    /// CAS.
    clock: AtomicU64,
    /// Floors and bumps: the numbers of invalidations.
    tags: Tags,
    tag_hasher: TagHasher,
    /// A flush is pending: each command looks whether it is due.
    pub(crate) flush_pending: AtomicBool,
    /// Prefix of control keys; none without a rule file.
    pub(crate) control: OnceLock<Box<[u8]>>,
    /// The prefixes that clients put before every key; none without a rule file.
    prefixes: OnceLock<Prefixes>,
    /// The times at which numbers were given out.
    ages: Ages,
    /// Logs that invalidate.
    following: Following,
    /// The log that takes the bumps of clients.
    bump_log: OnceLock<Arc<dyn BumpLog>>,
    /// The longest grace that any rule has had, in milliseconds.
    grace_max_ms: AtomicU64,
    /// The longest fill window of the rules in force, in milliseconds; 0: there are none.
    window_max_ms: AtomicU64,
    /// Answer 0 for every CAS (`-C`).
    pub(crate) hide_cas: bool,
    /// The peers of all connections.
    peers: Peers,
    /// The largest item, as the parser counts it.
    limits: Limits,
    /// None: no rule file.
    rules: ArcSwapOption<ActiveRules>,
    /// Keys without a rule that would have one behind a prefix.
    pub(crate) unmatched: UnmatchedPrefixes,
    /// The log of commands and calls that took long.
    slow: SlowLog,
    /// The types of objects; None: there are none.
    objects: ArcSwapOption<Registry>,
    /// One of [`Names`], and how many times the types have been changed: see [`Names::of`].
    pub(crate) names: AtomicU64,
    /// The search for items under names of calls, until it has ended.
    pub(crate) name_walk: Mutex<Option<NameWalk>>,
    /// Calls of objects that have not ended.
    pub(crate) calls: AtomicUsize,
    /// Connections that both hold leases and wait.
    pub(crate) graph: WaitGraph,
    /// Number of shards.
    shards: OnceLock<usize>,
    /// Keys that held gets wait for.
    pub(crate) waiting: AtomicUsize,
    /// Bytes of values copied for them that are not written yet.
    pub(crate) delivered: DeliveredBytes,
    /// Keys for which tags are announced.
    pub(crate) announced: AtomicUsize,
    /// Limit of `waiting`.
    pub(crate) waiting_max: AtomicUsize,
    /// Until when what calls have looked at to make room for pinned objects is paid for, in milliseconds
    /// since the start.
    pub(crate) pinned_looks_paid_ms: AtomicU64,
    /// When the next lease's deadline is, in milliseconds since the start; `u64::MAX`: no lease.
    pub(crate) timeout_ms: AtomicU64,
    /// Rules were put in force, or no rules.
    has_been_ruled: AtomicBool,
    /// The clock's number at the start.
    start: AtomicU64,
    /// When that was, in milliseconds in which the server has run; `u64::MAX`: never.
    start_ms: AtomicU64,
    /// For how long nothing has run since then, in milliseconds: see [`Engine::note_stop`].
    ///
    /// [`Engine::note_stop`]: crate::Engine::note_stop
    stopped_ms: AtomicU64,
    /// An event outside the shards may revoke leases.
    revoke: AtomicBool,
    /// When an invalidation that is phased in reaches the key of a lease next, in milliseconds since the
    /// start; `u64::MAX`: never, or it is not known yet and `revoke` is set.
    revoke_at_ms: AtomicU64,
    /// Other rules are in force, and leases of keys without a rule have not been ended yet.
    reruled: AtomicBool,
    /// When leases were last searched for that, in milliseconds since the start.
    revoked_ms: AtomicU64,
}

impl Clock for EngineShared {
    fn tick(&self) -> u64 {
        Self::tick(self)
    }

    fn last(&self) -> u64 {
        self.clock()
    }
}

impl EngineShared {
    /// A clock at zero; `hide_cas`: answer 0 for every CAS; `max_item_bytes`: see [`Limits::fits`];
    /// `tag_bytes`: see [`Tags::new`]; `seed`: of the tags' hash.
    pub fn new(hide_cas: bool, max_item_bytes: usize, tag_bytes: usize, seed: u64) -> Self {
        Self {
            clock: AtomicU64::new(0),
            tags: Tags::new(tag_bytes),
            tag_hasher: TagHasher::new(seed),
            flush_pending: AtomicBool::new(false),
            control: OnceLock::new(),
            prefixes: OnceLock::new(),
            ages: Ages::default(),
            following: Following::default(),
            bump_log: OnceLock::new(),
            grace_max_ms: AtomicU64::new(0),
            window_max_ms: AtomicU64::new(0),
            hide_cas,
            peers: Peers::default(),
            limits: Limits { max_item_bytes, ..Limits::default() },
            rules: ArcSwapOption::empty(),
            unmatched: UnmatchedPrefixes::default(),
            slow: SlowLog::default(),
            objects: ArcSwapOption::empty(),
            names: AtomicU64::new(0),
            name_walk: Mutex::new(None),
            calls: AtomicUsize::new(0),
            graph: WaitGraph::default(),
            has_been_ruled: AtomicBool::new(false),
            start: AtomicU64::new(0),
            start_ms: AtomicU64::new(u64::MAX),
            stopped_ms: AtomicU64::new(0),
            shards: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            delivered: DeliveredBytes::default(),
            announced: AtomicUsize::new(0),
            waiting_max: AtomicUsize::new(0),
            pinned_looks_paid_ms: AtomicU64::new(0),
            timeout_ms: AtomicU64::new(u64::MAX),
            revoke: AtomicBool::new(false),
            revoke_at_ms: AtomicU64::new(u64::MAX),
            reruled: AtomicBool::new(false),
            revoked_ms: AtomicU64::new(0),
        }
    }

    /// Sets the number of shards, once.
    pub(crate) fn set_shards(&self, shards: usize) {
        self.shards.get_or_init(|| shards);
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.get().copied().unwrap_or(1)
    }

    /// The log of commands and calls that took long.
    pub fn slow(&self) -> &SlowLog {
        &self.slow
    }

    /// The peers of all connections: each connection must join here.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Whether an item that a command puts together from parts is within the limit.
    pub(crate) fn fits(&self, key: &[u8], flags: u32, value_len: usize) -> bool {
        self.limits.fits(key, flags, value_len)
    }

    /// The next number. Each is given out once.
    #[inline]
    pub fn tick(&self) -> u64 {
        // Relaxed: a number says nothing about other memory; the shards that it is written to are locked.
        self.clock.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The last number given out.
    pub fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// The hard floor at `second`; a pending flush takes its number when its time has come.
    #[inline]
    pub fn floor(&self, second: u32) -> u64 {
        // Acquire: a thread that sees that none is pending any more sees its floor, too.
        if self.flush_pending.load(Ordering::Acquire) {
            self.execute_due_flush(second);
        }
        self.tags.floors().hard()
    }

    /// A pending flush takes its number if its time has come.
    #[cold]
    pub(crate) fn execute_due_flush(&self, second: u32) {
        let mut is_due = false;
        self.tags.floors().execute_due(u64::from(second) * 1000, || {
            is_due = true;
            self.tick()
        });
        if is_due {
            self.note_pending_flush();
            self.outside_event();
            self.cascade_flush();
        }
    }

    /// Notes whether a flush is pending. Of threads that do this at once the last one says what is so.
    fn note_pending_flush(&self) {
        loop {
            let pending = self.tags.floors().pending_flush_ms().is_some();
            self.flush_pending.store(pending, Ordering::SeqCst);
            if self.tags.floors().pending_flush_ms().is_some() == pending {
                return;
            }
        }
    }

    /// Flushes everything at `second`, or at once when that is now; then runs the cascades of a flush. A
    /// later call replaces a pending flush.
    pub fn flush(&self, second: u32, now: u32) {
        let ms = |second| u64::from(second) * 1000;
        let at_once = self.tags.floors().flush(ms(second), ms(now), || self.tick()).is_some();
        self.note_pending_flush();
        self.outside_event();
        if at_once {
            self.cascade_flush();
        }
    }

    /// Everything was flushed: invalidates the tags that depend on it.
    #[cold]
    fn cascade_flush(&self) {
        let active = self.rules();
        let Some(active) = active.as_ref() else { return };
        for cascade in active.rules().flush_cascades() {
            for name in cascade.bump.iter().filter_map(|bump| bump.constant()) {
                let tag = self.tag_hasher.hash_made(name);
                let behind = self.prefixes().all().map(|(prefix, _)| prefix);
                for prefix in std::iter::once(PrefixId::NONE).chain(behind) {
                    let text = self.prefixes().text(prefix);
                    self.send_bump(&SentBump::Tag { prefix: text, name, kind: BumpKind::Hard });
                    self.tags
                        .bumps()
                        .bump(self.tag_hasher.behind(prefix, tag), BumpKind::Hard, || self.tick());
                }
            }
        }
        self.outside_event();
    }

    /// Whether a flush is being phased in.
    #[inline]
    pub(crate) fn is_rolling(&self) -> bool {
        self.tags.floors().highest() > self.tags.floors().hard()
    }

    /// Logs that invalidate.
    #[inline]
    pub(crate) fn following(&self) -> &Following {
        &self.following
    }

    /// Sets the log that takes the bumps of clients, once.
    pub fn set_bump_log(&self, log: Arc<dyn BumpLog>) {
        self.bump_log.get_or_init(|| log);
    }

    /// The log that takes the bumps of clients, if there is one.
    #[inline]
    pub(crate) fn bump_log(&self) -> Option<&dyn BumpLog> {
        self.bump_log.get().map(|log| &**log).filter(|log| log.is_on())
    }

    /// The reply to `get @nodes`: the nodes of this server's fleet, an array in JSON; empty without one.
    pub fn nodes_json(&self, now_ms: u64) -> String {
        self.bump_log().map_or_else(|| "[]".to_owned(), |log| log.nodes(now_ms))
    }

    /// Leaves a bump that has been obeyed here for the other nodes. Returns its ticket; 0: there is no log.
    pub(crate) fn send_bump(&self, bump: &SentBump<'_>) -> u64 {
        self.bump_log().map_or(0, |log| log.push(bump))
    }

    /// Floors and bumps.
    #[inline]
    pub fn tags(&self) -> &Tags {
        &self.tags
    }

    /// Hashes tags.
    pub fn tag_hasher(&self) -> &TagHasher {
        &self.tag_hasher
    }

    /// A control key: the prefix of its client, and what follows that of control keys. None: it is an
    /// ordinary key.
    #[inline]
    pub(crate) fn control<'k>(&self, key: &'k [u8]) -> Option<(PrefixId, &'k [u8])> {
        let control = self.control.get().filter(|control| !control.is_empty())?;
        let (prefix, name) = self.prefixes().split(key);
        Some((prefix, name.strip_prefix(&**control)?))
    }

    /// Whether it is a control key of a client without a prefix. The others are recognised where a hit costs
    /// nothing.
    #[inline]
    pub(crate) fn is_bare_control(&self, key: &[u8]) -> bool {
        self.control.get().is_some_and(|control| !control.is_empty() && key.starts_with(control))
    }

    /// The prefixes that clients put before every key.
    #[inline]
    pub fn prefixes(&self) -> &Prefixes {
        static NONE: Prefixes = Prefixes::none();
        self.prefixes.get().unwrap_or(&NONE)
    }

    /// Sets what clients put before every key, once.
    pub(crate) fn set_prefixes(&self, prefixes: &Prefixes) {
        self.prefixes.get_or_init(|| prefixes.clone());
    }

    /// Sets the prefix of control keys, once.
    pub(crate) fn set_control(&self, control: &[u8]) {
        self.control.get_or_init(|| control.into());
    }

    /// Invalidates the items that carry a tag. Returns the bump's number.
    pub fn bump(&self, tag: TagHash, kind: BumpKind, now: Now) -> u64 {
        let number = match kind {
            BumpKind::Hard => self.tags.bumps().bump(tag, kind, || self.tick()),
            BumpKind::Soft => {
                self.note_time(now.ms);
                let grace_ms = self.grace_max_ms.load(Ordering::Relaxed);
                self.tags.bump_softly(tag, now.ms, grace_ms, |number| self.time_of(number), || self.tick())
            }
        };
        self.outside_event();
        number
    }

    /// Whether no item and no open miss has this tag, so that its bump by a log can be left out.
    pub(crate) fn leaves_out(&self, tag: TagHash, kind: BumpKind, now: Now) -> bool {
        self.tags.leaves_out(tag, kind, || {
            self.note_time(now.ms);
            self.tick()
        })
    }

    /// A value that is about to be judged or stored has these tags besides those of its rule.
    #[inline]
    pub(crate) fn note_named(&self, tags: &[u64], now_ms: u64) {
        if !tags.is_empty() && self.tags.selects() {
            let grace_ms = self.grace_max_ms.load(Ordering::Relaxed);
            self.tags.note_named(tags, now_ms, grace_ms, |number| self.time_of(number));
        }
    }

    /// Invalidates the items that carry a tag softly, one after the other over a period: see [`Tags::purge`].
    pub fn purge(&self, tag: TagHash, period_ms: u64, now: Now) -> PurgeOutcome {
        self.note_time(now.ms);
        let (times, grace_ms) = ((now.ms, period_ms), self.grace_max_ms.load(Ordering::Relaxed));
        let purged = self.tags.purge(tag, times, grace_ms, |number| self.time_of(number), || self.tick());
        self.outside_event();
        purged
    }

    /// When a number was given out, in milliseconds since the start, or earlier. Items have times in seconds.
    fn time_of(&self, number: u64) -> u64 {
        u64::from(self.second_of(number)) * 1000
    }

    /// Invalidates tags on behalf of a change of an item that carries some of them: see
    /// [`Tags::bump_carried`].
    pub(crate) fn bump_carried(&self, bumped: &[TagHash], item: &Item<'_>) -> Option<u64> {
        let carried = (item.tags(), self.class_of(item.key()));
        let stamp = self.tags.bump_carried(bumped, item.stamp(), carried, || self.tick());
        self.outside_event();
        stamp
    }

    /// A later stamp for an object that gets tags: see [`Tags::restamp`].
    pub(crate) fn restamp(&self, stamp: u64, carried: &[u64]) -> Option<u64> {
        self.tags.restamp(stamp, carried.iter().copied(), || self.tick())
    }

    /// Flushes everything over a period; the cascades of a flush run when it is over. Returns the floor's
    /// number.
    pub fn flush_rolling(&self, now_ms: u64, period_ms: u64) -> u64 {
        let number = self.tags.floors().start_rolling(now_ms, period_ms, || self.tick());
        self.outside_event();
        self.cascade_ended();
        number
    }

    /// Runs the cascades of slow flushes that have ended.
    fn cascade_ended(&self) {
        if self.tags.floors().take_ended() {
            self.cascade_flush();
        }
    }

    /// Whether an item was invalidated by its tags or by a flush.
    #[inline]
    pub(crate) fn validity(&self, item: &Item<'_>, hash: u64, now_ms: u64) -> Validity {
        self.tags.check_of(item.stamp(), item.tags(), hash, now_ms, || self.class_of(item.key()))
    }

    /// What becomes of a key's items while a log is behind.
    #[cold]
    fn class_of(&self, key: &[u8]) -> FloorClass {
        let active = self.rules();
        let active = active.as_ref().filter(|active| active.rules().say_when_behind());
        class_of(active.and_then(|active| active.find(key)?.rule.policy.when_behind))
    }

    /// The last hard and the last soft event that concern a key under a rule with these tags, except for
    /// those in its shard.
    pub(crate) fn outside(&self, hash: u64, tags: &[u64], rule: Option<&RuleState>, now: Now) -> Events {
        let (mut hard, mut soft) = (self.floor(now.second), 0);
        if self.is_rolling() {
            for floor in self.tags.floors().rolling() {
                let passed = now.ms.saturating_sub(floor.start_ms);
                if passed >= floor.period_ms {
                    hard = hard.max(floor.number);
                } else if passed > floor.phase_ms(hash) {
                    soft = soft.max(floor.number);
                }
            }
        }
        if self.tags.bumps().last_bump() > 0 {
            // Before the slots: a purge that ends in between is found there.
            soft = soft.max(self.tags.last_purge_due(tags, hash, now.ms));
            let class = class_of(rule.and_then(|rule| rule.policy().when_behind));
            for tag in tags {
                let tag = TagHash::from_stored(*tag);
                hard = hard.max(self.tags.bumps().last(tag, BumpKind::Hard, class));
                soft = soft.max(self.tags.bumps().last(tag, BumpKind::Soft, class));
            }
        }
        Events { hard, soft }
    }

    /// Notes the clock's number at this time, so that the age of the numbers that follow is known.
    pub(crate) fn note_time(&self, now_ms: u64) {
        self.ages.note(|| self.clock(), now_ms);
    }

    /// Notes the time, and ends flushes that are over. The caller calls this once per second.
    pub(crate) fn sweep(&self, now_ms: u64) {
        self.note_time(now_ms);
        self.tags.sweep(now_ms);
        self.cascade_ended();
    }

    /// Seconds since a number was given out, or more.
    pub fn age_s(&self, number: u64, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.ages.time_of(number)) / 1000
    }

    /// The second in which a number was given out, or an earlier one.
    pub(crate) fn second_of(&self, number: u64) -> u32 {
        second(self.ages.time_of(number))
    }

    /// The second in which an item became stale, or an earlier one; `None`: it is not stale.
    pub(crate) fn stale_since(&self, item: &Item<'_>, hash: u64, now: Now) -> Option<u32> {
        let tags = (item.tags(), self.class_of(item.key()));
        let time_of = |number| self.ages.time_of(number);
        self.tags.stale_since_ms(item.stamp(), tags, hash, now.ms, time_of).map(second)
    }

    /// The rules in force; None without a rule file. Costs about 10 ns and never blocks; keep it no longer
    /// than a request.
    #[inline]
    pub fn rules(&self) -> Guard<Option<Arc<ActiveRules>>> {
        self.rules.load()
    }

    /// The types of objects that are switched on.
    #[inline]
    pub(crate) fn objects(&self) -> Guard<Option<Arc<Registry>>> {
        self.objects.load()
    }

    pub(crate) fn set_registry(&self, registry: Option<Arc<Registry>>) {
        if let Some(registry) = &registry {
            registry.put_in_force();
        }
        self.objects.store(registry);
    }

    /// Whether there are types of objects.
    #[inline]
    pub(crate) fn has_objects(&self) -> bool {
        Names::state(self.names.load(Ordering::Acquire)) != Names::OFF
    }

    /// How many times the types have been changed. Read before [`EngineShared::objects`], it is not that of
    /// later types.
    #[inline]
    pub(crate) fn type_changes(&self) -> u64 {
        Names::changes(self.names.load(Ordering::Acquire))
    }

    /// Whether names of calls are recognised before the look-up.
    #[inline]
    pub(crate) fn names_first(&self) -> bool {
        Names::state(self.names.load(Ordering::Acquire)) == Names::FIRST
    }

    /// Puts these rules in force, at this time in milliseconds since the start. Requests under way finish
    /// under the old ones. For rules that need tables in the shards see [`crate::Engine::set_rules`].
    pub fn set_rules(&self, rules: Option<Arc<Rules>>, now_ms: u64) {
        let old = self.rules.load_full();
        let new = rules.map(|rules| Arc::new(ActiveRules::new(rules, old.as_deref())));
        // A key may have another rule, or other tags: its misses were recorded under the old ones if at all,
        // and a fill of an earlier miss would not be compared with bumps of the tags of before. The first
        // rules are those of the start.
        let uncovers = self.has_been_ruled.swap(true, Ordering::AcqRel);
        let others: Vec<_> = match &new {
            Some(new) if uncovers => new.of_other_keys(old.as_deref()).map(Arc::clone).collect(),
            _ => Vec::new(),
        };
        for state in &others {
            state.note_other_keys(self.clock(), self.run_ms(now_ms));
        }
        let kept_s = new.iter().flat_map(|new| new.each_on()).map(|(rule, _)| rule.policy.kept_s()).max();
        self.grace_max_ms.fetch_max(u64::from(kept_s.unwrap_or(0)) * 1000, Ordering::Relaxed);
        let windows = new.iter().flat_map(|new| new.each_on()).map(|(_, state)| state.fill_window_ms());
        self.window_max_ms.store(windows.max().unwrap_or(0).into(), Ordering::Relaxed);
        self.rules.store(new);
        self.unmatched.clear();
        self.reruled.store(true, Ordering::Release);
        self.timeout_ms.store(0, Ordering::Release);
        if !others.is_empty() {
            // The change itself is no event of the keys whose misses it makes uncertain.
            let number = self.tick();
            for state in &others {
                state.note_other_keys(number, self.run_ms(now_ms));
            }
        }
    }

    /// Nothing has run for this many milliseconds.
    pub(crate) fn note_stop(&self, ms: u64) {
        self.stopped_ms.fetch_add(ms, Ordering::AcqRel);
        self.peers.delay(ms);
    }

    /// The part of a time in milliseconds since the start in which the server has run.
    fn run_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.stopped_ms.load(Ordering::Acquire))
    }

    /// Notes the start of the server: earlier misses were not recorded as later ones are.
    pub fn note_start(&self, now_ms: u64) {
        self.start.store(self.clock(), Ordering::Release);
        self.start_ms.store(self.run_ms(now_ms), Ordering::Release);
    }

    /// The start, while misses from before it may be open under a rule with these terms.
    #[inline]
    pub(crate) fn start(&self, rule: &RuleState, now_ms: u64) -> Option<RecordStart> {
        let server_ms = self.start_ms.load(Ordering::Acquire);
        let (number, start_ms) = match rule.other_keys() {
            Some((number, since_ms)) if server_ms == u64::MAX || since_ms >= server_ms => (number, since_ms),
            _ => (self.start.load(Ordering::Acquire), server_ms),
        };
        let until_ms = start_ms.saturating_add(rule.fill_window_ms().into());
        let run_ms = self.run_ms(now_ms);
        // In times of the clock again.
        let stopped_ms = now_ms - run_ms;
        (start_ms != u64::MAX && run_ms < until_ms).then(|| RecordStart {
            number,
            at_ms: start_ms + stopped_ms,
            until_ms: until_ms + stopped_ms,
            drops: rule.policy().after_start == AfterStart::Drop,
        })
    }

    /// The longest time for which a miss under any rule is remembered, in milliseconds; 0: no key has a rule.
    #[inline]
    pub fn window_max_ms(&self) -> u32 {
        u32::try_from(self.window_max_ms.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    /// Gives the slots that a change of rules has freed to the leases that wait for them.
    pub(crate) fn admit_queued(&self) -> Vec<Admission> {
        let active = self.rules();
        active
            .iter()
            .flat_map(|active| active.each_on())
            .flat_map(|(_, state)| state.admit_queued())
            .collect()
    }

    /// Whether leases must be searched for those that an outside event revokes: there was one since the last
    /// search, or the moment of [`EngineShared::revoke_at`] has come, and the last search was at least
    /// `every_ms` milliseconds ago. If it is too soon, a timer is set.
    pub(crate) fn revoke_due(&self, now_ms: u64, every_ms: u64) -> bool {
        let at_ms = self.revoke_at_ms.load(Ordering::Acquire);
        if !self.revoke.load(Ordering::Acquire) && at_ms > now_ms {
            self.timeout_ms.fetch_min(at_ms, Ordering::AcqRel);
            return false;
        }
        let next = self.revoked_ms.load(Ordering::Relaxed) + every_ms;
        if next > now_ms {
            self.timeout_ms.fetch_min(next, Ordering::AcqRel);
            return false;
        }
        self.revoked_ms.store(now_ms, Ordering::Relaxed);
        // Before the search: an event during it asks for another, and so does the end of another thread's
        // search.
        let at_ms = self.revoke_at_ms.swap(u64::MAX, Ordering::AcqRel);
        let is_due = self.revoke.swap(false, Ordering::AcqRel) || at_ms <= now_ms;
        if !is_due {
            // Another thread has begun it.
            self.revoke_at(at_ms);
        }
        is_due
    }

    /// The result of a search: leases must be searched again at this time, in milliseconds since the start.
    pub(crate) fn revoke_at(&self, at_ms: u64) {
        if at_ms != u64::MAX {
            self.revoke_at_ms.fetch_min(at_ms, Ordering::AcqRel);
            self.timeout_ms.fetch_min(at_ms, Ordering::AcqRel);
        }
    }

    /// Whether leases of keys without a rule must be searched for: other rules have come into force since the
    /// last search.
    pub(crate) fn take_reruled(&self) -> bool {
        self.reruled.swap(false, Ordering::AcqRel)
    }

    /// Asks for a search for leases that an event outside the shards revokes. The caller calls this when a
    /// search can see the event: an earlier search would be taken for this one.
    pub(crate) fn outside_event(&self) {
        // One search covers all events before it.
        if !self.revoke.swap(true, Ordering::AcqRel) {
            self.timeout_ms.store(0, Ordering::Release);
        }
    }
}

/// When names of objects' calls are recognised: a part of [`EngineShared::names`].
#[derive(Debug)]
pub(crate) struct Names;

impl Names {
    /// There are no objects.
    pub(crate) const OFF: u8 = 0;

    /// After a look-up that has found nothing.
    pub(crate) const AFTER: u8 = 1;

    /// Before the look-up: there may be items under names of calls.
    pub(crate) const FIRST: u8 = 2;

    /// The state in a value of [`EngineShared::names`].
    #[inline]
    pub(crate) fn state(names: u64) -> u8 {
        (names & 3) as u8
    }

    /// How many times the types had been changed.
    #[inline]
    pub(crate) fn changes(names: u64) -> u64 {
        names >> 2
    }

    pub(crate) fn of(state: u8, changes: u64) -> u64 {
        changes << 2 | u64::from(state)
    }
}

/// Items have times in seconds, in which 0 means never.
fn second(ms: u64) -> u32 {
    u32::try_from(ms / 1000).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_kills_what_came_before_it() {
        let shared = EngineShared::new(false, 1 << 20, 0, 1);
        let before = shared.tick();
        shared.flush(5, 5);
        assert!(before < shared.floor(5));
        assert!(shared.tick() >= shared.floor(5));
    }

    #[test]
    fn a_delayed_flush_takes_its_number_when_it_is_due() {
        let shared = EngineShared::new(false, 1 << 20, 0, 1);
        shared.flush(10, 5);
        let during = shared.tick();
        assert!(during >= shared.floor(9));
        assert!(during < shared.floor(10));
        let after = shared.tick();
        assert!(after >= shared.floor(11));
    }

    #[test]
    fn rules_are_exchanged_as_a_whole() {
        let shared = EngineShared::new(false, 1 << 20, 0, 1);
        assert!(shared.rules().is_none());
        let rules = Arc::new(Rules::new(Vec::new(), Vec::new()));
        shared.set_rules(Some(Arc::clone(&rules)), 0);
        let held = shared.rules();
        shared.set_rules(None, 0);
        assert!(shared.rules().is_none());
        assert!(held.as_ref().is_some_and(|held| Arc::ptr_eq(held.rules(), &rules)));
    }

    #[test]
    fn a_later_flush_replaces_a_pending_one() {
        let shared = EngineShared::new(false, 1 << 20, 0, 1);
        shared.flush(10, 5);
        shared.flush(20, 6);
        let item = shared.tick();
        assert!(item >= shared.floor(15));
        assert!(item < shared.floor(20));
        shared.flush(30, 21);
        shared.flush(22, 22);
        let item = shared.tick();
        assert!(item >= shared.floor(40), "the flush at 30 was replaced by the one at 22");
    }
}
