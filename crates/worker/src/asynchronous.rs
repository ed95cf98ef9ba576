//! The loop of an asynchronous worker: up to `concurrency` jobs at a time on one thread.
//!
//! A reader thread blocks on the socket and hands frames over; the main thread polls the jobs' futures
//! on a small executor of its own. Futures of a runtime such as tokio work when the job function runs
//! inside that runtime's context (`Runtime::enter` before `serve_async`, with the runtime's own threads
//! doing the I/O); start it in `init`, after the fork.
//!
//! # Invariants
//! * Jobs begin in order of arrival; at most `concurrency` are in progress.
//! * No frame of a job follows its outcome: `ended` is set and read with the outbox locked.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use cattlegrid_panic::guarded;

use crate::frame::{FLAG_MORE, HEADER_LEN, Header, Kind, put_frame, take_frame};
use crate::job::{JobError, Level, Reply, check_len, log, panic_error, put_outcome, send_now};
use crate::link::{ClaimTracker, Link, now};
use crate::list::{List, list_len, put_list};
use crate::message::JobBody;
use crate::outbox::Outbox;

/// A job in an asynchronous worker. Owns its arguments.
#[derive(Debug)]
pub struct AsyncJob {
    id: u64,
    attempt: u32,
    deadline: Option<Instant>,
    body: Vec<u8>,
    flags: Arc<JobFlags>,
    outbox: Arc<Outbox>,
    max_frame: u32,
    leaving: Arc<AtomicBool>,
}

/// State of a job that its handle, the loop and the reader share.
#[derive(Debug, Default)]
struct JobFlags {
    cancelled: AtomicBool,
    /// The job's outcome is in the outbox; written with the outbox locked.
    ended: AtomicBool,
    /// The error of a message that could not be sent: the job's outcome, whatever its future returns.
    fault: OnceLock<JobError>,
}

impl AsyncJob {
    /// The arguments.
    pub fn args(&self) -> List<'_> {
        JobBody::parse(&self.body).map_or(List::EMPTY, |body| body.args)
    }

    /// Argument `index`, or no bytes when there are fewer.
    pub fn arg(&self, index: usize) -> &[u8] {
        self.args().get(index).unwrap_or_default()
    }

    /// 0 at first, then 1 for every retry after a lost worker.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the caller stops waiting; `None` for no limit. Counted from the arrival at this worker.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the caller has gone. Costs one atomic load; the future is also polled when it changes.
    pub fn cancelled(&self) -> bool {
        self.flags.cancelled.load(Ordering::Acquire)
    }

    /// Sends an event that names this job, or no job when this one has ended.
    ///
    /// An event that is longer than the pool's `max_frame` is not sent; the job ends with an error that says
    /// so.
    pub fn event<P: AsRef<[u8]>>(&self, parts: &[P]) {
        if !self.fits("error", "the event", list_len(parts)) {
            return;
        }
        self.outbox.push(|out| {
            let id = if self.flags.ended.load(Ordering::Relaxed) { 0 } else { self.id };
            put_frame(out, Kind::Event, 0, id, |out| put_list(out, parts));
        });
        self.outbox.flush();
    }

    /// Reports to the caller how far the job is; the limit is that of [`AsyncJob::event`]. Does nothing after
    /// the job's end.
    pub fn progress(&self, how_far: &[u8]) {
        if !self.fits("error", "the progress", how_far.len()) {
            return;
        }
        self.send(Kind::Progress, 0, |out| out.extend_from_slice(how_far));
    }

    /// Sends a part of the reply; the list that the future returns is appended to it. Does nothing after the
    /// job's end. After a part that is longer than the pool's `max_frame` nothing is sent, and the job ends
    /// as too large.
    pub fn chunk<P: AsRef<[u8]>>(&self, parts: &[P]) {
        if !self.fits("too_large", "a part of the reply", list_len(parts)) || self.flags.fault.get().is_some()
        {
            return;
        }
        self.send(Kind::Result, FLAG_MORE, |out| put_list(out, parts));
    }

    /// Whether `what`, `len` bytes, fits into a frame; if not, the job will end with that error.
    fn fits(&self, code: &str, what: &str, len: usize) -> bool {
        let fault = check_len(code, what, len, self.max_frame).err();
        // The first one counts.
        fault.map(|fault| self.flags.fault.set(fault).ok()).is_none()
    }

    /// Sends a frame of this job unless it has ended: a thread or a task may outlive its job.
    fn send(&self, kind: Kind, flags: u8, body: impl FnOnce(&mut Vec<u8>)) {
        self.outbox.push(|out| {
            if !self.flags.ended.load(Ordering::Relaxed) {
                put_frame(out, kind, flags, self.id, body);
            }
        });
        self.outbox.flush();
    }

    /// Writes a line to the pool's log. A text over 16 KiB, or over the pool's `max_frame`, is cut.
    pub fn log(&self, level: Level, text: &str) {
        log(&self.outbox, self.max_frame, level, text);
    }

    /// Asks to be retired after the jobs that have already arrived. Calling it again changes nothing.
    pub fn retire(&self) {
        if !self.leaving.swap(true, Ordering::AcqRel) {
            send_now(&self.outbox, Kind::Leave, 0, 0, |_| {});
        }
    }
}

