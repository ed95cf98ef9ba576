//! JSON lines whose jobs and replies are objects: what the worker gets, what counts as its reply, and the
//! limits.

use std::sync::{Arc, Mutex};

use crate::common::*;
use cattlegrid_pool::{Builder, Error, Launch, Pool};
use serde_json::{Value, json};

fn objects() -> Builder {
    let script = format!("{}/tests/apps/objects.py", env!("CARGO_MANIFEST_DIR"));
    quiet(Launch::json_lines("python3", [script]).objects()).max(1)
}

/// The reply to an object.
fn ask(pool: &Pool, job: &Value) -> Result<String, Error> {
    let reply = pool.call([job.to_string()]).wait()?;
    assert_eq!(reply.parts().len(), 1);
    Ok(reply.text())
}

fn say(pool: &Pool, text: &str) -> Result<String, Error> {
    ask(pool, &json!({"what": "say", "text": text}))
}

#[test]
fn the_members_stand_in_the_line_of_the_job() {
    let pool = objects().spawn().wait().unwrap();
    // Spread over lines, with names that the line has already and with all kinds of values.
    let text = "{\n\"what\": \"line\", \"type\": \"mine\", \"id\": 0, \"attempt\": [],\r\n \"deadline_ms\": {},\n\
                \"key\": \"page:\\n\u{fc}\", \"args\": {\"id\": \"42\"}, \"n\": 1.50, \"big\": {\"b64\": \"/w==\"}}";
    let reply = pool.call([text]).wait().unwrap();
    let line: Value = serde_json::from_str(&reply.text()).unwrap();
    assert!(line["id"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!((&line["type"], &line["attempt"]), (&json!("job"), &json!(0)));
    assert_eq!(line["deadline_ms"], 0);
    assert_eq!((&line["key"], &line["args"]), (&json!("page:\n\u{fc}"), &json!({"id": "42"})));
    assert_eq!(line["big"], json!({"b64": "/w=="}));
    assert!(reply.text().contains("\"n\":1.50"), "numbers are passed on as they were written");
    assert_eq!(line.as_object().unwrap().len(), 9);
    let job = pool.job([r#"{"what":"line"}"#]).timeout(PATIENCE).call().wait().unwrap();
    assert!(serde_json::from_str::<Value>(&job.text()).unwrap()["deadline_ms"].as_u64().unwrap() > 0);
    pool.shutdown().wait();
}

#[test]
fn a_job_that_is_no_object_ends_and_its_worker_stays() {
    let pool = objects().spawn().wait().unwrap();
    let pid = pool.workers().wait()[0].pid;
    let calls = [
        pool.call(["[1]"]),
        pool.call(Vec::<&str>::new()),
        pool.call(["{}", "{}"]),
        pool.call([&b"{\"\xff\":1}"[..]]),
        pool.call(["{\"a\":"]),
    ];
    for call in calls {
        let error = call.wait().unwrap_err();
        assert!(matches!(error, Error::Codec(_)), "{error:?}");
    }
    assert_eq!(say(&pool, r#"{"value":1}"#).unwrap(), r#"{"value":1}"#);
    assert_eq!((pool.workers().wait()[0].pid, pool.stats().in_flight), (pid, 0));
    pool.shutdown().wait();
}

#[test]
fn an_object_is_a_reply_and_the_known_messages_stay_what_they_are() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&said);
    let builder = objects().on_event(move |event| events.lock().unwrap().push(event.parts.text()));
    let pool = builder.spawn().wait().unwrap();
    for text in
        [r#"{"id":"ID","value":"a","ttl":60}"#, r#" { "value" : {"result": 1} , "tags":[ "a" ] } "#, "{}"]
    {
        let reply = say(&pool, text).unwrap();
        assert!(reply.starts_with('{') && reply.ends_with('}'), "{reply:?}");
        let end = &text.trim()[text.trim().len() - 1..];
        assert!(reply.ends_with(end) && (text.contains("ID") || reply == text.trim()), "{reply:?}");
    }
    assert_eq!(say(&pool, r#"{"result":["x"]}"#).unwrap(), "x");
    let error = say(&pool, r#"{"value":1,"error":{"code":"c","retryable":true}}"#).unwrap_err();
    assert!(matches!(error, Error::Worker { ref code, retryable: true, .. } if code == "c"), "{error:?}");
    let before = "{\"event\":\"e\"}\n{\"log\":\"l\"}\n{\"progress\":1}\n{\"value\":\"behind\"}";
    assert_eq!(say(&pool, before).unwrap(), r#"{"value":"behind"}"#);
    assert_eq!(*said.lock().unwrap(), ["e"]);
    assert_eq!((pool.stats().protocol_errors, pool.stats().exited), (0, 0));
    pool.shutdown().wait();
}

/// An object for a job that is not there ends the worker, as any such reply does; so does one without a job.
#[test]
fn an_object_without_its_job_breaks_the_protocol() {
    let pool = objects().crash_loop(100, ms(1)).spawn().wait().unwrap();
    for text in [r#"{"id":"77","value":1}"#, r#"{"id":"0","value":1}"#, r#"{"id":7,"value":1}"#, "[1]"] {
        let error = say(&pool, text).unwrap_err();
        assert!(matches!(error, Error::WorkerLost { .. }), "{text}: {error:?}");
    }
    assert_eq!(pool.stats().protocol_errors, 4);
    assert_eq!(say(&pool, "{\"value\":1}\n{\"value\":2}").unwrap(), r#"{"value":1}"#);
    eventually("the second one ends it", || pool.stats().protocol_errors == 5);
    pool.shutdown().wait();
    let early = r#"echo '{"value":1}'; cat"#;
    let error = quiet(Launch::json_lines("sh", ["-c", early]).objects()).spawn().wait().unwrap_err();
    assert!(error.to_string().contains("none of the known fields"), "{error}");
}

#[test]
fn the_limits_are_those_of_all_replies() {
    let max = 2_000;
    let pool = objects().max_frame(max).max_reply(usize::MAX).spawn().wait().unwrap();
    let exact = |pool: &Pool, size: u32| ask(pool, &json!({"what": "exact", "size": size}));
    assert_eq!(exact(&pool, max).unwrap().len(), max as usize);
    for size in [max + 1, 300_000] {
        let error = exact(&pool, size).unwrap_err();
        assert_eq!(error, Error::TooLarge { len: size as usize, max: max as usize });
    }
    assert_eq!(say(&pool, "{}").unwrap(), "{}");
    assert_eq!((pool.stats().protocol_errors, pool.stats().exited), (0, 0));
    pool.shutdown().wait();
    // A count and a length stand in front of the object: 1 and 2 bytes.
    let pool = objects().max_reply(1_003).spawn().wait().unwrap();
    assert_eq!(exact(&pool, 1_000).unwrap().len(), 1_000);
    assert_eq!(exact(&pool, 1_001).unwrap_err(), Error::TooLarge { len: 1_004, max: 1_003 });
    pool.shutdown().wait();
}

#[test]
fn objects_are_for_json_lines_only() {
    for launch in [template(), exec(), Launch::stdio::<&str>(fixture(), [])] {
        let error = quiet(launch.objects()).spawn().wait().unwrap_err();
        assert!(matches!(error, Error::InvalidOption(ref text) if text.contains("objects")), "{error:?}");
    }
}
