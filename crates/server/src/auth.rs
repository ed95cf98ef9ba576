//! Logging in: the file of `-Y`, and the check of what a client sent.
//!
//! The file has up to 8 lines `user:password`, each of up to 255 bytes; the user ends at the first colon, the
//! password at the end of the line. A client logs in with `set <any key> <any> <any> <length>` and the data
//! `user password`, where the user ends at the first blank.
//!
//! A wrong password is answered after a second, and nothing that its connection sends is looked at meanwhile; after
//! five the connection is closed. No thread waits: the connection has a deadline, as one whose request is held.
//!
//! memcached silently leaves out what is beyond its limits; here such a file is an error, since a user who
//! cannot log in is found sooner that way.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use subtle::{Choice, ConstantTimeEq};

/// Users a file may have, as in memcached.
pub const USERS_MAX: usize = 8;

/// Bytes a line may have without its end, as in memcached.
pub const LINE_BYTES_MAX: usize = 255;

/// A wrong login is answered after this time, in milliseconds.
pub(crate) const DELAY_MS: u64 = 1000;

/// A connection is closed after this many wrong logins.
pub(crate) const FAILURES_MAX: u8 = 5;

/// The wrong logins of a connection.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    count: u8,
    /// When the last one is due for its answer.
    answer_ms: Option<u64>,
}

impl Failures {
    /// A wrong login at `now_ms`.
    pub(crate) fn note(&mut self, now_ms: u64) {
        self.count = self.count.saturating_add(1);
        self.answer_ms = Some(now_ms + DELAY_MS);
    }

    /// When the last one is due for its answer, if it has none yet.
    #[inline]
    pub(crate) fn answer_ms(&self) -> Option<u64> {
        self.answer_ms
    }

    /// Whether it is time to answer, once; `Some(true)`: and to close.
    pub(crate) fn answer(&mut self, now_ms: u64) -> Option<bool> {
        self.answer_ms.take_if(|at| *at <= now_ms).map(|_| self.count >= FAILURES_MAX)
    }
}

/// Why the file of `-Y` cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// It cannot be read.
    #[error("-Y {}: cannot be read: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A line is no `user:password`.
    #[error("-Y {}: line {line}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong and what would be right.
        problem: &'static str,
    },
    /// It names nobody, so that no client could log in.
    #[error("-Y {}: is empty; it needs a line user:password", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// The users of the file of `-Y`; shared by all threads.
#[derive(Debug)]
pub struct AuthFile {
    path: PathBuf,
    users: ArcSwap<Users>,
}

/// Users and passwords that were read, not yet in use.
pub struct Users(Vec<User>);

struct User {
    name: Box<[u8]>,
    password: Box<[u8]>,
}

/// Says how many, never who: it may end up in a log.
impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} users", self.0.len())
    }
}

impl AuthFile {
    /// Reads the file.
    pub fn load(path: &Path) -> Result<Self, AuthError> {
        let users = read(path)?;
        Ok(Self { path: path.to_owned(), users: ArcSwap::from_pointee(users) })
    }

    /// Reads the file again; use the result with [`AuthFile::replace`].
    pub fn read_again(&self) -> Result<Users, AuthError> {
        read(&self.path)
    }

    /// From now on these users count; who is logged in stays so.
    pub fn replace(&self, users: Users) {
        self.users.store(Arc::new(users));
    }

    /// Reads the file again and uses it; on an error the old users stay.
    pub fn reload(&self) -> Result<(), AuthError> {
        self.read_again().map(|users| self.replace(users))
    }

    /// Whether `payload`, the data of a client's `set` without its `\r\n`, is a user, a blank and the user's
    /// password.
    ///
    /// Compares with every user in full: the time tells the lengths, as it does in memcached, but not how much
    /// of a guess is right.
    pub fn check(&self, payload: &[u8]) -> bool {
        let Some(blank) = payload.iter().position(|byte| *byte == b' ') else { return false };
        let (name, password) = (&payload[..blank], &payload[blank + 1..]);
        let users = self.users.load();
        let mut known = Choice::from(0);
        for user in &users.0 {
            known |= user.name.ct_eq(name) & user.password.ct_eq(password);
        }
        known.into()
    }
}

