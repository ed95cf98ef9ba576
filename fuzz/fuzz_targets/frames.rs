//! Frames between a parent and its workers: any bytes, and frames with faults, in any parts.
//!
//! `cargo xtask fuzz frames -max_total_time=60`

#![no_main]

#[path = "../draw.rs"]
#[allow(dead_code, reason = "shared by several targets")]
mod draw;
#[path = "../../crates/worker/tests/it/stream/mod.rs"]
mod stream;

use cattlegrid_worker::cancels_in;
use cattlegrid_worker::frame::{Kind, take_frame};
use stream::Stream;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let stream = Stream::draw(bytes);
    stream.check();
    check_cancels(&stream);
});

/// A worker sees cancellations before their turn: the same ones however they arrive, and exactly those of the frames.
fn check_cancels(stream: &Stream) {
    let seen = cancels_in(stream.parts());
    assert_eq!(cancels_in(std::iter::once(&stream.bytes[..])), seen);
    let (mut rest, mut ids) = (&stream.bytes[..], Vec::new());
    while let Ok(Some((header, _, after))) = take_frame(rest, u32::MAX) {
        rest = after;
        if header.kind == Kind::Cancel {
            ids.push(header.id);
        }
    }
    assert!(seen.starts_with(&ids), "{seen:?} for {ids:?}");
}
