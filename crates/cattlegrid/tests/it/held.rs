//! Requests that are held: who gets what when, in which order, and what ends the wait.
//!
//! Holds are long here, so that nothing is answered because time has passed unless the test is about that.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::path::Path;

use cattlegrid_load::harness::{Client, Server, Start, until};
use nix::sys::signal::Signal;

/// Nothing ends a wait but what the test does.
const LONG: &str = r#"
[server]
read_ahead = 64
[[rule]]
match = "page:{id}"
hold = "60s"
hold_many = "60s"
hold_behind = "60s"
lease = "60s"
"#;

/// A server with two threads and a rule file.
fn start(rules: &str) -> Server {
    let words = ["-p", "-1", "-u", "root", "-t", "2"];
    let program = Path::new(env!("CARGO_BIN_EXE_cattlegrid"));
    Server::start(&Start { rules: Some(rules), ..Start::new(program, &words) }).unwrap()
}

/// A client. Every second one is on the other thread.
fn connect(server: &Server) -> Client {
    server.connect().unwrap()
}

/// Waits until this many connections are held, as `client` is told.
fn until_held(client: &mut Client, count: usize) {
    until("held connections", || {
        let states = client.stats("conns").unwrap();
        states.iter().filter(|(name, state)| name.ends_with(":state") && state == "conn_waiting").count()
            == count
    });
}

/// The holder, who has missed `page:1`, and a client that waits for it.
fn holder_and_waiter(server: &Server) -> (Client, Client) {
    let (mut holder, mut waiter) = (connect(server), connect(server));
    holder.ask("get page:1\r\n", "END\r\n");
    waiter.send("get page:1\r\n").unwrap();
    until_held(&mut holder, 1);
    (holder, waiter)
}

#[test]
fn waiters_on_every_thread_get_what_the_holder_stores() {
    let server = start(LONG);
    let (mut holder, first) = holder_and_waiter(&server);
    let mut waiters = vec![first];
    for _ in 0..9 {
        let mut waiter = connect(&server);
        waiter.send("get page:1\r\n").unwrap();
        waiters.push(waiter);
    }
    until_held(&mut holder, 10);
    waiters.iter_mut().for_each(Client::expect_nothing);
    holder.ask("set page:1 7 0 5\r\nhello\r\n", "STORED\r\n");
    for waiter in &mut waiters {
        waiter.expect("VALUE page:1 7 5\r\nhello\r\nEND\r\n");
        waiter.ask("mn\r\n", "MN\r\n");
    }
    until_held(&mut holder, 0);
}

#[test]
fn what_is_behind_a_held_get_is_executed_at_once_and_answered_in_order() {
    let server = start(LONG);
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    waiter
        .send("set other 0 0 1\r\nx\r\nget other\r\nget page:2\r\nset quiet 0 0 1 noreply\r\ny\r\n")
        .unwrap();
    until("the set behind a held get", || {
        holder.send("mg quiet\r\n").unwrap();
        holder.line().unwrap() == "HD\r\n"
    });
    holder.ask("get other\r\n", "VALUE other 0 1\r\nx\r\nEND\r\n");
    waiter.expect_nothing();
    holder.ask("set page:1 0 0 1\r\nv\r\n", "STORED\r\n");
    waiter.expect("VALUE page:1 0 1\r\nv\r\nEND\r\nSTORED\r\nVALUE other 0 1\r\nx\r\nEND\r\nEND\r\n");
}

#[test]
fn a_finished_reply_behind_cuts_the_wait() {
    let server = start(&LONG.replace("hold_behind = \"60s\"", "hold_behind = \"50ms\""));
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    holder.ask("set hot 0 0 1\r\nh\r\n", "STORED\r\n");
    waiter.ask("get hot\r\n", "END\r\nVALUE hot 0 1\r\nh\r\nEND\r\n");
    until_held(&mut holder, 0);
}

#[test]
fn a_wait_ends_with_its_time() {
    let server = start(&LONG.replace("hold = \"60s\"", "hold = \"50ms\""));
    let (mut holder, mut waiter) = (connect(&server), connect(&server));
    holder.ask("get page:1\r\n", "END\r\n");
    waiter.ask("get page:1\r\n", "END\r\n");
    until_held(&mut holder, 0);
}

#[test]
fn a_set_of_the_held_key_by_its_waiter_comes_after_a_miss() {
    let server = start(LONG);
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    waiter.ask("set page:1 0 0 3\r\nown\r\n", "END\r\nSTORED\r\n");
    holder.ask("get page:1\r\n", "VALUE page:1 0 3\r\nown\r\nEND\r\n");
}

