//! What clients of each kind send.

use super::*;

impl Sim {
    pub(crate) fn act(&mut self, client: usize) {
        let kind = self.clients[client].kind;
        let at = self.rng.of(&self.clients[client].connections);
        if kind != Kind::Multiplexed && !self.is_idle(at) {
            return;
        }
        match kind {
            Kind::Writer => self.write(at),
            Kind::Liar => self.lie(at),
            Kind::Explicit => self.ask_by_name(at),
            Kind::Multiplexed => {
                for _ in 0..=self.rng.below(4) {
                    self.read(at);
                }
            }
            Kind::Sync | Kind::Pool => {
                self.read(at);
                if self.promise == Promise::OneConnection && self.rng.one_in(30) || self.may_set() {
                    // What is true in this moment.
                    let n = self.rng.below(KEYS as u64) as usize;
                    if self.is_idle(at) && !self.computes(at, n) {
                        self.set(at, n, self.version[n], "set", true);
                    }
                }
            }
        }
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
        match self.rng.below(10) {
            0 if n != m => self.send(at, &format!("get {} {}|", key(n), key(m)), Want::Get(vec![n, m])),
            1 => self.send(at, &format!("mg {} v|", key(n)), Want::Meta { key: n, explicit: false }),
            _ => self.send(at, &format!("get {}|", key(n)), Want::Get(vec![n])),
        }
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

    fn write(&mut self, at: usize) {
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
                let line = match self.rng.below(5) {
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
            4 if self.promise == Promise::Owners => {
                self.version[n] += 1;
                self.set(at, n, self.version[n], "set", true);
                self.floor[n] = self.version[n];
            }
            _ => {}
        }
    }

    fn lie(&mut self, at: usize) {
        let n = self.rng.below(KEYS as u64) as usize;
        let token = self.rng.below(200);
        match self.rng.below(8) {
            0 => self.set(at, n, 0, "set", true),
            1 => self.set(at, n, 0, "add", false),
            2 => self.send(at, &format!("ms {} 1 C{token}|x|", key(n)), Want::Line { accepted: false }),
            3 => self.send(at, &format!("md {} C{token} Peno|", key(n)), Want::Line { accepted: false }),
            4 => self.send(at, &format!("set {} 0 -1 1|x|", key(n)), Want::Line { accepted: true }),
            5 => self.send(at, &format!("md {} x|", key(n)), Want::Line { accepted: false }),
            6 => self.send(at, &format!("ma {} N3 J7|", key(n)), Want::Line { accepted: false }),
            _ => self.read(at),
        }
    }

    /// What is stored says how old it is and until when it may be served.
    pub(crate) fn value(&self, version: u64, exptime: u64) -> String {
        let over = if exptime == 0 { 0 } else { self.w.ms / 1000 + exptime + u64::from(self.policy.grace_s) };
        format!("{version}.{over}.")
    }

    fn set(&mut self, at: usize, n: usize, version: u64, verb: &str, accepted: bool) {
        let exptime = self.rng.of(&[0, 0, 1, 3, 5, 8, 12]);
        let value = self.value(version, exptime);
        self.visit("other write", n);
        let line = format!("{verb} {} 0 {exptime} {}|{value}|", key(n), value.len());
        self.send(at, &line, Want::Line { accepted });
    }

    /// Computations that are done are sent, if there is a connection for them.
    pub(crate) fn fill_due(&mut self) {
        let mut at = 0;
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
        let kind = self.clients[client].kind;
        let idle: Vec<usize> = self.clients[client]
            .connections
            .iter()
            .copied()
            .filter(|at| kind == Kind::Multiplexed || self.is_idle(*at))
            .filter(|at| {
                kind == Kind::Pool
                    || kind == Kind::Explicit && self.jobs[job].token.is_some()
                    || self.connections[*at].as_ref().unwrap().number == number
            })
            .collect();
        if idle.is_empty() {
            if !self.connections.iter().flatten().any(|connection| connection.number == number) {
                // Its connection is gone: lost, or sent on the next one.
                self.jobs[job].connection =
                    self.connections[self.clients[client].connections[0]].as_ref()?.number;
            }
            return None;
        }
        Some(self.rng.of(&idle))
    }

    fn fill(&mut self, at: usize, job: &Job) {
        let n = job.key;
        let exptime = self.rng.of(&[0, 0, 1, 3, 5, 8, 12]);
        let value = self.value(job.version, exptime);
        let (k, len) = (key(n), value.len());
        let before = ["fills_stored", "fills_dropped", "fills_stale"].map(|name| self.w.count(name));
        let state = self.w.engine.key_state(k.as_bytes(), self.w.now());
        let mut event = "";
        match (job.token, self.rng.below(12)) {
            (Some(token), 0) => {
                event = "holder gives up";
                self.send(at, &format!("md {k} C{token} Peno|"), Want::Line { accepted: false });
            }
            (Some(token), 1) => {
                self.send(at, &format!("ms {k} 0 n T2 C{token}||"), Want::Line { accepted: false });
            }
            (Some(token), _) => {
                let line = format!("ms {k} {len} T{exptime} C{token}|{value}|");
                self.send(at, &line, Want::Line { accepted: false });
            }
            // It never comes.
            (None, 0) => return,
            (None, 1) => {
                event = "set exptime < 0";
                self.send(at, &format!("set {k} 0 -1 {len}|{value}|"), Want::Line { accepted: true });
            }
            (None, 2) => {
                event = "add";
                self.send(at, &format!("add {k} 0 {exptime} {len}|{value}|"), Want::Line { accepted: false });
            }
            (None, _) => {
                self.send(at, &format!("set {k} 0 {exptime} {len}|{value}|"), Want::Line { accepted: true });
            }
        }
        if event.is_empty() {
            for (name, before) in ["fills_stored", "fills_dropped", "fills_stale"].iter().zip(before) {
                if self.w.count(name) > before {
                    event = name;
                }
            }
        }
        if !event.is_empty() {
            *self.visits.entry((event, state)).or_default() += 1;
        }
    }
}
