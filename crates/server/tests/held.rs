//! Requests that are held: who gets what when, in which order, and what ends the wait.
//!
//! Holds are long here, so that nothing is answered because time has passed unless the test is about that.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::SockRef;
use tempfile::TempDir;

/// What the server is given to answer or to come to a state.
const DEADLINE: Duration = Duration::from_secs(45);

/// Nothing ends a wait but what the test does.
const LONG: &str = r#"
[[rule]]
match = "page:{id}"
hold = "60s"
hold_many = "60s"
hold_behind = "60s"
lease = "60s"
"#;

/// A server with two threads and a rule file, stopped when dropped.
struct Server {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl Server {
    fn start(rules: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (config, ports) = (dir.path().join("rules.toml"), dir.path().join("ports"));
        fs::write(&config, rules).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_cattlegrid"))
            .args(["-p", "-1", "-u", "root", "-t", "2", "--config"])
            .arg(&config)
            .env("MEMCACHED_PORT_FILENAME", &ports)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        until("port file", || ports.exists());
        let said = fs::read_to_string(&ports).unwrap();
        let port = said.strip_prefix("TCP INET: ").unwrap().trim_end().parse().unwrap();
        Self { child, port, _dir: dir }
    }

    /// A client. Every second one is on the other thread.
    fn connect(&self) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(BufReader::new(stream))
    }

    fn terminate(&self) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    /// The next lines are these.
    fn expect(&mut self, text: &str) {
        let mut said = vec![0; text.len()];
        self.0.read_exact(&mut said).unwrap();
        assert_eq!(String::from_utf8_lossy(&said), text);
    }

    /// The server closes the connection now, having said nothing more.
    fn expect_end(&mut self) {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        assert_eq!(String::from_utf8_lossy(&rest), "");
    }

    fn ask(&mut self, text: &str, answer: &str) {
        self.send(text);
        self.expect(answer);
    }

