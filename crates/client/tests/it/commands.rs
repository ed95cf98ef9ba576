//! Every command against real servers.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cattlegrid_client::{Answer, Ask, Cache, Client, Error, Expiration, Protocol, Write, Written};

use crate::servers;
use crate::servers::{Kind, on_servers, patient, until_held};

const ASK: Ask<'static> = Ask { lease: Duration::from_secs(10), wait: Duration::ZERO, hint: None };

fn write<'a>(key: &'a [u8], data: &'a [u8]) -> Write<'a> {
    Write { key, data, flags: 0, exptime: 0, tags: &[] }
}

fn commands(kind: Kind) {
    let server = kind.start();
    servers::run(async {
        for protocol in [Protocol::Meta, Protocol::Text] {
            let client = patient([server.address()]).protocol(protocol).build().unwrap();
            all_commands(&client, protocol == Protocol::Meta).await;
        }
    });
}
on_servers!(commands);

async fn all_commands(client: &Client, meta: bool) {
    for (_, flushed) in client.flush_all().await {
        flushed.unwrap();
    }
    assert_eq!(client.get::<String>("a").await.unwrap(), None);
    let stored = client.set("a", &"1".to_owned(), 0).await.unwrap();
    let Written::Stored { cas: new } = stored else { panic!("{stored:?}") };
    let (value, cas) = client.gets::<String>("a").await.unwrap().unwrap();
    assert_eq!((value.as_str(), new), ("1", meta.then_some(cas)));
    assert_eq!(client.add("a", &"2".to_owned(), 0).await.unwrap(), Written::NotStored);
    assert!(client.cas("a", &"3".to_owned(), 0, cas).await.unwrap().is_stored());
    assert_eq!(client.cas("a", &"4".to_owned(), 0, cas).await.unwrap(), Written::Exists);
    assert_eq!(client.cas("none", &"4".to_owned(), 0, cas).await.unwrap(), Written::NotFound);
    assert_eq!(client.replace("none", &"4".to_owned(), 0).await.unwrap(), Written::NotStored);
    assert!(client.replace("a", &"5".to_owned(), 0).await.unwrap().is_stored());
    assert!(client.append("a", "0").await.unwrap().is_stored());
    assert!(client.prepend("a", "1").await.unwrap().is_stored());
    assert_eq!(client.append("none", "0").await.unwrap(), Written::NotStored);
    assert_eq!(client.incr("a", 5).await.unwrap(), Some(155));
    assert_eq!(client.decr("a", 200).await.unwrap(), Some(0));
    assert_eq!(client.incr("none", 5).await.unwrap(), None);
    assert_eq!(client.get::<u64>("a").await.unwrap(), Some(0));
    assert!(client.touch("a", 60).await.unwrap());
    assert!(!client.touch("none", 60).await.unwrap());
    assert_eq!(client.get_and_touch::<u64>("a", 60).await.unwrap(), Some(0));
    assert_eq!(client.get_and_touch::<u64>("none", 60).await.unwrap(), None);
    assert!(client.delete("a").await.unwrap());
    assert!(!client.delete("a").await.unwrap());
    // Flags, and bytes that look like replies.
    let odd = Write { flags: u32::MAX, ..write("ключ".as_bytes(), b"END\r\nHD\r\n") };
    assert!(Cache::set(client, odd).await.unwrap().is_stored());
    let item = client.get_item("ключ").await.unwrap().unwrap();
    assert_eq!((&item.data[..], item.flags), (odd.data, u32::MAX));
    // Errors leave the connection as it is.
    let large = Bytes::from(vec![b'x'; 2 << 20]);
    let refused = client.set("large", &large, 0).await;
    assert!(matches!(refused, Err(Error::Server { .. })), "{refused:?}");
    assert!(matches!(client.incr("ключ", 1).await, Err(Error::Refused { .. })));
    assert!(matches!(client.get::<Bytes>("a b").await, Err(Error::Key(_))));
    // What has expired is not stored.
    client.set("old", &large.slice(..10), 0).await.unwrap();
    client.set("old", &large.slice(..10), Expiration::At(SystemTime::UNIX_EPOCH)).await.unwrap();
    assert_eq!(client.get::<Bytes>("old").await.unwrap(), None);
    client.set("old", &large.slice(..10), Expiration::After(Duration::ZERO)).await.unwrap();
    assert_eq!(client.get::<Bytes>("old").await.unwrap(), None);
    // Large values.
    let large = large.slice(..900_000);
    assert!(client.set("large", &large, 60).await.unwrap().is_stored());
    assert_eq!(client.get::<Bytes>("large").await.unwrap(), Some(large));
    let versions = client.version().await;
    assert!(
        versions.iter().all(|(_, version)| version.as_ref().is_ok_and(|text| !text.is_empty())),
        "{versions:?}"
    );
    let stats = client.stats("").await;
    assert!(stats[0].1.as_ref().unwrap().iter().any(|(name, _)| name == "cmd_get"));
}

