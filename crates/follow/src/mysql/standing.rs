//! Where a node stands in a server's log, as it says it to a node that goes on for it.

use crate::mysql::decoder::{DecoderState, LastTransaction};
use crate::mysql::position::BinlogPosition;
use crate::mysql::server::MysqlIdentity;
use crate::node::ResumePoint;

/// All before `place` is obeyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MysqlStanding {
    pub(crate) identity: MysqlIdentity,
    pub(crate) place: BinlogPosition,
    pub(crate) begun: DecoderState,
}

impl MysqlStanding {
    /// In one line: what may have blanks comes last.
    pub(crate) fn standing(&self) -> ResumePoint {
        let Self { identity, place, begun: DecoderState { file_time, last, definitions } } = self;
        let last = last.as_ref().map_or_else(
            || "-".to_owned(),
            |LastTransaction { start, end, gtid, time }| format!("{start},{end},{time},{gtid}"),
        );
        let definitions = definitions.map_or_else(|| "-".to_owned(), |mark| format!("{mark:016x}"));
        let text = format!("mysql {place} {file_time} {last} {definitions} {}", identity.written());
        ResumePoint { position: place.packed(), text: text.into() }
    }

    /// Reads it. None: it is of another release.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.splitn(6, ' ').collect();
        let ["mysql", place, file_time, last, definitions, identity] = *words.as_slice() else {
            return None;
        };
        let last = match last {
            "-" => None,
            last => {
                let mut parts = last.splitn(4, ',');
                let (start, end) =
                    (BinlogPosition::parse(parts.next()?)?, BinlogPosition::parse(parts.next()?)?);
                let time = parts.next()?.parse().ok()?;
                Some(LastTransaction { start, end, time, gtid: parts.next()?.into() })
            }
        };
        let definitions = match definitions {
            "-" => None,
            mark => Some(u64::from_str_radix(mark, 16).ok()?),
        };
        Some(Self {
            identity: MysqlIdentity::parse(identity)?,
            place: BinlogPosition::parse(place)?,
            begun: DecoderState { file_time: file_time.parse().ok()?, last, definitions },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let at = |offset| BinlogPosition { file: 7, offset };
        let last = LastTransaction {
            start: at(4),
            end: at(900),
            gtid: "3e11fa4771ca11e19e33c80aa9429562::5".into(),
            time: 9,
        };
        for identity in ["MariaDB 1 - db 3306 /var/lib/my sql/bin", "MySQL 1 3E11FA47-71CA db 3306 bin"] {
            let identity = MysqlIdentity::parse(identity).unwrap();
            for (last, definitions) in [(None, None), (Some(last.clone()), Some(u64::MAX))] {
                let begun = DecoderState { file_time: u32::MAX, last, definitions };
                let stands = MysqlStanding { identity: identity.clone(), place: at(1000), begun };
                let ResumePoint { position, text } = stands.standing();
                assert_eq!(position, at(1000).packed());
                assert!(text.starts_with("mysql 000007:1000 4294967295 "), "{text}");
                assert_eq!(MysqlStanding::parse(&text), Some(stands));
            }
        }
        for other in [
            "",
            "postgres 1 2 3/4 - - 0 -",
            "mysql 000007:1000 1 - - Oracle 1 - db 3306 bin",
            "mysql 000007 1 - - MySQL 1 - db 3306 bin",
            "mysql 000007:1000 1 000007:4 - MySQL 1 - db 3306 bin",
            "mysql 000007:1000 1 - x MySQL 1 - db 3306 bin",
            "mysql 000007:1000 1 - - MySQL 1 - db 3306",
        ] {
            assert_eq!(MysqlStanding::parse(other), None, "{other}");
        }
    }
}
