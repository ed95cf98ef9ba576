//! Types of keys and values, and errors with their sources.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::borrow::Cow;
use std::error::Error as _;
use std::sync::Arc;

use crate::servers::{Kind, on_servers, patient, run};
use bytes::Bytes;
use cattlegrid_client::{Client, ComputeError, Error, Json, KeyError, ToValue};

on_servers!(keys_and_values_of_all_forms);
fn keys_and_values_of_all_forms(kind: Kind) {
    let server = kind.start();
    run(async {
        let client = patient([server.address()]).build().unwrap();
        let text = async |value: &(dyn Fn() -> &'static str + Sync)| {
            assert_eq!(client.get::<String>("k").await.unwrap().as_deref(), Some(value()));
        };
        client.set("k", "text", 60).await.unwrap();
        text(&|| "text").await;
        client.set("k", &"borrowed", 60).await.unwrap();
        text(&|| "borrowed").await;
        client.set("k", b"bytes", 60).await.unwrap();
        text(&|| "bytes").await;
        client.set("k", &b"slice"[..], 60).await.unwrap();
        text(&|| "slice").await;
        client.set("k", &Cow::Borrowed("cow"), 60).await.unwrap();
        text(&|| "cow").await;
        client.set("k", &Arc::new("shared".to_owned()), 60).await.unwrap();
        assert_eq!(client.get::<Arc<String>>("k").await.unwrap().unwrap().as_str(), "shared");
        assert_eq!(client.get::<Arc<str>>("k").await.unwrap().as_deref(), Some("shared"));
        assert_eq!(client.get::<Box<str>>("k").await.unwrap().as_deref(), Some("shared"));
        assert_eq!(client.get::<Cow<'static, str>>("k").await.unwrap().as_deref(), Some("shared"));
        client.set("k", &Arc::new(Json(vec![1, 2])), 60).await.unwrap();
        assert_eq!(client.get::<Json<Vec<u8>>>("k").await, Ok(Some(Json(vec![1, 2]))));
        assert_eq!(client.get::<Arc<Json<Vec<u8>>>>("k").await, Ok(Some(Arc::new(Json(vec![1, 2])))));
        client.set("k", &-5_i64, 60).await.unwrap();
        assert_eq!(client.get::<i64>("k").await, Ok(Some(-5)));
        assert_eq!(client.get::<i8>("k").await, Ok(Some(-5)));
        let error = client.get::<u64>("k").await.unwrap_err().to_string();
        assert!(error.contains("not a number from 0"), "{error}");
        client.set("k", &300, 60).await.unwrap();
        assert_eq!(client.incr("k", 1).await, Ok(Some(301)));
        assert_eq!(client.get::<usize>("k").await, Ok(Some(301)));
        assert!(client.get::<u8>("k").await.is_err());
        client.set("k", b"1234", 60).await.unwrap();
        assert_eq!(client.get::<[u8; 4]>("k").await, Ok(Some(*b"1234")));
        assert!(client.get::<[u8; 3]>("k").await.is_err());
        // Many.
        let many = client.set_many(&[("a", "1"), ("b", "2")], 60).await;
        assert!(many.iter().all(|written| written.as_ref().is_ok_and(|written| written.is_stored())));
        assert_eq!(client.get::<String>("b").await.unwrap().as_deref(), Some("2"));
        assert!(client.add_many(&[("c", Bytes::from("3"))], 60).await[0].as_ref().unwrap().is_stored());
        // Keys.
        let owned: Cow<'_, str> = Cow::Owned("a".to_owned());
        let shared: Arc<str> = Arc::from("a");
        let boxed: Box<str> = Box::from("a");
        let bytes: Cow<'_, [u8]> = Cow::Borrowed(b"a");
        for got in [
            client.get::<String>(&owned).await,
            client.get(Cow::Borrowed("a")).await,
            client.get(bytes).await,
            client.get(&shared).await,
            client.get(Arc::new("a".to_owned())).await,
            client.get(boxed).await,
        ] {
            assert_eq!(got.unwrap().as_deref(), Some("1"));
        }
    });
}

#[test]
fn what_can_be_written_can_be_asked_by_a_function_of_the_program() {
    fn length(value: &(impl ToValue + ?Sized)) -> usize {
        value.to_value().unwrap().len()
    }
    assert_eq!(
        [length("text"), length(&-12_i32), length(&Json(true)), length(&Arc::new(7_u64))],
        [4, 3, 4, 1]
    );
}

/// The texts of an error and of all that is behind it.
fn chain(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    std::iter::successors(Some(error), |error| (*error).source()).map(ToString::to_string).collect()
}

#[derive(Debug, thiserror::Error)]
#[error("the page cannot be rendered")]
struct Render(#[source] std::io::Error);

#[test]
fn errors_have_their_sources() {
    run(async {
        let client = Client::builder().server("127.0.0.1:1").build().unwrap();
        let first = client.get::<String>("k").await.unwrap_err();
        let cause = first.source().expect("the system's");
        assert_eq!(
            cause.downcast_ref::<std::io::Error>().unwrap().kind(),
            std::io::ErrorKind::ConnectionRefused
        );
        // While it is not asked: the last failure is behind it, and what was behind that.
        let second = client.get::<String>("k").await.unwrap_err();
        assert!(matches!(second, Error::Unavailable { .. }), "{second:?}");
        assert_eq!(chain(&second)[1..], chain(&first));
        assert_eq!(chain(&second).len(), 3);
        let key = client.get::<String>("").await.unwrap_err();
        assert_eq!(key.source().unwrap().downcast_ref::<KeyError>(), Some(&KeyError::Empty));

        let render = || Render(std::io::Error::other("disk"));
        let computed: ComputeError<Render> = ComputeError::Compute(render());
        assert!(computed.source().unwrap().downcast_ref::<Render>().is_some());
        let of_the_cache: ComputeError<Render> = first.clone().into();
        assert!(of_the_cache.source().unwrap().downcast_ref::<std::io::Error>().is_some());
        let boxed = ComputeError::Compute(render()).boxed();
        assert_eq!(chain(&*boxed), ["the page cannot be rendered", "disk"]);
        // Behind a `dyn Error`, as `?` makes it.
        let error: Box<dyn std::error::Error> = ComputeError::Compute(std::io::Error::other("disk")).into();
        assert_eq!(chain(&*error), ["disk", "disk"]);
        let inner: Box<dyn std::error::Error + Send + Sync> = render().into();
        let error: Box<dyn std::error::Error> = ComputeError::Compute(inner).into();
        assert_eq!(chain(&*error)[1..], ["the page cannot be rendered", "disk"]);
        let text: Box<dyn std::error::Error> = ComputeError::Compute("a text").into();
        assert_eq!(chain(&*text), ["a text"]);
    });
}

#[test]
fn texts_of_errors_have_no_changing_numbers() {
    run(async {
        let client = Client::builder().server("127.0.0.1:1").build().unwrap();
        client.get::<String>("k").await.unwrap_err();
        let mut texts = std::collections::HashSet::new();
        for _ in 0..20 {
            if let Err(error @ Error::Unavailable { .. }) = client.get::<String>("k").await {
                texts.insert(error.to_string());
            }
        }
        assert_eq!(texts.len(), 1, "{texts:?}");
        let long = |length| Error::Key(KeyError::Long(length)).to_string();
        assert_eq!(long(251), long(1000));
        let byte = |byte, at| Error::Key(KeyError::Byte { byte, at }).to_string();
        assert_eq!(byte(b' ', 3), byte(b'\n', 70));
        let tags = async |length| client.invalidate(&["x".repeat(length)]).await.unwrap_err().to_string();
        assert_eq!(tags(300).await, tags(301).await);
    });
}

#[test]
fn a_server_without_meta_commands_is_an_error_that_names_the_other_protocol() {
    run(async {
        let line =
            |line: &str| Error::Refused { server: "a:1".to_owned(), line: line.to_owned() }.to_string();
        assert!(line("ERROR").contains("Protocol::Text"), "{}", line("ERROR"));
        assert!(!line("CLIENT_ERROR bad data chunk").contains("Protocol::Text"));
    });
}
