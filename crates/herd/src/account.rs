//! The account of a key with open misses: what becomes of a fill that does not say to which miss it belongs.
//!
//! A fill does not say which of the key's open misses it belongs to: pools send it on any connection. So the
//! account keeps the numbers of the misses and their times apart, and a fill removes the *largest number* and
//! the *earliest time*. The account then errs to one side only (*dominance*): below every number it has at
//! least as many misses as are really open there, and at least as many that are younger than any age. A miss
//! ends when it is one fill window old: the earliest time and the smallest number are removed together.
//!
//! A *hard event* of the key (a delete, an invalidation, a flush) makes the misses below its number old. A
//! fill is then one of these ([`Judgement`]), the first that fits:
//!
//! 1. *clean*: no number on record is below the event. Stored.
//! 2. *old*: no miss came after the event. Dropped.
//! 3. *proved*: more equal values have come since the event than there are old misses, so one of them is new.
//!    Stored.
//! 4. *dropped*: a value is there. If it is certain and another one, it gets a *life*: a genuine write must
//!    not be lost until the value expires.
//! 5. *dropped*: it came within the usual computing time (p99) of the last miss before the event, and is one
//!    of the first. It is probably old.
//! 6. *provisional*: stored for a life of four times the p99, or for as long as its computation may have
//!    taken if that is longer, and at most until no old miss is on record any more (the account *closes*).
//!
//! One fill window after an event no miss from before it is open. A number on record below the event then
//! stands for a younger miss, so every fill is clean again.
//!
//! So nothing certain is older than an event, and after an event at most nine fills are dropped with nothing
//! to show.
//!
//! The model that this follows was compared with memcached in 21 loads and tried in all orders of 2 to 5
//! fillers; the tests in `tests/it/account.rs` repeat the latter.

/// Different numbers and different times that are kept of each key; what is more is merged.
pub(crate) const SLOTS: usize = 8;
/// Fills dropped at first after an event, at most.
const DROPS: u32 = 8;
/// Different values that are counted since an event.
const ROOMS: usize = 8;
/// Life of a provisional value, in usual computing times.
const LIFE: u64 = 4;

/// Sorted values with their counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Tally {
    len: u8,
    values: [u64; SLOTS + 1],
    counts: [u32; SLOTS + 1],
}

impl Tally {
    fn values(&self) -> &[u64] {
        &self.values[..usize::from(self.len)]
    }

    fn each(&self) -> impl DoubleEndedIterator<Item = (u64, u32)> {
        self.values().iter().copied().zip(self.counts)
    }

    fn smallest(&self) -> Option<u64> {
        self.values().first().copied()
    }

    fn largest(&self) -> Option<u64> {
        self.values().last().copied()
    }

    /// How many there are below this value.
    fn below(&self, value: u64) -> u32 {
        self.each().take_while(|(own, _)| *own < value).map(|(_, count)| count).sum()
    }

