//! The middle of some measurements and how far they lie apart.

use serde::Serialize;

/// Median and quartiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Half are below.
    pub median: f64,
    /// A quarter is below.
    pub low: f64,
    /// A quarter is above.
    pub high: f64,
}

impl Spread {
    /// The spread of these values; None if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |quarter: usize| {
            // Between two values where the place is no whole number.
            let (place, rest) = (last * quarter / 4, last * quarter % 4);
            let next = values[(place + 1).min(last)];
            values[place] + (next - values[place]) * [0.0, 0.25, 0.5, 0.75][rest]
        };
        Some(Self { median: at(2), low: at(1), high: at(3) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0]), Some(Spread { median: 3.0, low: 3.0, high: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 5.0, 3.0]), Some(Spread { median: 3.0, low: 2.0, high: 4.0 }));
        assert_eq!(Spread::of([1.0, 2.0]), Some(Spread { median: 1.5, low: 1.25, high: 1.75 }));
    }
}
