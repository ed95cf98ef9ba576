//! Where a node stands in a server's log, as it says it to a node that goes on for it.

use crate::mysql::decoder::{Begun, Last};
use crate::mysql::place::Place;
use crate::mysql::server::Identity;
use crate::node::Standing;

/// All before `place` is obeyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stands {
    pub(crate) identity: Identity,
    pub(crate) place: Place,
    pub(crate) begun: Begun,
}

impl Stands {
    /// In one line: what may have blanks comes last.
    pub(crate) fn standing(&self) -> Standing {
        let Self { identity, place, begun: Begun { file_time, last, definitions } } = self;
        let last = last.as_ref().map_or_else(
            || "-".to_owned(),
            |Last { start, end, gtid, time }| format!("{start},{end},{time},{gtid}"),
        );
        let definitions = definitions.map_or_else(|| "-".to_owned(), |mark| format!("{mark:016x}"));
        let text = format!("mysql {place} {file_time} {last} {definitions} {}", identity.written());
        Standing { position: place.packed(), text: text.into() }
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
                let (start, end) = (Place::parse(parts.next()?)?, Place::parse(parts.next()?)?);
                let time = parts.next()?.parse().ok()?;
                Some(Last { start, end, time, gtid: parts.next()?.into() })
            }
        };
        let definitions = match definitions {
            "-" => None,
            mark => Some(u64::from_str_radix(mark, 16).ok()?),
        };
        Some(Self {
            identity: Identity::parse(identity)?,
            place: Place::parse(place)?,
            begun: Begun { file_time: file_time.parse().ok()?, last, definitions },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let at = |offset| Place { file: 7, offset };
        let last =
            Last { start: at(4), end: at(900), gtid: "3e11fa4771ca11e19e33c80aa9429562::5".into(), time: 9 };
        for identity in ["MariaDB 1 - db 3306 /var/lib/my sql/bin", "MySQL 1 3E11FA47-71CA db 3306 bin"] {
            let identity = Identity::parse(identity).unwrap();
            for (last, definitions) in [(None, None), (Some(last.clone()), Some(u64::MAX))] {
                let begun = Begun { file_time: u32::MAX, last, definitions };
                let stands = Stands { identity: identity.clone(), place: at(1000), begun };
                let Standing { position, text } = stands.standing();
                assert_eq!(position, at(1000).packed());
                assert!(text.starts_with("mysql 000007:1000 4294967295 "), "{text}");
                assert_eq!(Stands::parse(&text), Some(stands));
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
            assert_eq!(Stands::parse(other), None, "{other}");
        }
    }
}
