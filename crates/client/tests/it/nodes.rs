//! Servers that are those of a list: what a change moves, keeps and ends, and what becomes of requests
//! meanwhile.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic, its helpers too")]
#![expect(clippy::disallowed_methods, reason = "waits are for other tasks")]

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use cattlegrid_client::{Client, ClientBuilder, Compute, Ejection, Error, Observer, Outcome};

mod fleet;
mod real;

use fleet::{Node, TOKEN, list, publish};

/// Long enough for anything that happens at once.
const SOON: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_millis(20);

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(180), test).await }).unwrap()
}

async fn start(count: usize) -> Vec<Node> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(Node::start().await);
    }
    nodes
}

fn builder<'a>(seeds: impl IntoIterator<Item = &'a Node>) -> ClientBuilder {
    let seeds = seeds.into_iter().map(|node| node.address.clone());
    Client::builder().nodes(seeds).nodes_interval(INTERVAL).timeout(SOON).connect_timeout(SOON)
}

/// The addresses of the client's servers.
fn servers(client: &Client) -> BTreeSet<String> {
    let text = format!("{client:?}");
    text.split('"').filter(|part| part.contains(':') && !part.contains(' ')).map(str::to_owned).collect()
}

fn addresses<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> BTreeSet<String> {
    nodes.into_iter().map(|node| node.address.clone()).collect()
}

