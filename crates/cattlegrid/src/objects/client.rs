//! A client and an engine in this process, and a clock that only the user moves.

use std::sync::Arc;

use cattlegrid_config::Settings;
use cattlegrid_engine::{
    Context, Counters, Effects, Engine, EngineConfig, Event, GetPiece, Interest, Now, Output, PieceResult,
    ReplyQueue, RulesConfig, Step, Ticket,
};
use cattlegrid_herd::{Caller, PeerKey, Session};
use cattlegrid_objects::Registry;
use cattlegrid_protocol::{Limits, Parsed, Request, parse, reply};

/// See the module's text.
pub(super) struct ObjectClient {
    engine: Engine,
    registry: Arc<Registry>,
    counters: Counters,
    session: Session,
    limits: Limits,
    /// Replies that wait, or follow one that waits.
    replies: ReplyQueue,
    requests: u64,
    /// Unix time of the engine's second 0.
    unix_of_zero: i64,
    /// Milliseconds since then.
    ms: u64,
    /// Without any, what methods leave is dropped.
    interest: Interest,
    /// Events of methods, and lines for the log, since they were taken.
    noted: (Vec<Event>, Vec<String>),
}

/// What became of bytes that were sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    /// The replies of all requests.
    Replies(Vec<u8>),
    /// The last request is not whole; nothing was executed.
    Incomplete,
}

/// The engine's second at the start: 0 and 1 have meanings of their own.
const FIRST_SECOND: u64 = 2;
/// Replies, of one request, in parts.
const PART_BYTES: usize = 64 << 10;
/// Why a clock cannot be set to a later time.
pub(super) const TOO_LATE: &str = "the clock goes to the year 2100";
/// The connection's number, and the client's process.
const CLIENT: u64 = 1;

impl ObjectClient {
    /// With the types and rules of these settings, at this Unix time in milliseconds.
    ///
    /// # Errors
    /// The system's, when there is no memory for the items.
    ///
    /// # Panics
    /// When no types are switched on.
    pub(super) fn new(settings: &Settings, unix_ms: u64) -> std::io::Result<Self> {
        let objects = settings.objects.as_ref().expect("types are switched on");
        Self::with_types(settings, objects.registry(), unix_ms)
    }

    /// The same with other types.
    pub(super) fn with_types(settings: &Settings, registry: Registry, unix_ms: u64) -> std::io::Result<Self> {
        let engine = Engine::new(EngineConfig {
            memory_bytes: settings.memory_bytes,
            threads: 1,
            evictions: settings.evictions,
            hide_cas: !settings.cas,
            max_item_bytes: settings.item_bytes_max,
            large_pages: false,
            tag_bytes: settings.protection.tag_bytes,
            allows_flush: settings.flush,
            explain: |why| serde_json::to_string(why).unwrap_or_default(),
            nanos: cattlegrid_server::time::nanos,
            // The same each time, so that a run can be repeated.
            seed: 1,
            shares: Vec::new(),
            prefixes: settings.protection.prefixes.clone(),
        })?;
        if let Some(file) = &settings.rule_file {
            let own = &settings.protection;
            let config = RulesConfig {
                tag_bytes: own.tag_bytes,
                ledger_bytes: own.ledger_bytes,
                fence_bytes: own.fence_bytes,
                waiters: own.waiters,
                control: own.control.as_bytes().into(),
                prefixes: own.prefixes.clone(),
            };
            engine.set_rules(Some(Arc::clone(&file.rules)), &config, 0)?;
        }
        let registry = Arc::new(registry);
        engine.set_objects(Some(Arc::clone(&registry)));
        let peer = engine.shared().peers().join(PeerKey::Process(1));
        let session = Session::new(Arc::new(Caller::new(CLIENT, 0, CLIENT, peer)));
        let limits =
            Limits { max_item_bytes: settings.item_bytes_max, extensions: true, ..Limits::default() };
        let first = unix_ms / 1000;
        let client = Self {
            engine,
            registry,
            counters: Counters::default(),
            session,
            limits,
            replies: ReplyQueue::default(),
            requests: 0,
            unix_of_zero: i64::try_from(first).unwrap_or(i64::MAX).saturating_sub_unsigned(FIRST_SECOND),
            ms: FIRST_SECOND * 1000 + unix_ms % 1000,
            interest: Interest::none(),
            noted: (Vec::new(), Vec::new()),
        };
        client.engine.begin(client.now());
        client.upkeep();
        Ok(client)
    }

