//! Connections against a server that does what the test says: splits, silence, garbage, closing.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test; it has no clock of its own")]

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cattlegrid_client::{Answer, Ask, Cache, Client, ClientBuilder, Error, Key, Protocol, Write, Written};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

pub(crate) mod peer;

use peer::{accept, lines, unnumbered};

/// Long enough for anything that happens at once.
const SOON: Duration = Duration::from_secs(20);
/// A time that is waited for.
const SHORT: Duration = Duration::from_millis(300);
/// A timeout that is waited for. What is to happen before has time on a busy machine, too.
const LIMIT: Duration = Duration::from_secs(2);

/// Runs a test, and fails it after three minutes.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(180), test).await }).unwrap()
}

/// A listener and a client of it.
async fn pair() -> (TcpListener, ClientBuilder) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, Client::builder().server(address).timeout(SOON).connect_timeout(SOON))
}

fn get(client: &Client, key: &str) -> tokio::task::JoinHandle<Result<Option<String>, Error>> {
    let (client, key) = (client.clone(), key.to_owned());
    tokio::spawn(async move { client.get(key).await })
}

/// How long the server is left alone after a failure. The first back-offs are shorter than a busy machine may
/// need from the failure to the next request, which is sent then; after each further failure they are longer.
async fn left_alone(client: &Client) -> Duration {
    for _ in 0..7 {
        match client.get::<String>("k").await {
            Err(Error::Unavailable { left, .. }) => return left,
            Err(Error::Connection { .. } | Error::Timeout { .. }) => {}
            outcome => panic!("{outcome:?}"),
        }
    }
    panic!("it is asked again and again");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// However the replies are split into packets, and whichever callers go away, each gets its own reply.
    #[test]
    fn replies_belong_to_their_requests(
        kinds in prop::collection::vec((0..5_u8, any::<bool>()), 1..40),
        cuts in prop::collection::vec(1..30_usize, 1..60),
    ) {
        run(async {
            let (listener, builder) = pair().await;
            let client = builder.build().unwrap();
            let calls: Vec<_> = (0..kinds.len()).map(|i| get(&client, &format!("k{i}"))).collect();
            let mut stream = accept(&listener).await;
            let text = lines(&mut stream, kinds.len()).await;
            let mut replies = String::new();
            for (line, (kind, _)) in text.lines().zip(&kinds) {
                let key = line.split(' ').nth(1).unwrap();
                let reply = match kind {
                    0 => "EN\r\n".to_owned(),
                    1 => format!("SERVER_ERROR {key}\r\n"),
                    2 => format!("CLIENT_ERROR {key}\r\n"),
                    3 => format!("VA {} f0\r\n{key}\r\n", key.len()),
                    _ => format!("VA {} f0\r\n{key}\r\nEN\r\n\r\n", key.len() + 6),
                };
                replies.push_str(&reply);
            }
            let replies = stream.numbered(&replies).into_bytes();
            for (call, (_, stays)) in calls.iter().zip(&kinds) {
                if !stays {
                    call.abort();
                }
            }
            let mut rest = &replies[..];
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at(rest.len().min(*cut));
                stream.write_all(now).await.unwrap();
                tokio::task::yield_now().await;
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            for (i, (call, (kind, stays))) in calls.into_iter().zip(&kinds).enumerate() {
                let Ok(outcome) = call.await else {
                    assert!(!stays);
                    continue;
                };
                let key = format!("k{i}");
                match (kind, outcome) {
                    (0, Ok(None)) => {}
                    (1, Err(Error::Server { line, .. })) => assert_eq!(line, format!("SERVER_ERROR {key}")),
                    (2, Err(Error::Refused { line, .. })) => assert_eq!(line, format!("CLIENT_ERROR {key}")),
                    (3, Ok(Some(value))) => assert_eq!(value, key),
                    (4, Ok(Some(value))) => assert_eq!(value, format!("{key}\r\nEN\r\n")),
                    (kind, outcome) => panic!("{kind} {outcome:?}"),
                }
            }
        });
    }
}

