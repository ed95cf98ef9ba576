//! Tables: rows as data, and their lines at a given width.

use std::cmp::Ordering;

use super::figures::NumberStyle;

/// A column. The first text column takes the remaining width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) is_text: bool,
}

pub(super) const fn text(name: &'static str) -> Column {
    Column { name, is_text: true }
}

pub(super) const fn number(name: &'static str) -> Column {
    Column { name, is_text: false }
}

/// A table's cell: its text, and the number by which it is sorted, if it has one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    order: Option<f64>,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), order: None }
    }

    /// A number. Unknown numbers are sorted to the end.
    pub(super) fn number(text: String, order: Option<f64>) -> Self {
        Self { text, order: Some(order.unwrap_or(f64::NEG_INFINITY)) }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.order, other.order) {
            (Some(own), Some(other)) => own.total_cmp(&other),
            _ => self.text.cmp(&other.text),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// The name of the row's object; the selection follows it when the rows are sorted.
    pub(super) id: String,
    pub(super) cells: Vec<Cell>,
    /// Whether something is wrong with the row's object.
    pub(super) is_bad: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
    /// The text of an empty table; None: an empty table is left out.
    pub(super) empty: Option<String>,
}

/// The style of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineStyle {
    Plain,
    Title,
    Head,
    Bad,
    Faint,
}

/// A line as it is drawn or printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableLine {
    pub(super) text: String,
    pub(super) tone: LineStyle,
    /// The id of the row that the line shows.
    pub(super) id: Option<String>,
    /// The spans of headings in the line: first column, number of columns.
    pub(super) heads: Vec<(usize, usize)>,
}

impl TableLine {
    pub(super) fn new(text: impl Into<String>, tone: LineStyle) -> Self {
        Self { text: text.into(), tone, id: None, heads: Vec::new() }
    }
}

/// The column by which a table is sorted, and whether the largest value comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SortOrder {
    pub(super) column: usize,
    pub(super) falls: bool,
}

/// Least width of the column that takes the remaining width.
const GROWING_MIN: usize = 12;

impl Table {
    pub(super) fn new(title: impl Into<String>, columns: &[Column]) -> Self {
        Self { title: title.into(), columns: columns.to_vec(), ..Self::default() }
    }

    pub(super) fn or_say(mut self, empty: &str) -> Self {
        self.empty = Some(empty.to_owned());
        self
    }

    pub(super) fn push(&mut self, id: impl Into<String>, cells: Vec<Cell>) {
        self.rows.push(Row { id: id.into(), cells, is_bad: false });
    }

    /// Keeps the rows with a cell that contains this text, in upper or lower case.
    pub(super) fn filter(&mut self, wanted: &str) {
        let wanted = wanted.to_lowercase();
        let has = |cell: &Cell| cell.text.to_lowercase().contains(&wanted);
        let before = self.rows.len();
        self.rows.retain(|row| row.cells.iter().any(|cell| cell.order.is_none() && has(cell)));
        if self.rows.is_empty() && before > 0 {
            self.empty = Some(format!("none of {before} rows has this text"));
        }
    }

    /// Sorts the rows. Equal rows stay in the server's order.
    pub(super) fn sort(&mut self, sort: SortOrder) {
        self.rows.sort_by(|a, b| match (a.cells.get(sort.column), b.cells.get(sort.column)) {
            (Some(a), Some(b)) if sort.falls => b.compare(a),
            (Some(a), Some(b)) => a.compare(b),
            _ => Ordering::Equal,
        });
    }

    /// The table's lines, with at most `width` columns, and the number of table columns in them. Columns that
    /// do not fit are left out, the last ones first.
    pub(super) fn lines(
        &self,
        width: usize,
        sort: Option<SortOrder>,
        hand: NumberStyle,
    ) -> (Vec<TableLine>, usize) {
        let mut lines = Vec::new();
        if !self.title.is_empty() {
            lines.push(TableLine::new(cut(&self.title, width), LineStyle::Title));
        }
        if self.rows.is_empty() {
            match &self.empty {
                Some(said) => lines.push(TableLine::new(cut(said, width), LineStyle::Faint)),
                None => lines.clear(),
            }
            return (lines, 0);
        }
        let heads: Vec<String> =
            self.columns.iter().enumerate().map(|(at, column)| head(column, at, sort, hand)).collect();
        let widths = self.fit(&heads, width);
        let is_named = heads.iter().any(|head| !head.is_empty());
        if is_named {
            lines.push(TableLine::new(
                self.join(heads.iter().map(String::as_str), &widths, width),
                LineStyle::Head,
            ));
        }
        for row in &self.rows {
            let cells = row.cells.iter().map(|cell| cell.text.as_str());
            let tone = if row.is_bad { LineStyle::Bad } else { LineStyle::Plain };
            let id = Some(row.id.clone());
            lines.push(TableLine { id, ..TableLine::new(self.join(cells, &widths, width), tone) });
        }
        (lines, widths.len())
    }

