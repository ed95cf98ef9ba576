//! The rights of each user: the tables `[[user]]` of the rule file, for the users in the file of users.
//!
//! A connection keeps the limits of its user; without limits, its requests are not checked. After a reload it
//! looks them up again. A user that was removed from the file has no rights on open connections.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use cattlegrid_config::RuleFile;
use cattlegrid_engine::Rights;

use super::AuthFile;
use super::users::{AuthError, NamedBy, Users};

/// The name of the table for all users without their own.
pub(crate) const OTHERS: &str = "*";
/// The most users that a log line names.
const NAMED_MAX: usize = 8;

/// A user with limits.
#[derive(Debug)]
pub(crate) struct LimitedUser {
    pub(crate) user: Arc<[u8]>,
    pub(crate) rights: Rights,
}

/// The rights of all users; without tables, every user may do everything.
#[derive(Debug, Default)]
pub(crate) struct Grants(Option<Tables>);

#[derive(Debug)]
struct Tables {
    /// The rights of each user with a table.
    own: HashMap<Box<[u8]>, Rights>,
    /// The rights of all other users.
    others: Rights,
    /// Whether there is a table for `others`.
    has_others: bool,
    /// The users in the file, each once, whatever its number of names.
    known: HashSet<Arc<[u8]>>,
}

impl Grants {
    /// The rights in the tables of a rule file. `named`: the name of the file of users in messages.
    ///
    /// # Errors
    /// A table is for an unknown user.
    pub(super) fn of(file: Option<&RuleFile>, users: &Users, named: &str) -> Result<Self, AuthError> {
        let Some(file) = file.filter(|file| !file.users.is_empty()) else { return Ok(Self(None)) };
        let known: HashSet<Arc<[u8]>> = users.all().iter().map(|user| Arc::clone(&user.identity)).collect();
        let mut tables = Tables { own: HashMap::new(), others: Rights::all(), has_others: false, known };
        for user in &file.users {
            if user.name == OTHERS {
                (tables.others, tables.has_others) = (user.rights.clone(), true);
                continue;
            }
            if !tables.known.contains(user.name.as_bytes()) {
                return Err(AuthError::Rights {
                    place: file.place_of(user),
                    problem: format!(
                        "user {:?}: is not in {named}; add a line {}:PASSWORD there, or leave the table out",
                        user.name, user.name
                    ),
                });
            }
            tables.own.insert(user.name.as_bytes().into(), user.rights.clone());
        }
        Ok(Self(Some(tables)))
    }

    /// The limits of a user; None: the user may do everything.
    pub(super) fn limited(&self, user: &Arc<[u8]>) -> Option<Arc<LimitedUser>> {
        let tables = self.0.as_ref()?;
        let rights = if tables.known.contains(&**user) {
            tables.own.get(&**user).unwrap_or(&tables.others).clone()
        } else {
            Rights::none()
        };
        rights.is_limited().then(|| Arc::new(LimitedUser { user: Arc::clone(user), rights }))
    }

    /// A log line with the users who have all rights because they have no table; None: there are none.
    pub(crate) fn notice(&self) -> Option<String> {
        let tables = self.0.as_ref().filter(|tables| !tables.has_others)?;
        let mut names: Vec<_> = tables
            .known
            .iter()
            .filter(|name| !tables.own.contains_key(&***name))
            .map(|name| shown(name))
            .collect();
        names.sort();
        if names.is_empty() {
            return None;
        }
        let more = names.len().saturating_sub(NAMED_MAX);
        names.truncate(NAMED_MAX);
        let mut line = format!("without a [[user]] and so with all rights: {}", names.join(", "));
        if more > 0 {
            // Writing to a string cannot fail.
            let _ok = write!(line, " and {more} more");
        }
        line.push_str("; [[user]] name = \"*\" is for these");
        Some(line)
    }
}

/// The rights in the tables of a rule file; None: clients need not log in. `users`: the users that were read,
/// in place of those in force.
pub(crate) fn grants_of(
    auth: Option<&AuthFile>,
    users: Option<&Users>,
    file: Option<&RuleFile>,
) -> Result<Option<Grants>, AuthError> {
    if let Some(auth) = auth {
        return auth.grants_of(users, file).map(Some);
    }
    let user = file.and_then(|file| Some((file, file.users.first()?)));
    let Some((file, user)) = user else { return Ok(None) };
    Err(AuthError::Rights {
        place: file.place_of(user),
        problem: format!(
            "user {:?}: clients of this server need not log in; name a file of users by -Y ([server] auth_file), or leave the table out",
            user.name
        ),
    })
}

/// Checks for `cattlegrid check` that each `[[user]]` is in the file of users that the rule file's `[server]`
/// names. Without such a file, or if it cannot be read here, no check is possible.
///
/// # Errors
/// A table is for an unknown user.
pub fn check_users(file: &RuleFile) -> Result<(), AuthError> {
    let auth = file.auth_file().and_then(|path| AuthFile::load(NamedBy::CommandLine, &path).ok());
    auth.map_or(Ok(()), |auth| auth.grants_of(None, Some(file)).map(|_| ()))
}

