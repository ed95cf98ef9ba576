//! This node's place in the list of nodes: its lease and its record.

use crate::etcd::grpc::GrpcError;
use crate::etcd::membership::{self, Registration, lease_s};
use crate::etcd::record::NodeRecord;
use crate::node::Notice;

use super::{EtcdLoop, FleetNode, TaskResult};

/// Pause between two records of this node while barriers wait, in milliseconds: the longest pause, and the
/// part of it for each listed node. Every record is sent to every node.
pub(super) const RECORD_MS: u64 = 100;
const RECORD_MS_PER_NODE: u64 = 4;

/// Between two attempts to be listed, in milliseconds.
pub(super) const REGISTER_MS: u64 = 1000;

/// Pause between two records if only the revision has changed, in milliseconds.
pub(super) const RECORD_AGAIN_MS: u64 = 10_000;

/// The state of this node's name in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameState {
    Free,
    /// Another node has the name, which the operator was told.
    Taken,
    /// The name's key is there, with an unreadable record.
    Unknown,
    /// The name's key was written by another program.
    Foreign,
}

impl<W: Send + 'static> EtcdLoop<W> {
    /// The record of this node.
    pub(super) fn record(&self, now_ms: u64) -> NodeRecord {
        let own = &self.source.own;
        NodeRecord {
            instance: own.instance,
            state: self.state,
            address: own.address.clone(),
            applied: u64::try_from(self.applied).unwrap_or(0),
            max_lag_ms: self.source.settings.max_lag_ms,
            lag_ms: self.confirmed_ms.map(|at_ms| now_ms.saturating_sub(at_ms)),
            release: own.release.clone(),
        }
    }

    /// Between two renewals of the lease, in milliseconds.
    pub(super) fn renew_after_ms(&self) -> u64 {
        lease_s(self.source.settings.max_lag_ms) * 1000 / 3
    }

    /// Keeps this node in the list, with its record up to date.
    pub(super) fn keep_seat(&mut self, now_ms: u64) {
        let prefix = self.source.place.prefix.clone();
        let (own, every_s) = (&self.source.own, lease_s(self.source.settings.max_lag_ms));
        let value = self.record(now_ms).text();
        let (owes, record_ms) =
            (self.written.is_some_and(|(_, applied, _)| self.owes(applied)), self.record_ms());
        let has_grown = self.written.is_some_and(|(_, applied, _)| self.has_grown(applied));
        let Some(link) = &mut self.link else { return };
        let channel = || link.channel.clone();
        if let Some(lease) = self.lease.filter(|_| !link.is_renewing && now_ms >= self.renew_ms) {
            link.is_renewing = true;
            self.renew_ms = now_ms + every_s * 1000 / 3;
            let renewed = membership::renew(channel(), lease);
            link.tasks.spawn(async move { TaskResult::Renewed(renewed.await) });
        }
        if link.is_seating {
            return;
        }
        // A request without answer may have been executed: its record is under the same lease, and would stay
        // for as long as that is renewed.
        let seat = self.seat.as_ref().map(|seat| &*seat.name);
        let is_stray = self.fleet.names_of(own.instance).any(|name| Some(name) != seat);
        let since_ms = is_stray.then(|| self.stray_ms.unwrap_or(now_ms));
        self.stray_ms = since_ms;
        if since_ms.is_some_and(|since_ms| now_ms >= since_ms + every_s * 1000) {
            (self.lease, self.seat, self.stray_ms) = (None, None, None);
        }
        let is_own_free = self.fleet.get(&own.name).is_none() && self.name != NameState::Foreign;
        let is_elsewhere = self.seat.as_ref().is_some_and(|seat| seat.name != own.name);
        if (self.seat.is_none() || is_elsewhere && is_own_free) && now_ms >= self.register_ms {
            link.is_seating = true;
            self.register_ms = now_ms + REGISTER_MS;
            // The lease of this node's last instance has not run out, or another node has the name.
            let name = if is_own_free {
                own.name.clone()
            } else {
                format!("{}~{:04x}", own.name, own.instance & 0xffff)
            };
            self.written = Some((self.state, self.applied, now_ms));
            let terms = (every_s, self.lease, self.seat.clone());
            let registered = membership::register(channel(), prefix, name, value, terms);
            link.tasks.spawn(async move { TaskResult::Registered(registered.await) });
            return;
        }
        let Some(seat) = self.seat.clone() else { return };
        let is_due = match self.written {
            None => true,
            Some((state, _, at_ms)) => {
                state != self.state
                    || owes && now_ms >= at_ms + record_ms
                    || has_grown && now_ms >= at_ms + RECORD_AGAIN_MS
            }
        };
        if is_due {
            link.is_seating = true;
            self.written = Some((self.state, self.applied, now_ms));
            let written = membership::write(channel(), prefix, seat, value);
            link.tasks.spawn(async move { TaskResult::Written(written.await) });
        }
    }

    /// Between two records while barriers wait, in milliseconds.
    pub(super) fn record_ms(&self) -> u64 {
        (self.fleet.len() as u64 * RECORD_MS_PER_NODE).min(RECORD_MS)
    }

    /// Whether there were bumps since the record was written.
    pub(super) fn has_grown(&self, written: i64) -> bool {
        self.mark.as_ref().is_some_and(|mark| mark.revision > written)
    }

    /// Whether a barrier waits for a revision that the written record does not have yet.
    pub(super) fn owes(&self, written: i64) -> bool {
        written < self.barrier_at && self.barrier_at <= self.applied
    }

    pub(super) fn registered(
        &mut self,
        result: Result<Registration, GrpcError>,
        node: &mut impl FleetNode<Waiter = W>,
    ) {
        match result {
            Ok(Registration::Seated(seat)) => {
                let is_own = seat.name == self.source.own.name;
                let other = self.fleet.get(&self.source.own.name);
                // The same address means this server before a restart, or before its rule file was read
                // again.
                let is_self = other.is_none_or(|record| record.address == self.source.own.address);
                if !is_own && !is_self && self.name == NameState::Free {
                    node.notice(Notice::NameTaken {
                        name: self.source.own.name.clone(),
                        by: other.map_or_else(String::new, |record| record.address.clone()),
                        instead: seat.name.clone(),
                    });
                }
                self.name = match self.name {
                    _ if is_own => NameState::Free,
                    NameState::Foreign => NameState::Foreign,
                    _ => NameState::Taken,
                };
                let now_ms = node.now_ms();
                self.renew_ms = now_ms + self.renew_after_ms();
                // A lease that was there may be older: it is renewed in time, or runs out.
                self.leased_ms = self.leased_ms.max(self.register_ms.saturating_sub(REGISTER_MS));
                (self.lease, self.seat) = (Some(seat.lease), Some(seat));
            }
            // The other node's record comes with the watch; then another name is tried.
            Ok(Registration::Taken { lease }) => {
                self.lease = Some(lease);
                self.register_ms = node.now_ms() + RECORD_MS;
                if self.fleet.get(&self.source.own.name).is_none() {
                    self.name_taken(node);
                }
            }
            Err(GrpcError::Status { message, .. }) if message.contains("lease not found") => {
                self.lease = None;
            }
            Err(error) if error.is_refusal() => self.refuse(&error, node),
            Err(_) => {}
        }
    }

    /// Handles a key of this node's name without a known record, which may still come.
    fn name_taken(&mut self, node: &mut impl FleetNode<Waiter = W>) {
        if self.name != NameState::Unknown {
            self.name = NameState::Unknown;
            return;
        }
        self.name = NameState::Foreign;
        let key = format!("{}/node/{}", self.source.place.prefix, self.source.own.name);
        if self.foreign.insert(key.clone().into_bytes()) {
            node.notice(Notice::Foreign { key });
        }
    }

    /// Handles a node's record that was written or has gone.
    pub(super) fn listed(&mut self, name: String, value: Option<&[u8]>, now_ms: u64) {
        self.is_list_new = true;
        let record = value.and_then(NodeRecord::parse);
        if name == self.source.own.name {
            match (value.is_some() && record.is_none(), self.name) {
                (true, NameState::Foreign) => {}
                // The operator is told with the next attempt to be listed.
                (true, _) => self.name = NameState::Unknown,
                (false, NameState::Foreign | NameState::Unknown) => self.name = NameState::Free,
                (false, _) => {}
            }
        }
        if self.seat.as_ref().is_some_and(|seat| seat.name == name)
            && record.as_ref().is_none_or(|record| record.instance != self.source.own.instance)
        {
            // The lease has run out, although this node did not expect it.
            (self.lease, self.seat, self.register_ms) = (None, None, 0);
        }
        match record {
            Some(record) => self.fleet.put(name, record),
            None => self.fleet.remove(&name, now_ms),
        }
    }
}
