//! Every order of fillers, events, abandoned misses, tokens, ends of windows, evictions and lost misses, over
//! the code itself; and long random histories in real time.
//!
//! Whether a fill is too early and how long a life lasts is left open: both are tried. A value is as old as
//! its miss at worst.

use std::collections::HashSet;

use super::*;

/// The time of a miss is its number in order; its window ends this much later.
const WINDOW: u64 = 1000;

/// A computed value: the version of the source, and which of several different renderings of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Value {
    version: u8,
    rendering: u16,
}

impl Value {
    fn hash(self) -> u64 {
        u64::from(self.version) << 16 | u64::from(self.rendering)
    }
}

/// An account, the slot of its lost misses and the item.
#[derive(Debug, Clone)]
struct Cell {
    account: KeyAccount,
    missing: UnrecordedMisses,
    item: Option<(Value, bool)>,
    /// The item has a limited life.
    ends: bool,
    /// The time of the last miss.
    time: u64,
}

struct Hashes(Value, Option<(Value, bool)>);

impl ValueHashes for Hashes {
    fn fill(&self) -> u64 {
        self.0.hash()
    }

    fn shown(&self) -> Option<ShownValue> {
        self.1.map(|(value, sure)| ShownValue { value: value.hash(), provisional: !sure })
    }
}

impl Cell {
    fn new() -> Self {
        Self {
            account: KeyAccount::default(),
            missing: UnrecordedMisses::default(),
            item: None,
            ends: false,
            time: 0,
        }
        .normal()
    }

    /// What does not matter here is the same in all states.
    fn normal(mut self) -> Self {
        let account = &mut self.account;
        (account.began, account.since, account.window_ms) = (Tally::default(), 0, WINDOW);
        (account.last_ms, account.old_ms) = (Some(0), Some(0));
        self
    }

    fn close(&mut self) {
        if self.item.is_some_and(|(_, sure)| !sure) && self.account.is_closed(&self.missing) {
            self.item = None;
        }
    }

    fn event(&mut self, number: u64) {
        if number > self.account.hard {
            self.item = None;
            self.account.harden(number);
            // All misses so far are over when a window has passed since.
            self.account.hard_ms = Some(self.time);
        }
    }

    fn miss(&mut self, hard: u64, number: u64, now_ms: u64, slots: usize) {
        self.event(hard);
        self.account.record(number, now_ms, WINDOW, slots);
    }

    fn lose(&mut self, hard: u64, number: u64, now_ms: u64) {
        self.event(hard);
        let lost = self.missing.lost.unwrap_or(LostMisses { number, until_ms: 0 });
        self.missing.lost = Some(LostMisses {
            number: lost.number.min(number),
            until_ms: lost.until_ms.max(now_ms + WINDOW),
        });
    }

    /// All is forgotten but one number.
    fn overflow(&mut self) {
        let Some(number) = self.account.numbers.smallest() else { return };
        let last_ms = self.account.times.largest().unwrap_or(0);
        self.lose(0, number, last_ms);
        let hard = self.account.hard;
        self.account = KeyAccount { hard, ..KeyAccount::default() };
        if self.item.is_some_and(|(_, sure)| !sure) {
            self.item = None;
        }
    }

    fn pass(&mut self, now_ms: u64) {
        self.account.pass(now_ms);
        self.missing.lost = self.missing.lost.filter(|lost| lost.until_ms > now_ms);
        self.missing.before = self.missing.before.filter(|lost| lost.until_ms > now_ms);
        self.close();
    }

    fn fill(&mut self, hard: u64, value: Value, early: bool, strict: bool) -> Judgement {
        self.event(hard);
        if self.missing.before.is_some() && self.account.is_empty() {
            // After a start a fill without a record is dropped.
            return Judgement::Unrecorded;
        }
        let moment = FillMoment { now_ms: 0, p99_ms: if early { 1000 } else { 0 }, strict };
        let hashes = Hashes(value, self.item);
        let judgement = self.account.judge(&moment, &self.missing, &hashes);
        match judgement {
            Judgement::Write | Judgement::Clean { .. } => {
                (self.item, self.ends) = (Some((value, true)), false);
            }
            Judgement::Proved { again, .. } => {
                (self.item, self.ends) = (Some((value, true)), again && self.ends);
            }
            Judgement::Provisional { .. } => self.item = Some((value, false)),
            Judgement::Dropped { doubt_ms } => self.ends |= doubt_ms.is_some(),
            Judgement::Old | Judgement::Unrecorded => {}
        }
        self.account.take(None, &self.missing);
        self.close();
        judgement
    }