/// 64 tasks with a request each, again and again: about two sends for each round.
#[test]
fn many_tasks_share_sends() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.build().unwrap();
        let (reads, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counters = (reads.clone(), requests.clone());
        let server = tokio::spawn(async move {
            let mut stream = accept(&listener).await;
            let mut input = Vec::with_capacity(1 << 16);
            while stream.read_buf(&mut input).await.unwrap() > 0 {
                counters.0.fetch_add(1, Ordering::Relaxed);
                let whole = memchr::memrchr(b'\n', &input).map_or(0, |at| at + 1);
                let mut replies = String::new();
                for line in std::str::from_utf8(&input[..whole]).unwrap().lines() {
                    counters.1.fetch_add(1, Ordering::Relaxed);
                    writeln!(replies, "EN {}\r", unnumbered(line).1.unwrap()).unwrap();
                }
                input.drain(..whole);
                stream.write_all(replies.as_bytes()).await.unwrap();
            }
        });
        let tasks: Vec<_> = (0..64)
            .map(|i| {
                let client = client.clone();
                tokio::spawn(async move {
                    for _ in 0..50 {
                        assert_eq!(client.get::<Bytes>(format!("k{i}")).await.unwrap(), None);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        drop(client);
        server.await.unwrap();
        assert_eq!(requests.load(Ordering::Relaxed), 64 * 50);
        // Two for each round; a read of the server may also see half of a send.
        let reads = reads.load(Ordering::Relaxed);
        assert!(reads <= 4 * 50, "{reads} reads for {} requests", 64 * 50);
    });
}

/// A server that says nothing: the command fails in its time, the connection is closed, and the server is
/// left alone for a while.
#[test]
fn a_silent_server() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.timeout(LIMIT).build().unwrap();
        let start = Instant::now();
        let calls: Vec<_> = (0..3).map(|_| get(&client, "k")).collect();
        let mut stream = accept(&listener).await;
        lines(&mut stream, 3).await;
        let mut late = 0;
        for call in calls {
            match call.await.unwrap() {
                Err(Error::Timeout { limit, .. }) => late += usize::from(limit == LIMIT),
                outcome => panic!("{outcome:?}"),
            }
        }
        assert_eq!(late, 3);
        let took = start.elapsed();
        assert!(took >= LIMIT && took < SOON, "{took:?}");
        assert_eq!(stream.read(&mut [0; 9]).await.unwrap_or(0), 0, "closed");
        left_alone(&client).await;
    });
}

/// A server that is slow, but not silent: the command fails in its time, and its reply goes to nobody.
#[test]
fn a_late_reply() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.timeout(LIMIT).build().unwrap();
        let calls = [get(&client, "a"), get(&client, "b")];
        let mut stream = accept(&listener).await;
        lines(&mut stream, 2).await;
        let replies = stream.numbered("VA 1 f0\r\na\r\nVA 1 f0\r\nb\r\n");
        let (now, later) = replies.split_at(replies.rfind(" f0").unwrap());
        stream.write_all(now.as_bytes()).await.unwrap();
        let [a, b] = calls;
        assert_eq!(a.await.unwrap().unwrap().as_deref(), Some("a"));
        assert!(matches!(b.await.unwrap(), Err(Error::Timeout { .. })));
        let c = get(&client, "c");
        lines(&mut stream, 1).await;
        stream.write_all(later.as_bytes()).await.unwrap();
        stream.reply("VA 1 f0\r\nc\r\n").await;
        assert_eq!(c.await.unwrap().unwrap().as_deref(), Some("c"));
    });
}

/// Bytes that do not fit the request close the connection: all that is pending fails.
#[test]
fn what_is_no_reply() {
    for garbage in
        ["VA x\r\n", "STORED\r\n", "hello\r\n", "VALUE k 0 1\r\nx\r\n", "VA 1 f0\r\nxyz", "END\r\n"]
    {
        run(async {
            let (listener, builder) = pair().await;
            let client = builder.build().unwrap();
            let calls = [get(&client, "a"), get(&client, "b")];
            let mut stream = accept(&listener).await;
            lines(&mut stream, 2).await;
            stream.write_all(garbage.as_bytes()).await.unwrap();
            for call in calls {
                let outcome = call.await.unwrap();
                assert!(matches!(outcome, Err(Error::Protocol { .. })), "{garbage:?}: {outcome:?}");
            }
            assert_eq!(stream.read(&mut [0; 9]).await.unwrap_or(0), 0, "closed");
        });
    }
}

