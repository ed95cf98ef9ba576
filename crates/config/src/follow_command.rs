//! The command line of `cattlegrid follow FILE --to SERVERS`, with the memcached servers.

use std::fmt;
use std::path::PathBuf;

use crate::command_line::{Command, next_value};
use crate::error::UsageError;
use crate::help::HelpTopic;
use crate::problems::most_similar;

/// The options of `cattlegrid follow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowCommand {
    /// The rule file.
    pub file: PathBuf,
    /// The name of the log in the file; None: the file has one log.
    pub log: Option<String>,
    /// The servers on which keys are deleted; at least one.
    pub servers: Vec<MemcachedServer>,
    /// How keys are distributed among the servers.
    pub distribution: Distribution,
    /// The prefix that the client library adds to a key after it has chosen the server.
    pub prefix: String,
    /// What to do when changed keys are unknown.
    pub on_gap: OnGap,
}

/// A memcached server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemcachedServer {
    /// The address as it was given, without the weight.
    pub name: String,
    /// The address.
    pub place: MemcachedAddress,
    /// The weight of its share of the keys; 1 to 65535.
    pub weight: u32,
}

/// The address of a memcached server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemcachedAddress {
    /// TCP.
    Tcp {
        /// A host name or a numeric address, without brackets.
        host: String,
        /// The port, 1 to 65535.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// How keys are distributed among servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distribution {
    /// libmemcached's `MEMCACHED_BEHAVIOR_KETAMA`.
    #[default]
    Ketama,
    /// libmemcached's `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`.
    KetamaWeighted,
    /// No distribution: each key is deleted on all servers.
    All,
}

/// What to do when changed keys are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnGap {
    /// A line in the log.
    #[default]
    Warn,
    /// All servers are emptied with `flush_all`.
    Flush,
}

impl Distribution {
    /// The names of `--distribution`, in the order of the variants.
    const NAMES: [&'static str; 3] = ["ketama", "ketama_weighted", "all"];

    /// The name in `--distribution`.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl MemcachedServer {
    /// The name that clients hash: `host:port`, and for a Unix socket `/path:0`.
    pub fn hashed_name(&self) -> String {
        match &self.place {
            MemcachedAddress::Tcp { host, port } => format!("{host}:{port}"),
            MemcachedAddress::Unix(path) => format!("{}:0", path.display()),
        }
    }

    /// Parses `host`, `host:port`, `host:port:weight`, `[v6]:port:weight`, `/path`, `unix:/path`.
    ///
    /// # Errors
    /// The mistake in the text.
    fn parse(text: &str) -> Result<Self, String> {
        let unix = text.strip_prefix("unix:").or(text.starts_with('/').then_some(text));
        if let Some(path) = unix {
            if !path.starts_with('/') {
                return Err("a path begins with /".to_owned());
            }
            return Ok(Self { name: path.to_owned(), place: MemcachedAddress::Unix(path.into()), weight: 1 });
        }
        if text.contains("://") {
            return Err("it is not a URL: leave out what is before the host".to_owned());
        }
        let (host, rest) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or("the bracket is not closed")?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        if text.starts_with("::") {
            return Err("an IPv6 address is written in brackets, [::1]:11211".to_owned());
        }
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err("the host is empty or has blanks".to_owned());
        }
        let mut numbers = rest.split(':');
        if numbers.next().is_some_and(|before| !before.is_empty()) {
            return Err("after the bracket there must be :port or nothing".to_owned());
        }
        let (port, weight) = (numbers.next(), numbers.next());
        if numbers.next().is_some() {
            return Err("write host:port:weight, and an IPv6 address in brackets".to_owned());
        }
        let number = |text: Option<&str>, otherwise: u16, what: &str| match text.map(str::parse::<u16>) {
            None => Ok(otherwise),
            Some(Ok(number @ 1..)) => Ok(number),
            Some(_) => Err(format!("the {what} is not a number from 1 to 65535")),
        };
        let port = number(port, PORT, "port")?;
        let weight = u32::from(number(weight, 1, "weight")?);
        let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Ok(Self { name: shown, place: MemcachedAddress::Tcp { host: host.to_owned(), port }, weight })
    }
}

