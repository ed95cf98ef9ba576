//! Calls of objects' methods.

use bytes::Bytes;

use crate::client::{Client, item};
use crate::error::Error;
use crate::key::{self, Key};
use crate::net::wire::Command;
use crate::objects::{Call, route};

impl Client {
    /// Calls a method of an object of Cattlegrid, once: a name such as `quota:take:alice:100:hour`, or a
    /// [`Call`], which makes names with escapes. None: the reply is a miss, or the server has no objects.
    ///
    /// The call goes to the server of the object, which is that of the key `type:key`. Over several servers
    /// names must not have a prefix (`prefix` in `[objects]`): it would be taken for the type. It is not sent
    /// again when its connection breaks, since it may have been executed.
    ///
    /// # Errors
    /// [`Error::Usage`]: the name is not that of a call. [`Error::Refused`], [`Error::Server`]: the method
    /// refuses. All others as for a `get`.
    pub async fn call(&self, name: impl Key) -> Result<Option<Bytes>, Error> {
        let name = name.bytes();
        key::check(name).map_err(Error::Key)?;
        let route = route(name)?;
        let now = self.now().await;
        let node = self.node(&now, &route)?;
        let reply = node.one(&Command::Get { key: name, cas: false }, false, now.limit).await?;
        Ok(item(node, reply)?.map(|item| item.data))
    }

    /// Calls the same method of many objects of a type, with the same arguments: one request to each server
    /// that has any of them, all at once. The outcomes have the order of the keys.
    ///
    /// ```no_run
    /// # async fn example(client: cattlegrid_client::Client) {
    /// for (user, reply) in client.multi_call("quota", "get", &["alice", "bob"], &[]).await {
    ///     println!("{user}: {reply:?}");
    /// }
    /// # }
    /// ```
    pub async fn multi_call<'k, K: AsRef<str>>(
        &self,
        object_type: &str,
        method: &str,
        keys: &'k [K],
        arguments: &[&str],
    ) -> Vec<(&'k K, Result<Option<Bytes>, Error>)> {
        let calls = keys.iter().map(|key| {
            let call = Call::new(object_type, method, key.as_ref());
            let call = arguments.iter().fold(call, Call::arg);
            key::check(call.bytes()).map_err(Error::Key)?;
            Ok((route(call.bytes())?.into_owned(), call))
        });
        let calls: Vec<Result<(Vec<u8>, Call), Error>> = calls.collect();
        let requests = calls.iter().flatten();
        let requests =
            requests.map(|(route, call)| (&**route, Command::Get { key: call.bytes(), cas: false }));
        let mut replies = self.many(requests.collect(), false, item).await.into_iter();
        let outcomes = calls.iter().map(|call| match call {
            Ok(_) => match replies.next() {
                Some(reply) => reply.map(|item| item.map(|item| item.data)),
                None => Err(Error::Usage("a call without an outcome".to_owned())),
            },
            Err(error) => Err(error.clone()),
        });
        keys.iter().zip(outcomes).collect()
    }

    /// [`multi_call`](Self::multi_call), whose outcomes are combined: `fold` gets what has been combined
    /// until now, a key and its outcome, in the order of the keys. For a sum, or for sketches that are
    /// merged.
    pub async fn multi_call_fold<K: AsRef<str>, A>(
        &self,
        object_type: &str,
        method: &str,
        keys: &[K],
        arguments: &[&str],
        init: A,
        mut fold: impl FnMut(A, &K, Result<Option<Bytes>, Error>) -> A,
    ) -> A {
        let outcomes = self.multi_call(object_type, method, keys, arguments).await;
        outcomes.into_iter().fold(init, |all, (key, outcome)| fold(all, key, outcome))
    }
}