    fn total(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// The `nth` of all, from 0.
    fn nth(&self, nth: u32) -> Option<u64> {
        let mut passed = 0;
        self.each()
            .find(|(_, count)| {
                passed += count;
                passed > nth
            })
            .map(|(value, _)| value)
    }

    fn add(&mut self, value: u64) {
        let at = self.values().partition_point(|own| *own < value);
        if self.values().get(at) == Some(&value) {
            self.counts[at] = self.counts[at].saturating_add(1);
            return;
        }
        let len = usize::from(self.len);
        self.values.copy_within(at..len, at + 1);
        self.counts.copy_within(at..len, at + 1);
        (self.values[at], self.counts[at]) = (value, 1);
        self.len += 1;
    }

    fn cut(&mut self, at: usize) {
        let len = usize::from(self.len);
        self.values.copy_within(at + 1..len, at);
        self.counts.copy_within(at + 1..len, at);
        (self.values[len - 1], self.counts[len - 1]) = (0, 0);
        self.len -= 1;
    }

    /// Takes one off this place.
    fn take(&mut self, at: usize) {
        self.counts[at] -= 1;
        if self.counts[at] == 0 {
            self.cut(at);
        }
    }

    fn take_smallest(&mut self) {
        if self.len > 0 {
            self.take(0);
        }
    }

    fn take_largest(&mut self) {
        if self.len > 0 {
            self.take(usize::from(self.len) - 1);
        }
    }

    /// All below this value become it.
    fn raise(&mut self, to: u64) {
        let below = self.below(to);
        if below == 0 {
            return;
        }
        while self.smallest().is_some_and(|value| value < to) {
            self.cut(0);
        }
        self.add(to);
        self.counts[0] = self.counts[0].saturating_add(below - 1);
    }

    /// All are higher by this much.
    fn shift(&mut self, by: u64) {
        self.values[..usize::from(self.len)].iter_mut().for_each(|value| *value += by);
    }

    /// One of this value; the largest if there is none.
    fn take_value(&mut self, value: u64) {
        match self.values().binary_search(&value) {
            Ok(at) => self.take(at),
            Err(_) => self.take_largest(),
        }
    }

    /// If there are too many: the lowest two on one side of `border` become the lower of them.
    fn merge_down(&mut self, most: usize, border: u64) {
        if usize::from(self.len) <= most {
            return;
        }
        let pair = self.values().windows(2).position(|pair| (pair[0] < border) == (pair[1] < border));
        if let Some(at) = pair {
            self.counts[at] = self.counts[at].saturating_add(self.counts[at + 1]);
            self.cut(at + 1);
        }
    }

    /// If there are too many: the two that are closest become the later of them.
    fn merge_up(&mut self, most: usize) {
        if usize::from(self.len) <= most {
            return;
        }
        let gaps = self.values().windows(2).map(|pair| pair[1] - pair[0]).enumerate();
        if let Some((at, _)) = gaps.min_by_key(|(_, gap)| *gap) {
            self.counts[at + 1] = self.counts[at + 1].saturating_add(self.counts[at]);
            self.cut(at);
        }
    }
}

/// How many more fills of a value could all be old; below 0: it is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct OldFillsLeft {
    value: u64,
    left: i32,
}

/// Misses that are not on record, because there was no room for them or they came before the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostMisses {
    /// The smallest of their numbers.
    pub number: u64,
    /// Until when they count, in milliseconds.
    pub until_ms: u64,
}

/// Misses of a key that may be open and are not on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnrecordedMisses {
    /// Those for which there was no room: any of them may be older or newer than an event.
    pub lost: Option<LostMisses>,
    /// Those from before the start: all are below its number.
    pub before: Option<LostMisses>,
    /// When that was, in milliseconds: what belongs to one of them has been computed since then, at least.
    pub before_ms: Option<u64>,
    /// No fill is taken off the record while misses from before the start may be open.
    pub keeps_all: bool,
}

impl UnrecordedMisses {
    fn smallest(&self) -> Option<u64> {
        self.each().map(|lost| lost.number).min()
    }

    fn each(&self) -> impl Iterator<Item = LostMisses> {
        self.lost.into_iter().chain(self.before)
    }

    /// A fill may belong to none of those on record, and one of those must stay for it.
    fn keeps(&self) -> bool {
        self.lost.is_some() || self.keeps_all && self.before.is_some()
    }
}

/// The value that is under the key now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownValue {
    /// The hash of its bytes, flags and tags.
    pub value: u64,
    /// The value was stored as provisional.
    pub provisional: bool,
}

/// Hashes that are computed only when they are needed.
pub trait ValueHashes {
    /// The hash of the bytes, flags and tags of the fill.
    fn fill(&self) -> u64;
    /// What a reader would get now; an old value in its grace is none.
    fn shown(&self) -> Option<ShownValue>;
}

/// When and under which terms a fill is judged.
#[derive(Debug, Clone, Copy)]
pub struct FillMoment {
    /// Milliseconds since the start.
    pub now_ms: u64,
    /// The usual computing time, in milliseconds; at least 1.
    pub p99_ms: u64,
    /// Nothing is provisional: it is dropped instead. What may be older than a soft event is taken to be.
    pub strict: bool,
}

