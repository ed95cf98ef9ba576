//! The effects of keys, and the state of the screen that they change.

use super::pages::View;
use super::table::SortOrder;

/// A key press, whatever terminal sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PressedKey {
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
    sorts: [Option<SortOrder>; 10],
    pub(super) filter: String,
    /// Whether the filter is being edited.
    pub(super) editing: bool,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) totals: bool,
    pub(super) interval_ms: u64,
    /// The rule whose lines are shown.
    pub(super) rule: Option<String>,
    /// The id of the selected row.
    pub(super) selected: Option<String>,
    /// The number of the first line shown.
    pub(super) first: usize,
    /// The rows of the last drawing.
    pub(super) rows: Vec<String>,
    pub(super) room: usize,
    pub(super) columns: usize,
}

/// The intervals of requests that can be chosen, in milliseconds.
const INTERVALS: [u64; 9] = [200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000];
/// Most characters of a filter.
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

    pub(super) fn sort(&self) -> Option<SortOrder> {
        if self.rule.is_some() { None } else { self.sorts[self.place()] }
    }

    fn place(&self) -> usize {
        View::ALL.iter().position(|view| *view == self.view).unwrap_or(0)
    }

    pub(super) fn press(&mut self, key: PressedKey) -> KeyAction {
        match key {
            PressedKey::Interrupt => return KeyAction::Quit,
            PressedKey::Stop => return KeyAction::Stop,
            PressedKey::Redraw => return KeyAction::Redraw,
            _ if self.editing => return self.edit(key),
            _ if self.help => {
                self.help = false;
                return if key == PressedKey::Char('q') { KeyAction::Quit } else { KeyAction::Draw };
            }
            _ => {}
        }
        match key {
            PressedKey::Char('q') => return KeyAction::Quit,
            PressedKey::Char('?' | 'h') => self.help = true,
            PressedKey::Char(digit @ '0'..='9') => {
                let number = digit.to_digit(10).unwrap_or(1) as usize;
                return self.go((number + 9) % 10);
            }
            PressedKey::Tab | PressedKey::Right => return self.go((self.place() + 1) % 10),
            PressedKey::BackTab | PressedKey::Left => return self.go((self.place() + 9) % 10),
            PressedKey::Char('s') => self.next_sort(),
            PressedKey::Char('r') => {
                if let Some(sort) =
                    &mut self.sorts[View::ALL.iter().position(|view| *view == self.view).unwrap_or(0)]
                {
                    sort.falls = !sort.falls;
                }
            }
            PressedKey::Char('t') => self.totals = !self.totals,
            PressedKey::Char('p' | ' ') => {
                self.paused = !self.paused;
                return KeyAction::Ask;
            }
            PressedKey::Char('+' | '=') => return self.change_interval(true),
            PressedKey::Char('-') => return self.change_interval(false),
            PressedKey::Char('/') if self.view != View::Main => self.editing = true,
            PressedKey::Enter if self.view == View::Rules => self.open(),
            PressedKey::Esc => self.back(),
            PressedKey::Up => self.select(-1),
            PressedKey::Down => self.select(1),
            PressedKey::PageUp => self.select(1 - i64::try_from(self.room.max(2)).unwrap_or(2)),
            PressedKey::PageDown => self.select(i64::try_from(self.room.max(2)).unwrap_or(2) - 1),
            PressedKey::Home => self.select(i64::MIN),
            PressedKey::End => self.select(i64::MAX),
            _ => {}
        }
        KeyAction::Draw
    }

    fn edit(&mut self, key: PressedKey) -> KeyAction {
        match key {
            PressedKey::Enter => self.editing = false,
            PressedKey::Esc => {
                self.editing = false;
                self.filter.clear();
            }
            PressedKey::Backspace => {
                self.filter.pop();
            }
            PressedKey::Char(letter) if !letter.is_control() && self.filter.len() < FILTER_MAX => {
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
        self.sorts[place] = Some(SortOrder { column, falls: true });
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

    /// Scrolls so that line `selected` of `lines` is visible.
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
            (PressedKey::Char('2'), View::Rules),
            (PressedKey::Right, View::Loaders),
            (PressedKey::Char('0'), View::All),
            (PressedKey::Tab, View::Main),
            (PressedKey::Left, View::All),
            (PressedKey::BackTab, View::Times),
        ] {
            assert_eq!((ui.press(key), ui.view), (KeyAction::Ask, view));
        }
        assert_eq!(ui.press(PressedKey::Char('q')), KeyAction::Quit);
        assert_eq!(
            [PressedKey::Interrupt, PressedKey::Stop, PressedKey::Redraw].map(|key| ui.press(key)),
            [KeyAction::Quit, KeyAction::Stop, KeyAction::Redraw]
        );
    }

    #[test]
    fn the_selection_stays_on_its_row_and_the_window_follows() {
        let mut ui = ui(View::Rules);
        ui.press(PressedKey::Down);
        assert_eq!(ui.selected.as_deref(), Some("1"));
        ui.press(PressedKey::PageDown);
        assert_eq!(ui.selected.as_deref(), Some("10"));
        ui.press(PressedKey::End);
        ui.scroll(30, Some(29));
        assert_eq!((ui.selected.as_deref(), ui.first), (Some("30"), 20));
        ui.press(PressedKey::Home);
        ui.scroll(30, Some(0));
        assert_eq!((ui.selected.as_deref(), ui.first), (Some("1"), 0));
        ui.rows.reverse();
        ui.press(PressedKey::Up);
        assert_eq!(ui.selected.as_deref(), Some("2"), "sorted otherwise, it moves from where it is now");
        ui.rows.clear();
        ui.press(PressedKey::Down);
        ui.scroll(0, None);
        assert_eq!((ui.selected.as_deref(), ui.first), (None, 0));
    }

    #[test]
    fn a_rule_opens_and_closes() {
        let mut ui = ui(View::Rules);
        ui.press(PressedKey::Down);
        ui.press(PressedKey::Down);
        ui.press(PressedKey::Enter);
        assert_eq!((ui.rule.as_deref(), ui.sort()), (Some("2"), None));
        ui.press(PressedKey::Esc);
        assert_eq!((ui.rule.as_deref(), ui.selected.as_deref()), (None, Some("2")));
    }

    #[test]
    fn a_filter_takes_letters_and_escape_takes_it_away() {
        let mut ui = ui(View::Rules);
        for key in [
            PressedKey::Char('/'),
            PressedKey::Char('q'),
            PressedKey::Char('1'),
            PressedKey::Backspace,
            PressedKey::Char('\u{1b}'),
        ] {
            assert_eq!(ui.press(key), KeyAction::Draw);
        }
        assert_eq!((ui.filter.as_str(), ui.editing), ("q", true));
        ui.press(PressedKey::Enter);
        assert!(!ui.editing && ui.view == View::Rules);
        ui.press(PressedKey::Esc);
        assert_eq!(ui.filter, "");
        ui.press(PressedKey::Char('/'));
        for _ in 0..200 {
            ui.press(PressedKey::Char('x'));
        }
        assert_eq!(ui.filter.len(), FILTER_MAX);
    }

    #[test]
    fn columns_are_sorted_in_turn_and_the_interval_has_bounds() {
        let mut ui = ui(View::Rules);
        assert_eq!(ui.sort(), Some(SortOrder { column: 3, falls: true }));
        ui.press(PressedKey::Char('s'));
        ui.press(PressedKey::Char('r'));
        assert_eq!(ui.sort(), Some(SortOrder { column: 0, falls: false }));
        for _ in 0..20 {
            ui.press(PressedKey::Char('+'));
        }
        assert_eq!(ui.interval_ms, 60_000);
        for _ in 0..20 {
            ui.press(PressedKey::Char('-'));
        }
        assert_eq!(ui.interval_ms, 200);
        assert_eq!((ui.press(PressedKey::Char('p')), ui.paused), (KeyAction::Ask, true));
    }
}
