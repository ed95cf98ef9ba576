use std::fmt::Write as _;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::hot::KeySketches;
use super::super::model::ServerUpdate;
use super::super::reply::{StatsReply, read_reply};
use super::super::ui::PressedKey;
use super::*;

const PAINT: ScreenStyle = ScreenStyle { hand: NumberStyle { exact: false, ascii: true }, colours: false };

fn take(model: &mut Model, ask: StatsRequest, at_ms: u64, text: &str) {
    let text = if text.starts_with("VALUE") || text.contains("ERROR") {
        text.to_owned()
    } else {
        text.to_owned() + "END\r\n"
    };
    let reply = read_reply(&mut text.as_bytes(), ask).unwrap().0;
    model.take(ServerUpdate::Reply { ask, at_ms, reply, own_gets: 0 });
}

fn lines(lines: &[(&str, u64)]) -> String {
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        let _infallible = write!(text, "STAT {name} {value}\r\n");
        text
    })
}

/// The model of a server with rules, two seconds after the first reply.
fn cattlegrid() -> Model {
    let mut model = Model::new("127.0.0.1:11211");
    for (at_ms, times) in [(1000, 1), (3000, 2)] {
        let stats = lines(&[
            ("pid", 7),
            ("uptime", 11_520 + times),
            ("cmd_get", 1000 * times),
            ("get_hits", 900 * times),
            ("get_misses", 100 * times),
            ("cmd_set", 60 * times),
            ("delete_hits", 3),
            ("delete_misses", 4),
            ("curr_connections", 52),
            ("total_connections", 60),
            ("limit_maxbytes", 64 << 20),
            ("bytes", 1 << 20),
            ("bytes_read", 100_000 * times),
            ("evictions", 0),
        ]);
        take(&mut model, StatsRequest::Stats, at_ms, &format!("STAT version 1.6.45\r\n{stats}"));
        let own = lines(&[
            ("memory_used", 8 << 20),
            ("memory_for_rules", 8 << 20),
            ("slow_noted", 1),
            ("held", 12),
            ("leases", 3),
        ]);
        take(&mut model, StatsRequest::Cattlegrid, at_ms, &format!("STAT version 0.1.0\r\n{own}"));
        let mut rules = String::new();
        for (rule, pattern) in [(1, "page:{id}"), (2, "user:{id}"), (3, "never:{x}")] {
            let of = |name: &str, value: u64| format!("STAT {rule}:{name} {value}\r\n");
            let gets = if rule == 3 { 0 } else { 100 * rule * times };
            let _infallible = write!(
                rules,
                "STAT {rule}:match {pattern}\r\nSTAT {rule}:matched {}\r\n",
                u8::from(rule < 3)
            );
            for (name, value) in [
                ("gets", gets),
                ("hits", gets / 2),
                ("leases", 10 * times),
                ("computes_saved", 40 * times),
                ("lease_ms", 3000),
            ] {
                rules += &of(name, value);
            }
        }
        rules += &lines(&[
            ("total:leases", 20 * times),
            ("total:leases_early", times),
            ("total:computes_saved", 80 * times),
            ("total:fills_dropped", 5),
        ]);
        take(&mut model, StatsRequest::Rules, at_ms, &rules);
        take(&mut model, StatsRequest::Tags, at_ms, &lines(&[("hard_bumps", 6), ("soft_bumps", 0)]));
        take(
            &mut model,
            StatsRequest::Loaders,
            at_ms,
            &lines(&[
                ("pages:workers", 4),
                ("pages:busy", 1),
                ("pages:queued", 9),
                ("pages:run_p99_us", 131_072),
                ("pages:jobs", 10),
            ]),
        );
        model.take(ServerUpdate::Done { took_ms: 2 });
    }
    model
}

fn memcached() -> Model {
    let mut model = Model::new("cache1:11211");
    take(
        &mut model,
        StatsRequest::Stats,
        0,
        &format!(
            "STAT version 1.6.18\r\n{}",
            lines(&[
                ("pid", 1),
                ("uptime", 5),
                ("cmd_get", 3),
                ("get_hits", 1),
                ("get_misses", 2),
                ("bytes", 61),
                ("limit_maxbytes", 67_108_864)
            ])
        ),
    );
    for ask in [
        StatsRequest::Cattlegrid,
        StatsRequest::Rules,
        StatsRequest::Tags,
        StatsRequest::Loaders,
        StatsRequest::Follow,
    ] {
        take(&mut model, ask, 0, "ERROR\r\n");
    }
    take(&mut model, StatsRequest::Slabs, 0, &lines(&[("1:chunk_size", 96), ("1:used_chunks", 1)]));
    take(&mut model, StatsRequest::Items, 0, &lines(&[("items:1:evicted", 5), ("items:1:age", 61)]));
    model.take(ServerUpdate::Done { took_ms: 2 });
    model
}

