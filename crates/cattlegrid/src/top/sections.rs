//! The main view: sections of figures, the most important first, and the lines over them.

use std::fmt::Write as _;

use super::figures::{NumberStyle, bar, rate, rate_of_bytes, share, size, spark};
use super::model::Model;
use super::reply::StatsRequest;
use super::table::{Cell, Column, LineStyle, Table, TableLine, cut, number, text};

/// Computations that clients or loaders were given.
pub(super) const MADE: [&str; 3] = ["leases", "leases_stale", "leases_early"];
pub(super) const PROMOTED: [&str; 5] =
    ["promoted_close", "promoted_deadline", "promoted_invalidated", "promoted_gave_up", "promoted_slot"];
pub(super) const BUSY: [&str; 9] = [
    "busy_waiters",
    "busy_all_waiters",
    "busy_prediction",
    "busy_no_hold",
    "busy_queue",
    "busy_failed",
    "busy_leases",
    "busy_computers",
    "busy_slots",
];
const COLUMNS: [Column; 3] = [text(""), number("per s"), number("total")];

/// A section that is being written.
struct Section<'m> {
    model: &'m Model,
    hand: NumberStyle,
    table: Table,
}

impl<'m> Section<'m> {
    fn new(model: &'m Model, hand: NumberStyle, title: &'static str) -> Self {
        let mut columns = COLUMNS;
        columns[0].name = title;
        Self { model, hand, table: Table::new("", &columns) }
    }

    /// A counter, or the sum of several. Left out if the server has none of them.
    fn counter(&mut self, name: &str, ask: StatsRequest, label: &str, names: &[&str]) {
        let Some(sum) = self.model.sum(ask, label, names) else { return };
        let total = match names {
            [one] => self.hand.count(self.model.text(ask, label, one)),
            _ => self.hand.number(sum),
        };
        let rates = self.model.rates(ask, label, names);
        self.row(name, rate(rates), total);
    }

    /// A gauge.
    fn now(&mut self, name: &str, ask: StatsRequest, label: &str, line: &str) {
        if let Some(value) = self.model.text(ask, label, line) {
            let value = self.hand.count(Some(value));
            self.row(name, String::new(), value);
        }
    }

    fn row(&mut self, name: &str, rate: String, total: String) {
        self.table.push(name, vec![Cell::text(name), Cell::number(rate, None), Cell::number(total, None)]);
    }
}