/// A reply without a request closes the connection, and the next command makes a new one.
#[test]
fn a_reply_too_many() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.build().unwrap();
        let call = get(&client, "a");
        let mut stream = accept(&listener).await;
        lines(&mut stream, 1).await;
        let reply = stream.numbered("EN\r\n").repeat(2);
        stream.write_all(reply.as_bytes()).await.unwrap();
        assert_eq!(call.await.unwrap().unwrap(), None);
        assert_eq!(stream.read(&mut [0; 9]).await.unwrap_or(0), 0, "closed");
        // A client that has been answered something odd leaves the server alone for a while.
        tokio::time::sleep(SHORT).await;
        let call = get(&client, "a");
        let mut stream = accept(&listener).await;
        lines(&mut stream, 1).await;
        stream.reply("VA 1 f0\r\na\r\n").await;
        assert_eq!(call.await.unwrap().unwrap().as_deref(), Some("a"));
    });
}

/// Reads are repeated when the connection breaks before a byte of their reply, writes are not.
#[test]
fn a_connection_that_breaks() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.build().unwrap();
        // Once it works.
        let call = get(&client, "k");
        let mut stream = accept(&listener).await;
        lines(&mut stream, 1).await;
        stream.reply("EN\r\n").await;
        assert_eq!(call.await.unwrap().unwrap(), None);

        let (read, at) = (get(&client, "k"), get(&client, "@k"));
        let write = tokio::spawn({
            let client = client.clone();
            async move { client.set("k", &"v".to_owned(), 0).await }
        });
        lines(&mut stream, 4).await;
        drop(stream);
        let mut stream = accept(&listener).await;
        assert_eq!(lines(&mut stream, 1).await, "mg k v f\r\n");
        stream.reply("VA 1 f0\r\nx\r\n").await;
        assert_eq!(read.await.unwrap().unwrap().as_deref(), Some("x"));
        assert!(matches!(at.await.unwrap(), Err(Error::Connection { .. })));
        assert!(matches!(write.await.unwrap(), Err(Error::Connection { .. })));

        // A part of a reply has come: not repeated.
        let read = get(&client, "k");
        lines(&mut stream, 1).await;
        stream.write_all(b"VA 100 f0\r\nx").await.unwrap();
        drop(stream);
        assert!(matches!(read.await.unwrap(), Err(Error::Connection { .. })));
    });
}

/// An idle connection that the server closes is replaced, and a write is not lost.
#[test]
fn an_idle_connection_is_closed() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.build().unwrap();
        for _ in 0..3 {
            let write = tokio::spawn({
                let client = client.clone();
                async move { client.set("k", &"v".to_owned(), 0).await }
            });
            let mut stream = accept(&listener).await;
            assert_eq!(lines(&mut stream, 2).await, "ms k 1 c\r\nv\r\n");
            stream.reply("HD c7\r\n").await;
            assert_eq!(write.await.unwrap().unwrap(), Written::Stored { cas: Some(7) });
            drop(stream);
            tokio::time::sleep(SHORT).await;
        }
    });
}

/// Nothing listens: the first command says so, the next ones do not try, and after the back-off one does.
#[test]
fn back_off() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.build().unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert!(matches!(client.get::<String>("k").await, Err(Error::Connection { .. })));
        let left = left_alone(&client).await;
        let listener = TcpListener::bind(address).await.unwrap();
        tokio::time::sleep(left + SHORT).await;
        let probe = get(&client, "k");
        let mut stream = accept(&listener).await;
        lines(&mut stream, 1).await;
        // The probe has no reply yet: other requests are refused.
        assert!(matches!(client.get::<String>("k").await, Err(Error::Unavailable { .. })));
        stream.reply("EN\r\n").await;
        assert_eq!(probe.await.unwrap().unwrap(), None);
        let next = get(&client, "k");
        lines(&mut stream, 1).await;
        stream.reply("EN\r\n").await;
        assert_eq!(next.await.unwrap().unwrap(), None);
    });
}

/// A server that reads slowly: what it does not take is not kept without bound, and callers are told in time.
#[test]
fn a_server_that_does_not_read() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.timeout(LIMIT).build().unwrap();
        let value = Bytes::from(vec![b'x'; 30 << 20]);
        let writes: Vec<_> = (0..4)
            .map(|_| {
                let (client, value) = (client.clone(), value.clone());
                tokio::spawn(async move { client.set("k", &value, 0).await })
            })
            .collect();
        let stream = accept(&listener).await;
        for write in writes {
            let outcome = write.await.unwrap();
            assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
        }
        drop(stream);
    });
}

