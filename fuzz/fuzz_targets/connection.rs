//! Random clients against one real worker with every cap lowered: what they send, in which pieces, who stalls, who does
//! not read, who goes. Every reply is matched with what was asked. See `crates/server/src/harness.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    cattlegrid_server::harness::run(input);
});
