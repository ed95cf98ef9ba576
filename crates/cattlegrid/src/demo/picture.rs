//! The picture of README.md: how many of the clients of a stampede have the page, over time, without the rule
//! and with it.

use cattlegrid_load::count;

use super::crowd::CrowdResult;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 340.0;
/// The corners of the area of the lines.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 736.0;
const TOP: f64 = 88.0;
const BOTTOM: f64 = 286.0;
/// Points of a line.
const POINTS: u32 = 200;

/// Light, and dark where the reader prefers it.
const STYLE: &str = "<style>
text { font: 14px sans-serif; fill: #24292f } .small { font-size: 12px; fill: #57606a } .ground { fill: #ffffff }
.grid { stroke: #d8dee4 } .without { stroke: #c43c1e } .with { stroke: #1e5aaa } text.without { fill: #c43c1e; stroke: none }
text.with { fill: #1e5aaa; stroke: none } path { fill: none; stroke-width: 2.5 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9da7b1 } .ground { fill: #0d1117 } .grid { stroke: #30363d }
.without { stroke: #ff8c69 } .with { stroke: #79b8ff } text.without { fill: #ff8c69 } text.with { fill: #79b8ff }
}
</style>";

/// The curve of a stampede.
pub(super) struct Curve {
    computed: u64,
    clients: u64,
    /// The seconds after which the share n / [`POINTS`] of the clients had the value.
    seconds: Vec<f64>,
}

impl Curve {
    pub(super) fn new(seen: &CrowdResult) -> Self {
        let at = |n: u32| seen.tally.latency(f64::from(n) / f64::from(POINTS)).as_secs_f64();
        Self {
            computed: seen.computed,
            clients: seen.computed + seen.hits,
            seconds: (0..=POINTS).map(at).collect(),
        }
    }

    fn last(&self) -> f64 {
        self.seconds.last().copied().unwrap_or(0.0)
    }

    /// The line, which rises at each moment at which clients had the value.
    fn path(&self, longest: f64) -> String {
        let mut path = vec![format!("M{LEFT} {BOTTOM}")];
        for (n, seconds) in self.seconds.iter().enumerate() {
            let x = LEFT + (RIGHT - LEFT) * seconds / longest;
            #[expect(clippy::cast_precision_loss, reason = "few points")]
            let y = BOTTOM - (BOTTOM - TOP) * n as f64 / f64::from(POINTS);
            path.push(format!("H{x:.1}V{y:.1}"));
        }
        path.push(format!("H{RIGHT}"));
        path.concat()
    }
}

/// The picture, as SVG.
pub(super) fn svg(without: &Curve, with: &Curve) -> String {
    // Whole half seconds.
    let longest = (without.last().max(with.last()) * 2.0 + 0.1).ceil() / 2.0;
    let clients = without.clients.max(with.clients);
    let mut text = vec![format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
         <title>{} clients ask for one missing page: {} and {} computations</title>\n{STYLE}\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\"/>\n\
         <text x=\"{LEFT}\" y=\"26\">{} clients ask for one missing page at once: clients that have it</text>\n",
        count(clients),
        count(without.computed),
        count(with.computed),
        count(clients),
    )];
    for (place, curve, class, name) in
        [(48, without, "without", "no rule"), (68, with, "with", "under a rule")]
    {
        text.push(format!(
            "<text class=\"{class}\" x=\"{LEFT}\" y=\"{place}\">{name}: {} computation{}, all have it after {:.2} s</text>\n",
            count(curve.computed),
            if curve.computed == 1 { "" } else { "s" },
            curve.last(),
        ));
    }
    for (number, share) in [(0, 0.0), (clients / 2, 0.5), (clients, 1.0)] {
        let y = BOTTOM - (BOTTOM - TOP) * share;
        text.push(format!(
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y}\" x2=\"{RIGHT}\" y2=\"{y}\"/>\
             <text class=\"small\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\n",
            LEFT - 8.0,
            y + 4.0,
            count(number),
        ));
    }
    let mut seconds = 0.0;
    while seconds <= longest {
        let x = LEFT + (RIGHT - LEFT) * seconds / longest;
        text.push(format!(
            "<text class=\"small\" x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{seconds} s</text>\n",
            BOTTOM + 20.0
        ));
        seconds += 0.5;
    }
    text.push(format!(
        "<text class=\"small\" x=\"{LEFT}\" y=\"{:.0}\">A computation takes 200 ms, and the backend makes 100 at a time. \
         Measured by cattlegrid demo.</text>\n",
        BOTTOM + 42.0
    ));
    for (curve, class) in [(without, "without"), (with, "with")] {
        text.push(format!("<path class=\"{class}\" d=\"{}\"/>\n", curve.path(longest)));
    }
    text.push("</svg>\n".to_owned());
    text.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(computed: u64, last: f64) -> Curve {
        let seconds = (0..=POINTS).map(|n| last * f64::from(n) / f64::from(POINTS)).collect();
        Curve { computed, clients: 1000, seconds }
    }

    #[test]
    fn both_lines_end_at_the_top_and_within_the_picture() {
        let text = svg(&curve(1000, 2.01), &curve(1, 0.25));
        for part in [
            "no rule: 1,000 computations, all have it after 2.01 s",
            "under a rule: 1 computation, all have it after 0.25 s",
            ">2.5 s<",
            "prefers-color-scheme: dark",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains(">3 s<"));
        let ends = format!("V{TOP:.1}H{RIGHT}\"/>");
        assert_eq!(text.matches(&ends).count(), 2, "{text}");
    }
}
