//! Ejection with real servers: where keys go, and what an older value that returns needs.
#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]
#![expect(clippy::disallowed_methods, reason = "waits are for other processes")]

use std::time::{Duration, Instant};

use cattlegrid_client::{Client, Ejection, Error};
use nix::sys::signal::Signal;

use crate::servers;
use crate::servers::{Kind, Server, on_servers, patient};

/// Long, since the servers that work must answer within it whatever else the machine does.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The value that a client reads after its server has returned, if the key was changed while the server was
/// ejected.
async fn after_return(kind: Kind, flush: bool) -> Option<String> {
    let servers = [kind.start(), kind.start()];
    let client = Client::builder()
        .servers(servers.iter().map(Server::address))
        .timeout(TIMEOUT)
        .connect_timeout(TIMEOUT)
        .ejection(Ejection { after_failures: 1, retry: Duration::from_millis(200) })
        .flush_on_return(flush)
        .build()
        .unwrap();
    client.set("key", &"old".to_owned(), 0).await.unwrap();
    let own = servers
        .iter()
        .position(|server| !server.connect().unwrap().get(["key"]).unwrap().is_empty())
        .unwrap();
    servers[own].signal(Signal::SIGSTOP);
    // It may answer until all its threads have stopped.
    let failed = loop {
        if let Err(error) = client.get::<String>("key").await {
            break error;
        }
    };
    assert!(matches!(failed, Error::Timeout { .. }), "{failed:?}");
    // The key goes to the other server, where it is absent.
    assert_eq!(client.get::<String>("key").await.unwrap(), None);
    client.set("key", &"new".to_owned(), 0).await.unwrap();
    assert_eq!(client.get::<String>("key").await.unwrap().as_deref(), Some("new"));
    servers[own].signal(Signal::SIGCONT);
    let end = Instant::now() + Duration::from_secs(40);
    loop {
        let value = client.get::<String>("key").await.unwrap();
        if value.as_deref() != Some("new") {
            return value;
        }
        assert!(Instant::now() < end, "the server does not return");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn older_value(kind: Kind) {
    servers::run(async {
        assert_eq!(
            after_return(kind, false).await.as_deref(),
            Some("old"),
            "what ejection without a flush costs"
        );
        assert_eq!(after_return(kind, true).await, None);
    });
}
on_servers!(older_value);

/// Without ejection the keys of a server that is gone fail and no others; with it, all can be stored again. A
/// server that has been restarted is used again.
fn servers_that_are_gone(kind: Kind) {
    servers::run(async {
        for ejects in [false, true] {
            let mut all = vec![kind.start(), kind.start_to_return()];
            let builder = patient(all.iter().map(Server::address));
            let ejection = Ejection { after_failures: 2, retry: Duration::from_millis(50) };
            let client = if ejects { builder.ejection(ejection) } else { builder }.build().unwrap();
            let pairs: Vec<_> = (0..50).map(|key| (format!("key:{key}"), "v".to_owned())).collect();
            let failures =
                async || client.set_many(&pairs, 0).await.iter().filter(|set| set.is_err()).count();
            assert_eq!(failures().await, 0);
            let gone = all.pop().unwrap();
            let port = gone.address().rsplit_once(':').unwrap().1.to_owned();
            drop(gone);
            let end = Instant::now() + Duration::from_secs(20);
            let mut last = failures().await;
            assert!(last > 0 && last < 50, "{last}");
            while ejects && last > 0 {
                assert!(Instant::now() < end, "the server is not ejected");
                tokio::time::sleep(Duration::from_millis(5)).await;
                last = failures().await;
            }
            all.push(kind.start_with(&["-p", &port]));
            let end = Instant::now() + Duration::from_secs(40);
            let there = async || {
                let stats = client.stats("").await;
                let of_new = stats.iter().find(|(server, _)| server.ends_with(&port)).unwrap().1.as_ref();
                of_new
                    .is_ok_and(|of_new| of_new.iter().any(|(name, value)| name == "cmd_set" && value != "0"))
            };
            while failures().await > 0 || !there().await {
                assert!(Instant::now() < end, "the server is not used again");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
}
on_servers!(servers_that_are_gone);
