//! `cattlegrid bench` against servers it starts.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

/// A server on a free port, stopped when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = directory.path().join("ports");
        let child = Command::new(env!("CARGO_BIN_EXE_cattlegrid"))
            .args(["serve", "-p", "-1", "-t", "1", "-m", "16"])
            .env("MEMCACHED_PORT_FILENAME", &ports)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // No client sends: each wait gives the processor to the server for a moment.
        let (_sender, receiver) = mpsc::channel::<()>();
        let port = (0..2000).find_map(|_| {
            assert!(receiver.recv_timeout(Duration::from_millis(5)).is_err());
            port(&ports)
        });
        Self { child, address: format!("127.0.0.1:{}", port.unwrap()) }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn port(file: &Path) -> Option<u16> {
    std::fs::read_to_string(file).ok()?.trim().strip_prefix("TCP INET: ")?.parse().ok()
}

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cattlegrid")).arg("bench").args(words).output().unwrap()
}

fn json(words: &[&str]) -> Value {
    let Output { status, stdout, stderr } = bench(words);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

fn number(report: &Value, name: &str) -> f64 {
    report[name].as_f64().unwrap_or_else(|| panic!("{name}: {report}"))
}

#[test]
fn a_second_of_load() {
    let server = Server::start();
    let (address, pid) = (&*server.address, &*server.pid());
    let report = json(&[
        address,
        "--pid",
        pid,
        "--seconds",
        "1",
        "--keys",
        "1000",
        "--threads",
        "2",
        "--depth",
        "4",
        "--multiget",
        "3",
        "--value-size",
        "lognormal:200,1",
        "--ttl",
        "0:1,1000:1",
        "--distribution",
        "zipf:0.9",
        "--json",
    ]);
    assert!((0.9..2.0).contains(&number(&report, "seconds")));
    assert!(number(&report, "requests") > 100.0);
    assert!((number(&report, "hit_ratio") - 1.0).abs() < 1e-9, "all keys fit, and were set before");
    assert!(number(&report, "cpu_us_per_operation") > 0.0);
    assert!(number(&report, "p50_us") <= number(&report, "p999_us"));

    let Output { status, stdout, .. } = bench(&[address, "-n", "500", "-c", "3"]);
    let text = String::from_utf8(stdout).unwrap();
    assert!(status.success() && text.starts_with("requests      500 in "), "{text}");
}

#[test]
fn misses_traces_and_warmth() {
    let server = Server::start();
    let address = &*server.address;
    let report =
        json(&[address, "-n", "2000", "-k", "100", "--ratio", "1:0", "--fill-on-miss", "-c", "1", "--json"]);
    let missed = number(&report, "sets");
    assert!((90.0..=100.0).contains(&missed), "{missed}");
    assert!((number(&report, "hit_ratio") - (1.0 - missed / 2000.0)).abs() < 1e-9);

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace.lis");
    std::fs::write(&file, "5 4 0 0\n5 4 0 1\n").unwrap();
    let file = file.to_str().unwrap();
    let report = json(&[address, "--trace", file, "-c", "1", "--json"]);
    assert!((number(&report, "hit_ratio") - 0.5).abs() < 1e-9);
    let report = json(&[address, "--trace", file, "-c", "1", "--warmup", "0.5", "--json"]);
    assert!((number(&report, "hit_ratio") - 1.0).abs() < 1e-9);
}

#[test]
fn keys_that_are_asked_for_once() {
    let server = Server::start();
    let words = ["-n", "2000", "-k", "10", "--ratio", "1:0", "--fill-on-miss", "--one-hit", "0.5", "-c", "2"];
    let report = json(&[&[&*server.address, "--json"], &words[..]].concat());
    // 1000 and five standard deviations, and the ten others.
    assert!((888.0..=1122.0).contains(&number(&report, "sets")), "{report}");
}

#[test]
fn a_stampede_makes_all_compute() {
    let server = Server::start();
    let words = ["--stampede", "20", "-c", "30", "-n", "90", "--pid", &server.pid(), "--json"];
    let report = json(&[&[&*server.address], &words[..]].concat());
    assert_eq!((report["rounds"].as_u64(), report["connections"].as_u64()), (Some(3), Some(30)));
    // Who is late finds the value there; on a slow machine that may be many.
    let (computed, held) = (number(&report, "computations"), number(&report, "held"));
    assert!(computed >= 3.0 && (computed + held - 90.0).abs() < 0.5, "{report}");
    assert!(number(&report, "p50_us") > 0.0 && number(&report, "max_us") >= 20_000.0, "{report}");
    let Output { status, stdout, .. } = bench(&[&server.address, "--stampede", "0", "-c", "5", "-n", "5"]);
    let text = String::from_utf8(stdout).unwrap();
    assert!(status.success() && text.starts_with("stampedes     1 in "), "{text}");
}

#[test]
fn two_servers_by_turns() {
    let [one, two] = [Server::start(), Server::start()];
    let comparison = json(&[
        &one.address,
        "--pid",
        &one.pid(),
        "--vs",
        &two.address,
        "--vs-pid",
        &two.pid(),
        "-n",
        "2000",
        "--turns",
        "4",
        "--json",
    ]);
    assert_eq!(comparison["turns"].as_array().unwrap().len(), 4);
    for server in comparison["servers"].as_array().unwrap() {
        assert!((number(&server[1], "requests") - 2000.0).abs() < 0.5);
    }
    for ratio in ["throughput_ratio", "p50_ratio", "cpu_ratio"] {
        let [low, median, high] = ["low", "median", "high"].map(|part| number(&comparison[ratio], part));
        assert!(0.0 < low && low <= median && median <= high, "{ratio}");
    }
}

#[test]
fn what_cannot_be_done() {
    for (words, status, part) in [
        (&["127.0.0.1:1"][..], 1, "bench: 127.0.0.1:1: Connection refused"),
        (&["/no/such/socket"], 1, "bench: /no/such/socket: No such file"),
        (&["127.0.0.1:1", "--trace", "/no/such"], 1, "bench: --trace /no/such: No such file"),
        (&["127.0.0.1:1", "--depth", "0"], 2, "0 is not in 1..=10000"),
        (&["127.0.0.1:1", "--one-hit", "1.5"], 2, "must be 0.0 to 1.0"),
    ] {
        let Output { status: found, stderr, .. } = bench(words);
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(found.code(), Some(status), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{words:?}: {said}");
    }
}
