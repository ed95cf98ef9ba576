//! Whether the database counts us among its synchronous standbys.
//!
//! For `synchronous_standby_names` each connection that reads the log is a standby, ours too. A commit would
//! wait until we have acknowledged it, and we acknowledge it after it is visible: it would wait for good. And
//! what is in no table of ours would count as kept twice.

use crate::wire::OUR_NAME;

/// Whether these `synchronous_standby_names` have us: `*` or our name. Written `FIRST 1 (a, "b")`, `ANY 1
/// (*)`, `1 (a)` or `a, b`.
pub(crate) fn counts_us(names: &str) -> bool {
    let mut rest = names;
    while let Some(first) = rest.chars().next() {
        let (name, after) = if first == '"' {
            let Some(end) = rest[1..].find('"') else { return false };
            (&rest[1..=end], &rest[end + 2..])
        } else {
            let is_end = |at: char| at.is_ascii_whitespace() || matches!(at, ',' | '(' | ')' | '"');
            let end = rest.find(is_end).unwrap_or(rest.len());
            rest.split_at(end.max(first.len_utf8()))
        };
        if name == "*" || name.eq_ignore_ascii_case(OUR_NAME) {
            return true;
        }
        rest = after;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_standbys() {
        for names in ["*", "ANY 1 (*)", "FIRST 2 (a, Cattlegrid)", "a,\"cattlegrid\"", "\"*\"", "2 (a b,*)"] {
            assert!(counts_us(names), "{names}");
        }
        for names in
            ["", "a", "FIRST 1 (a, b)", "\"a*\"", "cattlegrid_2", "\"a, cattlegrid\"", "\"", "\"\"", "é, a"]
        {
            assert!(!counts_us(names), "{names}");
        }
    }
}
