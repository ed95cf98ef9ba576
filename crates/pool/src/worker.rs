//! One worker process as its parent sees it.
//!
//! # Invariants
//! * `in_flight` has an entry for each frame of a job that the worker has and has not answered, in the order
//!   sent; `taken` counts those that were taken back.
//! * `order` of a job counts the jobs sent to this worker, as the words of the progress page do.
//! * The jobs of a batch lie side by side in `in_flight`; `batches` counts the batches there. A job that was
//!   sent alone is a batch of one.

use std::cell::Cell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use cattlegrid_worker::List;
use cattlegrid_worker::frame::{Header, Kind, put_frame};
use cattlegrid_worker::message::JobBody;
use cattlegrid_worker::sys::{Exit, Page};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::budget::BudgetPlace;
use crate::job::JobEntry;
use crate::jsonl::{self, LineEnds};
use crate::logs::ProcessLog;
use crate::long_line::LongLine;
use crate::output::Output;
use crate::reply_room::{RoomPermit, Ticket};

/// A worker process, with everything that the pool knows of it.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not states of one machine")]
pub(crate) struct WorkerProcess {
    /// The worker's number, which no other worker of the pool ever gets.
    pub(crate) number: u64,
    pub(crate) generation: u32,
    /// The serial number of the template that forked it; `None` for a worker that the pool has exec'ed
    /// itself.
    pub(crate) template: Option<u64>,
    pub(crate) state: WorkerState,
    /// The process id; `None` before FORKED has come.
    pub(crate) pid: Option<Pid>,
    /// The process id that the worker reports. It is only shown, while FORKED has not come.
    pub(crate) said_pid: u32,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) log: ProcessLog,
    pub(crate) page: Option<Page>,
    /// Whether the worker writes the page.
    pub(crate) uses_page: bool,
    /// Whether the worker claims its jobs in the page before it begins them.
    pub(crate) uses_claims: bool,
    /// Whether the worker does one job, or one batch, at a time.
    pub(crate) one_at_a_time: bool,
    /// Whether the worker takes batches.
    pub(crate) takes_batches: bool,
    /// Most jobs in one of its batches.
    pub(crate) batch: usize,
    pub(crate) json: bool,
    /// Whether jobs and replies are JSON objects: see [`crate::Launch::objects`].
    pub(crate) objects: bool,
    /// Most batches that the worker has at a time.
    pub(crate) window: usize,
    pub(crate) max_frame: u32,
    pub(crate) input: Vec<u8>,
    /// The end of the next line of JSON.
    pub(crate) lines: LineEnds,
    /// An incomplete line that is longer than `max_frame`.
    pub(crate) long_line: Option<LongLine>,
    pub(crate) output: Output,
    /// Whether the pool waits for the socket to take more.
    pub(crate) want_write: bool,
    /// Whether the worker is not read because the event stream is full.
    pub(crate) paused: bool,
    /// The room for the frame that is being read, if it needs any.
    pub(crate) room: FrameRoom,
    /// Whether its end is known: the bytes that it has sent are read to the end, over all limits.
    pub(crate) has_ended: bool,
    pub(crate) in_flight: VecDeque<SentJob>,
    pub(crate) in_flight_bytes: usize,
    /// The index of the job in flight that was found last.
    near: Cell<usize>,
    /// The number of batches of which the worker has a job in flight.
    pub(crate) batches: usize,
    /// The number of jobs in flight that were taken back.
    pub(crate) taken: usize,
    /// The number of jobs sent so far.
    pub(crate) sent: u64,
    /// The number of jobs answered so far.
    pub(crate) answered: u64,
    /// The number of jobs after which it is retired; 0: never.
    pub(crate) job_limit: u64,
    pub(crate) expires: Option<Instant>,
    pub(crate) born: Instant,
    /// The time of the last dispatch or reply, by the fleet's counter of both.
    pub(crate) last_used: u64,
    /// Jobs that it was told to cancel and still has.
    pub(crate) doomed: Vec<DoomedJob>,
    /// The time since when it has begun no job, and the number of jobs begun by then. They have a meaning
    /// only while it has jobs.
    pub(crate) stalled: (Instant, u64),
    /// The time of SIGKILL, for a worker that was told to leave or is ending. For a killed worker: the time
    /// at which the pool stops waiting for its end.
    pub(crate) kill_at: Option<Instant>,
    /// Whether the worker broke the protocol, for which it is killed.
    pub(crate) broke_protocol: bool,
    /// The reason why it was killed or failed, for errors.
    pub(crate) reason: Option<String>,
    pub(crate) exit: Option<Exit>,
    pub(crate) rss_kib: u64,
    /// The worker's place in the budget.
    pub(crate) place: BudgetPlace,
    /// Whether it counts in the sizing, is a spare, or is the first worker of a new generation.
    pub(crate) role: Role,
    /// The worker has said HELLO.
    pub(crate) greeted: bool,
    /// The worker has said READY.
    pub(crate) was_ready: bool,
    /// The worker said READY as a spare, before it had INIT.
    pub(crate) ready_early: bool,
    /// The worker asked to be retired.
    pub(crate) asked_to_leave: bool,
    /// The worker died because its template did: reported once, for the template.
    pub(crate) with_template: bool,
    /// The worker was told to leave: its end is no failure.
    pub(crate) told_to_leave: bool,
    pub(crate) pinged: bool,
    /// A job of the worker has exceeded its time and does not end, and other jobs must not be lost: the
    /// worker gets no more jobs, and is killed when the others have ended.
    pub(crate) condemned: bool,
    /// The ping that a condemned worker has to answer as proof that it still works on its other jobs: when it
    /// was sent.
    pub(crate) proof: Option<Instant>,
}

