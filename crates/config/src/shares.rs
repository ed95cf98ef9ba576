//! `[[share]]`: the share of the memory for keys with one prefix.

use std::path::Path;

use toml::de::DeTable;

use crate::keys::{self, ShareDraft};
use crate::problems::{Problems, line_of};
use crate::rules::read_table;

/// The most shares in a file.
pub const SHARES_MAX: usize = 8;
/// The longest prefix of a share, in bytes.
const PREFIX_BYTES_MAX: usize = 64;
/// The most per cent that the `at_least` of all shares may add up to: the rest is for the index, and for
/// moving items.
const LEAST_SUM_MAX: u32 = 80;

/// A `[[share]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareSettings {
    /// The prefix of its keys.
    pub prefix: String,
    /// The percentage of the memory up to which its items are not evicted for others.
    pub at_least: u8,
    /// The percentage of the memory that its items may have at most.
    pub at_most: u8,
    /// The line in the file.
    pub(crate) line: usize,
}

impl ShareSettings {
    /// Whether the shares are equal, apart from their lines.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (&self.prefix, self.at_least, self.at_most) == (&other.prefix, other.at_least, other.at_most)
    }
}

/// The shares of `[[share]]`, in order, without those that have problems.
pub(crate) fn read_shares(
    tables: &[(usize, &DeTable<'_>)],
    text: &str,
    problems: &mut Problems,
) -> Vec<ShareSettings> {
    let mut shares: Vec<ShareSettings> = Vec::new();
    for (number, (offset, table)) in (1..).zip(tables) {
        let number: u32 = number;
        let mut draft = ShareDraft::default();
        let given = table.get("prefix").and_then(|given| given.get_ref().as_str());
        let label = given.map_or_else(|| format!("share {number}"), |prefix| format!("share {prefix:?}"));
        read_table(keys::SHARE, &label, table, &mut draft, problems);
        let Some(prefix) = draft.prefix else {
            if !table.contains_key("prefix") {
                problems.add(*offset, format!("{label}: lacks prefix, with which its keys begin"));
            }
            continue;
        };
        let (at_least, at_most) = (draft.at_least.unwrap_or(0), draft.at_most.unwrap_or(100));
        let mut wrong = |problem: String| problems.add(prefix.offset, format!("{label}: {problem}"));
        let is_key = |byte: u8| byte != b' ' && !byte.is_ascii_control();
        if !(1..=PREFIX_BYTES_MAX).contains(&prefix.text.len()) || !prefix.text.bytes().all(is_key) {
            wrong(format!(
                "prefix: must have 1 to {PREFIX_BYTES_MAX} bytes, none of them a blank or a control character"
            ));
        }
        if let Some(other) = shares.iter().find(|other| other.prefix == prefix.text) {
            wrong(format!("is there already, in line {}; leave one of them out", other.line));
        }
        if at_most == 0 {
            wrong("at_most \"0%\": nothing could be stored; give it \"1%\" or more".to_owned());
        } else if at_least > at_most {
            wrong(format!("at_least \"{at_least}%\": is more than at_most, \"{at_most}%\""));
        }
        shares.push(ShareSettings { prefix: prefix.text, at_least, at_most, line: line_of(text, *offset) });
    }
    let first = tables.first().map_or(0, |(offset, _)| *offset);
    if tables.len() > SHARES_MAX {
        problems.add(first, format!("share: {} of them; at most {SHARES_MAX}", tables.len()));
    }
    let sum: u32 = shares.iter().map(|share| u32::from(share.at_least)).sum();
    if sum > LEAST_SUM_MAX {
        let problem = format!(
            "share: all have at least {sum}% together; at most {LEAST_SUM_MAX}%, since the index and room to move take the rest"
        );
        problems.add(first, problem);
    }
    shares
}

/// A log line for each share that differs between `newer`, in the file at `path`, and `older`.
pub(crate) fn need_restart(older: &[ShareSettings], newer: &[ShareSettings], path: &Path) -> Vec<String> {
    let path = path.display();
    let lacks =
        |all: &[ShareSettings], one: &ShareSettings| all.iter().all(|other| other.prefix != one.prefix);
    let new = newer.iter().filter(|share| lacks(older, share));
    let gone = older.iter().filter(|share| lacks(newer, share));
    let new =
        new.map(|share| format!("{path}:{}: share {:?} is new: needs a restart", share.line, share.prefix));
    new.chain(gone.map(|share| format!("{path}: share {:?} is gone: needs a restart", share.prefix)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule_file::RuleFile;

    fn parse(text: &str) -> Result<Vec<(String, u8, u8)>, String> {
        let file = RuleFile::parse(Path::new("f.toml"), text).map_err(|error| error.to_string())?;
        Ok(file.shares.into_iter().map(|share| (share.prefix, share.at_least, share.at_most)).collect())
    }

    #[test]
    fn shares_are_read() {
        let text = "[[share]]\nprefix = \"shop:\"\nat_least = \"20%\"\nat_most = \"60%\"\n[[share]]\nprefix = \"b\"\n";
        assert_eq!(parse(text), Ok(vec![("shop:".to_owned(), 20, 60), ("b".to_owned(), 0, 100)]));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let long = "x".repeat(65);
        let share = |n: usize| format!("[[share]]\nprefix = \"{n}\"\n");
        let many: String = (0..9).map(share).collect();
        for (text, says) in [
            ("[[share]]\n", "f.toml:1: share 1: lacks prefix"),
            ("[[share]]\nprefix = \"\"\n", "f.toml:2: share \"\": prefix"),
            ("[[share]]\nprefix = \"a b\"\n", "f.toml:2: share \"a b\": prefix"),
            (&*format!("[[share]]\nprefix = \"{long}\"\n"), "64 bytes"),
            (
                "[[share]]\nprefix = \"a\"\nat_least = \"30%\"\nat_most = \"20%\"\n",
                "at_least \"30%\": is more than at_most, \"20%\"",
            ),
            ("[[share]]\nprefix = \"a\"\nat_most = \"0%\"\n", "at_most \"0%\": nothing could be stored"),
            (
                "[[share]]\nprefix = \"a\"\nat_most = \"101%\"\n",
                "f.toml:3: share \"a\": at_most \"101%\": must be a share in per cent, \"0%\" to \"100%\"",
            ),
            ("[[share]]\nprefix = \"a\"\nat_most = 0.6\n", "must be a share in per cent"),
            ("[[share]]\nprefix = \"a\"\nmost = \"6%\"\n", "f.toml:3: share \"a\": most"),
            (
                "[[share]]\nprefix = \"a\"\n[[share]]\nprefix = \"a\"\n",
                "f.toml:4: share \"a\": is there already, in line 1",
            ),
            ("[share]\nprefix = \"a\"\n", "[[share]]"),
            (
                "[[share]]\nprefix = \"a\"\nat_least = \"50%\"\n[[share]]\nprefix = \"b\"\nat_least = \"31%\"\n",
                "share: all have at least 81% together; at most 80%",
            ),
            (&*many, "share: 9 of them; at most 8"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says), "{error}\nlacks {says}");
        }
    }

    #[test]
    fn nothing_is_shared_where_nothing_is_evicted() {
        let file = RuleFile::parse(
            Path::new("f.toml"),
            "[server]\ndisable_evictions = true\n[[share]]\nprefix = \"a\"\n",
        );
        let error = file.unwrap().settings().unwrap_err().to_string();
        assert!(error.contains("f.toml:3: share \"a\": under -M nothing is evicted"), "{error}");
    }
}
