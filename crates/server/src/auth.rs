//! Logging in: the users that may, and the check of what a client sent.
//!
//! A text client logs in with `set <any key> <any> <any> <length>` and the data `user password`, where the user ends at the
//! first blank; a binary client by SASL PLAIN. `auth/users.rs` reads the file of users, which is the same for both.
//!
//! A wrong password is answered after 400 ms or so, and nothing that its connection sends is looked at meanwhile; after
//! five the connection is closed, by whatever protocol they came. No thread waits: the connection has a deadline, as one
//! whose request is held. The time is below the second that some clients wait for any answer: beyond that they take the server for
//! dead. It is not the same each time, so that it does not tell when the password was looked at. What keeps guessers off is the
//! number of attempts that an address has (`attempts`).

pub(crate) mod attempts;
pub(crate) mod rights;
mod users;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use cattlegrid_config::{RuleFile, Settings};
use subtle::ConstantTimeEq;

use attempts::Attempts;
pub use rights::check_users;
use rights::{Grants, LimitedUser};
pub(crate) use users::PWDB;
pub use users::{AuthError, FILE_BYTES_MAX, NamedBy, Users};

/// A wrong login is answered after a time within these bounds, in milliseconds.
pub(crate) const DELAY_MS: RangeInclusive<u64> = 350..=450;

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
    /// A wrong login at `now_ms`; `random` chooses how long its answer takes.
    pub(crate) fn note(&mut self, now_ms: u64, random: u64) {
        self.count = self.count.saturating_add(1);
        let (least, most) = DELAY_MS.into_inner();
        self.answer_ms = Some(now_ms + least + random % (most - least + 1));
    }

    /// A login at which the server did not look: its connection is closed after the answer.
    pub(crate) fn note_last(&mut self, now_ms: u64, random: u64) {
        self.note(now_ms, random);
        self.count = FAILURES_MAX;
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

/// The users who may log in; shared by all threads.
#[derive(Debug)]
pub struct AuthFile {
    named_by: NamedBy,
    path: PathBuf,
    users: ArcSwap<Users>,
    grants: ArcSwap<Grants>,
    /// How often these have been replaced: connections ask anew after that.
    generation: AtomicU64,
    /// Wrong logins by address.
    pub(crate) attempts: Attempts,
}

impl AuthFile {
    /// Reads the file that the settings want, None if clients need not log in. `pwdb` is what the environment has for
    /// `MEMCACHED_SASL_PWDB`: it counts under `-S` without `-Y`.
    ///
    /// # Errors
    /// There is no file, or it cannot be used.
    pub fn of_settings(settings: &Settings, pwdb: Option<OsString>) -> Result<Option<Self>, AuthError> {
        if let Some(path) = &settings.auth_file {
            return Self::load(NamedBy::CommandLine, path).map(Some);
        }
        if !settings.auth_binary() {
            return Ok(None);
        }
        let path = pwdb.filter(|path| !path.is_empty()).ok_or(AuthError::Missing)?;
        Self::load(NamedBy::Environment, Path::new(&path)).map(Some)
    }

    /// Reads the file; a relative path stays the same file when the process moves to another directory.
    pub fn load(named_by: NamedBy, path: &Path) -> Result<Self, AuthError> {
        let users = Users::read(named_by, path)?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self {
            named_by,
            path,
            users: ArcSwap::from_pointee(users),
            grants: ArcSwap::default(),
            generation: AtomicU64::new(0),
            attempts: Attempts::default(),
        })
    }

    /// Reads the file again; use the result with [`AuthFile::replace`].
    pub fn read_again(&self) -> Result<Users, AuthError> {
        Users::read(self.named_by, &self.path)
    }

    /// From now on these users count; who is logged in stays so.
    pub fn replace(&self, users: Users) {
        self.users.store(Arc::new(users));
    }

    /// What the users of `[[user]]` may do, checked against these users, or against those in force. None for tables that a
    /// server without a file of users has is for the caller.
    pub(crate) fn grants_of(
        &self,
        users: Option<&Users>,
        file: Option<&RuleFile>,
    ) -> Result<Grants, AuthError> {
        let in_force = self.users.load();
        Grants::of(file, users.unwrap_or(&in_force), &format!("{} {}", self.named_by, self.path.display()))
    }

    /// From now on users have these rights, on connections that they have opened as well.
    pub(crate) fn grant(&self, grants: Grants) {
        self.grants.store(Arc::new(grants));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// How often rights were given.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// What limits the user; None: nothing.
    pub(crate) fn limited(&self, user: &Arc<[u8]>) -> Option<Arc<LimitedUser>> {
        self.grants.load().limited(user)
    }

    /// Reads the file again and uses it; on an error the old users stay.
    pub fn reload(&self) -> Result<(), AuthError> {
        self.read_again().map(|users| self.replace(users))
    }

    /// Whether `payload`, the data of a client's `set` without its `\r\n`, is a user, a blank and the user's
    /// password.
    pub fn check(&self, payload: &[u8]) -> bool {
        self.user_of(payload).is_some()
    }

    /// The user whose name and password `payload` has, as in [`AuthFile::check`].
    pub(crate) fn user_of(&self, payload: &[u8]) -> Option<Arc<[u8]>> {
        let blank = payload.iter().position(|byte| *byte == b' ')?;
        self.known(&payload[..blank], &payload[blank + 1..])
    }

    /// Whether `initial_response`, the message of a client's SASL PLAIN (RFC 4616), is `[authzid] NUL user NUL password` of a
    /// user, with no authzid or the user's own.
    pub fn check_plain(&self, initial_response: &[u8]) -> bool {
        self.user_of_plain(initial_response).is_some()
    }

    /// The user of a SASL PLAIN, as in [`AuthFile::check_plain`].
    pub(crate) fn user_of_plain(&self, initial_response: &[u8]) -> Option<Arc<[u8]>> {
        let mut parts = initial_response.split(|byte| *byte == 0);
        let (Some(authzid), Some(name), Some(password), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        // A file of `-Y` may have a user without a name or a password; PLAIN has neither.
        let is_plain = !name.is_empty() && !password.is_empty();
        if is_plain && (authzid.is_empty() || authzid == name) { self.known(name, password) } else { None }
    }

    /// The user with this name and this password.
    ///
    /// Compares with every user in full: the time tells the lengths, as it does in memcached, but not how much
    /// of a guess is right.
    fn known(&self, name: &[u8], password: &[u8]) -> Option<Arc<[u8]>> {
        let users = self.users.load();
        let mut known = None;
        for user in users.all() {
            if (user.name.ct_eq(name) & user.password.ct_eq(password)).into() {
                known = Some(Arc::clone(&user.identity));
            }
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    pub(super) fn file(text: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text).unwrap();
        file
    }

    fn load(text: &[u8]) -> AuthFile {
        AuthFile::load(NamedBy::CommandLine, file(text).path()).unwrap()
    }

    #[test]
    fn who_may_come_in() {
        let auth = load(b"foo:bar\nbob:p:w with blanks\r\n\nlast:no newline");
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
        let auth = AuthFile::load(NamedBy::CommandLine, file.path()).unwrap();
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
    fn who_may_come_in_by_plain() {
        let auth = load(b"foo:bar\nfoob:ar\nbob:p:w with blanks\n\xff\xfe:\xfd\nfoo:second\n");
        for good in [
            &b"\0foo\0bar"[..],
            b"foo\0foo\0bar",
            b"\0foob\0ar",
            b"bob\0bob\0p:w with blanks",
            b"\0\xff\xfe\0\xfd",
            b"\0foo\0second",
        ] {
            assert!(auth.check_plain(good), "{}", good.escape_ascii());
        }
        for wrong in [
            &b""[..],
            b"\0",
            b"\0\0",
            b"\0\0\0",
            b"foo bar",
            b"foo\0bar",
            b"\0foo",
            b"\0foo\0",
            b"\0\0bar",
            b"foo\0\0bar",
            b"\0\0foo\0bar",
            b"\0foo\0\0bar",
            b"\0foo\0bar\0",
            b"\0foo\0b\0r",
            b"\0foo\0ba",
            b"\0foo\0barr",
            b"\0foo\0BAR",
            b"\0foo\0ar",
            b"\0foob\0bar",
            b"\0fo\0bar",
            b"\0foo\0p:w with blanks",
            b"\0foo \0bar",
            b"bob\0foo\0bar",
            b"fo\0foo\0bar",
            b"fooo\0foo\0bar",
            b"\0mallory\0bar",
        ] {
            assert!(!auth.check_plain(wrong), "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn what_plain_has_no_message_for() {
        let auth = load(b"empty:\n:nobody\nnul:a\0b\n");
        assert!(auth.check(b"empty ") && auth.check(b" nobody") && auth.check(b"nul a\0b"));
        for wrong in [&b"\0empty\0"[..], b"\0\0nobody", b"\0nul\0a\0b", b"\0nul\0a"] {
            assert!(!auth.check_plain(wrong), "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn long_names_and_passwords_count_in_full() {
        let (name, password) = (vec![b'n'; 300], vec![b'p'; 70_000]);
        let file = file(&[&name[..], b":", &password, b"\n"].concat());
        let auth = AuthFile::load(NamedBy::Environment, file.path()).unwrap();
        let plain =
            |name: &[u8], password: &[u8]| auth.check_plain(&[name, b"\0", name, b"\0", password].concat());
        assert!(plain(&name, &password));
        assert!(!plain(&name[1..], &password) && !plain(&name, &password[1..]));
        assert!(!plain(&name, &vec![b'p'; 70_001]) && !plain(&name, &password[..255]));
        assert!(!auth.check_plain(&vec![b'x'; 1 << 20]) && !auth.check_plain(&vec![0; 1 << 20]));
    }

    #[test]
    fn which_file_counts() {
        let (option, environment) = (file(b"option:bar\n"), file(b"environment:bar\n"));
        let pwdb = || Some(environment.path().as_os_str().to_owned());
        let path = option.path().to_str().unwrap();
        let settings = |words: &[&str]| match cattlegrid_config::parse_args(words) {
            Ok(cattlegrid_config::Command::Serve(settings)) => *settings,
            other => panic!("{other:?}"),
        };
        for (words, user) in [
            (&["-S", "-Y", path][..], "option"),
            (&["-Y", path], "option"),
            (&["-S"], "environment"),
            (&["-S", "-B", "binary"], "environment"),
        ] {
            let auth = AuthFile::of_settings(&settings(words), pwdb()).unwrap().unwrap();
            assert!(auth.check_plain(format!("\0{user}\0bar").as_bytes()), "{words:?}");
            assert!(auth.check(format!("{user} bar").as_bytes()), "{words:?}");
            assert_eq!(auth.users.load().all().len(), 1, "{words:?}");
        }
        assert!(AuthFile::of_settings(&settings(&[]), pwdb()).unwrap().is_none());
        for pwdb in [None, Some(OsString::new())] {
            let error = AuthFile::of_settings(&settings(&["-S"]), pwdb).unwrap_err();
            assert!(matches!(error, AuthError::Missing), "{error}");
        }
        let error = AuthFile::of_settings(&settings(&["-S"]), Some("/no/such/file".into())).unwrap_err();
        assert!(error.to_string().starts_with("MEMCACHED_SASL_PWDB /no/such/file: cannot be read: No such"));
    }

    #[test]
    fn the_file_of_the_environment_is_reloaded() {
        let file = file(b"foo:bar:comment\n");
        let auth = AuthFile::load(NamedBy::Environment, file.path()).unwrap();
        std::fs::write(file.path(), b"foo:new\nbob\n").unwrap();
        let error = auth.reload().unwrap_err().to_string();
        assert!(
            error.starts_with("MEMCACHED_SASL_PWDB /") && error.contains(": line 2: has no colon"),
            "{error}"
        );
        assert!(auth.check_plain(b"\0foo\0bar"));
        std::fs::write(file.path(), b"foo:new:comment\n").unwrap();
        auth.reload().unwrap();
        assert!(auth.check_plain(b"\0foo\0new") && !auth.check_plain(b"\0foo\0bar"));
    }

    #[test]
    fn failures_are_answered_late_and_end_the_connection() {
        let mut failures = Failures::default();
        for failure in 1..=u64::from(FAILURES_MAX) {
            let now = failure * 10_000;
            failures.note(now, u64::MAX / failure);
            let at = failures.answer_ms().unwrap();
            assert!(DELAY_MS.contains(&(at - now)), "{}", at - now);
            assert_eq!(failures.answer(at - 1), None);
            assert_eq!(failures.answer(at), Some(failure == u64::from(FAILURES_MAX)));
            assert_eq!(failures.answer(at), None, "once");
        }
        let mut times = std::collections::BTreeSet::new();
        for random in 0..1000 {
            failures.note(0, random);
            times.insert(failures.answer_ms());
        }
        assert_eq!(times.len() as u64, DELAY_MS.end() - DELAY_MS.start() + 1);
        let mut failures = Failures::default();
        failures.note_last(0, 0);
        assert_eq!(failures.answer(*DELAY_MS.start()), Some(true), "not looked at");
    }

    #[test]
    fn the_debug_text_tells_no_password() {
        assert!(!format!("{:?}", load(b"foo:bar\n")).contains("bar"));
    }
}
