//! Lines of JSON of workers without an SDK: any bytes, and lines from a grammar, in any parts.
//!
//! `cargo xtask fuzz jsonl -max_total_time=60`

#![no_main]

#[path = "../draw.rs"]
#[allow(dead_code, reason = "shared by several targets")]
mod draw;
#[path = "../../crates/pool/src/jsonl.rs"]
mod jsonl;
#[path = "../../crates/pool/tests/it/lines/mod.rs"]
mod lines;
#[path = "../../crates/pool/src/long_line.rs"]
mod long_line;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lines::check(bytes));
