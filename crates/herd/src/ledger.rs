//! What a shard remembers of keys so that late fills are found: the misses that are open, in the [`Ledger`],
//! and the last events, in the [`Fence`].
//!
//! The ledger has the accounts of keys: which misses are open, and what becomes of a fill. See
//! [`KeyAccount`].
//!
//! Most keys have one open miss, which takes [`ENTRY_BYTES`]; an account with more lies apart. The table is
//! bounded: a miss that finds no room leaves its number in a fixed array, in a slot by hash ([`Loss`]). While
//! such a number counts, its keys may have open misses that are not on record. A fill may belong to one of
//! them: it then removes nothing from the record, and after an event it is never certainly new.
//!
//! A closed connection changes nothing here. Pools close a connection while the thread that used it still
//! computes, and its fill comes on another connection.
//!
//! Before the start, and before a change of rules that gave keys another rule, misses were not recorded as
//! they are now ([`RecordStart`]). For one fill window they count as lost; a fill of a key without a record
//! is an ordinary write, unless there was a hard event since.
//!
//! The fence is a fixed array of numbers, in which a slot serves many keys. A collision makes a fill look
//! older than an event that concerned another key: it costs a recomputation and never lets an old value in.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;

use crate::account::{
    FillMoment, Judgement, KeyAccount, LostMisses, SLOTS, SoftRelation, UnrecordedMisses, ValueHashes,
    life_ms,
};
use crate::hash::BuildIdentity;

/// The accounts of a shard's keys with open misses.
#[derive(Debug)]
pub struct Ledger {
    entries: HashMap<u64, KeyMisses, BuildIdentity>,
    /// Most keys.
    most: usize,
    /// Bytes that entries and accounts may take.
    most_bytes: usize,
    /// Accounts that lie apart.
    apart: usize,
    lost: Box<[Loss]>,
    /// Slots of `lost` that count, and those that did at the last [`Ledger::sweep`].
    lost_slots: usize,
    /// When the next [`Ledger::sweep`] has something to do, in milliseconds.
    sweep_ms: u64,
    /// Misses that found no room.
    losses: u64,
    /// When the last stop was over, in milliseconds since the start.
    resumed_ms: u64,
    /// The key of the last fill, and its account before it.
    undo: Option<(u64, KeyMisses)>,
}

/// The misses of a key.
#[derive(Debug)]
enum KeyMisses {
    /// The only one since the key had none, and the hard event that is known.
    One {
        number: u64,
        at_ms: u64,
        hard: u64,
        window_ms: u32,
    },
    Many(Box<KeyAccount>),
}

impl KeyMisses {
    fn to_account(&self) -> KeyAccount {
        match self {
            Self::One { number, at_ms, hard, window_ms } => {
                let mut account = KeyAccount::default();
                account.record(*number, *at_ms, u64::from(*window_ms), SLOTS);
                account.harden(*hard);
                account
            }
            Self::Many(account) => (**account).clone(),
        }
    }

    /// True: it has no open miss.
    fn pass(&mut self, now_ms: u64) -> bool {
        match self {
            Self::One { at_ms, window_ms, .. } => *at_ms + u64::from(*window_ms) <= now_ms,
            Self::Many(account) => {
                account.pass(now_ms);
                account.is_empty()
            }
        }
    }
}

/// The smallest numbers that found no room. The younger takes them for half a fill window and as long as the
/// older counts; so a key with losses again and again is not held down for ever.
#[derive(Debug, Clone, Copy, Default)]
struct Loss {
    old: Generation,
    young: Generation,
}

#[derive(Debug, Clone, Copy, Default)]
struct Generation {
    number: u64,
    /// In units of [`TICK_MS`], as `until`.
    since: u32,
    /// 0: it stands for no miss.
    until: u32,
}

/// Unit of the times in [`Loss`], in milliseconds.
const TICK_MS: u64 = 10;

