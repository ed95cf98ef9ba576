//! The two formats of a file of users, and their errors.
//!
//! The format of `-Y` has up to 8 lines `user:password`, each of up to 255 bytes. The user ends at the first
//! colon, the password at the end of the line. The format of `MEMCACHED_SASL_PWDB` has any number of such
//! lines, up to [`FILE_BYTES_MAX`] together. The password ends at the next colon, `\r` or the end of the
//! line, and of several lines of one user the first counts. A user `name@realm` can also log in as `name`:
//! libsasl2 removes the realm from a client's name.
//!
//! memcached silently ignores lines beyond its limits, and malformed lines. Here they are errors, so that a
//! user who cannot log in is noticed sooner.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most users in a file of `-Y`, as in memcached.
pub(crate) const USERS_MAX: usize = 8;

/// The most bytes of a line in it without its end, as in memcached.
pub(crate) const LINE_BYTES_MAX: usize = 255;

/// The most bytes of a file: each login is compared with all its users.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// The environment variable that names memcached's file of users for SASL.
pub(crate) const PWDB: &str = "MEMCACHED_SASL_PWDB";

/// The setting that names the file, which determines its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBy {
    /// `-Y`.
    CommandLine,
    /// `MEMCACHED_SASL_PWDB`.
    Environment,
}

impl fmt::Display for NamedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::CommandLine { "-Y" } else { PWDB })
    }
}

/// Why the users cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// `-S` was given without a file.
    #[error(
        "-S: SASL needs a file of users; add -Y <file>, or name memcached's own by {PWDB}=<file> in the environment"
    )]
    Missing,
    /// The file cannot be read.
    #[error("{named_by} {}: cannot be read: {error}", path.display())]
    Unreadable {
        /// The setting that names it.
        named_by: NamedBy,
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A line is not `user:password`.
    #[error("{named_by} {}: line {line}: {problem}", path.display())]
    Malformed {
        /// The setting that names it.
        named_by: NamedBy,
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The mistake and its correction.
        problem: &'static str,
    },
    /// A `[[user]]` is not for a user in the file.
    #[error("{place}: {problem}")]
    Rights {
        /// The rule file and the line of the table.
        place: String,
        /// The mistake and its correction.
        problem: String,
    },
    /// The file has no users, so that no client could log in.
    #[error("{named_by} {}: is empty; it needs a line user:password", path.display())]
    Empty {
        /// The setting that names it.
        named_by: NamedBy,
        /// The file.
        path: PathBuf,
    },
}

/// The users and passwords of a file.
pub struct Users(Vec<User>);

pub(super) struct User {
    pub(super) name: Box<[u8]>,
    pub(super) password: Box<[u8]>,
    /// The user's name in the file, under which rights are found.
    pub(super) identity: Arc<[u8]>,
}

impl User {
    fn new(name: &[u8], password: &[u8]) -> Self {
        Self { name: name.into(), password: password.into(), identity: name.into() }
    }
}

/// The debug text has the number of users, never names or passwords, since it may be logged.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} users", self.0.len())
    }
}

impl Users {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or has a malformed line or no users.
    pub(super) fn read(named_by: NamedBy, path: &Path) -> Result<Self, AuthError> {
        let text = read_file(path).map_err(|error| AuthError::Unreadable {
            named_by,
            path: path.to_owned(),
            error,
        })?;
        let read = match named_by {
            NamedBy::CommandLine => of_command_line(&text),
            NamedBy::Environment => of_environment(&text),
        };
        let users = read.map_err(|(line, problem)| AuthError::Malformed {
            named_by,
            path: path.to_owned(),
            line,
            problem,
        })?;
        if users.is_empty() {
            return Err(AuthError::Empty { named_by, path: path.to_owned() });
        }
        Ok(Self(users))
    }

    pub(super) fn all(&self) -> &[User] {
        &self.0
    }
}

/// The contents of a file of at most [`FILE_BYTES_MAX`].
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    cattlegrid_config::open_file(path)?.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut text)?;
    if text.len() > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB; leave users out"));
    }
    Ok(text)
}

/// A line's number from 1, and its mistake.
type LineProblem = (usize, &'static str);

/// The lines with their numbers from 1, without their ends and a last `\r`; empty lines are left out.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    (1..).zip(lines).filter(|(_, line)| !line.is_empty())
}

fn split_user(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((&line[..colon], &line[colon + 1..]))
}

const NO_COLON: &str = "has no colon; a line is user:password";

fn of_command_line(text: &[u8]) -> Result<Vec<User>, LineProblem> {
    let mut users = Vec::new();
    for (number, line) in lines(text) {
        if line.len() > LINE_BYTES_MAX {
            return Err((number, "is longer than 255 bytes; shorten the password"));
        }
        let (name, password) = split_user(line).ok_or((number, NO_COLON))?;
        if users.len() == USERS_MAX {
            return Err((number, "is one user too many; a file has up to 8"));
        }
        users.push(User::new(name, password));
    }
    Ok(users)
}