    /// Nothing has arrived so far.
    fn expect_nothing(&mut self) {
        assert_eq!(self.0.buffer(), b"");
        let stream = self.0.get_ref();
        stream.set_nonblocking(true).unwrap();
        assert_eq!(stream.peek(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
    }

    /// Waits until this many connections are held.
    fn until_held(&mut self, count: usize) {
        until("held connections", || {
            self.send("stats conns\r\n");
            let mut held = 0;
            loop {
                let mut line = String::new();
                self.0.read_line(&mut line).unwrap();
                if line == "END\r\n" {
                    return held == count;
                }
                held += usize::from(line.ends_with(":state conn_waiting\r\n"));
            }
        });
    }

    /// Cuts the connection: the server gets a reset.
    fn reset(self) {
        SockRef::from(self.0.get_ref()).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// Waits for a condition that the server brings about.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let (_sender, receiver) = mpsc::channel::<()>();
    let mut waited = Duration::ZERO;
    let step = Duration::from_millis(5);
    while !holds() {
        assert!(waited < DEADLINE, "{what}: not within {DEADLINE:?}");
        // No client sends: this gives the processor to the server for a moment.
        assert!(receiver.recv_timeout(step).is_err());
        waited += step;
    }
}

/// The holder, which has missed `page:1`, and a client that waits for it.
fn holder_and_waiter(server: &Server) -> (Client, Client) {
    let (mut holder, mut waiter) = (server.connect(), server.connect());
    holder.ask("get page:1\r\n", "END\r\n");
    waiter.send("get page:1\r\n");
    holder.until_held(1);
    (holder, waiter)
}

#[test]
fn waiters_on_every_thread_get_what_the_holder_stores() {
    let server = Server::start(LONG);
    let (mut holder, first) = holder_and_waiter(&server);
    let mut waiters = vec![first];
    for _ in 0..9 {
        let mut waiter = server.connect();
        waiter.send("get page:1\r\n");
        waiters.push(waiter);
    }
    holder.until_held(10);
    waiters.iter_mut().for_each(Client::expect_nothing);
    holder.ask("set page:1 7 0 5\r\nhello\r\n", "STORED\r\n");
    for waiter in &mut waiters {
        waiter.expect("VALUE page:1 7 5\r\nhello\r\nEND\r\n");
        waiter.ask("mn\r\n", "MN\r\n");
    }
    holder.until_held(0);
}

#[test]
fn what_is_behind_a_held_get_is_executed_at_once_and_answered_in_order() {
    let server = Server::start(LONG);
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    waiter.send("set other 0 0 1\r\nx\r\nget other\r\nget page:2\r\nset quiet 0 0 1 noreply\r\ny\r\n");
    until("the set behind a held get", || {
        holder.send("mg quiet\r\n");
        let mut line = String::new();
        holder.0.read_line(&mut line).unwrap();
        line == "HD\r\n"
    });
    holder.ask("get other\r\n", "VALUE other 0 1\r\nx\r\nEND\r\n");
    waiter.expect_nothing();
    holder.ask("set page:1 0 0 1\r\nv\r\n", "STORED\r\n");
    waiter.expect("VALUE page:1 0 1\r\nv\r\nEND\r\nSTORED\r\nVALUE other 0 1\r\nx\r\nEND\r\nEND\r\n");
}

#[test]
fn a_finished_reply_behind_cuts_the_wait() {
    let server = Server::start(&LONG.replace("hold_behind = \"60s\"", "hold_behind = \"50ms\""));
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    holder.ask("set hot 0 0 1\r\nh\r\n", "STORED\r\n");
    waiter.ask("get hot\r\n", "END\r\nVALUE hot 0 1\r\nh\r\nEND\r\n");
    holder.until_held(0);
}

#[test]
fn a_wait_ends_with_its_time() {
    let server = Server::start(&LONG.replace("hold = \"60s\"", "hold = \"50ms\""));
    let (mut holder, mut waiter) = (server.connect(), server.connect());
    holder.ask("get page:1\r\n", "END\r\n");
    waiter.ask("get page:1\r\n", "END\r\n");
    holder.until_held(0);
}

#[test]
fn a_set_of_the_held_key_by_its_waiter_comes_after_a_miss() {
    let server = Server::start(LONG);
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    waiter.ask("set page:1 0 0 3\r\nown\r\n", "END\r\nSTORED\r\n");
    holder.ask("get page:1\r\n", "VALUE page:1 0 3\r\nown\r\nEND\r\n");
}

#[test]
fn several_keys_are_answered_together() {
    let server = Server::start(LONG);
    let (mut holder, mut waiter) = (server.connect(), server.connect());
    holder.ask("get page:1\r\nget page:2\r\n", "END\r\nEND\r\n");
    holder.ask("set hot 0 0 1\r\nh\r\n", "STORED\r\n");
    waiter.send("get page:1 hot page:2\r\n");
    holder.until_held(1);
    holder.ask("set page:2 0 0 1\r\n2\r\n", "STORED\r\n");
    holder.until_held(1);
    waiter.expect_nothing();
    holder.ask("set page:1 0 0 1\r\n1\r\n", "STORED\r\n");
    waiter.expect("VALUE page:1 0 1\r\n1\r\nVALUE hot 0 1\r\nh\r\nVALUE page:2 0 1\r\n2\r\nEND\r\n");
}

#[test]
fn who_sends_no_more_is_answered_at_once() {
    let server = Server::start(LONG);
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    waiter.0.get_ref().shutdown(Shutdown::Write).unwrap();
    waiter.expect("END\r\n");
    waiter.expect_end();

    // The get and the end in one go, as from `printf | nc`.
    let mut waiter = server.connect();
    waiter.send("get page:1\r\nmn\r\nget page:1\r\n");
    waiter.0.get_ref().shutdown(Shutdown::Write).unwrap();
    waiter.expect("END\r\nMN\r\nEND\r\n");
    waiter.expect_end();

    let mut waiter = server.connect();
    waiter.send("get page:1\r\n");
    holder.until_held(1);
    waiter.ask("quit\r\n", "END\r\n");
    waiter.expect_end();
    holder.until_held(0);
}

#[test]
fn who_hangs_up_is_forgotten_at_once() {
    let server = Server::start(LONG);
    let (mut holder, waiter) = holder_and_waiter(&server);
    waiter.reset();
    holder.until_held(0);
    let mut waiter = server.connect();
    waiter.send("get page:1\r\n");
    holder.until_held(1);
    drop(waiter);
    holder.until_held(0);
    holder.ask("set page:1 0 0 1\r\nv\r\n", "STORED\r\n");
    server.connect().ask("get page:1\r\n", "VALUE page:1 0 1\r\nv\r\nEND\r\n");
}

/// One held get and 200 commands that count themselves: the count stops at the limit.
fn full(server: &Server) -> (Client, Client) {
    let (mut holder, mut waiter) = holder_and_waiter(server);
    holder.ask("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    waiter.send(&"incr n 1\r\n".repeat(200));
    until("64 commands read ahead", || {
        holder.send("get n\r\n");
        let mut value = String::new();
        for _ in 0..3 {
            value.clear();
            holder.0.read_line(&mut value).unwrap();
            if value.starts_with("64") {
                holder.expect("END\r\n");
                return true;
            }
        }
        false
    });
    (holder, waiter)
}

fn counted() -> String {
    (1..=200).fold(String::new(), |text, n| text + &format!("{n}\r\n"))
}

#[test]
fn reading_ahead_has_a_limit_and_goes_on() {
    let server = Server::start(LONG);
    let (mut holder, mut waiter) = full(&server);
    waiter.expect_nothing();
    holder.ask("set page:1 0 0 1\r\nv\r\n", "STORED\r\n");
    waiter.expect(&format!("VALUE page:1 0 1\r\nv\r\nEND\r\n{}", counted()));
    waiter.ask("mn\r\n", "MN\r\n");
}

#[test]
fn an_end_is_noticed_where_nothing_is_read() {
    let server = Server::start(LONG);
    let (mut holder, mut waiter) = full(&server);
    waiter.0.get_ref().shutdown(Shutdown::Write).unwrap();
    waiter.expect(&format!("END\r\n{}", counted()));
    waiter.expect_end();
    holder.until_held(0);

    let mut waiter = server.connect();
    waiter.send(&format!("get page:1\r\n{}", "mn\r\n".repeat(100)));
    holder.until_held(1);
    waiter.reset();
    holder.until_held(0);
}

#[test]
fn what_takes_the_connection_over_waits_for_its_turn() {
    let server = Server::start(LONG);
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    waiter.send("lru_crawler metadump all\r\nwatch fetchers\r\n");
    holder.ask("set page:1 0 0 1\r\nv\r\n", "STORED\r\n");
    waiter.expect("VALUE page:1 0 1\r\nv\r\nEND\r\nOK\r\nkey=page%3A1 ");
    let mut line = String::new();
    waiter.0.read_line(&mut line).unwrap();
    waiter.expect("END\r\nOK\r\n");
    holder.ask("get elsewhere\r\n", "END\r\n");
    line.clear();
    waiter.0.read_line(&mut line).unwrap();
    assert!(line.contains("key=elsewhere status=not_found"), "{line}");
}

#[test]
fn leaving_answers_what_is_held() {
    let mut server = Server::start(LONG);
    let (mut holder, mut waiter) = holder_and_waiter(&server);
    let mut other = server.connect();
    other.send("get page:1\r\nmn\r\n");
    holder.until_held(2);
    server.terminate();
    waiter.expect("END\r\n");
    waiter.expect_end();
    other.expect("END\r\nMN\r\n");
    other.expect_end();
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}
