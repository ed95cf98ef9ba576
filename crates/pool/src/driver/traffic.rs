//! Bytes from workers: frames and what they mean for jobs and workers. Lines of JSON become frames in
//! `line_input.rs`.
//!
//! # Invariants
//! * Any bytes of a worker are handled without a panic; a worker that breaks the protocol is killed, and its
//!   jobs end with it.
//! * A worker is not read while an event of it has no room.
//! * One worker cannot keep the loop: a turn reads at most [`READS`] times from it.

use bytes::Bytes;
use cattlegrid_worker::frame::{FLAG_MORE, FrameError, HEADER_LEN, Header, Kind, START_MAX, VERSION};
use cattlegrid_worker::message::{ErrorBody, Hello};
use rustix::buffer::spare_capacity;

use crate::advice;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Event;
use crate::launch::LaunchMode;
use crate::payload::Reply;
use crate::worker::{WorkerProcess, WorkerState};

/// The body of a frame; `shared` when it need not be copied to be kept.
#[derive(Clone, Copy)]
pub(super) struct FrameBody<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) shared: Option<&'a Bytes>,
}

impl FrameBody<'_> {
    fn keep(&self) -> Bytes {
        self.shared.cloned().unwrap_or_else(|| Bytes::copy_from_slice(self.bytes))
    }
}

