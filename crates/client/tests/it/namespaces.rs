//! Namespaces over real servers: memcached, Cattlegrid, several of them, and both in one ring.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use cattlegrid_client::{Client, Error, NamespacedKey, Namespacer, NamespacerOptions, Protocol};
use cattlegrid_load::harness::{Server, Start};

use crate::servers;
use crate::servers::{Kind, on_servers, patient};

type Names = Namespacer<Client>;

/// The rule of the manual: the tags of this crate's keys for values that other clients store.
const READY_RULE: &str = r#"
[[rule]]
match = "___{master}:userId:{id}"
tags = ["___userId:{id}", "___{master}"]

[[rule]]
match = "___{master}:page:userId:{user}:prodId:{product}"
tags = ["___userId:{user}", "___prodId:{product}", "___{master}"]
"#;

fn start(kind: Kind, count: usize) -> Vec<Server> {
    (0..count).map(|_| kind.start()).collect()
}

fn client(servers: &[Server]) -> Client {
    patient(servers.iter().map(Server::address)).build().unwrap()
}

async fn names(client: &Client) -> Names {
    Namespacer::new(client.clone(), NamespacerOptions::default()).await.unwrap()
}

async fn set(client: &Client, key: &NamespacedKey, content: &str) {
    assert!(client.set(key, &content.to_owned(), 0).await.unwrap().is_stored());
}

async fn get(client: &Client, key: &NamespacedKey) -> Option<String> {
    client.get(key).await.unwrap()
}

/// The shop of the original's manual.
fn shop(kind: Kind) {
    for count in [1, 3] {
        let servers = start(kind, count);
        servers::run(async {
            let client = client(&servers);
            let names = names(&client).await;
            // Without a rule file Cattlegrid is as memcached.
            assert_eq!(names.uses_tags(), kind == Kind::Rules);
            let user = [("userId", 12_543)];
            let products =
                [54_929_873, 92_298_748, 87_391_001, 7_894_234].map(|id| [user[0], ("prodId", id)]);
            let others = [[("userId", 9), ("prodId", 54_929_873)], [("userId", 9), ("prodId", 1)]];
            let mut all: Vec<(&str, &[_])> = vec![("shoppingbasket", &user), ("interests", &user)];
            all.extend(products.iter().chain(&others).map(|both| ("prodLastWatched", &both[..])));
            let found = async || {
                let mut found = Vec::new();
                for key in names.keys_of(&all).await.unwrap() {
                    found.push(u8::from(get(&client, &key).await.is_some()));
                }
                found
            };
            for key in names.keys_of(&all).await.unwrap() {
                set(&client, &key, "content").await;
            }
            assert_eq!(found().await, [1; 8]);
            names.update("prodId", 7_894_234).await.unwrap();
            assert_eq!(found().await, [1, 1, 1, 1, 1, 0, 1, 1], "{count} servers");
            names.update("userId", 12_543).await.unwrap();
            assert_eq!(found().await, [0, 0, 0, 0, 0, 0, 1, 1]);
            names.update_many(&[("prodId", 54_929_873), ("prodId", 3)]).await.unwrap();
            assert_eq!(found().await, [0, 0, 0, 0, 0, 0, 0, 1]);
        });
    }
}
on_servers!(shop);

/// An update by one process is seen by the other in the next key, whatever it has read before.
fn two_processes(kind: Kind) {
    for optimize in [true, false] {
        let servers = start(kind, 3);
        servers::run(async {
            let [first, second] = [client(&servers), client(&servers)];
            let options =
                || NamespacerOptions::default().optimize_with_default_counter_and_evidence(optimize);
            let one = Namespacer::new(first.clone(), options()).await.unwrap();
            let two = Namespacer::new(second.clone(), options()).await.unwrap();
            for round in 0..100 {
                let id = round % 7;
                let key = one.key("userId", id).await.unwrap();
                set(&first, &key, "content").await;
                let same = two.key("userId", id).await.unwrap();
                assert_eq!(get(&second, &same).await.as_deref(), Some("content"), "{round}");
                let (updates, reads) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
                updates.update("userId", id).await.unwrap();
                let after = reads.key("userId", id).await.unwrap();
                assert_eq!(get(&second, &after).await, None, "{round}");
            }
        });
    }
}
on_servers!(two_processes);

