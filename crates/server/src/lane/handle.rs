//! A lane, as other threads see it: its numbers, and its inbox.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex};

use cattlegrid_engine::{Counters, RunningCall, Wake};
use cattlegrid_loader::Finished;

use crate::connection::info::ConnectionInfo;
use crate::hot::Hot;
use crate::latency::Latency;
use crate::poller::Waker;

/// A lane as other threads see it.
pub(crate) struct LaneHandle {
    pub(crate) counters: Counters,
    /// How long its requests take.
    pub(crate) latency: Latency,
    /// Which keys it is asked for.
    pub(crate) hot: Hot,
    pub(crate) waker: Waker,
    /// Number of the control thread's last question whether it lives, and of the last one that it has
    /// answered.
    asked: AtomicU32,
    answered: AtomicU32,
    /// Connections that it serves, with those on their way to it.
    pub(crate) connections: AtomicUsize,
    inbox: Mutex<Vec<Message>>,
}

/// What a lane is told.
pub(crate) enum Message {
    /// A new connection.
    Serve(Arc<ConnectionInfo>),
    /// A watcher of yours has lines.
    Lines(u64),
    /// Requests of connections of yours need not wait any more.
    Wakes(Vec<Wake>),
    /// Calls of objects whose home you are.
    #[expect(clippy::vec_box, reason = "as the engine hands them out")]
    Calls(Vec<Box<RunningCall>>),
    /// Jobs of loaders that you have ordered have ended.
    Loaded(Vec<Finished>),
    /// An upload of a connection of yours gives way to another.
    GiveWay {
        /// The connection.
        token: u64,
        /// The upload, if the connection still has it.
        upload: u64,
    },
    /// The reader of the dump of a connection of yours takes nothing.
    EndDump(u64),
    /// There is more unsent output than may be, and most of it may be yours.
    MakeRoom,
    /// Free memory of your heap goes back to the system.
    ReturnHeap,
    /// Finish what was received, send what waits, leave.
    Drain,
    /// What users may do has changed.
    Rights,
    /// Leave.
    Stop,
}

impl LaneHandle {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            counters: Counters::default(),
            latency: Latency::default(),
            hot: Hot::default(),
            waker: Waker::new()?,
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            connections: AtomicUsize::new(0),
            inbox: Mutex::default(),
        })
    }

    /// Asks the lane whether it lives.
    pub(crate) fn ask(&self, question: u32) {
        self.asked.store(question, Relaxed);
        self.waker.wake();
    }

    /// The lane, when it was woken: it lives.
    pub(crate) fn answer(&self) {
        self.answered.store(self.asked.load(Relaxed), Relaxed);
    }

    pub(crate) fn has_answered(&self, question: u32) -> bool {
        self.answered.load(Relaxed) == question
    }

    /// Leaves a message.
    pub(crate) fn tell(&self, message: Message) {
        self.push(|inbox| inbox.push(message));
    }

    /// Leaves the end of a job, in one message with those that wait there last.
    pub(crate) fn tell_finished(&self, finished: Finished) {
        self.push(|inbox| match inbox.last_mut() {
            Some(Message::Loaded(others)) => others.push(finished),
            _ => inbox.push(Message::Loaded(vec![finished])),
        });
    }

    /// The first message wakes the lane, and those that come until it takes them need not:
    ///
    /// 1. A leaves a message in the empty inbox and wakes the lane, both under the lock. 2. B finds the inbox
    ///    used, so a wake-up stands. 3. The lane takes the wake-up back, then the lock, and has both
    ///    messages.
    ///
    /// 1. The lane takes a wake-up back. 2. B finds the message of A and does not wake. 3. The lane takes the
    ///    lock and has both. It never sleeps between the two.
    fn push(&self, add: impl FnOnce(&mut Vec<Message>)) {
        let mut inbox = self.inbox.lock().expect("nobody panics with it held");
        let is_first = inbox.is_empty();
        add(&mut inbox);
        if is_first {
            // Under the lock: a thread that finds a message here may rely on the wake-up.
            self.waker.wake();
        }
    }

    /// Takes all messages. Called by the lane alone, after a wake-up.
    pub(crate) fn take_messages(&self) -> Vec<Message> {
        self.waker.reset();
        std::mem::take(&mut *self.inbox.lock().expect("nobody panics with it held"))
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// A lane that sleeps whenever nothing wakes it gets all messages of many threads.
    #[test]
    fn one_wake_up_for_many_messages_loses_none() {
        const THREADS: u64 = 4;
        const EACH: u64 = 20_000;
        let lane = LaneHandle::new().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let lane = &lane;
                scope.spawn(move || {
                    for number in 0..EACH {
                        lane.tell(Message::EndDump(thread * EACH + number));
                    }
                });
            }
            let (mut seen, mut wakes) = (vec![false; (THREADS * EACH) as usize], 0_u64);
            let mut left = seen.len();
            while left > 0 {
                let mut fds = [PollFd::new(&lane.waker, PollFlags::IN)];
                let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
                assert_eq!(poll(&mut fds, Some(&patience)).unwrap(), 1, "{left} messages without a wake-up");
                wakes += 1;
                for message in lane.take_messages() {
                    let Message::EndDump(number) = message else { panic!("another message") };
                    assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} came twice");
                    left -= 1;
                }
            }
            assert!(wakes <= THREADS * EACH);
        });
        assert!(lane.take_messages().is_empty());
        let mut fds = [PollFd::new(&lane.waker, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())).unwrap(), 0, "nothing wakes an empty lane");
    }
}
