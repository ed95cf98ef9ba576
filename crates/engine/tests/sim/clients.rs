//! The commands that clients of each kind send.

use super::*;

impl Sim {
    pub(crate) fn act(&mut self, client: usize) {
        let kind = self.clients[client].kind;
        let mut at = self.rng.of(&self.clients[client].connections);
        if kind == Kind::Elastic && !self.is_idle(at) && self.clients[client].connections.len() < 6 {
            self.note("a pool grows");
            at = self.grow(client);
        }
        if kind != Kind::Multiplexed && !self.is_idle(at) {
            match self.rng.below(16) {
                0 | 1 if kind != Kind::Explicit => self.close_at(client, at),
                2 | 3 if kind == Kind::Sync => drop(self.give_up_in_place(at)),
                _ => {}
            }
            return;
        }
        self.note(match kind {
            Kind::Sync => "sync client",
            Kind::Pool => "pool",
            Kind::Elastic => "elastic pool",
            Kind::Multiplexed => "multiplexed connection",
            Kind::Explicit => "explicit client",
            Kind::Writer => "writer",
            Kind::Liar => "liar",
        });
        match kind {
            Kind::Writer => self.write(at),
            Kind::Liar => self.lie(at),
            Kind::Explicit => self.ask_by_name(at),
            Kind::Multiplexed if self.rng.one_in(4) && self.give_up_in_place(at) => {}
            Kind::Multiplexed if self.rng.one_in(4) => {
                let keys: Vec<usize> =
                    (0..2 + self.rng.below(4)).map(|_| self.rng.below(KEYS as u64) as usize).collect();
                self.send_gets(at, &keys);
            }
            Kind::Multiplexed => {
                for _ in 0..=self.rng.below(4) {
                    self.read(at);
                }
            }
            Kind::Sync | Kind::Pool | Kind::Elastic => {
                self.read(at);
                if self.may_set() {
                    // The present state.
                    let n = self.rng.below(KEYS as u64) as usize;
                    if self.is_idle(at) && !self.computes(at, n) {
                        self.write_any(at, n, self.version[n], Verb::Set);
                    }
                }
            }
        }
    }

    /// A counter of the rule, while there is one.
    pub(crate) fn count_of(&self, name: &str) -> u64 {
        if self.unruled { 0 } else { self.w.count(name) }
    }

    pub(crate) fn one_at_a_time(&self) -> bool {
        matches!(self.promise, Promise::Owners | Promise::OneConnection)
    }

    fn may_set(&mut self) -> bool {
        self.promise == Promise::Owners && self.rng.one_in(30)
    }

    pub(crate) fn computes(&self, at: usize, n: usize) -> bool {
        let number = self.connections[at].as_ref().unwrap().number;
        self.jobs.iter().any(|job| job.connection == number && job.key == n)
    }

    fn read(&mut self, at: usize) {
        let n = self.rng.below(KEYS as u64) as usize;
        let m = self.rng.below(KEYS as u64) as usize;
        if self.one_at_a_time() && (self.computes(at, n) || self.computes(at, m)) {
            return;
        }
        self.visit(if self.computes(at, n) { "get by its computer" } else { "get" }, n);
        match self.rng.below(12) {
            10 | 11 => {
                let mut keys: Vec<usize> =
                    (0..=self.rng.below(4)).map(|_| self.rng.below(KEYS as u64) as usize).collect();
                if self.one_at_a_time() {
                    keys.sort_unstable();
                    keys.dedup();
                    keys.retain(|n| !self.computes(at, *n));
                }
                self.send_run(at, keys);
            }
            0 if n != m => self.send(at, &format!("get {} {}|", key(n), key(m)), Want::Get(vec![n, m])),
            1 => self.send(at, &format!("mg {} v|", key(n)), Want::Meta { key: n, explicit: false }),
            _ => self.send(at, &format!("get {}|", key(n)), Want::Get(vec![n])),
        }
    }