    /// Widths of the columns that fit.
    fn fit(&self, heads: &[String], width: usize) -> Vec<usize> {
        let mut wanted: Vec<usize> = heads.iter().map(|head| head.chars().count()).collect();
        for row in &self.rows {
            for (wanted, cell) in wanted.iter_mut().zip(&row.cells) {
                *wanted = (*wanted).max(cell.text.len());
            }
        }
        let grows = self.columns.iter().position(|column| column.is_text);
        let mut widths = Vec::new();
        let mut left = width;
        for (at, own) in wanted.iter().enumerate() {
            let least = if Some(at) == grows { (*own).min(GROWING_MIN) } else { *own };
            let gap = if at == 0 { 0 } else { 2 };
            // A long text in the last column is cut.
            let least =
                if at + 1 == wanted.len() && self.columns[at].is_text { least.min(20) } else { least };
            if gap + least > left {
                break;
            }
            left -= gap + least;
            widths.push(least);
        }
        for at in grows.into_iter().chain(widths.len().checked_sub(1)) {
            if let Some(own) = widths.get_mut(at) {
                let more = (wanted[at] - *own).min(left);
                *own += more;
                left -= more;
            }
        }
        widths
    }

    fn join<'c>(&self, cells: impl Iterator<Item = &'c str>, widths: &[usize], width: usize) -> String {
        let mut text = String::new();
        for (at, (cell, own)) in cells.zip(widths).enumerate() {
            if at > 0 {
                text.push_str("  ");
            }
            let cell = cut(cell, *own);
            let pad = " ".repeat(own - cell.chars().count().min(*own));
            if self.columns[at].is_text {
                text.push_str(&cell);
                text.push_str(&pad);
            } else {
                text.push_str(&pad);
                text.push_str(&cell);
            }
        }
        cut(text.trim_end(), width)
    }
}

fn head(column: &Column, at: usize, sort: Option<SortOrder>, hand: NumberStyle) -> String {
    let mark = match sort {
        Some(sort) if sort.column == at => match (sort.falls, hand.ascii) {
            (true, false) => "▼",
            (false, false) => "▲",
            (true, true) => "v",
            (false, true) => "^",
        },
        _ => "",
    };
    format!("{}{mark}", column.name)
}

/// The first `width` columns of a text. A `~` at the end shows that it was cut.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        cut.push('~');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    const HAND: NumberStyle = NumberStyle { exact: false, ascii: true };

    fn table() -> Table {
        let mut table = Table::new("rules", &[number("#"), text("match"), number("gets"), number("saved")]);
        for (number, pattern, gets) in
            [(1, "page:{id}:html:with:a:long:name", 5.0), (2, "b", 70.0), (10, "c", 6.0)]
        {
            let gets = Cell::number(format!("{gets}"), Some(gets));
            let number = Cell::number(number.to_string(), Some(f64::from(number)));
            let saved = Cell::number("-".to_owned(), None);
            table.push(pattern, vec![number, Cell::text(pattern), gets, saved]);
        }
        table
    }

    fn texts(table: &Table, width: usize) -> Vec<String> {
        let sort = Some(SortOrder { column: 2, falls: true });
        table.lines(width, sort, HAND).0.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn columns_are_as_wide_as_needed_and_the_last_ones_give_way() {
        let mut table = table();
        assert_eq!(texts(&table, 60)[1], " #  match                            getsv  saved");
        assert_eq!(texts(&table, 60)[2], " 1  page:{id}:html:with:a:long:name      5      -");
        assert_eq!(texts(&table, 35)[2], " 1  page:{id}:html:w~      5      -");
        assert_eq!(texts(&table, 24)[2], " 1  page:{id}:ht~      5");
        assert_eq!(table.lines(24, None, HAND).1, 3);
        for width in 0..70 {
            assert!(texts(&table, width).iter().all(|line| line.chars().count() <= width), "{width}");
        }
        table.rows.clear();
        assert!(texts(&table, 60).is_empty());
        assert_eq!(texts(&table.or_say("none"), 60), ["rules", "none"]);
    }

    #[test]
    fn numbers_are_sorted_as_numbers_and_text_as_text() {
        let mut table = table();
        let ids = |table: &Table| table.rows.iter().map(|row| row.cells[0].text.clone()).collect::<Vec<_>>();
        table.sort(SortOrder { column: 2, falls: true });
        assert_eq!(ids(&table), ["2", "10", "1"]);
        table.sort(SortOrder { column: 0, falls: false });
        assert_eq!(ids(&table), ["1", "2", "10"]);
        table.sort(SortOrder { column: 1, falls: false });
        assert_eq!(ids(&table), ["2", "10", "1"]);
        table.sort(SortOrder { column: 99, falls: false });
        table.filter("HTML");
        assert_eq!(ids(&table), ["1"]);
    }
}
