//! Keys behind prefixes: each prefix is a namespace of rules' tags, of control keys and of objects.

use cattlegrid_engine::rules::{Change, Rule, Rules};
use cattlegrid_herd::{LeaseTime, Policy};
use cattlegrid_tags::Prefixes;

use crate::objects::settings;
use crate::world::{self, World, cascade, on_flush};

const PREFIXES: [&str; 3] = [":1:", "shop:", "shop:production:1:"];

/// A rule with the tag of the user.
fn rule(number: u32, pattern: &str, policy: Policy, prefix: Option<&str>) -> Rule {
    Rule { prefix: prefix.map(Into::into), ..world::rule(number, pattern, policy, &["user:{user}"]) }
}

/// Pages of users and their baskets; pages are leased.
fn shop() -> World {
    let leased = Policy { lease: LeaseTime::Fixed(3000), ..Policy::default() };
    let tags_only = Policy { leases: false, ..Policy::default() };
    let rules = vec![
        rule(1, "page:{user}:{id}", leased, None),
        rule(2, "basket:{user}", tags_only, None),
        rule(3, "counter::{user}", tags_only, None),
    ];
    let cascades = vec![cascade(&[Change::Delete], "user:{user}", "user:{user}"), on_flush("user:7")];
    World::behind(&PREFIXES, Rules::new(rules, cascades))
}

/// Whether each of the keys is a hit.
fn hits(w: &mut World, client: u64, keys: &[&str]) -> Vec<bool> {
    keys.iter().map(|key| w.ask(client, &format!("mg {key} v|")).starts_with("VA")).collect()
}

#[test]
fn a_bump_behind_a_prefix_reaches_its_items_only() {
    let mut w = shop();
    let c = w.connect();
    let keys = [
        "basket:7",
        ":1:basket:7",
        "shop:basket:7",
        "shop:production:1:basket:7",
        // This is no prefix of the server, so the key has no rule.
        ":2:basket:7",
    ];
    let fill = |w: &mut World| {
        for key in keys {
            w.expect(c, &format!("set {key} 0 0 1|x|"), "STORED|");
        }
        assert_eq!(hits(w, c, &keys), [true; 5]);
    };
    for (command, reply, gone) in [
        ("delete @tag:user:7|", "DELETED|", Some(0)),
        ("delete :1:@tag:user:7|", "DELETED|", Some(1)),
        ("md shop:user:7 G|", "HD|", Some(2)),
        ("md shop:production:1:@tag:user:7|", "HD|", Some(3)),
        ("delete :2:@tag:user:7|", "NOT_FOUND|", None),
        ("delete user:7|", "NOT_FOUND|", Some(0)),
        ("delete :1:user:7|", "NOT_FOUND|", Some(1)),
        ("delete shop:user:7|", "NOT_FOUND|", Some(2)),
    ] {
        fill(&mut w);
        w.expect(c, command, reply);
        let expected: Vec<bool> = (0..5).map(|at| Some(at) != gone).collect();
        assert_eq!(hits(&mut w, c, &keys), expected, "{command}");
    }
    // The numbers are those of each prefix.
    let number = |reply: String| reply.lines().next().map(|_| reply.split('|').nth(1).unwrap().to_owned());
    fill(&mut w);
    let own = number(w.ask(c, "get :1:@bump:user:7|")).unwrap();
    assert_eq!(hits(&mut w, c, &keys), [true, false, true, true, true]);
    assert!(w.ask(c, "get :1:@tag:user:7|").contains(&format!("|{own} ")), "{own}");
    assert!(!w.ask(c, "get @tag:user:7|").contains(&format!("|{own} ")), "{own}");
    assert!(w.ask(c, "mg :1:@tag:user:7 v|").contains(&format!("|{own} ")), "{own}");
    // A flush, and its cascade, is for all; none is for one prefix.
    fill(&mut w);
    w.expect(c, "get :1:@flush:10|", "CLIENT_ERROR no flush of a prefix|");
    w.expect(c, "mg :1:@flush:10 v|", "CLIENT_ERROR no flush of a prefix|");
    assert_eq!(hits(&mut w, c, &keys), [true; 5]);
    w.flush();
    assert_eq!(hits(&mut w, c, &keys), [false; 5]);
}

#[test]
fn tags_that_a_client_names_are_behind_the_prefix_of_the_key() {
    let mut w = shop();
    let c = w.connect();
    w.expect(c, "ms :1:x 1 Guser:7,a|v|ms x 1 Guser:7,a|v|", "HD|HD|");
    w.expect(c, "md :1:a G|", "HD|");
    assert_eq!(hits(&mut w, c, &[":1:x", "x"]), [false, true]);
    w.expect(c, "ms :1:x 1 Guser:7|v|delete @tag:user:7|", "HD|DELETED|");
    assert_eq!(hits(&mut w, c, &[":1:x", "x"]), [true, false]);
}

