//! A connection to the first server of an etcd that answers with a quorum behind it, and the watch on it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::etcd::address::EtcdAddress;
use crate::etcd::grpc::{Channel, GrpcError, OUT_OF_RANGE, PERMISSION_DENIED, Responses};
use crate::etcd::messages::{
    AuthenticateRequest, AuthenticateResponse, KeyValue, RangeRequest, RangeResponse, SortOrder, SortTarget,
    WatchCreateRequest, WatchRequest, WatchRequestKind, WatchResponse,
};

/// Longest time for any response.
pub(super) const RESPONSE_MAX: Duration = Duration::from_secs(1);

/// Longest time for a connection with all that belongs to it.
const CONNECT_MAX: Duration = Duration::from_millis(2500);

/// Between the attempts at two servers, which run beside each other.
const NEXT_SERVER: Duration = Duration::from_millis(100);

/// A mark of the log: an entry that must still be there. Otherwise another log of the same cluster was put in
/// its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogMark {
    pub(super) key: Vec<u8>,
    pub(super) revision: i64,
    /// The first line of its value.
    pub(super) head: Vec<u8>,
}

/// The first replies of a new connection.
pub(super) struct OpenedLink {
    pub(super) channel: Channel,
    pub(super) watch: Responses,
    pub(super) cluster: u64,
    /// Where the watch begins: all before it has been obeyed, or will be flushed for.
    pub(super) from: i64,
    /// The watch goes on where the last one ended.
    pub(super) resumes: bool,
    /// All keys of the nodes, as of the log's head at the connection.
    pub(super) nodes: Vec<KeyValue>,
    /// All keys of the databases' logs, as of then or later.
    pub(super) feeds: Vec<KeyValue>,
}

/// The end of the range of all keys that begin with this.
pub(super) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // A prefix ends with `/`.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// The question for the largest revision of a bump. The revision in a response's header is no head: other
/// keys raise it.
pub(super) fn head_request(place: &EtcdAddress) -> RangeRequest {
    let prefix = format!("{}/bump/", place.prefix);
    RangeRequest {
        range_end: range_end(&prefix),
        key: prefix.into_bytes(),
        limit: 1,
        sort_order: SortOrder::Descend.into(),
        sort_target: SortTarget::Mod.into(),
        keys_only: true,
        ..RangeRequest::default()
    }
}

/// Connects to whichever server answers first, beginning with number `first`, and reads the list of nodes,
/// which needs a quorum.
async fn connect(
    place: &EtcdAddress,
    password: Option<&str>,
    tls: &[Arc<rustls::ClientConfig>],
    first: usize,
) -> Result<(Channel, RangeResponse), GrpcError> {
    let mut attempts = JoinSet::new();
    for at in 0..place.servers.len() {
        let number = (first + at) % place.servers.len();
        let (server, tls) = (place.servers[number].clone(), tls.get(number).cloned());
        let login = place.user.clone().zip(password.map(str::to_owned));
        let prefix = format!("{}/node/", place.prefix);
        let pause = NEXT_SERVER * u32::try_from(at).unwrap_or(u32::MAX);
        attempts.spawn(async move {
            tokio::time::sleep(pause).await;
            let mut channel = Channel::open(&server, tls.as_ref()).await?;
            if let Some((name, password)) = login {
                let request = AuthenticateRequest { name, password };
                let method = "Auth/Authenticate";
                let answer: AuthenticateResponse = channel.unary(method, &request, RESPONSE_MAX).await?;
                channel.set_token(&answer.token)?;
            }
            let range = all_under(&channel, prefix).await?;
            Ok((channel, range))
        });
    }
    let mut failed = None;
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(found)) => return Ok(found),
            // What etcd says is worth more than that a server cannot be reached.
            Ok(Err(error)) if failed.is_none() || matches!(error, GrpcError::Status { .. }) => {
                failed = Some(error);
            }
            Ok(Err(_)) | Err(_) => {}
        }
    }
    Err(failed.unwrap_or(GrpcError::Protocol("no server is named")))
}

