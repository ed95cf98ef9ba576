//! Watches the directory of types of objects. When its files have changed, and then stayed the same for a
//! second, the types are loaded again.
//!
//! # Invariants
//! * A set of files that was tried is not tried again until the files change: a mistake is reported once.
//! * Files that change continually are not loaded.

use std::path::{Path, PathBuf};

/// The watched directory and its last known states.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    /// The directory, the digest that was loaded or tried last, and the digest that was seen last.
    known: Option<(PathBuf, u64, u64)>,
}

impl Folder {
    /// Whether the types must be loaded again. `watched`: the directory and its digest when it was read;
    /// None: no directory is watched. `look`: returns the present digest, which changes with the files.
    pub(crate) fn must_reload(
        &mut self,
        watched: Option<(PathBuf, u64)>,
        look: impl FnOnce(&Path) -> u64,
    ) -> bool {
        let Some((dir, read)) = watched else {
            self.known = None;
            return false;
        };
        let now = look(&dir);
        match &mut self.known {
            Some((known, tried, last)) if *known == dir => {
                // A reload, for instance by SIGHUP, may have read the files since.
                let is_new = now != *tried && now != read;
                let is_stable = now == std::mem::replace(last, now);
                if is_new && is_stable {
                    *tried = now;
                }
                is_new && is_stable
            }
            _ => {
                self.known = Some((dir, read, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "what the look is given")]
    fn watched(read: u64) -> Option<(PathBuf, u64)> {
        Some(("dir".into(), read))
    }

    #[test]
    fn a_change_is_loaded_when_it_has_stayed_for_a_look() {
        let mut folder = Folder::default();
        for (read, seen, expected) in [
            (1, 1, false),
            (1, 1, false),
            // Files are being written.
            (1, 2, false),
            (1, 3, false),
            (1, 3, true),
            // It has a mistake: what was read is still the first. Once is enough.
            (1, 3, false),
            (1, 3, false),
            (1, 4, false),
            (1, 4, true),
            (4, 4, false),
            // Back to what had a mistake: it is tried again, since what was tried last is another.
            (4, 3, false),
            (4, 3, true),
            // A signal has loaded what is there.
            (4, 5, false),
            (5, 5, false),
        ] {
            assert_eq!(folder.must_reload(watched(read), |_| seen), expected, "{read} {seen}");
        }
    }

    #[test]
    fn changes_between_the_load_and_the_first_look_are_seen() {
        let mut folder = Folder::default();
        assert!(!folder.must_reload(watched(1), |_| 2));
        assert!(folder.must_reload(watched(1), |_| 2));
    }

    #[test]
    fn another_directory_begins_anew_and_none_is_not_looked_at() {
        let mut folder = Folder::default();
        let of = |dir: &str, read| Some((dir.into(), read));
        assert!(!folder.must_reload(of("a", 1), |_| 1));
        assert!(!folder.must_reload(of("b", 2), |_| 2));
        assert!(!folder.must_reload(of("b", 2), |_| 2));
        assert!(!folder.must_reload(of("b", 2), |_| 3));
        assert!(folder.must_reload(of("b", 2), |_| 3));
        assert!(!folder.must_reload(None, |_| panic!("there is none")));
        assert!(!folder.must_reload(of("b", 4), |_| 4));
    }
}
