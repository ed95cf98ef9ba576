//! Events that concern all clients: evictions, stops, reloads, soft invalidations, slow flushes, closed connections.

use super::*;

impl Sim {
    pub(crate) fn evict(&mut self) {
        (0..KEYS).for_each(|n| self.visit("eviction", n));
        self.note("eviction");
        self.trace(|| "evicts".into());
        let number = self.connections[self.clients.last().unwrap().connections[0]].as_ref().unwrap().number;
        let fat = "x".repeat(3000);
        for n in 0..400 {
            self.w.send(number, &format!("set junk:{n} 0 0 3000 noreply|{fat}|"));
        }
    }

    /// The server is stopped for some seconds. What clients have computed meanwhile waits in its sockets, and
    /// comes before or after what its threads do when they go on.
    pub(crate) fn stop_server(&mut self) {
        self.note("a stop");
        let ms = 1 + self.rng.below(4 * WINDOW_MS);
        self.trace(|| format!("is stopped for {ms} ms"));
        let more_ms = self.rng.below(100);
        self.w.stop(ms, more_ms);
        self.jobs.iter_mut().for_each(|job| job.missed_ms += ms);
        self.announced_until_ms.iter_mut().for_each(|until_ms| *until_ms += ms);
        let pending = self.connections.iter_mut().flatten().flat_map(|connection| &mut connection.pending);
        pending.for_each(|request| request.stopped_ms += ms);
        if self.rng.one_in(2) {
            self.fill_due();
        }
        self.w.pass(0);
        self.note_loads();
    }

    pub(crate) fn reload(&mut self) {
        self.note("reload");
        self.withheld = [0; KEYS];
        let Policy { owner, ambiguous, .. } = self.policy;
        self.policy = Policy { ambiguous, ..draw_policy(&mut self.rng, owner) };
        self.hold_max_ms = self.longest_hold();
        self.trace(|| format!("{:?}", self.policy));
        let mut policies = NamedBy::rules(self.named_by, self.policy).to_vec();
        // A rule of no key that is used: it comes and goes with reloads.
        if self.rng.one_in(3) {
            policies.push(("other:{id}", self.policy));
        }
        let was_unruled = self.unruled;
        if self.unruled {
            self.unruled = false;
            // No worker has looked at the leases since the rules went.
            self.mixed = self.w.engine.leases() > 0;
            // No herd has noted the misses without a rule.
            if self.promise != Promise::Nothing {
                self.jobs.retain(|job| !job.unruled);
            }
        } else if self.rng.one_in(2) {
            self.note("reload without rules");
            self.unruled = true;
            self.era += 1;
            if self.rng.one_in(2) {
                return self.w.set_rules(&[]);
            }
            self.w.swap_rules(&[]);
            if self.rng.one_in(2) {
                self.note("rules come back at once");
                let n = self.rng.below(KEYS as u64) as usize;
                self.delete(n);
                self.reload();
            }
            return;
        }
        if was_unruled && self.rng.one_in(2) {
            return self.w.swap_rules(&policies);
        }
        self.w.set_rules(&policies);
    }

    /// The source changes.
    fn delete(&mut self, n: usize) {
        let at = self.clients.last().unwrap().connections[0];
        if self.is_idle(at) {
            self.visit("delete or flush", n);
            self.version[n] += 1;
            self.floor[n] = self.version[n];
            self.withheld[n] = 0;
            self.send(at, &format!("delete {}|", key(n)), Want::Line { accepted: false });
            self.receive();
        }
    }

    /// All values of this key are expired from now on.
    pub(crate) fn soften(&mut self, n: usize) {
        let second = self.second();
        self.softs[n].push(second);
        for number in &self.of_key[n] {
            self.stored[*number].soften(second);
        }
    }

    pub(crate) fn invalidate_softly(&mut self) {
        let n = self.rng.below(KEYS as u64) as usize;
        let at = self.clients.last().unwrap().connections[0];
        if !self.is_idle(at) {
            return;
        }
        self.visit("md I", n);
        if self.rng.one_in(4) {
            return self.purge(n, at);
        }
        if self.followed && self.rng.one_in(2) {
            if !self.unruled {
                self.soften(n);
            }
            return self.bump_by_log(n, BumpKind::Soft);
        }
        self.note("soft invalidation");
        let line = match self.rng.below(3) {
            0 if self.named_by.is_some() => format!("md named:{n} G I|"),
            0 | 1 if self.named_by.is_none() => format!("md {} G I|", key(n)),
            _ => format!("md {} I|", key(n)),
        };
        // Without rules only the values with the tag are concerned, and they are misses.
        if !self.unruled {
            self.soften(n);
        }
        self.send(at, &line, Want::Line { accepted: false });
    }

