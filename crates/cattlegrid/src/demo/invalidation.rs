//! Scenes of invalidation: a user, a product, everything bit by bit.

use std::ops::Range;
use std::time::{Duration, Instant};

use cattlegrid_load::count;
use cattlegrid_server::time::Clock;

use super::plain::PlainClient;
use super::protection::promise;
use super::scenes::Stage;
use super::{Act, DemoError, Scene, SceneOutcome};

/// The shop.
pub(super) const SHOP: Act = Act {
    heads: &["the shop", "user 12543", "product 54929873", "others"],
    scenes: &[Scene { title: "a user and a product are invalidated", run: shop }],
};

/// A flush.
pub(super) const FLUSH: Act = Act {
    heads: &["get @flush:2", "at 0 s", "at 1 s", "at 2 s"],
    scenes: &[Scene { title: "everything is flushed, bit by bit", run: flush }],
};

/// Keys with facts about the user; the first key depends on the product as well.
const USER: &[&str] = &[
    "last-watched:12543:54929873",
    "last-watched:12543:1001",
    "last-watched:12543:1002",
    "user-basket:12543",
    "user-orders:12543",
    "user-hints:12543",
];
const PRODUCT: &[&str] = &[
    "last-watched:12543:54929873",
    "last-watched:777:54929873",
    "product-price:54929873",
    "product-reviews:54929873",
];
const OTHERS: &[&str] = &["user-basket:777", "product-price:1001", "last-watched:777:1001"];

fn shop(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let mut client = PlainClient::open(stage.ruled(), stage.meter())?;
    let all = || USER.iter().chain(&PRODUCT[1..]).chain(OTHERS);
    for key in all() {
        client.set(key, key, 0)?;
    }
    let mut rows = Vec::new();
    for (title, tag, left) in [
        ("all is stored", None, [6, 4, 3]),
        ("delete @tag:user:12543", Some("user:12543"), [0, 3, 3]),
        ("delete @tag:product:54929873", Some("product:54929873"), [0, 0, 3]),
    ] {
        if let Some(tag) = tag {
            client.expect(&format!("delete @tag:{tag}\r\n"), "DELETED")?;
        }
        let keys: Vec<String> = all().map(|key| (*key).to_owned()).collect();
        let found = client.get(&keys)?;
        let wrong = found.iter().find(|(key, value)| key != value);
        promise(wrong.is_none(), || format!("{wrong:?} is not what was stored"))?;
        let counted = [USER, PRODUCT, OTHERS]
            .map(|group| found.iter().filter(|(key, _)| group.contains(&key.as_str())).count());
        promise(counted == left, || format!("{title}: {counted:?} keys are left instead of {left:?}"))?;
        let of = [USER, PRODUCT, OTHERS].map(<[_]>::len);
        let cells = counted.iter().zip(of).map(|(left, of)| format!("{left} of {of}"));
        rows.push(std::iter::once(title.to_owned()).chain(cells).collect());
    }
    Ok(SceneOutcome { rows, note: None })
}

const FLUSHED: u16 = 1000;
const PERIOD: Duration = Duration::from_secs(2);
/// How far the share of 1,000 keys may be from what is expected: five standard deviations.
const DEVIATION: f64 = 0.08;

fn flush(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let mut client = PlainClient::open(stage.ruled(), stage.meter())?;
    let keys: Vec<String> = (0..FLUSHED).map(|number| format!("item:{number}")).collect();
    for key in &keys {
        client.set(key, key, 0)?;
    }
    let clock = Clock::new();
    let asked = clock.now();
    let found = client.get(&["@flush:2".to_owned()])?;
    promise(found.len() == 1, || "@flush:2 has no answer".to_owned())?;
    let begun = asked..clock.now();
    let mut cells = vec![format!("{} keys are served", count(FLUSHED.into()))];
    for step in 0..=2 {
        // The keys that must be gone at the end are asked for after that time.
        let at = begun.end + PERIOD / 2 * step + Duration::from_millis(if step == 2 { 50 } else { 0 });
        stage.pause(at.saturating_duration_since(clock.now()))?;
        let from = clock.now();
        let served = u16::try_from(client.get(&keys)?.len()).unwrap_or(u16::MAX);
        let share = f64::from(served) / f64::from(FLUSHED);
        let expected = expected(&begun, &(from..clock.now()));
        promise(expected.contains(&share), || {
            format!("{:.1} % are served {step} s after the start of a flush over 2 s", share * 100.0)
        })?;
        cells.push(format!("{:.1} %", share * 100.0));
    }
    Ok(SceneOutcome { rows: vec![cells], note: None })
}

/// Which share may still be served, the flush having begun and the get been answered within these times.
fn expected(begun: &Range<Instant>, asked: &Range<Instant>) -> std::ops::RangeInclusive<f64> {
    let left = |begun: Instant, asked: Instant| {
        (1.0 - asked.saturating_duration_since(begun).as_secs_f64() / PERIOD.as_secs_f64()).max(0.0)
    };
    let (least, most) = (left(begun.start, asked.end), left(begun.end, asked.start));
    let most = if most == 0.0 { 0.0 } else { most + DEVIATION };
    least - DEVIATION..=most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_may_be_served() {
        let start = Clock::new().now();
        let at = |ms| start + Duration::from_millis(ms);
        let share = expected(&(at(0)..at(0)), &(at(1000)..at(1000)));
        assert!(share.contains(&0.5) && !share.contains(&0.4) && !share.contains(&0.6));
        let share = expected(&(at(0)..at(10)), &(at(2050)..at(2060)));
        assert!(share.contains(&0.0) && !share.contains(&0.001), "nothing at the end");
        let share = expected(&(at(0)..at(0)), &(at(0)..at(1000)));
        assert!(share.contains(&0.5) && share.contains(&1.0), "a slow machine");
    }
}
