//! How long before its expiry a value is refreshed.

/// How many seconds before its expiry one reader is sent to refresh a value with a time to live of `ttl_s` seconds: 1.5
/// times the learned p90 (`p90_ms`, in milliseconds), jittered by up to 20 % by the key's hash, rounded up to whole
/// seconds, at most a quarter of the time to live. 0: no early refresh, because nothing is learned or the time to live
/// is too short.
///
/// The jitter prevents that keys stored together become due together.
pub fn refresh_lead_s(ttl_s: u32, p90_ms: Option<u32>, hash: u64) -> u32 {
    let ttl = u64::from(ttl_s) * 1000;
    let Some(p90) = p90_ms.map(u64::from) else { return 0 };
    // 80 to 120 per cent.
    let percent = 80 + (hash.rotate_left(24) % 41);
    let lead = (p90 * 3 / 2 * percent / 100).max(1).min(ttl / 4);
    // Items have times in seconds: the lead is at least one second, or the refresh would begin with the expiry.
    let lead = u32::try_from(lead.div_ceil(1000)).unwrap_or(u32::MAX);
    if u64::from(lead) * 4000 > ttl { 0 } else { lead }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_a_quarter_of_the_life() {
        for hash in (0..1000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let lead = refresh_lead_s(60, Some(2000), hash);
            assert!((2..=4).contains(&lead), "{lead}");
            assert_eq!(refresh_lead_s(40, Some(60_000), hash), 10);
            assert_eq!(refresh_lead_s(3, Some(10), hash), 0, "too short");
        }
        assert_eq!(refresh_lead_s(60, None, 1), 0, "nothing learned");
    }
}
