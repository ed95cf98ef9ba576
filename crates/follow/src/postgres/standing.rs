//! Where a node stands in a database's log, as it says it to a node that goes on for it.

use std::fmt;

use crate::node::ResumePoint;
use crate::postgres::history::ReceivedCommit;
use crate::postgres::pgoutput::Lsn;
use crate::postgres::probe::PostgresIdentity;

/// Most transactions of which a standing says that they have not ended.
const RUNNING_MAX: usize = 1000;

/// All before `position` is obeyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PostgresStanding {
    pub(crate) identity: PostgresIdentity,
    pub(crate) position: Lsn,
    /// The last commit that was received.
    pub(crate) last: Option<ReceivedCommit>,
    /// Transactions that had not ended when everything was flushed last.
    pub(crate) running: Vec<u32>,
    /// The number of the catalog as it was seen last. With another catalog the log may lack changes.
    pub(crate) catalog: u64,
    /// The database's process of the stream.
    pub(crate) process: Option<i32>,
}

impl PostgresStanding {
    /// None: too much runs to be written down.
    pub(crate) fn standing(&self) -> Option<ResumePoint> {
        (self.running.len() <= RUNNING_MAX)
            .then(|| ResumePoint { position: self.position.0, text: self.to_string().into() })
    }

    /// Reads it. None: it is of another release.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let ["postgres", system, timeline, position, last, running, catalog, process] = *words.as_slice()
        else {
            return None;
        };
        let last = match last {
            "-" => None,
            last => {
                let mut parts = last.split(',');
                let end = Lsn::parse(parts.next()?)?;
                Some(ReceivedCommit {
                    end,
                    transaction: parts.next()?.parse().ok()?,
                    time: parts.next()?.parse().ok()?,
                })
            }
        };
        let running = running.split(',').filter(|one| *one != "-").map(str::parse).collect::<Result<_, _>>();
        Some(Self {
            identity: PostgresIdentity { system: system.to_owned(), timeline: timeline.to_owned() },
            position: Lsn::parse(position)?,
            last,
            running: running.ok()?,
            catalog: u64::from_str_radix(catalog, 16).ok()?,
            process: process.parse().ok(),
        })
    }
}

impl fmt::Display for PostgresStanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PostgresIdentity { system, timeline } = &self.identity;
        write!(f, "postgres {system} {timeline} {} ", self.position)?;
        match &self.last {
            Some(ReceivedCommit { end, transaction, time }) => write!(f, "{end},{transaction},{time} ")?,
            None => f.write_str("- ")?,
        }
        let running: Vec<String> = self.running.iter().map(u32::to_string).collect();
        f.write_str(if running.is_empty() { "-" } else { "" })?;
        let process = self.process.map_or_else(|| "-".to_owned(), |process| process.to_string());
        write!(f, "{} {:016x} {process}", running.join(","), self.catalog)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let identity = PostgresIdentity { system: "7301".to_owned(), timeline: "2".to_owned() };
        let commit = ReceivedCommit { end: Lsn(0x16_0B37_4D90), transaction: 750, time: 812_345 };
        let stands = |last, running| {
            let (position, catalog) = (Lsn(0x16_0B37_4D48), u64::MAX);
            PostgresStanding { identity: identity.clone(), position, last, running, catalog, process: None }
        };
        for (last, running) in [(None, vec![]), (Some(commit), vec![7]), (Some(commit), vec![1, u32::MAX])] {
            for process in [None, Some(4711)] {
                let stands = PostgresStanding { process, ..stands(last, running.clone()) };
                let text = stands.standing().unwrap().text;
                assert!(text.starts_with("postgres 7301 2 16/B374D48 "), "{text}");
                assert_eq!(PostgresStanding::parse(&text), Some(stands));
            }
        }
        for other in [
            "",
            "postgres 1 2 3/4 - - 0",
            "mysql 1 2 3/4 - - 0 -",
            "postgres 1 2 x - - 0 -",
            "postgres 1 2 3/4 1,2 - 0 -",
        ] {
            assert_eq!(PostgresStanding::parse(other), None, "{other}");
        }
        assert_eq!(stands(None, vec![1; RUNNING_MAX + 1]).standing(), None);
    }
}