/// The sections that the server has something for.
pub(super) fn sections(model: &Model, hand: NumberStyle) -> Vec<Table> {
    let all = [
        requests(model, hand),
        protection(model, hand),
        connections(model, hand),
        tags(model, hand),
        memory(model, hand),
        loaders(model, hand),
        drops(model, hand),
        others(model, hand),
    ];
    all.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

fn requests(model: &Model, hand: NumberStyle) -> Table {
    let mut section = Section::new(model, hand, "requests");
    for (name, lines) in [
        ("gets", &["cmd_get"][..]),
        ("  hits", &["get_hits"]),
        ("  misses", &["get_misses"]),
        ("stores", &["cmd_set"]),
        ("deletes", &["delete_hits", "delete_misses"]),
        ("arithmetic", &["incr_hits", "incr_misses", "decr_hits", "decr_misses"]),
        ("touches", &["cmd_touch"]),
        ("cas stored", &["cas_hits"]),
        ("cas refused", &["cas_badval", "cas_misses"]),
        ("meta commands", &["cmd_meta"]),
        ("flushes", &["cmd_flush"]),
    ] {
        section.counter(name, StatsRequest::Stats, "", lines);
        // The screen has it above.
        if let (true, "  misses", (_, Some(ratio))) = (hand.exact, name, model.hit_ratios()) {
            section.row("  hit ratio", String::new(), format!("{:.1} %", ratio * 100.0));
        }
    }
    section.table
}

fn protection(model: &Model, hand: NumberStyle) -> Table {
    let mut section = Section::new(model, hand, "computations");
    for (name, lines) in [("made", &MADE[..]), ("saved", &["computes_saved"])] {
        section.counter(name, StatsRequest::Rules, "total", lines);
    }
    section.now("held now", StatsRequest::Cattlegrid, "", "held");
    section.now("computing now", StatsRequest::Cattlegrid, "", "leases");
    for (name, lines) in [
        ("held", &["held"][..]),
        ("promoted", &PROMOTED),
        ("stale served", &["stale_served"]),
        ("not held", &BUSY),
        ("fills stored", &["fills_stored"]),
        ("fills dropped", &["fills_dropped"]),
        ("failures", &["failures"]),
    ] {
        section.counter(name, StatsRequest::Rules, "total", lines);
    }
    section.table
}

fn connections(model: &Model, hand: NumberStyle) -> Table {
    let mut section = Section::new(model, hand, "connections");
    section.now("open", StatsRequest::Stats, "", "curr_connections");
    for (name, line) in [("accepted", "total_connections"), ("refused", "rejected_connections")] {
        section.counter(name, StatsRequest::Stats, "", &[line]);
    }
    for (name, line) in [("received", "bytes_read"), ("sent", "bytes_written")] {
        let total = model.text(StatsRequest::Stats, "", line);
        if total.is_some() {
            section.row(name, rate_of_bytes(model.rate(StatsRequest::Stats, "", line)), hand.bytes(total));
        }
    }
    let cpu = ["rusage_user", "rusage_system"];
    if let Some(seconds) = model.sum(StatsRequest::Stats, "", &cpu) {
        section.row("CPU", share(model.rates(StatsRequest::Stats, "", &cpu)), format!("{seconds:.1} s"));
    }
    section.table
}

fn tags(model: &Model, hand: NumberStyle) -> Table {
    let mut section = Section::new(model, hand, "tags");
    for (name, line) in
        [("hard bumps", "hard_bumps"), ("soft bumps", "soft_bumps"), ("gradual purges", "gradual_purges")]
    {
        section.counter(name, StatsRequest::Tags, "", &[line]);
    }
    if model.group(StatsRequest::Tags).is_some() {
        let false_stale = model.number(StatsRequest::Tags, "", "false_stale").unwrap_or(0.0);
        section.row("false stale", String::new(), format!("{:.2} %", false_stale * 100.0));
    }
    section.table
}

fn memory(model: &Model, hand: NumberStyle) -> Table {
    let mut section = Section::new(model, hand, "memory");
    for (name, ask, line) in [
        ("limit", StatsRequest::Stats, "limit_maxbytes"),
        ("used", StatsRequest::Cattlegrid, "memory_used"),
        ("item bytes", StatsRequest::Stats, "bytes"),
        ("index", StatsRequest::Stats, "hash_bytes"),
    ] {
        if let Some(bytes) = model.text(ask, "", line) {
            section.row(name, String::new(), hand.bytes(Some(bytes)));
        }
    }
    section.now("items", StatsRequest::Stats, "", "curr_items");
    for (name, line) in [
        ("stored", "total_items"),
        ("evicted", "evictions"),
        ("died", "reclaimed"),
        ("expired unread", "expired_unfetched"),
    ] {
        section.counter(name, StatsRequest::Stats, "", &[line]);
    }
    section.table
}

fn loaders(model: &Model, hand: NumberStyle) -> Table {
    let mut section = Section::new(model, hand, "loaders");
    let labels: Vec<&str> = model.labels(StatsRequest::Loaders).collect();
    if labels.is_empty() {
        return section.table;
    }
    let sum = |name: &str| {
        labels.iter().filter_map(|label| model.number(StatsRequest::Loaders, label, name)).sum::<f64>()
    };
    for (name, line) in
        [("workers", "workers"), ("busy", "busy"), ("queued", "queued"), ("running", "running")]
    {
        section.row(name, String::new(), hand.number(sum(line)));
    }
    for (name, line) in [
        ("jobs", "jobs"),
        ("values", "values"),
        ("errors", "errors"),
        ("timeouts", "timeouts"),
        ("lost", "lost"),
    ] {
        let rates = labels.iter().filter_map(|label| model.rate(StatsRequest::Loaders, label, line));
        let rates = rates.fold(None, |sum: Option<f64>, rate| Some(sum.unwrap_or(0.0) + rate));
        section.row(name, rate(rates), hand.number(sum(line)));
    }
    section.table
}

/// Drops and refusals, by cause.
pub(super) fn drops(model: &Model, hand: NumberStyle) -> Table {
    let mut section = Section::new(model, hand, "drops by cause");
    for (name, ask, label, line) in [
        ("evicted", StatsRequest::Stats, "", "evictions"),
        ("evicted unread", StatsRequest::Stats, "", "evicted_unfetched"),
        ("no memory", StatsRequest::Stats, "", "store_no_memory"),
        ("too large", StatsRequest::Stats, "", "store_too_large"),
        ("fills too old", StatsRequest::Rules, "total", "fills_dropped_old"),
        ("fills in doubt", StatsRequest::Rules, "total", "fills_dropped_ambiguous"),
        ("fills not known", StatsRequest::Rules, "total", "fills_dropped_unrecorded"),
        ("misses not noted", StatsRequest::Rules, "total", "misses_lost"),
        ("holds expired", StatsRequest::Rules, "total", "hold_expired"),
        ("uploads refused", StatsRequest::Cattlegrid, "", "uploads_refused"),
        ("replies dropped", StatsRequest::Cattlegrid, "", "unsent_displaced"),
        ("not allowed", StatsRequest::Cattlegrid, "", "not_allowed"),
        ("log lines", StatsRequest::Cattlegrid, "", "log_lines_dropped"),
        ("logins refused", StatsRequest::Stats, "", "auth_errors"),
    ] {
        section.counter(name, ask, label, &[line]);
    }
    section.table
}

fn others(model: &Model, hand: NumberStyle) -> Table {
    let mut section = Section::new(model, hand, "other");
    section.now("objects", StatsRequest::Objects, "", "objects");
    section.now("misses open", StatsRequest::Cattlegrid, "", "misses_outstanding");
    section.counter("slow noted", StatsRequest::Cattlegrid, "", &["slow_noted"]);
    section.counter("lock waits", StatsRequest::Cattlegrid, "", &["lock_waits"]);
    section.now("watchers", StatsRequest::Stats, "", "log_watchers");
    section.now("threads", StatsRequest::Stats, "", "threads");
    section.table
}

/// Hit ratio, requests and savings with their past, and how full the memory is.
pub(super) fn trends(model: &Model, width: usize, hand: NumberStyle) -> Vec<TableLine> {
    let (now, all) = model.hit_ratios();
    let mut lines = Vec::new();
    let mut add = |name: &str, now: String, all: String, drawn: String| {
        let text = format!("{name:<14}{now:>10}  {all:<20}  {drawn}");
        lines.push(TableLine::new(cut(text.trim_end(), width), LineStyle::Plain));
    };
    let room = width.saturating_sub(48);
    let since = format!("{} since start", share(all));
    add("hit ratio", share(now), since, spark(&model.hit_ratio.points(), room, Some(1.0), hand));
    let requests = format!("{}/s", rate(model.request_rate()));
    add("requests", requests, String::new(), spark(&model.requests.points(), room, None, hand));
    if let Some(total) = model.text(StatsRequest::Rules, "total", "computes_saved") {
        let saved = format!("{}/s", rate(model.rate(StatsRequest::Rules, "total", "computes_saved")));
        let total = format!("{} since start", hand.count(Some(total)));
        add("saved", saved, total, spark(&model.saved.points(), room, None, hand));
    }
    let limit = model.number(StatsRequest::Stats, "", "limit_maxbytes").filter(|limit| *limit > 0.0);
    let used = memory_used(model);
    if let Some((used, limit)) = used.zip(limit) {
        let of = format!("{} of {}", size(used), size(limit));
        add("memory", share(Some(used / limit)), of, bar(used / limit, room, hand));
    }
    lines
}

/// Bytes taken of `-m`.
pub(super) fn memory_used(model: &Model) -> Option<f64> {
    let own = model.number(StatsRequest::Cattlegrid, "", "memory_used");
    let rules = model.number(StatsRequest::Cattlegrid, "", "memory_for_rules").unwrap_or(0.0);
    own.map(|own| own + rules).or_else(|| model.number(StatsRequest::Stats, "", "bytes"))
}

/// Sections side by side in columns of [`SECTION`], as many as fit into `width` and `height`: those that do
/// not fit are left out, as are their last lines.
pub(super) fn side_by_side(
    tables: &[Table],
    width: usize,
    height: usize,
    hand: NumberStyle,
) -> Vec<TableLine> {
    let count = (width / (SECTION + 1)).max(1);
    let own = if count == 1 { width } else { (width - (count - 1) * 2) / count };
    let mut columns: Vec<Vec<TableLine>> = vec![Vec::new(); count];
    for table in tables {
        let lines = of_width(table, own, hand);
        let least = (0..count).min_by_key(|at| columns[*at].len()).unwrap_or(0);
        // The first column that has room for all of it, otherwise the emptiest one, for a part.
        let room =
            |at: &usize| columns[*at].len() + usize::from(!columns[*at].is_empty()) + lines.len() <= height;
        let at = (0..count).filter(room).min_by_key(|at| columns[*at].len()).unwrap_or(least);
        if height < columns[at].len() + 4 {
            continue;
        }
        if !columns[at].is_empty() && columns[at].len() + lines.len() < height {
            columns[at].push(TableLine::new("", LineStyle::Plain));
        }
        let left = height - columns[at].len();
        columns[at].extend(lines.into_iter().take(left));
    }
    let rows = columns.iter().map(Vec::len).max().unwrap_or(0);
    let joined = |row: usize| {
        let mut text = String::new();
        let mut heads = Vec::new();
        for (at, column) in columns.iter().enumerate() {
            let line = column.get(row);
            if line.is_some_and(|line| line.tone == LineStyle::Head) {
                heads.push((at * (own + 2), own));
            }
            let _infallible = write!(text, "{:<own$}  ", line.map_or("", |line| line.text.as_str()));
        }
        TableLine { heads, ..TableLine::new(text.trim_end(), LineStyle::Plain) }
    };
    (0..rows).map(joined).collect()
}

/// Columns of a section.
const SECTION: usize = 38;

/// A section as wide as its column, with its numbers at the same place in all of them.
fn of_width(table: &Table, width: usize, hand: NumberStyle) -> Vec<TableLine> {
    let mut wide = table.clone();
    let pad = width.saturating_sub(22);
    for row in &mut wide.rows {
        row.cells[0].text = format!("{:<pad$}", row.cells[0].text);
        row.cells[1].text = format!("{:>9}", row.cells[1].text);
        row.cells[2].text = format!("{:>9}", row.cells[2].text);
    }
    wide.lines(width, None, hand).0
}