/// A lease whose caller has gone is given up, also on the connection that others use.
#[test]
fn a_lease_for_nobody() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.build().unwrap();
        let ask = Ask { lease: SOON, wait: Duration::ZERO, hint: None };
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.ask(b"k", ask).await }
        });
        let mut stream = accept(&listener).await;
        assert_eq!(lines(&mut stream, 1).await, "mg k v f c t R0 Pw0,l20000\r\n");
        call.abort();
        assert!(call.await.is_err());
        stream.reply("VA 0 f0 c7 t-1 W\r\n\r\n").await;
        assert_eq!(lines(&mut stream, 1).await, "md k C7\r\n");
        stream.reply("HD\r\n").await;
        // And many.
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.ask_many(&[b"a", b"b", b"c"], ask).await }
        });
        lines(&mut stream, 3).await;
        stream.reply("VA 0 c8 W\r\n\r\nVA 0 c0 Z\r\n\r\n").await;
        tokio::time::sleep(SHORT).await;
        call.abort();
        assert!(call.await.is_err());
        stream.reply("VA 0 c9 W\r\n\r\n").await;
        assert_eq!(lines(&mut stream, 2).await, "md a C8\r\nmd c C9\r\n");
    });
}

/// A question that the server holds has a connection of its own, which is closed if the caller goes.
#[test]
fn a_held_question() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.build().unwrap();
        let ask = Ask { lease: SOON, wait: SOON, hint: None };
        for cancelled in [true, false] {
            let call = tokio::spawn({
                let client = client.clone();
                async move { client.ask(b"k", ask).await }
            });
            let mut held = accept(&listener).await;
            assert_eq!(lines(&mut held, 1).await, "version\r\n");
            held.write_all(b"VERSION 1\r\n").await.unwrap();
            let text = lines(&mut held, 1).await;
            assert!(text.starts_with("mg k v f c t R0 Pw") && !text.contains("Pw0,"), "{text}");
            // Others are served.
            let other = get(&client, "other");
            let mut shared = accept(&listener).await;
            lines(&mut shared, 1).await;
            shared.reply("EN\r\n").await;
            assert_eq!(other.await.unwrap().unwrap(), None);
            if cancelled {
                call.abort();
                assert_eq!(held.read(&mut [0; 9]).await.unwrap_or(0), 0, "closed");
            } else {
                held.reply("VA 1 c5\r\nx\r\n").await;
                assert!(matches!(call.await.unwrap().unwrap(), Answer::Hit(item) if item.data == "x"));
            }
            // The shared connection of the next round is another one.
            drop(shared);
            tokio::time::sleep(SHORT).await;
        }
    });
}

/// Without a free connection for waiting, the client asks again and again.
#[test]
fn without_waiting_connections() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.waiting_connections(0).build().unwrap();
        let ask = Ask { lease: SOON, wait: SOON, hint: None };
        let call = tokio::spawn(async move { client.ask(b"k", ask).await });
        let mut stream = accept(&listener).await;
        for _ in 0..4 {
            assert_eq!(lines(&mut stream, 1).await, "mg k v f c t R0 Pw0,l20000\r\n");
            stream.reply("VA 0 c0 Z\r\n\r\n").await;
        }
        lines(&mut stream, 1).await;
        stream.reply("EN Peno%20luck\r\n").await;
        assert_eq!(call.await.unwrap().unwrap(), Answer::Failed(Bytes::from_static(b"no luck")));
    });
}

/// When the client is gone no task and no socket is left.
#[test]
fn nothing_is_left() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.connections(3).build().unwrap();
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let calls: Vec<_> = (0..9).map(|_| get(&client, "k")).collect();
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams.push(accept(&listener).await);
        }
        for call in calls {
            call.abort();
            drop(call.await);
        }
        drop(client);
        for mut stream in streams {
            let mut rest = Vec::new();
            // Ends only when the client's socket is closed.
            drop(stream.read_to_end(&mut rest).await);
        }
        for _ in 0..1000 {
            if tokio::runtime::Handle::current().metrics().num_alive_tasks() == tasks {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("tasks are left");
    });
}