    /// A row was changed: the log bumps the key's tag, if an item or a miss may have it.
    pub(crate) fn bump_by_log(&mut self, n: usize, kind: BumpKind) {
        self.note("bump by a log");
        let tag = if self.named_by.is_some() { format!("named:{n}") } else { key(n) };
        let left_out = |sim: &Self| sim.w.engine.shared().tags().stats().left_out;
        let before = left_out(self);
        self.w.engine.bump_followed(PrefixId::NONE, tag.as_bytes(), kind, self.w.now());
        if left_out(self) > before {
            self.note("bump by a log, left out");
        }
        self.trace(|| format!("{kind:?} bump of {tag} by the log"));
        if self.rng.one_in(8) {
            self.note("other notes of tags");
            self.w.engine.renew_notes_soon();
        }
        self.w.pass(0);
        self.receive();
    }

    /// The same at some moment of the next seconds.
    fn purge(&mut self, n: usize, at: usize) {
        self.note("gradual purge");
        let seconds = 1 + self.rng.below(2);
        let tag = if self.named_by.is_some() { format!("named:{n}") } else { key(n) };
        if !self.unruled {
            // In the last of these seconds it may still be valid.
            let second = self.second() + seconds + 1;
            for number in &self.of_key[n] {
                self.stored[*number].soften(second);
            }
        }
        self.send(at, &format!("md {tag} G I T{seconds}|"), Want::Line { accepted: false });
    }

    /// The same twice, and clients that ask for the key in between.
    pub(crate) fn invalidate_softly_twice(&mut self) {
        let n = self.rng.below(KEYS as u64) as usize;
        let writer = self.clients.last().unwrap().connections[0];
        if !self.is_idle(writer) || self.unruled {
            return;
        }
        self.note("soft invalidation, twice");
        let before = self.softs[n].len();
        for _ in 0..2 {
            self.soften(n);
            self.send(writer, &format!("md {} I|", key(n)), Want::Line { accepted: false });
            self.receive();
            self.ask_by_many(n);
        }
        // What was missed before both comes now.
        let now = self.w.ms;
        let is_old = |job: &&mut Job| job.key == n && job.softs <= before;
        self.jobs.iter_mut().filter(is_old).for_each(|job| job.due_ms = now);
    }

    /// Half of the clients that are idle ask for this key.
    fn ask_by_many(&mut self, n: usize) {
        for at in 0..self.connections.len() {
            let is_reader = self.connections[at].as_ref().is_some_and(|connection| {
                !matches!(self.clients[connection.client].kind, Kind::Writer | Kind::Explicit)
            });
            if is_reader && self.is_idle(at) && !self.computes(at, n) && self.rng.one_in(2) {
                self.send(at, &format!("get {}|", key(n)), Want::Get(vec![n]));
            }
        }
        self.receive();
    }

    pub(crate) fn flush_slowly(&mut self) {
        let at = self.clients.last().unwrap().connections[0];
        if !self.is_idle(at) || self.unruled {
            return;
        }
        self.note("slow flush");
        let seconds = 1 + self.rng.below(3);
        (0..KEYS).for_each(|n| self.version[n] += 1);
        self.flushes.push((self.w.ms + seconds * 1000, self.version));
        self.send(at, &format!("get @flush:{seconds}|"), Want::Flush);
    }

    pub(crate) fn close(&mut self, client: usize) {
        let at = self.rng.of(&self.clients[client].connections);
        self.close_at(client, at);
    }

