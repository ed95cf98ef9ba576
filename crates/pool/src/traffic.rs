//! Bytes from and to workers: frames, JSON lines, output pipes.
//!
//! # Invariants
//! * Any bytes of a worker are handled without a panic; a worker that breaks the protocol is killed, and its jobs end with it.
//! * A worker is not read while an event of it has no room.
//! * One worker cannot keep the loop: a turn reads at most [`READS`] times from it.

use bytes::Bytes;
use cattlegrid_worker::frame::{FLAG_MORE, FrameError, HEADER_LEN, Header, Kind, START_MAX, VERSION};
use cattlegrid_worker::message::{ErrorBody, Hello};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::advice;
use crate::callbacks::LogChunk;
use crate::driver::{Driver, Source};
use crate::error::Error;
use crate::event::Event;
use crate::launch::Mode;
use crate::logs::{CHUNK, Lines, UNFINISHED, with_origin};
use crate::output::Flushed;
use crate::payload::Reply;
use crate::stderr;
use crate::time::later;
use crate::worker::{State, Worker};

/// The body of a frame; `shared` when it need not be copied to be kept.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) shared: Option<&'a Bytes>,
}

impl Body<'_> {
    fn keep(&self) -> Bytes {
        self.shared.cloned().unwrap_or_else(|| Bytes::copy_from_slice(self.bytes))
    }
}