/// A connection whose runtime does not run: callers in another one keep their deadline, and the next one has
/// a new connection.
#[test]
fn a_runtime_that_does_not_run() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        use std::io::{BufRead, BufReader, Write};
        // Two connections, one after the other.
        let streams = [(); 2].map(|()| {
            let stream = listener.accept().unwrap().0;
            let answering = stream.try_clone().unwrap();
            std::thread::spawn(move || {
                for line in BufReader::new(&answering).lines().map_while(Result::ok) {
                    let number = unnumbered(&line).1.unwrap();
                    write!(&answering, "VA 1 f0 {number}\r\nx\r\n").unwrap();
                }
            });
            stream
        });
        drop(streams);
    });
    let client = Client::builder().server(address).timeout(LIMIT).connect_timeout(LIMIT).build().unwrap();
    let (first, second) = (runtime(), runtime());
    assert_eq!(first.block_on(client.get::<String>("k")).unwrap().as_deref(), Some("x"));
    let start = Instant::now();
    let late =
        second.block_on(async { tokio::time::timeout(SOON, client.get::<String>("k")).await.unwrap() });
    assert!(matches!(late, Err(Error::Timeout { limit: LIMIT, .. })), "{late:?}");
    assert!(start.elapsed() >= LIMIT);
    let next =
        second.block_on(async { tokio::time::timeout(SOON, client.get::<String>("k")).await.unwrap() });
    assert_eq!(next.unwrap().as_deref(), Some("x"));
    // Neither does a call of many keys hang, with the connection of a runtime that no longer runs.
    let third = runtime();
    let many = third.block_on(async {
        tokio::time::timeout(SOON, client.get_many::<String>(&["a", "b"])).await.unwrap()
    });
    assert!(many.iter().all(|one| matches!(one, Err(Error::Timeout { .. }))), "{many:?}");
    server.join().unwrap();
}

/// A caller of the text protocol that goes away between a value and its end: the others get theirs.
#[test]
fn parts_for_nobody() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.protocol(Protocol::Text).build().unwrap();
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.get_many::<String>(&["a", "b", "c"]).await }
        });
        let mut stream = accept(&listener).await;
        lines(&mut stream, 3).await;
        let other = get(&client, "d");
        lines(&mut stream, 1).await;
        stream.write_all(b"VALUE a 0 1\r\na\r\n").await.unwrap();
        tokio::time::sleep(SHORT).await;
        call.abort();
        assert!(call.await.is_err());
        let rest = b"END\r\nVALUE b 0 1\r\nb\r\nEND\r\nEND\r\nVALUE d 0 1\r\nd\r\nEND\r\n";
        stream.write_all(rest).await.unwrap();
        assert_eq!(other.await.unwrap().unwrap().as_deref(), Some("d"));
    });
}

/// Texts that would be more than a word are not sent.
#[test]
fn words_that_are_not_sent() {
    struct Tagged(Vec<String>);
    impl Key for Tagged {
        fn bytes(&self) -> &[u8] {
            b"k"
        }
        fn tags(&self) -> &[String] {
            &self.0
        }
    }
    let usage = |outcome: Result<Written, Error>, text: &str| match outcome {
        Err(Error::Usage(message)) => assert!(message.contains(text), "{message}"),
        outcome => panic!("{outcome:?}"),
    };
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.clone().build().unwrap();
        for group in ["items\r\nflush_all", "a  b", " a", &"x".repeat(251), "\0"] {
            let (_, outcome) = client.stats(group).await.remove(0);
            assert!(matches!(outcome, Err(Error::Usage(_))), "{outcome:?}");
        }
        let long = "x".repeat(201);
        let value = "v".to_owned();
        for (tag, text) in [("x y\r\n", "x y"), ("", "1 to 200"), (&*long, "xxx"), ("a\tb", "a\\tb")] {
            let tags = vec!["good".to_owned(), tag.to_owned()];
            usage(client.set(Tagged(tags.clone()), &value, 0).await, text);
            usage(client.set_many(&[(Tagged(tags.clone()), value.clone())], 0).await.remove(0), text);
            let write = Write { key: b"k", data: b"v", flags: 0, exptime: 0, tags: &tags };
            usage(client.fill(write, 1).await.map(|_| Written::NotStored), text);
            usage(client.invalidate(&tags).await.map(|()| Written::NotStored), text);
        }
        let nine: Vec<_> = (0..9).map(|n| format!("tag{n}")).collect();
        usage(client.set(Tagged(nine), &value, 0).await, "tag8");
        // The text protocol has no tags.
        let text = builder.protocol(Protocol::Text).build().unwrap();
        let tags = vec!["good".to_owned()];
        assert_eq!(text.invalidate(&tags).await, Err(Error::NoTags));
        assert_eq!(text.set(Tagged(tags), &value, 0).await, Err(Error::NoTags));
        assert!(!text.has_tags().await.unwrap());
        let connected = tokio::time::timeout(SHORT, listener.accept()).await;
        assert!(connected.is_err(), "nothing is sent, nor connected");
    });
}

