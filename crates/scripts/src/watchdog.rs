//! The time limit of calls: a thread that checks all calls of the process, and sets the interrupt of a VM
//! whose call has exceeded the limit.
//!
//! ```text
//!   call:      running = 7 ... method ... running = 0          no system call, unless the watchdog sleeps
//!   watchdog:  at each half of the shortest limit, and when a call that it has seen may exceed its own:
//!              if such a call still runs after its limit, over = 7, and the VM's interrupt is set
//!   interrupt: over is the running call: an error, at each safepoint until the call has ended
//! ```
//! The limit is on the processor time of the thread that runs the call: on a busy machine, a call that waits
//! for the processor does not exceed it. The watchdog reads the thread's clock, from when it first saw the
//! call. After a second without calls it sleeps. [`rest`] ends it, for a process that is about to fork; the
//! next call starts it again.
//!
//! # Invariants
//! * An interrupt ends only the call that was found to exceed its limit.
//! * The watchdog accesses a VM only under its slot's lock, which the VM's owner takes before the VM is
//!   dropped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;

use crate::raw_call::Interrupt;

/// The shortest and the longest time between two checks.
const TICK: (Duration, Duration) = (Duration::from_micros(250), Duration::from_millis(50));
/// The time without calls after which the watchdog sleeps.
const IDLE: Duration = Duration::from_secs(1);

/// A VM in the list of the watchdog.
#[derive(Debug)]
pub(crate) struct VmSlot {
    /// The number of the running call, from 1; 0: none.
    running: AtomicU64,
    /// The number of the call that was found to exceed its limit.
    over: AtomicU64,
    limit: Duration,
    /// The processor clock of the thread that has the VM.
    clock: ClockId,
    /// None: the VM was dropped.
    interrupt: Mutex<Option<Interrupt>>,
}

impl VmSlot {
    /// The slot of a VM of this thread.
    pub(crate) fn new(interrupt: Interrupt, limit: Duration) -> Arc<Self> {
        let slot = Arc::new(Self {
            running: AtomicU64::new(0),
            over: AtomicU64::new(0),
            limit,
            clock: clock_of_this_thread(),
            interrupt: Mutex::new(Some(interrupt)),
        });
        WATCHDOG.slots().push(Arc::downgrade(&slot));
        WATCHDOG.look_at_once();
        slot
    }

    /// Notes that a call begins.
    #[inline]
    pub(crate) fn begin(&self, number: u64) {
        // This is ordered with the watchdog's store before it sleeps: either it sees the call, or this sees
        // that it sleeps.
        self.running.swap(number, Ordering::SeqCst);
        if !WATCHDOG.is_awake.load(Ordering::SeqCst) {
            WATCHDOG.wake();
        }
    }

    /// Notes that the call has ended; true: it had exceeded its limit.
    #[inline]
    pub(crate) fn end(&self) -> bool {
        let number = self.running.load(Ordering::Relaxed);
        self.running.store(0, Ordering::Release);
        self.over.load(Ordering::Acquire) == number
    }

    /// Ends the running call as if it had exceeded its limit.
    pub(crate) fn stop(&self) {
        self.over.store(self.running.load(Ordering::Relaxed), Ordering::Release);
        self.set_interrupt();
    }

    /// Whether the running call has exceeded its limit.
    pub(crate) fn is_over(&self) -> bool {
        let number = self.running.load(Ordering::Relaxed);
        number != 0 && self.over.load(Ordering::Acquire) == number
    }