/// Serves jobs until the parent retires this worker or goes away.
pub(crate) fn serve_async<R, F, Fut>(link: Link, concurrency: u32, work: F) -> !
where
    R: Reply + 'static,
    F: Fn(AsyncJob) -> Fut,
    Fut: Future<Output = Result<R, JobError>> + 'static,
{
    let leaving = Arc::new(AtomicBool::new(link.leaving));
    let (rx, ahead, outbox, claimed, max_frame) = link.into_parts();
    let mail = Arc::new(JobMail { state: Mutex::default(), main: std::thread::current() });
    let reader = Arc::clone(&mail);
    std::thread::Builder::new()
        .name("reader".into())
        .spawn(move || read_frames(&rx, ahead, &reader))
        .expect("one thread can be started");
    let mut worker = AsyncWorker {
        outbox,
        claimed,
        max_frame,
        leaving,
        mail,
        waiting: VecDeque::new(),
        running: HashMap::new(),
        retiring: false,
        concurrency: concurrency as usize,
        work,
    };
    loop {
        worker.turn();
    }
}

/// The mailbox of the main thread: frames from the reader, ids of futures to poll.
struct JobMail {
    state: Mutex<MailState>,
    main: Thread,
}

#[derive(Default)]
struct MailState {
    frames: VecDeque<(Header, Vec<u8>, Instant)>,
    woken: Vec<u64>,
}

impl JobMail {
    fn put(&self, fill: impl FnOnce(&mut MailState)) {
        fill(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.main.unpark();
    }
}

/// Wakes one job's future.
struct JobWaker {
    id: u64,
    mail: Arc<JobMail>,
}

impl Wake for JobWaker {
    fn wake(self: Arc<Self>) {
        let id = self.id;
        self.mail.put(|state| state.woken.push(id));
    }
}

struct JobTask<R> {
    future: Pin<Box<dyn Future<Output = Result<R, JobError>>>>,
    flags: Arc<JobFlags>,
    waker: Waker,
}

struct AsyncWorker<R, F> {
    outbox: Arc<Outbox>,
    claimed: ClaimTracker,
    max_frame: u32,
    leaving: Arc<AtomicBool>,
    mail: Arc<JobMail>,
    /// Jobs beyond `concurrency`, in order of arrival.
    waiting: VecDeque<(u64, Vec<u8>, Instant, Arc<JobFlags>)>,
    running: HashMap<u64, JobTask<R>>,
    retiring: bool,
    concurrency: usize,
    work: F,
}

impl<R, F, Fut> AsyncWorker<R, F>
where
    R: Reply + 'static,
    F: Fn(AsyncJob) -> Fut,
    Fut: Future<Output = Result<R, JobError>> + 'static,
{
    /// Takes the frames that have arrived, polls the futures that were woken, writes the outcomes; sleeps if
    /// there is nothing to do.
    fn turn(&mut self) {
        let (frames, woken) = {
            let mut state = self.mail.state.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::take(&mut state.frames), std::mem::take(&mut state.woken))
        };
        if frames.is_empty() && woken.is_empty() {
            self.outbox.flush();
            if self.retiring && self.running.is_empty() && self.waiting.is_empty() {
                std::process::exit(0);
            }
            std::thread::park();
            return;
        }
        for (header, body, received) in frames {
            self.take(header, body, received);
        }
        for id in woken {
            self.poll(id);
        }
        while self.running.len() < self.concurrency
            && let Some((id, body, received, flags)) = self.waiting.pop_front()
        {
            self.begin(id, body, received, flags);
        }
        self.outbox.flush();
    }

