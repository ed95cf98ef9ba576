//! The arguments of a worker's functions: a job, or the context of `init`.

use std::time::Instant;

use cattlegrid_panic::{Panic, guarded};

use crate::frame::{FLAG_MORE, HEADER_LEN, Kind, put_frame};
use crate::link::{Link, LinkState};
use crate::list::{List, list_len, put_list, put_part, put_varint};
use crate::message::{ErrorBody, JobBody, head};
use crate::outbox::Outbox;

/// A job in a synchronous worker, alone or in a batch. Borrowed for the duration of the call.
#[derive(Debug)]
pub struct Job<'a> {
    pub(crate) id: u64,
    pub(crate) attempt: u32,
    pub(crate) deadline_ms: u32,
    pub(crate) args: List<'a>,
    /// The error of a message that could not be sent: the job's outcome, whatever the function returns.
    pub(crate) fault: Option<JobError>,
    /// Shared with the other jobs of the batch.
    pub(crate) link: &'a LinkState,
}

impl<'a> Job<'a> {
    pub(crate) fn new(id: u64, body: JobBody<'a>, link: &'a LinkState) -> Self {
        let JobBody { deadline_ms, attempt, args } = body;
        Self { id, attempt, deadline_ms, args, fault: None, link }
    }

    /// The arguments.
    pub fn args(&self) -> List<'a> {
        self.args
    }

    /// Argument `index`, or no bytes when there are fewer.
    pub fn arg(&self, index: usize) -> &'a [u8] {
        self.args.get(index).unwrap_or_default()
    }

    /// 0 at first, then 1 for every retry after a lost worker.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the caller stops waiting; `None` for no limit. Counted from the arrival at this worker.
    pub fn deadline(&self) -> Option<Instant> {
        self.link.lock().deadline(self.deadline_ms)
    }

    /// Whether the caller has gone: timed out, cancelled, or the parent died.
    ///
    /// Each call takes one `poll(2)`, so call it every few milliseconds of work rather than in the innermost
    /// loop. A job that stops early returns any error; it reaches no caller.
    pub fn cancelled(&mut self) -> bool {
        self.link.lock().is_cancelled(self.id)
    }

    /// Sends an event that names this job. Events and results of a worker arrive in order.
    ///
    /// An event that is longer than the pool's `max_frame` is not sent; the job ends with an error that says
    /// so.
    pub fn event<P: AsRef<[u8]>>(&mut self, parts: &[P]) {
        if self.fits("error", "the event", list_len(parts)) {
            send_now(&self.link.outbox().0, Kind::Event, 0, self.id, |out| put_list(out, parts));
        }
    }

    /// Reports to the caller how far the job is; the limit is that of [`Job::event`].
    pub fn progress(&mut self, how_far: &[u8]) {
        if self.fits("error", "the progress", how_far.len()) {
            let outbox = self.link.outbox().0;
            send_now(&outbox, Kind::Progress, 0, self.id, |out| out.extend_from_slice(how_far));
        }
    }

    /// Sends a part of the reply; the list that the function returns is appended to it.
    ///
    /// For replies longer than a frame. The parent collects up to its `max_reply`. After a part that is
    /// longer than the pool's `max_frame` nothing is sent, and the job ends as too large.
    pub fn chunk<P: AsRef<[u8]>>(&mut self, parts: &[P]) {
        if self.fits("too_large", "a part of the reply", list_len(parts)) && self.fault.is_none() {
            send_now(&self.link.outbox().0, Kind::Result, FLAG_MORE, self.id, |out| {
                put_list(out, parts);
            });
        }
    }

    /// Whether `what`, `len` bytes, fits into a frame; if not, the job will end with that error.
    fn fits(&mut self, code: &str, what: &str, len: usize) -> bool {
        match check_len(code, what, len, self.link.lock().max_frame) {
            Ok(()) => true,
            Err(fault) => {
                // The first one counts.
                self.fault.get_or_insert(fault);
                false
            }
        }
    }

    /// Writes a line to the pool's log. A text over 16 KiB, or over the pool's `max_frame`, is cut.
    pub fn log(&mut self, level: Level, text: &str) {
        let (outbox, max_frame) = self.link.outbox();
        log(&outbox, max_frame, level, text);
    }

    /// Asks to be retired after the jobs that have already arrived. Calling it again changes nothing.
    pub fn retire(&mut self) {
        self.link.lock().leave();
    }
}

/// The argument of `init`, which runs once per worker, before its first job.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) config: &'a [u8],
    /// The error of a message that could not be sent: the start fails.
    pub(crate) fault: Option<JobError>,
    pub(crate) link: &'a mut Link,
}

impl<'a> Context<'a> {
    /// The bytes given to `Builder::init`.
    pub fn config(&self) -> &'a [u8] {
        self.config
    }

    /// Number of this worker, counted from 1, never used twice in a pool.
    pub fn worker(&self) -> u64 {
        self.link.worker
    }

    /// Generation of the program, counted from 1.
    pub fn generation(&self) -> u32 {
        self.link.generation
    }

    /// Sends an event about this worker. An event that is longer than the pool's `max_frame` makes the start
    /// fail.
    pub fn event<P: AsRef<[u8]>>(&mut self, parts: &[P]) {
        if let Err(fault) = check_len("error", "the event", list_len(parts), self.link.max_frame) {
            self.fault.get_or_insert(fault);
            return;
        }
        send_now(&self.link.outbox, Kind::Event, 0, 0, |out| put_list(out, parts));
    }

    /// Asks to be retired before the first job. That is a failed start: a program that always does so does no
    /// job.
    pub fn retire(&mut self) {
        self.link.leave();
    }
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Level {
    /// Something is broken.
    Error = 1,
    /// Something is odd.
    Warn = 2,
    /// Good to know.
    Info = 3,
    /// For developers.
    Debug = 4,
}

