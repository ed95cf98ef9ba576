//! Output of workers and templates: their log lines, within the rate limit, and their events.

use crate::base::DriverBase;
use crate::callbacks::LogChunk;
use crate::event::Event;
use crate::logs::{LogLines, with_origin};
use crate::stderr;

impl DriverBase {
    /// A LOG frame of a worker.
    pub(crate) fn log(&mut self, worker: u64, level: u8, text: &[u8]) {
        self.counters().log_bytes.add(text.len() as u64);
        if self.log_limit.take(text.len(), self.now) {
            self.pass_on_log(worker, level, text);
        } else {
            self.counters().log_dropped.add(text.len() as u64);
        }
    }

    /// Adds output of a worker (0: of a template) to its lines, and passes on those that are finished.
    pub(crate) fn log_output(&mut self, worker: u64, bytes: &[u8], lines: &mut LogLines) {
        self.counters().log_bytes.add(bytes.len() as u64);
        let there = lines.len() + bytes.len();
        let whole = lines.push(bytes, self.now);
        self.pass_on_within_rate(worker, &whole, there - lines.len());
    }

    /// Passes on a line that was not finished.
    pub(crate) fn log_unfinished(&mut self, worker: u64, lines: &mut LogLines) {
        let written = lines.len();
        self.pass_on_within_rate(worker, &lines.take(), written);
    }

    /// Passes on the lines that the rate allows. `written` of the bytes came from the process; a line end may
    /// have been added.
    fn pass_on_within_rate(&mut self, worker: u64, lines: &[u8], written: usize) {
        let (mut kept, mut seen) = (Vec::new(), 0);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let own = line.len().min(written - seen);
            seen += own;
            if self.log_limit.take(own, self.now) {
                kept.extend_from_slice(line);
            } else {
                self.counters().log_dropped.add(own as u64);
            }
        }
        self.pass_on_log(worker, 0, &kept);
    }

    /// Hands lines to `on_log` or stderr.
    fn pass_on_log(&mut self, worker: u64, level: u8, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(mut callback) = self.callbacks.on_log.take() {
            self.guard(|| callback(LogChunk { worker, level, bytes }));
            self.callbacks.on_log = Some(callback);
        } else {
            let dropped = stderr::write(&with_origin(worker, level, bytes));
            self.counters().log_dropped.add(dropped as u64);
        }
    }

    /// Whether an event can be delivered. If not, the reader of the stream says when it can
    /// ([`crate::inbox::InboxMessage::ResumeEvents`]).
    pub(crate) fn has_event_room(&self) -> bool {
        self.callbacks.stream.as_ref().is_none_or(|stream| stream.has_room())
    }

    pub(crate) fn deliver_event(&mut self, event: Event) {
        self.counters().events.add(1);
        if let Some(stream) = &self.callbacks.stream {
            return stream.push(event);
        }
        if let Some(mut callback) = self.callbacks.on_event.take() {
            self.guard(|| callback(event));
            self.callbacks.on_event = Some(callback);
        }
    }
}
