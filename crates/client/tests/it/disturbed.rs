//! Computing while a server is restarted, or has no connections left.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests")]

use std::time::Duration;

use cattlegrid_client::{Client, Compute, Outcome};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::servers::{Kind, Server, begun, on_servers, patient, run};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn client(server: &Server) -> Client {
    patient([server.address()]).build().unwrap()
}

async fn get(client: &Client, key: &str, options: &Compute) -> Outcome<String> {
    client.get_or_compute(key, options, || async { Ok::<_, &str>("never".to_owned()) }).await.unwrap()
}

/// A server that is restarted gives the same CAS numbers to other items.
fn a_restart_while_a_value_is_computed(kind: Kind) {
    run(async {
        for (round, key) in ["plain:restart-1", "plain:restart-2", "plain:restart-3"].into_iter().enumerate()
        {
            let server = kind.start_to_return();
            let port = server.address().rsplit_once(':').unwrap().1.to_owned();
            let options = Compute::new().compute_time(SECOND * 30).wait(Duration::ZERO);
            let (one, other) = (client(&server), client(&server));
            let old = begun(&one, key, &options, "old".to_owned()).await;
            drop(server);
            let server = kind.start_with(&["-p", &port]);
            if round == 1 {
                // The client has a connection to the new server already.
                one.get::<String>("any").await.ok();
                sleep(MS * 200).await;
                one.get::<String>("any").await.ok();
            }
            let new = begun(&other, key, &options, "new".to_owned()).await;
            old.0.send(()).unwrap();
            let lost = Outcome::Computed { value: "old".to_owned(), stored: false };
            assert_eq!(old.1.await.unwrap().unwrap(), lost, "{key}");
            new.0.send(()).unwrap();
            assert_eq!(
                new.1.await.unwrap().unwrap(),
                Outcome::Computed { value: "new".to_owned(), stored: true },
                "{key}"
            );
            assert_eq!(get(&client(&server), key, &options).await, Outcome::Hit("new".to_owned()));
        }
    });
}
on_servers!(a_restart_while_a_value_is_computed);

/// The server has no connection left for requests that it may hold: those on the shared one are served.
fn no_connections_left(kind: Kind) {
    for words in [&["-c", "40"][..], &["-c", "40", "-o", "no_maxconns_fast"]] {
        // Of connections that it does not accept memcached lets no more than a few begin.
        if kind == Kind::Memcached && words.len() > 2 {
            continue;
        }
        let server = kind.start_with(words);
        run(async {
            let (one, other) = (client(&server), client(&server));
            let options = Compute::new().compute_time(SECOND * 20);
            let keys: Vec<&'static str> = vec!["h:c1", "h:c2", "h:c3", "h:c4", "h:c5", "h:c6"];
            assert_eq!(other.get::<String>("connects").await, Ok(None));
            let mut computations = Vec::new();
            for key in &keys {
                computations.push(begun(&one, key, &options, "value".to_owned()).await);
            }
            let mut others = Vec::new();
            for _ in 0..60 {
                others.push(tokio::net::TcpStream::connect(server.address()).await.unwrap());
            }
            let began = Instant::now();
            let mut callers = JoinSet::new();
            for at in 0..60 {
                let (other, key, options) = (other.clone(), keys[at % keys.len()], options.clone());
                callers.spawn(async move { get(&other, key, &options).await });
            }
            sleep(MS * 800).await;
            let mut calls = Vec::new();
            for (finish, call) in computations {
                finish.send(()).unwrap();
                calls.push(call);
            }
            let got = callers.join_all().await;
            let took = began.elapsed();
            println!("{kind:?} {words:?}: {took:?}");
            assert!(got.iter().all(|got| *got == Outcome::Hit("value".to_owned())), "{got:?}");
            assert!(took < SECOND * 8, "{took:?}");
            for call in calls {
                assert_eq!(
                    call.await.unwrap().unwrap(),
                    Outcome::Computed { value: "value".to_owned(), stored: true }
                );
            }
            // The connections come back, and are used.
            drop(others);
            assert_eq!(get(&other, "h:c1", &options).await, Outcome::Hit("value".to_owned()));
        });
    }
}
on_servers!(no_connections_left);
