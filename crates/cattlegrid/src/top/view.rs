//! The screen: the model, drawn into a frame of any size.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::figures::{NumberStyle, millis, seconds, time_of_day};
use super::model::{LinkState, Model};
use super::pages::{CounterView, View, page};
use super::reply::StatsRequest;
use super::sections::{side_by_side, trends};
use super::table::{LineStyle, TableLine, cut};
use super::ui::Ui;
use cattlegrid_config::TOP_VIEWS;

/// A smaller terminal shows only a message that it is too small.
const WIDTH_MIN: u16 = 60;
const HEIGHT_MIN: u16 = 12;
/// A slower answer is shown as slow, in milliseconds.
const SLOW_MS: u64 = 250;
/// A later answer is shown as missing, in milliseconds.
const LATE_MS: u64 = 2500;
/// Most rows of a table below the main page.
const BELOW_MAX: usize = 12;

const HELP: &[&str] = &[
    "1 to 9, 0      a view; Tab, arrows left and right: the next one",
    "up, down       select a row; PgUp, PgDn, Home, End",
    "Enter          all lines of the selected rule; Esc: back",
    "s, r           sort by the next column; the other way round",
    "/              show rows with a text only; Esc: all again",
    "t              counters since the start, or per second",
    "p, space       pause: nothing is asked or changed until p again",
    "+, -           longer or shorter time between two looks (0.2 s to 60 s)",
    "Ctrl-L         draw anew",
    "q, Ctrl-C      quit",
    "",
    "Rates are of the time between two looks; - : not known, as in the first",
    "second, after a start of the server and after stats reset. View 5 watches",
    "requests for 1 s of 4 while it is open. Large groups are asked for less",
    "often. Keys are written as the server does: %1B for a byte that is not plain.",
];

/// The style of drawing on a terminal.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScreenStyle {
    pub(super) hand: NumberStyle,
    pub(super) colours: bool,
}

/// Draws the screen. `now_ms`: the time in milliseconds.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, ui: &mut Ui, paint: ScreenStyle, now_ms: u64) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let said = [
            format!("The terminal has {}x{},", area.width, area.height),
            format!("top needs {WIDTH_MIN}x{HEIGHT_MIN}. q: quit"),
        ];
        for (row, line) in said.iter().enumerate() {
            put(buffer, area, row as u16, 0, line, Style::new());
        }
        return;
    }
    let width = usize::from(area.width);
    head(buffer, area, model, ui, paint);
    let banner = banner(model, ui, now_ms);
    let mut top = 2;
    if let Some(said) = &banner {
        let style = if paint.colours { Style::new().fg(Color::White).bg(Color::Red) } else { Style::new() };
        let said = format!("{:<width$}", cut(said, width));
        put(
            buffer,
            area,
            top,
            0,
            &said,
            style.add_modifier(Modifier::BOLD | Modifier::REVERSED.intersection(reversed(paint))),
        );
        top += 1;
    }
    let body = Rect { y: top, height: area.height - top - 1, ..area };
    let is_old = matches!(model.link, LinkState::Lost { .. });
    if ui.help {
        for (row, line) in HELP.iter().enumerate().take(usize::from(body.height)) {
            put(buffer, body, row as u16, 2, line, Style::new());
        }
    } else {
        let lines = lines_of(model, ui, paint.hand, width, usize::from(body.height));
        for (row, line) in lines.iter().enumerate().take(usize::from(body.height)) {
            let is_selected = line.id.is_some() && line.id == ui.selected;
            let style = style_of(line.tone, is_selected, is_old, paint);
            let text = if is_selected || line.tone == LineStyle::Head {
                format!("{:<width$}", line.text)
            } else {
                line.text.clone()
            };
            put(buffer, body, row as u16, 0, &text, style);
            for (begin, length) in &line.heads {
                let part: String = text.chars().skip(*begin).take(*length).collect();
                let part = format!("{part:<length$}");
                put(
                    buffer,
                    body,
                    row as u16,
                    *begin as u16,
                    &part,
                    style_of(LineStyle::Head, false, is_old, paint),
                );
            }
        }
    }
    foot(buffer, area, ui, paint);
}

fn reversed(paint: ScreenStyle) -> Modifier {
    if paint.colours { Modifier::empty() } else { Modifier::REVERSED }
}

