//! The commands that the watched server's clients would have sent to the shadow. This file decides on them;
//! `pipes.rs` sends them.
//!
//! ```text
//!   lines, in order ──▶ clean: without the look-ups of stores ──▶ at their time: commands ──▶ replies ──▶ fills
//! ```
//! # Rules
//! * A look-up is repeated on the connection that stands for its client. A client computes after a miss, and
//!   does not after a hit.
//! * After a miss on both servers the store that the client sent is repeated. After a miss on the watched
//!   server and a hit on the shadow the store is left out.
//! * After a hit on the watched server and a miss on the shadow a value of the same size is stored when the
//!   computing time of this shape has passed. Until then the client computes: its look-ups in that time, and
//!   the stores that follow from them, are left out.
//! * An item that the watched server lost without expiry or eviction was deleted or flushed: it is deleted on
//!   the shadow before the look-up.
//! * An item that the watched server still has after its time to live was touched: it is stored again before
//!   the look-up.
//!
//! # Invariants
//! * No I/O and no clock: times are the watched server's, in microseconds.

use std::collections::{BTreeMap, HashMap, VecDeque};

use cattlegrid_server::shape;

use super::super::observations::{WatchEvent, WatchEventKind, decoded};

/// Most keys whose state in the watched server is followed.
const KNOWN_MAX: usize = 1_000_000;
/// Most look-ups that wait for their store.
const ASKS_MAX: usize = 200_000;
/// Longest time from a look-up to its store, in microseconds.
const ASK_US: u64 = 60_000_000;
/// The time by which an item may outlive its time to live, in microseconds: servers count whole seconds.
const SECOND_US: u64 = 1_000_000;
/// Longest time from a store's or delete's own look-up to it, in microseconds.
const LOOK_UP_US: u64 = 5_000;
/// Longest time of a reply that was not held, in microseconds.
const PROMPT_US: u64 = 20_000;
/// Most shapes whose times are kept.
const SHAPES_MAX: usize = 10_000;
/// The assumed computing time of a shape of which no computation was seen, in microseconds.
const COMPUTES_US: u64 = 50_000;

/// A command to the shadow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShadowCommand {
    /// The connection at the watched server.
    pub(super) connection: u64,
    pub(super) key: Box<[u8]>,
    pub(super) what: ShadowCommandKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShadowCommandKind {
    /// A look-up with this number, which comes back with the reply.
    Get(u64),
    Store(FillerValue),
    Delete,
    /// A look-up that is neither counted nor held.
    Fetch,
}

/// A value with generated contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FillerValue {
    pub(super) size: u32,
    /// The time to live in seconds; 0: it does not expire.
    pub(super) ttl: u32,
    pub(super) is_add: bool,
}

/// Counters of the watched server and of the shadow.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct ShadowTally {
    pub(super) real_gets: u64,
    pub(super) real_hits: u64,
    pub(super) real_computed: u64,
    pub(super) gets: u64,
    pub(super) hits: u64,
    pub(super) computed: u64,
    /// Fills among `computed` that no client of the watched server made.
    pub(super) made_up: u64,
    /// Deletes that were inferred.
    pub(super) gone: u64,
    /// Touches that were inferred.
    pub(super) touched: u64,
    /// Look-ups that were left out because their clients would have been computing.
    pub(super) left_out: u64,
    /// Replies that have not come.
    pub(super) open: u64,
}

#[derive(Debug, Clone, Copy)]
struct KeyState {
    expires_us: u64,
    ttl: u32,
}