/// A user's name as log lines show it.
fn shown(name: &[u8]) -> String {
    format!("\"{}\"", name.escape_ascii())
}

/// Log lines about refused requests: one for each user and command, and at most [`LINES_MAX`] in a minute.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog(Mutex<RefusalLines>);

#[derive(Debug, Default)]
struct RefusalLines {
    since_ms: u64,
    said: HashSet<(Arc<[u8]>, &'static str)>,
}

/// The most lines in a minute.
const LINES_MAX: usize = 16;
/// The time in which a line is not repeated, in milliseconds.
const QUIET_MS: u64 = 60_000;

impl RefusalLog {
    /// The line about a refused request, unless it was logged within [`QUIET_MS`].
    pub(crate) fn line(
        &self,
        limited: &LimitedUser,
        command: &'static str,
        peer: &str,
        now_ms: u64,
    ) -> Option<String> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now_ms.saturating_sub(lines.since_ms) >= QUIET_MS {
            (lines.since_ms, lines.said) = (now_ms, HashSet::new());
        }
        let is_new = lines.said.len() < LINES_MAX && lines.said.insert((Arc::clone(&limited.user), command));
        is_new.then(|| format!("{peer}: user {} is not allowed: {command}", shown(&limited.user)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cattlegrid_engine::Right;

    use super::*;
    use crate::auth::tests::file;

    fn grants(tables: &str, named_by: NamedBy, users: &str) -> Result<Grants, String> {
        let users = file(users.as_bytes());
        let users = Users::read(named_by, users.path()).unwrap();
        let rules = RuleFile::parse(Path::new("r.toml"), tables).unwrap();
        Grants::of(Some(&rules), &users, "-Y u").map_err(|error| error.to_string())
    }

    fn name(text: &str) -> Arc<[u8]> {
        text.as_bytes().into()
    }

    #[test]
    fn who_is_limited() {
        let one = "[[user]]\nname = \"bob\"\nrights = [\"read\"]\n";
        let both = grants(one, NamedBy::CommandLine, "bob:x\nann:y\n").unwrap();
        assert!(both.limited(&name("ann")).is_none());
        let bob = both.limited(&name("bob")).unwrap();
        assert!(bob.rights.set.has(Right::Read) && !bob.rights.set.has(Right::Write));
        assert!(both.notice().unwrap().contains("\"ann\"; "));
        let gone = both.limited(&name("eve")).unwrap();
        assert_eq!(gone.rights, Rights::none(), "it was removed from the file");
        let rest = format!("{one}[[user]]\nname = \"*\"\nprefix = \"p:\"\n");
        let rest = grants(&rest, NamedBy::CommandLine, "bob:x\nann:y\n").unwrap();
        assert_eq!(&*rest.limited(&name("ann")).unwrap().rights.prefix, b"p:");
        assert!(rest.notice().is_none());
        let none = grants("", NamedBy::CommandLine, "bob:x\n").unwrap();
        assert!(none.limited(&name("gone")).is_none() && none.notice().is_none());
    }

    #[test]
    fn a_realm_is_no_way_round() {
        let table = "[[user]]\nname = \"bob@host\"\nrights = [\"read\"]\n";
        let users = file(b"bob@host:x\n");
        let auth = AuthFile::load(NamedBy::Environment, users.path()).unwrap();
        let rules = RuleFile::parse(Path::new("r.toml"), table).unwrap();
        auth.grant(auth.grants_of(None, Some(&rules)).unwrap());
        let user = auth.user_of(b"bob x").unwrap();
        assert!(auth.limited(&user).is_some(), "it logs in by its other name");
    }

    #[test]
    fn a_table_of_nobody() {
        let error = grants("\n[[user]]\nname = \"bob\"\n", NamedBy::CommandLine, "ann:y\n").unwrap_err();
        assert!(
            error.starts_with("r.toml:2: user \"bob\": is not in -Y u; add a line bob:PASSWORD"),
            "{error}"
        );
    }

    #[test]
    fn lines_are_few() {
        let said = RefusalLog::default();
        let bob = LimitedUser { user: name("bo\nb"), rights: Rights::none() };
        let line = said.line(&bob, "set", "peer", 0).unwrap();
        assert_eq!(line, "peer: user \"bo\\nb\" is not allowed: set");
        assert!(said.line(&bob, "set", "peer", 1).is_none());
        assert!(said.line(&bob, "get", "peer", 1).is_some());
        assert!(said.line(&bob, "set", "peer", QUIET_MS).is_some());
        for n in 0..100 {
            let user = LimitedUser { user: name(&n.to_string()), rights: Rights::none() };
            assert_eq!(said.line(&user, "set", "peer", QUIET_MS).is_some(), n < LINES_MAX - 1);
        }
    }
}
