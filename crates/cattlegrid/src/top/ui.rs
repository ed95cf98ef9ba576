//! The effects of keys, and the state of the screen that they change.

use super::pages::View;
use super::table::Sort;

/// A key, whatever terminal sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Esc,
    Backspace,
    Tab,
    BackTab,
    Left,
    Right,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Stop,
    /// Ctrl-L.
    Redraw,
}

/// The caller's task after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyAction {
    Draw,
    /// The set of requests to the server has changed.
    Ask,
    Quit,
    Stop,
    Redraw,
}

/// The page shown, and how it is shown.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own key")]
pub(super) struct Ui {
    pub(super) view: View,
    sorts: [Option<Sort>; 10],
    pub(super) filter: String,
    /// The filter is being typed.
    pub(super) editing: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) totals: bool,
    pub(super) interval_ms: u64,
    /// The rule whose lines are shown.
    pub(super) rule: Option<String>,
    /// The row that is selected, by its id.
    pub(super) selected: Option<String>,
    /// The first line that is shown.
    pub(super) first: usize,
    /// The rows of the last drawing.
    pub(super) rows: Vec<String>,
    pub(super) room: usize,
    pub(super) columns: usize,
}

/// Times between two looks, in milliseconds.
const INTERVALS: [u64; 9] = [200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000];
/// Letters of a filter.
const FILTER_MAX: usize = 60;

impl Ui {
    pub(super) fn new(view: View, interval_ms: u64) -> Self {
        Self {
            view,
            sorts: View::ALL.map(View::sort),
            filter: String::new(),
            editing: false,
            paused: false,
            help: false,
            totals: false,
            interval_ms,
            rule: None,
            selected: None,
            first: 0,
            rows: Vec::new(),
            room: 1,
            columns: 0,
        }
    }

    pub(super) fn sort(&self) -> Option<Sort> {
        if self.rule.is_some() { None } else { self.sorts[self.place()] }
    }

    fn place(&self) -> usize {
        View::ALL.iter().position(|view| *view == self.view).unwrap_or(0)
    }

    pub(super) fn press(&mut self, key: Key) -> KeyAction {
        match key {
            Key::Interrupt => return KeyAction::Quit,
            Key::Stop => return KeyAction::Stop,
            Key::Redraw => return KeyAction::Redraw,
            _ if self.editing => return self.edit(key),
            _ if self.help => {
                self.help = false;
                return if key == Key::Char('q') { KeyAction::Quit } else { KeyAction::Draw };
            }
            _ => {}
        }
        match key {
            Key::Char('q') => return KeyAction::Quit,
            Key::Char('?' | 'h') => self.help = true,
            Key::Char(digit @ '0'..='9') => {
                let number = digit.to_digit(10).unwrap_or(1) as usize;
                return self.go((number + 9) % 10);
            }
            Key::Tab | Key::Right => return self.go((self.place() + 1) % 10),
            Key::BackTab | Key::Left => return self.go((self.place() + 9) % 10),
            Key::Char('s') => self.next_sort(),
            Key::Char('r') => {
                if let Some(sort) =
                    &mut self.sorts[View::ALL.iter().position(|view| *view == self.view).unwrap_or(0)]
                {
                    sort.falls = !sort.falls;
                }
            }
            Key::Char('t') => self.totals = !self.totals,
            Key::Char('p' | ' ') => {
                self.paused = !self.paused;
                return KeyAction::Ask;
            }
            Key::Char('+' | '=') => return self.change_interval(true),
            Key::Char('-') => return self.change_interval(false),
            Key::Char('/') if self.view != View::Main => self.editing = true,
            Key::Enter if self.view == View::Rules => self.open(),
            Key::Esc => self.back(),
            Key::Up => self.select(-1),
            Key::Down => self.select(1),
            Key::PageUp => self.select(1 - i64::try_from(self.room.max(2)).unwrap_or(2)),
            Key::PageDown => self.select(i64::try_from(self.room.max(2)).unwrap_or(2) - 1),
            Key::Home => self.select(i64::MIN),
            Key::End => self.select(i64::MAX),
            _ => {}
        }
        KeyAction::Draw
    }