impl Generation {
    fn counts(&self, now_ms: u64) -> bool {
        u64::from(self.until) * TICK_MS > now_ms
    }
}

impl Loss {
    /// See [`Ledger::delay`].
    fn delay(&mut self, ms: u64) {
        let ticks = u32::try_from(ms.div_ceil(TICK_MS)).unwrap_or(u32::MAX);
        for generation in [&mut self.old, &mut self.young] {
            if generation.until > 0 {
                generation.since = generation.since.saturating_add(ticks);
                generation.until = generation.until.saturating_add(ticks);
            }
        }
    }

    fn lose(&mut self, number: u64, window_ms: u64, now_ms: u64) {
        let ticks = |ms: u64| u32::try_from(ms).unwrap_or(u32::MAX);
        let since = ticks(now_ms / TICK_MS);
        if !self.young.counts(now_ms) {
            self.young = Generation { number, since, until: 0 };
        } else if !self.old.counts(now_ms) && u64::from(self.young.since) * TICK_MS + window_ms / 2 <= now_ms
        {
            self.old = std::mem::replace(&mut self.young, Generation { number, since, until: 0 });
        }
        self.young.number = self.young.number.min(number);
        self.young.until = self.young.until.max(ticks((now_ms + window_ms).div_ceil(TICK_MS))).max(1);
    }

    fn counting(&self, now_ms: u64) -> Option<LostMisses> {
        let counting = [self.old, self.young].into_iter().filter(|generation| generation.counts(now_ms));
        counting
            .map(|one| LostMisses { number: one.number, until_ms: u64::from(one.until) * TICK_MS })
            .reduce(|a, b| LostMisses {
                number: a.number.min(b.number),
                until_ms: a.until_ms.max(b.until_ms),
            })
    }
}

/// A moment before which misses were not recorded as they are now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordStart {
    /// The clock's number then.
    pub number: u64,
    /// When that was, in milliseconds.
    pub at_ms: u64,
    /// Until when it counts, in milliseconds.
    pub until_ms: u64,
    /// A fill of a key without a record is dropped, whether there was an event or not.
    pub drops: bool,
}

/// What is known of a key besides its account.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings {
    /// The last events that concern it and are noted outside the shard.
    pub outside: Events,
    /// The last events of the keys that share its slot in the fence, without their writes: asked after a
    /// start.
    pub slot: Events,
    /// The key's last events with its writes: asked where there are lost misses.
    pub written: Events,
    /// A start that counts.
    pub start: Option<RecordStart>,
}

/// What becomes of a fill, and of what is under its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillVerdict {
    /// The verdict.
    pub judgement: Judgement,
    /// Whether a soft event is newer.
    pub softened: SoftRelation,
    /// No old miss is on record any more: a provisional value under the key goes, and a value that comes now
    /// is not kept as provisional.
    pub closed: bool,
    /// When that will be at the latest, in milliseconds: a provisional value ends then.
    pub closes_ms: u64,
    /// How long the fill was computed, at least, in milliseconds.
    pub sample_ms: Option<u64>,
}

impl FillVerdict {
    /// The verdict on a fill whose miss is known, or that belongs to none.
    pub fn known(judgement: Judgement) -> Self {
        Self { judgement, softened: SoftRelation::No, closed: true, closes_ms: 0, sample_ms: None }
    }
}

/// An account, as `@why:` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountView {
    /// The smallest number on record.
    pub oldest: Option<u64>,
    /// Misses on record.
    pub open: u32,
    /// Those of them that are older than the last hard event.
    pub old: u32,
    /// The last hard event that the account knows.
    pub hard: u64,
    /// Fills since then of which it is not known whether they are old.
    pub ambiguous: u32,
    /// The smallest number of a miss that is not on record.
    pub lost: Option<u64>,
}

