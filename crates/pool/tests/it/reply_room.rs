//! Replies of several pools in one room: nothing is lost, what has no room waits, and nothing waits for ever.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::common::*;
use cattlegrid_pool::{Args, Builder, Error, Launch, Outcome, Pool, Reply, ReplyRoom};
use rustix::process::Signal;

const KB: usize = 1_000;

fn start(builder: Builder) -> Pool {
    builder.spawn().wait().unwrap()
}

/// All of a room of 300 KB, as the reply of another pool.
fn full() -> (ReplyRoom, Pool, Reply) {
    let room = ReplyRoom::new(300 * KB);
    let other = start(quiet(template()).max(1).reply_room(&room));
    let kept = other.call(["big", "299900"]).wait().unwrap();
    assert!((299_900..=300 * KB).contains(&room.used()), "{}", room.used());
    (room, other, kept)
}

type Outcomes = Receiver<(usize, Outcome)>;

/// The outcomes of jobs in the order in which they come: promises would keep replies while an earlier one has
/// no room.
fn submit<A: Into<Args>>(pool: &Pool, jobs: impl IntoIterator<Item = A>) -> Outcomes {
    submit_to([pool], jobs)
}

/// The same; the first job goes to the first pool, the next one to the next.
fn submit_to<'a, A: Into<Args>>(
    pools: impl IntoIterator<Item = &'a Pool, IntoIter: Clone>,
    jobs: impl IntoIterator<Item = A>,
) -> Outcomes {
    let (sender, outcomes) = channel();
    for ((index, job), pool) in jobs.into_iter().enumerate().zip(pools.into_iter().cycle()) {
        let sender = sender.clone();
        pool.submit(job, move |outcome| drop(sender.send((index, outcome))));
    }
    outcomes
}

fn wait_for_one(pool: &Pool) {
    eventually("a worker waits", || pool.stats().reply_waits == 1);
}

#[test]
fn long_replies_of_two_pools_share_the_room() {
    let room = ReplyRoom::new(1_000 * KB);
    let pools = [template(), python("app")].map(|launch| start(quiet(launch).max(4).reply_room(&room)));
    let sizes: Vec<_> = (0..400).map(|n| n * 37 % 100 * 4 * KB).collect();
    let outcomes = submit_to(&pools, sizes.iter().map(|size| ["big".to_owned(), size.to_string()]));
    // Until the first is taken none leaves the room.
    eventually("a reply waits for room", || {
        pools.iter().map(|pool| pool.stats().reply_waits).sum::<u64>() > 0
    });
    for _ in &sizes {
        let (index, outcome) = outcomes.recv().unwrap();
        let reply = outcome.unwrap();
        assert_eq!(reply.part(0).len(), sizes[index]);
        let held = reply.room().unwrap().bytes();
        assert!((sizes[index]..sizes[index] + 16).contains(&held), "{held} of {}", sizes[index]);
    }
    assert_eq!(room.used(), 0);
    assert_eq!(pools.map(|pool| pool.stats().lost + pool.stats().killed), [0, 0]);
}

#[test]
fn long_replies_are_never_over_the_limit() {
    let room = ReplyRoom::new(1_000 * KB);
    let pool = start(quiet(template()).max(6).load(1).reply_room(&room));
    let outcomes = submit(&pool, (0..50).map(|_| ["big", "400000"]));
    for left in (0..50).rev() {
        eventually("two are read", || room.used() > 800 * KB || left == 0);
        assert!(room.used() <= room.max(), "{}", room.used());
        outcomes.recv().unwrap().1.unwrap();
    }
    assert_eq!(room.used(), 0);
}

#[test]
fn short_replies_do_not_wait() {
    let (room, _other, kept) = full();
    let pool = start(quiet(template()).max(2).load(1).reply_room(&room));
    let long = submit(&pool, [["big", "200000"]]);
    wait_for_one(&pool);
    for size in ["0", "1", "65000"] {
        assert_eq!(pool.call(["big", size]).wait().unwrap().text().len(), size.parse::<usize>().unwrap());
    }
    assert_eq!(pool.stats().reply_waits, 1);
    long.try_recv().unwrap_err();
    drop(kept);
    assert_eq!(long.recv().unwrap().1.unwrap().text().len(), 200_000);
    assert_eq!(room.used(), 0);
}

