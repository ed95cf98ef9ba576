//! Tokens that leave their process, values that are looked at, and why a value is not in the cache.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::servers::{Kind, Server, begun, on_servers, patient, run};
use cattlegrid_client::{
    Client, Compute, Error, Fetch, Fetched, Json, NotStored, Observer, Outcome, Protocol, SavedToken,
};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

fn client(server: &Server) -> Client {
    patient([server.address()]).build().unwrap()
}

async fn token(client: &Client, key: &str) -> cattlegrid_client::Token<Client> {
    let options = Fetch::new(SECOND * 60).compute_timeout(SECOND * 20).outlives_process();
    match client.fetch_or_compute::<_, String>(key, options, b"").await.unwrap() {
        Fetched::Compute { token, .. } => token,
        other => panic!("{other:?}"),
    }
}

on_servers!(another_process_finishes_what_a_saved_token_began);
fn another_process_finishes_what_a_saved_token_began(kind: Kind) {
    let server = kind.start();
    // The first has a runtime of its own, whose end closes its connections, as that of a process does.
    let text = run(async {
        let one = client(&server);
        token(&one, "h:saved").await.save().to_string()
    });
    let failing = run(async {
        let one = client(&server);
        serde_json::to_string(&token(&one, "h:failing").await.save()).unwrap()
    });
    run(async {
        let (other, third) = (client(&server), client(&server));
        // It is computed still: no other client gets the right.
        let none = Fetch::new(SECOND * 60).wait(Duration::ZERO);
        let busy = third.fetch_or_compute::<_, String>("h:saved", none, b"").await.unwrap();
        assert!(matches!(busy, Fetched::Busy), "{busy:?}");
        let saved: SavedToken = text.parse().unwrap();
        assert_eq!(saved.key(), b"h:saved");
        let resumed = other.resume(&saved);
        assert_eq!(resumed.key(), b"h:saved");
        assert_eq!(other.deliver(resumed, "from another process").await, Ok(true));
        assert_eq!(third.peek::<String>("h:saved").await.unwrap().as_deref(), Some("from another process"));
        // Used once.
        assert_eq!(
            third.deliver_or_why(third.resume(&saved), "late").await,
            Ok(Err(NotStored::Fenced)),
            "{kind:?}"
        );
        assert_eq!(third.peek::<String>("h:saved").await.unwrap().as_deref(), Some("from another process"));
        let saved: SavedToken = serde_json::from_str(&failing).unwrap();
        other.fail(other.resume(&saved), "no paper").await.unwrap();
        drop(token(&third, "h:failing").await);
    });
}

on_servers!(a_value_that_was_computed_is_looked_at);
fn a_value_that_was_computed_is_looked_at(kind: Kind) {
    let server = kind.start();
    run(async {
        let (one, other) = (client(&server), client(&server));
        let options = Compute::new().expiration(SECOND * 60).compute_time(SECOND * 20);
        for key in ["h:peek", "none:peek"] {
            // Nothing is there; and afterwards another client gets the right to compute, not this connection.
            let began = Instant::now();
            assert_eq!(one.peek::<Json<Vec<u8>>>(key).await, Ok(None));
            let (finish, call) = begun(&other, key, &options, Json(vec![1_u8, 2])).await;
            // What is being computed is not waited for.
            assert_eq!(one.peek::<Json<Vec<u8>>>(key).await, Ok(None));
            assert!(began.elapsed() < SECOND * 10, "{:?}", began.elapsed());
            finish.send(()).unwrap();
            let stored = call.await.unwrap();
            assert_eq!(stored, Ok(Outcome::Computed { value: Json(vec![1, 2]), stored: true }));
            assert_eq!(one.peek(key).await, Ok(Some(Json(vec![1_u8, 2]))));
            let error = one.get::<Json<Vec<u8>>>(key).await.unwrap_err().to_string();
            assert!(error.contains("`peek`"), "{error}");
            // Plain values too.
            one.set(key, "plain", 60).await.unwrap();
            assert_eq!(one.peek::<String>(key).await.unwrap().as_deref(), Some("plain"));
            one.delete(key).await.unwrap();
        }
    });
}

/// Reasons, as they are told to an observer and to a call.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Told {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Told {
    fn not_stored(&self, key: &[u8], why: &NotStored) {
        self.0.lock().unwrap().push(format!("{} {why:?}", key.escape_ascii()));
    }
}

