//! Batches of bumps on their way into the log, one at a time, and their results.

use crate::etcd::entry::BatchEntry;
use crate::etcd::grpc::GrpcError;
use crate::etcd::link::RESPONSE_MAX;
use crate::etcd::messages::{PutRequest, PutResponse};
use crate::etcd::outbox::BATCH_MAX;
use crate::node::Notice;

use super::{EtcdLoop, FleetNode, TaskResult};

/// Time that a batch waits for further bumps, in milliseconds.
const BATCH_MS: u64 = 1;

/// Pause before a refused batch is tried again, in milliseconds.
const REFUSED_MS: u64 = 1000;

impl<W: Send + 'static> EtcdLoop<W> {
    /// Writes all lines that are left, and waits until they are committed.
    pub(super) async fn write_rest(&mut self, node: &mut impl FleetNode<Waiter = W>) {
        self.batch_ms = Some(0);
        loop {
            self.write_batch(node.now_ms());
            let Some(link) = self.link.as_mut().filter(|link| link.put_ms.is_some()) else { return };
            match link.tasks.join_next().await {
                Some(Ok(done)) => self.done(done, node),
                Some(Err(_)) | None => return,
            }
            if self.refused.is_some() {
                return;
            }
            self.batch_ms = Some(0);
        }
    }

    pub(super) fn write_batch(&mut self, now_ms: u64) {
        let mut outbox = self.mail.lock();
        if !outbox.is_ready() {
            return;
        }
        let due_ms = *self.batch_ms.get_or_insert(now_ms + BATCH_MS);
        let is_full = outbox.backlog() >= BATCH_MAX && self.refused.is_none();
        if now_ms < due_ms && !is_full {
            return;
        }
        let Some(batch) = outbox.begin() else { return };
        drop(outbox);
        self.batch_ms = None;
        self.batches += 1;
        let own = &self.source.own;
        let entry = BatchEntry {
            instance: own.instance,
            number: self.batches,
            has_barrier: batch.has_barrier,
            lines: batch.lines.iter().map(|(_, line)| Box::from(&**line)).collect(),
        };
        let key = format!("{}/bump/{}", self.source.place.prefix, own.name).into_bytes();
        let request = PutRequest { key, value: entry.text(), lease: 0 };
        self.spawn(|channel| async move {
            TaskResult::Put(channel.unary("KV/Put", &request, RESPONSE_MAX).await)
        });
        if let Some(link) = &mut self.link {
            link.put_ms = Some(now_ms);
        }
    }

    /// Handles the result of writing a batch.
    pub(super) fn put(
        &mut self,
        result: Result<PutResponse, GrpcError>,
        node: &mut impl FleetNode<Waiter = W>,
    ) {
        let now_ms = node.now_ms();
        let Some(link) = &mut self.link else { return };
        match result {
            Ok(response) => {
                link.put_ms = None;
                let is_same =
                    response.header.as_ref().is_some_and(|header| header.cluster_id == link.cluster);
                if !is_same {
                    return self.lose("the cluster is another one".to_owned(), node);
                }
                let revision = response.header.map_or(0, |header| header.revision);
                let turn = {
                    let mut outbox = self.mail.lock();
                    let _none = outbox.set_up(true);
                    outbox.commit()
                };
                if self.refused.take().is_some() {
                    node.notice(Notice::Takes(None));
                }
                node.tell(turn.committed, true);
                if !turn.barriers.is_empty() {
                    let own = self.source.own.instance;
                    self.fleet.wait(own, u64::try_from(revision).unwrap_or(0), now_ms, turn.barriers);
                }
            }
            Err(error) if error.is_refusal() => {
                link.put_ms = None;
                let waiters = {
                    let mut outbox = self.mail.lock();
                    outbox.give_back();
                    outbox.set_up(false)
                };
                node.tell(waiters, false);
                self.batch_ms = Some(now_ms + REFUSED_MS);
                self.refuse(&error, node);
            }
            Err(error) => self.lose(error.to_string(), node),
        }
    }

    pub(super) fn refuse(&mut self, error: &GrpcError, node: &mut impl FleetNode<Waiter = W>) {
        let missing = self.source.refusal(error);
        let reason = missing.to_string();
        if self.refused.as_ref() != Some(&reason) {
            self.refused = Some(reason);
            node.notice(Notice::Takes(Some(missing)));
        }
    }
}