/// Milliseconds from one look for what is too old to the next.
const SWEEP_MS: u64 = 900;
/// Keys for which that time counts once.
const SWEPT_KEYS: usize = 16_384;

/// Bytes that a key with one open miss takes, right after its table has grown to twice its size.
pub const ENTRY_BYTES: usize = (size_of::<(u64, KeyMisses)>() + 1) * 16 / 7;
/// Bytes that an account takes besides when the key has had more than one.
pub const ACCOUNT_BYTES: usize = size_of::<KeyAccount>() + 16;

impl Ledger {
    /// A ledger of at most `bytes` bytes: seven eighths for accounts, the rest for misses that find no room.
    pub fn new(bytes: usize) -> Self {
        let slots = 1 << (bytes / 8 / size_of::<Loss>()).max(1).ilog2();
        Self { most_bytes: bytes * 7 / 8, most: usize::MAX, ..Self::with(1, slots) }
    }

    /// A ledger of `entries` keys and `slots` slots for lost misses (a power of two).
    pub fn with(entries: usize, slots: usize) -> Self {
        debug_assert!(slots.is_power_of_two());
        Self {
            entries: HashMap::with_hasher(BuildIdentity),
            most: entries.max(1),
            most_bytes: usize::MAX,
            apart: 0,
            lost: vec![Loss::default(); slots].into(),
            lost_slots: 0,
            sweep_ms: 0,
            losses: 0,
            resumed_ms: 0,
            undo: None,
        }
    }

    /// Whether a miss of the key may be on record: then events outside the shard matter for it.
    pub fn has(&self, hash: u64) -> bool {
        self.entries.contains_key(&hash)
    }

    fn has_room_for(&self, bytes: usize) -> bool {
        self.entries.len() * ENTRY_BYTES + self.apart * ACCOUNT_BYTES + bytes <= self.most_bytes
    }

    /// Records a miss under a rule whose fill window is `window_ms` milliseconds. `events`: those outside the
    /// shard, if a miss of the key was on record ([`Ledger::has`]). `now_ms`: milliseconds since the start.
    /// False: there is no room for it.
    pub fn record(&mut self, hash: u64, number: u64, events: Events, now_ms: u64, window_ms: u32) -> bool {
        let now_ms = self.miss_ms(now_ms);
        if !self.entries.contains_key(&hash)
            && (self.entries.len() >= self.most || !self.has_room_for(ENTRY_BYTES))
        {
            // A walk is worth its time only if the last one found an aged entry.
            if self.losses.is_multiple_of(64) {
                self.drop_aged(now_ms);
            }
            if self.entries.len() >= self.most || !self.has_room_for(ENTRY_BYTES) {
                self.lose(hash, number, window_ms, now_ms);
                return false;
            }
        }
        let has_room = self.has_room_for(ACCOUNT_BYTES);
        let one = KeyMisses::One { number, at_ms: now_ms, hard: 0, window_ms };
        let mut place = match self.entries.entry(hash) {
            MapEntry::Vacant(place) => {
                place.insert(one);
                return true;
            }
            MapEntry::Occupied(place) => place,
        };
        if place.get_mut().pass(now_ms) {
            if matches!(place.insert(one), KeyMisses::Many(_)) {
                self.apart -= 1;
            }
            return true;
        }
        match place.get_mut() {
            KeyMisses::Many(account) => {
                account.harden(events.hard);
                account.soften(events.soft);
                account.record(number, now_ms, u64::from(window_ms), SLOTS);
            }
            KeyMisses::One { .. } if !has_room => {
                self.lose(hash, number, window_ms, now_ms);
                return false;
            }
            entry @ KeyMisses::One { .. } => {
                let mut account = entry.to_account();
                account.harden(events.hard);
                account.soften(events.soft);
                account.record(number, now_ms, u64::from(window_ms), SLOTS);
                *entry = KeyMisses::Many(Box::new(account));
                self.apart += 1;
            }
        }
        true
    }