    /// Quiet gets, one behind the other, are one multi-get.
    fn send_run(&mut self, at: usize, keys: Vec<usize>) {
        if keys.is_empty() {
            return;
        }
        let gets = keys.iter().fold(String::new(), |gets, n| gets + &format!("mg {} k v q|", key(*n)));
        self.send(at, &(gets + "mn|"), Want::Run(keys));
        let number = self.connections[at].as_ref().unwrap().number;
        self.note(if self.w.waiting(number) > 0 {
            "a held run of quiet gets"
        } else {
            "a run of quiet gets"
        });
    }

    fn ask_by_name(&mut self, at: usize) {
        let n = self.rng.below(KEYS as u64) as usize;
        if self.one_at_a_time() && self.computes(at, n) {
            return;
        }
        let waits = self.rng.one_in(2);
        self.visit(if waits { "mg N Pw" } else { "mg N" }, n);
        let advice = self.rng.of(&["", "l300", "d", "d,l2000", "hfast"]);
        let wait = if waits { format!(" Pw{},{advice}", ASKED_MS / 2) } else { format!(" P{advice}") };
        let line =
            format!("mg {} v c N2 R1{}|", key(n), if advice.is_empty() && !waits { "" } else { &wait });
        self.send(at, &line, Want::Meta { key: n, explicit: true });
    }

    /// Whether a connection that computes as many keys of the rule as it may asks for another one, which has
    /// no lease, and sends nothing more before it has the reply.
    pub(crate) fn waits_for_itself(&mut self, at: usize) -> bool {
        let connection = self.connections[at].as_ref().unwrap();
        let (number, kind) = (connection.number, self.clients[connection.client].kind);
        let is_shared = connection.sends_while_held || kind == Kind::Multiplexed;
        let n = match connection.pending.front().map(|request| &request.want) {
            Some(Want::Get(keys)) if keys.len() == 1 => keys[0],
            _ => return false,
        };
        if self.unruled || self.policy.loader || self.policy.rule_computers.is_none() || is_shared {
            return false;
        }
        let own = format!("\"holder\":{number},");
        let computed = (0..KEYS).filter(|key| *key != n && self.why(*key).contains(&own)).count();
        let asked = if computed == KEYS - 1 { self.why(n) } else { return false };
        asked.contains("\"holder\":null") && asked.contains("\"waiters\":1}")
    }

    fn write(&mut self, at: usize) {
        self.withheld = [0; KEYS];
        let n = self.rng.below(KEYS as u64) as usize;
        match self.rng.below(8) {
            0 => {
                for n in 0..KEYS {
                    self.visit("delete or flush", n);
                    self.version[n] += 1;
                }
                self.trace(|| format!("flush, now {:?}", self.version));
                self.w.flush();
                self.floor = self.version;
            }
            1..4 => {
                self.visit("delete or flush", n);
                self.version[n] += 1;
                self.floor[n] = self.version[n];
                if self.followed && self.rng.one_in(3) {
                    return self.bump_by_log(n, BumpKind::Hard);
                }
                let line = match self.rng.below(5) {
                    0..3 if self.named_by.is_some() => {
                        self.note("bump of a named tag");
                        if self.rng.one_in(2) {
                            format!("md named:{n} G|")
                        } else {
                            format!("delete @tag:named:{n}|")
                        }
                    }
                    0 => format!("md {}|", key(n)),
                    1 => format!("delete @tag:{}|", key(n)),
                    2 => format!("md {} G|", key(n)),
                    _ => format!("delete {}|", key(n)),
                };
                self.send(at, &line, Want::Line { accepted: false });
                self.floor[n] = self.version[n];
            }
            5 if self.rng.one_in(2) => {
                for n in 0..KEYS {
                    self.visit("delete or flush", n);
                    self.version[n] += 1;
                }
                self.send(at, "incr @tag:page 1|", Want::Line { accepted: false });
                self.floor = self.version;
            }
            6 if !self.unruled => self.set_off(at, n),
            4 if self.promise == Promise::Owners && !self.unruled => {
                self.version[n] += 1;
                self.write_any(at, n, self.version[n], Verb::Set);
                self.floor[n] = self.version[n];
            }
            _ => {}
        }
    }

