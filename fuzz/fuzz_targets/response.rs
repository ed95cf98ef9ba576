//! Replies as a client reads them: any bytes are elements or broken, whichever way they are split.
//!
//! `cargo xtask fuzz response -max_len=300 -max_total_time=60`

#![no_main]

#[path = "../../crates/protocol/tests/it/elements.rs"]
mod elements;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    elements::check_splits(input);
});