/// Updates by several processes at once: none is lost.
fn conflicts(kind: Kind) {
    let servers = start(kind, 3);
    servers::run(async {
        let mut tasks = Vec::new();
        for process in 0..8 {
            let client = client(&servers);
            tasks.push(tokio::spawn(async move {
                let names = names(&client).await;
                for id in 0..50 {
                    let id = process * 100 + id;
                    let key = names.key("userId", id).await.unwrap();
                    set(&client, &key, "content").await;
                    names.update("userId", id).await.unwrap();
                    let key = names.key("userId", id).await.unwrap();
                    assert_eq!(get(&client, &key).await, None, "{id}");
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    });
}
on_servers!(conflicts);

/// Lost numbers are replaced by new ones: no old value returns.
fn losses(kind: Kind) {
    let servers = start(kind, 1);
    servers::run(async {
        let client = client(&servers);
        let mut names = names(&client).await;
        for round in 0..12 {
            let key = names.key("userId", 1).await.unwrap();
            assert_eq!(get(&client, &key).await, None, "{round}");
            set(&client, &key, "old").await;
            names.update("userId", 1).await.unwrap();
            let lost = ["___counter|userId:1", "___record"][round % 2];
            // Over tags there is no counter, and the record is read once a second.
            assert!(client.delete(lost).await.unwrap() || names.uses_tags());
            if round % 3 == 0 {
                // A process that is started later.
                names = Namespacer::new(client.clone(), NamespacerOptions::default()).await.unwrap();
            }
        }
    });
}
on_servers!(losses);

/// A rolling flush changes the keys of its prefix evenly over the period, and nothing else on the servers.
fn rolling_flush(kind: Kind) {
    let servers = start(kind, 3);
    servers::run(async {
        let client = client(&servers);
        let now = Arc::new(AtomicU64::new(1_700_000_000_000));
        let clock = Arc::clone(&now);
        let options = NamespacerOptions::default()
            .rolling_period(Duration::from_secs(60))
            .clock(move || UNIX_EPOCH + Duration::from_millis(clock.load(Ordering::SeqCst)));
        let ours = Namespacer::new(client.clone(), options.clone()).await.unwrap();
        let other = Namespacer::new(client.clone(), options.prefix("other:")).await.unwrap();
        let theirs = other.key("userId", 1).await.unwrap();
        set(&client, &theirs, "theirs").await;
        client.set("userId:1", &"plain".to_owned(), 0).await.unwrap();
        let ids: Vec<_> = (0..1_000).map(|id| ("userId", id)).collect();
        for key in ours.keys(&ids).await.unwrap() {
            set(&client, &key, "old").await;
        }
        ours.flush_all_rolling().await.unwrap();
        for (second, least, most) in [(0, 1_000, 1_000), (15, 700, 800), (30, 450, 550), (60, 0, 0)] {
            now.store(1_700_000_000_000 + second * 1_000, Ordering::SeqCst);
            let keys = ours.keys(&ids).await.unwrap();
            let found: Vec<Option<String>> =
                client.get_many(&keys).await.into_iter().map(|found| found.unwrap()).collect();
            let found = found.into_iter().flatten().count();
            assert!((least..=most).contains(&found), "{found} at {second} s");
            // Updates work throughout.
            let key = ours.key("userId", second).await.unwrap();
            set(&client, &key, "new").await;
            assert_eq!(
                get(&client, &ours.key("userId", second).await.unwrap()).await.as_deref(),
                Some("new")
            );
            ours.update("userId", second).await.unwrap();
            assert_eq!(get(&client, &ours.key("userId", second).await.unwrap()).await, None);
            set(&client, &ours.key("userId", second).await.unwrap(), "newer").await;
            ours.update("userId", second).await.unwrap();
        }
        ours.flush_all_rolling().await.unwrap();
        assert_eq!(get(&client, &theirs).await.as_deref(), Some("theirs"));
        assert_eq!(other.key("userId", 1).await.unwrap(), theirs);
        assert_eq!(client.get::<String>("userId:1").await.unwrap().as_deref(), Some("plain"));
    });
}
on_servers!(rolling_flush);

/// Names and ids of any characters, the longest ones too, and seven namespaces.
fn odd_names(kind: Kind) {
    let servers = start(kind, 1);
    servers::run(async {
        let client = client(&servers);
        let names = names(&client).await;
        let long = "x".repeat(180);
        for id in ["a b", "a,b", "a%b", "a%2Cb", "a:b", "a|b", "ключ", "\u{7f}\r\n\0", "@tag", "lock", &long]
        {
            let other = "another";
            let keys = names.keys(&[("n,%:", id), ("n,%:", other)]).await.unwrap();
            for key in &keys {
                set(&client, key, "content").await;
                assert!(get(&client, key).await.is_some(), "{key}");
            }
            names.update("n,%:", id).await.unwrap();
            let keys = names.keys(&[("n,%:", id), ("n,%:", other)]).await.unwrap();
            assert_eq!(get(&client, &keys[0]).await, None, "{id:?}");
            assert!(get(&client, &keys[1]).await.is_some(), "{other:?}");
        }
        let seven: [(&str, u8); 7] = ["a", "b", "c", "d", "e", "f", "g"].map(|name| (name, 1));
        for (name, id) in seven {
            let key = names.key_of("page", &seven).await.unwrap();
            set(&client, &key, "content").await;
            names.update(name, id).await.unwrap();
            assert_eq!(get(&client, &names.key_of("page", &seven).await.unwrap()).await, None, "{name}");
        }
    });
}
on_servers!(odd_names);

fn settings(kind: Kind) {
    let servers = start(kind, 3);
    servers::run(async {
        let client = client(&servers);
        let first = names(&client).await;
        let other = NamespacerOptions::default().evidence_size(81);
        let error = Namespacer::new(client.clone(), other.clone()).await.unwrap_err();
        let text = "namespaces with the prefix ___: evidence_size is 81 in this process and 80 in others";
        assert_eq!(error.to_string(), text);
        client.delete("___record").await.unwrap();
        Namespacer::new(client.clone(), other.clone()).await.unwrap();
        if first.uses_tags() {
            tokio::time::sleep(Duration::from_millis(1_100)).await;
        }
        assert!(matches!(first.key("userId", 1).await, Err(Error::SettingsDiffer { .. })));
        assert!(matches!(first.update("userId", 1).await, Err(Error::SettingsDiffer { .. })));
        Namespacer::new(client.clone(), other.prefix("another")).await.unwrap();
    });
}
on_servers!(settings);

/// The classic protocol cannot give tags to items: numbers are used.
fn text_protocol(kind: Kind) {
    let server = kind.start();
    servers::run(async {
        let client = patient([server.address()]).protocol(Protocol::Text).build().unwrap();
        let names = names(&client).await;
        assert!(!names.uses_tags());
        for _ in 0..5 {
            let key = names.key("userId", 1).await.unwrap();
            set(&client, &key, "content").await;
            names.update("userId", 1).await.unwrap();
            assert_eq!(get(&client, &names.key("userId", 1).await.unwrap()).await, None);
        }
    });
}
on_servers!(text_protocol);

/// With a memcached among the servers numbers are used.
#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn a_mixed_ring_uses_numbers() {
    let servers = [Kind::Memcached.start(), Kind::Rules.start(), Kind::Rules.start()];
    servers::run(async {
        let client = client(&servers);
        let names = names(&client).await;
        assert!(!names.uses_tags());
        for id in 0..50 {
            let key = names.key("userId", id).await.unwrap();
            assert!(!key.as_str().is_empty());
            set(&client, &key, "content").await;
            names.update("userId", id).await.unwrap();
            assert_eq!(get(&client, &names.key("userId", id).await.unwrap()).await, None);
        }
    });
}

/// Over numbers, a value that was computed before an update and stored after it is not seen.
#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn a_late_value_is_not_seen() {
    let memcached = [Kind::Memcached.start()];
    let ruled = [with_rules(READY_RULE)];
    for servers in [&memcached, &ruled] {
        servers::run(async {
            let client = client(servers);
            let names = names(&client).await;
            let before = names.key("userId", 1).await.unwrap();
            assert_eq!(get(&client, &before).await, None);
            names.update("userId", 1).await.unwrap();
            // Over tags the rule lets the server know when the value was asked for.
            client.set(&before, &"computed before".to_owned(), 0).await.unwrap();
            assert_eq!(get(&client, &names.key("userId", 1).await.unwrap()).await, None);
        });
    }
}

/// With the ready rule the values that another client stores have the same tags, without its doing.
#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn a_ready_rule_gives_the_tags_to_other_clients() {
    let servers = [with_rules(READY_RULE)];
    servers::run(async {
        let client = client(&servers);
        let names = names(&client).await;
        assert!(names.uses_tags());
        let mut plain = servers[0].connect().unwrap();
        let both = [("userId", "a%b,c"), ("prodId", "2")];
        for (name, id) in both {
            let [single, page, apart] = [
                names.key("userId", "a%b,c").await.unwrap(),
                names.key_of("page", &both).await.unwrap(),
                names.key("userId", 7).await.unwrap(),
            ];
            for key in [&single, &page, &apart] {
                plain.ask(&format!("set {key} 0 0 1\r\nx\r\n"), "STORED\r\n");
                assert_eq!(get(&client, key).await.as_deref(), Some("x"));
            }
            names.update(name, id).await.unwrap();
            plain.ask(&format!("get {page}\r\n"), "END\r\n");
            plain.ask(&format!("get {apart}\r\n"), &format!("VALUE {apart} 0 1\r\nx\r\nEND\r\n"));
            assert_eq!(get(&client, &single).await.is_some(), name == "prodId");
            // Another client can invalidate too.
            plain.ask(&format!("set {apart} 0 0 1\r\nx\r\n"), "STORED\r\n");
            plain.ask("delete @tag:___userId:7\r\n", "DELETED\r\n");
            assert_eq!(get(&client, &apart).await, None);
        }
    });
}

fn with_rules(rules: &str) -> Server {
    let program: PathBuf = servers::cattlegrid();
    let words = ["-p", "-1", "-l", "127.0.0.1"];
    Server::start(&Start { rules: Some(rules), ..Start::new(&program, &words) }).expect("the server starts")
}

/// A server is replaced by one with tags or without, on its address: processes that run go on, and agree with
/// new ones.
#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn servers_that_gain_and_lose_tags() {
    let first = Kind::Memcached.start_to_return();
    let address = first.address().to_owned();
    let port = address.rsplit_once(':').unwrap().1.to_owned();
    servers::run(async {
        let mut server = Some(first);
        let client = || patient([address.as_str()]).build().unwrap();
        let mut all = vec![(client(), Kind::Memcached)];
        let mut processes = vec![names(&all[0].0).await];
        for kind in [Kind::Rules, Kind::Memcached, Kind::Rules] {
            drop(server.take());
            server = Some(kind.start_with(&["-p", &port]));
            all.push((client(), kind));
            processes.push(names(&all.last().unwrap().0).await);
            // It is noticed within some seconds, and by the next update.
            let end = tokio::time::Instant::now() + Duration::from_secs(20);
            for names in &processes {
                while names.key("userId", 1).await.is_err() || names.uses_tags() != (kind == Kind::Rules) {
                    assert!(tokio::time::Instant::now() < end, "{kind:?}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            for writer in &processes {
                let key = writer.key("userId", 1).await.unwrap();
                set(writer.cache(), &key, "content").await;
                for reader in &processes {
                    let key = reader.key("userId", 1).await.unwrap();
                    assert_eq!(get(reader.cache(), &key).await.as_deref(), Some("content"), "{kind:?}");
                }
                writer.update("userId", 1).await.unwrap();
                for reader in &processes {
                    let key = reader.key("userId", 1).await.unwrap();
                    assert_eq!(get(reader.cache(), &key).await, None, "{kind:?}");
                }
            }
        }
    });
}

/// With ejection a program starts and updates while a server is down or stands still, and what that one has
/// is not seen when it returns.
fn a_server_that_is_ejected(kind: Kind) {
    use cattlegrid_client::Ejection;
    use nix::sys::signal::Signal;
    let servers = start(kind, 3);
    servers::run(async {
        let client = || {
            Client::builder()
                .servers(servers.iter().map(Server::address))
                .timeout(Duration::from_secs(2))
                .connect_timeout(Duration::from_secs(2))
                .ejection(Ejection { after_failures: 1, retry: Duration::from_millis(200) })
                .flush_on_return(true)
                .build()
                .unwrap()
        };
        let before = names(&client()).await;
        let ids = 0..40;
        for id in ids.clone() {
            let key = before.key("userId", id).await.unwrap();
            set(before.cache(), &key, "old").await;
        }
        servers[1].signal(Signal::SIGSTOP);
        // It may answer until all its threads have stopped.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let after_client = client();
        let after = loop {
            // A client finds out by itself that it fails.
            match Namespacer::new(after_client.clone(), NamespacerOptions::default()).await {
                Ok(after) => break after,
                Err(error) => assert!(matches!(error, Error::Timeout { .. }), "{error}"),
            }
        };
        for id in ids.clone() {
            // It fails once for each client, which ejects it then.
            let mut errors = 0;
            while let Err(error) = before.update("userId", id).await {
                errors += 1;
                assert!(errors < 20, "{error}");
            }
            let mut errors = 0;
            let found = loop {
                let read = async { after.cache().get::<String>(&after.key("userId", id).await?).await };
                match read.await {
                    Ok(found) => break found,
                    Err(error) => {
                        errors += 1;
                        assert!(errors < 20, "{error}");
                    }
                }
            };
            assert_eq!(found, None, "{id} while it is away");
        }
        servers[1].signal(Signal::SIGCONT);
        let end = tokio::time::Instant::now() + Duration::from_secs(4);
        while tokio::time::Instant::now() < end {
            for names in [&before, &after] {
                for id in ids.clone() {
                    let key = names.key("userId", id).await.unwrap();
                    assert_eq!(get(names.cache(), &key).await, None, "{id} after it has returned");
                }
            }
        }
    });
}
on_servers!(a_server_that_is_ejected);