    /// The types.
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// From now on what methods leave is kept for [`Self::take_noted`].
    #[cfg(feature = "scripts")]
    pub(super) fn note(&mut self) {
        self.interest = Interest::SCRIPTS;
    }

    /// Takes events of methods, and lines for the log.
    #[cfg(feature = "scripts")]
    pub(super) fn take_noted(&mut self) -> (Vec<Event>, Vec<String>) {
        std::mem::take(&mut self.noted)
    }

    /// The clock: Unix time in milliseconds.
    pub(super) fn unix_ms(&self) -> u64 {
        self.now().unix_ms()
    }

    /// Moves the clock forward.
    ///
    /// # Errors
    /// It would pass the year 2100.
    pub(super) fn wait(&mut self, ms: u64) -> Result<(), String> {
        self.set_time(self.unix_ms().saturating_add(ms))
    }

    /// Sets the clock to this Unix time in milliseconds.
    ///
    /// # Errors
    /// It would go back, or pass the year 2100.
    pub(super) fn set_time(&mut self, unix_ms: u64) -> Result<(), String> {
        if unix_ms < self.unix_ms() {
            return Err("the clock only goes forward".to_owned());
        }
        self.set_wall_clock(unix_ms)
    }

    /// The same, and back: as when the clock of a server's machine is set back, so that items live for as
    /// long as they would have.
    ///
    /// # Errors
    /// It would pass the year 2100, or has gone forward by 136 years in all.
    pub(super) fn set_wall_clock(&mut self, unix_ms: u64) -> Result<(), String> {
        let back = self.unix_ms().saturating_sub(unix_ms).div_ceil(1000);
        let unix_of_zero = self.unix_of_zero.saturating_sub_unsigned(back);
        let ms = (unix_of_zero * 1000).abs_diff(i64::try_from(unix_ms).unwrap_or(i64::MAX));
        if unix_ms > cattlegrid_config::MOMENT_MAX_MS || ms / 1000 > u64::from(u32::MAX) {
            return Err(TOO_LATE.to_owned());
        }
        (self.unix_of_zero, self.ms) = (unix_of_zero, ms);
        self.upkeep();
        Ok(())
    }

    fn now(&self) -> Now {
        let second = u32::try_from(self.ms / 1000).unwrap_or(u32::MAX);
        Now { second, ms: self.ms, unix_of_zero: self.unix_of_zero }
    }

    /// What a server does once a second, until nothing is left to be done.
    fn upkeep(&self) {
        while self.engine.tick(self.now()) {}
    }

    /// Executes requests about keys.
    pub(super) fn send(&mut self, input: &[u8]) -> SendResult {
        let limits = self.limits;
        let mut used = 0;
        while used < input.len() {
            match parse(&input[used..], &limits) {
                Parsed::Incomplete { .. } => return SendResult::Incomplete,
                Parsed::Complete { used: bytes, .. } => used += bytes,
                Parsed::Refused(refused) => used += refused.used,
            }
        }
        let (mut rest, mut replies) = (input, Vec::new());
        while !rest.is_empty() {
            let bytes = match parse(rest, &limits) {
                Parsed::Incomplete { .. } => break,
                Parsed::Complete { request, used } => {
                    self.execute(&request, &mut replies);
                    used
                }
                Parsed::Refused(refused) => {
                    if !refused.reply.is_empty() {
                        reply::line(&mut replies, refused.reply);
                    }
                    refused.used
                }
            };
            rest = &rest[bytes..];
        }
        SendResult::Replies(replies)
    }