/// Why a job failed, as the caller sees it. Any [`std::error::Error`] becomes one with code `error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobError {
    pub(crate) body: ErrorBody,
}

impl JobError {
    /// An error with a code that programs compare and a message for people.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        let (code, message) = (code.into(), message.into());
        Self { body: ErrorBody { code, message, detail: String::new(), retryable: false } }
    }

    /// Adds detail, such as a backtrace.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.body.detail = detail.into();
        self
    }

    /// Says that trying again may help.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.body.retryable = true;
        self
    }
}

impl<E: std::error::Error> From<E> for JobError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        Self::new("error", message)
    }
}

/// A value a job function can return: the parts of the reply.
pub trait Reply {
    /// Appends the parts as a list, and nothing else. A panic is the outcome of the job.
    fn put(&self, out: &mut Vec<u8>);
}

impl Reply for () {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(0);
    }
}

macro_rules! one_part {
    ($($type:ty),*) => {$(
        impl Reply for $type {
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                put_varint(out, 1);
                put_part(out, self.as_ref());
            }
        }
    )*};
}

one_part!(Vec<u8>, String, &'static str, &'static [u8], Box<[u8]>);

impl Reply for Vec<Vec<u8>> {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(out, self);
    }
}

impl<P: AsRef<[u8]>, const N: usize> Reply for [P; N] {
    fn put(&self, out: &mut Vec<u8>) {
        put_list(out, self);
    }
}

/// Appends the reply or error of job `id`.
#[inline]
pub(crate) fn put_outcome<R: Reply>(
    out: &mut Vec<u8>,
    id: u64,
    max_frame: u32,
    outcome: &Result<R, JobError>,
) {
    let start = out.len();
    match outcome {
        Ok(reply) => {
            if let Err(panic) = guarded(|| put_frame(out, Kind::Result, 0, id, |out| reply.put(out))) {
                out.truncate(start);
                panic_error(&panic).body.put_within(out, id, max_frame);
            }
        }
        Err(error) => error.body.put_within(out, id, max_frame),
    }
    let len = out.len() - start - HEADER_LEN;
    if len > max_frame as usize {
        out.truncate(start);
        let message = format!("the reply has {len} bytes, the limit is {max_frame}; send it in chunks");
        JobError::new("too_large", message).body.put_within(out, id, max_frame);
    }
}

/// # Errors
/// When `what` has more than `max_frame` bytes: the pool would kill the worker for it.
pub(crate) fn check_len(code: &str, what: &str, len: usize, max_frame: u32) -> Result<(), JobError> {
    if len <= max_frame as usize {
        return Ok(());
    }
    Err(JobError::new(code, format!("{what} has {len} bytes, the limit is {max_frame}")))
}

/// Appends a frame and sends it with everything before it.
pub(crate) fn send_now(outbox: &Outbox, kind: Kind, flags: u8, id: u64, body: impl FnOnce(&mut Vec<u8>)) {
    outbox.push(|out| put_frame(out, kind, flags, id, body));
    outbox.flush();
}

/// Sends a LOG frame; texts over 16 KiB, or over `max_frame`, are cut.
pub(crate) fn log(outbox: &Outbox, max_frame: u32, level: Level, text: &str) {
    let text = head(text, (max_frame as usize).saturating_sub(1).min(16 << 10));
    send_now(outbox, Kind::Log, 0, 0, |out| {
        out.push(level as u8);
        out.extend_from_slice(text.as_bytes());
    });
}

/// A panic as an error for the caller of the job.
pub(crate) fn panic_error(panic: &Panic) -> JobError {
    JobError::new("panic", panic.text().unwrap_or("panic without a text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::take_frame;

    #[test]
    fn a_reply_beyond_the_limit_becomes_an_error() {
        let mut out = b"before".to_vec();
        put_outcome(&mut out, 3, 100, &Ok::<_, JobError>(vec![0_u8; 99]));
        let (header, body, _) = take_frame(&out[6..], 1000).unwrap().unwrap();
        assert_eq!((header.kind, header.id), (Kind::Error, 3));
        assert_eq!(ErrorBody::parse(header.flags, body).unwrap().code, "too_large");
        out.truncate(6);
        put_outcome(&mut out, 3, 100, &Ok::<_, JobError>(vec![0_u8; 98]));
        assert_eq!(take_frame(&out[6..], 1000).unwrap().unwrap().0.kind, Kind::Result);
    }

    #[test]
    fn a_job_may_be_handed_to_another_thread() {
        fn assert_send<T: Send>() {}
        assert_send::<Job<'_>>();
    }

    struct Panics;

    impl Reply for Panics {
        fn put(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(b"half of it");
            panic!("in a reply, as meant");
        }
    }

    #[test]
    fn a_reply_that_panics_becomes_an_error() {
        let mut out = b"before".to_vec();
        put_outcome(&mut out, 3, 100, &Ok::<_, JobError>(Panics));
        let (header, body, _) = take_frame(&out[6..], 1000).unwrap().unwrap();
        assert_eq!((header.kind, header.id), (Kind::Error, 3));
        let error = ErrorBody::parse(header.flags, body).unwrap();
        assert_eq!((&*error.code, &*error.message), ("panic", "in a reply, as meant"));
        assert_eq!(out.len(), 6 + HEADER_LEN + body.len(), "nothing of the reply is left");
    }

    #[test]
    fn an_error_tells_its_causes_once() {
        let io = std::io::Error::other("disk on fire");
        let error = JobError::from(io).retryable().detail("x");
        assert_eq!(error.body.message, "disk on fire");
        assert_eq!(error.body.code, "error");
        assert!(error.body.retryable);
    }
}
