//! The connection that computing and namespaces need: a few commands of memcached, and leases where the
//! server has them.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::error::Error;
use crate::item::{Item, Write, Written};

/// A cache as [`Herd`](crate::Herd) and [`Namespacer`](crate::Namespacer) use it.
///
/// [`Client`](crate::Client) is one. Another library's client becomes one with the commands without a body;
/// what has a body is done with those, one by one, or is known to be missing. All forms for many keys answer
/// in the order of the keys.
pub trait Cache: Send + Sync {
    /// `get`.
    fn get(&self, key: &[u8]) -> impl Future<Output = Result<Option<Item>, Error>> + Send;

    /// `gets`: with the CAS number.
    fn gets(&self, key: &[u8]) -> impl Future<Output = Result<Option<Item>, Error>> + Send;

    /// `add`: [`Written::Stored`] or [`Written::NotStored`].
    fn add(&self, write: Write<'_>) -> impl Future<Output = Result<Written, Error>> + Send;

    /// `set`: [`Written::Stored`].
    fn set(&self, write: Write<'_>) -> impl Future<Output = Result<Written, Error>> + Send;

    /// `cas`: all but [`Written::NotStored`].
    fn cas(&self, write: Write<'_>, cas: u64) -> impl Future<Output = Result<Written, Error>> + Send;

    /// `incr`: the new number, or None if the key is absent.
    fn incr(&self, key: &[u8], by: u64) -> impl Future<Output = Result<Option<u64>, Error>> + Send;

    /// `delete`: whether the key was present.
    fn delete(&self, key: &[u8]) -> impl Future<Output = Result<bool, Error>> + Send;

    /// `get` of many keys.
    fn get_many(&self, keys: &[&[u8]]) -> impl Future<Output = Vec<Result<Option<Item>, Error>>> + Send {
        in_turn(keys.iter().map(|key| self.get(key)))
    }

    /// `gets` of many keys.
    fn gets_many(&self, keys: &[&[u8]]) -> impl Future<Output = Vec<Result<Option<Item>, Error>>> + Send {
        in_turn(keys.iter().map(|key| self.gets(key)))
    }

    /// `add` of many keys.
    fn add_many(&self, writes: &[Write<'_>]) -> impl Future<Output = Vec<Result<Written, Error>>> + Send {
        in_turn(writes.iter().map(|write| self.add(*write)))
    }

    /// `set` of many keys.
    fn set_many(&self, writes: &[Write<'_>]) -> impl Future<Output = Vec<Result<Written, Error>>> + Send {
        in_turn(writes.iter().map(|write| self.set(*write)))
    }

    /// `cas` of many keys, each with its CAS number.
    fn cas_many(
        &self,
        writes: &[(Write<'_>, u64)],
    ) -> impl Future<Output = Vec<Result<Written, Error>>> + Send {
        in_turn(writes.iter().map(|(write, cas)| self.cas(*write, *cas)))
    }

    /// Where the CAS numbers are valid that come with replies to requests that are sent from now on. None, as
    /// without a body of its own: that is not known, and what is replaced by such a number is read again
    /// first.
    fn scope(&self) -> Option<Scope> {
        None
    }

    /// `cas` of many keys, each with a CAS number and the scope of it. None: it was not sent, because the
    /// server may have been restarted or the key have another server since, where the number may be that of
    /// another item.
    fn cas_many_within(
        &self,
        writes: &[(Write<'_>, u64, Scope)],
    ) -> impl Future<Output = Vec<Result<Option<Written>, Error>>> + Send {
        let none = writes.iter().map(|_| Ok(None)).collect();
        async { none }
    }

    /// `delete` of many keys.
    fn delete_many(&self, keys: &[&[u8]]) -> impl Future<Output = Vec<Result<bool, Error>>> + Send {
        in_turn(keys.iter().map(|key| self.delete(key)))
    }

    /// Asks for a value, and for the lease of the key if its server gives leases. Without a body of its own:
    /// `gets`.
    fn ask(&self, key: &[u8], ask: Ask<'_>) -> impl Future<Output = Result<Answer, Error>> + Send {
        let _ = ask;
        async move { Ok(self.gets(key).await?.map_or(Answer::Absent, Answer::Hit)) }
    }

    /// [`ask`](Self::ask), where the lease must stay when the connection ends on which it was got: for a
    /// token that leaves its process. Without a body of its own: `ask`.
    fn ask_to_outlive(&self, key: &[u8], ask: Ask<'_>) -> impl Future<Output = Result<Answer, Error>> + Send {
        self.ask(key, ask)
    }

    /// [`ask`](Self::ask) for many keys. Nothing is waited for: [`Ask::wait`] must be zero.
    fn ask_many(
        &self,
        keys: &[&[u8]],
        ask: Ask<'_>,
    ) -> impl Future<Output = Vec<Result<Answer, Error>>> + Send {
        let _ = ask;
        async move {
            let answers = self.gets_many(keys).await.into_iter();
            answers.map(|answer| Ok(answer?.map_or(Answer::Absent, Answer::Hit))).collect()
        }
    }

    /// For keys that are absent although an `add` is refused: Cattlegrid drops a value that was computed
    /// before a delete, and takes the `add` for such a value. Makes an item without a value, for `exptime`
    /// seconds, and returns its CAS number to one of the clients that ask; a `cas` with it is not refused.
    /// None: another client has it, the key is present, or the server or the connection does not know how.
    fn claim_many(
        &self,
        keys: &[&[u8]],
        exptime: u32,
    ) -> impl Future<Output = Vec<Result<Option<u64>, Error>>> + Send {
        let _ = exptime;
        let none = keys.iter().map(|_| Ok(None)).collect();
        async { none }
    }

    /// Stores the value computed under a lease. False: it came too late, or its key was invalidated, and it
    /// was not stored.
    fn fill(&self, write: Write<'_>, token: u64) -> impl Future<Output = Result<bool, Error>> + Send {
        async move { Ok(self.cas(write, token).await?.is_stored()) }
    }

    /// [`fill`](Self::fill) of many keys, each with its token.
    fn fill_many(
        &self,
        writes: &[(Write<'_>, u64)],
    ) -> impl Future<Output = Vec<Result<bool, Error>>> + Send {
        async move {
            let all = self.cas_many(writes).await.into_iter();
            all.map(|written| written.map(Written::is_stored)).collect()
        }
    }

    /// Gives a lease up. With a text the computation has failed, and the clients that wait get the text.
    fn give_up(
        &self,
        key: &[u8],
        token: u64,
        failure: Option<&str>,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = (key, token, failure);
        async { Ok(()) }
    }

    /// Whether all servers have tags, so that [`Write::tags`] and [`invalidate`](Self::invalidate) work.
    fn has_tags(&self) -> impl Future<Output = Result<bool, Error>> + Send {
        async { Ok(false) }
    }

    /// Invalidates all items with these tags, on every server.
    fn invalidate(&self, tags: &[String]) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = tags;
        async { Err(Error::NoTags) }
    }
}

/// The outputs of futures that run one after the other.
async fn in_turn<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut outputs = Vec::new();
    for future in futures {
        outputs.push(future.await);
    }
    outputs
}

/// Where a CAS number means the same item: on the connections that there were, and as long as each key has
/// the same server. A server that is restarted counts anew, and each server counts by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Connections made until then.
    pub connections: u64,
    /// Changes of the servers of keys until then.
    pub route: u64,
}

/// How a key is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Length of the lease.
    pub lease: Duration,
    /// How long the server may hold the request while another client computes. Zero: it answers at once.
    pub wait: Duration,
    /// For the client that computes.
    pub hint: Option<&'a [u8]>,
}

/// A server's answer to [`Cache::ask`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The key is present.
    Hit(Item),
    /// The server says that the value is old and that another client computes.
    Stale(Item),
    /// This client is to compute the value, and to [`fill`](Cache::fill) or [`give_up`](Cache::give_up) with
    /// the token.
    Lease {
        /// Names the lease.
        token: u64,
        /// That of the first client that asked.
        hint: Option<Bytes>,
        /// The old value.
        old: Option<Item>,
    },
    /// Another client computes, and there is no old value.
    Busy,
    /// The computation that was waited for has failed: the text of its client.
    Failed(Bytes),
    /// The key is absent, and its server gives no lease for it.
    Absent,
}
