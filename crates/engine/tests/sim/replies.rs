//! The replies to clients, and whether they are allowed.

use super::*;

impl Sim {
    /// Takes what was sent to the clients.
    pub(crate) fn receive(&mut self) {
        for at in 0..self.connections.len() {
            while let Some(connection) = self.connections[at].as_mut() {
                let sent = self.w.take_sent(connection.number);
                connection.unread.extend(sent);
                if connection.unread.is_empty() {
                    break;
                }
                let front = connection.pending.front().expect("nothing was asked");
                if matches!(front.want, Want::Run(_))
                    && !connection.unread.windows(4).any(|end| end == b"MN\r\n")
                {
                    // The gets before the first that waits are answered at once.
                    break;
                }
                if matches!(front.want, Want::Get(_) | Want::ForCas(_)) && !has_end(&connection.unread) {
                    // A part of a get of which a later part waits for a loader.
                    break;
                }
                let request = connection.pending.pop_front().expect("nothing was asked");
                let reply = take_reply(&mut connection.unread, &request.want);
                self.take(at, &request, &reply);
            }
        }
    }

    pub(crate) fn take(&mut self, at: usize, request: &Request, reply: &[Vec<u8>]) {
        let first = String::from_utf8_lossy(&reply[0]).into_owned();
        let number = self.connections[at].as_ref().unwrap().number;
        self.trace(|| format!("{number} < {}", reply.join(&b'|').escape_ascii()));
        let busy = reply.iter().any(|line| line == b"SERVER_ERROR busy");
        let keys: &[usize] = match &request.want {
            Want::Line { accepted } => {
                assert!(!first.starts_with("SERVER_ERROR"), "{first}");
                let fine = ["STORED", "HD", "OK"].iter().any(|word| first.starts_with(word))
                    || first.parse::<u64>().is_ok();
                assert!(fine || !accepted, "refused: {first}");
                return;
            }
            Want::Counter => {
                let shown = first.starts_with("VA") && request.sent_ms == self.w.ms;
                assert!(!shown || request.second < self.counter_over, "an old counter is shown");
                return;
            }
            Want::Flush => return assert!(first.starts_with("VALUE"), "{first}"),
            Want::Meta { key, .. } | Want::ForCas(key) => std::slice::from_ref(key),
            Want::Get(keys) | Want::Run(keys) => keys,
        };
        self.asked += keys.len() as u64;
        let explicit = matches!(request.want, Want::Meta { explicit: true, .. });
        // A thread that has given up and stored takes no reply.
        let has_stored = !self.waits_still(request);
        if busy {
            // Some clients take it for a miss of all keys.
            if explicit || has_stored || self.rng.one_in(2) {
                return;
            }
            self.note("a busy error is taken for misses");
            if !matches!(request.want, Want::Run(_)) {
                self.misses += keys.len() as u64;
                for n in keys {
                    self.compute(at, *n, None, request);
                }
                return;
            }
        }
        let meta = matches!(request.want, Want::Meta { .. });
        let word = |word: &str| first.split(' ').find_map(|w| w.strip_prefix(word).map(str::to_owned));
        for n in keys {
            let value = if meta {
                (first.starts_with("VA ") && !first.starts_with("VA 0 ")).then(|| &reply[1])
            } else if matches!(request.want, Want::Run(_)) {
                let name = format!("k{}", key(*n));
                let shows = |line: &Vec<u8>| {
                    line.starts_with(b"VA ") && line.split(|b| *b == b' ').any(|word| word == name.as_bytes())
                };
                reply.iter().position(shows).map(|at| &reply[at + 1])
            } else {
                let head = format!("VALUE {} ", key(*n));
                reply.iter().position(|line| line.starts_with(head.as_bytes())).map(|at| &reply[at + 1])
            };
            if let Some(value) = value {
                self.judge(*n, value, request);
                self.note_touch(*n, value, request);
            }
            let wins = meta && first.split(' ').any(|word| word == "W");
            // A stub that memcached keeps for the client that won, from a time without rules: an empty value,
            // not a miss.
            let stub = first.starts_with("VA 0 ") && word("c").is_none_or(|cas| cas != "0") && !wins;
            if value.is_none() && !stub && !wins {
                self.judge_negative(*n, request);
            }
            let misses = value.is_none() && !stub && (!explicit || self.rng.one_in(8));
            if (wins || misses) && !has_stored {
                self.misses += 1;
                let token = word("c").filter(|_| wins).map(|token| token.parse().unwrap());
                if token.is_some() || !self.asks_again(at, *n, request) {
                    self.compute(at, *n, token, request);
                }
            }
        }
        if let Want::ForCas(n) = request.want
            && let Some(cas) = first.split(' ').nth(4)
            && self.is_idle(at)
        {
            self.visit("cas", n);
            self.store(at, n, self.version[n], 0, Verb::Cas(cas.parse().unwrap()), None);
        }
    }

