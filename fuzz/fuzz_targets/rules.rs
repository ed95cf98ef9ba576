//! Rule files from a grammar, and any text: refused with a reason, or accepted, printed and used.
//!
//! `cargo xtask fuzz rules -max_total_time=60`

#![no_main]

#[path = "../draw.rs"]
#[allow(dead_code, reason = "shared by several targets")]
mod draw;
#[path = "../../crates/config/tests/grammar/mod.rs"]
mod grammar;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    grammar::check(bytes);
});