impl Driver {
    /// Reads from a worker and handles all complete frames. Returns whether more bytes may be waiting.
    pub(crate) fn on_readable(&mut self, slot: usize) -> bool {
        for _ in 0..READS {
            let Some(worker) = &mut self.workers[slot] else { return false };
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
                    self.on_closed(slot);
                    return false;
                }
                Ok(count) => {
                    let number = worker.number;
                    self.process_input(slot);
                    let same = self.workers[slot].as_ref().is_some_and(|worker| worker.number == number);
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
                    self.on_closed(slot);
                    return false;
                }
            }
        }
        true
    }

    /// Reads the bytes that a dead worker has left in its socket.
    pub(crate) fn drain_socket(&mut self, slot: usize) {
        self.process_input(slot);
        // Bounded: a grandchild may go on writing to the socket.
        for _ in 0..64 {
            if !self.on_readable(slot) {
                return;
            }
        }
    }

    /// Handles all complete frames of a worker's input.
    pub(crate) fn process_input(&mut self, slot: usize) {
        let Some(worker) = &mut self.workers[slot] else { return };
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
                    let printed =
                        !json && self.workers[slot].as_ref().is_some_and(|worker| self.may_print(worker));
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
        if let Some(worker) = &mut self.workers[slot]
            && worker.number == number
        {
            debug_assert!(worker.input.is_empty(), "only this function reads frames");
            worker.input = input;
        }
    }

    /// Whether what a worker wrote may be what a program prints: it has not said HELLO, and its frames go to standard output.
    fn may_print(&self, worker: &Worker) -> bool {
        !worker.greeted && self.mode_of(worker) == Mode::Stdio
    }

    /// Handles a long frame that is exactly what the input holds, and takes it out without copying it.
    fn long_frame(&mut self, slot: usize, input: &mut Vec<u8>) -> Result<(), String> {
        let Ok(Some(header)) = Header::decode(input, self.options.max_frame) else { return Ok(()) };
        let whole = input.len() == HEADER_LEN + header.len as usize;
        if !whole || header.kind != Kind::Result || !self.has_frame_room(slot, header) {
            return Ok(());
        }
        let body = Bytes::from(std::mem::take(input)).slice(HEADER_LEN..);
        self.on_frame(slot, header, Body { bytes: &body, shared: Some(&body) })?;
        self.free_frame_room(slot);
        Ok(())
    }

    fn is_paused(&self, slot: usize, number: u64) -> bool {
        self.workers[slot].as_ref().is_none_or(|worker| worker.number != number || worker.is_unread())
    }

    /// Handles the frame at the start of `rest`; its length, or `None` if it is not complete.
    fn next_frame(&mut self, slot: usize, rest: &[u8]) -> Result<Option<usize>, String> {
        let starting = self.workers[slot].as_ref().is_some_and(|worker| worker.state == State::Starting);
        // A worker that has not read INIT does not know the limit.
        let max = if starting { self.options.max_frame.max(START_MAX) } else { self.options.max_frame };
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
        self.on_frame(slot, header, Body { bytes: body, shared: None })?;
        self.free_frame_room(slot);
        Ok(Some(total))
    }

    pub(crate) fn on_frame(&mut self, slot: usize, header: Header, body: Body<'_>) -> Result<(), String> {
        let Some(worker) = &mut self.workers[slot] else { return Ok(()) };
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
        let starting = worker.state == State::Starting;
        match header.kind {
            Kind::Result if header.flags & FLAG_MORE != 0 => return self.on_chunk(slot, header.id, body),
            Kind::Result => return self.on_result(slot, header.id, body),
            Kind::Error if header.id == 0 => {
                let error = ErrorBody::parse(header.flags, body.bytes).ok_or_else(malformed)?;
                let text = format!("{}: {}", error.code, error.message);
                worker.reason = Some(if starting { format!("init failed: {text}") } else { text });
                worker.tail.push(error.detail.as_bytes());
                self.expect_end(slot, self.options.kill_grace);
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
                    self.retire(slot);
                }
            }
            Kind::Skipped => return self.on_skipped(slot, header.id),
            Kind::Pong => {
                worker.pinged = false;
                worker.proof = None;
            }
            Kind::Log => {
                let (&level, text) = body.bytes.split_first().ok_or_else(malformed)?;
                let number = worker.number;
                self.on_log(number, level, text);
            }
            Kind::Init | Kind::Job | Kind::Cancel | Kind::Retire | Kind::Ping => {
                return Err(format!("{:?}, which only a parent sends", header.kind));
            }
            other => return Err(format!("unexpected {other:?}")),
        }
        Ok(())
    }

    fn on_hello(&mut self, slot: usize, hello: &Hello) -> Result<(), String> {
        let Some(worker) = &mut self.workers[slot] else { return Ok(()) };
        if hello.version != VERSION || worker.state != State::Starting || worker.greeted {
            return Err(format!("HELLO of version {}, or a second one", hello.version));
        }
        if hello.batches && !(1..=u32::from(u16::MAX)).contains(&hello.concurrency) {
            return Err(format!("HELLO with batches of {} jobs", hello.concurrency));
        }
        (worker.uses_page, worker.uses_claims) = (hello.page, hello.claims);
        worker.said_pid = hello.pid;
        worker.one_at_a_time = hello.batches || hello.concurrency == 1;
        worker.takes_batches = hello.batches;
        worker.batch = if hello.batches { self.options.batch.min(hello.concurrency as usize) } else { 1 };
        worker.max_frame = worker.max_frame.min(hello.max_frame);
        worker.greeted = true;
        Ok(())
    }

    fn on_ready_frame(&mut self, slot: usize) -> Result<(), String> {
        let Some(worker) = &mut self.workers[slot] else { return Ok(()) };
        if worker.state != State::Starting || !worker.greeted {
            return Err("READY out of turn".into());
        }
        worker.uses_page &= worker.page.is_some();
        worker.uses_claims &= worker.uses_page;
        worker.window = if worker.uses_page { self.options.sizing.load } else { 1 };
        let batch = worker.batch;
        if batch != std::mem::replace(&mut self.batch, batch) {
            self.set_slack();
        }
        self.on_worker_ready(slot);
        Ok(())
    }

    /// A LOG frame.
    pub(crate) fn on_log(&mut self, worker: u64, level: u8, text: &[u8]) {
        self.shared.counters.log_bytes.add(text.len() as u64);
        if self.log_limit.take(text.len(), self.now) {
            self.pass_on_log(worker, level, text);
        } else {
            self.shared.counters.log_dropped.add(text.len() as u64);
        }
    }

    fn on_result(&mut self, slot: usize, id: u64, body: Body<'_>) -> Result<(), String> {
        if !self.has_job(slot, id) {
            return Err(format!("a reply to unknown job {id:#x}"));
        }
        let mut outcome = None;
        let room = self.take_reply_room(slot, id, body.bytes.len());
        if let Some(job) = self.jobs.get_mut(id).filter(|job| job.sink.is_some()) {
            let (fault, has_chunks) = (job.fault.take(), job.chunks.is_some());
            let whole = if has_chunks { self.whole_reply(id, body.bytes) } else { Some(body.keep()) };
            let max = self.options.max_reply;
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
            Some(outcome) => self.end_job(id, outcome),
            None => drop(self.jobs.remove(id)),
        }
        Ok(())
    }

    fn on_chunk(&mut self, slot: usize, id: u64, body: Body<'_>) -> Result<(), String> {
        if !self.has_job(slot, id) {
            return Err(format!("a part of a reply to unknown job {id:#x}"));
        }
        let Some(job) = self.jobs.get_mut(id) else { return Ok(()) };
        if job.sink.is_none() || job.fault.is_some() {
            (job.chunks, job.room) = (None, None);
            return Ok(());
        }
        self.keep_chunk_room(slot, id);
        let len = self.add_chunk(id, body.bytes).ok_or("a part of a reply that is not a list")?;
        let max = self.options.max_reply;
        if len > max {
            // The caller does not wait for the rest of the reply, which is dropped as it arrives.
            if let Some(job) = self.jobs.get_mut(id) {
                (job.chunks, job.room) = (None, None);
            }
            self.give_up_on(id);
            self.end_job(id, Err(Error::TooLarge { len, max }));
        }
        Ok(())
    }

    pub(crate) fn on_job_error(&mut self, slot: usize, id: u64, error: ErrorBody) -> Result<(), String> {
        if !self.has_job(slot, id) {
            return Err(format!("an error of unknown job {id:#x}"));
        }
        self.release(slot, id);
        if !self.jobs.is_open(id) {
            self.jobs.remove(id);
            return Ok(());
        }
        if let Some(fault) = self.jobs.get_mut(id).and_then(|job| job.fault.take()) {
            self.end_job(id, Err(fault));
            return Ok(());
        }
        let ErrorBody { code, message, detail, retryable } = error;
        let retry = self.options.retry;
        if let Some(job) = self.jobs.get_mut(id)
            && (retryable && retry.errors && code != "too_large" && job.may_retry(retry))
        {
            job.attempt += 1;
            self.requeue(id);
            self.shared.counters.retried.add(1);
            return Ok(());
        }
        let max = self.options.max_frame as usize;
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
        self.end_job(id, Err(error));
        Ok(())
    }

    fn on_progress(&mut self, slot: usize, id: u64, how_far: &[u8]) {
        if !self.has_job(slot, id) {
            // From a thread or a task that has outlived its job: the job has no caller any more.
            return;
        }
        let Some(mut callback) = self.jobs.get_mut(id).and_then(|job| job.progress.take()) else { return };
        self.guard(|| callback(how_far));
        if let Some(job) = self.jobs.get_mut(id) {
            job.progress = Some(callback);
        }
    }

    fn on_event(&mut self, slot: usize, id: u64, body: Body<'_>) -> Result<(), String> {
        let Some(worker) = &self.workers[slot] else { return Ok(()) };
        let number = worker.number;
        // An event of a job that has ended, from a thread or a task that has outlived it, counts as the worker's own.
        let job = self.jobs.get(id).filter(|_| self.has_job(slot, id)).map(|job| job.tag);
        let parts = Reply::new(body.keep()).ok_or("an event that is not a list")?;
        self.deliver_event(Event { worker: number, job, parts });
        Ok(())
    }

    pub(crate) fn template_event(&mut self, body: Vec<u8>) {
        if let Some(parts) = Reply::new(body.into()) {
            self.deliver_event(Event { worker: 0, job: None, parts });
        }
    }

    fn deliver_event(&mut self, event: Event) {
        self.shared.counters.events.add(1);
        if let Some(stream) = &self.callbacks.stream {
            return stream.push(event);
        }
        if let Some(mut callback) = self.callbacks.on_event.take() {
            self.guard(|| callback(event));
            self.callbacks.on_event = Some(callback);
        }
    }

    /// Whether an event can be delivered; if not, the worker is not read until it can.
    pub(crate) fn has_event_room(&mut self, slot: usize) -> bool {
        if self.callbacks.stream.as_ref().is_none_or(|stream| stream.has_room()) {
            return true;
        }
        let Some(worker) = &mut self.workers[slot] else { return true };
        if worker.is_settled {
            // Its slot must be freed: its last events go over the limit.
            return true;
        }
        worker.paused = true;
        self.watch_socket(slot);
        false
    }

    pub(crate) fn resume_events(&mut self) {
        for slot in 0..self.workers.len() {
            let Some(worker) = &mut self.workers[slot] else { continue };
            if std::mem::take(&mut worker.paused) {
                self.watch_socket(slot);
                self.process_input(slot);
            }
        }
    }

    /// Whether the worker has this job and may say something about it: a batch is claimed first, if its worker claims at all.
    pub(crate) fn has_job(&self, slot: usize, id: u64) -> bool {
        self.workers[slot].as_ref().is_some_and(|worker| {
            let at = worker.place_of(id);
            at.is_some_and(|at| {
                !(worker.takes_batches && worker.uses_claims) || worker.has_begun(&worker.in_flight[at])
            })
        })
    }

    /// The worker broke the protocol: its socket is closed, it is killed, its jobs are settled at its end.
    fn break_off(&mut self, slot: usize, number: u64, reason: &str) {
        if let Some(worker) = &mut self.workers[slot]
            && worker.number == number
        {
            self.shared.counters.protocol_errors.add(1);
            worker.socket = None;
            worker.broke_protocol = true;
            self.kill(slot, &format!("protocol: {reason}"));
        }
    }

    /// Writes the pending bytes of all workers that were given something.
    pub(crate) fn flush_all(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for slot in dirty.drain(..) {
            self.flush(slot);
        }
        self.dirty = dirty;
    }

    pub(crate) fn flush(&mut self, slot: usize) {
        let Some(worker) = self.workers.get_mut(slot).and_then(Option::as_mut) else { return };
        let Some(socket) = &worker.socket else { return };
        // A broken socket is noticed when it is read, which also finds the last frames of the worker.
        let flushed = worker.output.flush(socket);
        if flushed == Flushed::All
            && worker.json
            && worker.state == State::Retiring
            && worker.in_flight.is_empty()
        {
            // The end of its input is what the loop of every program understands, whatever it makes of `retire`. Not before
            // its last answer: at the end of its input a program may end without it.
            rustix::net::shutdown(socket, rustix::net::Shutdown::Write).ok();
        }
        let blocked = flushed == Flushed::Blocked;
        if blocked != worker.want_write {
            worker.want_write = blocked;
            self.watch_socket(slot);
        }
    }

    /// Tells the system what of the worker's socket the pool needs to know. While the worker is not read, the system tells its end once,
    /// not again and again.
    pub(crate) fn watch_socket(&self, slot: usize) {
        let Some(worker) = &self.workers[slot] else { return };
        let Some(socket) = &worker.socket else { return };
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !worker.is_unread());
        flags.set(EventFlags::ONESHOT, worker.is_unread());
        flags.set(EventFlags::OUT, worker.want_write);
        let data = EventData::new_u64((Source::Worker as u64) << 60 | worker.number);
        epoll::modify(&self.epoll, socket, data, flags).ok();
    }

    /// As [`Driver::watch_socket`], after an event that was the only one to be told.
    pub(crate) fn watch_again(&self, slot: usize) {
        let blocked = |worker: &Worker| worker.is_unread() && worker.want_write;
        if self.workers.get(slot).and_then(Option::as_ref).is_some_and(|worker| blocked(worker)) {
            self.watch_socket(slot);
        }
    }

    pub(crate) fn on_worker_log(&mut self, slot: usize) {
        let mut chunk = [0; CHUNK];
        let Some(worker) = &mut self.workers[slot] else { return };
        let Some(log) = &worker.log else { return };
        match rustix::io::read(log, &mut chunk) {
            Ok(0) => worker.log = None,
            Ok(count) => {
                worker.tail.push(&chunk[..count]);
                let (number, mut said) = (worker.number, std::mem::take(&mut worker.said));
                let whole = self.limit_log(&chunk[..count], &mut said);
                if let Some(since) = said.since {
                    self.alarm(later(since, UNFINISHED));
                }
                if let Some(worker) = &mut self.workers[slot] {
                    worker.said = said;
                }
                self.pass_on_log(number, 0, &whole);
            }
            Err(_) => {}
        }
    }

    /// Passes on a line that a worker began [`UNFINISHED`] ago and has not finished.
    pub(crate) fn scan_log(&mut self, slot: usize) {
        let Some(worker) = &mut self.workers[slot] else { return };
        let Some(since) = worker.said.since else { return };
        let due = later(since, UNFINISHED);
        if due > self.now {
            return self.alarm(due);
        }
        let (number, mut said) = (worker.number, std::mem::take(&mut worker.said));
        let rest = self.limit_rest(&mut said);
        self.pass_on_log(number, 0, &rest);
    }

    /// Returns the lines of some output that are finished, without those that are over the rate.
    pub(crate) fn limit_log(&mut self, bytes: &[u8], said: &mut Lines) -> Vec<u8> {
        self.shared.counters.log_bytes.add(bytes.len() as u64);
        let there = said.len() + bytes.len();
        let whole = said.push(bytes, self.now);
        let written = there - said.len();
        self.within_rate(&whole, written)
    }

    /// The same for a line that was not finished.
    pub(crate) fn limit_rest(&mut self, said: &mut Lines) -> Vec<u8> {
        let written = said.len();
        self.within_rate(&said.take(), written)
    }

    /// The lines that the rate allows. `written` of the bytes came from the worker; a line end may have been added.
    fn within_rate(&mut self, lines: &[u8], written: usize) -> Vec<u8> {
        let (mut kept, mut seen) = (Vec::new(), 0);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let own = line.len().min(written - seen);
            seen += own;
            if self.log_limit.take(own, self.now) {
                kept.extend_from_slice(line);
            } else {
                self.shared.counters.log_dropped.add(own as u64);
            }
        }
        kept
    }

    /// Hands lines to `on_log` or stderr.
    pub(crate) fn pass_on_log(&mut self, worker: u64, level: u8, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let chunk = LogChunk { worker, level, bytes };
        match self.callbacks.on_log.take() {
            Some(mut callback) => {
                self.guard(|| callback(chunk));
                self.callbacks.on_log = Some(callback);
            }
            None => {
                self.shared.counters.log_dropped.add(stderr::say(&with_origin(worker, level, bytes)) as u64);
            }
        }
    }
}

/// Size of one read, bytes.
pub(crate) const BUFFER: usize = 64 << 10;

/// Length from which a frame is kept without copying it, bytes.
const LONG: usize = 32 << 10;

/// Most reads from one worker before the others are served.
const READS: usize = 8;