/// The decision about a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The fill belongs to no miss: an ordinary write.
    Write,
    /// The fill belongs to no miss on record, and may be of one from before the start (or a change of rules),
    /// after which there was a hard event: dropped.
    Unrecorded,
    /// The fill is stored, and counts as of this number.
    Clean {
        /// The number.
        stamp: u64,
    },
    /// The fill is older than the last hard event: dropped.
    Old,
    /// The fill is stored, and counts as of the last hard event.
    Proved {
        /// That event's number.
        stamp: u64,
        /// The fill equals the certain value that is there, whose life (if it was doubted) stays.
        again: bool,
    },
    /// The fill may be old: dropped.
    Dropped {
        /// The certain value that is there may be the older one: it goes at this time, in milliseconds.
        doubt_ms: Option<u64>,
    },
    /// The fill may be old: stored for a time.
    Provisional {
        /// The number of the last hard event.
        stamp: u64,
        /// Until when, in milliseconds.
        until_ms: u64,
        /// The fill takes the place of another provisional value, and ends with that at the latest.
        instead: bool,
    },
}

impl Judgement {
    /// The number as of which the value counts; None: as of its own.
    pub fn stamp(self) -> Option<u64> {
        match self {
            Self::Clean { stamp } | Self::Proved { stamp, .. } | Self::Provisional { stamp, .. } => {
                Some(stamp)
            }
            Self::Write | Self::Unrecorded | Self::Old | Self::Dropped { .. } => None,
        }
    }

    /// Whether the value is stored or given to the waiters.
    pub fn stores(self) -> bool {
        !matches!(self, Self::Unrecorded | Self::Old | Self::Dropped { .. })
    }
}

/// How a value that is stored relates to the last soft event of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoftRelation {
    /// The value is newer than the event.
    No,
    /// The value may be older: it counts as of this event, and becomes stale at this time, in milliseconds.
    Later {
        /// The event's number.
        soft: u64,
        /// The time.
        until_ms: u64,
    },
    /// The value is older, or counts as older.
    Now,
}

/// The open misses of one key, and the judge of its fills.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct KeyAccount {
    numbers: Tally,
    times: Tally,
    /// Times at which misses on record began: their newest gives the computing time of a fill.
    began: Tally,
    /// The longest fill window of its misses, in milliseconds.
    window_ms: u64,
    /// The last hard event that is known.
    hard: u64,
    /// A time by which it had happened; None: not noted yet.
    hard_ms: Option<u64>,
    /// The last soft event that is known.
    soft: u64,
    /// The largest number recorded.
    last: u64,
    /// The time of the newest miss; None before the first.
    last_ms: Option<u64>,
    /// `last_ms` when `hard` became known.
    old_ms: Option<u64>,
    /// `last_ms` when `soft` became known.
    softened_ms: Option<u64>,
    /// Fills since `hard` became known of which it is not known whether they are old.
    since: u32,
    rooms: [OldFillsLeft; ROOMS],
    rooms_len: u8,
}

impl KeyAccount {
    /// Misses on record.
    pub fn open(&self) -> u32 {
        self.numbers.total()
    }

    /// No miss is on record.
    pub fn is_empty(&self) -> bool {
        self.numbers.len == 0
    }

    /// Misses on record that are older than the last hard event.
    pub fn old(&self) -> u32 {
        self.numbers.below(self.hard)
    }

    /// The numbers on record, each with its count.
    pub fn numbers(&self) -> impl Iterator<Item = (u64, u32)> {
        self.numbers.each()
    }

    /// The times on record in milliseconds, each with its count.
    pub fn times(&self) -> impl Iterator<Item = (u64, u32)> {
        self.times.each()
    }

    /// The last hard event known.
    pub fn hard(&self) -> u64 {
        self.hard
    }

    /// Fills since the last hard event of which it is not known whether they are old.
    pub fn since(&self) -> u32 {
        self.since
    }

    fn is_unknown(&self, missing: &UnrecordedMisses) -> bool {
        missing.smallest().is_some_and(|number| number < self.hard)
    }

    /// Whether no miss that is older than the last hard event may be open any more: a provisional value goes.
    pub fn is_closed(&self, missing: &UnrecordedMisses) -> bool {
        self.old() == 0 && !self.is_unknown(missing)
    }

