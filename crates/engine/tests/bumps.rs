//! The log of a fleet: which bumps are left in it, and which replies wait for it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::world;

use cattlegrid_engine::rules::{Change, Rules};
use cattlegrid_engine::{BumpLog, BumpWait, BumpWaiter, SentBump};
use cattlegrid_herd::Policy;
use cattlegrid_tags::BumpKind;
use world::{World, cascade, rule};

const NOT_CONFIRMED: &str = "CLIENT_ERROR bump not confirmed|";

/// A log in memory.
#[derive(Debug, Default)]
struct Memory {
    is_lost: AtomicBool,
    lines: Mutex<Vec<String>>,
    waiters: Mutex<Vec<(u64, bool, BumpWaiter)>>,
}

impl BumpLog for Memory {
    fn is_on(&self) -> bool {
        true
    }

    fn push(&self, bump: &SentBump<'_>) -> u64 {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let line = match *bump {
            SentBump::Tag { prefix, name, kind } => {
                let kind = if kind == BumpKind::Soft { "soft" } else { "hard" };
                format!("{kind} {}{}", text(prefix), text(name))
            }
            SentBump::Gradual { prefix, name, seconds } => {
                format!("gradual {seconds} {}{}", text(prefix), text(name))
            }
            SentBump::Flush { seconds } => format!("flush {seconds}"),
        };
        let mut lines = self.lines.lock().expect("no test panics with it");
        lines.push(line);
        lines.len() as u64
    }

    fn wait(&self, ticket: u64, is_barrier: bool, who: BumpWaiter, now_ms: u64) -> BumpWait {
        if self.is_lost.load(Relaxed) {
            return BumpWait::Lost;
        }
        self.waiters.lock().expect("no test panics with it").push((ticket, is_barrier, who));
        BumpWait::Until(now_ms + 400)
    }

    fn nodes(&self, _: u64) -> String {
        "[]".to_owned()
    }
}

fn world() -> (World, Arc<Memory>) {
    let rules = Rules::new(
        vec![rule(1, "page:{user}", Policy::default(), &["user:{user}"])],
        vec![cascade(&[Change::Set, Change::Delete], "user:{user}", "user:{user}")],
    );
    let (world, log) = (World::under(rules), Arc::new(Memory::default()));
    let shared: Arc<dyn BumpLog> = Arc::<Memory>::clone(&log);
    world.engine.shared().set_bump_log(shared);
    (world, log)
}

impl Memory {
    fn take_lines(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().expect("no test panics with it"))
    }

    fn take(&self) -> Vec<BumpWaiter> {
        std::mem::take(&mut *self.waiters.lock().expect("no test panics with it"))
            .into_iter()
            .map(|(.., who)| who)
            .collect()
    }
}

#[test]
fn each_form_of_a_bump_is_left_in_the_log_and_waits() {
    let (mut w, log) = world();
    let a = w.connect();
    for (command, line, reply) in [
        ("delete @tag:user:1\r\n", "hard user:1", "DELETED|"),
        ("md user:1 G\r\n", "hard user:1", "HD|"),
        ("md user:1 G I\r\n", "soft user:1", "HD|"),
        ("md user:1 G I T60\r\n", "gradual 60 user:1", "HD|"),
        ("md user:1 G B\r\n", "hard user:1", "HD|"),
        ("ma user:1 G\r\n", "hard user:1", "HD|"),
        ("set user:1 0 0 1\r\nx\r\n", "hard user:1", "STORED|"),
        ("ms user:1 1\r\nx\r\n", "hard user:1", "HD|"),
        ("delete user:1\r\n", "hard user:1", "DELETED|"),
        ("delete user:1\r\n", "hard user:1", "NOT_FOUND|"),
        ("md user:1\r\n", "hard user:1", "NF|"),
    ] {
        w.send(a, command);
        assert_eq!(log.take_lines(), [line], "{command}");
        assert_eq!((w.replies(a).as_str(), w.waiting(a)), ("", 1), "{command}");
        let waiters = log.take();
        w.tell_bumps(waiters, true);
        assert_eq!(w.replies(a), reply, "{command}");
    }
    for command in ["incr @tag:user:1 1\r\n", "get @bump:user:1\r\n", "get other @bump:user:1\r\n"] {
        w.send(a, command);
        assert_eq!(log.take_lines(), ["hard user:1"], "{command}");
        assert_eq!(w.waiting(a), 1, "{command}");
        let waiters = log.take();
        w.tell_bumps(waiters, false);
        assert_eq!(w.replies(a), NOT_CONFIRMED, "{command}");
    }
    w.send(a, "get @flush:60\r\n");
    assert_eq!(log.take_lines(), ["flush 60"]);
    w.pass(400);
    assert_eq!(w.replies(a), NOT_CONFIRMED, "its time is up");
    w.expect(a, "get @nodes\r\n", "VALUE @nodes 0 2|[]|END|");
}

#[test]
fn what_is_not_answered_does_not_wait() {
    let (mut w, log) = world();
    let a = w.connect();
    for command in [
        "delete @tag:user:1 noreply\r\n",
        "md user:1 G q\r\n",
        "set user:1 0 0 1 noreply\r\nx\r\n",
        "ms user:1 1 q\r\nx\r\n",
        "delete user:1 noreply\r\n",
    ] {
        w.send(a, command);
        assert_eq!(log.take_lines(), ["hard user:1"], "{command}");
        assert_eq!((w.replies(a).as_str(), w.waiting(a)), ("", 0), "{command}");
    }
    // Other commands leave nothing.
    w.expect(a, "set page:1 0 0 1\r\nx\r\n", "STORED|");
    w.expect(a, "delete page:1\r\n", "DELETED|");
    assert!(log.take_lines().is_empty());
}

#[test]
fn it_is_obeyed_here_before_anything_is_known_of_it() {
    let (mut w, log) = world();
    let (a, b) = (w.connect(), w.connect());
    for is_lost in [false, true] {
        log.is_lost.store(is_lost, Relaxed);
        w.ask(a, "get page:1\r\n");
        w.expect(a, "set page:1 0 0 1\r\nx\r\n", "STORED|");
        w.expect(b, "get page:1\r\n", "VALUE page:1 0 1|x|END|");
        w.send(a, "delete @tag:user:1\r\n");
        assert_eq!(w.replies(a), if is_lost { NOT_CONFIRMED } else { "" });
        assert!(!w.ask(b, "get page:1\r\n").contains("VALUE"));
        w.expect(b, "set page:1 0 0 1\r\ny\r\n", "STORED|");
        w.pass(400);
        w.replies(a);
        w.expect(a, "delete @tag:user:1\r\n", if is_lost { NOT_CONFIRMED } else { "" });
        w.pass(400);
        w.replies(a);
    }
}

#[test]
fn replies_keep_their_order_and_a_client_that_sends_no_more_is_answered() {
    let (mut w, log) = world();
    let a = w.connect();
    w.send(a, "delete @tag:user:1\r\nset other 0 0 1\r\nx\r\ndelete @tag:user:2\r\nget none\r\n");
    assert_eq!((w.replies(a).as_str(), w.waiting(a)), ("", 2));
    let mut waiters = log.take();
    let second = waiters.split_off(1);
    w.tell_bumps(second, true);
    assert_eq!(w.replies(a), "", "the first is not confirmed yet");
    w.release(a);
    assert_eq!(w.replies(a), "", "it has little time anyway");
    w.tell_bumps(waiters, true);
    assert_eq!(w.replies(a), "DELETED|STORED|DELETED|END|");
}
