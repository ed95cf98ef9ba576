//! Values of six kinds, for the soak and for the measurement of stalls.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, LogNormal};

/// Kinds of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mix {
    /// 0 to 64 bytes.
    Tiny,
    /// 100 bytes.
    Fixed,
    /// Log-normal around 2 kB, 200 bytes to 20 kB.
    Web,
    /// Log-normal around 30 kB, 4 to 300 kB: in the log and in pages of their own.
    Large,
    /// Nine of ten have 100 bytes, one has 500 kB.
    Bimodal,
    /// 1 to 8 MiB (half the memory at most), alive for 2 to 30 seconds.
    Huge,
}

impl Mix {
    /// All of them.
    pub(crate) const ALL: [Self; 6] =
        [Self::Tiny, Self::Fixed, Self::Web, Self::Large, Self::Bimodal, Self::Huge];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Fixed => "fixed",
            Self::Web => "web",
            Self::Large => "large",
            Self::Bimodal => "bimodal",
            Self::Huge => "huge",
        }
    }

    /// Bytes of the value of key `id`.
    #[expect(clippy::cast_sign_loss, reason = "clamped to what fits")]
    pub(crate) fn value_bytes(self, id: u64, memory_bytes: usize) -> usize {
        let mut rng = SmallRng::seed_from_u64(id);
        match self {
            Self::Tiny => rng.random_range(0..=64),
            Self::Fixed => 100,
            Self::Web => {
                let sizes = LogNormal::new(2000_f64.ln(), 1.0).expect("sigma is finite");
                sizes.sample(&mut rng).clamp(200.0, 20_000.0) as usize
            }
            Self::Large => {
                let sizes = LogNormal::new(30_000_f64.ln(), 1.0).expect("sigma is finite");
                sizes.sample(&mut rng).clamp(4_000.0, 300_000.0) as usize
            }
            Self::Bimodal => {
                if rng.random_range(0..10) == 0 {
                    500_000
                } else {
                    100
                }
            }
            Self::Huge => rng.random_range(1 << 20..=(8 << 20).min(memory_bytes / 2)),
        }
    }

    /// Approximate bytes of an item.
    pub(crate) fn item_bytes(self) -> usize {
        match self {
            Self::Tiny => 100,
            Self::Fixed => 180,
            Self::Web => 3_000,
            Self::Large => 45_000,
            Self::Bimodal => 51_000,
            Self::Huge => 4 << 20,
        }
    }

    /// Seconds that an item lives, 0: forever. Half of the items never expire, but all huge ones do.
    pub(crate) fn ttl(self, rng: &mut SmallRng) -> u32 {
        if self == Self::Huge {
            return rng.random_range(2..=30);
        }
        match rng.random_range(0..8) {
            0 | 1 => rng.random_range(1..=10),
            2 => rng.random_range(10..=600),
            3 => rng.random_range(3600..=1_000_000),
            _ => 0,
        }
    }
}
