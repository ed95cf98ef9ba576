//! The command line of `cattlegrid top`.

use std::path::PathBuf;
use std::time::Duration;

use crate::command_line::{Command, next_value};
use crate::error::UsageError;
use crate::help::HelpTopic;
use crate::problems::{most_similar, nearest};

/// The default server.
const ADDRESS: &str = "127.0.0.1:11211";
/// memcached's port, for an address without a port.
const PORT: u16 = 11211;
const OPTIONS: [&str; 7] = ["--once", "--view", "--interval", "--login", "--tls", "--tls-ca", "--ascii"];

/// The views of `top`, in the order of their keys 1 to 9, then 0.
pub const TOP_VIEWS: [&str; 10] =
    ["main", "rules", "loaders", "objects", "keys", "slow", "memory", "fleet", "times", "all"];

/// The options of `cattlegrid top`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopCommand {
    /// The server: host:port, with IPv6 addresses in brackets, or the path of a Unix socket, which begins
    /// with `/`.
    pub address: String,
    /// Whether to print the present state as text, and exit.
    pub once: bool,
    /// The view to begin with, or to print: one of [`TOP_VIEWS`].
    pub view: Option<&'static str>,
    /// The time between two updates, 0.2 s to 60 s.
    pub interval: Duration,
    /// A file whose first line is `user:password`.
    pub login: Option<PathBuf>,
    /// Whether to use TLS.
    pub tls: bool,
    /// The authorities of the server's certificate, PEM; None: any certificate is accepted.
    pub tls_ca: Option<PathBuf>,
    /// Whether to draw with ASCII only, in any locale.
    pub ascii: bool,
}

impl Default for TopCommand {
    fn default() -> Self {
        Self {
            address: ADDRESS.to_owned(),
            once: false,
            view: None,
            interval: Duration::from_secs(1),
            login: None,
            tls: false,
            tls_ca: None,
            ascii: false,
        }
    }
}

/// Parses `[ADDR] [OPTION]...`, in any order.
pub(crate) fn parse_top(words: &[String]) -> Result<Command, UsageError> {
    let mut command = TopCommand::default();
    let mut address = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (name, given) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (word.as_str(), None),
        };
        let mut value = |what: &str| {
            let missing = || UsageError::new(format!("top {name}: needs a value: {what}"));
            given.clone().or_else(|| next_value(&mut words).cloned()).ok_or_else(missing)
        };
        match name {
            "-h" | "--help" => return Ok(Command::Help(HelpTopic::Top)),
            "--once" | "--tls" | "--ascii" if given.is_some() => {
                return Err(UsageError::new(format!("top {name}: takes no value")));
            }
            "--once" => command.once = true,
            "--tls" => command.tls = true,
            "--ascii" => command.ascii = true,
            "--view" => command.view = Some(view(&value("the name of a view")?)?),
            "-n" | "--interval" => command.interval = interval(&value("seconds, 0.2 to 60")?)?,
            "--login" => {
                command.login = Some(PathBuf::from(value("a file whose first line is user:password")?));
            }
            "--tls-ca" => command.tls_ca = Some(PathBuf::from(value("a file of certificates, PEM")?)),
            _ if word.starts_with('-') => {
                let near = most_similar(word, OPTIONS.into_iter()).map_or_else(
                    || format!("there are {}", OPTIONS.join(", ")),
                    |meant| format!("did you mean {meant}?"),
                );
                return Err(UsageError::new(format!("top {word}: unknown option; {near}")));
            }
            _ if address.is_some() => {
                return Err(UsageError::new(format!("top {word}: unexpected; top takes one address")));
            }
            _ => address = Some(with_port(word)),
        }
    }
    if command.tls_ca.is_some() && !command.tls {
        return Err(UsageError::new("top --tls-ca: is for --tls, which is not given"));
    }
    command.address = address.unwrap_or(command.address);
    Ok(Command::Top(Box::new(command)))
}

fn view(given: &str) -> Result<&'static str, UsageError> {
    TOP_VIEWS.into_iter().find(|name| *name == given).ok_or_else(|| {
        let near = nearest(given, TOP_VIEWS.into_iter());
        UsageError::new(format!("top --view {given}: no such view; {near}"))
    })
}

fn interval(given: &str) -> Result<Duration, UsageError> {
    let seconds = given.parse::<f64>().ok().filter(|seconds| (0.2..=60.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        UsageError::new(format!("top --interval {given}: must be a number of seconds, 0.2 to 60"))
    })
}

/// The address, with memcached's port if it has none.
fn with_port(given: &str) -> String {
    let is_bare_ipv6 = given.parse::<std::net::Ipv6Addr>().is_ok();
    if given.contains('/') {
        given.to_owned()
    } else if is_bare_ipv6 {
        format!("[{given}]:{PORT}")
    } else if given.ends_with(']') || !given.contains(':') {
        format!("{given}:{PORT}")
    } else {
        given.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::parse_args;

    fn top(words: &[&str]) -> Result<TopCommand, String> {
        match parse_args(["top"].iter().chain(words)) {
            Ok(Command::Top(command)) => Ok(*command),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn an_address_has_a_port_and_may_be_left_out() {
        for (given, address) in [
            ("cache1", "cache1:11211"),
            ("cache1:7", "cache1:7"),
            ("::1", "[::1]:11211"),
            ("[::1]", "[::1]:11211"),
            ("[::1]:7", "[::1]:7"),
            ("/run/cattlegrid.sock", "/run/cattlegrid.sock"),
            ("./own.sock", "./own.sock"),
        ] {
            assert_eq!(top(&[given]).unwrap().address, address);
        }
        assert_eq!(top(&[]).unwrap(), TopCommand::default());
    }

    #[test]
    fn options_in_both_spellings() {
        let command =
            top(&["--once", "--view=rules", "a:1", "--interval", "0.5", "--tls", "--tls-ca", "ca.pem"]);
        let command = command.unwrap();
        assert!(command.once && command.tls && !command.ascii);
        assert_eq!((command.view, command.interval), (Some("rules"), Duration::from_millis(500)));
        assert_eq!(command.tls_ca, Some(PathBuf::from("ca.pem")));
        assert_eq!(top(&["-n", "60", "--login=f"]).unwrap().login, Some(PathBuf::from("f")));
    }

    #[test]
    fn mistakes_name_what_would_be_right() {
        for (words, part) in [
            (&["a", "b"][..], "takes one address"),
            (&["--onc"], "did you mean --once?"),
            (&["--wxyz-wxyz-wxyz"], "there are --once, --view"),
            (&["--view", "rule"], "rules"),
            (&["--interval", "0.1"], "0.2 to 60"),
            (&["--interval", "nan"], "0.2 to 60"),
            (&["--interval"], "needs a value"),
            (&["--tls-ca", "x"], "is for --tls"),
            (&["--once=1"], "takes no value"),
        ] {
            let error = top(words).unwrap_err();
            assert!(error.contains(part), "{words:?}: {error}");
        }
        assert!(top(&["--help"]).unwrap_err().contains("Help(Top)"));
    }
}
