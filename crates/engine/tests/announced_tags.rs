//! Tags that a client announces for a key before it stores it.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::Ordering;

use crate::world;

use cattlegrid_engine::LoadOutcome;
use cattlegrid_engine::rules::{Rule, Rules};
use cattlegrid_herd::{FillWindow, LeaseTime, Policy, TagsInValue};
use world::{World, config, rule};

fn leased() -> Policy {
    Policy { lease: LeaseTime::Fixed(3000), fill_window: FillWindow::Fixed(10_000), ..Policy::default() }
}

fn required() -> Policy {
    Policy { needs_announced_tags: true, ..leased() }
}

fn list() -> Vec<Rule> {
    vec![
        Rule { negative_ttl_s: 5, ..rule(1, "must:{id}", required(), &["must:{id}"]) },
        rule(2, "page:{id}", leased(), &[]),
        rule(3, "v:{id}", Policy { tags_in_value: TagsInValue::Taken, ..leased() }, &[]),
    ]
}

fn world() -> World {
    World::under(Rules::new(list(), Vec::new()))
}

fn announce(key: &str, tags: &str) -> String {
    format!("set @tags:{key} 0 0 {}|{tags}|", tags.len())
}

/// A binary request that stores.
fn packet(opcode: u8, key: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&u16::try_from(key.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&[8, 0, 0, 0]);
    bytes.extend_from_slice(&u32::try_from(8 + key.len() + value.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&[0; 12 + 8]);
    bytes.extend_from_slice(key.as_bytes());
    bytes.extend_from_slice(value.as_bytes());
    bytes
}

/// Sends a binary request that stores; the status and the text of its reply, if it has one.
fn ask_packet(w: &mut World, c: u64, opcode: u8, key: &str, value: &str) -> Option<(u16, String)> {
    w.send_bytes(c, &packet(opcode, key, value));
    let sent = w.take_sent(c);
    let status = u16::from_be_bytes([*sent.get(6)?, *sent.get(7)?]);
    Some((status, String::from_utf8(sent[24..].to_vec()).unwrap()))
}

#[test]
fn a_later_store_carries_the_announced_tags() {
    for store in [
        "set page:1 0 0 1|x|",
        "set page:1 0 0 1 noreply|x|",
        "add page:1 0 0 1|x|",
        "ms page:1 1|x|",
        "ms page:1 1 Gother|x|",
        "ms page:1 1 ME|x|",
        "ms page:1 1 MA N60|x|",
        "ma page:1 N60 J1|",
        "BINARY",
    ] {
        for tag in ["a", "b,c"] {
            let mut w = world();
            let [a, b] = [(); 2].map(|()| w.connect());
            // On another connection, before or after the miss.
            w.expect(a, &announce("page:1", "a"), "STORED|");
            w.expect(b, "get page:1|", "END|");
            w.expect(a, &announce("page:1", "b%2Cc"), "STORED|");
            if store == "BINARY" {
                assert_eq!(ask_packet(&mut w, b, 1, "page:1", "x"), Some((0, String::new())));
            } else {
                w.ask(b, store);
            }
            w.expect(a, "mg page:1 s|", "HD s1|");
            w.expect(a, &format!("md {tag} G|"), "HD|");
            w.expect(a, "mg page:1 s|", "EN|");
        }
    }
    // Together with those of the value and of the command.
    let mut w = world();
    let c = w.connect();
    for tag in ["a", "b", "c"] {
        w.expect(c, &announce("v:1", "a"), "STORED|");
        w.expect(c, "ms v:1 9 Gb|@tags:c\nx|", "HD|");
        w.expect(c, &format!("mg v:1 v|md {tag} G|mg v:1|"), "VA 1|x|HD|EN|");
    }
    // An append keeps those of its item.
    w.expect(c, "set page:2 0 0 1|x|", "STORED|");
    w.expect(c, &announce("page:2", "a"), "STORED|");
    w.expect(c, "append page:2 0 0 1|y|md a G|mg page:2 v|", "STORED|HD|VA 2|xy|");
}

#[test]
fn an_announcement_is_not_used_up_and_ends_after_the_fill_window() {
    let mut w = world();
    let c = w.connect();
    w.expect(c, &announce("page:1", "a"), "STORED|");
    let stays = |w: &mut World| {
        w.expect(c, "set page:1 0 0 1|x|md a G|", "STORED|HD|");
        w.ask(c, "mg page:1|") == "HD|"
    };
    for _ in 0..3 {
        w.pass(3000);
        assert!(!stays(&mut w), "a store, a bump of the tag and time leave it");
    }
    w.expect(c, "delete page:1|", "NOT_FOUND|");
    w.flush();
    assert!(!stays(&mut w), "a delete and a flush too");
    w.pass(1000);
    assert!(stays(&mut w), "after 10 seconds it has ended");
    assert_eq!(w.engine.herd_usage().announced, 0);
    // Each announcement begins the time anew, for all tags.
    w.expect(c, &announce("page:1", "a"), "STORED|");
    w.pass(9000);
    w.expect(c, &announce("page:1", "b"), "STORED|");
    w.pass(9000);
    assert!(!stays(&mut w));
    assert_eq!(w.engine.herd_usage().announced, 1);
    w.pass(1000);
    assert!(stays(&mut w));
}

#[test]
fn what_cannot_be_announced() {
    let mut w = world();
    let c = w.connect();
    let long = "x".repeat(201);
    let many = "CLIENT_ERROR invalid tag: an item has at most 8";
    for (key, tags, error) in [
        ("free", "a", "CLIENT_ERROR no rule covers free"),
        ("@tag:a", "a", "CLIENT_ERROR no rule covers @tag:a"),
        ("page:1", "", "CLIENT_ERROR invalid tag: it is empty"),
        ("page:1", "a,,b", "CLIENT_ERROR invalid tag: it is empty"),
        ("page:1", "a b", "CLIENT_ERROR invalid tag: it has a blank or a control character"),
        ("page:1", "a\n", "CLIENT_ERROR invalid tag: it has a blank or a control character"),
        ("page:1", &*long, "CLIENT_ERROR invalid tag: it is longer than 200 bytes"),
        ("page:1", "a,b,c,d,e,f,g,h,i", many),
        ("must:1", "a,b,c,d,e,f,g,h", many),
    ] {
        w.expect(c, &announce(key, tags), &format!("{error}|"));
        w.expect(c, &format!("set @tags:{key} 0 0 {} noreply|{tags}|", tags.len()), "");
        w.expect(c, &format!("ms @tags:{key} {} q|{tags}|", tags.len()), &format!("{error}|"));
        for opcode in [1, 0x11] {
            let told = ask_packet(&mut w, c, opcode, &format!("@tags:{key}"), tags);
            assert_eq!(told, Some((5, error.to_owned())));
        }
    }
    // Over all announcements, and the error changes nothing.
    w.expect(c, &announce("page:1", "a,b,c,d,e,f"), "STORED|");
    w.expect(c, &announce("page:1", "g,h,i"), &format!("{many}|"));
    w.expect(c, &announce("page:1", "g,h,a"), "STORED|");
    w.expect(c, "ms page:1 1 Gi|x|", &format!("{many}|"));
    w.expect(c, "get page:1|", "END|");
    w.expect(c, "ms page:1 1 Ga|x|", "HD|");
    // Other commands with this key.
    let unknown = "CLIENT_ERROR unknown control key|";
    for command in [
        "get @tags:page:1|",
        "add @tags:page:1 0 0 1|a|",
        "append @tags:page:1 0 0 1|a|",
        "cas @tags:page:1 0 0 1 7|a|",
        "ms @tags:page:1 1 MA|a|",
        "ms @tags:page:1 1 C7|a|",
        "delete @tags:page:1|",
        "incr @tags:page:1 1|",
        "touch @tags:page:1 1|",
        "md @tags:page:1|",
        "mg @tags:page:1 v|",
        "set @tags: 0 0 1|a|",
    ] {
        w.expect(c, command, unknown);
    }
}

#[test]
fn every_form_of_the_announcement() {
    let mut w = world();
    let c = w.connect();
    for (form, reply) in [
        ("set @tags:must:1 7 60 1|a|", "STORED|"),
        ("set @tags:must:1 0 -1 1 noreply|a|", ""),
        ("ms @tags:must:1 1|a|", "HD|"),
        ("ms @tags:must:1 1 O7 k|a|", "HD O7 k@tags:must:1|"),
        ("ms @tags:must:1 1 q|a|", ""),
        ("ms QHRhZ3M6bXVzdDox 1 b|a|", "HD|"),
    ] {
        w.expect(c, "set must:1 0 0 1|x|", "NOT_STORED|");
        w.expect(c, form, reply);
        w.expect(c, "set must:1 0 0 1|x|", "STORED|");
        w.pass(10_000);
    }
    for (opcode, reply) in [(1, Some((0, String::new()))), (0x11, None)] {
        assert_eq!(ask_packet(&mut w, c, opcode, "@tags:must:1", "a"), reply);
        w.expect(c, "set must:1 0 0 1|x|", "STORED|");
        w.pass(10_000);
    }
}

#[test]
fn a_store_without_an_announcement_is_not_kept_where_it_is_required() {
    let mut w = world();
    let [a, b] = [(); 2].map(|()| w.connect());
    w.expect(a, "get must:1|", "END|");
    w.expect(b, "get must:1|", "");
    w.expect(a, "set must:1 0 0 1|x|", "NOT_STORED|");
    assert_eq!(w.replies(b), "END|", "it has the lease now");
    w.expect(b, &announce("must:1", "a"), "STORED|");
    w.expect(b, "set must:1 0 0 3|new|", "STORED|");
    w.expect(a, "get must:1|", "VALUE must:1 0 3|new|END|");
    w.pass(10_000);
    // A refused add leaves the value, a set does not.
    w.expect(a, "add must:1 0 0 1|x|", "NOT_STORED|");
    w.expect(a, "get must:1|", "VALUE must:1 0 3|new|END|");
    w.expect(a, "append must:1 0 0 1|x|get must:1|", "STORED|VALUE must:1 0 4|newx|END|");
    let before = w.count("stores_unannounced");
    assert_eq!(before, 2);
    for store in ["set must:1 0 0 1|x|", "replace must:1 0 0 1|x|", "cas must:1 0 0 1 7|x|"] {
        w.expect(a, store, "NOT_STORED|");
    }
    for store in ["ms must:1 1|x|", "ms must:1 1 ME q|x|", "ms must:1 1 MR|x|", "ms must:1 1 Gz|x|"] {
        w.expect(a, store, "NS|");
    }
    for opcode in [1, 2, 3, 0x11, 0x12, 0x13] {
        assert_eq!(ask_packet(&mut w, a, opcode, "must:1", "x"), Some((5, "Not stored.".to_owned())));
    }
    w.expect(a, "set must:1 0 0 1 noreply|x|", "");
    assert_eq!(w.count("stores_unannounced"), before + 14);
    assert_eq!(w.peek("must:1"), None);
    // A negative answer has no value.
    w.expect(a, "ms must:2 0 n||", "HD|");
}

#[test]
fn a_bump_of_an_announced_tag_drops_what_was_computed_before_it() {
    for (bump, is_soft) in [("md a G|", false), ("md a G I|", true), ("delete @tag:b|", false)] {
        for early in [true, false] {
            for key in ["must:1", "page:1"] {
                let scene = format!("{bump} {early} {key}");
                let mut w = world();
                let [a, b, c] = [(); 3].map(|()| w.connect());
                if early {
                    w.expect(b, &announce(key, "a,b"), "STORED|");
                }
                w.expect(a, &format!("get {key}|"), "END|");
                w.ask(c, bump);
                if !early {
                    w.expect(b, &announce(key, "a,b"), "STORED|");
                }
                w.expect(a, &format!("set {key} 0 0 3|old|"), "STORED|");
                assert_eq!(w.peek(key).is_some(), is_soft, "{scene}");
                // Without a grace a soft bump ends the value as well.
                w.expect(c, &format!("get {key}|"), "END|");
                w.expect(c, &format!("delete {key} noreply|"), "");
                w.expect(c, &format!("get {key}|"), "END|");
                w.expect(c, &format!("set {key} 0 0 3|new|"), "STORED|");
            }
        }
    }
}

#[test]
fn a_reload_that_leaves_no_room_for_them_refuses_the_value() {
    let mut w = world();
    let c = w.connect();
    w.expect(c, &announce("page:1", "a,b,c,d,e,f,g,h"), "STORED|");
    w.expect(c, "set page:1 0 0 1|x|", "STORED|");
    w.set_rules_to(Rules::new(vec![rule(1, "page:{id}", leased(), &["page"])], Vec::new()));
    w.expect(c, "set page:1 0 0 1|x|", "CLIENT_ERROR invalid tag: an item has at most 8|");
    // Without a rule nothing is asked for, and with the old one it counts still.
    w.set_rules_to(Rules::new(Vec::new(), Vec::new()));
    w.expect(c, "set page:1 0 0 1|x|md a G|get page:1|", "STORED|HD|VALUE page:1 0 1|x|END|");
    w.set_rules_to(Rules::new(list(), Vec::new()));
    w.expect(c, "set page:1 0 0 1|x|md a G|get page:1|", "STORED|HD|END|");
}

#[test]
fn why_shows_them() {
    let mut w = world();
    let c = w.connect();
    let why = |w: &mut World| -> serde_json::Value {
        let said = w.ask(c, "get @why:page:1|");
        serde_json::from_str(said.split('|').nth(1).unwrap()).unwrap()
    };
    assert_eq!(why(&mut w).get("announced_for_ms"), None);
    w.expect(c, &announce("page:1", "a,b"), "STORED|");
    w.pass(2500);
    let shown = why(&mut w);
    assert_eq!(
        (shown["announced_for_ms"].as_u64(), shown["tags"].as_array().unwrap().len()),
        (Some(7500), 2)
    );
}

#[test]
fn when_the_table_is_full_new_keys_are_refused() {
    let mut w = World::with(&[("page:{id}", leased())], &config(), 64 << 20, 1);
    let c = w.connect();
    for n in 0..65_536 {
        w.expect(c, &announce(&format!("page:{n}"), "a"), "STORED|");
    }
    let full = "SERVER_ERROR tags are announced for 65536 keys already";
    w.expect(c, &announce("page:x", "a"), &format!("{full}|"));
    w.expect(c, "ms @tags:page:x 1 q|a|", &format!("{full}|"));
    assert_eq!(ask_packet(&mut w, c, 0x11, "@tags:page:x", "a"), Some((5, full.to_owned())));
    w.expect(c, &announce("page:7", "b"), "STORED|");
    w.pass(10_000);
    assert_eq!(w.engine.herd_usage().announced, 0);
    w.expect(c, &announce("page:x", "a"), "STORED|");
    let active = w.engine.shared().rules();
    let (_, state) = active.as_ref().unwrap().each().next().unwrap();
    assert_eq!(state.counters().tags_announced.load(Ordering::Relaxed), 65_538);
}

#[test]
fn a_loaders_values_have_tags_of_their_own() {
    let policy = Policy { loader: true, tags_in_value: TagsInValue::Required, ..required() };
    let mut w = World::with(&[("page:{id}", policy)], &config(), 64 << 20, 1);
    let c = w.connect();
    w.expect(c, "get page:1|", "");
    let token = w.tokens()[0];
    assert_eq!(w.finish_with(token, "@tags:a\nx"), LoadOutcome::Stored);
    assert_eq!(w.replies(c), "VALUE page:1 0 9|@tags:a\nx|END|");
    w.expect(c, "md a G|mg page:1|", "HD|HD|");
    // A client's are looked at.
    w.expect(c, "set page:1 0 0 1|x|", "CLIENT_ERROR no tags|");
    w.expect(c, "set page:1 0 0 9|@tags:a\nx|", "NOT_STORED|");
}