on_servers!(a_value_that_is_not_stored_says_why);
fn a_value_that_is_not_stored_says_why(kind: Kind) {
    let server = kind.start();
    run(async {
        let (observed, called) = (Arc::new(Told::default()), Arc::new(Told::default()));
        let one = patient([server.address()]).observer(observed.clone()).build().unwrap();
        let other = client(&server);
        let told = called.clone();
        let options = Compute::new()
            .expiration(SECOND * 60)
            .compute_time(SECOND * 20)
            .on_not_stored(move |key, why| told.not_stored(key, why));
        let both = || {
            let at = observed.take();
            assert_eq!(called.take(), at);
            at
        };
        let fill = |text: &'static str| async move { Ok::<_, String>(text.to_owned()) };
        let stored = one.get_or_compute("h:stored", &options, || fill("v")).await.unwrap();
        assert_eq!(stored, Outcome::Computed { value: "v".to_owned(), stored: true });
        assert!(both().is_empty());

        // Deleted while it was computed.
        let (finish, call) = begun(&one, "h:fenced", &options, "v".to_owned()).await;
        other.delete("h:fenced").await.unwrap();
        finish.send(()).unwrap();
        assert_eq!(call.await.unwrap(), Ok(Outcome::Computed { value: "v".to_owned(), stored: false }));
        assert_eq!(both(), ["h:fenced Fenced"]);

        // Too late: another client has the right by then.
        let short = options.clone().compute_time(SECOND);
        let (finish, call) = begun(&one, "h:late", &short, "v".to_owned()).await;
        sleep(SECOND * 3).await;
        let newer = other.get_or_compute("h:late", &Compute::new(), || fill("newer")).await.unwrap();
        assert_eq!(newer, Outcome::Computed { value: "newer".to_owned(), stored: true });
        finish.send(()).unwrap();
        assert_eq!(call.await.unwrap(), Ok(Outcome::Computed { value: "v".to_owned(), stored: false }));
        assert_eq!(both(), ["h:late Late"]);

        // Too large, one and many.
        let large = || async { Ok::<_, String>("x".repeat(2_000_000)) };
        let got = one.get_or_compute("h:large", &options, large).await.unwrap();
        assert!(matches!(got, Outcome::Computed { stored: false, .. }));
        assert_eq!(both(), ["h:large TooLarge"]);
        let compute = |keys: Vec<&'static str>| async move {
            Ok::<_, String>(keys.into_iter().map(|key| (key, "x".repeat(2_000_000))).collect::<Vec<_>>())
        };
        let keys = [("h:large", SECOND.into()), ("h:larger", SECOND.into())];
        let many = one.get_or_compute_many(keys, &options, compute).await.unwrap();
        assert!(
            many.iter().all(|got| matches!(got, Ok(Outcome::Computed { stored: false, .. }))),
            "{many:?}"
        );
        assert_eq!(both(), ["h:large TooLarge", "h:larger TooLarge"]);

        // Expired already.
        let past = options.clone().expiration(Duration::ZERO);
        let got = one.get_or_compute("h:expired", &past, || fill("v")).await.unwrap();
        assert_eq!(got, Outcome::Computed { value: "v".to_owned(), stored: false });
        assert_eq!(both(), ["h:expired Expired"]);

        let counted = one.statistics();
        assert_eq!(
            [counted.not_stored_fenced, counted.not_stored_late, counted.not_stored_too_large],
            [1, 1, 3]
        );
        assert_eq!([counted.not_stored_expired, counted.not_stored, counted.not_stored_failed], [1, 6, 0]);

        // A token.
        let given = token(&one, "h:token").await;
        other.delete("h:token").await.unwrap();
        assert_eq!(one.deliver_or_why(given, "v").await, Ok(Err(NotStored::Fenced)));
        let given = token(&one, "h:large").await;
        assert_eq!(one.deliver_or_why(given, &"x".repeat(2_000_000)).await, Ok(Err(NotStored::TooLarge)));
        let given = token(&one, "h:fine").await;
        assert_eq!(one.deliver_or_why(given, "v").await, Ok(Ok(())));
    });
}

