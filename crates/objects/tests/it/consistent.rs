//! `consistent`: replies, edges, and the same servers as the ring that it is made from.
#![allow(dead_code, reason = "the caller is shared")]

use crate::caller::{Answer, Objects, any_calls, execute};
use cattlegrid_ring::{Layout, Ring, Server};
use proptest::prelude::*;

#[test]
fn replies() {
    let mut objects = Objects::plain();
    assert_eq!(objects.get("consistent:findServerForKey:K:page"), "(miss)");
    assert_eq!(objects.get("consistent:new:K:a%3A11211:b%3A11211=2:c%3A1"), "CREATED");
    assert_eq!(objects.get("consistent:getServerCount:K"), "3");
    let own = objects.get("consistent:findServerForKey:K:page");
    assert!(["a:11211", "b:11211", "c:1"].contains(&own.as_str()), "{own}");
    let escaped = own.replace(':', "%3A");
    assert_eq!(objects.get(&format!("consistent:isServerAvailable:K:{escaped}")), "1");
    assert_eq!(objects.get(&format!("consistent:setServerAvailable:K:{escaped}:0")), "SUCCESS");
    assert_eq!(objects.get(&format!("consistent:isServerAvailable:K:{escaped}")), "0");
    assert_eq!(objects.get("consistent:getServerCount:K"), "3", "all of them count");
    let other = objects.get("consistent:findServerForKey:K:page");
    assert_ne!(other, own);
    assert_eq!(
        objects.get(&format!("consistent:setServerAvailable:K:1:{escaped}")),
        "SUCCESS",
        "Cacheismo's order"
    );
    assert_eq!(objects.get("consistent:findServerForKey:K:page"), own);
    assert_eq!(objects.get("consistent:setServerAvailable:K:a%3A11211:0"), "SUCCESS");
    let dump = r#"{"servers":[{"name":"a:11211","weight":1,"available":false},{"name":"b:11211","weight":2,"available":true},{"name":"c:1","weight":1,"available":true}]}"#;
    assert_eq!(objects.get("consistent:dump:K"), dump);
    for server in ["b%3A11211", "c%3A1"] {
        objects.get(&format!("consistent:setServerAvailable:K:{server}:0"));
    }
    assert_eq!(objects.get("consistent:findServerForKey:K:page"), "(miss)", "none is available");
    assert_eq!(objects.get("consistent:isServerAvailable:K:unknown"), "0");
    assert_eq!(objects.get("consistent:setServerAvailable:K:unknown:1"), "NOT_FOUND");
    let refused = "(CLIENT_ERROR consistent.setServerAvailable: arg 2 must be 1 or 0)";
    assert_eq!(objects.get("consistent:setServerAvailable:K:a%3A11211:2"), refused);
}

#[test]
fn other_spellings_and_lists_in_one_argument() {
    let mut objects = Objects::plain();
    let list = b"a:11211, b:11211=2\tc:1,\r\n";
    assert_eq!(objects.call("consistent", "newConsistent", b"K", &[list]).text(), "CREATED");
    assert_eq!(objects.get("consistent:new:other:a%3A11211:b%3A11211=2:c%3A1"), "CREATED");
    assert_eq!(objects.get("consistent:dump:K"), objects.get("consistent:dump:other"));
    assert_eq!(objects.get("consistent:getservercount:K"), "3");
    assert_eq!(objects.get("consistent:isserveravailable:K:c%3A1"), "1");
    assert_eq!(objects.get("consistent:setserveravailable:K:c%3A1:0"), "SUCCESS");
    let found = objects.get("consistent:findserverforkey:K:page");
    assert_eq!(objects.get("consistent:findServerForKey:K:page"), found);
    assert_eq!(objects.get("consistent:newconsistent:K:one"), "CREATED", "replaces");
    assert_eq!(objects.get("consistent:findserverforkey:K:page"), "one");
}

