//! Submissions of many jobs, and what their handles ask for.

use crate::driver::Driver;
use crate::error::Error;
use crate::job::{JobEntry, JobStage, NewJob};
use crate::options::QueuePolicy;

impl Driver {
    /// Queues all jobs of a submission, and treats those beyond the limit as the policy says.
    pub(super) fn submit_all(&mut self, jobs: Vec<NewJob>) {
        let ids: Vec<u64> = jobs.into_iter().filter_map(|job| self.admit(job)).collect();
        let options = self.base.options();
        let (limit, policy) = (options.queue_limit, options.queue_policy);
        if policy == QueuePolicy::Wait {
            return self.queue_or_hold(&ids);
        }
        for id in &ids {
            self.enqueue(*id);
        }
        if self.jobs.queued() <= limit {
            return;
        }
        self.dispatch();
        if policy == QueuePolicy::DropOldest {
            while self.jobs.queued() > limit.max(1) && self.jobs.drop_oldest(&mut self.base) {}
        } else {
            for id in ids.into_iter().rev() {
                if self.jobs.queued() <= limit {
                    break;
                }
                if self.jobs.get(id).is_some_and(|job| job.stage == JobStage::Queued) {
                    self.jobs.end(id, Err(Error::Rejected), &mut self.base);
                }
            }
        }
    }

    /// Queues jobs up to the limit and holds the others back; none overtakes a job that was held before.
    fn queue_or_hold(&mut self, ids: &[u64]) {
        for id in ids {
            if self.jobs.held() == 0 && !self.jobs.is_full() {
                self.enqueue(*id);
            } else {
                self.jobs.hold(*id);
            }
        }
        let mut before = 0;
        while self.jobs.held() > 0 && self.jobs.held() != before {
            before = self.jobs.held();
            self.dispatch();
        }
    }

    /// A job's outcome is no longer needed: it ends, unless a worker has begun it; that one is told if `tell`
    /// says so.
    pub(super) fn withdraw(&mut self, id: u64, tell: bool) {
        let Some(JobEntry { sink: Some(_), stage, .. }) = self.jobs.get(id) else { return };
        if let JobStage::Sent(slot) = *stage {
            self.take_for_good(slot, id);
        }
        let Some(job) = self.jobs.get_mut(id) else { return };
        if let JobStage::Sent(slot) = job.stage {
            // Begun. Or both sides have claimed it at the same moment: if the worker skips it, it ends then.
            job.withdrawn = true;
            if tell && self.fleet.cancel(slot, id) {
                job.told = true;
            }
        } else {
            self.jobs.end(id, Err(Error::Cancelled), &mut self.base);
        }
    }
}
