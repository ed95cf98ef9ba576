//! `cattlegrid bench` against servers it starts.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::path::Path;
use std::process::{Command, Output};

use cattlegrid_load::harness::{Server, Start};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cattlegrid");

fn start() -> Server {
    let words = ["serve", "-p", "-1", "-t", "1", "-m", "16"];
    Server::start(&Start::new(Path::new(PROGRAM), &words)).unwrap()
}

fn bench(words: &[&str]) -> Output {
    Command::new(PROGRAM).arg("bench").args(words).output().unwrap()
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
    let server = start();
    let (address, pid) = (server.address(), &*server.pid().to_string());
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
    // A slow machine has more seconds and fewer requests.
    assert!((0.9..20.0).contains(&number(&report, "seconds")));
    assert!(number(&report, "requests") > 10.0);
    assert!((number(&report, "hit_ratio") - 1.0).abs() < 1e-9, "all keys fit, and were set before");
    assert!(number(&report, "cpu_us_per_operation") > 0.0);
    assert!(number(&report, "p50_us") <= number(&report, "p999_us"));

    let Output { status, stdout, .. } = bench(&[address, "-n", "500", "-c", "3"]);
    let text = String::from_utf8(stdout).unwrap();
    assert!(status.success() && text.starts_with("requests      500 in "), "{text}");
}

#[test]
fn misses_traces_and_warmth() {
    let server = start();
    let address = server.address();
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
    let server = start();
    let words = ["-n", "2000", "-k", "10", "--ratio", "1:0", "--fill-on-miss", "--one-hit", "0.5", "-c", "2"];
    let report = json(&[&[server.address(), "--json"], &words[..]].concat());
    // 1000 and five standard deviations, and the ten others.
    assert!((888.0..=1122.0).contains(&number(&report, "sets")), "{report}");
}

#[test]
fn a_stampede_makes_all_compute() {
    let server = start();
    let words = ["--stampede", "20", "-c", "30", "-n", "90", "--pid", &server.pid().to_string(), "--json"];
    let report = json(&[&[server.address()], &words[..]].concat());
    assert_eq!((report["rounds"].as_u64(), report["connections"].as_u64()), (Some(3), Some(30)));
    // Who is late finds the value there; on a slow machine that may be many.
    let (computed, held) = (number(&report, "computations"), number(&report, "held"));
    assert!(computed >= 3.0 && (computed + held - 90.0).abs() < 0.5, "{report}");
    assert!(number(&report, "p50_us") > 0.0 && number(&report, "max_us") >= 20_000.0, "{report}");
    let Output { status, stdout, .. } = bench(&[server.address(), "--stampede", "0", "-c", "5", "-n", "5"]);
    let text = String::from_utf8(stdout).unwrap();
    assert!(status.success() && text.starts_with("stampedes     1 in "), "{text}");
}

#[test]
fn the_binary_protocol() {
    let [one, two] = [start(), start()];
    for more in [
        &["-k", "50", "--depth", "1"][..],
        &["-k", "50", "--depth", "32"],
        &["-k", "50", "--multiget", "32"],
        &["-k", "9", "--ratio", "1:1", "-d", "3", "--multiget", "3", "--value-size", "0:1,7:1,600000:1"],
        &["-k", "50", "--reconnect", "--ttl", "60", "--flags", "4294967295"],
        &["-k", "50", "--vs", two.address(), "--turns", "2"],
    ] {
        let words = [one.address(), "--binary", "-n", "600", "-c", "3", "--json"];
        let report = json(&[&words[..], more].concat());
        let report = if more.contains(&"--vs") { &report["servers"][1][1] } else { &report };
        assert!((number(report, "requests") - 600.0).abs() < 0.5, "{more:?}: {report}");
        assert!((number(report, "hit_ratio") - 1.0).abs() < 1e-9, "{more:?}: {report}");
    }
    let words =
        ["--binary", "-n", "2000", "-k", "100", "--ratio", "1:0", "--fill-on-miss", "-c", "1", "--json"];
    let missed = number(&json(&[&[one.address()], &words[..]].concat()), "sets");
    assert!((90.0..=100.0).contains(&missed), "{missed}");
    let report = json(&[one.address(), "--binary", "--stampede", "20", "-c", "30", "-n", "90", "--json"]);
    let (computed, held) = (number(&report, "computations"), number(&report, "held"));
    assert!(computed >= 3.0 && (computed + held - 90.0).abs() < 0.5, "{report}");
    // A server that would have answered lines.
    let words = ["serve", "-p", "-1", "-t", "1", "-m", "16", "-B", "ascii"];
    let text = Server::start(&Start::new(Path::new(PROGRAM), &words)).unwrap();
    let Output { status, stderr, .. } = bench(&[text.address(), "--binary", "-d", "32", "-n", "500"]);
    let said = String::from_utf8(stderr).unwrap();
    assert!(status.code() == Some(1) && said.contains("not speak the binary protocol"), "{said}");
}