/// The room that a frame needs while it is read: see [`crate::ReplyRoom`].
#[derive(Debug, Default)]
pub(crate) enum FrameRoom {
    /// The frame needs no room, or room was not asked for yet.
    #[default]
    None,
    /// There was no room: the worker is not read.
    Waits(Ticket),
    /// The frame has its room.
    Held(RoomPermit),
}

/// A ready worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// The worker's number, for [`crate::Pool::retire`].
    pub number: u64,
    /// The worker's process id, which is also its process group's.
    pub pid: u32,
    /// The generation of the worker's program.
    pub generation: u32,
    /// The number of jobs that the worker has.
    pub jobs: usize,
}

/// A job at a worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentJob {
    pub(crate) id: u64,
    /// The job's place in the order of jobs sent to this worker, from 0.
    pub(crate) order: u64,
    /// The order of the first job after its batch.
    pub(crate) end: u64,
    pub(crate) bytes: usize,
    /// The job was taken back: it is elsewhere, and this entry stands for its frame, which the worker will
    /// skip.
    pub(crate) taken: bool,
}

/// A job at a worker, whose caller has gone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DoomedJob {
    pub(crate) id: u64,
    /// Since when the worker has been in the job and has been told to stop it.
    pub(crate) since: Instant,
    pub(crate) termed: bool,
    /// Whether the job's time is up. Otherwise its caller has gone, and the other jobs of its batch must not
    /// suffer for it.
    pub(crate) overdue: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerState {
    /// The worker has not said READY.
    Starting,
    /// The worker gets jobs.
    Ready,
    /// The worker finishes its jobs and gets no more.
    Retiring,
    /// The worker has closed its socket, or said that it cannot go on. It is killed if it does not end soon.
    Ending,
    /// SIGKILL was sent, and the pool waits for the process to end.
    Killed,
}

impl WorkerState {
    /// Whether the worker does no more jobs, so that the pool only waits for its end.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Ending | Self::Killed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A worker that counts in the sizing.
    Member,
    /// A worker that was started ahead and waits for INIT.
    Spare,
    /// The first worker of a generation that is being launched.
    Probe,
}