    fn take(&mut self, header: Header, body: Vec<u8>, received: Instant) {
        match header.kind {
            Kind::Job => self.waiting.push_back((header.id, body, received, Arc::default())),
            Kind::Cancel => {
                if let Some(job) = self.running.get(&header.id) {
                    job.flags.cancelled.store(true, Ordering::Release);
                    self.poll(header.id);
                } else if let Some(job) = self.waiting.iter().find(|job| job.0 == header.id) {
                    job.3.cancelled.store(true, Ordering::Release);
                }
            }
            Kind::Retire => self.retiring = true,
            Kind::Ping => self.outbox.push(|out| put_frame(out, Kind::Pong, 0, header.id, |_| {})),
            _ => std::process::exit(70),
        }
    }

    fn begin(&mut self, id: u64, body: Vec<u8>, received: Instant, flags: Arc<JobFlags>) {
        if !self.claimed.next() {
            return send_now(&self.outbox, Kind::Skipped, 0, id, |_| {});
        }
        let Some(JobBody { deadline_ms, attempt, .. }) = JobBody::parse(&body) else {
            std::process::exit(70)
        };
        if flags.cancelled.load(Ordering::Acquire) {
            let error = Err::<R, _>(JobError::new("cancelled", "cancelled before it began"));
            return self.finish(id, &flags, &error);
        }
        let deadline = (deadline_ms > 0).then(|| received + Duration::from_millis(deadline_ms.into()));
        let (outbox, leaving) = (Arc::clone(&self.outbox), Arc::clone(&self.leaving));
        let (max_frame, own) = (self.max_frame, Arc::clone(&flags));
        let job = AsyncJob { id, attempt, deadline, body, flags: own, outbox, max_frame, leaving };
        // What the function does before it returns its future is the job's as well.
        let future = match guarded(|| Box::pin((self.work)(job))) {
            Ok(future) => future,
            Err(panic) => return self.finish(id, &flags, &Err(panic_error(&panic))),
        };
        let waker = Waker::from(Arc::new(JobWaker { id, mail: Arc::clone(&self.mail) }));
        self.running.insert(id, JobTask { future, flags, waker });
        self.poll(id);
    }

    fn poll(&mut self, id: u64) {
        let Some(job) = self.running.get_mut(&id) else { return };
        let mut context = TaskContext::from_waker(&job.waker);
        let polled = guarded(|| job.future.as_mut().poll(&mut context));
        let outcome = match polled {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(outcome)) => outcome,
            Err(panic) => Err(panic_error(&panic)),
        };
        if let Some(JobTask { future, flags, .. }) = self.running.remove(&id) {
            // Destructors of the job's values; its outcome stands.
            guarded(|| drop(future)).ok();
            self.finish(id, &flags, &outcome);
        }
    }

    fn finish(&self, id: u64, flags: &JobFlags, outcome: &Result<R, JobError>) {
        let max_frame = self.max_frame;
        self.outbox.push(|out| {
            flags.ended.store(true, Ordering::Relaxed);
            match flags.fault.get() {
                Some(fault) => put_outcome(out, id, max_frame, &Err::<R, _>(fault.clone())),
                None => put_outcome(out, id, max_frame, outcome),
            }
        });
    }
}

/// The reader thread: frames until the parent closes, then the end of the process.
fn read_frames(rx: &std::os::fd::OwnedFd, mut buffer: Vec<u8>, mail: &JobMail) {
    loop {
        let mut frames = Vec::new();
        let mut used = 0;
        while let Ok(Some((header, body, _))) = take_frame(&buffer[used..], u32::MAX) {
            used += HEADER_LEN + body.len();
            frames.push((header, body.to_vec(), now()));
        }
        buffer.drain(..used);
        if !frames.is_empty() {
            mail.put(|state| state.frames.extend(frames));
        }
        buffer.reserve(64 << 10);
        match rustix::io::read(rx, rustix::buffer::spare_capacity(&mut buffer)) {
            Ok(count) if count > 0 => {}
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            // A worker does not outlive its parent.
            _ => std::process::exit(0),
        }
    }
}