#[test]
fn one_server_is_not_compared_with_itself() {
    let server = start();
    let port = server.address().rsplit(':').next().unwrap().to_owned();
    for other in [server.address().to_owned(), format!("localhost:{port}")] {
        let Output { status, stderr, .. } = bench(&[server.address(), "--vs", &other, "-n", "500"]);
        let said = String::from_utf8(stderr).unwrap();
        let expected = format!("--vs {other}: is the same server");
        assert!(status.code() == Some(2) && said.contains(&expected), "{status}: {said}");
    }
}

#[test]
fn two_servers_by_turns() {
    let [one, two] = [start(), start()];
    let comparison = json(&[
        one.address(),
        "--pid",
        &one.pid().to_string(),
        "--vs",
        two.address(),
        "--vs-pid",
        &two.pid().to_string(),
        "-n",
        "2000",
        "-k",
        "100",
        "--turns",
        "4",
        "--json",
    ]);
    assert_eq!(comparison["turns"].as_array().unwrap().len(), 4);
    for identity in comparison["identities"].as_array().unwrap() {
        assert_eq!(identity, concat!("cattlegrid ", env!("CARGO_PKG_VERSION")));
    }
    for server in comparison["servers"].as_array().unwrap() {
        assert!((number(&server[1], "requests") - 2000.0).abs() < 0.5);
    }
    for ratio in ["throughput_ratio", "p50_ratio", "cpu_ratio"] {
        let [low, median, high] = ["low", "median", "high"].map(|part| number(&comparison[ratio], part));
        assert!(0.0 < low && low <= median && median <= high, "{ratio}");
    }
}

#[test]
fn a_connection_for_each_request() {
    let server = start();
    let words = ["--reconnect", "-n", "600", "-c", "3", "-k", "50", "--ratio", "1:0", "--json"];
    let report = json(&[&[server.address()], &words[..]].concat());
    assert!((number(&report, "requests") - 600.0).abs() < 0.5 && number(&report, "handshakes").abs() < 0.5);
    let mut client = server.connect().unwrap();
    let opened = client.stats("").unwrap().into_iter().find(|(name, _)| name == "total_connections").unwrap();
    // The keys were set over such connections, too; the first three have been open before.
    assert!((650..=656).contains(&opened.1.parse::<u32>().unwrap()), "{opened:?}");
    // Values that come in many pieces, and end with the batch.
    let words =
        ["--reconnect", "-d", "3", "-n", "60", "-c", "2", "-k", "5", "--value-size", "600000", "--json"];
    let report = json(&[&[server.address()], &words[..]].concat());
    assert!((number(&report, "requests") - 60.0).abs() < 0.5, "{report}");
}

/// A certificate for 127.0.0.1 and its key in this directory, and the option that names them.
fn certificate(directory: &Path) -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let [chain, private] = ["cert.pem", "key.pem"].map(|name| directory.join(name));
    std::fs::write(&chain, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&private, key.serialize_pem()).unwrap();
    format!("ssl_chain_cert={},ssl_key={},ssl_session_cache", chain.display(), private.display())
}

#[test]
fn tls_and_its_handshakes() {
    let directory = tempfile::tempdir().unwrap();
    let option = certificate(directory.path());
    let words = ["serve", "-p", "-1", "-t", "1", "-m", "64", "-Z", "-o", &option];
    let server = Server::start(&Start::new(Path::new(PROGRAM), &words)).unwrap();
    let ca = directory.path().join("cert.pem");
    let run = |more: &[&str]| {
        let words = [server.address(), "--tls", "-n", "200", "-c", "4", "-k", "20", "--json"];
        json(&[&words, more].concat())
    };
    // Below, at and above a record, and many of them; both ways.
    let report = run(&["--ratio", "1:1", "-d", "2", "--value-size", "16383-16385"]);
    assert!((number(&report, "requests") - 200.0).abs() < 0.5, "{report}");
    let report =
        run(&["--ratio", "1:1", "-d", "3", "--value-size", "1:1,600000:1", "--tls-ca", ca.to_str().unwrap()]);
    assert!((number(&report, "requests") - 200.0).abs() < 0.5, "{report}");
    let report = run(&["--binary", "-d", "3", "--multiget", "3", "--value-size", "16383-16385"]);
    assert!((number(&report, "requests") - 200.0).abs() < 0.5, "{report}");
    let full = run(&["--ratio", "1:0", "--reconnect"]);
    assert!((number(&full, "handshakes") - 200.0).abs() < 0.5, "{full}");
    assert!(number(&full, "resumed_handshakes").abs() < 0.5, "{full}");
    let resumed = run(&["--ratio", "1:0", "--reconnect", "--resume"]);
    assert!(number(&resumed, "resumed_handshakes") >= 190.0, "{resumed}");

    // An authority that has not signed it, and a server that does not speak TLS.
    let (other, plain) = (tempfile::tempdir().unwrap(), start());
    certificate(other.path());
    let other = other.path().join("cert.pem");
    for (words, part) in [
        ([server.address(), "--tls-ca", other.to_str().unwrap()], "certificate"),
        ([plain.address(), "--tls-ca", ca.to_str().unwrap()], "bench: 127.0.0.1:"),
        ([plain.address(), "--tls-ca", "/no/such"], "bench: --tls-ca /no/such: "),
    ] {
        let Output { status, stderr, .. } = bench(&[&words[..], &["--tls", "-c", "1", "-k", "1"]].concat());
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{words:?}: {said}");
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
