//! A cache and a thread that serves it, as the server has them, without sockets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use cattlegrid_engine::{
    Context, Counters, Cursor, Effects, Engine, EngineConfig, GetPiece, Interest, Now, Output, Step, Ticket,
};
use cattlegrid_herd::{Caller, PeerKey, Session};
use cattlegrid_protocol::{Limits, Parsed, Request, parse};

/// An engine with one item in one shard.
pub(crate) struct Cache(Engine);

impl Cache {
    pub(crate) fn new() -> Arc<Self> {
        let engine = Engine::new(EngineConfig {
            memory_bytes: 4 << 20,
            threads: 1,
            evictions: true,
            hide_cas: false,
            max_item_bytes: 1 << 20,
            large_pages: false,
            tag_bytes: 0,
            allows_flush: true,
            explain: |_| String::new(),
            nanos: || 0,
            seed: 1,
            shares: Vec::new(),
            prefixes: cattlegrid_engine::Prefixes::default(),
        });
        let cache = Arc::new(Self(engine.expect("4 MiB")));
        assert_eq!(cache.ask("set key 0 0 5\r\nvalue\r\n"), "STORED\r\n");
        cache
    }

    /// The replies to one request.
    pub(crate) fn ask(&self, text: &str) -> String {
        let peer = self.0.shared().peers().join(PeerKey::Process(1));
        let mut session = Session::new(Arc::new(Caller::new(1, 0, 0, peer)));
        let (counters, mut effects, mut out) = (Counters::default(), Effects::default(), Output::default());
        let limits = Limits::default();
        let Parsed::Complete { request, .. } = parse(text.as_bytes(), &limits) else { panic!("one request") };
        let hash = self.0.hash(&request).expect("it has a key");
        let mut cx = Context {
            step: Step {
                now: Now { second: 2, ms: 2_000, unix_of_zero: 1_700_000_000 },
                counters: &counters,
                interest: Interest::none(),
                effects: &mut effects,
            },
            ticket: Ticket { connection: 1, request: 1 },
            session: &mut session,
            out: &mut out,
        };
        let mut lock = self.0.shard_lock();
        if let Request::Get(get) = &request {
            drop(self.0.get(get, hash, GetPiece::ALL, &mut lock, &mut cx));
        } else {
            assert!(
                self.0.execute(&request, hash, &mut lock, &mut cx).is_none(),
                "nothing waits without rules"
            );
        }
        drop(lock);
        String::from_utf8_lossy(&out.bytes).into_owned()
    }

    /// Calls `act` with the lock of the item's shard held.
    pub(crate) fn locked(&self, mut act: impl FnMut()) {
        let mut place = Some(Cursor::default());
        while let Some(cursor) = place {
            place = self.0.list(cursor, 100, |_| act());
        }
    }
}

/// A thread that answers gets until it is dropped.
pub(crate) struct Serving {
    answered: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Serving {
    pub(crate) fn start(cache: &Arc<Cache>) -> Self {
        let (answered, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (cache, count, end) = (Arc::clone(cache), Arc::clone(&answered), Arc::clone(&ended));
        let (sender, begun) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::SeqCst) {
                assert_eq!(cache.ask("get key\r\n"), "VALUE key 0 5\r\nvalue\r\nEND\r\n");
                count.fetch_add(1, Ordering::SeqCst);
                sender.send(()).ok();
            }
        });
        begun.recv().expect("the first answer");
        Self { answered, ended, thread: Some(thread) }
    }

    /// Returns when ten more gets have been answered.
    pub(crate) fn goes_on(&self) {
        let before = self.answered.load(Ordering::SeqCst);
        while self.answered.load(Ordering::SeqCst) < before + 10 {
            std::thread::yield_now();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it serves until the end");
        }
    }
}
