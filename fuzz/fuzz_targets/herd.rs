//! Random operations of several connections on one shard's herd, compared with a model.
//!
//! `cargo xtask fuzz herd -max_total_time=60`

#![no_main]

#[path = "../draw.rs"]
#[allow(dead_code, reason = "shared by several targets")]
mod draw;
#[path = "../../crates/herd/tests/it/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| model::run(bytes));
