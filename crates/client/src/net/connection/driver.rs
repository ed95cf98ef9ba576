//! The task of a connection: it writes what callers have added, reads, and completes their slots in order.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use cattlegrid_protocol::{ParsedResponse, parse_response};
use tokio::time::{Instant, Sleep, sleep_until};

use super::{
    CHUNK, CommandFailure, ConnectionLink, ReplySink, ReplySlot, SendStage, TimeLimit, broken, lock,
};
use crate::error::Error;
use crate::net::stream::{ReadHalf, WriteHalf};
use crate::net::wire::{ElementFit, ExpectedReply, Reply, broken_text, line_text, names};

/// The read buffer, when no value is larger.
const READ_BUFFER: usize = 16 << 10;
/// A value of at least this many bytes takes the read buffer with it instead of being copied.
const LARGE_VALUE: usize = 64 << 10;
/// Other tasks run after this many reads at once.
const READS_MAX: usize = 16;

/// See the module's text.
pub(super) struct ConnectionDriver {
    shared: Arc<ConnectionLink>,
    reading: ReadHalf,
    writing: Arc<WriteHalf>,
    /// Read and not parsed.
    input: BytesMut,
    /// Parsing is of use when the input has this many bytes.
    need: usize,
    /// Taken from the state.
    slots: VecDeque<ReplySlot>,
    /// Taken from the state, and how much of the first has been sent.
    out: VecDeque<Vec<u8>>,
    out_at: usize,
    /// All that was written has left this process.
    flushed: bool,
    /// Callers have had their chance to add to the queue.
    gathered: bool,
    timer: Pin<Box<Sleep>>,
    /// When the timer fires, if it does.
    armed: Option<Instant>,
    idle: Option<Duration>,
    idle_since: Option<Instant>,
}

impl Future for ConnectionDriver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.as_mut().get_mut().run(cx) {
            Ok(()) => Poll::Pending,
            Err(error) => {
                self.finish(&error);
                Poll::Ready(())
            }
        }
    }
}

impl Drop for ConnectionDriver {
    fn drop(&mut self) {
        let error = self.shared.runtime_ended();
        self.finish(&error);
    }
}

impl ConnectionDriver {
    /// A driver with nothing to do; `idle`: how long the socket may have nothing to do before it is closed.
    pub(super) fn new(
        shared: Arc<ConnectionLink>,
        reading: ReadHalf,
        writing: Arc<WriteHalf>,
        idle: Option<Duration>,
    ) -> Self {
        Self {
            shared,
            reading,
            writing,
            input: BytesMut::with_capacity(READ_BUFFER),
            need: 0,
            slots: VecDeque::new(),
            out: VecDeque::new(),
            out_at: 0,
            flushed: true,
            gathered: false,
            timer: Box::pin(sleep_until(Instant::now())),
            armed: None,
            idle,
            idle_since: None,
        }
    }