/// The server's name, address, version and age.
pub(super) fn title(model: &Model) -> String {
    let own = model.text(StatsRequest::Cattlegrid, "", "version");
    let version = match (own, model.text(StatsRequest::Stats, "", "version")) {
        (Some(own), _) => format!("  Cattlegrid {own}"),
        (None, Some(version)) if model.is_cattlegrid() => format!("  Cattlegrid (as memcached {version})"),
        (None, Some(version)) => format!("  memcached {version}"),
        (None, None) => String::new(),
    };
    let uptime = model.number(StatsRequest::Stats, "", "uptime");
    let uptime = uptime.map_or_else(String::new, |uptime| format!("  up {}", seconds(uptime as u64)));
    format!("cattlegrid top  {}{version}{uptime}", model.address)
}

fn head(buffer: &mut Buffer, area: Rect, model: &Model, ui: &Ui, paint: ScreenStyle) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let width = usize::from(area.width);
    let mut right = if ui.interval_ms.is_multiple_of(1000) {
        format!("every {}", seconds(ui.interval_ms / 1000))
    } else {
        format!("every {}", millis(ui.interval_ms as f64))
    };
    if model.took_ms > SLOW_MS {
        right = format!("answer took {}  {right}", millis(model.took_ms as f64));
    }
    if ui.paused {
        right = format!("PAUSED  {right}");
    }
    let left = cut(&title(model), width.saturating_sub(right.len() + 2));
    put(buffer, area, 0, 0, &left, bold);
    put(buffer, area, 0, (width - right.len().min(width)) as u16, &right, Style::new());
    let mut column = 0;
    for (at, name) in TOP_VIEWS.iter().enumerate() {
        let tab = format!("{} {name}", (at + 1) % 10);
        let style = if View::ALL[at] == ui.view {
            bold.add_modifier(Modifier::REVERSED)
        } else if paint.colours {
            Style::new().fg(Color::Cyan)
        } else {
            Style::new()
        };
        put(buffer, area, 1, column, &tab, style);
        column += tab.len() as u16 + 1;
    }
}

/// A warning line: the server has a problem, or the user may not see something.
fn banner(model: &Model, ui: &Ui, now_ms: u64) -> Option<String> {
    match &model.link {
        LinkState::Lost { at_ms, unix_seconds, why, again_at_ms } => {
            let since = now_ms.saturating_sub(*at_ms) / 1000;
            let again = again_at_ms.saturating_sub(now_ms).div_ceil(1000);
            let next = if again == 0 { "asking again".to_owned() } else { format!("again in {again} s") };
            Some(format!(
                " no answer since {} ({}): {why}; {next}",
                time_of_day(*unix_seconds),
                seconds(since)
            ))
        }
        LinkState::New => Some(" connecting ...".to_owned()),
        LinkState::Up if !ui.paused && model.age_ms(now_ms) > ui.interval_ms + LATE_MS => {
            Some(format!(" no answer for {}", seconds(model.age_ms(now_ms) / 1000)))
        }
        LinkState::Up if model.span_ms(StatsRequest::Stats).is_none() && model.begun_anew.is_some() => {
            model.begun_anew.map(|what| format!(" {what}: rates begin anew"))
        }
        LinkState::Up if ui.view == View::Main && model.refused(StatsRequest::Cattlegrid).is_some() => {
            Some(" this user may see totals only; more needs the right admin".to_owned())
        }
        LinkState::Up => None,
    }
}

fn foot(buffer: &mut Buffer, area: Rect, ui: &Ui, paint: ScreenStyle) {
    let row = area.height - 1;
    if ui.editing {
        put(
            buffer,
            area,
            row,
            0,
            &format!("show rows with: {}_", ui.filter),
            Style::new().add_modifier(Modifier::BOLD),
        );
        return;
    }
    let mut text = String::from("? help  q quit  p pause");
    if ui.view == View::Main {
        text += "  +/- interval";
    } else {
        text += "  s sort  r reverse  / filter";
        text += if ui.totals { "  t per second" } else { "  t totals" };
    }
    if ui.view == View::Rules && ui.rule.is_none() {
        text += "  Enter lines";
    }
    if !ui.filter.is_empty() {
        text = format!("only rows with {:?} (Esc: all)  {text}", ui.filter);
    }
    let style = if paint.colours { Style::new().fg(Color::DarkGray) } else { Style::new() };
    put(buffer, area, row, 0, &text, style);
}

