//! Calls of objects on one server and on several, and on servers that have none.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::collections::HashSet;

use cattlegrid_client::objects::{Call, Sketch};
use cattlegrid_client::{Client, Error};

use crate::servers;
use crate::servers::{Kind, Server, patient};

fn with_objects() -> Vec<Server> {
    (0..3).map(|_| Kind::Plain.start_with(&["--objects", "."])).collect()
}

fn of(servers: &[Server]) -> Client {
    patient(servers.iter().map(Server::address)).build().unwrap()
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn all_calls_on_an_object_find_it() {
    let all = with_objects();
    servers::run(async {
        let client = of(&all);
        for user in ["alice", "bob", "2001:db8::1", "50%", "%3A", "c", "d", "e", "f"] {
            let call = |method| Call::new("set", method, user);
            client.call(call("new")).await.unwrap();
            let added = client.call(call("put").arg("x").arg("a:b")).await.unwrap();
            assert_eq!(added.as_deref(), Some(b"SUCCESS".as_slice()), "{user}");
            let count = client.call(call("count")).await.unwrap();
            assert_eq!(count.as_deref(), Some(b"2".as_slice()), "{user}");
        }
        let error = client.call(Call::new("quota", "take", "x").arg("many")).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert_eq!(client.call("hll:count:nobody").await.unwrap(), None);
        for wrong in ["hll:count", "hll::x", "plain"] {
            assert!(matches!(client.call(wrong).await, Err(Error::Usage(_))), "{wrong}");
        }
        assert!(matches!(client.call("hll:add:k:a b").await, Err(Error::Key(_))));
    });
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn a_multi_call_is_one_request_to_each_server() {
    let all = with_objects();
    servers::run(async {
        let client = of(&all);
        let users: Vec<String> = (0..60).map(|user| format!("user{user}")).collect();
        for user in &users[..50] {
            client.call(Call::new("counter", "add", user).arg(user.len())).await.unwrap();
        }
        let replies = client.multi_call("counter", "get", &users, &[]).await;
        assert_eq!(replies.len(), 60);
        for (place, (user, reply)) in replies.into_iter().enumerate() {
            assert_eq!(*user, users[place]);
            let reply = reply.unwrap().map(|reply| String::from_utf8_lossy(&reply).into_owned());
            assert_eq!(reply, (place < 50).then(|| user.len().to_string()), "{user}");
        }
        // A key that no server takes fails alone.
        let mixed =
            ["user1".to_owned(), "a b".to_owned(), "x".repeat(300), "user2".to_owned(), String::new()];
        let mixed = client.multi_call("counter", "get", &mixed, &[]).await;
        assert_eq!(
            mixed.iter().map(|(_, reply)| reply.is_ok()).collect::<Vec<_>>(),
            [true, false, false, true, false]
        );
        let sum = client.multi_call_fold("counter", "get", &users, &[], 0, |sum, _, reply| {
            sum + reply.unwrap().map_or(0, |reply| String::from_utf8_lossy(&reply).parse::<usize>().unwrap())
        });
        assert_eq!(sum.await, users[..50].iter().map(String::len).sum::<usize>());
        let busy: HashSet<String> = client
            .stats("")
            .await
            .into_iter()
            .filter(|(_, stats)| {
                let stats = stats.as_ref().unwrap();
                stats.iter().any(|(name, value)| name == "get_hits" && value != "0")
            })
            .map(|(server, _)| server)
            .collect();
        assert_eq!(busy.len(), 3, "all servers have objects");
    });
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn sketches_of_several_servers_are_merged() {
    let all = with_objects();
    servers::run(async {
        let client = of(&all);
        let parts: Vec<String> = (0..12).map(|part| format!("part{part}")).collect();
        // One object that has seen all items, to compare with.
        for item in 0..6000 {
            let part = &parts[item % 11];
            for key in [part.as_str(), "all"] {
                client.call(Call::new("hll", "add", key).arg(item * 7 % 4500)).await.unwrap();
            }
        }
        let merged =
            client.multi_call_fold("hll", "sketch", &parts, &[], Sketch::new(), |mut all, _, reply| {
                if let Some(text) = reply.unwrap() {
                    all.merge(&Sketch::parse(&text).unwrap());
                }
                all
            });
        let merged = merged.await;
        let whole = client.call("hll:sketch:all").await.unwrap().unwrap();
        assert_eq!(merged, Sketch::parse(&whole).unwrap());
        let count = client.call("hll:count:all").await.unwrap().unwrap();
        assert_eq!(merged.count().to_string().as_bytes(), &count[..]);
        assert!(merged.count().abs_diff(4500) < 4500 * 3 / 100, "{}", merged.count());
        for part in &parts[..11] {
            let sketch = client.call(Call::new("hll", "sketch", part)).await.unwrap().unwrap();
            let count = client.call(Call::new("hll", "count", part)).await.unwrap().unwrap();
            assert_eq!(Sketch::parse(&sketch).unwrap().count().to_string().as_bytes(), &count[..]);
        }
    });
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn a_server_without_objects_has_no_values() {
    for kind in [Kind::Memcached, Kind::Plain] {
        let server = kind.start();
        servers::run(async {
            let client = patient([server.address()]).build().unwrap();
            assert_eq!(client.call("hll:count:k").await.unwrap(), None);
            let replies = client.multi_call("hll", "count", &["a", "b"], &[]).await;
            assert!(replies.iter().all(|(_, reply)| matches!(reply, Ok(None))));
        });
    }
}
