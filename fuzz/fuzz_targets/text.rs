//! Any bytes as a conversation: no panic, and the same replies however the bytes are split.
//!
//! `cargo xtask fuzz text -dict=fuzz/protocol.dict -max_total_time=60`

#![no_main]

#[path = "../../crates/protocol/tests/it/common.rs"]
#[expect(dead_code, reason = "shared with the parser's own tests")]
mod common;

libfuzzer_sys::fuzz_target!(|stream: &[u8]| {
    common::check(stream, &common::LIMITS);
});