    /// Notes that the VM is about to be dropped.
    pub(crate) fn close(&self) {
        *self.interrupt.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn set_interrupt(&self) {
        if let Some(interrupt) = &*self.interrupt.lock().unwrap_or_else(PoisonError::into_inner) {
            interrupt.set();
        }
    }

    /// The processor time of the thread; None: the thread has ended.
    fn used(&self) -> Option<Duration> {
        clock_gettime(self.clock).ok().map(Duration::from)
    }
}

/// The processor clock of this thread. On Linux its id is the thread's number, inverted, above three bits for
/// the kind of clock.
fn clock_of_this_thread() -> ClockId {
    const OF_A_THREAD: i32 = 0b110;
    ClockId::from_raw(!gettid().as_raw() << 3 | OF_A_THREAD)
}

struct Watchdog {
    is_awake: AtomicBool,
    slots: Mutex<Vec<Weak<VmSlot>>>,
    /// Whether the thread must end.
    must_rest: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

static WATCHDOG: Watchdog = Watchdog {
    is_awake: AtomicBool::new(false),
    slots: Mutex::new(Vec::new()),
    must_rest: AtomicBool::new(false),
    thread: Mutex::new(None),
};

/// Ends the watchdog's thread. No call may run meanwhile.
pub(crate) fn rest() {
    let mut thread = WATCHDOG.thread.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(running) = thread.take() else { return };
    WATCHDOG.must_rest.store(true, Ordering::SeqCst);
    running.thread().unpark();
    running.join().expect("it does not panic");
    WATCHDOG.must_rest.store(false, Ordering::SeqCst);
    WATCHDOG.is_awake.store(false, Ordering::SeqCst);
}

/// The watchdog's knowledge of a slot.
struct Observation {
    slot: Weak<VmSlot>,
    /// The call that was seen last.
    number: u64,
    /// The thread's processor time when this call was first seen.
    since: Duration,
}

impl Watchdog {
    fn slots(&self) -> std::sync::MutexGuard<'_, Vec<Weak<VmSlot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a wait that may be too long for a new slot.
    fn look_at_once(&self) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.thread().unpark();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.is_awake.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread.get_or_insert_with(|| {
            let run = std::thread::Builder::new().name("script time".to_owned()).spawn(|| WATCHDOG.run());
            run.expect("a thread can be started")
        });
        thread.thread().unpark();
    }

    fn run(&self) {
        let (mut seen, mut idle): (Vec<Observation>, Duration) = (Vec::new(), Duration::ZERO);
        loop {
            if self.must_rest.load(Ordering::SeqCst) {
                // The slots are kept for the thread that follows.
                self.slots().extend(seen.into_iter().map(|one| one.slot));
                return;
            }
            seen.extend(self.slots().drain(..).map(|slot| Observation {
                slot,
                number: 0,
                since: Duration::ZERO,
            }));
            let (mut wait, mut runs) = (TICK.1, false);
            seen.retain_mut(|one| {
                let Some(slot) = one.slot.upgrade() else { return false };
                let (has_run, until) = one.look(&slot);
                wait = wait.min(until);
                runs |= has_run;
                true
            });
            let wait = wait.max(TICK.0);
            idle = if runs { Duration::ZERO } else { idle + wait };
            if idle < IDLE {
                std::thread::park_timeout(wait);
                continue;
            }
            self.is_awake.store(false, Ordering::SeqCst);
            let is_running = |slot: &Weak<VmSlot>| {
                slot.upgrade().is_some_and(|slot| slot.running.load(Ordering::SeqCst) != 0)
            };
            let runs = seen.iter().any(|one| is_running(&one.slot)) || self.slots().iter().any(is_running);
            if !runs || self.is_awake.swap(true, Ordering::SeqCst) {
                while !self.is_awake.load(Ordering::SeqCst) && !self.must_rest.load(Ordering::SeqCst) {
                    std::thread::park();
                }
            }
            idle = Duration::ZERO;
        }
    }
}

impl Observation {
    /// Whether a call has run since the last check, and when to check again. A call that was seen for the
    /// first time is checked once more before it can exceed the limit, since most calls have ended by then.
    fn look(&mut self, slot: &VmSlot) -> (bool, Duration) {
        let usual = slot.limit / 2;
        let number = slot.running.load(Ordering::SeqCst);
        if number == 0 {
            let before = std::mem::replace(&mut self.number, 0);
            return (before != 0, usual);
        }
        let Some(used) = slot.used() else { return (false, usual) };
        if number != self.number {
            (self.number, self.since) = (number, used);
            return (true, usual);
        }
        let left = slot.limit.saturating_sub(used.saturating_sub(self.since));
        if left > Duration::ZERO {
            return (true, left.min(usual));
        }
        // This is stored at each check, since the handler removes an interrupt that was meant for an earlier
        // call.
        slot.over.store(number, Ordering::Release);
        slot.set_interrupt();
        (true, slot.limit / 4)
    }
}
