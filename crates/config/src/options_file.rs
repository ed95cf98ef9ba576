//! A file of options, like Debian's `/etc/memcached.conf` for memcached. There a wrapper makes a command line
//! of it; this module reads it in the same way.
//!
//! * `#` begins a comment, unless a backslash stands before it.
//! * A line has options in the form of the command line, usually one. Quotes and backslashes are those of a
//!   shell.
//! * A line that begins with `-d` or `-h` is left out, since the service that uses such a file keeps the
//!   server in the foreground.
//! * A line that does not begin with `-` and has several words is left out: `logfile /var/log/memcached.log`.
//!
//! Text that only a shell could expand (`$NAME`, `|`, …) is an error here.

use std::path::Path;

use crate::error::UsageError;
use crate::file::read_file;

/// The longest file that is read, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// The words of an options file.
#[derive(Debug, Clone, Default)]
pub(crate) struct OptionsFile {
    /// The words in the form of the command line.
    pub(crate) words: Vec<String>,
    /// The line of each word, from 1.
    lines: Vec<usize>,
    /// The name of the file in messages.
    name: String,
    /// Lines that were left out although they look like options.
    pub(crate) notices: Vec<String>,
}

impl OptionsFile {
    /// Reads the file of `--options-file`. If `given` begins with `-`, the file may be missing, and counts as
    /// empty then.
    ///
    /// # Errors
    /// The file cannot be read, or has a malformed line.
    pub(crate) fn read(given: &str) -> Result<Self, UsageError> {
        let (path, may_lack) = match given.strip_prefix('-') {
            Some(path) => (path, true),
            None => (given, false),
        };
        match read_file(Path::new(path)) {
            Ok(bytes) if bytes.len() <= BYTES_MAX => Self::parse(path, &String::from_utf8_lossy(&bytes)),
            Ok(_) => Err(UsageError::new(format!("--options-file {path}: must be at most 1 MiB long"))),
            Err(error) if may_lack && error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(UsageError::new(format!("--options-file {path}: cannot be read: {error}"))),
        }
    }

    fn parse(name: &str, text: &str) -> Result<Self, UsageError> {
        let mut file = Self { name: name.to_owned(), ..Self::default() };
        for (line, number) in text.lines().zip(1..) {
            let line = without_comment(line);
            let line = line.trim();
            if line.starts_with("-d") || line.starts_with("-h") {
                continue;
            }
            if let Some((directive, _)) =
                line.split_once(char::is_whitespace).filter(|_| !line.starts_with('-'))
            {
                if directive != "logfile" && !directive.starts_with('#') {
                    file.notices
                        .push(format!("{name}:{number}: {directive}: ignored: every option starts with -"));
                }
                continue;
            }
            let words =
                words(line).map_err(|problem| UsageError::new(format!("{name}:{number}: {problem}")))?;
            for word in words {
                if word.contains(char::REPLACEMENT_CHARACTER) {
                    return Err(UsageError::new(format!("{name}:{number}: {word}: options must be UTF-8")));
                }
                file.words.push(word);
                file.lines.push(number);
            }
        }
        Ok(file)
    }

    /// An error of the word at `index`, with its place.
    pub(crate) fn error(&self, index: usize, error: &UsageError) -> UsageError {
        let line = self.lines.get(index).copied().unwrap_or_default();
        UsageError::new(format!("{}:{line}: {error}", self.name))
    }

    /// The notice that neither this file nor the command line has an address to listen on.
    pub(crate) fn no_address(&self) -> Option<String> {
        let name = &self.name;
        (!name.is_empty()).then(|| {
            format!("{name}: names no -l: only clients on this machine can connect; memcached serves every address then, as -l * does")
        })
    }

    /// The log line about a changed file, which needs a restart, or about a file that cannot be read.
    /// `given`: its name, as for [`Self::read`].
    pub(crate) fn needs_restart(&self, given: &str) -> Option<String> {
        match Self::read(given) {
            Ok(newer) if newer.words == self.words => None,
            Ok(_) => {
                let path = given.strip_prefix('-').unwrap_or(given);
                Some(format!("{path}: its options have changed since the start: needs a restart"))
            }
            Err(error) => Some(format!("{error}: the next start fails")),
        }
    }

    /// An error of the file as a whole.
    pub(crate) fn refuse(&self, what: &str) -> UsageError {
        UsageError::new(format!("{}: {what}: is for the command line only; leave it out", self.name))
    }
}

/// The line without its comments. A comment goes from a `#` to the next one; a `#` after a backslash begins
/// none.
fn without_comment(line: &str) -> String {
    let mut kept = String::with_capacity(line.len());
    let (mut before, mut in_comment) = (None, false);
    for c in line.chars() {
        if c == '#' {
            in_comment = before != Some('\\');
        }
        if !in_comment {
            kept.push(c);
        }
        before = Some(c);
    }
    kept
}

