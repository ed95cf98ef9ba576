//! Servers that the user names on the command line.

use std::path::PathBuf;
use std::str::FromStr;

/// A server that speaks memcached's protocol, and the command that starts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    /// For the tables.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    /// [`PORT`] in them stands for the port.
    words: Vec<String>,
}

const PORT: &str = "{port}";

impl Peer {
    /// The arguments of the program that is to listen on this port.
    pub(crate) fn words(&self, port: u16) -> Vec<String> {
        let port = port.to_string();
        self.words.iter().map(|word| word.replace(PORT, &port)).collect()
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, command) = text.split_once('=').ok_or("must be NAME=COMMAND")?;
        if name.is_empty() || name.contains('|') || name.chars().any(char::is_whitespace) {
            return Err(format!("the name {name:?} must be a word without blanks and |"));
        }
        let mut words = command.split_whitespace().map(str::to_owned);
        let program = words.next().ok_or("the command is empty")?;
        let words: Vec<_> = words.collect();
        if !words.iter().any(|word| word.contains(PORT)) {
            return Err(format!(
                "the command has no argument with {PORT}, which stands for the port that it must listen on"
            ));
        }
        Ok(Self { name: name.to_owned(), program: program.into(), words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_gets_the_port() {
        let peer: Peer = "pogo=/opt/pogocache -p {port}  --url=x:{port} -t 1".parse().unwrap();
        assert_eq!((&*peer.name, peer.program.to_str()), ("pogo", Some("/opt/pogocache")));
        assert_eq!(peer.words(1234), ["-p", "1234", "--url=x:1234", "-t", "1"]);
    }

    #[test]
    fn what_names_no_server() {
        for (text, part) in [
            ("memcached -p {port}", "must be NAME=COMMAND"),
            ("=x {port}", "a word without"),
            ("a b=x {port}", "a word without"),
            ("a|b=x {port}", "a word without"),
            ("x=", "is empty"),
            ("x=server", "no argument with {port}"),
            ("x={port}", "no argument with {port}"),
            ("x=server -p {PORT}", "no argument with {port}"),
        ] {
            let error = text.parse::<Peer>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