fn screen(model: &Model, ui: &mut Ui, width: u16, height: u16, paint: ScreenStyle) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, model, ui, paint, 4000)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect()
}

fn at(model: &Model, view: View, width: u16, height: u16) -> Vec<String> {
    screen(model, &mut Ui::new(view, 1000), width, height, PAINT)
}

/// The words of the first line that begins with this.
fn words<'l>(lines: &'l [String], begin: &str) -> Vec<&'l str> {
    let found = lines.iter().find_map(|line| line.find(begin).map(|at| &line[at + begin.len()..]));
    found.unwrap_or_else(|| panic!("{begin:?}: {lines:#?}")).split_whitespace().collect()
}

#[test]
fn the_main_view_at_80_by_24() {
    let lines = at(&cattlegrid(), View::Main, 80, 24);
    let expected = "\
cattlegrid top  127.0.0.1:11211  Cattlegrid 0.1.0  up 3 h 12 min       every 1 s
1 main 2 rules 3 loaders 4 objects 5 keys 6 slow 7 memory 8 fleet 9 times 0 all
hit ratio         90.0 %  90.0 % since start     %
requests           530/s                         #
saved               40/s  160 since start        #
memory            25.0 %  16.0 MiB of 64.0 MiB  ########........................

requests               per s      total  computations           per s      total
gets                     500       2000  made                      10         42
  hits                   450       1800  saved                     40        160
  misses                  50        200  held now                             12
stores                    30        120  computing now                         3
deletes                    0          7  fills dropped              0          5

connections            per s      total  tags                   per s      total
open                                 52  hard bumps                 0          6
accepted                   0         60  soft bumps                 0          0
received            48.8 KiB  195.3 KiB  false stale                      0.00 %
";
    assert_eq!(lines[..18], expected.lines().collect::<Vec<_>>()[..18], "{lines:#?}");
    assert_eq!(lines[23], "? help  q quit  p pause  +/- interval");
}

#[test]
fn a_large_screen_has_every_section() {
    let lines = at(&cattlegrid(), View::Main, 200, 50);
    for title in
        ["requests", "computations", "connections", "tags", "memory", "loaders", "drops by cause", "other"]
    {
        assert!(lines.iter().any(|line| line.contains(&format!("{title} "))), "{title}: {lines:#?}");
    }
    assert_eq!(words(&lines, "queued")[0], "9");
    assert_eq!(words(&lines, "user:{id}")[..2], ["50.0", "100"]);
    // The bar of the memory is as wide as the screen.
    assert!(lines[5].chars().count() > 190, "{lines:#?}");
}

#[test]
fn a_terminal_that_is_too_small_is_told_so() {
    let lines = at(&cattlegrid(), View::Main, 40, 10);
    assert_eq!(lines[..2], ["The terminal has 40x10,", "top needs 60x12. q: quit"]);
    for (width, height) in [(1, 1), (60, 12), (61, 13), (300, 12), (60, 100)] {
        for view in View::ALL {
            at(&cattlegrid(), view, width, height);
        }
    }
}

#[test]
fn rules_are_sorted_and_their_columns_fit() {
    let (model, mut ui) = (cattlegrid(), Ui::new(View::Rules, 1000));
    let lines = screen(&model, &mut ui, 80, 24, PAINT);
    assert_eq!(lines[2], "rules: 3, of which 2 have matched; per second, over 2 s");
    assert_eq!(
        lines[3].split_whitespace().collect::<Vec<_>>()[..7],
        ["#", "match", "hit", "%", "getsv", "made", "saved"]
    );
    assert_eq!(
        lines[4].split_whitespace().collect::<Vec<_>>()[..6],
        ["2", "user:{id}", "50.0", "100", "5.0", "20"]
    );
    ui.press(PressedKey::Char('t'));
    let lines = screen(&model, &mut ui, 80, 24, PAINT);
    assert_eq!(
        lines[4].split_whitespace().collect::<Vec<_>>()[..6],
        ["2", "user:{id}", "50.0", "400", "20", "80"]
    );
    for _ in 0..8 {
        ui.press(PressedKey::Char('s'));
    }
    ui.press(PressedKey::Char('r'));
    let lines = screen(&model, &mut ui, 80, 24, PAINT);
    assert!(lines[3].trim_start().starts_with("#^") && lines[4].contains("page:{id}"), "{lines:#?}");
    for key in ['/', 'n', 'e', 'v', 'e', 'r'] {
        ui.press(PressedKey::Char(key));
    }
    let lines = screen(&model, &mut ui, 80, 24, PAINT);
    assert!(
        lines[4].contains("never:{x}") && lines[5].is_empty() && lines[23] == "show rows with: never_",
        "{lines:#?}"
    );
    ui.press(PressedKey::Esc);
    screen(&model, &mut ui, 80, 24, PAINT);
    ui.press(PressedKey::Down);
    ui.press(PressedKey::Enter);
    let lines = screen(&model, &mut ui, 80, 24, PAINT);
    assert_eq!(lines[2], "rule 1: page:{id} (Esc: back)");
    assert_eq!(words(&lines, "computes_saved"), ["20", "80"]);
    assert!(at(&model, View::Rules, 200, 50)[3].contains("negative"));
}

