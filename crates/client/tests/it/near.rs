//! Values in this process: what is seen at once, and what when an entry's time is over.

#![cfg(feature = "near-cache")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use cattlegrid_client::{Cache, Client, Compute, Key, NearCache};

use crate::servers;
use crate::servers::{Kind, Server, on_servers, patient};

/// A key with a tag.
struct Tagged(&'static str, [String; 1]);

impl Key for Tagged {
    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn tags(&self) -> &[String] {
        &self.1
    }
}

fn near(server: &Server, longest: Duration) -> Client {
    let settings = NearCache { longest, ..NearCache::default() };
    patient([server.address()]).near_cache(settings).build().unwrap()
}

async fn get(client: &Client, key: impl Key) -> Option<String> {
    client.get(key).await.unwrap()
}

async fn get_many(client: &Client, keys: &[&str]) -> Vec<Option<String>> {
    client.get_many(keys).await.into_iter().map(Result::unwrap).collect()
}

#[expect(clippy::unnecessary_wraps, reason = "as reads return it")]
fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn own_writes_are_seen_at_once_and_foreign_ones_later(kind: Kind) {
    let server = kind.start();
    servers::run(async {
        let longest = Duration::from_secs(3600);
        let (client, other) = (near(&server, longest), patient([server.address()]).build().unwrap());
        for key in ["a", "b", "c"] {
            other.set(key, &"old".to_owned(), 0).await.unwrap();
            assert_eq!(get(&client, key).await, text("old"));
        }
        for key in ["a", "b", "c"] {
            other.set(key, &"foreign".to_owned(), 0).await.unwrap();
        }
        // Kept, whatever others write; what is asked otherwise is not.
        assert_eq!(get(&client, "a").await, text("old"));
        assert_eq!(get_many(&client, &["a", "none", "b"]).await, [text("old"), None, text("old")]);
        assert_eq!(client.gets::<String>("a").await.unwrap().unwrap().0, "foreign");
        assert_eq!(&*Cache::get(&client, b"a").await.unwrap().unwrap().data, b"foreign");
        assert_eq!(&*Cache::get_many(&client, &[b"a"]).await.remove(0).unwrap().unwrap().data, b"foreign");
        // Own writes end entries.
        client.set("a", &"own".to_owned(), 0).await.unwrap();
        client.delete("b").await.unwrap();
        assert_eq!(get_many(&client, &["a", "b", "c"]).await, [text("own"), None, text("old")]);
        // What many keys brought is kept, too.
        other.set("a", &"foreign".to_owned(), 0).await.unwrap();
        assert_eq!(get(&client, "a").await, text("own"));
        client.set_many(&[("c", "own".to_owned())], 0).await.remove(0).unwrap();
        assert_eq!(get(&client, "c").await, text("own"));
    });
}
on_servers!(own_writes_are_seen_at_once_and_foreign_ones_later);

fn a_foreign_write_is_seen_when_the_time_is_over(kind: Kind) {
    let server = kind.start();
    servers::run(async {
        let longest = Duration::from_secs(2);
        let (client, other) = (near(&server, longest), patient([server.address()]).build().unwrap());
        other.set("k", &"old".to_owned(), 0).await.unwrap();
        let read = tokio::time::Instant::now();
        assert_eq!(get(&client, "k").await, text("old"));
        other.set("k", &"new".to_owned(), 0).await.unwrap();
        let found = get(&client, "k").await;
        // A machine that is very slow may have taken longer.
        assert!(found == text("old") || read.elapsed() >= longest, "{found:?}");
        tokio::time::sleep(longest).await;
        assert_eq!(get(&client, "k").await, text("new"));
    });
}
on_servers!(a_foreign_write_is_seen_when_the_time_is_over);

fn keys_with_tags_and_computed_values_are_asked_for(kind: Kind) {
    let server = kind.start();
    servers::run(async {
        let longest = Duration::from_secs(3600);
        let (client, other) = (near(&server, longest), patient([server.address()]).build().unwrap());
        let tagged = Tagged("tagged", ["tag".to_owned()]);
        for value in ["one", "two"] {
            other.set("tagged", &value.to_owned(), 0).await.unwrap();
            assert_eq!(get(&client, &tagged).await, text(value));
            assert_eq!(client.get_many::<String>(&[&tagged]).await.remove(0).unwrap(), text(value));
        }
        if other.has_tags().await.unwrap() {
            client.set(&tagged, &"three".to_owned(), 0).await.unwrap();
            assert_eq!(get(&client, &tagged).await, text("three"));
            other.invalidate(&tagged.1).await.unwrap();
            assert_eq!(get(&client, &tagged).await, None);
        }
        let options = Compute::new().expiration(Duration::from_secs(60));
        for value in ["first", "second"] {
            let computed =
                client.get_or_compute("k", &options, || async { Ok::<_, String>(value.to_owned()) });
            assert_eq!(computed.await.unwrap().value(), text(value));
            other.delete("k").await.unwrap();
        }
    });
}
on_servers!(keys_with_tags_and_computed_values_are_asked_for);