    /// Does what can be done now. An error ends the connection.
    fn run(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        {
            let mut state = lock(&self.shared.state);
            if state.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
                state.waker = Some(cx.waker().clone());
            }
            if let Some(error) = state.end.clone() {
                drop(state);
                // What others need not wait for, such as leases that are given up, is sent if the socket
                // takes it.
                self.gathered = true;
                self.write(cx)?;
                return Err(error);
            }
        }
        self.read(cx)?;
        self.write(cx)?;
        self.keep_time(cx)
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        for _ in 0..READS_MAX {
            if self.input.is_empty() && self.input.capacity() > 4 * READ_BUFFER {
                self.input = BytesMut::new();
            }
            if self.input.capacity() - self.input.len() < READ_BUFFER / 4 {
                self.input.reserve(READ_BUFFER.max(self.input.len()));
            }
            match self.reading.poll_read(cx, &mut self.input) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Err(error)) => return Err(broken(&self.shared.server, error)),
                Poll::Ready(Ok(0)) => {
                    let text = "the server has closed the connection";
                    let error = io::Error::new(io::ErrorKind::UnexpectedEof, text);
                    return Err(broken(&self.shared.server, error));
                }
                Poll::Ready(Ok(_)) => {}
            }
            if self.shared.reads.fetch_add(1, Ordering::Relaxed) == 0 {
                self.shared.health.works();
            }
            if self.input.len() >= self.need {
                self.parse()?;
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Completes slots with what has been read.
    fn parse(&mut self) -> Result<(), Error> {
        let mut at = 0;
        self.need = 0;
        while at < self.input.len() {
            let (response, used) = match parse_response(&self.input[at..]) {
                ParsedResponse::Complete { response, used } => (response, used),
                ParsedResponse::Partial { need } => {
                    self.need = need;
                    break;
                }
                ParsedResponse::Broken(why) => {
                    let line = line_text(&self.input[at..]);
                    return Err(self.wrong(format!("{}: {line}", broken_text(why))));
                }
            };
            if self.slots.is_empty() {
                self.slots.append(&mut lock(&self.shared.state).slots);
            }
            let Some(slot) = self.slots.front_mut() else {
                return Err(self.wrong(format!("{} without a request", line_text(&self.input[at..]))));
            };
            let key = slot.keys.len().checked_sub(slot.left).and_then(|at| slot.keys.get(at));
            let fit = slot.expect.fit(&response, key.map(|key| &**key));
            if fit == ElementFit::Not
                || (fit == ElementFit::Part && slot.expect == ExpectedReply::Values && slot.part.is_some())
            {
                let (line, possible) = (line_text(&self.input[at..]), slot.expect.text());
                return Err(self.wrong(format!("{line}, where possible is {possible}")));
            }
            if let Some(opaque) = slot.opaque
                && !names(&response, opaque)
            {
                // Its line has its number, which differs from one failure to the next.
                return Err(self.wrong("the reply to another request".to_owned()));
            }
            let reply = if slot.is_wanted() {
                let mut large = None;
                let reply = Reply::of(&response, |data| {
                    if data.len() < LARGE_VALUE || data.len() < self.input.capacity() / 2 {
                        return Bytes::copy_from_slice(data);
                    }
                    large = Some(data.len());
                    Bytes::new()
                });
                Some((reply, large))
            } else {
                None
            };
            at += used;
            let reply = match reply {
                Some((mut reply, Some(len))) => {
                    // The value ends before the line end that is the last of the element.
                    let element = self.input.split_to(at).freeze();
                    reply.set_data(element.slice(at - 2 - len..at - 2));
                    at = 0;
                    Some(reply)
                }
                Some((reply, None)) => Some(reply),
                None => None,
            };
            self.complete(fit, reply);
        }
        self.input.advance(at);
        Ok(())
    }

    /// Gives an element to the first slot. None: its caller has gone.
    fn complete(&mut self, fit: ElementFit, reply: Option<Reply>) {
        let Some(slot) = self.slots.front_mut() else { return };
        if fit == ElementFit::Part {
            if let Some(reply) = reply {
                slot.part = Some(match slot.part.take() {
                    Some(part) => reply.after(Some(part)),
                    None => reply,
                });
            }
            return;
        }
        let asked = slot.asked.len().saturating_sub(slot.left);
        slot.left -= 1;
        slot.opaque = slot.opaque.map(|opaque| opaque.wrapping_add(1));
        // Also if the caller has gone since it came: the next reply of this slot has parts of its own.
        let part = slot.part.take();
        let mut reply = reply.map(|reply| reply.after(part));
        match &mut slot.sink {
            ReplySink::One(_) => {}
            ReplySink::Many(_, all) => all.extend(reply.take()),
            ReplySink::Nobody => {
                if let (Some(reply), false) = (reply.take(), slot.asked.is_empty()) {
                    self.shared.give_up(&slot.asked[asked..], &[reply]);
                }
            }
        }
        if slot.left > 0 {
            return;
        }
        let Some(slot) = self.slots.pop_front() else { return };
        // Before the caller wakes: it then finds a connection where nothing is pending.
        self.shared.pending.fetch_sub(1, Ordering::Relaxed);
        self.idle_since = None;
        match (slot.sink, reply) {
            (ReplySink::One(sender), Some(reply)) => {
                if let Err(Ok(reply)) = sender.send(Ok(reply)) {
                    self.shared.give_up(&slot.asked, &[reply]);
                }
            }
            (ReplySink::Many(sender, all), _) => {
                if let Err((all, _)) = sender.send((all, None)) {
                    self.shared.give_up(&slot.asked, &all);
                }
            }
            _ => {}
        }
    }

    fn wrong(&self, message: String) -> Error {
        Error::Protocol { server: self.shared.server.to_string(), message }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            if self.out.is_empty() && self.flushed {
                let mut state = lock(&self.shared.state);
                self.slots.append(&mut state.slots);
                state.driver_writes = false;
                if state.queue.is_empty() {
                    return Ok(());
                }
                if !self.gathered {
                    self.gathered = true;
                    cx.waker().wake_by_ref();
                    return Ok(());
                }
                std::mem::swap(&mut state.queue, &mut self.out);
                state.driver_writes = true;
                self.gathered = false;
            }
            while let Some(chunk) = self.out.front() {
                let sent = match self.writing.poll_write(cx, &chunk[self.out_at..]) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Err(error)) => return Err(broken(&self.shared.server, error)),
                    Poll::Ready(Ok(sent)) => sent,
                };
                self.out_at += sent;
                let whole = self.out_at == chunk.len();
                let chunk = if whole { self.out.pop_front() } else { None };
                let mut state = lock(&self.shared.state);
                state.written += sent as u64;
                if let Some(mut chunk) = chunk {
                    self.out_at = 0;
                    if chunk.capacity() <= 2 * CHUNK {
                        chunk.clear();
                        state.spare = chunk;
                    }
                }
                drop(state);
                self.shared.room.notify_waiters();
                self.flushed = false;
            }
            if !self.flushed {
                match self.writing.poll_flush(cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Err(error)) => return Err(broken(&self.shared.server, error)),
                    Poll::Ready(Ok(())) => self.flushed = true,
                }
            }
        }
    }

    /// Fails what is late, and sets the timer.
    fn keep_time(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            let mut wanted = self.armed;
            {
                let mut state = lock(&self.shared.state);
                let first = state.slots.iter().map(|slot| slot.deadline).min();
                self.slots.append(&mut state.slots);
                if let Some(earliest) = state.earliest.take().into_iter().chain(first).min() {
                    wanted = Some(wanted.map_or(earliest, |wanted| wanted.min(earliest)));
                }
                if let (None, Some(idle)) = (wanted, self.idle) {
                    let now = Instant::now();
                    wanted = Some(*self.idle_since.get_or_insert(now) + idle);
                }
                state.timer = wanted;
            }
            if wanted != self.armed {
                self.armed = wanted;
                if let Some(at) = wanted {
                    self.timer.as_mut().reset(at);
                }
            }
            if self.armed.is_none() || self.timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            self.expire()?;
            if let Some(at) = self.armed {
                self.timer.as_mut().reset(at);
            }
        }
    }

    /// Fails the slots whose time is over, and sets the timer for the others.
    fn expire(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let reads = self.shared.reads.load(Ordering::Relaxed);
        // Closing it comes before the callers' answers: their next commands find that the server has failed.
        if let Some(slot) = self.slots.iter().find(|slot| slot.deadline <= now && slot.reads == reads) {
            return Err(TimeLimit { at: slot.deadline, in_all: slot.limit }.error(&self.shared.server));
        }
        self.armed = None;
        for slot in &mut self.slots {
            if matches!(slot.sink, ReplySink::Nobody) && slot.reads != reads {
                continue;
            }
            if slot.deadline > now {
                self.armed = Some(self.armed.map_or(slot.deadline, |armed| armed.min(slot.deadline)));
                continue;
            }
            let error = TimeLimit { at: slot.deadline, in_all: slot.limit }.error(&self.shared.server);
            slot.fail(CommandFailure { error, sent: SendStage::Answered });
        }
        if self.slots.is_empty() && self.idle.is_some() {
            let keep = lock(&self.shared.state).keep;
            let idle_over = self.idle_since.zip(self.idle).is_some_and(|(since, idle)| since + idle <= now);
            match keep.filter(|keep| *keep > now) {
                Some(keep) => self.armed = Some(keep),
                None if idle_over => {
                    let error = io::Error::new(io::ErrorKind::ConnectionAborted, "closed after being idle");
                    return Err(broken(&self.shared.server, error));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Closes the connection and fails all that is pending.
    fn finish(&mut self, error: &Error) {
        let (written, dropped) = {
            let mut state = lock(&self.shared.state);
            self.shared.closed.store(true, Ordering::Release);
            if state.writing.take().is_none() {
                return;
            }
            state.end.get_or_insert_with(|| error.clone());
            self.slots.append(&mut state.slots);
            state.queue.clear();
            state.waker = None;
            (state.written, state.dropped)
        };
        let pending = !self.slots.is_empty();
        let silent = self.shared.reads.load(Ordering::Relaxed) == 0;
        let is_failure = matches!(error, Error::Timeout { .. } | Error::Protocol { .. });
        // A connection that waits tells what is good: that a server fails is found out by the shared ones,
        // which it serves first.
        let waits = self.idle.is_some();
        if !dropped && !waits && (is_failure || (pending && silent)) {
            self.shared.health.fails(error);
        }
        self.shared.health.ends(error);
        self.shared.pending.store(0, Ordering::Relaxed);
        let mut half = !self.input.is_empty();
        for mut slot in self.slots.drain(..) {
            let sent = if std::mem::take(&mut half) || slot.part.is_some() || slot.has_replies() {
                SendStage::Answered
            } else if slot.start >= written {
                SendStage::No
            } else {
                SendStage::Perhaps
            };
            slot.fail(CommandFailure { error: error.clone(), sent });
        }
        self.shared.room.notify_waiters();
    }
}