    /// The server did not run for this many milliseconds, until now: what clients sent meanwhile came in time,
    /// so misses count as that much later.
    pub fn delay(&mut self, ms: u64, now_ms: u64) {
        for entry in self.entries.values_mut() {
            match entry {
                KeyMisses::One { at_ms, .. } => *at_ms += ms,
                KeyMisses::Many(account) => account.delay(ms),
            }
        }
        self.lost.iter_mut().for_each(|loss| loss.delay(ms));
        self.resumed_ms = now_ms;
    }

    /// The time of a miss that is recorded now: a thread that was stopped in the middle of its work goes on
    /// with a time of before.
    pub(crate) fn miss_ms(&self, now_ms: u64) -> u64 {
        now_ms.max(self.resumed_ms)
    }

    fn lose(&mut self, hash: u64, number: u64, window_ms: u32, now_ms: u64) {
        self.losses += 1;
        let at = slot(hash, self.lost.len());
        let loss = &mut self.lost[at];
        self.lost_slots += usize::from(loss.counting(now_ms).is_none() && loss.young.until == 0);
        loss.lose(number, u64::from(window_ms), now_ms);
    }

    fn missing(&self, hash: u64, start: Option<RecordStart>, now_ms: u64) -> UnrecordedMisses {
        UnrecordedMisses {
            lost: self.lost[slot(hash, self.lost.len())].counting(now_ms),
            before: start.map(|start| LostMisses { number: start.number, until_ms: start.until_ms }),
            before_ms: start.map(|start| start.at_ms),
            keeps_all: start.is_some_and(|start| start.drops),
        }
    }

    /// The key was written or deleted: this number was taken.
    pub fn harden(&mut self, hash: u64, number: u64) {
        match self.entries.get_mut(&hash) {
            None => {}
            Some(KeyMisses::One { hard, .. }) => *hard = (*hard).max(number),
            Some(KeyMisses::Many(account)) => account.harden(number),
        }
    }

    /// These events outside the shard concern the key.
    pub fn note(&mut self, hash: u64, events: Events) {
        self.harden(hash, events.hard);
        if events.soft > events.hard {
            self.soften(hash, events.soft);
        }
    }

    /// The key was invalidated softly: this number was taken.
    pub fn soften(&mut self, hash: u64, number: u64) {
        let has_room = self.has_room_for(ACCOUNT_BYTES);
        match self.entries.get_mut(&hash) {
            None => {}
            Some(KeyMisses::Many(account)) => account.soften(number),
            Some(entry) if has_room => {
                let mut account = entry.to_account();
                account.soften(number);
                *entry = KeyMisses::Many(Box::new(account));
                self.apart += 1;
            }
            // Without room it counts as a hard event: the value is computed again.
            Some(KeyMisses::One { hard, .. }) => *hard = (*hard).max(number),
        }
    }