/// A reply that is longer than the room comes when it is alone.
#[test]
fn a_reply_that_is_longer_than_the_room_waits_until_it_is_alone() {
    let (room, _other, kept) = full();
    let pool = start(quiet(template()).max(1).reply_room(&room));
    let long = pool.call(["big", "5000000"]);
    wait_for_one(&pool);
    drop(kept);
    let long = long.wait().unwrap();
    assert!(room.used() > 5_000 * KB);
    drop(long);
    assert_eq!(room.used(), 0);
}

/// Parts of replies take room for the longest reply, and frames between them are read without waiting:
/// otherwise the room would never become free.
#[test]
fn replies_in_parts_that_are_mixed_end() {
    let room = ReplyRoom::new(1_000 * KB);
    let builder = quiet(python_async("tasks:parts", 4)).max(2).load(4).max_reply(900 * KB);
    let pool = start(builder.reply_room(&room));
    let parts = [&["100000"; 8][..], &["1000"; 300], &["200000"; 4], &["70000", "0", "70000"]];
    let jobs: Vec<_> = parts.iter().cycle().take(40).collect();
    let outcomes = submit(&pool, jobs.iter().map(|sizes| **sizes));
    for _ in &jobs {
        let (index, outcome) = outcomes.recv().unwrap();
        let (sizes, reply) = (jobs[index], outcome.unwrap());
        let bytes: usize = sizes.iter().map(|size| size.parse::<usize>().unwrap()).sum();
        assert_eq!(reply.parts().iter().map(<[u8]>::len).sum::<usize>(), bytes);
        assert!(reply.room().unwrap().bytes() <= bytes + 10 * sizes.len() + 10);
    }
    assert_eq!(room.used(), 0);
    // A reply that is too long gives its room back as well.
    let error = pool.call(&["100000"; 10][..]).wait().unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(pool.call(["10"]).wait().unwrap().part(0).len(), 10);
    eventually("its room is free", || room.used() == 0);
}

/// The reply is in the dead worker's socket, and would be lost with it.
#[test]
fn the_reply_of_a_dead_worker_is_read_over_the_limit() {
    for launch in [template(), exec(), python("app")] {
        let (room, _other, kept) = full();
        let pool = start(quiet(launch).max(1).reply_room(&room));
        let pid = number(&pool.call(["pid"]).wait().unwrap());
        let long = pool.call(["big", "100000"]);
        wait_for_one(&pool);
        // It has written all of it.
        eventually("it waits for a job", || matches!(state(pid), 'S'));
        pause(ms(50));
        kill(pid, Signal::KILL);
        let reply = long.wait().unwrap();
        assert_eq!(reply.text().len(), 100_000);
        assert!(room.used() > room.max());
        drop((kept, reply));
        assert_eq!(room.used(), 0);
    }
}

fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

/// A worker whose reply is not complete dies: the job is lost, the room is not.
#[test]
fn a_worker_that_dies_in_its_reply_gives_the_room_back() {
    let (room, _other, kept) = full();
    let pool = start(quiet(exec()).max(1).load(1).reply_room(&room));
    let pid = number(&pool.call(["pid"]).wait().unwrap());
    let long = pool.call(["big", "5000000"]);
    wait_for_one(&pool);
    kill(pid, Signal::KILL);
    assert!(matches!(long.wait().unwrap_err(), Error::WorkerLost { .. }));
    assert_eq!(room.used(), kept.room().unwrap().bytes());
    drop(kept);
    assert_eq!(pool.call(["big", "100000"]).wait().unwrap().text().len(), 100_000);
    assert_eq!(room.used(), 0);
}

