//! The loop of a synchronous worker: read what has come, do its jobs one by one, write their replies.
//!
//! # Invariants
//! * Each job is claimed before it is begun, and answered or reported as skipped.
//! * A panic of the job function ends that job only.

use cattlegrid_panic::guarded;

use crate::frame::{HEADER_LEN, Header, Kind, put_frame, take_frame};
use crate::job::{Context, Job, JobError, Reply, panic_error, put_outcome, send_now};
use crate::link::{Link, LinkState};
use crate::message::{ErrorBody, JobBody};
use crate::outbox::die;

/// The function given to `Worker::init`.
pub(crate) type InitFn = Box<dyn FnOnce(&mut Context<'_>) -> Result<(), JobError>>;

/// Runs `init` and says READY, or reports the error and ends the process.
pub(crate) fn initialise(link: &mut Link, config: &[u8], init: Option<InitFn>) {
    let result = init.map_or(Ok(Ok(())), |init| {
        guarded(|| {
            let mut context = Context { config, fault: None, link: &mut *link };
            init(&mut context).and(context.fault.map_or(Ok(()), Err))
        })
    });
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => die(&link.outbox, link.max_frame, &error.body),
        Err(panic) => die(&link.outbox, link.max_frame, &panic_error(&panic).body),
    }
    link.outbox.push(|out| put_frame(out, Kind::Ready, 0, 0, |_| {}));
    link.outbox.flush();
}

/// Serves jobs until the parent retires this worker or goes away.
pub(crate) fn serve<R, F>(link: Link, mut work: F) -> !
where
    R: Reply,
    F: FnMut(&mut Job<'_>) -> Result<R, JobError>,
{
    let mut shared = LinkState::new(link);
    let mut buffer = Vec::new();
    let mut used = 0;
    loop {
        let mut held = false;
        loop {
            let link = shared.own();
            // The parent's own limit is not checked here: the parent started this process and is trusted.
            let (header, body) = match take_frame(&buffer[used..], u32::MAX) {
                Ok(Some((header, body, _))) => (header, body),
                Ok(None) => break,
                Err(error) => protocol_error(link, &error.to_string()),
            };
            used += HEADER_LEN + body.len();
            if header.kind != Kind::Job {
                on_other(link, header);
                continue;
            }
            let Some(job) = JobBody::parse(body) else { protocol_error(link, "malformed JOB") };
            if held {
                link.outbox.before_job(link.received);
            }
            run_one(&mut shared, header.id, job, &mut work);
            held = true;
        }
        let link = shared.own();
        link.outbox.flush();
        link.fill(&mut buffer, used, 0);
        used = 0;
    }
}

/// A frame that is not a JOB.
pub(crate) fn on_other(link: &mut Link, header: Header) {
    match header.kind {
        Kind::Cancel => {
            link.take_cancelled(header.id);
        }
        Kind::Retire => {
            link.outbox.flush();
            std::process::exit(0);
        }
        Kind::Ping => link.outbox.push(|out| put_frame(out, Kind::Pong, 0, header.id, |_| {})),
        other => protocol_error(link, &format!("unexpected {other:?}")),
    }
}

fn run_one<R, F>(shared: &mut LinkState, id: u64, body: JobBody<'_>, work: &mut F)
where
    R: Reply,
    F: FnMut(&mut Job<'_>) -> Result<R, JobError>,
{
    let link = shared.own();
    if !link.claimed.next() {
        // At once: the next job may take long, and until then the parent counts this job as ours.
        return send_now(&link.outbox, Kind::Skipped, 0, id, |_| {});
    }
    let outcome = if link.take_cancelled(id) {
        Err(cancelled())
    } else {
        let mut job = Job::new(id, body, shared);
        let outcome = guarded(|| work(&mut job));
        let outcome = outcome.unwrap_or_else(|panic| Err(panic_error(&panic)));
        job.fault.map_or(outcome, Err)
    };
    let link = shared.own();
    let max_frame = link.max_frame;
    link.outbox.push(|out| put_outcome(out, id, max_frame, &outcome));
}

/// The outcome of a job whose CANCEL came before it began.
pub(crate) fn cancelled() -> JobError {
    JobError::new("cancelled", "cancelled before it began")
}

/// Ends the process: the parent has sent a frame that this version does not understand.
pub(crate) fn protocol_error(link: &Link, message: &str) -> ! {
    die(
        &link.outbox,
        link.max_frame,
        &ErrorBody {
            code: "protocol".into(),
            message: message.into(),
            detail: String::new(),
            retryable: false,
        },
    )
}
