//! Random bytes as names, arguments and data of calls of objects: every request gets a reply.
//!
//! `cargo xtask fuzz object_names -max_total_time=60`

#![no_main]

#[path = "../draw.rs"]
#[allow(dead_code, reason = "shared by several targets")]
mod draw;
#[path = "../../crates/engine/tests/names/mod.rs"]
mod names;
#[path = "../../crates/engine/tests/world/mod.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    names::check(bytes);
});