    /// A change of another key invalidates this one by a cascade; or is refused, and does not.
    fn set_off(&mut self, at: usize, n: usize) {
        const HARD: [&[&str]; 8] = [
            &["delete gone:N|"],
            &["md gone:N|"],
            &["set gone:N 0 0 1|x|", "md gone:N x|"],
            &["set kept:N 0 0 1|x|"],
            &["ms kept:N 1 T5|x|"],
            &["set counted:N 0 0 1|1|", "incr counted:N 1|"],
            &["set touched:N 0 0 1|x|", "touch touched:N 9|"],
            &["set touched:N 0 0 1|x|", "mg touched:N T9|"],
        ];
        const SOFT: [&[&str]; 2] = [&["md gone:N I|"], &["set gone:N 0 0 1|x|", "md gone:N I T9|"]];
        const REFUSED: [&[&str]; 6] = [
            &["set gone:N 0 0 1|x|", "md gone:N C900000000|"],
            &["set gone:N 0 0 1|x|", "md gone:N I C900000000 Peno|"],
            &["replace kept:none 0 0 1|x|"],
            &["cas kept:none 0 0 1 900000000|x|"],
            &["set counted:N 0 0 1|x|", "incr counted:N 1|"],
            &["touch touched:none 9|"],
        ];
        let (what, kind, lines) = match self.rng.below(4) {
            0 => ("refused, no cascade", None, self.rng.of(&REFUSED)),
            1 => ("soft cascade", Some(BumpKind::Soft), self.rng.of(&SOFT)),
            _ => ("cascade", Some(BumpKind::Hard), self.rng.of(&HARD)),
        };
        self.note(what);
        match kind {
            Some(BumpKind::Hard) => {
                self.visit("delete or flush", n);
                self.version[n] += 1;
                self.floor[n] = self.version[n];
            }
            Some(BumpKind::Soft) => {
                self.visit("md I", n);
                self.soften(n);
            }
            None => {}
        }
        let before = self.bumps_of(n);
        for line in lines {
            self.send(at, &line.replace('N', &n.to_string()), Want::Line { accepted: false });
        }
        let after = self.bumps_of(n);
        let as_expected = match kind {
            Some(BumpKind::Hard) => after[0] > before[0] && after[1] == before[1],
            // It can end the grace of an earlier value.
            Some(BumpKind::Soft) => after[1] > before[1],
            None => after == before,
        };
        assert!(as_expected, "{lines:?}: {before:?} {after:?}");
    }

    /// The last hard and soft bump of a key's tag, and of any.
    fn bumps_of(&self, n: usize) -> [u64; 3] {
        let shared = self.w.engine.shared();
        let (bumps, tag) = (shared.tags().bumps(), shared.tag_hasher().hash(key(n).as_bytes()).unwrap());
        [bumps.last_own(tag, BumpKind::Hard), bumps.last_own(tag, BumpKind::Soft), bumps.last_bump()]
    }

    fn lie(&mut self, at: usize) {
        let n = self.rng.below(KEYS as u64) as usize;
        let token = self.rng.below(200);
        match self.rng.below(8) {
            0 => self.write_any(at, n, 0, Verb::Set),
            1 => self.write_any(at, n, 0, Verb::Add),
            2 => self.send(at, &format!("ms {} 1 C{token}|x|", key(n)), Want::Line { accepted: false }),
            3 => self.send(at, &format!("md {} C{token} Peno|", key(n)), Want::Line { accepted: false }),
            4 => self.send(at, &format!("set {} 0 -1 1|x|", key(n)), Want::Line { accepted: true }),
            5 => self.send(at, &format!("md {} x|", key(n)), Want::Line { accepted: false }),
            6 => self.send(at, &format!("ma {} N3 J7|", key(n)), Want::Line { accepted: false }),
            _ => self.read(at),
        }
    }