#[test]
fn limits() {
    let mut objects = Objects::plain();
    let mut refused = |arguments: &[&[u8]]| objects.call("consistent", "new", b"K", arguments).text();
    assert_eq!(refused(&[b" , "]), "(CLIENT_ERROR consistent.new: there is no server)");
    assert_eq!(refused(&[b"a b", b"a:11211"]), "(CLIENT_ERROR consistent.new: a server occurs twice)");
    let weight = "(CLIENT_ERROR consistent.new: arg 2: the weight of a server is a number from 1 to 65535)";
    assert_eq!(refused(&[b"a", b"b=0"]), weight);
    assert_eq!(refused(&[b"a", b"b=65536"]), weight);
    let name = "(CLIENT_ERROR consistent.new: arg 1: the name of a server has 1 to 255 bytes)";
    assert_eq!(refused(&[&[b'x'; 256]]), name);
    assert_eq!(refused(&[]), "(CLIENT_ERROR consistent.new: takes server [server ...])");
    let list = |count: usize| (0..count).map(|n| format!("host{n}:1")).collect::<Vec<String>>().join(",");
    assert_eq!(
        refused(&[list(65).as_bytes()]),
        "(CLIENT_ERROR consistent.new: there are more than 64 servers)"
    );
    assert_eq!(objects.get("consistent:exists:K"), "NOT_FOUND");
    assert_eq!(
        objects.call("consistent", "new", b"K", &[list(64).as_bytes()]),
        Answer::Value(b"CREATED".to_vec())
    );
    assert_eq!(objects.get("consistent:isServerAvailable:K:host63%3A1"), "1");
    assert_eq!(objects.get("consistent:setServerAvailable:K:host63%3A1:0"), "SUCCESS");
    assert_eq!(objects.get("consistent:isServerAvailable:K:host62%3A1"), "1");
    assert!((0..500).all(|n| objects.get(&format!("consistent:findServerForKey:K:{n}")) != "host63:1"));
    assert_eq!(objects.call("consistent", "new", b"L", &[&[b'x'; 255]]), Answer::Value(b"CREATED".to_vec()));
    assert_eq!(objects.get("consistent:findServerForKey:L:").len(), 255, "an empty key is a key");
}

#[test]
fn availability_needs_no_more_room() {
    let mut objects = Objects::plain();
    assert_eq!(objects.get("consistent:new:K:a:b:c:d:e"), "CREATED");
    objects.may_grow = false;
    assert_eq!(objects.get("consistent:setServerAvailable:K:a:0"), "SUCCESS");
    assert_eq!(objects.get("consistent:isServerAvailable:K:a"), "0");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The object finds what the ring finds, whatever servers are down.
    #[test]
    fn as_the_ring(weights in prop::collection::vec(1_u32..5, 1..20), down: u32, keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 60)) {
        let servers: Vec<Server> =
            weights.iter().enumerate().map(|(n, weight)| Server::new(format!("10.1.0.{n}:112{n:02}"), *weight).unwrap()).collect();
        let mut ring = Ring::new(servers.clone(), Layout::Weighted).unwrap();
        let mut objects = Objects::plain();
        let names: Vec<String> = servers.iter().map(Server::to_string).collect();
        let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        objects.call("consistent", "new", b"K", &names);
        for (place, server) in servers.iter().enumerate().filter(|(place, _)| down >> place & 1 == 1) {
            ring.set_available(place, false);
            let reply = objects.call("consistent", "setServerAvailable", b"K", &[server.name(), b"0"]).text();
            prop_assert_eq!(reply, "SUCCESS");
        }
        for key in &keys {
            let expected = ring.find(key).map_or(Answer::Miss, |place| Answer::Value(servers[place].name().to_vec()));
            prop_assert_eq!(objects.call("consistent", "findServerForKey", b"K", &[key]), expected);
        }
    }

    #[test]
    fn any_bytes(calls in any_calls()) {
        execute("consistent", &["new", "findServerForKey", "getServerCount", "isServerAvailable", "setServerAvailable", "dump", "drop"], &calls);
    }
}
