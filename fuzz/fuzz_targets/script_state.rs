//! Random bytes as states of objects of users' own types: an error, or a table that is written and read as the same.
//!
//! `cargo xtask fuzz script_state -max_total_time=60`

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cattlegrid_scripts::fuzzing::state(bytes);
});