    fn write_any(&mut self, at: usize, n: usize, version: u64, verb: Verb) {
        let exptime = self.rng.of(&[0, 0, 1, 3, 5, 8, 12, 3600]);
        self.visit("other write", n);
        // A write of a key without a miss is not a fill, whatever other keys its connection has missed.
        let number = self.connections[at].as_ref().unwrap().number;
        let missed = self.w.has_missed(number, &key(n)) || self.has_open_miss(n);
        let dropped = |sim: &Self| sim.count_of("fills_dropped") - sim.count_of("fills_dropped_unrecorded");
        let before = dropped(self);
        self.store(at, n, version, exptime, verb, None);
        assert!(missed || dropped(self) == before, "a write is taken for a fill");
    }

    fn fill_p99_ms(&self) -> u64 {
        let active = self.w.engine.shared().rules();
        let all = active.iter().flat_map(|active| active.each().map(|(_, state)| state.fill_p99_ms()));
        all.max().unwrap_or(1000)
    }

    /// What the server says about a key.
    pub(crate) fn why(&mut self, n: usize) -> String {
        let observer = self.w.connect();
        let why = self.w.ask(observer, &format!("get @why:{}|", key(n)));
        self.w.close(observer, true);
        why
    }

    /// The numbers of the last hard event that the key's account knows, and of the last one that concerns it
    /// at all, hard or soft: both also of other keys in the same slot.
    fn hard_of(&mut self, n: usize) -> (u64, u64) {
        let why = self.why(n);
        let numbers = |name: &str| -> Vec<u64> {
            let rest = why.split(name).skip(1).filter_map(|rest| rest.split([',', '}']).next());
            rest.map(|number| number.parse().unwrap()).collect()
        };
        let (hard, soft) = (numbers("\"hard\":"), numbers("\"soft\":"));
        (hard.first().copied().unwrap_or(0), hard.into_iter().chain(soft).max().unwrap_or(0))
    }

    fn has_open_miss(&mut self, n: usize) -> bool {
        !self.why(n).contains("\"oldest_miss\":null")
    }

    /// Stores a value that contains its number. `job`: the computation it comes from.
    pub(crate) fn store(
        &mut self,
        at: usize,
        n: usize,
        version: u64,
        exptime: i64,
        verb: Verb,
        job: Option<&Job>,
    ) {
        // Without rules it would have neither grace nor the rule's tags, and no promise applies.
        if self.unruled && self.promise != Promise::Nothing {
            return;
        }
        let negative = matches!(verb, Verb::Negative(_));
        let grace_s = if self.unruled || negative { 0 } else { u64::from(self.policy.kept_s()) };
        let until = match u64::try_from(exptime) {
            Ok(seconds @ 1..) => self.second() + seconds + grace_s,
            _ => u64::MAX,
        };
        let p99_ms = self.fill_p99_ms();
        let life_ms = job.map_or(0, |job| self.w.ms - job.missed_ms).max(4 * p99_ms);
        let by_token = matches!(verb, Verb::Token(_) | Verb::Negative(Some(_)));
        let softs = self.softs_before(at, n, by_token, job);
        let mut stored =
            Stored { version, until, grace_s, shown_until_ms: self.w.ms + life_ms, softs, negative };
        if let Some(second) = job.and_then(|job| self.softs[n].get(job.softs)) {
            if by_token {
                stored.soften(*second);
            } else {
                // It is not known whether it is older: it becomes stale after its life.
                stored.until = stored.until.min(stored.shown_until_ms.div_ceil(1000) + 1 + grace_s);
            }
        }
        let is_same = |same: &usize| {
            let same = &self.stored[*same];
            (same.version, same.negative) == (version, negative)
        };
        let same = self.of_key[n].iter().copied().find(is_same);
        let number = if let Some(same) = same.filter(|_| self.equal && job.is_some()) {
            let old = &mut self.stored[same];
            (old.until, old.grace_s) = (old.until.max(stored.until), old.grace_s.max(grace_s));
            old.shown_until_ms = old.shown_until_ms.max(stored.shown_until_ms);
            old.softs = old.softs.zip(stored.softs).map(|(one, other)| one.max(other));
            same
        } else {
            self.stored.push(stored);
            self.of_key[n].push(self.stored.len() - 1);
            self.stored.len() - 1
        };
        let (k, value) = (key(n), format!("{version}.{number}."));
        let line = match verb {
            Verb::Negative(token) => {
                self.note("negative answer");
                self.negative_until[n] = self.negative_until[n].max(until);
                // Its flags tell which one it is.
                let by = token.map_or_else(String::new, |token| format!(" C{token}"));
                let tag = match self.named_by {
                    None => String::new(),
                    Some(NamedBy::Announcement(_)) if !self.unruled => {
                        self.announce(at, n);
                        String::new()
                    }
                    Some(_) => format!(" Gnamed:{n}"),
                };
                format!("ms {k} 0 n T{exptime} F{}{by}{tag}||", number + 1)
            }
            _ => self.line_of(at, n, &value, exptime, verb, job.is_some()),
        };
        self.send(at, &line, Want::Line { accepted: verb == Verb::Set });
    }