impl Driver {
    /// Reads from a worker and handles all complete frames. Returns whether more bytes may be waiting.
    pub(super) fn on_readable(&mut self, slot: usize) -> bool {
        for _ in 0..READS {
            let Some(worker) = self.fleet.get_mut(slot) else { return false };
            if worker.is_unread() {
                return false;
            }
            let Some(socket) = &worker.socket else { return false };
            let input = &mut worker.input;
            let missing = match Header::decode(input, u32::MAX) {
                Ok(Some(header)) if !worker.json => {
                    (HEADER_LEN + header.len as usize).saturating_sub(input.len())
                }
                _ => 0,
            };
            // The rest of a long frame exactly, so that it can be kept without copying.
            let long = missing > BUFFER;
            if long {
                input.reserve_exact(missing);
            } else {
                input.reserve(BUFFER);
            }
            let wanted = input.capacity() - input.len();
            match rustix::io::read(socket, spare_capacity(input)) {
                Ok(0) => {
                    self.fleet.on_closed(slot, &mut self.base);
                    return false;
                }
                Ok(count) => {
                    let number = worker.number;
                    self.process_input(slot);
                    let same = self.fleet.get(slot).is_some_and(|worker| worker.number == number);
                    if count < wanted || !same {
                        return false;
                    }
                    if long {
                        // Most likely nothing follows it; epoll says if something does.
                        return true;
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return false,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    self.fleet.on_closed(slot, &mut self.base);
                    return false;
                }
            }
        }
        true
    }

    /// Reads the bytes that a dead worker has left in its socket.
    pub(super) fn drain_socket(&mut self, slot: usize) {
        self.process_input(slot);
        // Bounded: a grandchild may go on writing to the socket.
        for _ in 0..64 {
            if !self.on_readable(slot) {
                return;
            }
        }
    }

    /// Handles all complete frames of a worker's input.
    pub(super) fn process_input(&mut self, slot: usize) {
        let Some(worker) = self.fleet.get_mut(slot) else { return };
        let (number, json, mut input) = (worker.number, worker.json, std::mem::take(&mut worker.input));
        let mut used = 0;
        if input.len() >= LONG && !json && !self.is_paused(slot, number) {
            match self.long_frame(slot, &mut input) {
                Ok(()) => {}
                Err(reason) => return self.break_off(slot, number, &reason),
            }
        }
        loop {
            let rest = &input[used..];
            if rest.is_empty() || self.is_paused(slot, number) {
                break;
            }
            let step = if json { self.next_line(slot, rest) } else { self.next_frame(slot, rest) };
            match step {
                Ok(Some(count)) => used += count,
                Ok(None) => break,
                Err(reason) => {
                    let printed = !json && self.fleet.get(slot).is_some_and(|worker| self.may_print(worker));
                    let words = printed.then(|| advice::of_frames(&input[used..]));
                    let reason = words.map_or(reason.clone(), |words| format!("{reason}; {words}"));
                    return self.break_off(slot, number, &reason);
                }
            }
        }
        input.drain(..used);
        if input.len() <= BUFFER && input.capacity() > 4 * BUFFER {
            input.shrink_to(BUFFER);
        }
        if let Some(worker) = self.fleet.get_mut(slot)
            && worker.number == number
        {
            debug_assert!(worker.input.is_empty(), "only this function reads frames");
            worker.input = input;
        }
    }

    /// Whether what a worker wrote may be what a program prints: it has not said HELLO, and its frames go to
    /// standard output.
    fn may_print(&self, worker: &WorkerProcess) -> bool {
        !worker.greeted && self.programs.launch_of(worker.generation).mode == LaunchMode::Stdio
    }

    /// Handles a long frame that is exactly what the input holds, and takes it out without copying it.
    fn long_frame(&mut self, slot: usize, input: &mut Vec<u8>) -> Result<(), String> {
        let Ok(Some(header)) = Header::decode(input, self.base.options().max_frame) else { return Ok(()) };
        let whole = input.len() == HEADER_LEN + header.len as usize;
        if !whole || header.kind != Kind::Result || !self.has_frame_room(slot, header) {
            return Ok(());
        }
        let body = Bytes::from(std::mem::take(input)).slice(HEADER_LEN..);
        self.on_frame(slot, header, FrameBody { bytes: &body, shared: Some(&body) })?;
        self.free_frame_room(slot);
        Ok(())
    }

    fn is_paused(&self, slot: usize, number: u64) -> bool {
        self.fleet.get(slot).is_none_or(|worker| worker.number != number || worker.is_unread())
    }

    /// Handles the frame at the start of `rest`; its length, or `None` if it is not complete.
    fn next_frame(&mut self, slot: usize, rest: &[u8]) -> Result<Option<usize>, String> {
        let starting = self.fleet.get(slot).is_some_and(|worker| worker.state == WorkerState::Starting);
        // A worker that has not read INIT does not know the limit.
        let max = if starting {
            self.base.options().max_frame.max(START_MAX)
        } else {
            self.base.options().max_frame
        };
        let Some(header) = Header::decode(rest, max).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        if !self.has_frame_room(slot, header) {
            return Ok(None);
        }
        let total = HEADER_LEN + header.len as usize;
        let Some(body) = rest.get(HEADER_LEN..total) else { return Ok(None) };
        if header.kind == Kind::Event && !self.has_event_room(slot) {
            return Ok(None);
        }
        self.on_frame(slot, header, FrameBody { bytes: body, shared: None })?;
        self.free_frame_room(slot);
        Ok(Some(total))
    }

    pub(super) fn on_frame(
        &mut self,
        slot: usize,
        header: Header,
        body: FrameBody<'_>,
    ) -> Result<(), String> {
        let Some(worker) = self.fleet.get_mut(slot) else { return Ok(()) };
        let malformed = || FrameError::Body(header.kind).to_string();
        if !worker.greeted && !matches!(header.kind, Kind::Hello | Kind::Error) {
            return Err("a frame before HELLO".into());
        }
        if worker.state.is_over() && matches!(header.kind, Kind::Hello | Kind::Ready) {
            // It was killed while it started; frames that it had sent before are not an offence.
            return Ok(());
        }
        let empty = matches!(header.kind, Kind::Ready | Kind::Leave | Kind::Pong | Kind::Skipped);
        if empty && !body.bytes.is_empty() {
            return Err(malformed());
        }
        if matches!(header.kind, Kind::Hello | Kind::Ready | Kind::Leave) && header.id != 0 {
            return Err(format!("{:?} with an id", header.kind));
        }
        let starting = worker.state == WorkerState::Starting;
        match header.kind {
            Kind::Result if header.flags & FLAG_MORE != 0 => return self.on_chunk(slot, header.id, body),
            Kind::Result => return self.on_result(slot, header.id, body),
            Kind::Error if header.id == 0 => {
                let error = ErrorBody::parse(header.flags, body.bytes).ok_or_else(malformed)?;
                let text = format!("{}: {}", error.code, error.message);
                worker.reason = Some(if starting { format!("init failed: {text}") } else { text });
                worker.log.add_to_tail(&error.detail);
                self.fleet.expect_end(slot, &mut self.base);
            }
            Kind::Error => {
                let error = ErrorBody::parse(header.flags, body.bytes).ok_or_else(malformed)?;
                return self.on_job_error(slot, header.id, error);
            }
            Kind::Event => return self.on_event(slot, header.id, body),
            Kind::Progress => self.on_progress(slot, header.id, body.bytes),
            Kind::Hello => return self.on_hello(slot, &Hello::parse(body.bytes).ok_or_else(malformed)?),
            Kind::Ready => return self.on_ready_frame(slot),
            Kind::Leave => {
                worker.asked_to_leave = true;
                if !starting {
                    self.fleet.retire(slot, &mut self.base);
                }
            }
            Kind::Skipped => return self.on_skipped(slot, header.id),
            Kind::Pong => {
                worker.pinged = false;
                worker.proof = None;
            }
            Kind::Log => {
                let (&level, text) = body.bytes.split_first().ok_or_else(malformed)?;
                self.base.log(worker.number, level, text);
            }
            Kind::Init | Kind::Job | Kind::Cancel | Kind::Retire | Kind::Ping => {
                return Err(format!("{:?}, which only a parent sends", header.kind));
            }
            other => return Err(format!("unexpected {other:?}")),
        }
        Ok(())
    }

    fn on_hello(&mut self, slot: usize, hello: &Hello) -> Result<(), String> {
        let Some(worker) = self.fleet.get_mut(slot) else { return Ok(()) };
        if hello.version != VERSION || worker.state != WorkerState::Starting || worker.greeted {
            return Err(format!("HELLO of version {}, or a second one", hello.version));
        }
        if hello.batches && !(1..=u32::from(u16::MAX)).contains(&hello.concurrency) {
            return Err(format!("HELLO with batches of {} jobs", hello.concurrency));
        }
        (worker.uses_page, worker.uses_claims) = (hello.page, hello.claims);
        worker.said_pid = hello.pid;
        worker.one_at_a_time = hello.batches || hello.concurrency == 1;
        worker.takes_batches = hello.batches;
        worker.batch =
            if hello.batches { self.base.options().batch.min(hello.concurrency as usize) } else { 1 };
        worker.max_frame = worker.max_frame.min(hello.max_frame);
        worker.greeted = true;
        Ok(())
    }

    fn on_ready_frame(&mut self, slot: usize) -> Result<(), String> {
        let Some(worker) = self.fleet.get_mut(slot) else { return Ok(()) };
        if worker.state != WorkerState::Starting || !worker.greeted {
            return Err("READY out of turn".into());
        }
        worker.uses_page &= worker.page.is_some();
        worker.uses_claims &= worker.uses_page;
        worker.window = if worker.uses_page { self.base.options().sizing.load } else { 1 };
        let batch = worker.batch;
        self.fleet.set_batch(batch, &self.base);
        self.on_worker_ready(slot);
        Ok(())
    }

    fn on_result(&mut self, slot: usize, id: u64, body: FrameBody<'_>) -> Result<(), String> {
        if !self.has_job(slot, id) {
            return Err(format!("a reply to unknown job {id:#x}"));
        }
        let mut outcome = None;
        let room = self.take_reply_room(slot, id, body.bytes.len());
        if let Some(job) = self.jobs.get_mut(id).filter(|job| job.sink.is_some()) {
            let (fault, has_chunks) = (job.fault.take(), job.chunks.is_some());
            let whole = if has_chunks { job.take_reply(body.bytes) } else { Some(body.keep()) };
            let max = self.base.options().max_reply;
            // A job with a malformed reply is still at its worker, and is lost with it.
            outcome = Some(match (fault, whole) {
                (Some(fault), _) => Err(fault),
                (None, Some(body)) if body.len() > max => Err(Error::TooLarge { len: body.len(), max }),
                (None, body) => {
                    let reply = body.and_then(Reply::new).ok_or("a reply that is not a list")?;
                    Ok(reply.within(room))
                }
            });
        }
        self.release(slot, id);
        match outcome {
            Some(outcome) => self.jobs.end(id, outcome, &mut self.base),
            None => self.jobs.remove(id),
        }
        Ok(())
    }

    fn on_chunk(&mut self, slot: usize, id: u64, body: FrameBody<'_>) -> Result<(), String> {
        if !self.has_job(slot, id) {
            return Err(format!("a part of a reply to unknown job {id:#x}"));
        }
        let Some(job) = self.jobs.get_mut(id) else { return Ok(()) };
        if job.sink.is_none() || job.fault.is_some() {
            job.drop_chunks();
            return Ok(());
        }
        self.keep_chunk_room(slot, id);
        let Some(job) = self.jobs.get_mut(id) else { return Ok(()) };
        let len = job.add_chunk(body.bytes).ok_or("a part of a reply that is not a list")?;
        let max = self.base.options().max_reply;
        if len > max {
            // The caller does not wait for the rest of the reply, which is dropped as it arrives.
            job.drop_chunks();
            self.give_up_on(id);
            self.jobs.end(id, Err(Error::TooLarge { len, max }), &mut self.base);
        }
        Ok(())
    }

    pub(super) fn on_job_error(&mut self, slot: usize, id: u64, error: ErrorBody) -> Result<(), String> {
        if !self.has_job(slot, id) {
            return Err(format!("an error of unknown job {id:#x}"));
        }
        self.release(slot, id);
        if !self.jobs.is_open(id) {
            self.jobs.remove(id);
            return Ok(());
        }
        if let Some(fault) = self.jobs.get_mut(id).and_then(|job| job.fault.take()) {
            self.jobs.end(id, Err(fault), &mut self.base);
            return Ok(());
        }
        let ErrorBody { code, message, detail, retryable } = error;
        let retry = self.base.options().retry;
        if let Some(job) = self.jobs.get_mut(id)
            && (retryable && retry.errors && code != "too_large" && job.may_retry(retry))
        {
            job.attempt += 1;
            self.jobs.requeue(id, &mut self.base);
            self.base.counters().retried.add(1);
            return Ok(());
        }
        let max = self.base.options().max_frame as usize;
        let error = if self.jobs.get(id).is_some_and(|job| job.told) {
            // Its way to stop early.
            Error::Cancelled
        } else if code == "too_large" {
            Error::TooLarge {
                len: message.split(' ').find_map(|word| word.parse().ok()).unwrap_or(max + 1),
                max,
            }
        } else {
            Error::Worker { code, message, detail, retryable }
        };
        self.jobs.end(id, Err(error), &mut self.base);
        Ok(())
    }

    fn on_progress(&mut self, slot: usize, id: u64, how_far: &[u8]) {
        if !self.has_job(slot, id) {
            // From a thread or a task that has outlived its job: the job has no caller any more.
            return;
        }
        let Some(mut callback) = self.jobs.get_mut(id).and_then(|job| job.progress.take()) else { return };
        self.base.guard(|| callback(how_far));
        if let Some(job) = self.jobs.get_mut(id) {
            job.progress = Some(callback);
        }
    }

    fn on_event(&mut self, slot: usize, id: u64, body: FrameBody<'_>) -> Result<(), String> {
        let Some(worker) = self.fleet.get(slot) else { return Ok(()) };
        let number = worker.number;
        // An event of a job that has ended, from a thread or a task that has outlived it, counts as the
        // worker's own.
        let job = self.jobs.get(id).filter(|_| self.has_job(slot, id)).map(|job| job.tag);
        let parts = Reply::new(body.keep()).ok_or("an event that is not a list")?;
        self.base.deliver_event(Event { worker: number, job, parts });
        Ok(())
    }

    /// Whether an event can be delivered; if not, the worker is not read until it can.
    pub(super) fn has_event_room(&mut self, slot: usize) -> bool {
        if self.base.has_event_room() {
            return true;
        }
        let Some(worker) = self.fleet.get_mut(slot) else { return true };
        if worker.has_ended {
            // Its slot must be freed: its last events go over the limit.
            return true;
        }
        worker.paused = true;
        self.fleet.watch_socket(slot, &self.base);
        false
    }

    pub(super) fn resume_events(&mut self) {
        for slot in self.fleet.slots(|worker| worker.paused) {
            let Some(worker) = self.fleet.get_mut(slot) else { continue };
            worker.paused = false;
            self.fleet.watch_socket(slot, &self.base);
            self.process_input(slot);
        }
    }

    /// Whether the worker has this job and may say something about it: a batch is claimed first, if its
    /// worker claims at all.
    pub(super) fn has_job(&self, slot: usize, id: u64) -> bool {
        self.fleet.get(slot).is_some_and(|worker| {
            let at = worker.place_of(id);
            at.is_some_and(|at| {
                !(worker.takes_batches && worker.uses_claims) || worker.has_begun(&worker.in_flight[at])
            })
        })
    }

    /// The worker broke the protocol: its socket is closed, it is killed, its jobs are settled at its end.
    fn break_off(&mut self, slot: usize, number: u64, reason: &str) {
        if let Some(worker) = self.fleet.get_mut(slot)
            && worker.number == number
        {
            self.base.counters().protocol_errors.add(1);
            worker.socket = None;
            worker.broke_protocol = true;
            self.fleet.kill(slot, &format!("protocol: {reason}"), &mut self.base);
        }
    }
}

/// Size of one read, bytes.
pub(super) const BUFFER: usize = 64 << 10;

/// Length from which a frame is kept without copying it, bytes.
const LONG: usize = 32 << 10;

/// Most reads from one worker before the others are served.
const READS: usize = 8;