    fn token_fill(&mut self, hard: u64, number: u64, value: Value) -> bool {
        self.event(hard);
        let is_new = number >= self.account.hard;
        if is_new {
            (self.item, self.ends) = (Some((value, true)), false);
        }
        self.account.take(Some(number), &self.missing);
        self.close();
        is_new
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Role {
    /// The client missed before the start, which forgot that.
    Before,
    /// Never fills.
    Gone,
    /// Misses twice.
    Twice,
    Token,
    Plain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Progress {
    Begins,
    /// The client has missed: the version it read, the number, the time.
    Computes(u8, u8, u8),
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The shard is told of the event.
    Delete,
    /// The event is found at the next miss or fill.
    Bump,
    /// The event is found at the next fill.
    Blind,
}

/// A set of histories.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is true or not whatever the others are")]
struct Sweep {
    fillers: usize,
    events: u8,
    gone: usize,
    twice: usize,
    token: usize,
    /// Equal versions are equal bytes.
    equal: bool,
    kind: Kind,
    /// Fills come after their windows too.
    late: bool,
    writes: u8,
    overflows: u8,
    /// Each miss has a number of its own.
    fine: bool,
    /// A value is read at any time after its miss.
    reads_late: bool,
    /// Fillers that missed before the start.
    before: usize,
    /// Nothing is provisional.
    strict: bool,
    slots: usize,
}

const SWEEP: Sweep = Sweep {
    fillers: 2,
    events: 1,
    gone: 0,
    twice: 0,
    token: 0,
    equal: true,
    kind: Kind::Delete,
    late: false,
    writes: 0,
    overflows: 0,
    fine: false,
    reads_late: false,
    before: 0,
    strict: false,
    slots: SLOTS,
};

#[derive(Debug, Clone)]
struct State {
    fillers: Vec<(Role, Progress)>,
    version: u8,
    clock: u8,
    tag: u8,
    misses: u8,
    windows_over: u8,
    events: u8,
    writes: u8,
    overflows: u8,
    cell: Cell,
}

impl State {
    /// All that distinguishes it, in bytes.
    fn key(&self, equal: bool) -> Box<[u8]> {
        let mut key = Vec::with_capacity(96);
        for (role, progress) in &self.fillers {
            key.push(*role as u8);
            match progress {
                Progress::Begins => key.push(250),
                Progress::Done => key.push(251),
                Progress::Computes(version, number, time) => key.extend([*version, *number, *time]),
            }
        }
        key.extend([self.version, self.clock, self.tag, self.misses, self.windows_over]);
        key.extend([self.events, self.writes, self.overflows]);
        let account = &self.cell.account;
        for tally in [&account.numbers, &account.times] {
            key.push(tally.len);
            tally.each().for_each(|(value, count)| key.extend([value as u8, count as u8]));
        }
        key.extend([account.hard as u8, account.last as u8, account.hard_ms.unwrap_or(255) as u8]);
        for lost in [self.cell.missing.lost, self.cell.missing.before] {
            let lost = lost.map_or((255, 0), |lost| (lost.number as u8, lost.until_ms));
            key.push(lost.0);
            key.extend(lost.1.to_le_bytes());
        }
        match self.cell.item {
            None => key.push(255),
            Some((value, sure)) => {
                key.extend([value.version, u8::from(sure)]);
                if equal {
                    key.extend(value.rendering.to_le_bytes());
                }
            }
        }
        if equal {
            let mut rooms: Vec<(u64, i32)> =
                account.rooms[..usize::from(account.rooms_len)].iter().map(|r| (r.value, r.left)).collect();
            rooms.sort_unstable();
            for (value, left) in rooms {
                key.extend(value.to_le_bytes());
                key.extend(left.to_le_bytes());
            }
        }
        key.into()
    }
}

/// What was found in a sweep.
#[derive(Debug, Default)]
struct Found {
    states: u64,
    /// Histories in which a certain value is old.
    certain: Option<Vec<String>>,
    /// The record does not dominate what is open.
    dominated: Option<Vec<String>>,
    /// A new value was dropped for an older one without an end.
    lost: Option<Vec<String>>,
    /// The sweep takes longer than it may until something is certain.
    slow: Option<Vec<String>>,
    /// A fill of a miss after the event was called certainly old.
    wrong: Option<Vec<String>>,
    /// A provisional value is there after the close.
    forever: Option<Vec<String>>,
    /// Orders in which a provisional value is old.
    stale: u64,
}

impl Found {
    fn faults(&self) -> Vec<(&'static str, &Vec<String>)> {
        [
            ("a certain value is old", &self.certain),
            ("the record does not dominate", &self.dominated),
            ("a new value is lost", &self.lost),
            ("not certain in time", &self.slow),
            ("wrongly called old", &self.wrong),
            ("provisional after the close", &self.forever),
        ]
        .into_iter()
        .filter_map(|(what, path)| path.as_ref().map(|path| (what, path)))
        .collect()
    }
}

/// The search: states that must be looked at, and how each was reached.
struct Search {
    sweep: Sweep,
    seen: HashSet<Box<[u8]>>,
    todo: Vec<(State, usize)>,
    /// How each state was reached: from which, by which step.
    steps: Vec<(usize, String)>,
    found: Found,
}

impl Search {
    fn run(sweep: Sweep) -> Found {
        let mut roles = vec![Role::Before; sweep.before];
        roles.extend(vec![Role::Gone; sweep.gone]);
        roles.extend(vec![Role::Twice; sweep.twice]);
        roles.extend(vec![Role::Token; sweep.token]);
        roles.resize(sweep.fillers, Role::Plain);
        let begin = |role| match role {
            Role::Before => (role, Progress::Computes(0, 0, 1)),
            _ => (role, Progress::Begins),
        };
        let mut fillers: Vec<_> = roles.into_iter().map(begin).collect();
        fillers.sort_unstable();
        let mut cell = Cell::new();
        let is_started = sweep.before > 0;
        if is_started {
            cell.missing.before = Some(LostMisses { number: 0, until_ms: WINDOW + 1 });
            cell.missing.keeps_all = true;
            cell.time = 1;
        }
        let start = State {
            fillers,
            version: 0,
            clock: 0,
            tag: 0,
            misses: u8::from(is_started),
            windows_over: 0,
            events: sweep.events,
            writes: sweep.writes,
            overflows: sweep.overflows,
            cell,
        };
        let mut search = Self {
            sweep,
            seen: HashSet::new(),
            todo: Vec::new(),
            steps: vec![(0, String::new())],
            found: Found::default(),
        };
        search.seen.insert(start.key(sweep.equal));
        search.todo.push((start, 0));
        while let Some((state, at)) = search.todo.pop() {
            search.found.states += 1;
            search.look(&state, at);
            search.go_on(&state, at);
        }
        search.found
    }

    fn path(&self, mut at: usize) -> Vec<String> {
        let mut path = Vec::new();
        while at != 0 {
            path.push(self.steps[at].1.clone());
            at = self.steps[at].0;
        }
        path.reverse();
        path
    }

    fn push(&mut self, mut state: State, from: usize, step: impl FnOnce() -> String) {
        state.fillers.sort_unstable();
        state.cell = state.cell.normal();
        if self.seen.insert(state.key(self.sweep.equal)) {
            self.steps.push((from, step()));
            self.todo.push((state, self.steps.len() - 1));
        }
    }

    /// What must hold in every state.
    fn look(&mut self, state: &State, at: usize) {
        let cell = &state.cell;
        if let Some((value, sure)) = cell.item {
            if !sure && cell.account.is_closed(&cell.missing) {
                self.found.forever.get_or_insert(self.path(at));
            }
            if value.version < state.version {
                if sure {
                    self.found.certain.get_or_insert(self.path(at));
                } else {
                    self.found.stale += 1;
                }
            }
        }
        if cell.missing != UnrecordedMisses::default() || self.sweep.late {
            return;
        }
        let open: Vec<(u64, u64)> = state
            .fillers
            .iter()
            .filter_map(|(role, progress)| match progress {
                Progress::Computes(_, number, time) if *role != Role::Gone && *time > state.windows_over => {
                    Some((u64::from(*number), u64::from(*time)))
                }
                _ => None,
            })
            .collect();
        let (numbers, times) = (&cell.account.numbers, &cell.account.times);
        let count = |tally: &Tally, keep: &dyn Fn(u64) -> bool| -> usize {
            tally.each().filter(|(value, _)| keep(*value)).map(|(_, count)| count as usize).sum()
        };
        let dominates = |border: u64| {
            count(numbers, &|own| own <= border)
                >= open.iter().filter(|(number, _)| *number <= border).count()
                && count(times, &|own| own >= border)
                    >= open.iter().filter(|(_, time)| *time >= border).count()
        };
        let borders = open.iter().flat_map(|(number, time)| [*number, *time]);
        if !borders
            .chain(numbers.values().iter().copied())
            .chain(times.values().iter().copied())
            .all(dominates)
        {
            self.found.dominated.get_or_insert(self.path(at));
        }
    }

    fn go_on(&mut self, state: &State, at: usize) {
        let mut is_done = true;
        for i in 0..state.fillers.len() {
            let (role, progress) = state.fillers[i];
            if i > 0 && state.fillers[i] == state.fillers[i - 1] {
                is_done &= progress == Progress::Done;
                continue;
            }
            match progress {
                Progress::Begins => {
                    is_done = false;
                    self.begin(state, at, i);
                }
                Progress::Computes(version, number, time) if role != Role::Gone => {
                    is_done = false;
                    let last = if self.sweep.reads_late { state.version } else { version };
                    for read in version..=last {
                        self.fill(state, at, i, (read, number, time));
                    }
                }
                Progress::Computes(..) | Progress::Done => {}
            }
        }
        if state.events > 0 {
            is_done = false;
            let mut next = state.clone();
            (next.version, next.clock, next.events) = (state.version + 1, state.clock + 1, state.events - 1);
            if self.sweep.kind == Kind::Delete {
                next.cell.event(next.clock.into());
            } else {
                // A bump: the item is found to be too old.
                (next.tag, next.cell.item) = (next.clock, None);
            }
            self.push(next, at, || "EVENT".to_owned());
        }
        self.disturb(state, at);
        if is_done && state.cell.missing == UnrecordedMisses::default() {
            self.settle(state, at);
        }
    }

    fn begin(&mut self, state: &State, at: usize, i: usize) {
        let role = state.fillers[i].0;
        if state.cell.item.is_some() {
            let mut next = state.clone();
            next.fillers[i].1 = Progress::Done;
            self.push(next, at, || format!("{role:?} hits"));
        }
        let clock = state.clock + u8::from(self.sweep.fine);
        let (version, hard) = (state.version, self.hard(state));
        for is_lost in [false, true] {
            if is_lost && state.overflows == 0 {
                continue;
            }
            let mut next = state.clone();
            for _ in 0..if role == Role::Twice { 2 } else { 1 } {
                next.misses += 1;
                next.cell.time = next.misses.into();
                if is_lost {
                    next.cell.lose(hard, clock.into(), next.misses.into());
                } else {
                    next.cell.miss(hard, clock.into(), next.misses.into(), self.sweep.slots);
                }
            }
            next.overflows -= u8::from(is_lost);
            next.clock = clock;
            next.fillers[i].1 = Progress::Computes(version, clock, next.misses);
            self.push(next, at, || {
                format!("{role:?} misses v{version}{}", if is_lost { ", lost" } else { "" })
            });
        }
    }

    /// The hard event that is known at a miss.
    fn hard(&self, state: &State) -> u64 {
        match self.sweep.kind {
            Kind::Blind => state.cell.account.hard,
            _ => state.cell.account.hard.max(state.tag.into()),
        }
    }

    fn fill(&mut self, state: &State, at: usize, i: usize, (version, number, time): (u8, u8, u8)) {
        let role = state.fillers[i].0;
        let hard = state.cell.account.hard.max(state.tag.into());
        let rendering = if self.sweep.equal { 0 } else { u16::from(state.misses) * 10 + i as u16 + 100 };
        let value = Value { version, rendering };
        for early in [false, true] {
            let mut next = state.clone();
            let before = state.cell.item;
            let said = if role == Role::Token {
                if next.cell.token_fill(hard, number.into(), value) { "new" } else { "old" }.to_owned()
            } else {
                let judgement = next.cell.fill(hard, value, early, self.sweep.strict);
                let is_recent = time > state.windows_over;
                if judgement == Judgement::Old && u64::from(number) >= next.cell.account.hard && is_recent {
                    self.found.wrong.get_or_insert_with(|| vec![format!("{:?}", state)]);
                }
                let is_kept = next.cell.item.is_some_and(|(kept, sure)| {
                    sure && kept.version < state.version && !next.cell.ends && before == next.cell.item
                });
                if !judgement.stores() && version == state.version && is_kept {
                    self.found.lost.get_or_insert_with(|| vec![format!("{:?}", state)]);
                }
                format!("{judgement:?}")
            };
            next.fillers[i].1 = Progress::Done;
            self.push(next, at, || format!("{role:?} fills v{version}: {said}"));
        }
    }

    /// Writes, overflow, ends of lives and of windows.
    fn disturb(&mut self, state: &State, at: usize) {
        if state.writes > 0 {
            let value = Value { version: state.version, rendering: if self.sweep.equal { 0 } else { 5 } };
            for early in [false, true] {
                let mut next = state.clone();
                next.writes -= 1;
                next.cell.fill(self.hard(state), value, early, self.sweep.strict);
                self.push(next, at, || format!("WRITE v{}", state.version));
            }
        }
        if state.overflows > 0 {
            let mut next = state.clone();
            next.overflows -= 1;
            next.cell.overflow();
            self.push(next, at, || "OVERFLOW".to_owned());
        }
        if state.cell.item.is_some() {
            let mut next = state.clone();
            next.cell.item = None;
            self.push(next, at, || "end of life".to_owned());
        }
        let over = state.windows_over + 1;
        let is_waited_for = state.fillers.iter().any(|(role, progress)| {
            *role != Role::Gone && matches!(progress, Progress::Computes(_, _, time) if *time == over)
        });
        if state.windows_over < state.misses && (self.sweep.late || !is_waited_for) {
            let mut next = state.clone();
            next.windows_over = over;
            next.cell.pass(WINDOW + u64::from(over));
            self.push(next, at, || format!("window {over} ends"));
        }
    }

    /// Lone clients from here on: after how many fills something is certain.
    fn settle(&mut self, state: &State, at: usize) {
        let mut cell = state.cell.clone();
        let hard = cell.account.hard.max(state.tag.into());
        cell.event(hard);
        let bound = cell.account.old() + 1;
        let is_certain = |cell: &Cell| cell.item.is_some_and(|(_, sure)| sure);
        let mut fills = 0;
        while !is_certain(&cell) && fills < 30 {
            (cell.item, fills) = (None, fills + 1);
            cell.miss(hard, state.clock.into(), u64::from(state.misses) + u64::from(fills), SLOTS);
            cell = cell.normal();
            let rendering = if self.sweep.equal { 0 } else { 500 + fills as u16 };
            cell.fill(hard, Value { version: state.version, rendering }, true, self.sweep.strict);
            if !self.sweep.equal && fills == 1 {
                // Without equal bytes, once the windows are over.
                cell.pass(WINDOW + u64::from(state.misses) + 9);
            }
            if !self.sweep.equal && fills == 3 {
                break;
            }
        }
        if !is_certain(&cell) || self.sweep.equal && fills > bound {
            self.found.slow.get_or_insert(self.path(at));
        }
    }
}

/// Sweeps that keep all promises.
fn hold(sweeps: impl IntoIterator<Item = Sweep>) -> u64 {
    let mut states = 0;
    for sweep in sweeps {
        let found = Search::run(sweep);
        states += found.states;
        eprintln!("{:>8} states, {:>5} show an old value for a time: {sweep:?}", found.states, found.stale);
        let faults = found.faults();
        let told = |(what, path): &(&str, &Vec<String>)| format!("{what}:\n  {}", path.join("\n  "));
        assert!(!sweep.strict || found.stale == 0, "{sweep:?}: an old value is shown");
        assert!(faults.is_empty(), "{sweep:?}: {}", faults.iter().map(told).collect::<Vec<_>>().join("\n"));
    }
    states
}

fn small() -> Vec<Sweep> {
    let mut sweeps = Vec::new();
    for (fillers, most) in [(2, 2), (3, 2), (4, 1)] {
        for events in 1..=most {
            for gone in 0..fillers.min(3) {
                for kind in [Kind::Delete, Kind::Bump] {
                    for equal in [true, false] {
                        sweeps.push(Sweep { fillers, events, gone, equal, kind, ..SWEEP });
                    }
                }
            }
        }
    }
    let blind = Sweep { events: 2, kind: Kind::Blind, fine: true, ..SWEEP };
    for gone in 0..2 {
        sweeps.extend([2, 3].map(|fillers| Sweep { fillers, gone, ..blind }));
        for events in 1..=2 {
            sweeps.extend([1, 2].map(|token| Sweep { fillers: 3, events, token, gone, ..SWEEP }));
            sweeps.push(Sweep { fillers: 3, events, gone, overflows: 1, ..SWEEP });
        }
    }
    for (fillers, events, gone) in [(2, 2, 0), (3, 2, 0), (3, 2, 1), (4, 1, 0), (4, 1, 1)] {
        for kind in [Kind::Delete, Kind::Bump, Kind::Blind] {
            let fine = kind == Kind::Blind;
            sweeps.push(Sweep { fillers, events, gone, kind, fine, strict: true, ..SWEEP });
        }
    }
    // All with tokens.
    sweeps.push(Sweep { fillers: 3, events: 2, token: 3, strict: true, ..SWEEP });
    for equal in [true, false] {
        sweeps.extend([1, 2].map(|twice| Sweep { fillers: 3, twice, equal, ..SWEEP }));
    }
    sweeps.push(Sweep { fillers: 3, events: 2, reads_late: true, ..SWEEP });
    sweeps.push(Sweep { fillers: 3, token: 1, overflows: 1, ..blind });
    for (fillers, before) in [(2, 1), (3, 1), (3, 2), (4, 1), (4, 2)] {
        for events in 1..=2 {
            sweeps.push(Sweep { fillers, events, before, ..SWEEP });
        }
    }
    sweeps
}

fn large() -> Vec<Sweep> {
    let mut sweeps = Vec::new();
    for (fillers, gone, twice) in [(4, 0, 0), (4, 1, 0), (4, 2, 0), (4, 1, 1), (5, 1, 0)] {
        for kind in [Kind::Delete, Kind::Bump] {
            for equal in [true, false] {
                sweeps.push(Sweep { fillers, events: 2, gone, twice, equal, kind, ..SWEEP });
            }
        }
    }
    for slots in [2, 3] {
        for kind in [Kind::Delete, Kind::Blind] {
            for gone in 0..2 {
                sweeps.push(Sweep { fillers: 4, events: 2, gone, kind, fine: true, slots, ..SWEEP });
            }
        }
    }
    sweeps.push(Sweep { fillers: 4, gone: 1, overflows: 2, ..SWEEP });
    sweeps.push(Sweep { fillers: 3, events: 2, twice: 1, overflows: 1, reads_late: true, ..SWEEP });
    sweeps
}

#[test]
fn all_orders_of_few_fillers_keep_the_promises() {
    assert!(hold(small()) > 20_000);
}

#[test]
fn all_orders_of_more_fillers_keep_the_promises() {
    assert!(hold(large()) > 400_000);
}

#[test]
fn fills_after_their_window_and_sets_without_a_miss_are_outside_the_promise() {
    let late = Search::run(Sweep { late: true, ..SWEEP });
    assert!(late.certain.is_some());
    let write = Search::run(Sweep { writes: 1, ..SWEEP });
    assert!(write.certain.is_some());
}