impl WorkerProcess {
    /// A worker whose start begins at `now`. The caller adds its process, descriptors and limits.
    pub(crate) fn new(number: u64, generation: u32, role: Role, log: ProcessLog, now: Instant) -> Self {
        Self {
            number,
            generation,
            template: None,
            state: WorkerState::Starting,
            pid: None,
            pidfd: None,
            socket: None,
            log,
            page: None,
            said_pid: 0,
            uses_page: false,
            uses_claims: false,
            one_at_a_time: false,
            takes_batches: false,
            batch: 1,
            json: false,
            objects: false,
            window: 1,
            max_frame: 0,
            input: Vec::new(),
            lines: LineEnds::default(),
            long_line: None,
            output: Output::default(),
            want_write: false,
            paused: false,
            room: FrameRoom::None,
            has_ended: false,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            near: Cell::new(0),
            batches: 0,
            taken: 0,
            sent: 0,
            answered: 0,
            job_limit: 0,
            expires: None,
            born: now,
            last_used: 0,
            doomed: Vec::new(),
            stalled: (now, 0),
            kill_at: None,
            broke_protocol: false,
            reason: None,
            exit: None,
            rss_kib: 0,
            place: BudgetPlace::default(),
            role,
            greeted: false,
            was_ready: false,
            ready_early: false,
            asked_to_leave: false,
            told_to_leave: false,
            with_template: false,
            pinged: false,
            condemned: false,
            proof: None,
        }
    }

    /// Asks the worker to finish its jobs and leave.
    pub(crate) fn put_retire(&mut self) {
        if self.json {
            jsonl::plain_line(self.output.tail(), "retire");
        } else {
            put_frame(self.output.tail(), Kind::Retire, 0, 0, |_| {});
        }
    }

    /// Asks the worker for a sign of life.
    pub(crate) fn put_ping(&mut self) {
        if self.json {
            jsonl::plain_line(self.output.tail(), "ping");
        } else {
            put_frame(self.output.tail(), Kind::Ping, 0, 0, |_| {});
        }
    }

    /// Tells the worker that the outcome of a job is no longer needed.
    pub(crate) fn put_cancel(&mut self, id: u64) {
        if self.json {
            jsonl::cancel_line(self.output.tail(), id);
        } else {
            put_frame(self.output.tail(), Kind::Cancel, 0, id, |_| {});
        }
    }

    /// Writes a job, with the `flags` of its frame.
    ///
    /// # Errors
    /// Why its arguments cannot be written.
    pub(crate) fn put_job(&mut self, id: u64, job: &JobEntry, flags: u8, now: Instant) -> Result<(), String> {
        let left = job.deadline.map_or(0, |at| at.saturating_duration_since(now).as_millis().max(1));
        let deadline_ms = u32::try_from(left).unwrap_or(u32::MAX);
        let list = || List::parse(&job.args).unwrap_or(List::EMPTY);
        let out = self.output.tail();
        if self.objects {
            jsonl::object_line(out, id, deadline_ms, job.attempt, list())?;
        } else if self.json {
            jsonl::job_line(out, id, deadline_ms, job.attempt, list());
        } else {
            let prefix = JobBody::prefix(deadline_ms, job.attempt);
            let len = (prefix.len() + job.args.len()) as u32;
            out.extend_from_slice(&Header { len, kind: Kind::Job, flags, id }.encode());
            out.extend_from_slice(&prefix);
            self.output.push(&job.args);
        }
        Ok(())
    }

    /// Whether the worker is not read, because there is no room for its output.
    pub(crate) fn is_unread(&self) -> bool {
        self.paused || self.waits_for_room()
    }

    /// Whether the worker is not read, because there is no room for its reply.
    pub(crate) fn waits_for_room(&self) -> bool {
        matches!(self.room, FrameRoom::Waits(_))
    }

