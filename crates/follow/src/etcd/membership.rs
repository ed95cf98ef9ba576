//! A node's place in the list: a lease, and the record under it.

use std::time::Duration;

use crate::etcd::grpc::{Channel, GrpcError};
use crate::etcd::link::RESPONSE_MAX;
use crate::etcd::messages::{
    Compare, CompareWith, DeleteRequest, EmptyMessage, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveResponse, LeaseRequest, Operation, PutRequest, PutResponse, RequestOp, TxnRequest,
    TxnResponse,
};

/// Shortest lease, in seconds. One of a node with a long `max_lag` is longer: when it has run out, the node
/// is behind.
const LEASE_S: u64 = 5;

/// How long a node is listed that is not heard of, in seconds.
pub(super) fn lease_s(max_lag_ms: u64) -> u64 {
    LEASE_S.max(max_lag_ms.div_ceil(1000) + 2)
}

/// The place that a node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) lease: i64,
    pub(super) name: String,
}

/// The result of an attempt to be listed.
#[derive(Debug)]
pub(super) enum Registration {
    /// Under this name.
    Seated(Seat),
    /// Another node has the name; the lease is ours.
    Taken { lease: i64 },
}

fn put(key: String, value: Vec<u8>, lease: i64) -> PutRequest {
    PutRequest { key: key.into_bytes(), value, lease }
}

/// Claims `PREFIX/node/NAME`, if no other node has it; `seat`: what is ours already, and is left for it.
pub(super) async fn register(
    channel: Channel,
    prefix: String,
    name: String,
    value: Vec<u8>,
    (lease_s, lease, seat): (u64, Option<i64>, Option<Seat>),
) -> Result<Registration, GrpcError> {
    let lease = if let Some(lease) = lease {
        lease
    } else {
        let request = LeaseGrantRequest { ttl: i64::try_from(lease_s).unwrap_or(i64::MAX) };
        channel.unary::<_, LeaseGrantResponse>("Lease/LeaseGrant", &request, RESPONSE_MAX).await?.id
    };
    let key = format!("{prefix}/node/{name}");
    let left = seat.map(|seat| format!("{prefix}/node/{}", seat.name));
    Ok(if claim(&channel, key, value, lease, left).await? {
        Registration::Seated(Seat { lease, name })
    } else {
        Registration::Taken { lease }
    })
}

/// Writes a key if it is not there, and then deletes the key `left`. Whether it was not.
pub(super) async fn claim(
    channel: &Channel,
    key: String,
    value: Vec<u8>,
    lease: i64,
    left: Option<String>,
) -> Result<bool, GrpcError> {
    let compare = Compare {
        result: 0,
        target: 1,
        key: key.clone().into_bytes(),
        with: Some(CompareWith::CreateRevision(0)),
    };
    let mut operations = vec![Operation::Put(put(key, value, lease))];
    operations.extend(left.map(|key| Operation::Delete(DeleteRequest { key: key.into_bytes() })));
    let success = operations.into_iter().map(|operation| RequestOp { operation: Some(operation) }).collect();
    let request = TxnRequest { compare: vec![compare], success };
    let response: TxnResponse = channel.unary("KV/Txn", &request, RESPONSE_MAX).await?;
    Ok(response.succeeded)
}

/// Replaces the record.
pub(super) async fn write(
    channel: Channel,
    prefix: String,
    seat: Seat,
    value: Vec<u8>,
) -> Result<(), GrpcError> {
    let request = put(format!("{prefix}/node/{}", seat.name), value, seat.lease);
    channel.unary::<_, PutResponse>("KV/Put", &request, RESPONSE_MAX).await.map(drop)
}

/// Renews the lease. False: it has run out.
pub(super) async fn renew(channel: Channel, lease: i64) -> Result<bool, GrpcError> {
    let request = LeaseRequest { id: lease };
    let method = "Lease/LeaseKeepAlive";
    let response: LeaseKeepAliveResponse = channel.unary(method, &request, RESPONSE_MAX).await?;
    Ok(response.ttl > 0)
}

/// Leaves the list.
pub(super) async fn leave(channel: &Channel, lease: i64, after: Duration) {
    let request = LeaseRequest { id: lease };
    // Without it the lease runs out.
    let _left = channel.unary::<_, EmptyMessage>("Lease/LeaseRevoke", &request, after).await;
}
