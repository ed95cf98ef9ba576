//! Lines of JSON drawn from seeds: the code of the fuzz target `jsonl`, for a second.

#[path = "../../../fuzz/draw.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod draw;
#[path = "../src/jsonl.rs"]
#[allow(dead_code, unreachable_pub, reason = "the pool's own module; of it only base64 is public")]
mod jsonl;
mod lines;
#[path = "../src/long_line.rs"]
#[allow(dead_code, reason = "the pool's own module, which is not public")]
mod long_line;

#[test]
fn lines_are_read_the_same_however_they_are_split() {
    for seed in 0..4_000 {
        let len = [40, 100, 600][seed as usize % 3];
        lines::check(&draw::seeded(seed, len));
    }
}