    /// Judges a fill that does not say to which miss it belongs, and takes it off the record.
    /// [`Ledger::undo`] puts it back.
    pub fn fill(
        &mut self,
        hash: u64,
        around: &Surroundings,
        moment: &FillMoment,
        values: &dyn ValueHashes,
    ) -> FillVerdict {
        let missing = self.missing(hash, around.start, moment.now_ms);
        self.undo = None;
        let mut outside = around.outside;
        // An event from before the account began is noted in the slot only.
        if missing.lost.is_some() {
            outside = outside.max(around.written);
        } else if missing.before.is_some() {
            // A value from before the start can overwrite a write, as in memcached; a second write is none
            // the less kept.
            outside = outside.max(around.slot);
        }
        let has_room = self.has_room_for(ACCOUNT_BYTES);
        let mut place = match self.entries.entry(hash) {
            MapEntry::Vacant(_) => return fill_unrecorded(around, outside, &missing, moment, values),
            MapEntry::Occupied(place) => place,
        };
        if place.get_mut().pass(moment.now_ms) {
            self.apart -= usize::from(matches!(place.remove(), KeyMisses::Many(_)));
            return fill_unrecorded(around, outside, &missing, moment, values);
        }
        if let KeyMisses::One { number, at_ms, hard, .. } = place.get()
            && missing == UnrecordedMisses::default()
        {
            let hard = (*hard).max(outside.hard);
            let stamp = *number;
            let judgement = if stamp < hard { Judgement::Old } else { Judgement::Clean { stamp } };
            let softened = if stamp < outside.soft { SoftRelation::Now } else { SoftRelation::No };
            let sample_ms = Some(moment.now_ms.saturating_sub(*at_ms));
            self.undo = Some((hash, place.remove()));
            return FillVerdict { softened, sample_ms, ..FillVerdict::known(judgement) };
        }
        let mut account = place.get().to_account();
        account.harden(outside.hard);
        account.soften(outside.soft);
        if !has_room && matches!(place.get(), KeyMisses::One { .. }) {
            account.forget_age();
        }
        let judged = judge(&mut account, moment, &missing, values);
        let old = match (place.get_mut(), account.is_empty()) {
            (_, true) => {
                let old = place.remove();
                self.apart -= usize::from(matches!(old, KeyMisses::Many(_)));
                old
            }
            (KeyMisses::Many(many), false) => {
                KeyMisses::Many(Box::new(std::mem::replace(&mut **many, account)))
            }
            // Lost misses leave its miss on record, with what is counted since the event.
            (one, false) if has_room => {
                self.apart += 1;
                std::mem::replace(one, KeyMisses::Many(Box::new(account)))
            }
            (KeyMisses::One { number, at_ms, hard, window_ms }, false) => {
                let old =
                    KeyMisses::One { number: *number, at_ms: *at_ms, hard: *hard, window_ms: *window_ms };
                *hard = (*hard).max(outside.hard);
                old
            }
        };
        self.undo = Some((hash, old));
        judged
    }

    /// The last fill could not be stored, and comes again: its key's account is as before it.
    pub fn undo(&mut self, hash: u64) {
        if let Some((_, entry)) = self.undo.take().filter(|(of, _)| *of == hash) {
            self.apart += usize::from(matches!(entry, KeyMisses::Many(_)));
            if let Some(KeyMisses::Many(_)) = self.entries.insert(hash, entry) {
                self.apart -= 1;
            }
        }
    }

    /// A fill came for the miss with this number, or for any: takes it off the record. True: no old miss is
    /// on record any more, and a provisional value of the key goes.
    pub fn take(&mut self, hash: u64, number: Option<u64>, around: &Surroundings, now_ms: u64) -> bool {
        let missing = self.missing(hash, around.start, now_ms);
        let MapEntry::Occupied(mut place) = self.entries.entry(hash) else {
            return missing == UnrecordedMisses::default();
        };
        if missing == UnrecordedMisses::default() && matches!(place.get(), KeyMisses::One { .. }) {
            place.remove();
            return true;
        }
        let mut account = place.get().to_account();
        account.pass(now_ms);
        account.harden(around.outside.hard);
        account.soften(around.outside.soft);
        account.take(number, &missing);
        let closed = account.is_closed(&missing);
        if account.is_empty() {
            self.apart -= usize::from(matches!(place.remove(), KeyMisses::Many(_)));
        } else if let KeyMisses::Many(many) = place.get_mut() {
            **many = account;
        }
        closed
    }

    /// What is known of the key.
    pub fn view(&mut self, hash: u64, around: &Surroundings, now_ms: u64) -> AccountView {
        let lost = self.missing(hash, around.start, now_ms).lost;
        let mut account = self.entries.get(&hash).map(KeyMisses::to_account).unwrap_or_default();
        account.pass(now_ms);
        account.harden(around.outside.hard);
        AccountView {
            oldest: account.numbers().next().map(|(number, _)| number),
            open: account.open(),
            old: account.old(),
            hard: account.hard(),
            ambiguous: account.since(),
            lost: lost.map(|lost| lost.number),
        }
    }

