use super::super::reply::read_reply;
use super::*;

fn update(ask: StatsRequest, at_ms: u64, own_gets: u64, text: &str) -> ServerUpdate {
    let reply = read_reply(&mut text.as_bytes(), ask).unwrap().0;
    ServerUpdate::Reply { ask, at_ms, reply, own_gets }
}

fn stats(at_ms: u64, pid: u32, uptime: u32, lines: &str) -> ServerUpdate {
    let lines = lines.replace(' ', "\r\nSTAT ").replace('=', " ");
    update(
        StatsRequest::Stats,
        at_ms,
        0,
        &format!("STAT pid {pid}\r\nSTAT uptime {uptime}\r\nSTAT {lines}\r\nEND\r\n"),
    )
}

#[test]
fn rates_are_of_the_time_between_two_replies() {
    let mut model = Model::new("x");
    model.take(stats(1000, 7, 10, "cmd_get=100 get_hits=90 get_misses=10 rusage_user=1.5"));
    assert_eq!(model.rate(StatsRequest::Stats, "", "cmd_get"), None);
    assert_eq!(model.hit_ratios(), (None, Some(0.9)));
    model.take(stats(3000, 7, 12, "cmd_get=300 get_hits=190 get_misses=110 rusage_user=1.75"));
    assert_eq!(model.rate(StatsRequest::Stats, "", "cmd_get"), Some(100.0));
    assert_eq!(model.rate(StatsRequest::Stats, "", "rusage_user"), Some(0.125));
    assert_eq!(model.hit_ratios().0, Some(0.5));
    assert_eq!(
        model.rate(StatsRequest::Stats, "", "cmd_touch"),
        None,
        "a line that this server does not have"
    );
    assert_eq!(model.request_rate(), Some(100.0));
    assert_eq!(model.hit_ratio.points(), [None, Some(0.5)]);
    // Two replies at the same moment say nothing.
    model.take(stats(3000, 7, 12, "cmd_get=300 get_hits=190 get_misses=110"));
    assert_eq!(model.rate(StatsRequest::Stats, "", "cmd_get"), None);
}

#[test]
fn a_start_and_a_reset_give_no_rate() {
    let mut model = Model::new("x");
    let rules = |at_ms, gets| {
        update(StatsRequest::Rules, at_ms, 0, &format!("STAT 1:match a\r\nSTAT 1:gets {gets}\r\nEND\r\n"))
    };
    model.take(stats(1000, 7, 10, "cmd_get=1000"));
    model.take(rules(1000, 50));
    // Another process, whose counters are larger already.
    model.take(stats(2000, 8, 10, "cmd_get=5000"));
    model.take(rules(2000, 70));
    assert_eq!(model.rate(StatsRequest::Stats, "", "cmd_get"), None);
    assert_eq!(model.rate(StatsRequest::Rules, "1", "gets"), None);
    assert_eq!(model.begun_anew, Some("the server has started"));
    model.take(stats(3000, 8, 11, "cmd_get=5010"));
    assert_eq!(model.rate(StatsRequest::Stats, "", "cmd_get"), Some(10.0));
    model.take(rules(3000, 75));
    assert_eq!(model.rate(StatsRequest::Rules, "1", "gets"), Some(5.0));
    model.take(stats(4000, 8, 12, "cmd_get=3"));
    assert_eq!(
        (model.rate(StatsRequest::Stats, "", "cmd_get"), model.begun_anew),
        (None, Some("stats reset"))
    );
    assert!(model.rate(StatsRequest::Rules, "1", "gets").is_none());
    // In a container each run has the same process id.
    model.take(stats(5000, 8, 1, "cmd_get=9"));
    assert_eq!(model.begun_anew, Some("the server has started"));
}

#[test]
fn a_counter_that_is_smaller_or_beyond_64_bits_gives_no_rate() {
    let mut model = Model::new("x");
    model.take(stats(0, 7, 1, "evictions=10 reclaimed=18446744073709551615"));
    model.take(stats(1000, 7, 2, "evictions=9 reclaimed=18446744073709551616"));
    assert_eq!(model.rate(StatsRequest::Stats, "", "evictions"), None);
    assert!(model.rate(StatsRequest::Stats, "", "reclaimed").is_none_or(|rate| rate < 2.0));
}

