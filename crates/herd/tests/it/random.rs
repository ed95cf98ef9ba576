//! Random operations drawn from seeds: the operations of the fuzz target `herd`, for a second.

use crate::draw;
use crate::model;

#[test]
fn random_operations_keep_what_the_model_knows() {
    for seed in 0..600 {
        let len = [100, 1_000, 5_000][seed as usize % 3];
        let caught = std::panic::catch_unwind(|| model::run(&draw::seeded(seed, len)));
        assert!(caught.is_ok(), "seed {seed} of {len} bytes");
    }
}
