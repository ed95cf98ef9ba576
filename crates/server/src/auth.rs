//! Logins: the users that may log in, and the check of the name and password that a client sent.
//!
//! A text client logs in with `set <any key> <any> <any> <length>` and the data `user password`, where the
//! user ends at the first blank; a binary client by SASL PLAIN. `auth/users.rs` reads the file of users,
//! which is the same for both.
//!
//! A wrong password is answered after about 400 ms, and nothing that its connection sends is read meanwhile.
//! After five wrong passwords, in any protocol, the connection is closed. No thread waits: the connection has
//! a deadline, like a connection whose request is held. The delay is less than a second, since some clients
//! take a server for dead after that. It varies, so that it does not tell when the password was checked.
//! Guessing is limited by the number of attempts that an address has (`attempts.rs`).

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

/// The delay before a wrong login is answered, in milliseconds; each time a random value in this range.
pub(crate) const DELAY_MS: RangeInclusive<u64> = 350..=450;

/// The number of wrong logins after which a connection is closed.
pub(crate) const FAILURES_MAX: u8 = 5;

/// The wrong logins of one connection.
#[derive(Debug, Default)]
pub(crate) struct LoginFailures {
    count: u8,
    /// When the answer to the last wrong login is due; None: it was sent.
    answer_ms: Option<u64>,
}

impl LoginFailures {
    /// Counts a wrong login at `now_ms`. `random` chooses the delay of its answer.
    pub(crate) fn note(&mut self, now_ms: u64, random: u64) {
        self.count = self.count.saturating_add(1);
        let (least, most) = DELAY_MS.into_inner();
        self.answer_ms = Some(now_ms + least + random % (most - least + 1));
    }

    /// Notes a login that the server did not check: its connection is closed after the answer.
    pub(crate) fn note_last(&mut self, now_ms: u64, random: u64) {
        self.note(now_ms, random);
        self.count = FAILURES_MAX;
    }

    /// When the answer to the last wrong login is due, if it was not sent.
    #[inline]
    pub(crate) fn answer_ms(&self) -> Option<u64> {
        self.answer_ms
    }

    /// Whether the answer is due: `Some(close)` once when it is, where `close` says whether the connection is
    /// closed after it.
    pub(crate) fn answer(&mut self, now_ms: u64) -> Option<bool> {
        self.answer_ms.take_if(|at| *at <= now_ms).map(|_| self.count >= FAILURES_MAX)
    }
}

/// The file of users who may log in, shared by all threads.
#[derive(Debug)]
pub struct AuthFile {
    named_by: NamedBy,
    path: PathBuf,
    users: ArcSwap<Users>,
    grants: ArcSwap<Grants>,
    /// The number of changes of rights: connections look up their rights again after each.
    generation: AtomicU64,
    /// Wrong logins by client address.
    pub(crate) attempts: Attempts,
}

impl AuthFile {
    /// Reads the file of users that the settings name; None if clients need not log in. `pwdb`: the value of
    /// `MEMCACHED_SASL_PWDB` in the environment, which counts under `-S` without `-Y`.
    ///
    /// # Errors
    /// A login is required and there is no file, or the file cannot be used.
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

    /// Reads the file. A relative path is made absolute, so that it names the same file after a change of
    /// directory.
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

    /// Reads the file again, for [`AuthFile::replace`].
    pub fn read_again(&self) -> Result<Users, AuthError> {
        Users::read(self.named_by, &self.path)
    }

    /// Replaces the users. Clients that are logged in stay logged in.
    pub fn replace(&self, users: Users) {
        self.users.store(Arc::new(users));
    }

    /// The rights of the tables of `[[user]]`, whose names must be among `users`, or, if that is None, among
    /// the users in force. The caller refuses tables on a server without a file of users.
    pub(crate) fn grants_of(
        &self,
        users: Option<&Users>,
        file: Option<&RuleFile>,
    ) -> Result<Grants, AuthError> {
        let in_force = self.users.load();
        Grants::of(file, users.unwrap_or(&in_force), &format!("{} {}", self.named_by, self.path.display()))
    }

    /// Replaces the rights of all users, on open connections too.
    pub(crate) fn grant(&self, grants: Grants) {
        self.grants.store(Arc::new(grants));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The number of times that rights were replaced.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The rights of a user with limits; None: the user may do everything.
    pub(crate) fn limited(&self, user: &Arc<[u8]>) -> Option<Arc<LimitedUser>> {
        self.grants.load().limited(user)
    }

    /// Reads the file again and replaces the users; after an error the old users stay.
    pub fn reload(&self) -> Result<(), AuthError> {
        self.read_again().map(|users| self.replace(users))
    }

    /// Whether `payload`, the data of a client's `set` without `\r\n`, is a user's name, a blank and the
    /// user's password.
    pub fn check(&self, payload: &[u8]) -> bool {
        self.user_of(payload).is_some()
    }

    /// The user whose name and password are in `payload`, as in [`AuthFile::check`].
    pub(crate) fn user_of(&self, payload: &[u8]) -> Option<Arc<[u8]>> {
        let blank = payload.iter().position(|byte| *byte == b' ')?;
        self.known(&payload[..blank], &payload[blank + 1..])
    }

    /// Whether `initial_response`, a client's message of SASL PLAIN (RFC 4616), is `[authzid] NUL user NUL
    /// password` of a user, where the authzid is empty or the user's name.
    pub fn check_plain(&self, initial_response: &[u8]) -> bool {
        self.user_of_plain(initial_response).is_some()
    }

    /// The user of a message of SASL PLAIN, as in [`AuthFile::check_plain`].
    pub(crate) fn user_of_plain(&self, initial_response: &[u8]) -> Option<Arc<[u8]>> {
        let mut parts = initial_response.split(|byte| *byte == 0);
        let (Some(authzid), Some(name), Some(password), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return None;
        };
        // A file of `-Y` may have a user with an empty name or password, which PLAIN does not allow.
        let is_plain = !name.is_empty() && !password.is_empty();
        if is_plain && (authzid.is_empty() || authzid == name) { self.known(name, password) } else { None }
    }

    /// The user with this name and this password.
    ///
    /// Each user is compared in full, so that the time does not tell how much of a guess is right. It
    /// tells the lengths, as in memcached.
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
        let mut failures = LoginFailures::default();
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
        let mut failures = LoginFailures::default();
        failures.note_last(0, 0);
        assert_eq!(failures.answer(*DELAY_MS.start()), Some(true), "not looked at");
    }

    #[test]
    fn the_debug_text_tells_no_password() {
        assert!(!format!("{:?}", load(b"foo:bar\n")).contains("bar"));
    }
}