    fn judge(&mut self, n: usize, value: &[u8], request: &Request) {
        if self.promise == Promise::Nothing {
            return;
        }
        let text = String::from_utf8_lossy(value);
        // The stub that memcached keeps for the client that won, from a time without rules; and values
        // appended to it.
        let Some(number) = number_of(value) else {
            return assert!(value.iter().all(|byte| *byte == b'x'), "{text}");
        };
        let Stored { version, until, shown_until_ms, softs, grace_s, .. } = self.stored[number];
        if version < request.floors[n] {
            self.judge_old(n, &text, request, shown_until_ms);
        }
        if let Some(before) = softs.filter(|before| *before < request.softs[n] && request.held) {
            let second = self.softs[n][before];
            let old = "is from before a soft invalidation that its get came after";
            assert!(request.second < second + grace_s, "{text} {old}");
        }
        assert!(version <= self.version[n]);
        // Without rules an item marked stale is a hit, as in memcached.
        if !request.held && request.sent_ms == self.w.ms && !self.unruled {
            assert!(
                request.second < until,
                "{text} is served in second {}, not until {until}",
                request.second
            );
        }
    }

    /// An old value may be shown for a time where its age is not known; it is never there to stay.
    fn judge_old(&mut self, n: usize, text: &str, request: &Request, shown_until_ms: u64) {
        let old = format!("{text} of {} is from before {}", key(n), request.floors[n]);
        assert!(self.policy.ambiguous == Ambiguous::Serve && self.promise != Promise::Owners, "{old}");
        // The reply with a value that was there may have waited for other keys.
        let shown_ms = if request.held { request.sent_ms } else { self.w.ms };
        assert!(shown_ms <= shown_until_ms, "{old}: shown until {shown_until_ms}");
        self.shown_old += 1;
        if !request.held && request.sent_ms == self.w.ms && !self.unruled {
            let observer = self.w.connect();
            let why = self.w.ask(observer, &format!("get @why:{}|", key(n)));
            self.w.close(observer, true);
            let is_there = self.w.peek(&key(n)).is_some_and(|value| value == text.as_bytes());
            assert!(!is_there || why.contains("\"provisional\":true"), "{old}, and stays: {why}");
        }
    }

    /// A negative answer is a value, and no more than others to be given after an invalidation.
    fn judge_negative(&mut self, n: usize, request: &Request) {
        let at_once = !request.held && request.sent_ms == self.w.ms && !self.unruled;
        if !at_once || self.promise == Promise::Nothing || self.negative_until[n] < self.second() {
            return;
        }
        let why = self.why(n);
        if !why.contains("\"standing\":\"negative\"") {
            return;
        }
        // A loader's has no number.
        let Some(number) = self.w.peek_flags(&key(n)).and_then(|flags| flags.checked_sub(1)) else { return };
        let Stored { version, until, shown_until_ms, .. } = self.stored[number as usize];
        let old = format!("negative answer {number} of {} is from before {}", key(n), request.floors[n]);
        if version < request.floors[n] {
            assert!(self.policy.ambiguous == Ambiguous::Serve && self.promise != Promise::Owners, "{old}");
            assert!(self.w.ms <= shown_until_ms, "{old}: shown until {shown_until_ms}");
            assert!(why.contains("\"provisional\":true"), "{old}, and stays: {why}");
        }
        assert!(request.second < until, "negative answer {number} of {} counts until {until}: {why}", key(n));
    }

