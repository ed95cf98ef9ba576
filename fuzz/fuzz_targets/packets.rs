//! Packets of the binary protocol as a conversation: no panic, and the same requests however the bytes are split.
//!
//! Six bytes make a packet whose lengths are mostly those that its command should have; the first byte of the input says
//! whether the bytes are taken as they are instead.
//!
//! `cargo xtask fuzz packets -max_total_time=60`

#![no_main]

#[path = "../../crates/protocol/tests/it/packet_stream.rs"]
mod packet_stream;

use cattlegrid_protocol::Limits;
use packet_stream::{check, extras_of, packet};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((pick, mut rest)) = input.split_first() else { return };
    let limits = Limits { max_item_bytes: 110, ..Limits::default() };
    if pick & 1 == 0 {
        check(rest, &limits);
        return;
    }
    let mut stream = Vec::new();
    while let Some(([opcode, cas, extras, key, value, odd], more)) = rest.split_first_chunk() {
        let extras = if extras & 0xf8 == 0xf8 { usize::from(*extras & 31) } else { extras_of(*opcode) };
        let lengths = [extras, usize::from(*key), usize::from(*value)];
        let mut taken = more;
        let mut take = |len: usize| {
            let (some, left) = taken.split_at(len.min(taken.len()));
            taken = left;
            let mut bytes = some.to_vec();
            bytes.resize(len, *odd);
            bytes
        };
        let [extras, key, value] = lengths.map(&mut take);
        let begin = stream.len();
        stream.extend(packet(*opcode, u64::from(*cas & 3), &extras, &key, &value));
        if *odd >= 0xf0 {
            // One byte of the header is another one.
            stream[begin + usize::from(*odd & 15)] ^= *cas;
        }
        rest = taken;
    }
    check(&stream, &limits);
});