#[test]
fn a_thousand_rules_scroll_under_their_heads() {
    let mut model = Model::new("x");
    let mut rules = String::new();
    for rule in 1..=1000 {
        let _infallible = write!(rules, "STAT {rule}:match r{rule}:{{id}}\r\nSTAT {rule}:gets {rule}\r\n");
    }
    take(&mut model, StatsRequest::Rules, 0, &rules);
    model.take(ServerUpdate::Done { took_ms: 2 });
    let mut ui = Ui::new(View::Rules, 1000);
    ui.press(PressedKey::Char('t'));
    let lines = screen(&model, &mut ui, 80, 24, PAINT);
    assert!(lines[4].contains("r1000:{id}"), "{lines:#?}");
    ui.press(PressedKey::End);
    let lines = screen(&model, &mut ui, 80, 24, PAINT);
    assert!(lines[3].contains("match") && lines[22].contains("r1:{id}"), "{lines:#?}");
    assert!(lines[2].contains("(from line 982)"), "{lines:#?}");
}

#[test]
fn a_lost_server_has_a_banner_and_its_last_figures_faint() {
    let mut model = cattlegrid();
    model.take(ServerUpdate::Lost {
        at_ms: 3000,
        unix_seconds: 1_795_936_228,
        why: "connection refused".to_owned(),
        again_ms: 11_000,
    });
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, &model, &mut Ui::new(View::Main, 1000), PAINT, 13_000)).unwrap();
    let buffer = terminal.backend().buffer();
    let row: String = (0..80).map(|x| buffer[(x, 2)].symbol()).collect();
    assert_eq!(row.trim(), "no answer since 07:10:28 UTC (10 s): connection refused; again in 1 s");
    assert!(buffer[(0, 9)].modifier.contains(Modifier::DIM));
    let colours = ScreenStyle { colours: true, ..PAINT };
    terminal.draw(|frame| draw(frame, &model, &mut Ui::new(View::Main, 1000), colours, 13_000)).unwrap();
    let buffer = terminal.backend().buffer();
    assert_eq!((buffer[(0, 2)].bg, buffer[(0, 9)].fg), (Color::Red, Color::DarkGray));
}

#[test]
fn a_late_answer_and_a_new_start_are_said() {
    let mut model = cattlegrid();
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    let mut banner = |model: &Model, now_ms| {
        terminal.draw(|frame| draw(frame, model, &mut Ui::new(View::Main, 1000), PAINT, now_ms)).unwrap();
        let buffer = terminal.backend().buffer();
        (0..80).map(|x| buffer[(x, 2)].symbol()).collect::<String>().trim().to_owned()
    };
    assert_eq!(banner(&model, 8000), "no answer for 5 s");
    take(&mut model, StatsRequest::Stats, 8000, &lines(&[("pid", 8), ("uptime", 1), ("cmd_get", 5)]));
    assert_eq!(banner(&model, 8000), "the server has started: rates begin anew");
    take(&mut model, StatsRequest::Stats, 9000, &lines(&[("pid", 8), ("uptime", 2), ("cmd_get", 5)]));
    assert!(banner(&model, 9000).starts_with("hit ratio"));
}

#[test]
fn without_colours_there_are_none_and_with_ascii_nothing_else() {
    for view in View::ALL {
        let mut model = cattlegrid();
        model.take(ServerUpdate::Unwatched("not allowed".to_owned()));
        let mut terminal = Terminal::new(TestBackend::new(200, 50)).unwrap();
        terminal.draw(|frame| draw(frame, &model, &mut Ui::new(view, 1000), PAINT, 0)).unwrap();
        let buffer = terminal.backend().buffer();
        for cell in buffer.content() {
            assert!(cell.symbol().is_ascii(), "{view:?}: {:?}", cell.symbol());
            assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
        }
    }
}