/// Sends one command, answers it, and expects an error of the protocol: in words, counted, and the connection
/// closed.
async fn misfit<
    T: std::fmt::Debug + Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
>(
    protocol: Protocol,
    reply: &str,
    command: impl FnOnce(Client) -> F,
) {
    let (listener, builder) = pair().await;
    let client = builder.protocol(protocol).build().unwrap();
    let call = tokio::spawn(command(client.clone()));
    let mut stream = accept(&listener).await;
    lines(&mut stream, 1).await;
    stream.write_all(reply.as_bytes()).await.unwrap();
    let outcome = call.await.unwrap();
    let Err(Error::Protocol { message, .. }) = outcome else { panic!("{reply:?}: {outcome:?}") };
    let first = reply.split("\r\n").find(|line| message.contains(*line));
    assert!(first.is_some() && !message.contains(['{', '[']), "{reply:?}: {message}");
    assert_eq!(stream.read(&mut [0; 9]).await.unwrap_or(0), 0, "closed");
    assert_eq!(client.statistics().errors, 1, "{reply:?}");
}

/// Replies that some command has, but not this one.
#[test]
fn what_is_no_reply_to_this_command() {
    use Protocol::{Meta, Text};
    let text = || "v".to_owned();
    run(async {
        for reply in ["HD\r\n", "NS\r\n", "NF\r\n", "EX\r\n", "MN\r\n"] {
            misfit(Meta, reply, |client| async move { client.get::<String>("k").await }).await;
        }
        for reply in ["VA 1\r\nx\r\n", "VA 2\r\n-1\r\n", "HD\r\n", "EN\r\n", "7\r\n"] {
            misfit(Meta, reply, |client| async move { client.incr("k", 1).await }).await;
        }
        for reply in ["EN\r\n", "VA 1\r\nx\r\n", "STORED\r\n"] {
            misfit(Meta, reply, move |client| async move { client.set("k", &text(), 0).await }).await;
        }
        for reply in ["EN\r\n", "NS\r\n", "DELETED\r\n"] {
            misfit(Meta, reply, |client| async move { client.delete("k").await }).await;
        }
        for reply in ["VALUE other 0 1\r\nx\r\nEND\r\n", "EN\r\n", "STORED\r\n"] {
            misfit(Text, reply, |client| async move { client.get::<String>("k").await }).await;
        }
        let many = "VALUE a 0 1\r\nx\r\nEND\r\nVALUE a 0 1\r\nx\r\nEND\r\n";
        misfit(Text, many, |client| async move { client.get_many::<String>(&["a", "b"]).await.remove(1) })
            .await;
        for reply in ["DELETED\r\n", "TOUCHED\r\n", "OK\r\n"] {
            misfit(Text, reply, move |client| async move { client.set("k", &text(), 0).await }).await;
        }
        misfit(Text, "STORED\r\n", |client| async move { client.delete("k").await }).await;
        misfit(Text, "STORED\r\n", |client| async move { client.incr("k", 1).await }).await;
        misfit(Text, "DELETED\r\n", |client| async move { client.touch("k", 1).await }).await;
        for reply in ["VERSION 1\r\n", "hello\r\n", "STORED\r\n"] {
            misfit(Meta, reply, |client| async move { client.flush_all().await.remove(0).1 }).await;
        }
        for reply in ["OK\r\n", "hello\r\n", "VERSIONS 1\r\n"] {
            misfit(Meta, reply, |client| async move { client.version().await.remove(0).1 }).await;
        }
        misfit(Meta, "STORED\r\n", |client| async move { client.stats("").await.remove(0).1 }).await;
        misfit(Meta, "NF\r\n", |client| async move { client.invalidate(&["t".to_owned()]).await }).await;
    });
}

