//! Streams of frames drawn from seeds: the code of the fuzz target `frames`, for a second.

use crate::draw;
use crate::stream;

#[test]
fn streams_are_read_the_same_however_they_are_split() {
    for seed in 0..4_000 {
        let len = [40, 200, 1_000][seed as usize % 3];
        stream::Stream::draw(&draw::seeded(seed, len)).check();
    }
}