    /// Soft invalidations of the key before the miss for which the server takes a value; None: it does not
    /// know which one that is.
    fn softs_before(&self, at: usize, n: usize, by_token: bool, job: Option<&Job>) -> Option<usize> {
        let number = self.connections[at].as_ref().unwrap().number;
        let is_known = by_token
            || self.promise == Promise::Owners
                && job.is_some_and(|job| job.gave_up.is_none())
                && self.w.has_missed(number, &key(n));
        job.filter(|_| is_known).map(|job| job.softs)
    }

    /// Sends the values of finished computations, if there is a connection for them.
    pub(crate) fn fill_due(&mut self) {
        let mut at = 0;
        if self.unruled && self.promise != Promise::Nothing {
            return;
        }
        while at < self.jobs.len() {
            if self.jobs[at].due_ms > self.w.ms {
                at += 1;
                continue;
            }
            let late = self.jobs[at].missed_ms + WINDOW_MS <= self.w.ms;
            if late && self.promise != Promise::Nothing && self.jobs[at].token.is_none() {
                self.jobs.swap_remove(at);
                continue;
            }
            let Some(connection) = self.connection_for(at) else {
                at += 1;
                continue;
            };
            let job = self.jobs.swap_remove(at);
            self.fill(connection, &job);
        }
    }

    fn connection_for(&mut self, job: usize) -> Option<usize> {
        let (client, number) = (self.jobs[job].client, self.jobs[job].connection);
        let gave_up = self.jobs[job].gave_up.is_some();
        let kind = self.clients[client].kind;
        let idle: Vec<usize> = self.clients[client]
            .connections
            .iter()
            .copied()
            .filter(|at| kind == Kind::Multiplexed || gave_up || self.is_idle(*at))
            .filter(|at| {
                matches!(kind, Kind::Pool | Kind::Elastic)
                    || kind == Kind::Explicit && self.jobs[job].token.is_some()
                    || self.connections[*at].as_ref().unwrap().number == number
            })
            .collect();
        if idle.is_empty() {
            if kind == Kind::Elastic && self.clients[client].connections.len() < 6 {
                return Some(self.grow(client));
            }
            if !self.connections.iter().flatten().any(|connection| connection.number == number) {
                // Its connection was closed: the value is lost, or sent on another one.
                self.jobs[job].connection =
                    self.connections[self.clients[client].connections[0]].as_ref()?.number;
            }
            return None;
        }
        Some(self.rng.of(&idle))
    }