fn of_environment(text: &[u8]) -> Result<Vec<User>, LineProblem> {
    let (mut users, mut seen) = (Vec::new(), HashSet::new());
    for (number, line) in lines(text) {
        let (name, rest) = split_user(line).ok_or((number, NO_COLON))?;
        let end = rest.iter().position(|byte| matches!(byte, b':' | b'\r')).unwrap_or(rest.len());
        let password = &rest[..end];
        if name.is_empty() {
            return Err((number, "has no user before the colon; a line is user:password"));
        }
        if password.is_empty() {
            return Err((
                number,
                "has an empty password, which SASL PLAIN cannot send; a line is user:password",
            ));
        }
        if name.contains(&0) || password.contains(&0) {
            return Err((number, "has a byte 0, which no client can send; is the file UTF-16?"));
        }
        if seen.insert(name) {
            users.push(User::new(name, password));
        }
    }
    // libsasl2 removes the realm: `user@host` logs in as `user` too, unless `user` has a line of its own.
    let mut names: HashSet<Box<[u8]>> = users.iter().map(|user| user.name.clone()).collect();
    for at in 0..users.len() {
        let User { name, password, identity } = &users[at];
        let bare: Option<Box<[u8]>> =
            name.iter().rposition(|byte| *byte == b'@').map(|end| name[..end].into());
        if let Some(name) = bare.filter(|bare| !bare.is_empty() && names.insert(bare.clone())) {
            let (password, identity) = (password.clone(), Arc::clone(identity));
            users.push(User { name, password, identity });
        }
    }
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::NamedBy::{CommandLine, Environment};
    use super::*;
    use crate::auth::tests::file;

    fn read(named_by: NamedBy, text: &[u8]) -> Result<Users, String> {
        let file = file(text);
        Users::read(named_by, file.path()).map_err(|error| {
            let error = error.to_string();
            let start = format!("{named_by} {}: ", file.path().display());
            error.strip_prefix(&start).unwrap_or_else(|| panic!("{error}")).to_owned()
        })
    }

    fn pairs(users: &Users) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        users.all().iter().map(|user| format!("{} {}", text(&user.name), text(&user.password))).collect()
    }

    #[test]
    fn where_a_password_ends() {
        let text = b"foo:bar\nbob:p:w with blanks\r\n\r\n\nlast one:a\rb";
        assert_eq!(
            pairs(&read(CommandLine, text).unwrap()),
            ["foo bar", "bob p:w with blanks", "last one a\rb"]
        );
        assert_eq!(pairs(&read(Environment, text).unwrap()), ["foo bar", "bob p", "last one a"]);
        let twice = b"foo:1\nfoo:2:x\nfo:3\n";
        assert_eq!(pairs(&read(Environment, twice).unwrap()), ["foo 1", "fo 3"], "the first counts");
        assert_eq!(pairs(&read(CommandLine, twice).unwrap()), ["foo 1", "foo 2:x", "fo 3"]);
    }

    #[test]
    fn files_that_make_no_sense() {
        for named_by in [CommandLine, Environment] {
            let problem = |text: &[u8]| read(named_by, text).unwrap_err();
            assert!(problem(b"").starts_with("is empty"));
            assert!(problem(b"\n\r\n").starts_with("is empty"));
            assert!(problem(b"a:b\n\nfoo\n").starts_with("line 3: has no colon"));
            assert!(problem(b"# users\na:b\n").starts_with("line 1: has no colon"));
            let huge = b"ab:c\n".repeat(FILE_BYTES_MAX / 5 + 1);
            assert!(problem(&huge).starts_with("cannot be read: it is larger than 1 MiB"));
        }
        let problem = |text: &[u8]| read(Environment, text).unwrap_err();
        assert!(problem(b"a:b\n:c\n").starts_with("line 2: has no user"));
        assert!(problem(b"a:\n").starts_with("line 1: has an empty password"));
        assert!(problem(b"a::b\n").starts_with("line 1: has an empty password"));
        assert!(problem(b"a\0:\0b\0\n\0").starts_with("line 1: has a byte 0"));
        let problem = |text: &[u8]| read(CommandLine, text).unwrap_err();
        assert!(problem(&b"a:b\n".repeat(9)).starts_with("line 9: is one user too many"));
        assert!(problem(&[b"a:", [b'x'; 254].as_slice()].concat()).contains("longer"));
    }

    #[test]
    fn files_at_their_limits() {
        read(CommandLine, &b"a:b\n".repeat(8)).unwrap();
        read(CommandLine, &[b"a:", [b'x'; 253].as_slice()].concat()).unwrap();
        read(Environment, &[b"a:", [b'x'; 4000].as_slice()].concat()).unwrap();
        let many = (0..100_000).map(|user| format!("{user}:x")).collect::<Vec<_>>().join("\n");
        assert_eq!(read(Environment, many.as_bytes()).unwrap().all().len(), 100_000);
        let full = b"ab:c\n\n\n\n".repeat(FILE_BYTES_MAX / 8);
        assert_eq!(read(Environment, &full).unwrap().all().len(), 1);
    }

    #[test]
    fn a_file_that_is_missing_is_asked_for() {
        let said = AuthError::Missing.to_string();
        assert!(said.starts_with("-S: SASL needs a file") && said.contains("MEMCACHED_SASL_PWDB="), "{said}");
    }
}