    fn edit(&mut self, key: Key) -> KeyAction {
        match key {
            Key::Enter => self.editing = false,
            Key::Esc => {
                self.editing = false;
                self.filter.clear();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(letter) if !letter.is_control() && self.filter.len() < FILTER_MAX => {
                self.filter.push(letter);
            }
            _ => {}
        }
        (self.first, self.selected) = (0, None);
        KeyAction::Draw
    }

    fn go(&mut self, place: usize) -> KeyAction {
        self.view = View::ALL[place];
        (self.first, self.selected, self.rule) = (0, None, None);
        self.filter.clear();
        KeyAction::Ask
    }

    fn next_sort(&mut self) {
        if self.columns == 0 || self.rule.is_some() || self.view == View::Main {
            return;
        }
        let place = self.place();
        let column = self.sorts[place].map_or(0, |sort| (sort.column + 1) % self.columns);
        self.sorts[place] = Some(Sort { column, falls: true });
        self.first = 0;
    }

    fn change_interval(&mut self, longer: bool) -> KeyAction {
        let next = if longer {
            INTERVALS.into_iter().find(|ms| *ms > self.interval_ms)
        } else {
            INTERVALS.into_iter().rev().find(|ms| *ms < self.interval_ms)
        };
        self.interval_ms = next.unwrap_or(self.interval_ms);
        KeyAction::Ask
    }

    fn open(&mut self) {
        let chosen = self.selected.clone().or_else(|| self.rows.first().cloned());
        if let Some(chosen) = chosen.filter(|id| self.rule.is_none() && id.parse::<u32>().is_ok()) {
            (self.rule, self.selected, self.first) = (Some(chosen), None, 0);
            self.filter.clear();
        }
    }

    fn back(&mut self) {
        if !self.filter.is_empty() {
            self.filter.clear();
        } else if self.rule.is_some() {
            self.selected = self.rule.take();
        } else {
            self.selected = None;
        }
        self.first = 0;
    }

    /// Moves the selection by this many rows.
    fn select(&mut self, by: i64) {
        let last = self.rows.len().saturating_sub(1);
        let at = self.selected.as_ref().and_then(|id| self.rows.iter().position(|row| row == id));
        let next = match at {
            None if by == i64::MAX => last,
            None if by > 1 => usize::try_from(by).unwrap_or(0).min(last),
            None => 0,
            Some(at) if by < 0 => at.saturating_sub(usize::try_from(by.unsigned_abs()).unwrap_or(usize::MAX)),
            Some(at) => at.saturating_add(usize::try_from(by).unwrap_or(usize::MAX)).min(last),
        };
        self.selected = self.rows.get(next).cloned();
    }

    /// Moves the window over `lines` lines of which `selected` is one, so that it is in it.
    pub(super) fn scroll(&mut self, lines: usize, selected: Option<usize>) {
        if let Some(at) = selected {
            if at < self.first {
                self.first = at;
            } else if at >= self.first + self.room {
                self.first = at + 1 - self.room;
            }
        }
        self.first = self.first.min(lines.saturating_sub(self.room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ui(view: View) -> Ui {
        let mut ui = Ui::new(view, 1000);
        ui.rows = (1..=30).map(|number| number.to_string()).collect();
        (ui.room, ui.columns) = (10, 4);
        ui
    }

    #[test]
    fn digits_and_arrows_choose_views() {
        let mut ui = ui(View::Main);
        for (key, view) in [
            (Key::Char('2'), View::Rules),
            (Key::Right, View::Loaders),
            (Key::Char('0'), View::All),
            (Key::Tab, View::Main),
            (Key::Left, View::All),
            (Key::BackTab, View::Times),
        ] {
            assert_eq!((ui.press(key), ui.view), (KeyAction::Ask, view));
        }
        assert_eq!(ui.press(Key::Char('q')), KeyAction::Quit);
        assert_eq!(
            [Key::Interrupt, Key::Stop, Key::Redraw].map(|key| ui.press(key)),
            [KeyAction::Quit, KeyAction::Stop, KeyAction::Redraw]
        );
    }

    #[test]
    fn the_selection_stays_on_its_row_and_the_window_follows() {
        let mut ui = ui(View::Rules);
        ui.press(Key::Down);
        assert_eq!(ui.selected.as_deref(), Some("1"));
        ui.press(Key::PageDown);
        assert_eq!(ui.selected.as_deref(), Some("10"));
        ui.press(Key::End);
        ui.scroll(30, Some(29));
        assert_eq!((ui.selected.as_deref(), ui.first), (Some("30"), 20));
        ui.press(Key::Home);
        ui.scroll(30, Some(0));
        assert_eq!((ui.selected.as_deref(), ui.first), (Some("1"), 0));
        ui.rows.reverse();
        ui.press(Key::Up);
        assert_eq!(ui.selected.as_deref(), Some("2"), "sorted otherwise, it moves from where it is now");
        ui.rows.clear();
        ui.press(Key::Down);
        ui.scroll(0, None);
        assert_eq!((ui.selected.as_deref(), ui.first), (None, 0));
    }

    #[test]
    fn a_rule_opens_and_closes() {
        let mut ui = ui(View::Rules);
        ui.press(Key::Down);
        ui.press(Key::Down);
        ui.press(Key::Enter);
        assert_eq!((ui.rule.as_deref(), ui.sort()), (Some("2"), None));
        ui.press(Key::Esc);
        assert_eq!((ui.rule.as_deref(), ui.selected.as_deref()), (None, Some("2")));
    }

    #[test]
    fn a_filter_takes_letters_and_escape_takes_it_away() {
        let mut ui = ui(View::Rules);
        for key in [Key::Char('/'), Key::Char('q'), Key::Char('1'), Key::Backspace, Key::Char('\u{1b}')] {
            assert_eq!(ui.press(key), KeyAction::Draw);
        }
        assert_eq!((ui.filter.as_str(), ui.editing), ("q", true));
        ui.press(Key::Enter);
        assert!(!ui.editing && ui.view == View::Rules);
        ui.press(Key::Esc);
        assert_eq!(ui.filter, "");
        ui.press(Key::Char('/'));
        for _ in 0..200 {
            ui.press(Key::Char('x'));
        }
        assert_eq!(ui.filter.len(), FILTER_MAX);
    }

    #[test]
    fn columns_are_sorted_in_turn_and_the_interval_has_bounds() {
        let mut ui = ui(View::Rules);
        assert_eq!(ui.sort(), Some(Sort { column: 3, falls: true }));
        ui.press(Key::Char('s'));
        ui.press(Key::Char('r'));
        assert_eq!(ui.sort(), Some(Sort { column: 0, falls: false }));
        for _ in 0..20 {
            ui.press(Key::Char('+'));
        }
        assert_eq!(ui.interval_ms, 60_000);
        for _ in 0..20 {
            ui.press(Key::Char('-'));
        }
        assert_eq!(ui.interval_ms, 200);
        assert_eq!((ui.press(Key::Char('p')), ui.paused), (KeyAction::Ask, true));
    }
}
