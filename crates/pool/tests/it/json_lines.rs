//! Lines of JSON drawn from seeds: the code of the fuzz target `jsonl`, for a second.

use crate::{draw, lines};

#[test]
fn lines_are_read_the_same_however_they_are_split() {
    for seed in 0..4_000 {
        let len = [40, 100, 600][seed as usize % 3];
        lines::check(&draw::seeded(seed, len));
    }
}