    pub(crate) fn close_at(&mut self, client: usize, at: usize) {
        let elastic = self.clients[client].kind == Kind::Elastic;
        let front = self.connections[at].as_ref().unwrap().pending.front();
        let waits_for = match front.map(|request| &request.want) {
            Some(Want::Get(keys) | Want::Run(keys)) => keys.first().copied(),
            _ => None,
        };
        if let Some(key) = waits_for.filter(|_| self.rng.one_in(4)) {
            self.delete(key);
        }
        let connection = self.connections[at].take().unwrap();
        if !connection.pending.is_empty() && self.rng.one_in(4) {
            self.w.release(connection.number);
        }
        let orderly = self.rng.one_in(2);
        let waits = self.w.waiting(connection.number) == 1 && connection.pending.len() == 1;
        if connection.pending.is_empty() {
            for n in 0..KEYS {
                let lease = self.jobs.iter().any(|job| job.connection == connection.number && job.key == n);
                if lease {
                    self.visit(if orderly { "holder leaves" } else { "holder is gone" }, n);
                }
            }
        } else {
            *self.visits.entry(("waiter closes", KeyState::LeasedAbsent)).or_default() += 1;
        }
        self.trace(|| format!("{} closes, orderly: {orderly}", connection.number));
        self.w.close(connection.number, orderly);
        let pools = matches!(self.promise, Promise::Pools | Promise::Nothing);
        if !pools {
            self.jobs.retain(|job| job.connection != connection.number || job.token.is_some());
        }
        let keeps = elastic && self.clients[client].connections.len() > 1 && self.rng.one_in(2);
        if keeps {
            self.note("a pool shrinks");
            self.clients[client].connections.retain(|own| *own != at);
        } else {
            self.open(at, client);
        }
        let is_ruled = connection.pending.front().is_some_and(|request| !request.unruled);
        if pools && waits && is_ruled && self.rng.one_in(2) {
            self.give_up_waiting(&connection);
        }
    }

    /// A client that does not wait any longer takes this for a miss.
    pub(crate) fn give_up_waiting(&mut self, closed: &Connection) {
        // It has seen none of its keys, not even those that were there.
        let waits = closed.pending.front().filter(|request| !request.given_up);
        let keys = waits.map(|request| match &request.want {
            Want::Get(keys) => keys.clone(),
            Want::Run(keys) => {
                self.note("a client gives up a run");
                keys.clone()
            }
            _ => Vec::new(),
        });
        // It may have given up, and read the source, some time before the server hears of it.
        let is_late = self.rng.one_in(2);
        let seen =
            closed.pending.front().filter(|_| is_late).map(|request| (request.versions, request.softs));
        let mut keys = keys.unwrap_or_default();
        keys.sort_unstable();
        keys.dedup();
        let deleted = keys.first().copied().filter(|_| self.rng.one_in(4));
        for key in keys {
            self.note("a client gives up waiting");
            let own = self.clients[closed.client].connections[0];
            let connection = self.connections[own].as_ref().unwrap().number;
            let takes = self.rng.of(&[0, 5, 30, 300, 1500]);
            self.jobs.push(Job {
                due_ms: self.w.ms + takes,
                missed_ms: self.w.ms,
                client: closed.client,
                connection,
                key,
                version: seen.map_or(self.version[key], |(versions, _)| versions[key]),
                token: None,
                softs: seen.map_or(self.softs[key].len(), |(_, softs)| softs[key]),
                unruled: false,
                gave_up: None,
            });
        }
        if let Some(key) = deleted {
            self.delete(key);
        }
    }

    /// A thread waits no longer for its reply and computes; others use the connection. False: none waits.
    pub(crate) fn give_up_in_place(&mut self, at: usize) -> bool {
        let takes = self.rng.of(&[0, 1, 5, 30, 100]);
        let connection = self.connections[at].as_mut().unwrap();
        if self.unruled || self.w.waiting(connection.number) == 0 {
            return false;
        }
        // The first one without a reply waits; those behind it may have theirs.
        let Some(request) = connection.pending.front_mut() else { return false };
        let key = match &request.want {
            Want::Get(keys) if keys.len() == 1 && !request.given_up && !request.unruled => keys[0],
            _ => return false,
        };
        request.given_up = true;
        self.jobs.push(Job {
            due_ms: self.w.ms + takes,
            missed_ms: request.sent_ms,
            client: connection.client,
            connection: connection.number,
            key,
            version: self.version[key],
            token: None,
            softs: self.softs[key].len(),
            unruled: false,
            gave_up: Some(request.number),
        });
        self.note("a thread gives up waiting");
        if self.rng.one_in(2) {
            self.ask_by_many(key);
            self.delete(key);
            // What the others have computed before it comes first.
            let now = self.w.ms;
            let is_old = |job: &&mut Job| job.key == key && job.gave_up.is_none();
            self.jobs.iter_mut().filter(is_old).for_each(|job| job.due_ms = now);
        }
        true
    }
}
