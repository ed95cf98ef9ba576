//! A computation that fails: what the server is told, and which client computes after it.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use crate::servers::{Kind, Server, on_servers, patient, run, until_held};
use cattlegrid_client::{Client, Compute, Fetch, Fetched, Outcome};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn client(server: &Server) -> Client {
    patient([server.address()]).build().unwrap()
}

on_servers!(after_each_failure_the_next_caller_gets_a_token);
/// At once after the first. After further ones a server with leases holds computations back for a second,
/// then two: callers wait for it.
fn after_each_failure_the_next_caller_gets_a_token(kind: Kind) {
    let server = kind.start();
    run(async {
        let options = Fetch::new(SECOND * 60).compute_timeout(SECOND * 20);
        for held_back in [0, 0, 1, 2] {
            let one = client(&server);
            let began = Instant::now();
            let fetched = one.fetch_or_compute::<_, String>("h:fails", options, b"").await.unwrap();
            let Fetched::Compute { token, .. } = fetched else { panic!("{fetched:?}") };
            let most = if kind == Kind::Rules { held_back } else { 0 };
            assert!(began.elapsed() < SECOND * (most + 2), "{:?}", began.elapsed());
            one.fail(token, "no").await.unwrap();
        }
    });
}

on_servers!(a_caller_that_waits_computes_after_a_failure);
fn a_caller_that_waits_computes_after_a_failure(kind: Kind) {
    let server = kind.start();
    run(async {
        let options = Fetch::new(SECOND * 60).compute_timeout(SECOND * 20);
        let (one, other) = (client(&server), client(&server));
        let fetched = one.fetch_or_compute::<_, String>("h:waits", options, b"").await.unwrap();
        let Fetched::Compute { token, .. } = fetched else { panic!("{fetched:?}") };
        let waiting = tokio::spawn({
            let other = other.clone();
            async move {
                let options = Compute::new().compute_time(SECOND * 20).wait(SECOND * 20);
                let compute = || async { Ok::<_, &str>("value".to_owned()) };
                other.get_or_compute("h:waits", &options, compute).await
            }
        });
        while other.statistics().requests == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        until_held(kind, &server, 1);
        one.fail(token, "no").await.unwrap();
        let got = timeout(SECOND * 8, waiting).await.expect("not after the time of the lock").unwrap();
        assert_eq!(got, Ok(Outcome::Computed { value: "value".to_owned(), stored: true }));
    });
}