    /// The smallest number of a miss of the key that is on record, or may be open all the same.
    pub fn oldest(&mut self, hash: u64, now_ms: u64) -> Option<u64> {
        let view = self.view(hash, &Surroundings::default(), now_ms);
        view.oldest.into_iter().chain(view.lost).min()
    }

    /// About once a second: lets go of what is too old, so that [`Ledger::len`] and [`Ledger::lost_slots`]
    /// say what counts. A table of more than 16,384 keys is walked less often, so that a second has no more
    /// of this than that.
    pub fn sweep(&mut self, now_ms: u64) {
        if now_ms < self.sweep_ms {
            return;
        }
        self.sweep_ms = now_ms + SWEEP_MS * (1 + (self.entries.len() / SWEPT_KEYS) as u64);
        self.drop_aged(now_ms);
        if self.lost_slots > 0 {
            for loss in &mut self.lost {
                if loss.counting(now_ms).is_none() {
                    *loss = Loss::default();
                }
            }
            self.lost_slots = self.slots_in_loss(now_ms);
        }
    }

    /// Slots that stand for misses that found no room; those that have ceased to since the last
    /// [`Ledger::sweep`] as well.
    pub fn lost_slots(&self) -> usize {
        self.lost_slots
    }

    /// Keys with open misses. Walks the table.
    pub fn outstanding(&mut self, now_ms: u64) -> usize {
        self.drop_aged(now_ms);
        self.entries.len()
    }

    /// Drops entries that are too old.
    fn drop_aged(&mut self, now_ms: u64) {
        let apart = &mut self.apart;
        self.entries.retain(|_, entry| {
            let is_over = entry.pass(now_ms);
            *apart -= usize::from(is_over && matches!(entry, KeyMisses::Many(_)));
            !is_over
        });
    }

    /// Keys in the table; the misses of some may be too old to count.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// No key has an entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Slots that stand for misses that found no room. Walks all of them.
    pub fn slots_in_loss(&self, now_ms: u64) -> usize {
        self.lost.iter().filter(|loss| loss.counting(now_ms).is_some()).count()
    }
}

/// No miss of the key is on record.
fn fill_unrecorded(
    around: &Surroundings,
    outside: Events,
    missing: &UnrecordedMisses,
    moment: &FillMoment,
    values: &dyn ValueHashes,
) -> FillVerdict {
    // If no miss since the start has found no room, the fill is of one from before it.
    let is_before = |start: RecordStart| start.drops || outside.hard > start.number && missing.lost.is_none();
    if around.start.is_some_and(is_before) {
        return FillVerdict { closed: false, ..FillVerdict::known(Judgement::Unrecorded) };
    }
    if missing.lost.is_none() {
        let start = around.start.filter(|start| outside.soft > start.number);
        if let Some(RecordStart { number: stamp, .. }) = start.filter(|_| moment.strict) {
            return FillVerdict {
                softened: SoftRelation::Now,
                ..FillVerdict::known(Judgement::Clean { stamp })
            };
        }
        let soft = start.map(|_| outside.soft);
        let until_ms = life_ms(missing.before_ms, moment);
        let softened = soft.map_or(SoftRelation::No, |soft| SoftRelation::Later { soft, until_ms });
        return FillVerdict { softened, ..FillVerdict::known(Judgement::Write) };
    }
    let mut account = KeyAccount::default();
    account.harden(outside.hard);
    account.soften(outside.soft);
    judge(&mut account, moment, missing, values)
}