    /// When [`KeyAccount::is_closed`] at the latest, without further misses and events, in milliseconds.
    pub fn closes_ms(&self, missing: &UnrecordedMisses) -> u64 {
        let by_window = self.old().checked_sub(1).and_then(|nth| self.times.nth(nth));
        let by_window = by_window.map_or(0, |time| time + self.window_ms);
        let by_event = self.hard_ms.map_or(u64::MAX, |hard_ms| hard_ms + self.window_ms);
        let by_window = by_window.min(by_event);
        let old = missing.each().filter(|lost| lost.number < self.hard);
        old.map(|lost| lost.until_ms).fold(by_window, u64::max)
    }

    /// Time has passed: misses that are a window old go.
    pub fn pass(&mut self, now_ms: u64) {
        while self.times.smallest().is_some_and(|time| time + self.window_ms <= now_ms) {
            self.times.take_smallest();
            self.numbers.take_smallest();
            self.began.take_smallest();
        }
        if now_ms >= *self.hard_ms.get_or_insert(now_ms) + self.window_ms {
            // The misses from before the event are over. Numbers below it stand for younger misses, whose own
            // numbers were taken off by fills of older ones.
            self.numbers.raise(self.hard);
        }
    }

    /// The server did not run for this many milliseconds: its misses and events count as that much later.
    pub fn delay(&mut self, ms: u64) {
        self.times.shift(ms);
        self.began.shift(ms);
        let times = [&mut self.hard_ms, &mut self.last_ms, &mut self.old_ms, &mut self.softened_ms];
        times.into_iter().flatten().for_each(|time| *time += ms);
    }

    /// There was a hard event.
    pub fn harden(&mut self, hard: u64) {
        if hard > self.hard {
            (self.hard, self.hard_ms) = (hard, None);
            (self.old_ms, self.since) = (self.newest_before(hard), 0);
            (self.rooms, self.rooms_len) = ([OldFillsLeft::default(); ROOMS], 0);
        }
    }

    /// What is counted now cannot be kept: fills are not dropped for coming too early, again and again.
    pub(crate) fn forget_age(&mut self) {
        self.old_ms = None;
    }

    /// There was a soft event.
    pub fn soften(&mut self, soft: u64) {
        if soft > self.soft {
            (self.soft, self.softened_ms) = (soft, self.newest_before(soft));
        }
    }

    /// The time of the newest miss, if it came before this event; otherwise it is not known which miss did.
    fn newest_before(&self, event: u64) -> Option<u64> {
        self.last_ms.filter(|_| self.last < event)
    }

    /// A miss that noted this number, after [`KeyAccount::pass`] and the events before it. `most`: different
    /// numbers and times kept, at least 2.
    pub fn record(&mut self, number: u64, now_ms: u64, window_ms: u64, most: usize) {
        self.window_ms = if self.is_empty() { window_ms } else { self.window_ms.max(window_ms) };
        self.numbers.add(number);
        self.numbers.merge_down(most, self.hard);
        self.times.add(now_ms);
        self.times.merge_up(most);
        self.began.add(now_ms);
        self.began.merge_up(most);
        (self.last, self.last_ms) = (self.last.max(number), Some(now_ms));
    }

    /// A fill came: takes its miss off the record. `number`: the miss, if that is known. While there are lost
    /// misses it may belong to one of them, and nothing is taken off.
    pub fn take(&mut self, number: Option<u64>, missing: &UnrecordedMisses) {
        if missing.keeps() {
            return;
        }
        match number {
            Some(number) => self.numbers.take_value(number),
            None => self.numbers.take_largest(),
        }
        self.began.take_largest();
        self.times.take_smallest();
    }

    /// How long a fill has been computed, at least: since the newest miss, in milliseconds.
    pub fn sample_ms(&self, now_ms: u64) -> Option<u64> {
        self.began.largest().map(|began| now_ms.saturating_sub(began))
    }