fn read(path: &Path) -> Result<Users, AuthError> {
    let unreadable = |error| AuthError::Unreadable { path: path.to_owned(), error };
    let text = cattlegrid_config::read_file(path).map_err(unreadable)?;
    let mut users = Vec::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let malformed = |problem| AuthError::Malformed { path: path.to_owned(), line: index + 1, problem };
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        if line.len() > LINE_BYTES_MAX {
            return Err(malformed("is longer than 255 bytes; shorten the password"));
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return Err(malformed("has no colon; a line is user:password"));
        };
        if users.len() == USERS_MAX {
            return Err(malformed("is one user too many; a file has up to 8"));
        }
        users.push(User { name: line[..colon].into(), password: line[colon + 1..].into() });
    }
    if users.is_empty() {
        return Err(AuthError::Empty { path: path.to_owned() });
    }
    Ok(Users(users))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(text: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text).unwrap();
        file
    }

    fn problem(text: &[u8]) -> String {
        let file = file(text);
        let error = AuthFile::load(file.path()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("-Y {}: ", file.path().display())));
        error
    }

    #[test]
    fn who_may_come_in() {
        let file = file(b"foo:bar\nbob:p:w with blanks\r\n\nlast:no newline");
        let auth = AuthFile::load(file.path()).unwrap();
        for good in [&b"foo bar"[..], b"bob p:w with blanks", b"last no newline"] {
            assert!(auth.check(good));
        }
        for wrong in
            [&b"foo baz"[..], b"foo", b"", b" ", b"foo ba", b"foo barr", b"fo bar", b"foo bar ", b"bob bar"]
        {
            assert!(!auth.check(wrong), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn a_reload_swaps_or_keeps_the_old() {
        let file = file(b"foo:bar\n");
        let auth = AuthFile::load(file.path()).unwrap();
        file.as_file().set_len(0).unwrap();
        assert!(auth.reload().is_err());
        assert!(auth.check(b"foo bar"));
        std::fs::write(file.path(), b"foo:new\n").unwrap();
        auth.reload().unwrap();
        assert!(auth.check(b"foo new") && !auth.check(b"foo bar"));
        std::fs::remove_file(file.path()).unwrap();
        assert!(auth.reload().unwrap_err().to_string().contains("cannot be read: No such file"));
        assert!(auth.check(b"foo new"));
    }

    #[test]
    fn files_that_make_no_sense() {
        assert!(problem(b"").contains("is empty"));
        assert!(problem(b"\n\n").contains("is empty"));
        assert!(problem(b"a:b\nfoo\n").contains("line 2: has no colon"));
        assert!(problem(&b"a:b\n".repeat(9)).contains("line 9: is one user too many"));
        assert!(problem(&[b'a', b':'].into_iter().chain([b'x'; 254]).collect::<Vec<_>>()).contains("longer"));
        AuthFile::load(file(&b"a:b\n".repeat(8)).path()).unwrap();
        let longest: Vec<u8> = [b'a', b':'].into_iter().chain([b'x'; 253]).collect();
        AuthFile::load(file(&longest).path()).unwrap();
    }

    #[test]
    fn failures_are_answered_late_and_end_the_connection() {
        let mut failures = Failures::default();
        for failure in 1..=u64::from(FAILURES_MAX) {
            let now = failure * 10_000;
            failures.note(now);
            assert_eq!(failures.answer_ms(), Some(now + DELAY_MS));
            assert_eq!(failures.answer(now + DELAY_MS - 1), None);
            assert_eq!(failures.answer(now + DELAY_MS), Some(failure == u64::from(FAILURES_MAX)));
            assert_eq!(failures.answer(now + DELAY_MS), None, "once");
        }
    }

    #[test]
    fn the_debug_text_tells_no_password() {
        let file = file(b"foo:bar\n");
        assert!(!format!("{:?}", AuthFile::load(file.path()).unwrap()).contains("bar"));
    }
}
