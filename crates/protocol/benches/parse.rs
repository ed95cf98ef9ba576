//! Nanoseconds per parse, the best of several rounds: `cargo bench -p cattlegrid-protocol`.

#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a bench reads the clock and prints")]

use std::hint::black_box;
use std::time::Instant;

use cattlegrid_protocol::{Limits, Parsed, Request, parse, reply};

fn main() {
    let limits = Limits::default();
    let key = "0123456789abcdef0123456789abcdef";
    let value = "v".repeat(100);
    let cases = [
        ("get", format!("get {key}\r\n")),
        ("get of 10", format!("get{}\r\n", format!(" {key}").repeat(10))),
        ("mg v", format!("mg {key} v\r\n")),
        ("mg k v", format!("mg {key} k v\r\n")),
        ("mg c v N30 Oq1 t", format!("mg {key} c v N30 Oq1 t\r\n")),
        ("set 100 bytes", format!("set {key} 0 300 100\r\n{value}\r\n")),
        ("ms 100 bytes T300", format!("ms {key} 100 T300\r\n{value}\r\n")),
        ("delete", format!("delete {key}\r\n")),
        ("incr", format!("incr {key} 1\r\n")),
    ];
    for (name, input) in &cases {
        let ns = measure(|| match parse(black_box(input.as_bytes()), &limits) {
            Parsed::Complete { request, used } => {
                black_box(first_key(&request));
                used
            }
            _ => unreachable!("the cases are valid"),
        });
        println!("{name:20} {ns:6.1} ns");
    }
    let mut out = Vec::with_capacity(4096);
    let ns = measure(|| {
        out.clear();
        reply::value_header(
            &mut out,
            black_box(key.as_bytes()),
            0,
            black_box(100),
            Some(black_box(12_345_678)),
        );
        out.len()
    });
    println!("{:20} {ns:6.1} ns", "value_header");
}

fn first_key<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    match request {
        Request::Get(get) => get.keys.clone().next()?.ok(),
        Request::Store(store) => Some(store.key),
        Request::MetaGet(meta) | Request::MetaSet(meta, _) => Some(meta.key.sent),
        _ => None,
    }
}

fn measure(mut once: impl FnMut() -> usize) -> f64 {
    const TURNS: u32 = 200_000;
    let round = |_| {
        let start = Instant::now();
        for _ in 0..TURNS {
            black_box(once());
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(TURNS)
    };
    (0..20).map(round).fold(f64::INFINITY, f64::min)
}