impl fmt::Display for MemcachedServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.weight == 1 { Ok(()) } else { write!(f, ", weight {}", self.weight) }
    }
}

/// Parses the words after `follow`.
pub(crate) fn parse_follow(words: &[String]) -> Result<Command, UsageError> {
    let (mut file, mut log, mut servers) = (None, None, Vec::new());
    let (mut distribution, mut on_gap) = (Distribution::default(), OnGap::default());
    let mut prefix = String::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if matches!(word.as_str(), "-h" | "--help") {
            return Ok(Command::Help(HelpTopic::Follow));
        }
        if !word.starts_with('-') {
            if file.is_some() {
                return Err(UsageError::new(format!(
                    "follow {word}: unexpected; follow takes one rule file, and servers after --to"
                )));
            }
            file = Some(PathBuf::from(word));
            continue;
        }
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let Some((_, what)) = OPTIONS.iter().find(|(option, _)| *option == name) else {
            return Err(unknown(word));
        };
        let missing = || UsageError::new(format!("follow {name}: needs a value: {what}"));
        let value = attached.or_else(|| next_value(&mut words).cloned()).ok_or_else(missing)?;
        let wrong = |problem: &str| UsageError::new(format!("follow {name} {value}: {problem}"));
        match name {
            "--to" => servers.extend(parse_servers(&value)?),
            "--log" => log = Some(value),
            "--distribution" => {
                distribution = match value.as_str() {
                    "ketama" => Distribution::Ketama,
                    "ketama_weighted" => Distribution::KetamaWeighted,
                    "all" => Distribution::All,
                    _ => {
                        return Err(wrong(&format!(
                            "is unknown; there are {}",
                            Distribution::NAMES.join(", ")
                        )));
                    }
                }
            }
            "--on-gap" => {
                on_gap = match value.as_str() {
                    "warn" => OnGap::Warn,
                    "flush" => OnGap::Flush,
                    _ => return Err(wrong("is unknown; there are warn, flush")),
                }
            }
            _ if value.len() > PREFIX_MAX || value.bytes().any(|byte| byte <= b' ' || byte == 0x7f) => {
                return Err(wrong(&format!("has up to {PREFIX_MAX} bytes, and no blanks")));
            }
            _ => prefix = value,
        }
    }
    let file = file.ok_or_else(|| UsageError::new(format!("follow: needs a rule file: {FORM}")))?;
    if servers.is_empty() {
        return Err(UsageError::new(format!(
            "follow: needs the servers on which keys are deleted: {FORM}; a server that follows by itself is started \
             with --config <file>"
        )));
    }
    if servers.len() > SERVERS_MAX {
        return Err(UsageError::new(format!(
            "follow --to: {} servers; at most {SERVERS_MAX}",
            servers.len()
        )));
    }
    for (at, server) in servers.iter().enumerate() {
        let name = server.hashed_name();
        if servers[..at].iter().any(|other: &MemcachedServer| other.hashed_name() == name) {
            return Err(UsageError::new(format!("follow --to {server}: is there twice; name it once")));
        }
    }
    Ok(Command::Follow(FollowCommand { file, log, servers, distribution, prefix, on_gap }))
}

fn parse_servers(list: &str) -> Result<Vec<MemcachedServer>, UsageError> {
    let wrong = |text: &str, problem: &str| {
        UsageError::new(format!(
            "follow --to {text}: {problem}; write host:port or host:port:weight, by commas"
        ))
    };
    let each = list.split(',').map(|text| {
        let text = text.trim();
        if text.is_empty() {
            return Err(wrong(list, "names no server between two commas, or none at all"));
        }
        MemcachedServer::parse(text).map_err(|problem| wrong(text, &problem))
    });
    each.collect()
}