#[test]
fn a_server_that_cannot_be_asked_is_the_reason() {
    run(async {
        let told = Arc::new(Told::default());
        let client = Client::builder().server("127.0.0.1:1").observer(told.clone()).build().unwrap();
        let options = Compute::new().when_unavailable(cattlegrid_client::WhenUnavailable::Compute);
        let got = client.get_or_compute("k", &options, || async { Ok::<_, String>(1_i64) }).await.unwrap();
        assert_eq!(got, Outcome::Computed { value: 1, stored: false });
        let compute = |keys: Vec<&'static str>| async move {
            Ok::<_, String>(keys.into_iter().map(|key| (key, 1_i64)).collect::<Vec<_>>())
        };
        let many = client.get_or_compute_many([("m", SECOND.into())], &options, compute).await.unwrap();
        assert_eq!(many, [Ok(Outcome::Computed { value: 1, stored: false })]);
        let told = told.take();
        assert!(told[0].starts_with("k Failed(Connection") && told[1].starts_with("m Failed("), "{told:?}");
    });
}

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn text_says_what_needs_meta() {
    let server = Kind::Plain.start();
    run(async {
        let text = patient([server.address()]).protocol(Protocol::Text).build().unwrap();
        assert_eq!(text.has_tags().await, Ok(false));
        let refused = text.invalidate(&["user:1"]).await.unwrap_err();
        assert_eq!(refused, Error::NoTags);
        assert!(refused.to_string().contains("Protocol::Meta"), "{refused}");
        text.set("k", "v", 60).await.unwrap();
        assert_eq!(text.peek::<String>("k").await.unwrap().as_deref(), Some("v"));
    });
}

/// A loader whose workers answer every key but `l:none` and `l:broken`.
const LOADED: &str = r#"
[[rule]]
match = "l:{id}"
loader = "texts"
ttl = "60s"

[loader.texts]
mode = "jsonl"
command = ["python3", "-c", '''
import json, sys
def say(what): print(json.dumps(what), flush=True)
say({"ready": True})
for line in sys.stdin:
    job = json.loads(line)
    if job.get("type") != "job": continue
    id = job["args"]["id"]
    if id == "none": say({"id": job["id"], "not_found": 5})
    elif id == "broken": say({"id": job["id"], "error": "no paper"})
    else: say({"id": job["id"], "value": "text of " + id, "ttl": 60})
''']
"#;

#[test]
#[ignore = "needs servers: cargo xtask test --stage client"]
fn what_the_server_loads_is_read_by_every_call() {
    let words = ["-p", "-1", "-l", "127.0.0.1"];
    let program = crate::servers::cattlegrid();
    let start = cattlegrid_load::harness::Start::new(&program, &words);
    let server = Server::start(&cattlegrid_load::harness::Start { rules: Some(LOADED), ..start }).unwrap();
    run(async {
        let client = client(&server);
        let options = Compute::new().compute_time(SECOND * 10);
        let unused = || async { Err::<String, _>("computed by a client") };
        // Nothing is loaded by a look.
        assert_eq!(client.peek::<String>("l:1").await, Ok(None));
        assert_eq!(client.get::<String>("l:1").await.unwrap().as_deref(), Some("text of 1"));
        let got = client.get_or_compute("l:1", &options, unused).await;
        assert_eq!(got, Ok(Outcome::Hit("text of 1".to_owned())));
        let got = client.get_or_compute("l:2", &options, unused).await;
        assert_eq!(got, Ok(Outcome::Hit("text of 2".to_owned())));
        assert_eq!(client.peek::<String>("l:2").await.unwrap().as_deref(), Some("text of 2"));
        let short = Compute::new().compute_time(SECOND).wait(SECOND);
        let got = client.get_or_compute("l:broken", &short, unused).await;
        assert_eq!(got, Ok(Outcome::Busy));
        // What the loader does not find is missing, as on any server.
        assert_eq!(client.get::<String>("l:none").await, Ok(None));
        let got = client.get_or_compute("l:none", &short, unused).await;
        assert_eq!(got, Err(cattlegrid_client::ComputeError::Compute("computed by a client")));
        // Without a rule clients compute.
        let own = || async { Ok::<_, &str>("own".to_owned()) };
        let got = client.get_or_compute("other", &options, own).await;
        assert_eq!(got, Ok(Outcome::Computed { value: "own".to_owned(), stored: true }));
    });
}