/// The worker may have done the job in time: it is not its fault that nothing reads the reply.
#[test]
fn a_worker_that_waits_for_room_is_not_killed() {
    for load in [1, 4] {
        // Its reply has to come before its time is up: how long that takes is up to the machine.
        let mut times = [300, 3_000, 30_000].map(ms).into_iter();
        assert!(times.any(|time| a_worker_outlasts_its_job(load, time)), "its reply never came in time");
    }
}

/// Whether its reply waited for room before the time of its job was up; if so, it is the same worker after it.
fn a_worker_outlasts_its_job(load: usize, time: Duration) -> bool {
    let (room, _other, kept) = full();
    let builder = quiet(template()).max(1).load(load).kill_grace(ms(50)).ping(ms(100));
    let pool = start(builder.reply_room(&room));
    let timed = pool.job(["big", "1000000"]).timeout(time).call();
    eventually("it waits, or its time is up", || pool.stats().reply_waits + pool.stats().timeouts > 0);
    let (before, workers) = (pool.stats(), pool.workers().wait());
    if before.reply_waits != 1 || before.timeouts != 0 {
        return false;
    }
    assert!(matches!(timed.wait().unwrap_err(), Error::Timeout { started: true }));
    // It is never idle from here on: an idle worker that has no turn for the time of a ping is killed.
    let behind = pool.call(["pid"]);
    pause(ms(600));
    let stats = pool.stats();
    assert_eq!((stats.killed, stats.lost, stats.reply_waits), (before.killed, before.lost, 1));
    drop(kept);
    assert_eq!(number(&behind.wait().unwrap()), workers[0].pid);
    assert_eq!(room.used(), 0);
    true
}

/// A peer that has gone is told again and again, if it is asked for: the pool must not spin while it does not
/// read.
#[test]
fn a_closed_socket_that_is_not_read_costs_no_time() {
    let (room, _other, kept) = full();
    let pool = start(quiet(broken("long-eof")).max(1).reply_room(&room));
    let long = submit(&pool, [["anything"]]);
    wait_for_one(&pool);
    let before = used_time();
    pause(ms(500));
    let used = used_time().saturating_sub(before);
    assert!(used < ms(250), "{used:?}");
    long.try_recv().unwrap_err();
    drop(kept);
    assert_eq!(long.recv().unwrap().1.unwrap().part(0).len(), 100_000);
}

/// Processor time of this process.
fn used_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap()
}

/// How long it is, is known at its end.
#[test]
fn a_long_line_of_json_takes_room_as_it_arrives() {
    let room = ReplyRoom::new(1_000 * KB);
    let other = start(quiet(template()).max(1).reply_room(&room));
    let pool = start(quiet(with_python("long_lines.py")).max(1).max_frame(900_000).reply_room(&room));
    let kept = other.call(["big", "800000"]).wait().unwrap();
    assert_eq!(pool.call(["exact", "60000"]).wait().unwrap().text().len(), 60_000 - 13);
    assert_eq!(pool.stats().reply_waits, 0);
    let long = pool.call(["exact", "500000"]);
    wait_for_one(&pool);
    assert!((800 * KB..=1_000 * KB).contains(&room.used()), "{}", room.used());
    drop(kept);
    let long = long.wait().unwrap();
    assert!((499 * KB..501 * KB).contains(&room.used()), "{}", room.used());
    drop(long);
    // A line that is too long, of a reply or of something else, is not kept.
    for what in ["result", "event", "log", "part", "error"] {
        pool.call([what, "3000000"]).wait().ok();
        eventually("its room is free", || room.used() == 0);
    }
    assert_eq!((pool.stats().lost, pool.stats().protocol_errors), (0, 0));
}

