//! Random clients against one real worker with every cap lowered: their commands, in which pieces they are sent, which
//! clients stall, do not read, or close. Every reply is matched with its command. See `crates/server/src/harness.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    cattlegrid_server::harness::run(input);
});
