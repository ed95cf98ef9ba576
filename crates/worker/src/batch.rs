//! The loop of a worker that takes batches: read a batch, do its jobs in one call, write their replies.
//!
//! A batch is a run of JOB frames that all but the last one have the flag MORE. It is kept in the input until
//! its last frame is there; then its jobs are claimed together.
//!
//! # Invariants
//! * A batch is claimed when all of it has arrived, not before.
//! * Each of its jobs is answered, or reported as skipped. A job that was taken back or cancelled before is
//!   not in the call.
//! * A panic of the function, or a wrong number of outcomes, ends the jobs of that batch only.

use cattlegrid_panic::guarded;

use crate::frame::{FLAG_MORE, HEADER_LEN, Header, Kind, put_frame, take_frame};
use crate::job::{Job, JobError, Reply, panic_error, put_outcome};
use crate::link::{Link, LinkState};
use crate::message::JobBody;
use crate::serve::{cancelled, on_other, protocol_error};

/// Serves batches until the parent retires this worker or goes away.
pub(crate) fn serve_batch<R, F>(link: Link, mut work: F) -> !
where
    R: Reply,
    F: FnMut(&mut [Job<'_>]) -> Vec<Result<R, JobError>>,
{
    let mut shared = LinkState::new(link);
    let mut buffer = Vec::new();
    let mut used = 0;
    loop {
        let mut held = false;
        let whole = loop {
            let link = shared.own();
            match next(&buffer[used..]).unwrap_or_else(|broken| protocol_error(link, &broken)) {
                NextInput::Part(whole) => break whole,
                NextInput::Other(header) => {
                    used += HEADER_LEN + header.len as usize;
                    on_other(link, header);
                }
                NextInput::Batch(frames, len) => {
                    used += len;
                    if held {
                        link.outbox.before_job(link.received);
                    }
                    run(&mut shared, frames, &mut work);
                    held = true;
                }
            }
        };
        let link = shared.own();
        link.outbox.flush();
        link.fill(&mut buffer, used, whole);
        used = 0;
    }
}

/// The first frames of the input.
#[derive(Debug)]
enum NextInput<'a> {
    /// The jobs of a whole batch, and the bytes of their frames.
    Batch(Vec<(u64, JobBody<'a>)>, usize),
    /// A frame that is not a JOB.
    Other(Header),
    /// A part of a batch, or of a frame. This many bytes of it are whole frames.
    Part(usize),
}

/// # Errors
/// The rule of the protocol that the parent broke.
fn next(bytes: &[u8]) -> Result<NextInput<'_>, String> {
    let (mut jobs, mut len) = (Vec::new(), 0);
    // The parent's own limit is not checked here: the parent started this process and is trusted.
    while let Some((header, body, _)) =
        take_frame(&bytes[len..], u32::MAX).map_err(|error| error.to_string())?
    {
        if header.kind != Kind::Job {
            if jobs.is_empty() {
                return Ok(NextInput::Other(header));
            }
            return Err(format!("{:?} in a batch", header.kind));
        }
        jobs.push((header.id, JobBody::parse(body).ok_or("malformed JOB")?));
        len += HEADER_LEN + body.len();
        if header.flags & FLAG_MORE == 0 {
            return Ok(NextInput::Batch(jobs, len));
        }
    }
    Ok(NextInput::Part(len))
}

fn run<R, F>(shared: &mut LinkState, mut frames: Vec<(u64, JobBody<'_>)>, work: &mut F)
where
    R: Reply,
    F: FnMut(&mut [Job<'_>]) -> Vec<Result<R, JobError>>,
{
    let link = shared.own();
    let max_frame = link.max_frame;
    let skipped = link.claimed.skip_of(frames.len() as u64) as usize;
    if skipped > 0 {
        for (id, _) in frames.drain(..skipped) {
            link.outbox.push(|out| put_frame(out, Kind::Skipped, 0, id, |_| {}));
        }
        // At once: the batch may take long, and until then the parent counts these jobs as ours.
        link.outbox.flush();
    }
    frames.retain(|(id, _)| {
        let gone = link.take_cancelled(*id);
        if gone {
            link.outbox.push(|out| put_outcome(out, *id, max_frame, &Err::<R, _>(cancelled())));
        }
        !gone
    });
    if frames.is_empty() {
        return;
    }
    let shared = &*shared;
    let mut jobs: Vec<_> = frames.into_iter().map(|(id, body)| Job::new(id, body, shared)).collect();
    let outcomes = outcomes_of(&mut jobs, work);
    let outbox = shared.outbox().0;
    for (job, outcome) in jobs.into_iter().zip(outcomes) {
        let outcome = job.fault.map_or(outcome, Err);
        outbox.push(|out| put_outcome(out, job.id, max_frame, &outcome));
    }
}

/// Runs the function; returns an outcome for each job.
fn outcomes_of<R, F>(jobs: &mut [Job<'_>], work: &mut F) -> Vec<Result<R, JobError>>
where
    F: FnMut(&mut [Job<'_>]) -> Vec<Result<R, JobError>>,
{
    let error = match guarded(|| work(jobs)) {
        Ok(outcomes) if outcomes.len() == jobs.len() => return outcomes,
        Ok(outcomes) => {
            let (got, wanted) = (outcomes.len(), jobs.len());
            // Destructors of the program's values.
            guarded(|| drop(outcomes)).ok();
            JobError::new("error", format!("the batch of {wanted} jobs got {got} outcomes"))
        }
        Err(panic) => panic_error(&panic),
    };
    jobs.iter().map(|_| Err(error.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::put_list;

    fn put_job(out: &mut Vec<u8>, flags: u8, id: u64) {
        put_frame(out, Kind::Job, flags, id, |out| {
            out.extend_from_slice(&JobBody::prefix(0, 0));
            put_list(out, &[vec![b'x'; id as usize]]);
        });
    }

    fn ids(jobs: &[(u64, JobBody<'_>)]) -> Vec<u64> {
        jobs.iter().map(|job| job.0).collect()
    }

    #[test]
    fn a_batch_is_there_when_its_last_frame_is() {
        let mut bytes = Vec::new();
        let ends: Vec<usize> = (1..=5)
            .map(|id| {
                put_job(&mut bytes, if id < 5 { FLAG_MORE } else { 0 }, id);
                bytes.len()
            })
            .collect();
        for cut in 0..bytes.len() {
            let whole = ends.iter().copied().filter(|end| *end <= cut).max().unwrap_or(0);
            assert!(matches!(next(&bytes[..cut]), Ok(NextInput::Part(len)) if len == whole), "cut at {cut}");
        }
        put_job(&mut bytes, 0, 6);
        let Ok(NextInput::Batch(jobs, len)) = next(&bytes) else { panic!("a batch") };
        assert_eq!((ids(&jobs), len), (vec![1, 2, 3, 4, 5], ends[4]));
        let Ok(NextInput::Batch(jobs, rest)) = next(&bytes[len..]) else { panic!("a batch of one") };
        assert_eq!((ids(&jobs), len + rest), (vec![6], bytes.len()));
    }

    #[test]
    fn another_frame_is_between_batches_and_not_within_one() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, Kind::Cancel, 0, 9, |_| {});
        let len = bytes.len();
        assert!(matches!(next(&bytes), Ok(NextInput::Other(header)) if header.id == 9));
        put_job(&mut bytes, FLAG_MORE, 1);
        put_frame(&mut bytes, Kind::Cancel, 0, 9, |_| {});
        assert_eq!(next(&bytes[len..]).unwrap_err(), "Cancel in a batch");
        put_frame(&mut bytes, Kind::Job, 0, 2, |out| out.push(1));
        assert_eq!(next(&bytes[bytes.len() - 17..]).unwrap_err(), "malformed JOB");
        assert!(next(&[0xff; 16]).is_err());
    }
}