fn unknown(word: &str) -> UsageError {
    let near = match most_similar(word, OPTIONS.iter().map(|(name, _)| *name)) {
        Some(name) => format!("did you mean {name}?"),
        None => "there are --to, --log, --distribution, --prefix and --on-gap".to_owned(),
    };
    UsageError::new(format!("follow {word}: unknown option; {near}"))
}

const FORM: &str = "follow <file> --to <host:port,...>";

/// The options, each of which takes a value, and the descriptions of their values.
const OPTIONS: [(&str, &str); 5] = [
    ("--to", "servers, host:port by commas"),
    ("--log", "the name of a [follow.NAME]"),
    ("--distribution", "ketama, ketama_weighted or all"),
    ("--prefix", "what the client library puts before keys"),
    ("--on-gap", "warn or flush"),
];

/// The default port, which is memcached's.
const PORT: u16 = 11211;
/// The most servers, each of which has a connection.
const SERVERS_MAX: usize = 200;
/// The longest prefix, in bytes: half a key.
const PREFIX_MAX: usize = 125;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::parse_args;

    fn parse(line: &str) -> Result<FollowCommand, String> {
        match parse_args(line.split(' ')) {
            Ok(Command::Follow(command)) => Ok(command),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn servers_are_read() {
        let command = parse("follow f --to a,b:1,c:2:3,[::1]:4:5 --to=/run/m.sock").unwrap();
        let shown: Vec<String> = command.servers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a:11211", "b:1", "c:2, weight 3", "[::1]:4, weight 5", "/run/m.sock"]);
        let hashed: Vec<String> = command.servers.iter().map(MemcachedServer::hashed_name).collect();
        assert_eq!(hashed, ["a:11211", "b:1", "c:2", "::1:4", "/run/m.sock:0"]);
        assert_eq!((command.distribution, command.on_gap), (Distribution::Ketama, OnGap::Warn));
        let more = "follow --to a f --on-gap flush --distribution=all --prefix app: --log shop";
        let command = parse(more).unwrap();
        assert_eq!((command.distribution, command.on_gap), (Distribution::All, OnGap::Flush));
        assert_eq!((command.prefix.as_str(), command.log.as_deref()), ("app:", Some("shop")));
        assert_eq!(parse("follow --help"), Err("Help(Follow)".to_owned()));
    }

    #[test]
    fn mistakes_say_what_would_be_right() {
        for (line, part) in [
            ("follow", "follow: needs a rule file: follow <file> --to <host:port,...>"),
            ("follow f", "needs the servers on which keys are deleted"),
            ("follow f g --to a", "follow g: unexpected"),
            ("follow f --to", "follow --to: needs a value: servers"),
            ("follow f --too a", "did you mean --to?"),
            ("follow f -x", "unknown option; there are --to"),
            ("follow f --to a,", "names no server"),
            ("follow f --to a:0", "follow --to a:0: the port is not a number from 1 to 65535"),
            ("follow f --to a:1:0", "the weight is not a number"),
            ("follow f --to a:1:2:3", "IPv6 address in brackets"),
            ("follow f --to http://a", "not a URL"),
            ("follow f --to unix:a", "begins with /"),
            ("follow f --to [::1", "not closed"),
            ("follow f --to [::1]1", "after the bracket"),
            ("follow f --to :1", "the host is empty"),
            ("follow f --to ::1", "in brackets, [::1]:11211"),
            ("follow f --to ::1:11211", "in brackets, [::1]:11211"),
            ("follow f --to a,a:11211", "is there twice"),
            ("follow f --to a --distribution modula", "there are ketama, ketama_weighted, all"),
            ("follow f --to a --on-gap no", "there are warn, flush"),
            ("follow f --to a --prefix \u{1}", "no blanks"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