    fn execute(&mut self, request: &Request<'_>, replies: &mut Vec<u8>) {
        let Some(mut hash) = self.engine.hash(request) else {
            return match request {
                Request::MetaNoop => replies.extend_from_slice(reply::MN),
                _ => reply::line(replies, "ERROR"),
            };
        };
        self.requests += 1;
        let mut effects = Effects::default();
        let mut left = if let Request::Get(get) = request { Some(get.clone()) } else { None };
        let mut begun = false;
        loop {
            let mut out = Output::default();
            let (now, counters, interest) = (self.now(), &self.counters, self.interest);
            let mut cx = Context {
                step: Step { now, counters, interest, effects: &mut effects },
                ticket: Ticket { connection: CLIENT, request: self.requests },
                session: &mut self.session,
                out: &mut out,
            };
            let piece = GetPiece { progress: begun.into(), bytes: PART_BYTES, ..GetPiece::ALL };
            let mut lock = self.engine.shard_lock();
            let parked = match &left {
                None => self.engine.execute(request, hash, &mut lock, &mut cx),
                Some(get) => match self.engine.get(get, hash, piece, &mut lock, &mut cx) {
                    PieceResult::Done => {
                        left = None;
                        None
                    }
                    PieceResult::Parked(parked) => {
                        left = None;
                        Some(parked)
                    }
                    PieceResult::ParkedMore(parked, keys) => {
                        left = Some(get.with_keys(keys));
                        Some(parked)
                    }
                    PieceResult::More(keys) => {
                        left = Some(get.with_keys(keys));
                        None
                    }
                },
            };
            drop(lock);
            self.replies.push(&mut out, now.ms);
            append(replies, out);
            if let Some(parked) = parked {
                self.replies.park(parked, 0, now.ms);
            }
            self.finish(&mut effects, replies);
            let Some(get) = &left else { break };
            hash = self.engine.hash(&Request::Get(get.clone())).unwrap_or(hash);
            begun = true;
        }
        if self.interest != Interest::none() {
            self.noted.0.extend(effects.events.drain(..).map(|(_, event)| event));
            self.noted.1.append(&mut effects.take_lines());
        }
    }

    /// Ends what the request waits for: calls of objects by their steps; a lease or a loader, which there are none of here,
    /// as if its time was over.
    fn finish(&mut self, effects: &mut Effects, replies: &mut Vec<u8>) {
        loop {
            let now = self.now();
            let Self { replies: waiting, session, counters, .. } = &mut *self;
            for wake in effects.take_wakes() {
                waiting.wake(wake.request, now.ms, |parked| {
                    parked.resolve(wake.slot, wake.verdict, session, now.ms, counters);
                });
            }
            drop(effects.take_loads());
            let mut out = Output::default();
            waiting.pop_done(&mut out);
            append(replies, out);
            let calls = effects.take_calls();
            if calls.is_empty() && !effects.has_wakes() {
                break;
            }
            for call in calls {
                let mut call = Some(call);
                while let Some(going) = call {
                    let (counters, interest) = (&self.counters, self.interest);
                    let mut step = Step { now, counters, interest, effects: &mut *effects };
                    call = self.engine.continue_call(going, &mut self.engine.shard_lock(), &mut step);
                }
            }
        }
        if !self.replies.is_empty() {
            self.give_up(effects, replies);
        }
    }

    fn give_up(&mut self, effects: &mut Effects, replies: &mut Vec<u8>) {
        let now = self.now();
        let mut out = Output::default();
        let mut cx = Context {
            step: Step { now, counters: &self.counters, interest: Interest::none(), effects },
            ticket: Ticket { connection: CLIENT, request: self.requests },
            session: &mut self.session,
            out: &mut out,
        };
        self.replies.release(now.ms, |parked| self.engine.release(parked, &mut cx));
        self.replies.pop_done(&mut out);
        append(replies, out);
        drop((effects.take_wakes(), effects.take_loads()));
    }
}

/// The bytes of replies, with values that are stored elsewhere.
fn append(replies: &mut Vec<u8>, out: Output) {
    let Output { bytes, huge } = out;
    let mut from = 0;
    for (at, value) in huge {
        replies.extend_from_slice(&bytes[from..at]);
        value.slices().for_each(|slice| replies.extend_from_slice(slice));
        from = at;
    }
    replies.extend_from_slice(&bytes[from..]);
}