/// A read that cannot be repeated fails with the error of its connection, and does not count as repeated.
#[test]
fn repeats_that_are_not_made() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.build().unwrap();
        let call = get(&client, "k");
        let mut stream = accept(&listener).await;
        lines(&mut stream, 1).await;
        stream.reply("EN\r\n").await;
        assert_eq!(call.await.unwrap().unwrap(), None);
        let calls: Vec<_> = (0..3).map(|_| get(&client, "k")).collect();
        let many = tokio::spawn({
            let client = client.clone();
            async move { client.get_many::<String>(&["a", "b"]).await }
        });
        lines(&mut stream, 5).await;
        drop(listener);
        drop(stream);
        for call in calls {
            let outcome = call.await.unwrap();
            assert!(matches!(outcome, Err(Error::Connection { .. })), "{outcome:?}");
        }
        for outcome in many.await.unwrap() {
            assert!(matches!(outcome, Err(Error::Connection { .. })), "{outcome:?}");
        }
        assert_eq!(client.statistics().retries, 0);
        left_alone(&client).await;
    });
}

/// If no connection for waiting can be made, but the shared one works, the client asks on that, and the
/// server is not left alone.
#[test]
fn no_connection_for_waiting_can_be_made() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.build().unwrap();
        let call = get(&client, "k");
        let mut stream = accept(&listener).await;
        lines(&mut stream, 1).await;
        stream.reply("EN\r\n").await;
        assert_eq!(call.await.unwrap().unwrap(), None);
        drop(listener);
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.ask(b"k", Ask { lease: SOON, wait: SOON, hint: None }).await }
        });
        for reply in ["VA 0 c0 Z\r\n\r\n", "VA 0 c0 Z\r\n\r\n", "VA 1 c5\r\nx\r\n"] {
            assert_eq!(lines(&mut stream, 1).await, "mg k v f c t R0 Pw0,l20000\r\n");
            stream.reply(reply).await;
        }
        assert!(matches!(call.await.unwrap().unwrap(), Answer::Hit(item) if item.data == "x"));
        let call = get(&client, "k");
        lines(&mut stream, 1).await;
        drop(stream);
        // The server has not failed until now: it is asked.
        assert!(matches!(call.await.unwrap(), Err(Error::Connection { .. })));
    });
}

/// Options that make no sense are refused by name.
#[test]
fn options_out_of_range() {
    let builder = || Client::builder().server("127.0.0.1:1");
    for (builder, option) in [
        (builder().connections(usize::MAX), "connections"),
        (builder().connections(1025), "connections"),
        (builder().connections(0), "connections"),
        (builder().waiting_connections(usize::MAX), "waiting_connections"),
        (builder().waiting_connections(65_537), "waiting_connections"),
        (builder().timeout(Duration::ZERO), "timeout"),
        (builder().connect_timeout(Duration::ZERO), "connect_timeout"),
    ] {
        let Err(Error::Usage(message)) = builder.build() else { panic!("{option}") };
        assert!(message.starts_with(&format!("{option} is ")), "{message}");
    }
    builder().connections(1024).waiting_connections(65_536).build().unwrap();
    builder().waiting_connections(0).build().unwrap();
}

/// Large values come whole, in any packets.
#[test]
fn large_values() {
    run(async {
        let (listener, builder) = pair().await;
        let client = builder.build().unwrap();
        let value = (0..5_000_000_u32).map(|n| n as u8).collect::<Bytes>();
        let expected = value.clone();
        let server = tokio::spawn(async move {
            let mut stream = accept(&listener).await;
            lines(&mut stream, 3).await;
            for number in std::mem::take(&mut stream.numbers) {
                let line = format!("VA {} f0 {number}\r\n", value.len());
                stream.write_all(line.as_bytes()).await.unwrap();
                stream.write_all(&value).await.unwrap();
                stream.write_all(b"\r\n").await.unwrap();
            }
            stream
        });
        for value in client.get_many::<Bytes>(&["a", "b", "c"]).await {
            assert_eq!(value.unwrap().unwrap(), expected);
        }
        drop(server.await);
    });
}