#[test]
fn memcached_shows_what_it_has() {
    let model = memcached();
    let lines = at(&model, View::Main, 80, 24);
    assert_eq!(lines[0], "cattlegrid top  cache1:11211  memcached 1.6.18  up 5 s                 every 1 s");
    assert_eq!(words(&lines, "gets")[..2], ["-", "3"]);
    assert!(!lines.iter().any(|line| line.contains("computations") || line.contains("tags")), "{lines:#?}");
    assert!(at(&model, View::Rules, 80, 24).join("\n").contains("this server has none"));
    let lines = at(&model, View::Memory, 80, 40);
    assert!(
        lines.iter().any(|line| line
            .split_whitespace()
            .eq(["1", "96", "B", "-", "1", "-", "-", "1", "min", "1", "s", "-"])),
        "{lines:#?}"
    );
}

#[test]
fn a_user_without_rights_is_told_what_is_not_shown() {
    let mut model = cattlegrid();
    for ask in [StatsRequest::Cattlegrid, StatsRequest::Rules] {
        take(&mut model, ask, 4000, "CLIENT_ERROR not allowed\r\n");
    }
    let lines = at(&model, View::Main, 80, 24);
    assert!(lines[2].contains("this user may see totals only"), "{lines:#?}");
    assert_eq!(words(&lines, "gets")[1], "2000");
    assert!(at(&model, View::Rules, 80, 24).join("\n").contains("stats rules: not allowed"));
}

#[test]
fn slow_computations_leases_keys_and_times() {
    let mut model = cattlegrid();
    let value = r#"{"slow":[{"kind":"computation","shape":"page:{id}","ms":2412.0,"ago_ms":9120}]}"#;
    model.take(ServerUpdate::Reply {
        ask: StatsRequest::Slow,
        at_ms: 0,
        reply: StatsReply::Value(value.into()),
        own_gets: 0,
    });
    take(
        &mut model,
        StatsRequest::Leases,
        0,
        "STAT page%3A2 token=2 kind=absent holder=connection 1 age_ms=30 left_ms=3000 waiters=7 computers=1\r\n",
    );
    let lines = at(&model, View::Slow, 80, 24);
    assert_eq!(words(&lines, "page:{id}"), ["2412", "ms", "9", "s", "ago", "computation"]);
    assert_eq!(words(&lines, "page:2"), ["7", "30", "ms", "3000", "ms", "absent", "connection", "1"]);
    let mut counts = KeySketches::new();
    counts.note("type=item_get key=shop%3A2 status=found size=1024");
    model.take(ServerUpdate::Hot(counts.end(1.0)));
    let lines = at(&model, View::Keys, 80, 24);
    assert_eq!(words(&lines, "shop:2")[..5], ["1.0", "1.0", "0.0", "0", "1.0"]);
    take(&mut model, StatsRequest::Latency, 0, &lines_of_latency());
    let lines = at(&model, View::Times, 80, 24);
    assert_eq!(
        words(&lines, "get"),
        ["100", "20", "us", "16", "us", "32", "us", "64", "us", "64", "us", "64", "us"]
    );
}

fn lines_of_latency() -> String {
    lines(&[
        ("get:samples_to_16us", 80),
        ("get:samples_to_32us", 10),
        ("get:samples_to_64us", 10),
        ("get:samples_us", 2000),
    ])
}

#[test]
fn what_is_printed_has_whole_numbers_of_all_views() {
    let mut model = cattlegrid();
    take(
        &mut model,
        StatsRequest::Stats,
        9000,
        &lines(&[("pid", 7), ("uptime", 11_600), ("cmd_get", 123_456_789_012), ("limit_maxbytes", 64 << 20)]),
    );
    let text = super::super::pages::printed(&model, None);
    assert!(text.starts_with("cattlegrid top  127.0.0.1:11211  Cattlegrid 0.1.0  up 3 h 13 min\n"), "{text}");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(words(&lines, "gets").last(), Some(&"123456789012"));
    assert_eq!(words(&lines, "limit (-m)")[0], "67108864");
    assert!(
        text.contains("rules: 3") && text.contains("no log is followed") | text.contains("not asked yet"),
        "{text}"
    );
    let one = super::super::pages::printed(&model, Some(View::Rules));
    assert!(one.contains("user:{id}") && !one.contains("limit (-m)"), "{one}");
    assert!(text.is_ascii() && !text.contains('\u{1b}'));
}