fn many(kind: Kind) {
    let servers: Vec<_> = (0..3).map(|_| kind.start()).collect();
    servers::run(async {
        for protocol in [Protocol::Meta, Protocol::Text] {
            let addresses = servers.iter().map(servers::Server::address);
            let client = patient(addresses).protocol(protocol).build().unwrap();
            let values: Vec<_> = (0..100).map(|i| (format!("key{i}"), format!("value{i}"))).collect();
            for stored in client.set_many(&values, 60).await {
                assert!(stored.unwrap().is_stored());
            }
            assert!(
                client
                    .add_many(&values, 60)
                    .await
                    .iter()
                    .all(|added| matches!(added, Ok(Written::NotStored)))
            );
            let keys = ["key5", "none", "key7", "a b", "key5", "key99", "key0"];
            let mut got = client.get_many::<String>(&keys).await;
            assert!(matches!(got.remove(3), Err(Error::Key(_))));
            let got: Vec<_> = got.into_iter().map(|value| value.unwrap().unwrap_or_default()).collect();
            assert_eq!(got, ["value5", "", "value7", "value5", "value99", "value0"]);
            let cas: Vec<_> = client.gets_many::<String>(&keys[..1]).await;
            let cas = cas[0].as_ref().unwrap().as_ref().unwrap().1;
            let new = [("key5", "new".to_owned(), cas), ("key7", "new".to_owned(), 1 << 60)];
            let stored: Vec<_> = client.cas_many(&new, 60).await.into_iter().map(Result::unwrap).collect();
            assert!(stored[0].is_stored() && stored[1] == Written::Exists, "{stored:?}");
            let deleted: Vec<_> =
                client.delete_many(&["key5", "none", "key5"]).await.into_iter().map(Result::unwrap).collect();
            assert_eq!(deleted, [true, false, false]);
        }
    });
}
on_servers!(many);

/// Questions for leases change nothing on servers that give none.
fn ask(kind: Kind) {
    let server = kind.start();
    servers::run(async {
        let client = patient([server.address()]).build().unwrap();
        assert_eq!(client.ask(b"x", ASK).await.unwrap(), Answer::Absent);
        assert!(client.add("x", &"1".to_owned(), 0).await.unwrap().is_stored());
        let Answer::Hit(item) = client.ask(b"x", ASK).await.unwrap() else { panic!() };
        assert_eq!((&item.data[..], item.cas > 0), (&b"1"[..], true));
        assert_eq!(client.has_tags().await.unwrap(), kind == Kind::Rules);
        let tags = ["t,%".to_owned()];
        let invalidated = client.invalidate(&tags).await;
        assert_eq!(invalidated.is_ok(), kind == Kind::Rules, "{invalidated:?}");
        if kind != Kind::Rules {
            return;
        }
        assert!(Cache::set(&client, Write { tags: &tags, ..write(b"y", b"1") }).await.unwrap().is_stored());
        assert!(client.get_item("y").await.unwrap().is_some());
        client.invalidate(&tags).await.unwrap();
        assert_eq!(client.get_item("y").await.unwrap(), None);
    });
}
on_servers!(ask);

