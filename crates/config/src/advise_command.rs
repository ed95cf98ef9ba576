//! The command line of `cattlegrid advise`.

use std::path::PathBuf;

use crate::command_line::{Command, next_value};
use crate::error::UsageError;
use crate::help::HelpTopic;

/// The options of `cattlegrid advise`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdviseCommand {
    /// The watched server: host:port, or the path of a Unix socket.
    pub address: String,
    /// How long to watch, in seconds, 1 to 86400.
    pub seconds: u64,
    /// Where the traffic is replayed, in the form of `address`; None: nowhere.
    pub shadow: Option<String>,
    /// Whether stored items are inspected too.
    pub dump: bool,
    /// TLS to the watched server; None: connections are plain.
    pub tls: Option<AdviseTls>,
    /// The login at the watched server; None: no login.
    pub login: Option<AdviseLogin>,
}

/// TLS to the watched server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdviseTls {
    /// A PEM file of authorities, one of which must have signed the server's certificate; None: any
    /// certificate is accepted.
    pub ca: Option<PathBuf>,
}

/// A login to the watched server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdviseLogin {
    /// The name.
    pub user: String,
    /// A file whose first line is the password.
    pub password_file: PathBuf,
}

/// The options that take a value, and a description of it.
const VALUES: &[(&str, &str)] = &[
    ("--seconds", "a number"),
    ("--shadow", "an address, <host:port> or the path of a unix socket"),
    ("--tls-ca", "a PEM file"),
    ("--user", "a name"),
    ("--password-file", "a file"),
];

/// Parses `ADDR [OPTION]...`, in any order.
///
/// # Errors
/// The mistake, with the option.
pub(crate) fn parse_advise(words: &[String]) -> Result<Command, UsageError> {
    let (mut address, mut seconds, mut shadow) = (None, 60, None);
    let (mut dump, mut tls, mut ca) = (true, false, None);
    let (mut user, mut password_file) = (None, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-h" | "--help" => return Ok(Command::Help(HelpTopic::Advise)),
            "--no-dump" => dump = false,
            "--tls" => tls = true,
            option if option.starts_with('-') => {
                let (name, attached) = match option.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (option, None),
                };
                let Some((_, what)) = VALUES.iter().find(|(known, _)| *known == name) else {
                    return Err(unknown(option));
                };
                let missing = || UsageError::new(format!("advise {name}: needs a value: {what}"));
                let value = attached.or_else(|| next_value(&mut words).cloned()).ok_or_else(missing)?;
                match name {
                    "--seconds" => seconds = seconds_of(&value)?,
                    "--shadow" => shadow = Some(value),
                    "--tls-ca" => ca = Some(PathBuf::from(value)),
                    "--user" => user = Some(value),
                    _ => password_file = Some(PathBuf::from(value)),
                }
            }
            _ if address.is_some() => {
                return Err(UsageError::new(format!("advise {word}: unexpected; advise takes one address")));
            }
            word => address = Some(word.to_owned()),
        }
    }
    let missing = || UsageError::new("advise: needs an address: advise <host:port> [--seconds <number>]");
    let address = address.ok_or_else(missing)?;
    if ca.is_some() && !tls {
        return Err(UsageError::new("advise --tls-ca: counts only with --tls"));
    }
    let login = match (user, password_file) {
        (Some(user), Some(password_file)) => Some(AdviseLogin { user, password_file }),
        (None, None) => None,
        (Some(_), None) => return Err(UsageError::new("advise --user: needs --password-file, too")),
        (None, Some(_)) => return Err(UsageError::new("advise --password-file: needs --user, too")),
    };
    let tls = tls.then_some(AdviseTls { ca });
    Ok(Command::Advise(Box::new(AdviseCommand { address, seconds, shadow, dump, tls, login })))
}

fn seconds_of(given: &str) -> Result<u64, UsageError> {
    let wrong = || UsageError::new(format!("advise --seconds {given}: must be a whole number, 1 to 86400"));
    given.parse().ok().filter(|seconds| (1..=86_400).contains(seconds)).ok_or_else(wrong)
}

fn unknown(word: &str) -> UsageError {
    let names: Vec<&str> = VALUES.iter().map(|(name, _)| *name).collect();
    UsageError::new(format!(
        "advise {word}: unknown option; there are {}, --tls and --no-dump",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse_advise(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read_in_any_order() {
        let Ok(Command::Advise(plain)) = parse("a:1") else { panic!("it is right") };
        let none = AdviseCommand {
            address: "a:1".to_owned(),
            seconds: 60,
            shadow: None,
            dump: true,
            tls: None,
            login: None,
        };
        assert_eq!(*plain, none);
        let line = "--shadow=b:2 --tls --tls-ca ca.pem a:1 --user me --password-file=p --no-dump --seconds 5";
        let Ok(Command::Advise(full)) = parse(line) else { panic!("it is right") };
        assert_eq!((full.seconds, full.shadow.as_deref(), full.dump), (5, Some("b:2"), false));
        assert_eq!(full.tls, Some(AdviseTls { ca: Some("ca.pem".into()) }));
        assert_eq!(full.login, Some(AdviseLogin { user: "me".to_owned(), password_file: "p".into() }));
    }

    #[test]
    fn mistakes_are_said() {
        for (line, said) in [
            ("", "needs an address"),
            ("a:1 b:2", "takes one address"),
            ("a:1 --seconds", "needs a value: a number"),
            ("a:1 --seconds 0", "1 to 86400"),
            ("a:1 --secs", "unknown option; there are --seconds, --shadow"),
            ("a:1 --shadow", "needs a value: an address"),
            ("a:1 --tls-ca f", "counts only with --tls"),
            ("a:1 --user u", "needs --password-file"),
            ("a:1 --password-file f", "needs --user"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(said), "{line}: {error}");
        }
    }
}