    /// A key whose misses are filled is not without a value for more than nine of them after an event.
    fn note_withheld(&mut self, n: usize, before: u64) {
        if self.count_of("fills_dropped_ambiguous") == before || self.w.peek(&key(n)).is_some() {
            return;
        }
        self.withheld[n] += 1;
        // Under a loader its job brings the value.
        let is_bounded = self.policy.ambiguous == Ambiguous::Serve
            && self.promise == Promise::Pools
            && !self.policy.loader;
        assert!(!is_bounded || self.withheld[n] <= 9, "{} has no value for too long", key(n));
    }

    /// A client whose gets and sets use one connection loses two values after an event at most, however often
    /// it asks before it stores.
    fn note_dropped(&mut self, number: u64, n: usize, dropped: bool, last: u64) {
        let (count, event) = self.dropped.entry((number, n)).or_default();
        (*count, *event) = match dropped {
            true if *event == last => (*count + 1, last),
            true => (1, last),
            false => (0, 0),
        };
        assert!(*count <= 2, "{} values of {} are dropped", count, key(n));
    }

    fn fill(&mut self, at: usize, job: &Job) {
        let n = job.key;
        let exptime = self.rng.of(&[0, 0, 1, 3, 5, 8, 12, 3600]);
        let k = key(n);
        let before = ["fills_stored", "fills_dropped", "fills_stale"].map(|name| self.count_of(name));
        let ambiguous = self.count_of("fills_dropped_ambiguous");
        let number = self.connections[at].as_ref().unwrap().number;
        if job.gave_up.is_some()
            && (self.w.has_sent(number) || self.computes(at, n) || self.w.has_missed(number, &k))
        {
            // Its get was answered in this moment; or it would be taken for the value of the connection's own
            // lease or miss.
            return;
        }
        let is_own = self.promise == Promise::Owners && self.w.has_missed(number, &k);
        let state = self.w.engine.key_state(k.as_bytes(), self.w.now());
        let (hard, last) = self.hard_of(n);
        let mut event = "";
        match (job.token, self.rng.below(12)) {
            (token, 3) if self.rng.one_in(4) => {
                self.note("a value is refused");
                self.withheld[n] = 0;
                if self.named_by == Some(NamedBy::Line) && !self.unruled {
                    return self.store_malformed(at, n, token);
                }
                return self.w.refuse(number, &k, token);
            }
            (Some(token), 0) => {
                event = "holder gives up";
                self.send(at, &format!("md {k} C{token} Peno|"), Want::Line { accepted: false });
            }
            (token, 1) if token.is_some() || self.rng.one_in(3) => {
                let exptime = self.rng.of(&[1, 2, 30, 30]);
                self.store(at, n, job.version, exptime, Verb::Negative(token), Some(job));
            }
            (Some(token), 2) => self.store(at, n, job.version, -1, Verb::Token(token), Some(job)),
            (Some(token), _) => self.store(at, n, job.version, exptime, Verb::Token(token), Some(job)),
            // The value never comes.
            (None, 0) => return,
            (None, 1) => {
                event = "set exptime < 0";
                self.store(at, n, job.version, -1, Verb::Set, Some(job));
            }
            (None, 2) => {
                event = "add";
                self.store(at, n, job.version, exptime, Verb::Add, Some(job));
            }
            (None, _) => self.store(at, n, job.version, exptime, Verb::Set, Some(job)),
        }
        if self.hard_of(n).0 > hard {
            // An event, also of a value that was refused or has expired on arrival.
            self.withheld[n] = 0;
        }
        self.note_withheld(n, ambiguous);
        if is_own && job.token.is_none() {
            self.note_dropped(number, n, self.count_of("fills_dropped") > before[1], last);
        }
        if event.is_empty() {
            for (name, before) in ["fills_stored", "fills_dropped", "fills_stale"].iter().zip(before) {
                if self.count_of(name) > before {
                    event = name;
                }
            }
        }
        if !event.is_empty() {
            *self.visits.entry((event, state)).or_default() += 1;
        }
    }
}