/// Items with a tag can be on any server of a ring.
#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn an_invalidation_reaches_every_server() {
    let all = [(); 3].map(|()| Kind::Rules.start());
    servers::run(async {
        let client = patient(all.each_ref().map(servers::Server::address)).build().unwrap();
        let tags = ["user:12543".to_owned()];
        let keys: Vec<String> = (0..60).map(|n| format!("page:{n}")).collect();
        for key in &keys {
            let write = Write { tags: &tags, ..write(key.as_bytes(), b"x") };
            assert!(Cache::set(&client, write).await.unwrap().is_stored());
        }
        assert!(client.set("other", &"x".to_owned(), 0).await.is_ok());
        for server in &all {
            let one = patient([server.address()]).build().unwrap();
            let got = one.get_many::<String>(&keys).await;
            let held = got.into_iter().filter(|value| matches!(value, Ok(Some(_)))).count();
            assert!((1..60).contains(&held), "each server has a part: {held}");
        }
        client.invalidate(&tags).await.unwrap();
        let left = client.get_many::<String>(&keys).await;
        assert!(left.into_iter().all(|value| value.unwrap().is_none()));
        assert!(client.get::<String>("other").await.unwrap().is_some());
    });
}

/// One client computes, others wait, are told of failures, or take the lease over.
#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn leases() {
    let server = Kind::Rules.start();
    servers::run(async {
        let [one, two] = [(); 2].map(|()| patient([server.address()]).build().unwrap());
        let asked = one.ask(b"h:1", Ask { hint: Some(b"a, %"), ..ASK }).await.unwrap();
        let Answer::Lease { token, hint, old } = asked else { panic!("{asked:?}") };
        assert_eq!((hint.as_deref(), old), (Some(&b"a, %"[..]), None));
        assert_eq!(two.ask(b"h:1", ASK).await.unwrap(), Answer::Busy);
        let wait = Ask { wait: Duration::from_secs(20), ..ASK };
        let held = tokio::spawn({
            let two = two.clone();
            async move { two.ask(b"h:1", wait).await }
        });
        until_held(Kind::Rules, &server, 1);
        assert!(one.fill(write(b"h:1", b"value"), token).await.unwrap());
        assert!(matches!(held.await.unwrap().unwrap(), Answer::Hit(item) if item.data == "value"));
        assert!(!one.fill(write(b"h:1", b"again"), token).await.unwrap());

        let Answer::Lease { token, .. } = one.ask(b"h:2", ASK).await.unwrap() else { panic!() };
        let held = tokio::spawn(async move { two.ask(b"h:2", wait).await });
        until_held(Kind::Rules, &server, 1);
        one.give_up(b"h:2", token, Some("out of paper")).await.unwrap();
        assert_eq!(held.await.unwrap().unwrap(), Answer::Failed(Bytes::from_static(b"out of paper")));
    });
}

/// A key with a tag.
#[derive(Clone)]
struct Tagged([String; 1]);

impl cattlegrid_client::Key for Tagged {
    fn bytes(&self) -> &[u8] {
        b"tagged"
    }

    fn tags(&self) -> &[String] {
        &self.0
    }
}

fn text_refuses_tags(kind: Kind) {
    let server = kind.start();
    servers::run(async {
        let client = patient([server.address()]).protocol(Protocol::Text).build().unwrap();
        let (key, value) = (Tagged(["tag".to_owned()]), "v".to_owned());
        let write = Write { tags: &key.0, ..write(b"tagged", b"v") };
        let many = vec![(key.clone(), value.clone())];
        let single = [
            client.set(&key, &value, 0).await,
            client.add(&key, &value, 0).await,
            client.cas(&key, &value, 0, 1).await,
            Cache::set(&client, write).await,
            Cache::fill(&client, write, 1).await.map(|_| Written::NotStored),
        ];
        let mut all = single.to_vec();
        all.extend(client.set_many(&many, 0).await);
        all.extend(client.add_many(&many, 0).await);
        all.extend(client.cas_many(&[(key.clone(), value.clone(), 1)], 0).await);
        all.extend(Cache::set_many(&client, &[write]).await);
        for (at, written) in all.into_iter().enumerate() {
            assert_eq!(written, Err(Error::NoTags), "{at}");
        }
        // The others of many are stored.
        let plain = Write { key: b"plain", tags: &[], ..write };
        let both = Cache::set_many(&client, &[write, plain]).await;
        assert_eq!(both[0], Err(Error::NoTags));
        assert!(both[1].clone().unwrap().is_stored());
        assert_eq!(client.get::<String>(&key).await.unwrap(), None);
    });
}
on_servers!(text_refuses_tags);