/// A line without an end keeps no other line waiting: it has room only for the bytes that have arrived.
#[test]
fn a_line_of_json_without_an_end_holds_up_no_other() {
    let room = ReplyRoom::new(1_000 * KB);
    let other = start(quiet(template()).max(1).reply_room(&room));
    let lines = || start(quiet(with_python("long_lines.py")).max(1).max_frame(900_000).reply_room(&room));
    let (pool, fine) = (lines(), lines());
    let stuck = submit(&pool, [["exact", "200000", ""]]);
    eventually("most of it has arrived", || room.used() >= 200 * KB);
    assert!(room.used() <= 330 * KB, "{}", room.used());
    for _ in 0..10 {
        assert_eq!(other.call(["big", "600000"]).wait().unwrap().text().len(), 600_000);
        assert_eq!(fine.call(["exact", "400000"]).wait().unwrap().text().len(), 400_000 - 13);
    }
    assert_eq!([&pool, &fine, &other].map(|pool| pool.stats().reply_waits), [0; 3]);
    stuck.try_recv().unwrap_err();
    pool.shutdown_now().wait();
    eventually("its room is free", || room.used() == 0);
}

#[test]
fn lines_of_json_that_fill_the_room_end_one_after_the_other() {
    let room = ReplyRoom::new(500 * KB);
    let lines = quiet(with_python("long_lines.py")).max(6).load(1).max_frame(900_000);
    let pool = start(lines.reply_room(&room));
    let other = start(quiet(template()).max(2).load(1).reply_room(&room));
    let outcomes = submit(&pool, [["exact", "450000"]; 40]);
    let frames = submit(&other, [["big", "450000"]; 20]);
    // Both at once: a reply that is not taken keeps its room.
    let most = std::thread::scope(|scope| {
        let take = |outcomes: Outcomes, count, size| {
            let one = |_| {
                assert_eq!(outcomes.recv().unwrap().1.unwrap().text().len(), size);
                room.used()
            };
            (0..count).map(one).max().unwrap()
        };
        let frames = scope.spawn(move || take(frames, 20, 450_000));
        take(outcomes, 40, 450_000 - 13).max(frames.join().unwrap())
    });
    // One line or frame may be over the limit.
    assert!(most <= 500 * KB + 600 * KB, "{most}");
    assert!(pool.stats().reply_waits > 0);
    assert_eq!((room.used(), pool.stats().lost, pool.stats().killed), (0, 0, 0));
}

fn with_python(app: &str) -> Launch {
    let app = format!("{}/tests/apps/{app}", env!("CARGO_MANIFEST_DIR"));
    Launch::json_lines("python3", [app])
}

/// Other long messages take room while they are read.
#[test]
fn long_messages_that_are_no_replies_wait_as_well() {
    let (room, _other, mut kept) = full();
    let other = start(quiet(template()).max(1).reply_room(&room));
    for what in ["error", "progress", "event"] {
        let pool = start(quiet(template()).max(1).reply_room(&room).on_log(|_| {}));
        let long = pool.call(["long", what, "200000"]);
        wait_for_one(&pool);
        drop(kept);
        long.wait().ok();
        eventually("its room is free", || room.used() < 1_000);
        kept = other.call(["big", "299900"]).wait().unwrap();
        pool.shutdown().wait();
    }
}

/// Whether it ends when all is done, or at once.
#[test]
fn a_pool_ends_while_replies_wait() {
    for at_once in [false, true] {
        let (room, _other, kept) = full();
        let pool = start(quiet(template()).max(3).load(1).shutdown_grace(ms(200)).reply_room(&room));
        let outcomes = submit(&pool, [["big", "200000"]; 3]);
        eventually("all wait", || pool.stats().reply_waits == 3);
        let before = used_time();
        let _ended = if at_once {
            Some(pool.shutdown_now())
        } else {
            drop(pool);
            None
        };
        if !at_once {
            pause(ms(500));
            let used = used_time().saturating_sub(before);
            assert!(used < ms(250), "it waits without work: {used:?}");
            outcomes.try_recv().unwrap_err();
            assert_eq!(room.used(), kept.room().unwrap().bytes());
            drop(kept);
        }
        for _ in 0..3 {
            assert_eq!(outcomes.recv().unwrap().1.is_ok(), !at_once);
        }
        eventually("its room is free", || room.used() <= 300 * KB);
    }
}
