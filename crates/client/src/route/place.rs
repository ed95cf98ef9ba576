//! The search for a key's server: on a ring, or by the highest score.

use cattlegrid_ring::{Layout, Ring, Server};

/// How the server of a key is found.
#[derive(Debug)]
pub(super) enum Placement {
    /// There is one server.
    One,
    /// The points of a ring, in order.
    Ring { layout: Layout, hashes: Box<[u32]>, places: Box<[u16]> },
    /// Hashes of the servers' names.
    Rendezvous {
        seeds: Box<[u64]>,
        /// None: they are equal.
        weights: Option<Box<[f64]>>,
    },
}

impl Placement {
    pub(super) fn ring(ring: &Ring, layout: Layout) -> Self {
        let points = ring.points();
        Self::Ring {
            layout,
            hashes: points.iter().map(|point| point.hash).collect(),
            places: points.iter().map(|point| point.server).collect(),
        }
    }

    pub(super) fn rendezvous(servers: &[Server]) -> Self {
        let equal = servers.iter().all(|server| server.weight() == servers[0].weight());
        let weights = servers.iter().map(|server| f64::from(server.weight()));
        Self::Rendezvous {
            seeds: servers.iter().map(|server| fnv(server.point_name())).collect(),
            weights: (!equal).then(|| weights.collect()),
        }
    }

    /// The place of a key's server among those that are available.
    #[inline]
    pub(super) fn find(&self, key: &[u8], is_available: impl Fn(usize) -> bool) -> Option<usize> {
        match self {
            Self::One => is_available(0).then_some(0),
            Self::Ring { layout, hashes, places } => {
                let hash = layout.key_hash(key);
                let from = hashes.partition_point(|point| *point < hash);
                let (before, after) = places.split_at(from);
                after.iter().chain(before).map(|place| usize::from(*place)).find(|place| is_available(*place))
            }
            Self::Rendezvous { seeds, weights } => {
                let hash = fnv(key);
                let draw = |place: usize| mix(hash ^ seeds[place]) >> 12;
                let places = (0..seeds.len()).filter(|place| is_available(*place));
                match weights {
                    // The logarithm leaves the order of equal weights as it is.
                    None => highest(places.map(|place| (draw(place), place))),
                    Some(weights) => highest(places.map(|place| (score(draw(place), weights[place]), place))),
                }
            }
        }
    }
}

/// FNV-1a with 64 bits.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The step of `SplitMix64`.
pub(crate) const SPLIT_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The next number of `SplitMix64` after the state `x`.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(SPLIT_STEP);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The place with the highest score, the first of them.
fn highest<S: PartialOrd>(scores: impl Iterator<Item = (S, usize)>) -> Option<usize> {
    scores.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, place)| place)
}

/// The score of a server of this weight for a draw of 52 bits.
#[expect(clippy::cast_precision_loss, reason = "53 bits at most, with the half")]
fn score(draw: u64, weight: f64) -> f64 {
    const DRAWS: f64 = (1_u64 << 52) as f64;
    let u = (draw as f64 + 0.5) / DRAWS;
    weight / -u.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_text() {
        assert_eq!(fnv(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv(b"foobar"), 0x8594_4171_f739_67e8, "of the authors' list");
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf, "the first number of SplitMix64 with the seed 0");
    }

    #[test]
    fn scores_are_finite_and_in_order() {
        let last = (1 << 52) - 1;
        assert!(score(0, 1.0) > 0.0 && score(last, 65_535.0).is_finite());
        assert!(score(last - 1, 1.0) < score(last, 1.0));
    }
}