    /// A client that asks twice before it stores.
    fn asks_again(&mut self, at: usize, n: usize, request: &Request) -> bool {
        let client = self.connections[at].as_ref().unwrap().client;
        let one = matches!(&request.want, Want::Get(keys) if keys.len() == 1);
        if !one || request.again || !self.clients[client].asks_twice || !self.is_idle(at) {
            return false;
        }
        self.note("a client asks twice");
        self.send(at, &format!("get {}|", key(n)), Want::Get(vec![n]));
        self.connections[at].as_mut().unwrap().pending.back_mut().unwrap().again = true;
        true
    }

    /// A reply that comes before the thread that has given it up has stored is taken all the same. False: the
    /// value was sent.
    fn waits_still(&mut self, request: &Request) -> bool {
        let before = self.jobs.len();
        self.jobs.retain(|job| job.gave_up != Some(request.number));
        !request.given_up || self.jobs.len() < before
    }

    /// A `gat` prolongs the value of its reply, unless that is old.
    fn note_touch(&mut self, n: usize, value: &[u8], request: &Request) {
        let at_once = !request.held && request.sent_ms == self.w.ms;
        match (request.touches.map(|touches| touches[n]), number_of(value)) {
            (None, _) | (_, None) => {}
            // The value of a held one came later.
            (Some(Touchable::No), _) if !request.held => {}
            (Some(touchable), Some(number)) => {
                self.touched(number, touchable != Touchable::Yes || !at_once);
            }
        }
    }

    /// A miss that was read ahead was noted when the command was sent.
    fn compute(&mut self, at: usize, key: usize, token: Option<u64>, request: &Request) {
        let takes = self.rng.of(&[0, 5, 30, 120, 300, 600, 1500, 4000]);
        let connection = self.connections[at].as_ref().unwrap();
        let number = connection.number;
        self.jobs.push(Job {
            due_ms: self.w.ms + takes,
            missed_ms: request.sent_ms,
            client: connection.client,
            connection: connection.number,
            key,
            version: self.version[key],
            token,
            softs: self.softs[key].len(),
            unruled: request.unruled,
            gave_up: None,
        });
        if self.w.forgets(number) {
            self.note("a connection remembers no more");
        }
    }
}

/// Whether a reply to a classic get is whole.
fn has_end(bytes: &[u8]) -> bool {
    bytes.split(|byte| *byte == b'\n').any(|line| matches!(line, b"END\r" | b"SERVER_ERROR busy\r"))
}

fn take_line(bytes: &mut Vec<u8>) -> Vec<u8> {
    let end = bytes.windows(2).position(|two| two == b"\r\n").expect("whole replies are sent");
    let rest = bytes.split_off(end + 2);
    let mut line = std::mem::replace(bytes, rest);
    line.truncate(end);
    line
}

/// The lines of one reply; data blocks hold no line ends.
fn take_reply(bytes: &mut Vec<u8>, want: &Want) -> Vec<Vec<u8>> {
    let mut lines = vec![take_line(bytes)];
    match want {
        Want::Get(_) | Want::ForCas(_) | Want::Flush => {
            while !matches!(&lines.last().unwrap()[..], b"END" | b"SERVER_ERROR busy") {
                lines.push(take_line(bytes));
            }
        }
        Want::Run(_) => {
            while lines.last().unwrap() != b"MN" {
                lines.push(take_line(bytes));
            }
        }
        Want::Meta { .. } | Want::Counter if lines[0].starts_with(b"VA ") => lines.push(take_line(bytes)),
        _ => {}
    }
    lines
}