    /// Whether the worker has begun this job, and it was not taken back.
    pub(crate) fn has_begun(&self, sent: &SentJob) -> bool {
        match &self.page {
            Some(page) if self.uses_page => !sent.taken && sent.order < page.claims().begun(),
            // Without a page there is one job at a time: begun as soon as it was written.
            _ => self.output.is_empty(),
        }
    }

    /// The number of its jobs without those that were taken back.
    pub(crate) fn own(&self) -> usize {
        self.in_flight.len() - self.taken
    }

    /// Whether the worker has this job.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.place_of(id).is_some()
    }

    /// The index of a job among those in flight.
    #[inline]
    pub(crate) fn place_of(&self, id: u64) -> Option<usize> {
        let is_it = |sent: &SentJob| sent.id == id && !sent.taken;
        // Jobs of a batch are answered, and run out of time, in their order or in the reverse order.
        let near = self.near.get();
        let places = [near, near + 1, near.saturating_sub(1)];
        let found = places.into_iter().find(|at| self.in_flight.get(*at).is_some_and(is_it));
        let found = found.or_else(|| self.in_flight.iter().position(is_it))?;
        self.near.set(found);
        Some(found)
    }

    /// Whether the worker may be in this job, which it has begun, as far as the pool knows: the reply to a
    /// finished job may not have arrived yet.
    pub(crate) fn may_be_in(&self, sent: &SentJob) -> bool {
        let last = |page: &Page| sent.end == page.claims().begun();
        self.has_begun(sent)
            && !(self.uses_page && self.one_at_a_time && self.page.as_ref().is_some_and(|page| !last(page)))
    }

    /// Whether the worker has jobs, is in none of them, and does not take the next one, as a stopped process
    /// behaves. It is known only with a page.
    pub(crate) fn is_stalled(&mut self, now: Instant) -> bool {
        let Some(begun) = self.page.as_ref().filter(|_| self.uses_page).map(|page| page.claims().begun())
        else {
            return false;
        };
        if self.is_unread()
            || begun != self.stalled.1
            || self.in_flight.iter().any(|sent| self.has_begun(sent))
        {
            self.stalled = (now, begun);
        }
        !self.in_flight.is_empty()
    }

    /// Whether another batch may be sent to the worker.
    #[inline]
    pub(crate) fn has_credit(&self) -> bool {
        self.state == WorkerState::Ready && self.batches < self.window && self.socket.is_some()
    }

    /// Sends a signal to the worker's process group. Does nothing when the worker is gone.
    ///
    /// The pidfd tells whether the number is still the worker's. Between that check and the kill the
    /// worker could end *and* be reaped *and* its number be used again by a new group leader; the kernel
    /// hands out numbers in a cycle, so that needs the whole cycle in a microsecond.
    pub(crate) fn signal_group(&self, signal: Signal) {
        let Some(pid) = self.pid else { return };
        if self.exit.is_some() {
            return;
        }
        if let Some(pidfd) = &self.pidfd
            && rustix::process::pidfd_send_signal(pidfd, signal) == Err(rustix::io::Errno::SRCH)
        {
            return;
        }
        if kill_process_group(pid, signal).is_err() {
            kill_process(pid, signal).ok();
        }
    }

    /// Whether the worker has begun any job.
    pub(crate) fn has_worked(&self) -> bool {
        match &self.page {
            Some(page) if self.uses_page => page.claims().begun() > 0,
            _ => self.sent > 0,
        }
    }

    /// The way in which the process ended, in words.
    pub(crate) fn ending(&self) -> String {
        let how = match self.exit {
            None => "status unknown".to_owned(),
            Some(exit) if exit.status < 0 => format!("killed by signal {}", -exit.status),
            Some(exit) => format!("exited with status {}", exit.status),
        };
        match &self.reason {
            None => how,
            Some(reason) => format!("{reason} ({how})"),
        }
    }
}
