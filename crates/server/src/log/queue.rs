//! Log lines that wait to be written, with a limit for each call site.
//!
//! At most [`EACH_SECOND`] lines of a call site are admitted in a second; when the second is over, one line
//! tells how many more there were.
//!
//! # Invariants
//! * At most [`QUEUED_MAX`] bytes wait, and the lines about lines that were left out.
//! * Each line is admitted once, counted as dropped, or counted as limited.

use std::collections::{BTreeMap, VecDeque};
use std::panic::Location;
use std::time::Duration;

use super::Level;

/// The place in the code that logs a line.
pub(super) type CallSite = &'static Location<'static>;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogLine {
    pub(super) level: Level,
    /// The time since 1970.
    pub(super) at: Duration,
    pub(super) message: String,
    /// The number of dropped lines that this line reports; 0 for an ordinary line.
    pub(super) dropped: u64,
}

impl LogLine {
    pub(super) fn new(level: Level, at: Duration, message: String) -> Self {
        Self { level, at, message, dropped: 0 }
    }
}

/// The most lines of one call site that are written in one second.
pub(super) const EACH_SECOND: u32 = 10;
/// The most bytes of waiting messages, each with [`LINE_COST`] added.
pub(super) const QUEUED_MAX: usize = 256 << 10;
/// Bytes that a waiting line takes besides its message: about its struct, and its prefix when it is written.
const LINE_COST: usize = 64;
/// The most bytes in one write. A pipe takes this many bytes completely or not at all, so that lines of
/// several processes do not mix.
pub(super) const BATCH_MAX: usize = 4096;
/// The most characters of the example in a line about suppressed lines.
const EXAMPLE_MAX: usize = 200;

/// The waiting lines and the limits of all call sites.
pub(super) struct LogQueue {
    lines: VecDeque<LogLine>,
    bytes: usize,
    kinds: BTreeMap<CallSite, RateWindow>,
    /// The number of call sites with suppressed lines that were not reported yet.
    kinds_limited: usize,
    dropped: u64,
    limited: u64,
    /// The number of dropped lines that were not reported yet, and the time of the last one.
    untold: u64,
    untold_at: Duration,
}

/// The lines of one call site in one second.
struct RateWindow {
    second: u64,
    admitted: u32,
    limited: u64,
    level: Level,
    example: String,
}

impl LogQueue {
    pub(super) const fn new() -> Self {
        Self {
            lines: VecDeque::new(),
            bytes: 0,
            kinds: BTreeMap::new(),
            kinds_limited: 0,
            dropped: 0,
            limited: 0,
            untold: 0,
            untold_at: Duration::ZERO,
        }
    }

    /// Whether one more line of a call site may be written; to be asked before the line is formatted.
    pub(super) fn admit(&mut self, kind: CallSite, now: Duration) -> bool {
        let second = now.as_secs();
        let window = self.kinds.entry(kind).or_insert_with(|| RateWindow {
            second,
            admitted: 0,
            limited: 0,
            level: Level::Notice,
            example: String::new(),
        });
        // Any other second begins a new window, since the clock may be set back.
        if window.second != second && window.limited == 0 {
            (window.second, window.admitted) = (second, 0);
        }
        if window.admitted < EACH_SECOND {
            window.admitted += 1;
            return true;
        }
        if window.limited == 0 {
            self.kinds_limited += 1;
        }
        window.limited += 1;
        self.limited += 1;
        false
    }

    /// Appends a line, or drops it if there is no room.
    pub(super) fn push(&mut self, line: LogLine, kind: CallSite) {
        if let Some(window) = self.kinds.get_mut(kind) {
            window.level = line.level;
            line.message.chars().take(EXAMPLE_MAX).collect::<String>().clone_into(&mut window.example);
        }
        if self.bytes + cost(&line) > QUEUED_MAX {
            return self.count_lost(&[line]);
        }
        if let Some(dropped) = self.dropped_line() {
            self.append(dropped);
        }
        self.append(line);
    }

    /// Counts lines that could not be written; the next line that can be written is preceded by a report.
    pub(super) fn count_lost(&mut self, lines: &[LogLine]) {
        for line in lines {
            self.dropped += u64::from(line.dropped == 0);
            self.untold += line.dropped.max(1);
            self.untold_at = line.at;
        }
    }

    /// Whether [`LogQueue::report_limited`] has something to report, now or soon.
    pub(super) fn is_limiting(&self) -> bool {
        self.kinds_limited > 0
    }

    /// Appends a report for each call site with suppressed lines in a past second; with `at_once`, also in
    /// the present second.
    pub(super) fn report_limited(&mut self, now: Duration, at_once: bool) {
        if self.kinds_limited == 0 {
            return;
        }
        let mut told = Vec::new();
        for window in self.kinds.values_mut() {
            if window.limited > 0 && (at_once || window.second != now.as_secs()) {
                let (limited, example) = (std::mem::take(&mut window.limited), &window.example);
                let message = format!("{limited} more lines like this one were left out: {example}");
                told.push(LogLine::new(window.level, now, message));
                self.kinds_limited -= 1;
            }
        }
        for line in told {
            self.append(line);
        }
    }