#[test]
fn several_keys_are_answered_together() {
    let server = start(LONG);
    let (mut holder, mut waiter) = (connect(&server), connect(&server));
    holder.ask("get page:1\r\nget page:2\r\n", "END\r\nEND\r\n");
    holder.ask("set hot 0 0 1\r\nh\r\n", "STORED\r\n");
    waiter.send("get page:1 hot page:2\r\n").unwrap();
    until_held(&mut holder, 1);
    holder.ask("set page:2 0 0 1\r\n2\r\n", "STORED\r\n");
    until_held(&mut holder, 1);
    waiter.expect_nothing();
    holder.ask("set page:1 0 0 1\r\n1\r\n", "STORED\r\n");
    waiter.expect("VALUE page:1 0 1\r\n1\r\nVALUE hot 0 1\r\nh\r\nVALUE page:2 0 1\r\n2\r\nEND\r\n");
}

#[test]
fn who_sends_no_more_is_answered_at_once() {
    let server = start(LONG);
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    waiter.end().unwrap();
    waiter.expect("END\r\n");
    waiter.expect_end();

    // The get and the end in one go, as from `printf | nc`.
    let mut waiter = connect(&server);
    waiter.send("get page:1\r\nmn\r\nget page:1\r\n").unwrap();
    waiter.end().unwrap();
    waiter.expect("END\r\nMN\r\nEND\r\n");
    waiter.expect_end();

    let mut waiter = connect(&server);
    waiter.send("get page:1\r\n").unwrap();
    until_held(&mut holder, 1);
    waiter.ask("quit\r\n", "END\r\n");
    waiter.expect_end();
    until_held(&mut holder, 0);
}

#[test]
fn who_hangs_up_is_forgotten_at_once() {
    let server = start(LONG);
    let (mut holder, waiter) = holder_and_waiter(&server);
    waiter.reset().unwrap();
    until_held(&mut holder, 0);
    let mut waiter = connect(&server);
    waiter.send("get page:1\r\n").unwrap();
    until_held(&mut holder, 1);
    drop(waiter);
    until_held(&mut holder, 0);
    holder.ask("set page:1 0 0 1\r\nv\r\n", "STORED\r\n");
    connect(&server).ask("get page:1\r\n", "VALUE page:1 0 1\r\nv\r\nEND\r\n");
}

/// One held get and 200 commands that count themselves: the count stops at the limit.
fn full(server: &Server) -> (Client, Client) {
    let (mut holder, mut waiter) = holder_and_waiter(server);
    holder.ask("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    waiter.send("incr n 1\r\n".repeat(200)).unwrap();
    until("64 commands read ahead", || holder.get(["n"]).unwrap() == [("n".to_owned(), "64".to_owned())]);
    (holder, waiter)
}

fn counted() -> String {
    (1..=200).fold(String::new(), |text, n| text + &format!("{n}\r\n"))
}

#[test]
fn reading_ahead_has_a_limit_and_goes_on() {
    let server = start(LONG);
    let (mut holder, mut waiter) = full(&server);
    waiter.expect_nothing();
    holder.ask("set page:1 0 0 1\r\nv\r\n", "STORED\r\n");
    waiter.expect(&format!("VALUE page:1 0 1\r\nv\r\nEND\r\n{}", counted()));
    waiter.ask("mn\r\n", "MN\r\n");
}

#[test]
fn an_end_is_noticed_where_nothing_is_read() {
    let server = start(LONG);
    let (mut holder, mut waiter) = full(&server);
    waiter.end().unwrap();
    waiter.expect(&format!("END\r\n{}", counted()));
    waiter.expect_end();
    until_held(&mut holder, 0);

    let mut waiter = connect(&server);
    waiter.send(format!("get page:1\r\n{}", "mn\r\n".repeat(100))).unwrap();
    until_held(&mut holder, 1);
    waiter.reset().unwrap();
    until_held(&mut holder, 0);
}

#[test]
fn what_takes_the_connection_over_waits_for_its_turn() {
    let server = start(LONG);
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    waiter.send("lru_crawler metadump all\r\nwatch fetchers\r\n").unwrap();
    holder.ask("set page:1 0 0 1\r\nv\r\n", "STORED\r\n");
    waiter.expect("VALUE page:1 0 1\r\nv\r\nEND\r\nOK\r\nkey=page%3A1 ");
    waiter.line().unwrap();
    waiter.expect("END\r\nOK\r\n");
    holder.ask("get elsewhere\r\n", "END\r\n");
    let line = waiter.line().unwrap();
    assert!(line.contains("key=elsewhere status=not_found"), "{line}");
}

#[test]
fn leaving_answers_what_is_held() {
    let mut server = start(LONG);
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    let mut other = connect(&server);
    other.send("get page:1\r\nmn\r\n").unwrap();
    until_held(&mut holder, 2);
    server.signal(Signal::SIGTERM);
    waiter.expect("END\r\n");
    waiter.expect_end();
    other.expect("END\r\nMN\r\n");
    other.expect_end();
    assert_eq!(server.wait().unwrap().code(), Some(0));
}
