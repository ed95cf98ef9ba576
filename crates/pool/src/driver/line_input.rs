//! Lines of JSON from a worker: a line is translated into frames; a line that is longer than `max_frame` is
//! skipped, and its job gets an error.
//!
//! # Invariant
//! At most `max_frame` bytes and a line end of a worker's lines are kept in memory.

use bytes::Bytes;
use cattlegrid_worker::frame::{FrameError, Header, Kind};
use cattlegrid_worker::message::ErrorBody;

use crate::advice;
use crate::driver::Driver;
use crate::driver::traffic::FrameBody;
use crate::error::Error;
use crate::jsonl::{self, LineEnds};
use crate::long_line::{LongLine, LongLineKind};
use crate::worker::FrameRoom;

impl Driver {
    /// Handles the line at the start of `rest`, or the part of a long line that has arrived. Returns its
    /// length, or `None` if the line is not complete.
    ///
    /// # Errors
    /// Why the worker must be killed.
    pub(super) fn next_line(&mut self, slot: usize, rest: &[u8]) -> Result<Option<usize>, String> {
        let max = self.base.options().max_frame;
        let Some(worker) = self.fleet.get_mut(slot) else { return Ok(None) };
        let current = worker.in_flight.front().map(|sent| sent.id);
        let (objects, greeted) = (worker.objects, worker.greeted);
        if worker.long_line.is_some() {
            return self.read_long_line(slot, rest, current);
        }
        let taken = match worker.lines.take(rest, max) {
            Err(FrameError::TooLong { .. }) if worker.greeted => {
                worker.lines = LineEnds::default();
                worker.long_line = Some(LongLine::default());
                // It is not kept.
                worker.room = FrameRoom::None;
                return self.read_long_line(slot, rest, current);
            }
            taken => taken.map_err(|error| advice::of_line(&error.to_string(), rest, greeted))?,
        };
        let Some((line, len)) = taken else {
            self.has_line_room(slot, rest.len());
            return Ok(None);
        };
        self.close_line(slot);
        if !line.is_empty() {
            let complain = |reason: String| advice::of_line(&reason, line, greeted);
            for frame in jsonl::read_line(line, current, objects).map_err(complain)? {
                let is_start = matches!(frame.kind, Kind::Hello | Kind::Ready);
                if !greeted && !is_start && frame.kind != Kind::Error {
                    return Err(complain("a message before it was ready".into()));
                }
                if greeted && frame.kind == Kind::Hello {
                    return Err(complain("it had said before that it is ready".into()));
                }
                let header = Header {
                    len: frame.body.len() as u32,
                    kind: frame.kind,
                    flags: frame.flags,
                    id: frame.id,
                };
                let has_room = self.has_frame_room(slot, header);
                if !has_room || (frame.kind == Kind::Event && !self.has_event_room(slot)) {
                    // The whole line is read again later.
                    if let Some(worker) = self.fleet.get_mut(slot) {
                        worker.lines = LineEnds::default();
                    }
                    return Ok(None);
                }
                let body = Bytes::from(frame.body);
                self.on_frame(slot, header, FrameBody { bytes: &body, shared: Some(&body) })
                    .map_err(complain)?;
            }
        }
        self.free_frame_room(slot);
        Ok(Some(len))
    }

    /// Reads the next part of a long line; at its end the job gets the error that an SDK would have sent for
    /// it.
    fn read_long_line(
        &mut self,
        slot: usize,
        rest: &[u8],
        current: Option<u64>,
    ) -> Result<Option<usize>, String> {
        let Some(worker) = self.fleet.get_mut(slot) else { return Ok(None) };
        let Some(line) = &mut worker.long_line else { return Ok(None) };
        let Some(end) = line.push(rest)? else { return Ok(Some(rest.len())) };
        let what = line
            .end(current, worker.objects)
            .map_err(|reason| advice::of_line(&reason, line.head(), worker.greeted))?;
        let (len, max) =
            (usize::try_from(line.len()).unwrap_or(usize::MAX), self.base.options().max_frame as usize);
        worker.long_line = None;
        let error = |code: &str, what: &str| ErrorBody {
            code: code.to_owned(),
            message: format!("{what} has {len} bytes, the limit is {max}"),
            detail: String::new(),
            retryable: false,
        };
        match what {
            LongLineKind::Outcome(id) if !self.has_job(slot, id) => {
                return Err(format!("a reply to unknown job {id:#x}"));
            }
            LongLineKind::Outcome(id) => self.on_job_error(slot, id, error("too_large", "the line"))?,
            LongLineKind::Part(id) if !self.has_job(slot, id) => {
                return Err(format!("a part of a reply to unknown job {id:#x}"));
            }
            LongLineKind::Part(id) => self.note_fault(id, Error::TooLarge { len, max }),
            LongLineKind::Message(what, id) if self.has_job(slot, id) => {
                let ErrorBody { code, message, detail, retryable } = error("error", &format!("the {what}"));
                self.note_fault(id, Error::Worker { code, message, detail, retryable });
            }
            LongLineKind::Message(..) | LongLineKind::Log => {
                let text = format!("\u{2}a line of {len} bytes was dropped, the limit is {max}");
                let header = Header { len: text.len() as u32, kind: Kind::Log, flags: 0, id: 0 };
                self.on_frame(slot, header, FrameBody { bytes: text.as_bytes(), shared: None })?;
            }
        }
        Ok(Some(end + 1))
    }

    /// See [`crate::job::JobEntry::note_fault`].
    fn note_fault(&mut self, id: u64, error: Error) {
        if let Some(job) = self.jobs.get_mut(id) {
            job.note_fault(error);
        }
    }
}
