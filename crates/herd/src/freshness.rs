//! When a value is refreshed before it expires.

/// The second from which on one reader is sent to refresh a value that expires at `expiry`: one and a half times the
/// learned p90 before, jittered by up to a fifth by the key's hash, at most a quarter of its time to live
/// before. 0: not at all, because it lives too short for that or for ever.
///
/// All in seconds since the start but `p90_ms`. Keys stored together do not become due together.
pub fn refresh_at(stored: u32, expiry: u32, p90_ms: Option<u32>, hash: u64) -> u32 {
    let ttl = u64::from(expiry.saturating_sub(stored)) * 1000;
    let Some(p90) = p90_ms.map(u64::from) else { return 0 };
    // 80 to 120 per cent.
    let percent = 80 + (hash.rotate_left(24) % 41);
    let lead = (p90 * 3 / 2 * percent / 100).max(1).min(ttl / 4);
    // Items know seconds: a whole one at least, or the refresh would begin with the expiry.
    let lead = u32::try_from(lead.div_ceil(1000)).unwrap_or(u32::MAX);
    if u64::from(lead) * 4000 > ttl { 0 } else { expiry - lead }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn within_a_quarter_of_the_life() {
        for hash in (0..1000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let at = refresh_at(100, 160, Some(2000), hash);
            assert!((156..=158).contains(&at), "{at}");
            assert_eq!(refresh_at(100, 140, Some(60_000), hash), 130);
            assert_eq!(refresh_at(100, 103, Some(10), hash), 0, "too short");
        }
        assert_eq!(refresh_at(100, 160, None, 1), 0, "nothing learned");
    }
}
