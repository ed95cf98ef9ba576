//! How long before its expiry a value is refreshed.

use crate::policy::Early;

/// How many seconds before its expiry one reader is sent to refresh a value with a time to live of `ttl_s`
/// seconds, rounded up to whole seconds. [`Early::Share`]: that share of the time to live. [`Early::Auto`]:
/// 1.5 times the learned p90 (`p90_ms`, in milliseconds), jittered by up to 20 % by the key's hash, at most a
/// quarter of the time to live. 0: no early refresh, because nothing is learned or the time to live is too
/// short.
///
/// The jitter prevents that keys stored together become due together.
pub fn refresh_lead_s(early: Early, ttl_s: u32, p90_ms: Option<u32>, hash: u64) -> u32 {
    match early {
        Early::Off => 0,
        Early::Share(ppm) => {
            let lead = (u64::from(ttl_s) * u64::from(ppm)).div_ceil(1_000_000);
            // Below the time to live, or the value would be due when it is stored.
            u32::try_from(lead).ok().filter(|lead| *lead < ttl_s).unwrap_or(0)
        }
        Early::Auto => learned_lead_s(ttl_s, p90_ms, hash),
    }
}

fn learned_lead_s(ttl_s: u32, p90_ms: Option<u32>, hash: u64) -> u32 {
    let ttl = u64::from(ttl_s) * 1000;
    let Some(p90) = p90_ms.map(u64::from) else { return 0 };
    // 80 to 120 per cent.
    let percent = 80 + (hash.rotate_left(24) % 41);
    let lead = (p90 * 3 / 2 * percent / 100).max(1).min(ttl / 4);
    // Items have times in seconds: the lead is at least one second, or the refresh would begin with the
    // expiry.
    let lead = u32::try_from(lead.div_ceil(1000)).unwrap_or(u32::MAX);
    if u64::from(lead) * 4000 > ttl { 0 } else { lead }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_a_quarter_of_the_life() {
        for hash in (0..1000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let lead = refresh_lead_s(Early::Auto, 60, Some(2000), hash);
            assert!((2..=4).contains(&lead), "{lead}");
            assert_eq!(refresh_lead_s(Early::Auto, 40, Some(60_000), hash), 10);
            assert_eq!(refresh_lead_s(Early::Auto, 3, Some(10), hash), 0, "too short");
        }
        assert_eq!(refresh_lead_s(Early::Auto, 60, None, 1), 0, "nothing learned");
    }

    #[test]
    fn the_last_part_of_the_life() {
        let lead = |ppm, ttl_s| refresh_lead_s(Early::Share(ppm), ttl_s, None, 7);
        assert_eq!(
            [(100_000, 60), (100_000, 5), (250_000, 60), (900_000, 10)].map(|(ppm, ttl)| lead(ppm, ttl)),
            [6, 1, 15, 9]
        );
        assert_eq!(
            [(100_000, 1), (900_000, 2)].map(|(ppm, ttl)| lead(ppm, ttl)),
            [0, 0],
            "it would be due at once"
        );
        assert_eq!(lead(900_000, u32::MAX), 3_865_470_566);
        assert_eq!(refresh_lead_s(Early::Off, 60, Some(2000), 1), 0);
    }
}