    /// Judges a fill that does not say to which miss it belongs, after [`KeyAccount::pass`] and the events
    /// before it; it is taken off the record afterwards ([`KeyAccount::take`]).
    pub fn judge(
        &mut self,
        moment: &FillMoment,
        missing: &UnrecordedMisses,
        values: &dyn ValueHashes,
    ) -> Judgement {
        let (old, unknown) = (self.old(), self.is_unknown(missing));
        if old == 0 && !unknown {
            let smallest = self.numbers.smallest().into_iter().chain(missing.smallest()).min();
            return smallest.map_or(Judgement::Write, |stamp| Judgement::Clean { stamp });
        }
        if self.last < self.hard && missing.lost.is_none() {
            return Judgement::Old;
        }
        self.since = self.since.saturating_add(1);
        let (value, shown) = (values.fill(), values.shown());
        let before = self.room(value);
        if !unknown {
            let left = before.unwrap_or(i32::MAX).min(i32::try_from(old).unwrap_or(i32::MAX)).max(0) - 1;
            self.set_room(value, left);
            if left < 0 {
                let again = shown.is_some_and(|shown| !shown.provisional && shown.value == value);
                return Judgement::Proved { stamp: self.hard, again };
            }
        }
        let until_ms = life_ms(begun_ms(old, self.old_ms, missing), moment);
        if let Some(shown) = shown {
            if !shown.provisional {
                return Judgement::Dropped { doubt_ms: (shown.value != value).then_some(until_ms) };
            }
            let has_less = self
                .room(value)
                .is_some_and(|own| before.is_some() && own < self.room(shown.value).unwrap_or(i32::MAX));
            if has_less && shown.value != value && !moment.strict {
                return Judgement::Provisional { stamp: self.hard, until_ms, instead: true };
            }
            return Judgement::Dropped { doubt_ms: None };
        }
        if moment.strict || self.is_too_early(moment, old + u32::from(unknown)) {
            return Judgement::Dropped { doubt_ms: None };
        }
        Judgement::Provisional { stamp: self.hard, until_ms, instead: false }
    }

    /// How a value that counts as of `stamp` relates to the last soft event; before it is taken off the
    /// record.
    pub fn softened(&self, stamp: u64, moment: &FillMoment, missing: &UnrecordedMisses) -> SoftRelation {
        if self.soft <= stamp {
            SoftRelation::No
        } else if moment.strict || self.last < self.soft && missing.lost.is_none() {
            SoftRelation::Now
        } else {
            let old = self.numbers.below(self.soft);
            let until_ms = life_ms(begun_ms(old, self.softened_ms, missing), moment);
            SoftRelation::Later { soft: self.soft, until_ms }
        }
    }

    fn is_too_early(&self, moment: &FillMoment, old: u32) -> bool {
        let is_soon = self.old_ms.is_some_and(|old_ms| moment.now_ms.saturating_sub(old_ms) < moment.p99_ms);
        is_soon && self.since <= old.min(DROPS)
    }

    fn room(&self, value: u64) -> Option<i32> {
        let rooms = &self.rooms[..usize::from(self.rooms_len)];
        rooms.iter().find(|room| room.value == value).map(|room| room.left)
    }

    /// Sets the room of a value; of too many values the one with the most room goes.
    fn set_room(&mut self, value: u64, left: i32) {
        let len = usize::from(self.rooms_len);
        let rooms = &mut self.rooms[..len];
        if let Some(room) = rooms.iter_mut().find(|room| room.value == value) {
            room.left = left;
        } else if len < ROOMS {
            self.rooms[len] = OldFillsLeft { value, left };
            self.rooms_len += 1;
        } else if let Some(most) =
            rooms.iter_mut().max_by_key(|room| room.left).filter(|most| most.left >= left)
        {
            *most = OldFillsLeft { value, left };
        }
    }
}

/// The last moment at which the computation of a value that is older than an event can have begun, if that is
/// known. `old`: misses on record that are older than it, the newest of them at `old_ms`.
fn begun_ms(old: u32, old_ms: Option<u64>, missing: &UnrecordedMisses) -> Option<u64> {
    if old == 0 && missing.lost.is_none() { missing.before_ms } else { old_ms }
}

/// The end of a value that comes now and may have been computed since before `old_ms`.
pub(crate) fn life_ms(old_ms: Option<u64>, moment: &FillMoment) -> u64 {
    let age_ms = old_ms.map_or(0, |old_ms| moment.now_ms.saturating_sub(old_ms));
    moment.now_ms + age_ms.max(LIFE * moment.p99_ms)
}

#[cfg(test)]
mod tests;