fn judge(
    account: &mut KeyAccount,
    moment: &FillMoment,
    missing: &UnrecordedMisses,
    values: &dyn ValueHashes,
) -> FillVerdict {
    let sample_ms = account.sample_ms(moment.now_ms);
    let judgement = account.judge(moment, missing, values);
    let softened = match judgement {
        Judgement::Clean { stamp }
        | Judgement::Proved { stamp, .. }
        | Judgement::Provisional { stamp, .. } => account.softened(stamp, moment, missing),
        _ => SoftRelation::No,
    };
    account.take(None, missing);
    let (closed, closes_ms) = (account.is_closed(missing), account.closes_ms(missing));
    FillVerdict { judgement, softened, closed, closes_ms, sample_ms }
}

/// The last hard and the last soft event of the keys that share a slot. 0: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Events {
    /// Number of the last delete or, where those count, write; a fill below it is dropped.
    pub hard: u64,
    /// Number of the last soft invalidation; a fill below it is stored stale.
    pub soft: u64,
}

/// The numbers of the last events of keys, in an array of fixed size.
#[derive(Debug, Default)]
pub struct Fence {
    /// Deletes, soft invalidations, writes. The zeroed pages are the system's, so slots that are never used
    /// take no memory.
    slots: Box<[[u64; 3]]>,
    /// Expected number of collisions over all fills.
    collisions: f64,
}

impl Events {
    /// The later ones of both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { hard: self.hard.max(other.hard), soft: self.soft.max(other.soft) }
    }

    /// The later of the two.
    pub fn last(self) -> u64 {
        self.hard.max(self.soft)
    }
}

impl Fence {
    /// `slots`: at least 1.
    pub fn new(slots: usize) -> Self {
        Self { slots: vec![[0; 3]; slots.max(1)].into(), collisions: 0.0 }
    }

    /// Bytes of one slot.
    pub const SLOT_BYTES: usize = size_of::<[u64; 3]>();

    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The last events of the keys that share this one's slot, without their writes.
    pub fn events(&self, hash: u64) -> Events {
        let [hard, soft, _] = self.slots[slot(hash, self.slots.len())];
        Events { hard, soft }
    }

    /// The last events of the keys with this hash, with writes as hard events.
    pub fn events_and_writes(&self, hash: u64) -> Events {
        let [hard, soft, written] = self.slots[slot(hash, self.slots.len())];
        Events { hard: hard.max(written), soft }
    }

    /// Adds to the estimate of collisions: a fill was judged by its slot. `passed`: numbers given out since
    /// its miss, for all keys of a server with `shards` shards; each could have been an event of another key
    /// in this slot.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn note_fill(&mut self, passed: u64, shards: usize) {
        let slots = (self.slots.len() * shards) as f64;
        self.collisions += 1.0 - (-(passed as f64) / slots).exp();
    }

    /// Fills that met another key's event in their slot: an estimate, at most this number.
    pub fn collisions(&self) -> f64 {
        self.collisions
    }

    /// A delete took this number.
    pub fn raise_hard(&mut self, hash: u64, number: u64) {
        let [hard, ..] = &mut self.slots[slot(hash, self.slots.len())];
        *hard = (*hard).max(number);
    }

    /// A write took this number. A fill of an earlier miss, if that is known, is dropped for it; but a write
    /// that comes after it is no less a write.
    pub fn raise_written(&mut self, hash: u64, number: u64) {
        let [.., written] = &mut self.slots[slot(hash, self.slots.len())];
        *written = (*written).max(number);
    }

    /// A soft invalidation took this number.
    pub fn raise_soft(&mut self, hash: u64, number: u64) {
        let [_, soft, _] = &mut self.slots[slot(hash, self.slots.len())];
        *soft = (*soft).max(number);
    }
}

/// A key's slot in an array of this length, below 2^32. Not from the bits that choose the shard or the
/// index's bucket: Fibonacci hashing spreads the remaining bits.
pub(crate) fn slot(hash: u64, slots: usize) -> usize {
    (((hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * slots as u64) >> 32) as usize
}

#[cfg(test)]
mod tests;