/// The words of a line, split as by a shell.
///
/// # Errors
/// The line has an unclosed quote, or text that only a shell could expand.
fn words(line: &str) -> Result<Vec<String>, String> {
    let needs_shell =
        |c: char| format!("{c}: no shell reads this file; put it in single quotes if it is meant");
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (Some(_), '\\') => match chars.next() {
                Some(c @ ('$' | '`' | '"' | '\\')) => word.get_or_insert_default().push(c),
                Some(c) => word.get_or_insert_default().extend(['\\', c]),
                None => break,
            },
            (None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (_, '$' | '`') | (None, ';' | '&' | '|' | '<' | '>' | '(' | ')') => return Err(needs_shell(c)),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if let Some(quote) = quote {
        return Err(format!("{quote}: is not closed on this line"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> OptionsFile {
        OptionsFile::parse("f", text).unwrap()
    }

    #[test]
    fn lines_are_read_as_the_wrapper_of_debian_does() {
        for (line, words) in [
            ("-m 64", &["-m", "64"][..]),
            ("  -m  64  # memory", &["-m", "64"]),
            ("# -m 64", &[]),
            ("", &[]),
            ("-d", &[]),
            ("-daemon -p 5", &[]),
            ("-h", &[]),
            ("logfile /var/log/memcached.log", &[]),
            ("-l 127.0.0.1 -l ::1", &["-l", "127.0.0.1", "-l", "::1"]),
            ("-l *", &["-l", "*"]),
            ("--port=11311", &["--port=11311"]),
            ("-D \\#", &["-D", "#"]),
            ("-o 'a,b' \"c d\" e\\ f", &["-o", "a,b", "c d", "e f"]),
            ("-D ''", &["-D", ""]),
            ("\t-v\r", &["-v"]),
            ("word", &["word"]),
        ] {
            assert_eq!(parse(line).words, words, "{line}");
        }
    }

    #[test]
    fn comments_end_where_the_wrapper_ends_them() {
        assert_eq!(without_comment("-m 64 # one # two"), "-m 64 ");
        assert_eq!(without_comment("-m 64 # one \\# two"), "-m 64 # two");
        assert_eq!(without_comment("-D \\# # two"), "-D \\# ");
        assert_eq!(parse("# one \\# two").words, [""; 0]);
        assert!(parse("# one \\# two").notices.is_empty());
    }

    #[test]
    fn errors_name_the_line() {
        for (text, error) in [
            ("-m 64\n-l $IP", "f:2: $: no shell reads this file; put it in single quotes if it is meant"),
            ("-m 64 | tee", "f:1: |: no shell reads this file; put it in single quotes if it is meant"),
            ("-D '#'", "f:1: ': is not closed on this line"), // The comment begins first, as there.
            ("-s \"/tmp/x", "f:1: \": is not closed on this line"),
            ("\n\n-s \u{fffd}", "f:3: \u{fffd}: options must be UTF-8"),
        ] {
            assert_eq!(OptionsFile::parse("f", text).unwrap_err().to_string(), error, "{text}");
        }
        let file = parse("# a\n-m 64\n\n-p\n11x");
        assert_eq!(file.error(3, &UsageError::new("no")).to_string(), "f:5: no");
    }

    #[test]
    fn what_is_left_out_is_said_unless_it_is_meant_so() {
        let file = parse("logfile /x\nuser memcache\n-m 64");
        assert_eq!(file.notices, ["f:2: user: ignored: every option starts with -"]);
        assert_eq!(file.words, ["-m", "64"]);
    }

    #[test]
    fn what_has_changed_since_the_start_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("options");
        let (path, optional) = (path.to_str().unwrap(), format!("-{}", path.display()));
        let none = OptionsFile::read(&optional).unwrap();
        assert_eq!(none.needs_restart(&optional), None);
        std::fs::write(path, "-m 64").unwrap();
        let line = format!("{path}: its options have changed since the start: needs a restart");
        assert_eq!(none.needs_restart(&optional), Some(line.clone()));
        let file = OptionsFile::read(path).unwrap();
        std::fs::write(path, "# more\n\n-m 64").unwrap();
        assert_eq!(file.needs_restart(path), None, "a comment changes nothing");
        std::fs::write(path, "-m 65").unwrap();
        assert_eq!(file.needs_restart(path), Some(line));
        std::fs::write(path, "-m $X").unwrap();
        assert!(
            file.needs_restart(path).unwrap().ends_with("single quotes if it is meant: the next start fails")
        );
        std::fs::remove_file(path).unwrap();
        assert!(file.needs_restart(path).unwrap().contains("cannot be read"));
    }

    #[test]
    fn a_file_may_be_missing_only_if_its_name_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("options");
        let (path, optional) = (path.to_str().unwrap(), format!("-{}", path.display()));
        assert_eq!(OptionsFile::read(&optional).unwrap().words, [""; 0]);
        let error = OptionsFile::read(path).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("--options-file {path}: cannot be read: No such file")),
            "{error}"
        );
        std::fs::write(path, "-m 65 # \u{e4}").unwrap();
        assert_eq!(OptionsFile::read(&optional).unwrap().words, ["-m", "65"]);
        std::fs::write(path, b"-m 65 # \xe4").unwrap();
        assert_eq!(OptionsFile::read(path).unwrap().words, ["-m", "65"]);
        assert!(
            OptionsFile::read(&format!("-{}", dir.path().display())).is_err(),
            "a directory is no missing file"
        );
    }
}