/// A look-up whose client may store.
#[derive(Debug)]
struct OpenLookup {
    id: u64,
    connection: u64,
    at_us: u64,
    real_hit: bool,
    size: u32,
    outcome: LookupOutcome,
    /// The store that came before the reply, and its time after the look-up, in microseconds.
    store: Option<(FillerValue, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LookupOutcome {
    Waits,
    Hit,
    Miss,
}

/// How long a shape's computations take, and for how long its values are stored.
#[derive(Debug, Default, Clone, Copy)]
struct ShapeTimes {
    us: u64,
    ttl: u32,
}

#[derive(Debug)]
pub(super) struct Replay {
    /// Lines in order; None: the look-up of a store or delete.
    clean: VecDeque<Option<WatchEvent>>,
    /// The number of the first line in `clean`.
    first: u64,
    /// The number of the last look-up of each connection.
    last: HashMap<u64, u64>,
    known: HashMap<Box<[u8]>, KeyState>,
    asks: HashMap<Box<[u8]>, Vec<OpenLookup>>,
    asks_count: usize,
    next_id: u64,
    habits: HashMap<String, ShapeTimes>,
    fills: BTreeMap<(u64, u64), ShadowCommand>,
    /// Clients that compute on the shadow only, with the time at which each ends.
    computing: HashMap<u64, u64>,
    swept_us: u64,
    /// Whether lines were left out: then deletes are not inferred.
    pub(super) is_incomplete: bool,
    pub(super) tally: ShadowTally,
}

impl Replay {
    pub(super) fn new() -> Self {
        Self {
            clean: VecDeque::new(),
            first: 0,
            last: HashMap::new(),
            known: HashMap::new(),
            asks: HashMap::new(),
            asks_count: 0,
            next_id: 0,
            habits: HashMap::new(),
            fills: BTreeMap::new(),
            computing: HashMap::new(),
            swept_us: 0,
            is_incomplete: false,
            tally: ShadowTally::default(),
        }
    }

    /// The number of lines that wait for their time.
    pub(super) fn waiting(&self) -> usize {
        self.clean.len()
    }

    /// When the next line or fill is due.
    pub(super) fn next_us(&self) -> Option<u64> {
        let line = self.clean.iter().flatten().next().map(|event| event.at.0);
        let fill = self.fills.first_key_value().map(|((us, _), _)| *us);
        line.into_iter().chain(fill).min()
    }

    /// Records an item of the watched server. `expires_us` is [`u64::MAX`] without a time to live.
    pub(super) fn preloaded(&mut self, key: &[u8], ttl: u32, expires_us: u64) {
        self.know(key, KeyState { expires_us, ttl });
    }

    /// Takes the next line.
    pub(super) fn push(&mut self, event: WatchEvent) {
        let number = self.first + self.clean.len() as u64;
        match event.kind {
            WatchEventKind::Get { .. } => {
                if self.last.len() < ASKS_MAX || self.last.contains_key(&event.connection) {
                    self.last.insert(event.connection, number);
                }
            }
            // memcached does not show the connection of a delete.
            WatchEventKind::Delete if event.connection == 0 => self.forget_look_up(&event),
            WatchEventKind::Store { .. } | WatchEventKind::Delete => {
                if let Some(own) =
                    self.last.remove(&event.connection).and_then(|own| own.checked_sub(self.first))
                    && let Some(slot) = self.clean.get_mut(own as usize)
                    && slot
                        .as_ref()
                        .is_some_and(|own| own.key == event.key && own.at.0 + LOOK_UP_US >= event.at.0)
                {
                    *slot = None;
                }
            }
            WatchEventKind::Eviction => {}
        }
        self.clean.push_back(Some(event));
    }

    fn forget_look_up(&mut self, delete: &WatchEvent) {
        for slot in self.clean.iter_mut().rev() {
            let Some(event) = slot else { continue };
            if event.at.0 + LOOK_UP_US < delete.at.0 {
                return;
            }
            if event.key == delete.key && matches!(event.kind, WatchEventKind::Get { .. }) {
                *slot = None;
                return;
            }
        }
    }

    /// Gives `send` the commands that are due at `until_us`, in order.
    pub(super) fn due(&mut self, until_us: u64, send: &mut impl FnMut(ShadowCommand)) {
        loop {
            let line_us = self.clean.front().map(|slot| slot.as_ref().map_or(0, |event| event.at.0));
            let fill = self.fills.first_key_value().map(|(key, _)| *key);
            match (line_us, fill) {
                (line_us, Some((fill_us, id)))
                    if fill_us <= until_us && line_us.is_none_or(|us| fill_us < us) =>
                {
                    if let Some(fill) = self.fills.remove(&(fill_us, id)) {
                        send(fill);
                    }
                }
                (Some(line_us), _) if line_us <= until_us => {
                    self.first += 1;
                    if let Some(event) = self.clean.pop_front().flatten() {
                        self.happens(event, send);
                    }
                }
                _ => break,
            }
        }
        if until_us > self.swept_us + 10 * SECOND_US {
            self.swept_us = until_us;
            self.sweep(until_us);
        }
    }

    fn happens(&mut self, event: WatchEvent, send: &mut impl FnMut(ShadowCommand)) {
        let WatchEvent { at: (us, _), connection, key, kind } = event;
        let key = decoded(&key).into_boxed_slice();
        match kind {
            WatchEventKind::Get { hit, size } => {
                self.looks_up(key, connection, us, hit.then_some(size), send);
            }
            WatchEventKind::Store { stored, is_add, ttl, size } => {
                let value = FillerValue { size, ttl: u32::try_from(ttl).unwrap_or(0), is_add };
                if stored || is_add {
                    self.stores(key, connection, us, value, stored, send);
                }
            }
            WatchEventKind::Delete => {
                self.known.remove(&key);
                send(ShadowCommand { connection, key, what: ShadowCommandKind::Delete });
            }
            WatchEventKind::Eviction => drop(self.known.remove(&key)),
        }
    }

    fn looks_up(
        &mut self,
        key: Box<[u8]>,
        connection: u64,
        us: u64,
        hit_size: Option<u32>,
        send: &mut impl FnMut(ShadowCommand),
    ) {
        self.tally.real_gets += 1;
        self.tally.real_hits += u64::from(hit_size.is_some());
        match (hit_size, self.known.get(&key).copied()) {
            (None, Some(known)) => {
                self.known.remove(&key);
                if us < known.expires_us.saturating_sub(SECOND_US) && !self.is_incomplete {
                    self.tally.gone += 1;
                    send(ShadowCommand { connection, key: key.clone(), what: ShadowCommandKind::Delete });
                }
            }
            (Some(size), Some(known)) if us > known.expires_us.saturating_add(SECOND_US) => {
                self.tally.touched += 1;
                let value = FillerValue { size, ttl: known.ttl, is_add: false };
                let expires_us = us.saturating_add(u64::from(known.ttl) * SECOND_US);
                self.know(&key, KeyState { expires_us, ..known });
                send(ShadowCommand { connection, key: key.clone(), what: ShadowCommandKind::Store(value) });
            }
            (Some(_), None) => self.know(&key, KeyState { expires_us: u64::MAX, ttl: 0 }),
            _ => {}
        }
        let id = self.next_id;
        self.next_id += 1;
        let is_computing = self.computing.get(&connection).is_some_and(|until_us| us < *until_us);
        if is_computing {
            self.tally.left_out += 1;
        } else {
            self.tally.open += 1;
            send(ShadowCommand { connection, key: key.clone(), what: ShadowCommandKind::Get(id) });
        }
        let (size, real_hit) = (hit_size.unwrap_or(0), hit_size.is_some());
        if self.asks_count >= ASKS_MAX || is_computing && real_hit {
            return;
        }
        // A key that was not looked up is not computed: its store is left out, as after a hit.
        let outcome = if is_computing { LookupOutcome::Hit } else { LookupOutcome::Waits };
        let ask = OpenLookup { id, connection, at_us: us, real_hit, size, outcome, store: None };
        let asks = self.asks.entry(key).or_default();
        // A client that looks the key up again is counted once.
        match asks.iter_mut().find(|own| own.connection == connection && own.outcome != LookupOutcome::Waits)
        {
            Some(own) if !own.real_hit && !real_hit => {
                own.id = id;
                own.outcome = outcome;
            }
            Some(own) => *own = ask,
            None => {
                asks.push(ask);
                self.asks_count += 1;
            }
        }
    }

    fn stores(
        &mut self,
        key: Box<[u8]>,
        connection: u64,
        us: u64,
        value: FillerValue,
        stored: bool,
        send: &mut impl FnMut(ShadowCommand),
    ) {
        if stored {
            let ttl_us = u64::from(value.ttl) * SECOND_US;
            let expires_us = if value.ttl == 0 { u64::MAX } else { us.saturating_add(ttl_us) };
            self.know(&key, KeyState { expires_us, ttl: value.ttl });
        }
        let mut asks = self.asks.get_mut(&key);
        // A command that changes a value that is still to be stored.
        let waiting = asks.as_mut().and_then(|asks| {
            asks.iter_mut().find(|ask| ask.connection == connection).and_then(|ask| ask.store.as_mut())
        });
        if let Some((before, _)) = waiting {
            *before = FillerValue { is_add: before.is_add, ..value };
            return;
        }
        // A client with a pool of connections may store on any of them.
        let place = asks.as_ref().and_then(|asks| {
            let misses = || asks.iter().enumerate().filter(|(_, ask)| !ask.real_hit && ask.store.is_none());
            let own = misses().find(|(_, ask)| ask.connection == connection);
            own.or_else(|| misses().next()).map(|(place, _)| place)
        });
        let (Some(asks), Some(place)) = (asks, place) else {
            send(ShadowCommand { connection, key, what: ShadowCommandKind::Store(value) });
            return;
        };
        let took_us = us.saturating_sub(asks[place].at_us);
        let outcome = asks[place].outcome;
        if outcome == LookupOutcome::Waits {
            asks[place].store = Some((value, took_us));
        } else {
            asks.swap_remove(place);
            self.asks_count -= 1;
            if asks.is_empty() {
                self.asks.remove(&key);
            }
        }
        if stored {
            self.tally.real_computed += 1;
            self.learn(&key, took_us, value.ttl);
        }
        if outcome == LookupOutcome::Miss {
            self.tally.computed += 1;
            send(ShadowCommand { connection, key, what: ShadowCommandKind::Store(value) });
        }
    }

    /// Handles the reply to a look-up at `now_us` of the watched server's clock.
    pub(super) fn answered(&mut self, key: &[u8], id: u64, is_hit: bool, now_us: u64) {
        self.tally.open -= 1;
        self.tally.gets += 1;
        self.tally.hits += u64::from(is_hit);
        let Some(asks) = self.asks.get_mut(key) else { return };
        let Some(place) = asks.iter().position(|ask| ask.id == id) else { return };
        let ask = &mut asks[place];
        ask.outcome = if is_hit { LookupOutcome::Hit } else { LookupOutcome::Miss };
        if ask.store.is_none() && !ask.real_hit {
            return;
        }
        let ask = asks.swap_remove(place);
        self.asks_count -= 1;
        if asks.is_empty() {
            self.asks.remove(key);
        }
        if is_hit {
            return;
        }
        // The client would compute from now on.
        let habit = self.habits.get(&shape(key)).copied();
        let habit = habit.unwrap_or(ShapeTimes { us: COMPUTES_US, ttl: 0 });
        let (value, after_us) = ask.store.unwrap_or_else(|| {
            let known = self.known.get(key).filter(|known| known.ttl > 0);
            let ttl = known.map_or(habit.ttl, |known| known.ttl);
            self.tally.made_up += 1;
            (FillerValue { size: ask.size, ttl, is_add: false }, habit.us)
        });
        self.tally.computed += 1;
        let fill = ShadowCommand {
            connection: ask.connection,
            key: key.into(),
            what: ShadowCommandKind::Store(value),
        };
        // A reply that was not held is read when the next commands are sent, although its client had it at
        // once.
        let from_us = if now_us < ask.at_us.saturating_add(PROMPT_US) { ask.at_us } else { now_us };
        let until_us = from_us.saturating_add(after_us);
        if ask.real_hit && (self.computing.len() < ASKS_MAX || self.computing.contains_key(&ask.connection)) {
            self.computing.insert(ask.connection, until_us);
        }
        self.fills.insert((until_us, id), fill);
    }

    fn know(&mut self, key: &[u8], known: KeyState) {
        if let Some(own) = self.known.get_mut(key) {
            *own = known;
        } else if self.known.len() < KNOWN_MAX {
            self.known.insert(key.into(), known);
        }
    }

    fn learn(&mut self, key: &[u8], us: u64, ttl: u32) {
        let name = shape(key);
        if self.habits.len() >= SHAPES_MAX && !self.habits.contains_key(&name) {
            return;
        }
        let habit = self.habits.entry(name).or_insert(ShapeTimes { us, ttl });
        habit.us = (7 * habit.us + us) / 8;
        habit.ttl = ttl;
    }

    /// Forgets look-ups whose store has not come in time.
    fn sweep(&mut self, now_us: u64) {
        let mut count = 0;
        self.asks.retain(|_, asks| {
            asks.retain(|ask| now_us.saturating_sub(ask.at_us) < ASK_US);
            count += asks.len();
            !asks.is_empty()
        });
        self.asks_count = count;
        self.computing.retain(|_, until_us| now_us < *until_us);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::observations::tests::{get, store};
    use super::*;

    /// A replay, and what it has sent.
    struct ReplayTest {
        replay: Replay,
        sent: Vec<ShadowCommand>,
    }

    impl ReplayTest {
        fn of(events: Vec<WatchEvent>) -> Self {
            let mut replay = Replay::new();
            for event in events {
                replay.push(event);
            }
            Self { replay, sent: Vec::new() }
        }

        /// The commands that are sent until this time.
        fn until(&mut self, us: u64) -> Vec<ShadowCommandKind> {
            let before = self.sent.len();
            self.replay.due(us, &mut |send| self.sent.push(send));
            self.sent[before..].iter().map(|send| send.what).collect()
        }

        fn answer(&mut self, id: u64, is_hit: bool, us: u64) {
            let asked = self.sent.iter().find(|send| send.what == ShadowCommandKind::Get(id)).unwrap();
            let key = asked.key.clone();
            self.replay.answered(&key, id, is_hit, us);
        }
    }

    fn on(connection: u64, event: WatchEvent) -> WatchEvent {
        WatchEvent { connection, ..event }
    }

    fn value(size: u32, ttl: u32) -> ShadowCommandKind {
        ShadowCommandKind::Store(FillerValue { size, ttl, is_add: false })
    }

    /// A client that computes only on the shadow asks for nothing meanwhile, and its stores of that time are
    /// left out.
    #[test]
    fn a_client_that_computes_on_the_shadow_only_asks_for_nothing() {
        let mut world = ReplayTest::of(vec![
            on(1, get("page:1", true, 0)),
            on(1, get("page:2", false, 10_000)),
            on(2, get("page:3", true, 15_000)),
            on(1, store("page:2", 60, 30_000)),
            on(1, get("page:4", true, 60_000)),
        ]);
        assert_eq!(world.until(5_000), [ShadowCommandKind::Get(0)]);
        world.answer(0, false, 5_000);
        assert_eq!(world.until(40_000), [ShadowCommandKind::Get(2)], "of the other client");
        let filled = world.until(60_000);
        assert!(matches!(filled[..], [ShadowCommandKind::Store(_), ShadowCommandKind::Get(3)]), "{filled:?}");
        assert_eq!((world.replay.tally.left_out, world.replay.tally.made_up), (1, 1));
        assert_eq!((world.replay.tally.real_gets, world.replay.tally.real_computed), (4, 1));
    }

    #[test]
    fn only_who_misses_stores() {
        let mut world = ReplayTest::of(vec![
            on(1, get("page:1", false, 0)),
            on(2, get("page:1", false, 10)),
            on(1, store("page:1", 60, 100_000)),
            on(2, store("page:1", 60, 100_010)),
        ]);
        assert_eq!(world.until(50), [ShadowCommandKind::Get(0), ShadowCommandKind::Get(1)]);
        world.answer(0, false, 60);
        assert_eq!(world.until(100_005), [value(3, 60)], "of the client that missed");
        world.answer(1, true, 100_008);
        assert_eq!(world.until(200_000), [], "who was held and got the value does not compute");
        let tally = &world.replay.tally;
        assert_eq!((tally.real_computed, tally.computed, tally.hits, tally.open), (2, 1, 1, 0));
    }

    #[test]
    fn who_is_held_in_vain_computes_then() {
        let mut world =
            ReplayTest::of(vec![on(1, get("page:1", false, 0)), on(1, store("page:1", 60, 100_000))]);
        world.until(200_000);
        world.answer(0, false, 400_000);
        assert_eq!(world.until(499_999), []);
        assert_eq!(world.until(500_000), [value(3, 60)]);
        assert_eq!(world.replay.tally.computed, 1);
    }

    #[test]
    fn a_hit_that_the_shadow_misses_is_computed_as_others_of_its_shape() {
        let mut world = ReplayTest::of(vec![
            on(1, get("page:1", false, 0)),
            on(1, store("page:1", 60, 100_000)),
            on(2, get("page:2", true, 200_000)),
        ]);
        world.until(50);
        world.answer(0, false, 60);
        assert_eq!(world.until(200_000), [value(3, 60), ShadowCommandKind::Get(1)]);
        world.answer(1, false, 200_100);
        assert_eq!(world.until(299_999), []);
        assert_eq!(world.until(300_000), [value(3, 60)]);
        let tally = &world.replay.tally;
        assert_eq!((tally.real_computed, tally.computed, tally.made_up), (1, 2, 1));
    }

    #[test]
    fn look_ups_of_stores_and_deletes_are_none() {
        let delete = |connection| WatchEvent {
            connection,
            kind: WatchEventKind::Delete,
            ..get("page:1", true, 20_001)
        };
        for connection in [7, 0] {
            let mut world = ReplayTest::of(vec![
                on(7, get("page:1", false, 10_000)),
                on(7, store("page:1", 60, 10_001)),
                on(7, get("page:1", true, 20_000)),
                delete(connection),
            ]);
            assert_eq!(world.until(30_000), [value(3, 60), ShadowCommandKind::Delete]);
            assert_eq!(world.replay.tally.real_gets, 0);
        }
    }

    #[test]
    fn what_has_gone_early_was_deleted_unless_it_was_evicted() {
        let kept = |extra: Vec<WatchEvent>| {
            let mut events = vec![store("page:1", 60, 0)];
            events.extend(extra);
            events.push(get("page:1", false, 10_000_000));
            let mut world = ReplayTest::of(events);
            let sent = world.until(10_000_000);
            (sent, world.replay.tally.gone)
        };
        assert_eq!(
            kept(vec![]),
            (vec![value(3, 60), ShadowCommandKind::Delete, ShadowCommandKind::Get(0)], 1)
        );
        let evicted = WatchEvent { kind: WatchEventKind::Eviction, ..get("page:1", true, 5_000) };
        assert_eq!(kept(vec![evicted]), (vec![value(3, 60), ShadowCommandKind::Get(0)], 0));
        let mut expired = ReplayTest::of(vec![store("page:1", 5, 0), get("page:1", false, 5_000_000)]);
        assert_eq!(expired.until(5_000_000), [value(3, 5), ShadowCommandKind::Get(0)]);
    }

    #[test]
    fn what_outlives_its_time_was_touched() {
        let mut world = ReplayTest::of(vec![store("page:1", 5, 0), get("page:1", true, 7_000_000)]);
        assert_eq!(world.until(7_000_000), [value(3, 5), value(3, 5), ShadowCommandKind::Get(0)]);
        assert_eq!(world.replay.tally.touched, 1);
    }

    #[test]
    fn what_no_client_has_missed_is_stored_and_an_add_that_failed_is_tried() {
        let lock = WatchEventKind::Store { stored: false, is_add: true, ttl: 9, size: 3 };
        let mut world =
            ReplayTest::of(vec![store("a", 0, 0), WatchEvent { kind: lock, ..store("lock:1", 9, 1) }]);
        assert_eq!(
            world.until(1),
            [value(3, 0), ShadowCommandKind::Store(FillerValue { size: 3, ttl: 9, is_add: true })]
        );
    }
}