#[test]
fn a_fill_behind_a_prefix_is_fenced_by_bumps_behind_it() {
    for (bump, reply) in
        [("delete :1:@tag:user:7|", "END|"), ("delete @tag:user:7|", "VALUE :1:basket:7 0 3|old|END|")]
    {
        let mut w = shop();
        let c = w.connect();
        w.expect(c, "get :1:basket:7|", "END|");
        w.expect(c, bump, "DELETED|");
        w.expect(c, "set :1:basket:7 0 0 3|old|", "STORED|");
        w.expect(c, "get :1:basket:7|", reply);
    }
}

#[test]
fn gets_behind_a_prefix_are_leased_and_held() {
    let mut w = shop();
    let [a, b, c] = [(); 3].map(|()| w.connect());
    w.expect(a, "get :1:page:7:1|", "END|");
    w.expect(b, "get :1:page:7:1|", "");
    w.expect(c, "get shop:page:7:1|", "END|");
    w.expect(a, "set :1:page:7:1 0 0 1|x|", "STORED|");
    assert_eq!(w.replies(b), "VALUE :1:page:7:1 0 1|x|END|");
    // The prefix alone, and a key that only begins like it.
    w.expect(c, "get :1: :1 shop|set :1: 0 0 1|x|get :1:|", "END|STORED|VALUE :1: 0 1|x|END|");
}

#[test]
fn a_rule_may_be_for_one_prefix() {
    let tags_only = Policy { leases: false, ..Policy::default() };
    let rules = vec![
        rule(1, "basket:{user}", tags_only, Some("shop:")),
        rule(2, "basket:{user}", Policy::default(), None),
        rule(3, "cart:{user}", tags_only, Some(":1:")),
        rule(4, "cart:{user}", tags_only, Some("elsewhere:")),
    ];
    let rules = Rules::new(rules, Vec::new()).with_prefixes(Prefixes::new(&PREFIXES).unwrap());
    let number = |key: &str| rules.find(key.as_bytes()).map(|(rule, _)| rule.number);
    assert_eq!(
        (number("shop:basket:7"), number(":1:basket:7"), number("basket:7")),
        (Some(1), Some(2), Some(2))
    );
    assert_eq!((number(":1:cart:7"), number("shop:cart:7"), number("cart:7")), (Some(3), None, None));
    assert_eq!(number("elsewhere:cart:7"), None, "it is no prefix of this server");
}

#[test]
fn each_prefix_has_objects_of_its_own() {
    let mut w = shop();
    let prefixes = Prefixes::new(&PREFIXES).unwrap();
    w.engine.set_objects(Some(settings(|own| own.prefixes = prefixes)));
    let c = w.connect();
    w.expect(c, "get counter:add:7:5|", "VALUE counter:add:7:5 0 1|5|END|");
    w.expect(c, "get :1:counter:add:7:1|", "VALUE :1:counter:add:7:1 0 1|1|END|");
    w.expect(c, "mg shop:counter:add:7:2 v|mg shop:counter::7 v Aadd:1|", "VA 1|2|VA 1|3|");
    w.expect(c, "get :2:counter:add:7:5|", "END|");
    w.expect(c, "set :1:counter:add:7:5 0 0 1|x|", "CLIENT_ERROR counter:add is a method|");
    let values = |w: &mut World| {
        ["counter:get:7", ":1:counter:get:7", "shop:counter:get:7"]
            .map(|key| w.ask(c, &format!("mg {key} v|")).split('|').nth(1).unwrap_or_default().to_owned())
    };
    assert_eq!(values(&mut w), ["5", "1", "3"]);
    // Its rule's tag is behind the prefix as well.
    w.expect(c, "delete :1:@tag:user:7|", "DELETED|");
    assert_eq!(values(&mut w)[0], "5");
    assert_ne!(values(&mut w)[1], "1");
    w.expect(c, "delete shop:counter::7|delete :2:counter::7|", "DELETED|NOT_FOUND|");
    assert_eq!(values(&mut w)[0], "5");
    let why = w.ask(c, "get :1:@why:counter::7|");
    assert!(why.contains("\"key\":\":1:counter::7\""), "{why}");
}

#[test]
fn why_is_asked_behind_a_prefix() {
    let mut w = shop();
    let c = w.connect();
    w.expect(c, "set :1:basket:7 0 0 1|x|", "STORED|");
    let behind = w.ask(c, "get :1:@why:basket:7|");
    let whole = w.ask(c, "get @why::1:basket:7|");
    assert!(behind.contains("\"match\":\"basket:{user}\""), "{behind}");
    assert_eq!(behind.split_once('|').unwrap().1, whole.split_once('|').unwrap().1);
    assert!(w.ask(c, "mg :1:@why:basket:7 v|").contains("basket:{user}"));
}
