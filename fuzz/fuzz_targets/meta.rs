//! Meta commands: the first byte chooses the command, the rest is key, flags and data block.
//!
//! `cargo xtask fuzz meta -dict=fuzz/protocol.dict -max_total_time=60`

#![no_main]

#[path = "../../crates/protocol/tests/it/common.rs"]
#[expect(dead_code, reason = "shared with the parser's own tests")]
mod common;

use cattlegrid_protocol::Limits;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((pick, rest)) = input.split_first() else { return };
    let name = [&b"mg "[..], b"ms ", b"md ", b"ma ", b"me "][usize::from(pick & 7) % 5];
    let limits = Limits { extensions: pick & 8 != 0, ..common::LIMITS };
    let stream = [name, rest, b"\r\nmn\r\n"].concat();
    common::check(&stream, &limits);
});