/// Reads all keys that begin with this.
async fn all_under(channel: &Channel, prefix: String) -> Result<RangeResponse, GrpcError> {
    let (range_end, key) = (range_end(&prefix), prefix.into_bytes());
    let all = RangeRequest { key, range_end, ..RangeRequest::default() };
    channel.unary("KV/Range", &all, RESPONSE_MAX).await
}

/// `feeds`: what the keys of the databases' logs begin with, if some are followed. Connects and begins to
/// watch: behind `resume`, if that is still the same log and all behind it is there.
pub(super) async fn open(
    place: &EtcdAddress,
    password: Option<&str>,
    tls: &[Arc<rustls::ClientConfig>],
    first: usize,
    resume: Option<(i64, u64, Option<LogMark>)>,
    feeds: Option<&str>,
) -> Result<OpenedLink, GrpcError> {
    let opened = async {
        let (channel, range) = connect(place, password, tls, first).await?;
        let header = range.header.ok_or(GrpcError::Protocol("a response without a header"))?;
        let mut from = None;
        if let Some((position, cluster, mark)) = resume
            && cluster == header.cluster_id
            && position <= header.revision
            && is_there(&channel, mark).await?
        {
            from = Some(position);
        }
        let from_head = from.unwrap_or(header.revision);
        let watch = watch(&channel, place, from_head).await?;
        let feeds = match feeds {
            Some(prefix) => all_under(&channel, format!("{}{prefix}", place.prefix)).await?.kvs,
            None => Vec::new(),
        };
        Ok(OpenedLink {
            channel,
            watch,
            cluster: header.cluster_id,
            from: from_head,
            resumes: from.is_some(),
            nodes: range.kvs,
            feeds,
        })
    };
    let timeout = GrpcError::Timeout { what: "a connection with a quorum", after: CONNECT_MAX };
    tokio::time::timeout(CONNECT_MAX, opened).await.map_err(|_| timeout)?
}

/// Whether the last entry that was obeyed is in the log, as it was: it is not in one that was restored from a
/// backup.
async fn is_there(channel: &Channel, mark: Option<LogMark>) -> Result<bool, GrpcError> {
    let Some(LogMark { key, revision, head }) = mark else { return Ok(true) };
    // As it is now: what was not overwritten is there after a compaction, too.
    for at in [0, revision] {
        let request = RangeRequest { key: key.clone(), revision: at, ..RangeRequest::default() };
        match channel.unary::<_, RangeResponse>("KV/Range", &request, RESPONSE_MAX).await {
            Ok(range) => match range.kvs.first() {
                Some(kv) if kv.mod_revision == revision => return Ok(kv.value.starts_with(&head)),
                Some(kv) if kv.mod_revision > revision && at == 0 => {}
                _ => return Ok(false),
            },
            // It was compacted, or has not come yet there.
            Err(GrpcError::Status { code: OUT_OF_RANGE, .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

async fn watch(channel: &Channel, place: &EtcdAddress, from: i64) -> Result<Responses, GrpcError> {
    let prefix = format!("{}/", place.prefix);
    let create = WatchCreateRequest {
        range_end: range_end(&prefix),
        key: prefix.into_bytes(),
        start_revision: from + 1,
    };
    let request = WatchRequest { what: Some(WatchRequestKind::Create(create)) };
    let mut watch = channel.streaming("Watch/Watch", &request, RESPONSE_MAX).await?;
    let first = tokio::time::timeout(RESPONSE_MAX, watch.next::<WatchResponse>()).await;
    let first = first.map_err(|_| GrpcError::Timeout { what: "a watch", after: RESPONSE_MAX })??;
    let first = first.ok_or(GrpcError::Protocol("a watch that ends"))?;
    if first.canceled {
        let message = format!("the watch is refused: {}", first.cancel_reason);
        return Err(GrpcError::Status { code: PERMISSION_DENIED, message });
    }
    if first.created { Ok(watch) } else { Err(GrpcError::Protocol("a watch that was not created")) }
}
