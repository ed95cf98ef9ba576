//! Replies that are lost or come twice on their way: no caller gets the reply to another's request.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and says what it has met")]

use std::time::Duration;

use cattlegrid_client::{Client, Compute, Error, Herd, Outcome, Written};
use tokio::time::{Instant, sleep};

use crate::servers::{Kind, Proxy, on_servers, run};

const KEYS: usize = 20;
const TASKS: usize = 8;

/// An error, or what is expected. Whether it was no error.
fn check<T: PartialEq + std::fmt::Debug>(got: Result<T, Error>, expected: &T, what: &str) -> bool {
    match got {
        Ok(got) => {
            assert_eq!(&got, expected, "{what}");
            true
        }
        Err(_) => false,
    }
}

/// Each key has its own value, or none, or a number that only grows.
fn each_caller_gets_its_own_reply(kind: Kind) {
    run(async {
        let server = kind.start();
        let proxy = Proxy::start(server.address()).await;
        let limit = Duration::from_millis(300);
        let client = Client::builder().server(proxy.address()).timeout(limit).connections(2).build().unwrap();
        let herd = Herd::new(client.clone());
        let value = |n: usize| format!("{n}:").repeat(n + 1);
        for n in 0..KEYS {
            assert!(client.set(&format!("key-{n}"), &value(n), 0).await.unwrap().is_stored());
        }
        proxy.disturb(60);
        let until = Instant::now() + Duration::from_secs(5);
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..TASKS {
            let (client, herd) = (client.clone(), herd.clone());
            tasks.spawn(async move {
                let counter = format!("counter-{task}");
                let (mut count, mut last, mut right) = (task, 0, 0_u64);
                while Instant::now() < until {
                    count += 1;
                    let n = count % KEYS;
                    let key = format!("key-{n}");
                    right += u64::from(match count % 9 {
                        0..3 => check(client.get::<String>(&key).await, &Some(value(n)), &key),
                        3 => check(client.get::<String>(&format!("no-{n}")).await, &None, "missing"),
                        4 => {
                            let keys: Vec<_> = (0..KEYS).map(|n| format!("key-{n}")).collect();
                            let got = client.get_many::<String>(&keys).await.into_iter().enumerate();
                            got.fold(true, |right, (n, got)| check(got, &Some(value(n)), "many") && right)
                        }
                        5 => check(client.delete(&format!("no-{n}")).await, &false, "delete"),
                        6 => match client.incr(&counter, 1).await {
                            Ok(Some(now)) => {
                                assert!(now > last, "{counter}: {now} after {last}");
                                last = now;
                                true
                            }
                            // Whether it is there is not known after an error.
                            Ok(None) => client.add(&counter, &last.to_string(), 0).await.is_ok(),
                            Err(_) => false,
                        },
                        7 => {
                            let add = client.add(&key, &"other".to_owned(), 0).await;
                            check(add.map(Written::is_stored), &false, "add")
                        }
                        _ => {
                            let key = format!("h:{n}");
                            let compute = || async { Ok::<_, String>(value(n)) };
                            let got = herd.get_or_compute(&key, &Compute::new(), compute).await;
                            match got.map(Outcome::value) {
                                Ok(got) => got.is_none_or(|got| check(Ok(got), &value(n), &key)),
                                Err(_) => false,
                            }
                        }
                    });
                }
                right
            });
        }
        let right: u64 = tasks.join_all().await.into_iter().sum();
        let faults = proxy.faults();
        println!("{kind:?}: {right} right, {faults} replies lost or doubled");
        // Few on a busy machine: the time is fixed, not the work.
        assert!(right > 50 && faults > 5, "{right} right, {faults} faults");
        // It goes on when nothing is disturbed.
        proxy.disturb(0);
        let until = Instant::now() + Duration::from_secs(20);
        while client.get::<String>("key-1").await != Ok(Some(value(1))) {
            assert!(Instant::now() < until);
            sleep(Duration::from_millis(20)).await;
        }
        for n in 0..KEYS {
            assert_eq!(client.get::<String>(&format!("key-{n}")).await, Ok(Some(value(n))));
        }
    });
}
on_servers!(each_caller_gets_its_own_reply);