    /// Takes the next lines to write, up to [`BATCH_MAX`] bytes, and at least one if there is one.
    pub(super) fn take(&mut self) -> Vec<LogLine> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(line) = self.lines.front() {
            bytes += cost(line);
            if bytes > BATCH_MAX && !batch.is_empty() {
                return batch;
            }
            self.bytes -= cost(line);
            batch.extend(self.lines.pop_front());
        }
        // No line followed the dropped ones. The report is not written alone: where writes fail it would be
        // lost and reported again for ever.
        if !batch.is_empty() {
            batch.extend(self.dropped_line());
        }
        batch
    }

    /// The number of lines dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The number of lines suppressed so far because of their call site's limit.
    pub(super) fn limited(&self) -> u64 {
        self.limited
    }

    /// The report of dropped lines, if there are any since the last report.
    fn dropped_line(&mut self) -> Option<LogLine> {
        let dropped = std::mem::take(&mut self.untold);
        let message =
            format!("{dropped} lines of the log were dropped here: they could not be written in time");
        (dropped > 0).then(|| LogLine { dropped, ..LogLine::new(Level::Warning, self.untold_at, message) })
    }

    fn append(&mut self, line: LogLine) {
        self.bytes += cost(&line);
        self.lines.push_back(line);
    }
}

fn cost(line: &LogLine) -> usize {
    line.message.len() + LINE_COST
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1000);

    fn line(message: &str) -> LogLine {
        LogLine::new(Level::Notice, START, message.to_owned())
    }

    fn messages(queue: &mut LogQueue) -> Vec<String> {
        let mut out = Vec::new();
        loop {
            let batch = queue.take();
            if batch.is_empty() {
                return out;
            }
            out.extend(batch.into_iter().map(|line| line.message));
        }
    }

    #[test]
    fn lines_leave_in_order_and_in_batches_of_a_pipes_size() {
        let mut queue = LogQueue::new();
        let kind = Location::caller();
        let texts: Vec<String> = (0..100).map(|i| format!("{i} {}", "x".repeat(200))).collect();
        for text in &texts {
            queue.push(line(text), kind);
        }
        let mut left = Vec::new();
        loop {
            let batch = queue.take();
            if batch.is_empty() {
                break;
            }
            assert!(batch.iter().map(cost).sum::<usize>() <= BATCH_MAX);
            left.extend(batch.into_iter().map(|line| line.message));
        }
        assert_eq!(left, texts);
        assert_eq!(queue.bytes, 0);
        let long = "y".repeat(3 * BATCH_MAX);
        queue.push(line(&long), kind);
        assert_eq!(messages(&mut queue), [long]);
    }

    #[test]
    fn a_full_queue_drops_and_says_how_many() {
        let mut queue = LogQueue::new();
        let kind = Location::caller();
        let text = "z".repeat(1000 - LINE_COST);
        let fit = QUEUED_MAX / 1000;
        for _ in 0..fit + 7 {
            queue.push(line(&text), kind);
        }
        assert!(queue.bytes <= QUEUED_MAX);
        assert_eq!(queue.dropped(), 7);
        // Room again, with the next line or without.
        let first = queue.take().len();
        queue.push(line("next"), kind);
        let told = "7 lines of the log were dropped here: they could not be written in time";
        let left = messages(&mut queue);
        assert_eq!(left.len(), fit - first + 2);
        assert_eq!(left[left.len() - 2..], [told, "next"]);
        for _ in 0..fit + 7 {
            queue.push(line(&text), kind);
        }
        assert_eq!(messages(&mut queue).last().unwrap(), told);
        assert_eq!((queue.dropped(), queue.bytes), (14, 0));
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_once_and_not_said_for_ever() {
        let mut queue = LogQueue::new();
        let kind = Location::caller();
        for i in 1..=3 {
            queue.push(line("lost"), kind);
            let batch = queue.take();
            assert_eq!(batch.len(), if i == 1 { 1 } else { 2 });
            queue.count_lost(&batch);
            assert_eq!(queue.dropped(), i);
            assert!(queue.take().is_empty(), "nothing to write");
        }
        queue.push(line("written"), kind);
        let told = "3 lines of the log were dropped here: they could not be written in time";
        assert_eq!(messages(&mut queue), [told, "written"]);
    }

    #[test]
    fn each_kind_has_its_lines_a_second() {
        let mut queue = LogQueue::new();
        let (one, other) = (Location::caller(), here());
        let mut admitted = 0;
        for i in 0..25 {
            if queue.admit(one, START) {
                admitted += 1;
                queue.push(line(&format!("one {i}")), one);
            }
        }
        assert_eq!((admitted, queue.limited()), (EACH_SECOND, 15));
        assert!(queue.admit(other, START), "another kind is not touched");
        assert_eq!(messages(&mut queue).len(), EACH_SECOND as usize);

        queue.report_limited(START + Duration::from_millis(999), false);
        assert!(messages(&mut queue).is_empty(), "the second is not over");
        assert!(!queue.admit(one, START + Duration::from_secs(1)), "first it is said");
        queue.report_limited(START + Duration::from_secs(1), false);
        assert_eq!(messages(&mut queue), ["16 more lines like this one were left out: one 9"]);
        assert!(!queue.is_limiting());
        // Earlier is another second, too: the clock was set back.
        assert!(queue.admit(one, Duration::from_secs(991)));
    }

    #[test]
    fn what_was_left_out_can_be_said_at_once() {
        let mut queue = LogQueue::new();
        let kind = Location::caller();
        while queue.admit(kind, START) {
            queue.push(line("again"), kind);
        }
        messages(&mut queue);
        queue.report_limited(START, true);
        assert_eq!(messages(&mut queue), ["1 more lines like this one were left out: again"]);
    }

    #[track_caller]
    fn here() -> CallSite {
        Location::caller()
    }
}