#[test]
fn a_rule_of_another_pattern_has_no_rate() {
    let mut model = Model::new("x");
    for (at_ms, pattern, gets) in [(0, "a", 5), (1000, "b", 9), (2000, "b", 10)] {
        let text = format!("STAT 1:match {pattern}\r\nSTAT 1:gets {gets}\r\nEND\r\n");
        model.take(update(StatsRequest::Rules, at_ms, 0, &text));
        let expected = (at_ms == 2000).then_some(1.0);
        assert_eq!(model.rate(StatsRequest::Rules, "1", "gets"), expected, "{at_ms}");
    }
}

#[test]
fn own_gets_are_in_no_rate() {
    let mut model = Model::new("x");
    let text = |gets| {
        format!(
            "STAT pid 1\r\nSTAT uptime 1\r\nSTAT cmd_get {gets}\r\nSTAT get_hits {gets}\r\nSTAT get_misses 0\r\nEND\r\n"
        )
    };
    model.take(update(StatsRequest::Stats, 0, 3, &text(10)));
    model.take(update(StatsRequest::Stats, 1000, 5, &text(12)));
    assert_eq!(model.rate(StatsRequest::Stats, "", "cmd_get"), Some(0.0));
    assert_eq!(model.hit_ratios().0, None, "no client has asked");
}

#[test]
fn the_banner_has_the_last_answer_and_a_reply_ends_it() {
    let mut model = Model::new("x");
    model.take(stats(0, 7, 1, "cmd_get=1"));
    model.take(ServerUpdate::Done { took_ms: 3 });
    let lost = |at_ms, unix_seconds| ServerUpdate::Lost {
        at_ms,
        unix_seconds,
        why: "refused\x1b[1m".to_owned(),
        again_ms: 1000,
    };
    model.take(lost(1000, 50));
    model.take(lost(2000, 51));
    let LinkState::Lost { at_ms, unix_seconds, why, again_at_ms } = &model.link else { panic!() };
    assert_eq!((*at_ms, *unix_seconds, *again_at_ms, why.as_str()), (0, 49, 3000, "refused%1B[1m"));
    assert_eq!(model.text(StatsRequest::Stats, "", "cmd_get"), Some("1"), "what was known is still shown");
    model.take(ServerUpdate::Done { took_ms: 3 });
    assert_eq!(model.link, LinkState::Up);
}

#[test]
fn memcached_has_no_groups_of_ours_and_a_user_may_have_no_right() {
    let mut model = Model::new("x");
    model.take(update(StatsRequest::Cattlegrid, 0, 0, "ERROR\r\n"));
    assert!(!model.is_cattlegrid() && model.group(StatsRequest::Cattlegrid).is_none());
    model.take(update(StatsRequest::Cattlegrid, 0, 0, "CLIENT_ERROR not allowed\r\n"));
    assert!(model.is_cattlegrid());
    assert_eq!(model.refused(StatsRequest::Cattlegrid).map(str::trim), Some("not allowed"));
    assert_eq!(model.sum(StatsRequest::Cattlegrid, "", &["leases"]), None);
}

#[test]
fn values_of_control_keys_are_read_and_escaped() {
    let mut model = Model::new("x");
    let take = |model: &mut Model, ask, value: &str| {
        let reply = StatsReply::Value(value.as_bytes().to_vec());
        model.take(ServerUpdate::Reply { ask, at_ms: 0, reply, own_gets: 0 });
    };
    take(
        &mut model,
        StatsRequest::Slow,
        r#"{"slow":[{"kind":"call","shape":"a\u001b[2J","ms":14.2,"ago_ms":9}]}"#,
    );
    assert_eq!((model.slow[0].shape.as_str(), model.slow[0].ms), ("a%1B[2J", 14.2));
    take(&mut model, StatsRequest::Nodes, r#"[{"name":"a\n","lag_ms":null,"applied":3}]"#);
    assert_eq!(model.nodes[0]["name"], "a%0A");
    assert_eq!((model.nodes[0]["lag_ms"].as_str(), model.nodes[0]["applied"].as_str()), ("-", "3"));
    take(&mut model, StatsRequest::Slow, "no JSON");
    assert!(model.slow.is_empty());
}