/// Uses the client until its servers are these.
async fn until_servers<'a>(client: &Client, nodes: impl IntoIterator<Item = &'a Node>) {
    let wanted = addresses(nodes);
    until("the servers are others", async || {
        client.get::<String>("any").await.unwrap();
        servers(client) == wanted
    })
    .await;
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so().await {
        assert!(Instant::now() < end, "not in a minute: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A key of this server.
async fn key_of(client: &Client, node: &Node, prefix: &str) -> String {
    for number in 0..1000 {
        let key = format!("{prefix}{number}");
        client.set(&key, "x", 0).await.unwrap();
        if node.seen.items.lock().unwrap().remove(&key).is_some() {
            return key;
        }
    }
    panic!("no key of 1000 is there");
}

/// Reads and writes all the time; returns how many requests have ended, none with an error.
fn load(client: &Client, stop: &Arc<AtomicBool>) -> Vec<tokio::task::JoinHandle<usize>> {
    let tasks = (0..8).map(|task| {
        let (client, stop) = (client.clone(), stop.clone());
        tokio::spawn(async move {
            let mut count = 0;
            while !stop.load(SeqCst) {
                let key = format!("k:{task}:{}", count % 100);
                client.set(&key, &format!("{count}"), 0).await.unwrap();
                client.get::<String>(&key).await.unwrap();
                for read in client.get_many::<String>(&["k:0:1", "k:1:2", "k:2:3", "k:3:4"]).await {
                    read.unwrap();
                }
                count += 1;
            }
            count
        })
    });
    tasks.collect()
}

#[test]
fn the_ring_is_that_of_the_addresses() {
    run(async {
        let nodes = start(4).await;
        publish(&nodes, &list(nodes.iter().map(|node| (node, "up"))));
        let backwards = list(nodes.iter().rev().map(|node| (node, "up")));
        *nodes[1].seen.list.lock().unwrap() = Some(backwards);
        let fixed = Client::builder().servers(nodes.iter().map(|node| &*node.address)).build().unwrap();
        let keys: Vec<_> = (0..200).map(|number| format!("key:{number}")).collect();
        let pairs: Vec<_> = keys.iter().map(|key| (key, key.clone())).collect();
        for stored in fixed.set_many(&pairs, 0).await {
            assert!(stored.unwrap().is_stored());
        }
        assert!(nodes.iter().all(|node| node.count() > 10));
        for seed in [0, 1] {
            let client = builder([&nodes[seed]]).build().unwrap();
            assert_eq!(servers(&client), addresses([&nodes[seed]]), "nothing is asked yet");
            for (key, read) in keys.iter().zip(client.get_many::<String>(&keys).await) {
                assert_eq!(read.unwrap().as_ref(), Some(key));
            }
            assert_eq!(servers(&client), addresses(&nodes));
            assert_eq!(client.statistics().server_changes, 1);
        }
    });
}

#[derive(Default)]
struct Told(AtomicUsize);

impl Observer for Told {
    fn servers(&self, servers: &[&str]) {
        assert!(servers.is_sorted());
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn changes_under_load_lose_no_request() {
    run(async {
        let nodes = start(4).await;
        publish(&nodes, &list(nodes.iter().map(|node| (node, "up"))));
        let told = Arc::new(Told::default());
        let client = builder(&nodes[..1]).observer(told.clone()).build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = load(&client, &stop);
        for round in 0..30 {
            let stay: Vec<_> = (0..4).filter(|at| *at == 0 || (round + at) % 3 != 0).collect();
            let states = ["up", "draining", "joining"];
            let state = |at| if stay.contains(&at) { "up" } else { states[1 + round % 2] };
            publish(&nodes, &list(nodes.iter().enumerate().map(|(at, node)| (node, state(at)))));
            until_servers(&client, stay.iter().map(|at| &nodes[*at])).await;
        }
        stop.store(true, SeqCst);
        for task in tasks {
            assert!(task.await.unwrap() > 0);
        }
        let counted = client.statistics();
        assert_eq!((counted.errors, counted.timeouts), (0, 0));
        assert!(counted.server_changes >= 30 && counted.lists_failed == 0, "{counted:?}");
        assert_eq!(told.0.load(SeqCst) as u64, counted.server_changes);
        assert_eq!(nodes[0].seen.connections.load(SeqCst), 1, "a server that stays keeps its connection");
        assert!(nodes[1].seen.connections.load(SeqCst) > 5, "a server that goes does not");
    });
}

#[test]
fn dead_seeds_are_passed_over() {
    run(async {
        let mut nodes = start(3).await;
        publish(&nodes, &list(nodes[2..].iter().map(|node| (node, "up"))));
        nodes[0].stop().await;
        let client = builder(&nodes[..2]).build().unwrap();
        client.set("k", "v", 0).await.unwrap();
        assert_eq!((nodes[2].count(), servers(&client)), (1, addresses(&nodes[2..])));

        // All are dead: commands fail as they do for servers that were given, until one answers.
        nodes[1].stop().await;
        let client = builder(&nodes[..2]).build().unwrap();
        let failed = client.get::<String>("k").await.unwrap_err();
        assert!(matches!(failed, Error::Connection { .. } | Error::Unavailable { .. }), "{failed:?}");
        assert_eq!(servers(&client), addresses(&nodes[..2]));
        assert!(client.statistics().lists_failed > 0);
        nodes[1].start_again().await;
        until("a seed answers", async || {
            client.get::<String>("k").await.is_ok_and(|value| value.as_deref() == Some("v"))
        })
        .await;
        assert_eq!(servers(&client), addresses(&nodes[2..]));
    });
}

/// Servers without a list, such as memcached, are used as if they had been given.
#[test]
fn seeds_without_a_list_are_servers() {
    run(async {
        let nodes = start(3).await;
        let client = builder(&nodes).build().unwrap();
        let fixed = Client::builder().servers(nodes.iter().map(|node| &*node.address)).build().unwrap();
        for number in 0..100 {
            client.set(format!("key:{number}"), "v", 0).await.unwrap();
            assert!(fixed.get::<String>(format!("key:{number}")).await.unwrap().is_some());
        }
        assert!(nodes.iter().all(|node| node.count() > 0));
        assert!(client.statistics().lists_failed > 0);
    });
}

#[test]
fn a_list_that_is_broken_changes_nothing() {
    run(async {
        let nodes = start(3).await;
        let good = list(nodes[..2].iter().map(|node| (node, "up")));
        publish(&nodes, &good);
        let client = builder(&nodes).build().unwrap();
        until_servers(&client, &nodes[..2]).await;
        let none = list(nodes.iter().map(|node| (node, "draining")));
        let many = (0..1001).map(|port| format!(r#"{{"address":"a:{}","state":"up"}}"#, port + 1));
        let many = format!("[{}]", many.collect::<Vec<_>>().join(","));
        for broken in
            ["", "[]", "{}", "nonsense", &good[..good.len() - 1], "[{\"state\":\"up\"}]", &none, &many]
        {
            publish(&nodes, broken);
            let asked = || nodes.iter().map(|node| node.seen.questions.load(SeqCst)).sum::<usize>();
            let before = asked();
            until("it was asked for twice", async || {
                client.get::<String>("any").await.unwrap();
                asked() > before + 2 * nodes.len()
            })
            .await;
            assert_eq!(servers(&client), addresses(&nodes[..2]), "{broken}");
        }
        assert_eq!(client.statistics().server_changes, 1);
        publish(&nodes, &list([(&nodes[2], "joining")]));
        until_servers(&client, &nodes[2..]).await;
    });
}

/// One whose log is behind may not know who has come and gone.
#[test]
fn the_list_of_a_node_that_is_behind_is_passed_over() {
    run(async {
        let nodes = start(3).await;
        let old =
            list([(&nodes[0], "up")]).replace("\"lag_ms\":1", "\"lag_ms\":3001").replace("false", "true");
        *nodes[0].seen.list.lock().unwrap() = Some(old.clone());
        let client = builder(&nodes[..1]).build().unwrap();
        until_servers(&client, &nodes[..1]).await;
        let client = builder(&nodes[..2]).build().unwrap();
        publish(&nodes[1..], &list(nodes[1..].iter().map(|node| (node, "up"))));
        until_servers(&client, &nodes[1..]).await;
        publish(&nodes[1..], &old);
        for _ in 0..20 {
            client.get::<String>("any").await.unwrap();
            tokio::time::sleep(INTERVAL / 4).await;
        }
        assert_eq!(servers(&client), addresses(&nodes[1..]));
    });
}

#[test]
fn a_request_under_way_ends_where_it_was_sent() {
    run(async {
        let nodes = start(2).await;
        publish(&nodes, &list(nodes.iter().map(|node| (node, "up"))));
        let client = builder(&nodes[..1]).build().unwrap();
        until_servers(&client, &nodes).await;
        let key = key_of(&client, &nodes[1], "held:").await;
        nodes[1].seen.items.lock().unwrap().insert(key.clone(), b"there".to_vec());
        // A node of this test answers the requests of a connection one after the other: those meanwhile go to
        // the other node.
        let other = key_of(&client, &nodes[0], "other").await;
        nodes[1].seen.holds.send_replace(true);
        let held = tokio::spawn({
            let (client, key) = (client.clone(), key.clone());
            async move { client.get::<String>(&key).await }
        });
        until("it is held", async || nodes[1].seen.held.load(SeqCst) == 1).await;
        publish(&nodes, &list([(&nodes[0], "up"), (&nodes[1], "draining")]));
        until("the servers are others", async || {
            client.get::<String>(&other).await.unwrap();
            servers(&client) == addresses(&nodes[..1])
        })
        .await;
        assert_eq!(client.get::<String>(&key).await.unwrap(), None, "it has another server");
        assert_eq!(nodes[1].seen.open.load(SeqCst), 1, "its connection stays for it");
        nodes[1].seen.holds.send_replace(false);
        assert_eq!(held.await.unwrap().unwrap().as_deref(), Some("there"));
        until("the connection is closed", async || nodes[1].seen.open.load(SeqCst) == 0).await;
        // It comes back, with what it had.
        publish(&nodes, &list(nodes.iter().map(|node| (node, "up"))));
        until_servers(&client, &nodes).await;
        assert_eq!(client.get::<String>(&key).await.unwrap().as_deref(), Some("there"));
    });
}

/// SIGTERM: it closes its connections at once, and is listed as leaving some milliseconds later.
#[test]
fn a_server_that_leaves_and_comes_back() {
    run(async {
        let mut nodes = start(3).await;
        publish(&nodes, &list(nodes.iter().map(|node| (node, "up"))));
        // The interval is long: that a server has failed is what makes it ask.
        let client = builder(&nodes).nodes_interval(Duration::from_secs(1)).build().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = load(&client, &stop);
        for leaving in [2, 1, 2] {
            until_servers(&client, &nodes).await;
            nodes[leaving].stop().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            let state = |at| if at == leaving { "draining" } else { "up" };
            publish(&nodes, &list(nodes.iter().enumerate().map(|(at, node)| (node, state(at)))));
            let rest: Vec<_> = nodes.iter().filter(|node| node.address != nodes[leaving].address).collect();
            until_servers(&client, rest).await;
            nodes[leaving].start_again().await;
            publish(&nodes, &list(nodes.iter().map(|node| (node, "up"))));
        }
        until_servers(&client, &nodes).await;
        stop.store(true, SeqCst);
        for task in tasks {
            assert!(task.await.unwrap() > 0);
        }
    });
}

/// SIGKILL: it stays listed until its lease has run out. Its keys fail, and no others.
#[test]
fn a_server_that_is_killed() {
    run(async {
        let mut nodes = start(2).await;
        publish(&nodes, &list(nodes.iter().map(|node| (node, "up"))));
        let client = builder(&nodes).build().unwrap();
        until_servers(&client, &nodes).await;
        let (other, own) = (key_of(&client, &nodes[0], "a:").await, key_of(&client, &nodes[1], "b:").await);
        nodes[1].stop().await;
        let mut failed = 0;
        for _ in 0..20 {
            client.get::<String>(&other).await.unwrap();
            failed += usize::from(client.get::<String>(&own).await.is_err());
        }
        assert_eq!(failed, 20);
        let began = Instant::now();
        for _ in 0..50 {
            client.get::<String>(&own).await.unwrap_err();
        }
        assert!(began.elapsed() < Duration::from_secs(10), "few of them wait: {:?}", began.elapsed());
        publish(&nodes, &list(nodes[..1].iter().map(|node| (node, "up"))));
        until("its keys have another server", async || client.get::<String>(&own).await.is_ok()).await;
    });
}

/// The state of a server stays when another one changes, and is dropped with the server.
#[test]
fn an_ejected_server_stays_ejected() {
    run(async {
        let mut nodes = start(3).await;
        let three = list(nodes.iter().map(|node| (node, "up")));
        publish(&nodes, &list(nodes[..2].iter().map(|node| (node, "up"))));
        let ejection = Ejection { after_failures: 1, retry: Duration::from_secs(600) };
        let client = builder(&nodes[..1]).ejection(ejection).build().unwrap();
        until_servers(&client, &nodes[..2]).await;
        let key = key_of(&client, &nodes[1], "k").await;
        nodes[1].stop().await;
        until("it is ejected", async || client.get::<String>(&key).await.is_ok()).await;
        publish(&nodes, &three);
        until_servers(&client, &nodes).await;
        for number in 0..100 {
            client.set(format!("key:{number}"), "v", 0).await.unwrap();
        }
        assert_eq!((client.statistics().ejections, nodes[1].count()), (1, 0));
        nodes[1].start_again().await;
        publish(&nodes, &list([(&nodes[0], "up"), (&nodes[2], "up")]));
        until_servers(&client, [&nodes[0], &nodes[2]]).await;
        publish(&nodes, &three);
        until_servers(&client, &nodes).await;
        for number in 0..100 {
            client.set(format!("key:{number}"), "v", 0).await.unwrap();
        }
        assert!(nodes[1].count() > 0, "it has gone and come back");
    });
}

#[test]
fn a_lease_ends_where_it_was_had() {
    run(async {
        let nodes = start(2).await;
        let both = list(nodes.iter().map(|node| (node, "up")));
        publish(&nodes, &both);
        let client = builder(&nodes[..1]).build().unwrap();
        until_servers(&client, &nodes).await;
        let key = key_of(&client, &nodes[1], "lease:").await;
        let options = Compute::new().compute_time(SOON);
        let change = async || {
            publish(&nodes, &list([(&nodes[0], "up")]));
            until_servers(&client, &nodes[..1]).await;
        };
        let compute = || async {
            change().await;
            Ok::<_, String>("value".to_owned())
        };
        let outcome = client.get_or_compute(&key, &options, compute).await.unwrap();
        assert!(matches!(outcome, Outcome::Computed { stored: true, .. }), "{outcome:?}");
        let fill = format!("ms {key} {TOKEN}");
        assert_eq!(*nodes[1].seen.fills.lock().unwrap(), [fill]);
        assert_eq!(nodes[0].seen.fills.lock().unwrap().len(), 0);
        until("its connections are closed", async || nodes[1].seen.open.load(SeqCst) == 0).await;

        // The function fails: the lease is given up there, too. The same for many keys.
        nodes[1].seen.items.lock().unwrap().clear();
        publish(&nodes, &both);
        until_servers(&client, &nodes).await;
        let compute = || async {
            change().await;
            Err::<String, _>("no".to_owned())
        };
        client.get_or_compute(&key, &options, compute).await.unwrap_err();
        until("it is given up", async || {
            nodes[1].seen.fills.lock().unwrap().last() == Some(&format!("md {key} {TOKEN}"))
        })
        .await;
        publish(&nodes, &both);
        until_servers(&client, &nodes).await;
        let other = key_of(&client, &nodes[0], "lease:other").await;
        let compute = |keys: Vec<String>| async {
            change().await;
            Ok::<_, String>(keys.into_iter().map(|key| (key, "value".to_owned())).collect::<Vec<_>>())
        };
        let keys = [(key.clone(), 0.into()), (other.clone(), 0.into())];
        let outcomes = client.get_or_compute_many(keys, &options, compute).await.unwrap();
        for outcome in outcomes {
            assert!(matches!(outcome, Ok(Outcome::Computed { stored: true, .. })), "{outcome:?}");
        }
        assert_eq!(nodes[1].seen.fills.lock().unwrap().last().unwrap(), &format!("ms {key} {TOKEN}"));
        assert_eq!(*nodes[0].seen.fills.lock().unwrap(), [format!("ms {other} {TOKEN}")]);
    });
}

/// The list is had by the first command, and again after a pause in which nothing is asked.
#[test]
fn without_async() {
    run(async {
        let nodes = start(2).await;
        publish(&nodes, &list([(&nodes[0], "up")]));
        let client = builder(&nodes[..1]).build_blocking().unwrap();
        let (asking, called) = (client.clone(), "it is called");
        let call = |key: &'static str| {
            let client = asking.clone();
            tokio::task::spawn_blocking(move || client.set(key, "v", 0).expect(called))
        };
        call("a").await.unwrap();
        assert_eq!((nodes[0].count(), nodes[1].count()), (1, 0));
        publish(&nodes, &list([(&nodes[1], "up")]));
        tokio::time::sleep(INTERVAL * 5).await;
        call("b").await.unwrap();
        assert_eq!((nodes[0].count(), nodes[1].count()), (1, 1), "the list was old, and asked for first");
        tokio::task::spawn_blocking(move || drop((asking, client))).await.unwrap();
    });
}

/// A runtime may end in the middle of a question.
#[test]
fn the_runtime_of_a_question_may_end() {
    run(async {
        let nodes = start(2).await;
        let client = builder(&nodes[..1]).build().unwrap();
        for round in 0..5 {
            let own = client.clone();
            let runtime = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let call =
                    async { tokio::time::timeout(Duration::from_micros(200), own.get::<String>("k")).await };
                drop(runtime.block_on(call));
            });
            tokio::task::spawn_blocking(|| runtime.join().unwrap()).await.unwrap();
            publish(&nodes, &list([(&nodes[round % 2], "up")]));
            // A connection whose runtime has ended is a failure of its server, which is left alone for a
            // moment.
            let wanted = addresses([&nodes[round % 2]]);
            until("the servers are others", async || {
                client.get::<String>("k").await.is_ok() && servers(&client) == wanted
            })
            .await;
        }
    });
}

#[test]
fn options_that_make_no_sense() {
    let wrong = [
        (Client::builder().nodes([""; 0]), "without servers"),
        (Client::builder().nodes(["a"]).server("b"), "server() and nodes()"),
        (Client::builder().nodes(["a=3"]), "weight"),
        (Client::builder().nodes(["a:b"]), "port"),
        (Client::builder().nodes(["a"]).nodes_interval(Duration::ZERO), "nodes_interval"),
    ];
    for (builder, text) in wrong {
        let Err(Error::Usage(message)) = builder.build() else { panic!("{text}") };
        assert!(message.contains(text), "{message}");
    }
    assert!(matches!(Client::builder().nodes(["a"]).nodes_key("a b").build(), Err(Error::Key(_))));
}