/// The lines of the body. Their rows are noted in `ui`.
fn lines_of(model: &Model, ui: &mut Ui, hand: NumberStyle, width: usize, height: usize) -> Vec<TableLine> {
    ui.rows.clear();
    let mut tables = page(model, ui.view, ui.rule.as_deref(), CounterView { hand, totals: ui.totals });
    if ui.view == View::Main {
        let mut lines = trends(model, width, hand);
        lines.push(TableLine::new("", LineStyle::Plain));
        let left = height.saturating_sub(lines.len());
        lines.extend(side_by_side(&tables, width, left, hand));
        for view in [View::Rules, View::Loaders] {
            below(model, view, CounterView { hand, totals: false }, width, height, &mut lines);
        }
        ui.columns = 0;
        return lines;
    }
    if let (Some(sort), Some(table)) = (ui.sort(), tables.first_mut()) {
        table.sort(sort);
    }
    let mut lines: Vec<TableLine> = Vec::new();
    let mut heads = 0;
    for (at, table) in tables.iter_mut().enumerate() {
        if !ui.filter.is_empty() {
            table.filter(&ui.filter);
        }
        let (own, columns) = table.lines(width, ui.sort().filter(|_| at == 0), hand);
        if at == 0 {
            ui.columns = columns;
            heads = own.iter().take_while(|line| line.id.is_none()).count();
        } else if !own.is_empty() && !lines.is_empty() {
            lines.push(TableLine::new("", LineStyle::Plain));
        }
        lines.extend(own);
    }
    ui.rows.extend(lines.iter().filter_map(|line| line.id.clone()));
    // The headings of the first table do not scroll.
    let rest = lines.split_off(heads.min(lines.len()));
    ui.room = height.saturating_sub(heads).max(1);
    let selected =
        ui.selected.as_ref().and_then(|id| rest.iter().position(|line| line.id.as_ref() == Some(id)));
    ui.scroll(rest.len(), selected);
    if ui.first > 0
        && let Some(first) = lines.first_mut()
    {
        first.text = cut(&format!("{} (from line {})", first.text, ui.first + 1), width);
    }
    lines.extend(rest.into_iter().skip(ui.first).take(ui.room));
    lines
}

/// The table of another page, if the main page leaves room for it.
fn below(
    model: &Model,
    view: View,
    shown: CounterView,
    width: usize,
    height: usize,
    lines: &mut Vec<TableLine>,
) {
    let Some(mut table) = page(model, view, None, shown).into_iter().next() else { return };
    if table.rows.is_empty() || height < lines.len() + 6 {
        return;
    }
    view.sort().into_iter().for_each(|sort| table.sort(sort));
    lines.push(TableLine::new("", LineStyle::Plain));
    let room = (height - lines.len()).min(2 + BELOW_MAX);
    // Without ids, because rows of this table cannot be selected.
    let own = table.lines(width, view.sort(), shown.hand).0.into_iter().take(room);
    lines.extend(own.map(|line| TableLine { id: None, ..line }));
}

fn style_of(tone: LineStyle, is_selected: bool, is_old: bool, paint: ScreenStyle) -> Style {
    let style = match tone {
        LineStyle::Plain => Style::new(),
        LineStyle::Head if paint.colours => Style::new().fg(Color::Black).bg(Color::Cyan),
        LineStyle::Head => Style::new().add_modifier(Modifier::UNDERLINED),
        LineStyle::Bad if paint.colours => Style::new().fg(Color::Red),
        LineStyle::Title | LineStyle::Bad => Style::new().add_modifier(Modifier::BOLD),
        LineStyle::Faint => Style::new().add_modifier(Modifier::DIM),
    };
    let style = if is_selected { style.add_modifier(Modifier::REVERSED) } else { style };
    match (is_old, paint.colours) {
        (true, true) if tone == LineStyle::Head => style.add_modifier(Modifier::DIM),
        (true, true) => style.fg(Color::DarkGray),
        (true, false) => style.add_modifier(Modifier::DIM),
        (false, _) => style,
    }
}

/// Writes a text into a row of an area, as far as there is room.
fn put(buffer: &mut Buffer, area: Rect, row: u16, column: u16, text: &str, style: Style) {
    if row < area.height && column < area.width {
        let room = usize::from(area.width - column);
        buffer.set_stringn(area.x + column, area.y + row, text, room, style);
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
