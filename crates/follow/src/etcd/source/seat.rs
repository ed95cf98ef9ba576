//! This node's place in the list of nodes: its lease, and what it says of itself.

use crate::etcd::grpc::GrpcError;
use crate::etcd::membership::{self, Registered, lease_s};
use crate::etcd::record::Record;
use crate::node::Notice;

use super::{Done, Node, Running};

/// Between two of a node's records while barriers wait, in milliseconds: the longest, and the part of it for each node that is listed. Each
/// node writes, and each is sent what all write.
pub(super) const RECORD_MS: u64 = 100;
const RECORD_MS_PER_NODE: u64 = 4;

/// Between two attempts to be listed, in milliseconds.
pub(super) const REGISTER_MS: u64 = 1000;

/// Between two records only because the revision has changed, in milliseconds.
pub(super) const RECORD_AGAIN_MS: u64 = 10_000;

/// The state of this node's name in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnName {
    Free,
    /// Another node has it, which was said.
    Taken,
    /// The name's key is there, with an unreadable record.
    Unknown,
    /// The name's key was written by another program.
    Foreign,
}

impl<W: Send + 'static> Running<W> {
    /// The record of this node.
    pub(super) fn record(&self, now_ms: u64) -> Record {
        let own = &self.source.own;
        Record {
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

    /// Keeps this node in the list, with what it says of itself.
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
            link.tasks.spawn(async move { Done::Renewed(renewed.await) });
        }
        if link.is_seating {
            return;
        }
        // A request that was not answered was executed all the same: what it wrote is under the same lease, and would stay for as long as
        // that is renewed.
        let seat = self.seat.as_ref().map(|seat| &*seat.name);
        let is_stray = self.fleet.names_of(own.instance).any(|name| Some(name) != seat);
        let since_ms = is_stray.then(|| self.stray_ms.unwrap_or(now_ms));
        self.stray_ms = since_ms;
        if since_ms.is_some_and(|since_ms| now_ms >= since_ms + every_s * 1000) {
            (self.lease, self.seat, self.stray_ms) = (None, None, None);
        }
        let is_own_free = self.fleet.get(&own.name).is_none() && self.name != OwnName::Foreign;
        let is_elsewhere = self.seat.as_ref().is_some_and(|seat| seat.name != own.name);
        if (self.seat.is_none() || is_elsewhere && is_own_free) && now_ms >= self.register_ms {
            link.is_seating = true;
            self.register_ms = now_ms + REGISTER_MS;
            // Until the lease of the last instance has run out, or for as long as another node has the name.
            let name = if is_own_free {
                own.name.clone()
            } else {
                format!("{}~{:04x}", own.name, own.instance & 0xffff)
            };
            self.written = Some((self.state, self.applied, now_ms));
            let terms = (every_s, self.lease, self.seat.clone());
            let registered = membership::register(channel(), prefix, name, value, terms);
            link.tasks.spawn(async move { Done::Registered(registered.await) });
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
            link.tasks.spawn(async move { Done::Written(written.await) });
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

    /// Whether a barrier waits for what the record does not say yet.
    pub(super) fn owes(&self, written: i64) -> bool {
        written < self.barrier_at && self.barrier_at <= self.applied
    }

    pub(super) fn registered(
        &mut self,
        result: Result<Registered, GrpcError>,
        node: &mut impl Node<Waiter = W>,
    ) {
        match result {
            Ok(Registered::Seated(seat)) => {
                let is_own = seat.name == self.source.own.name;
                let other = self.fleet.get(&self.source.own.name);
                // This server before it was started again, or before its rule file was read again, is no other node.
                let is_self = other.is_none_or(|record| record.address == self.source.own.address);
                if !is_own && !is_self && self.name == OwnName::Free {
                    node.notice(Notice::NameTaken {
                        name: self.source.own.name.clone(),
                        by: other.map_or_else(String::new, |record| record.address.clone()),
                        instead: seat.name.clone(),
                    });
                }
                self.name = match self.name {
                    _ if is_own => OwnName::Free,
                    OwnName::Foreign => OwnName::Foreign,
                    _ => OwnName::Taken,
                };
                let now_ms = node.now_ms();
                self.renew_ms = now_ms + self.renew_after_ms();
                // A lease that was there may be older: it is renewed in time, or runs out.
                self.leased_ms = self.leased_ms.max(self.register_ms.saturating_sub(REGISTER_MS));
                (self.lease, self.seat) = (Some(seat.lease), Some(seat));
            }
            // Its record comes with the watch; then another name is tried.
            Ok(Registered::Taken { lease }) => {
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

    /// The key of this node's name is there, and no record of a node is known: it may come.
    fn name_taken(&mut self, node: &mut impl Node<Waiter = W>) {
        if self.name != OwnName::Unknown {
            self.name = OwnName::Unknown;
            return;
        }
        self.name = OwnName::Foreign;
        let key = format!("{}/node/{}", self.source.place.prefix, self.source.own.name);
        if self.foreign.insert(key.clone().into_bytes()) {
            node.notice(Notice::Foreign { key });
        }
    }

    /// A node's record has come, or has gone.
    pub(super) fn listed(&mut self, name: String, value: Option<&[u8]>, now_ms: u64) {
        self.is_list_new = true;
        let record = value.and_then(Record::parse);
        if name == self.source.own.name {
            match (value.is_some() && record.is_none(), self.name) {
                (true, OwnName::Foreign) => {}
                // Said with the next attempt to be listed.
                (true, _) => self.name = OwnName::Unknown,
                (false, OwnName::Foreign | OwnName::Unknown) => self.name = OwnName::Free,
                (false, _) => {}
            }
        }
        if self.seat.as_ref().is_some_and(|seat| seat.name == name)
            && record.as_ref().is_none_or(|record| record.instance != self.source.own.instance)
        {
            // The lease has run out, whatever it seemed here.
            (self.lease, self.seat, self.register_ms) = (None, None, 0);
        }
        match record {
            Some(record) => self.fleet.put(name, record),
            None => self.fleet.remove(&name, now_ms),
        }
    }
}
