//! The help of the program and of each subcommand.
//!
//! The help of the server has the most important options, in less than a screen; [`crate::help_all`] has all
//! options. The load driver has its own help for `bench`.

use std::fmt::Write as _;

use crate::option_row::{OptionName, OptionRow};
use crate::options::rows;
use crate::reference::{usage, version};
use crate::table::Class;

/// The subject of a help text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HelpTopic {
    /// The program and the server.
    Program,
    /// The server, with every option.
    All,
    /// `demo`.
    Demo,
    /// `check`.
    Check,
    /// `advise`.
    Advise,
    /// `doctor`.
    Doctor,
    /// `top`.
    Top,
    /// `nodes`.
    Nodes,
    /// `ping`.
    Ping,
    /// `follow`.
    Follow,
    /// `objects`.
    Objects,
}

impl HelpTopic {
    /// The text of the help.
    pub fn text(self) -> String {
        match self {
            Self::Program => help(),
            Self::All => crate::reference::help_all(),
            Self::Demo => DEMO.to_owned(),
            Self::Check => CHECK.to_owned(),
            Self::Advise => ADVISE.to_owned(),
            Self::Doctor => DOCTOR.to_owned(),
            Self::Top => TOP.to_owned(),
            Self::Nodes => NODES.to_owned(),
            Self::Ping => PING.to_owned(),
            Self::Follow => FOLLOW.to_owned(),
            Self::Objects => OBJECTS.to_owned(),
        }
    }
}

/// The width of the text, in columns.
const WIDTH: usize = 80;
/// The column at which the description of an option begins.
const INDENT: usize = 31;

/// The text of `-h`.
fn help() -> String {
    let mut text = format!("{}\n\n", version());
    text.push_str(
        "Usage: cattlegrid [serve] [OPTION]...     the server, with memcached's options\n\
         \x20      cattlegrid check FILE [--key KEY]  what a rule file means\n\
         \x20      cattlegrid advise ADDR             the rule file that fits its traffic\n\
         \x20      cattlegrid doctor [FILE] [OPTION]  what to change on this machine\n\
         \x20      cattlegrid top [ADDR]              a live view of a server\n\
         \x20      cattlegrid nodes ADDR              the nodes of a server's fleet\n\
         \x20      cattlegrid ping ADDR               whether a server answers\n\
         \x20      cattlegrid follow FILE --to ADDRS  rows change: keys go from memcached\n\
         \x20      cattlegrid demo                    a tour of what the server does\n\
         \x20      cattlegrid bench ADDR [OPTION]...  load a server, verify every reply\n\
         \x20      cattlegrid objects COMMAND ...     objects with methods, without a server\n\
         \x20      cattlegrid help [SUBCOMMAND]       this, or the help of a subcommand\n\
         \x20      cattlegrid version                 the version\n\n\
         Options of the server; --help-all has all that each does, and those of -o:\n",
    );
    for row in rows().filter(|row| is_shown(row)) {
        let mut line = format!("{:<INDENT$}", short_usage(row));
        if !line.ends_with(' ') {
            line.push(' ');
        }
        line.push_str(brief(row));
        let default = format!(" [{}]", row.default);
        if !row.default.is_empty() && line.len() + default.len() <= WIDTH {
            line.push_str(&default);
        }
        writeln!(text, "{line}").expect("writing to a String cannot fail");
    }
    text
}

/// The letters and names of an option. Scripts look in `-h` whether memcached is built with SASL, and take
/// its name there for Cyrus SASL, of which this server supports only a part.
fn short_usage(row: &OptionRow) -> String {
    match row.name {
        OptionName::Switch { short: Some(short), long: Some("enable-sasl") } => format!("-{short}"),
        _ => usage(row),
    }
}

/// Whether an option has an effect, and so is shown.
fn is_shown(row: &OptionRow) -> bool {
    matches!(row.name, OptionName::Switch { .. })
        && !matches!(row.class, Class::Inert { .. } | Class::Refused(_))
}

/// A short description of an option: its text up to the first stop, unless that is too long.
pub(crate) fn brief(row: &OptionRow) -> &'static str {
    let long = match row.name {
        OptionName::Switch { long: Some(long), .. } => long,
        _ => "",
    };
    match long {
        "listen" => "Addresses to listen on; * is every address",
        "listen-backlog" => "Connections that the kernel may hold",
        "disable-evictions" => "Answer an error when memory is full",
        "max-reqs-per-event" => "Requests of a connection in one turn",
        "protocol" => "ascii, binary, or auto",
        "auth-file" => "Text clients log in: file of user:password",
        "enable-sasl" => "Binary clients must log in; see --help-all",
        "config" => "Rule file: protection, tags, loaders, options",
        "options-file" => "Options by lines: /etc/memcached.conf",
        "objects" => "Types of objects on, and those of this dir",
        "log-format" => "text or json",
        "admin" => "HTTP pages for monitoring, on this address",
        "admin-token" => "File of the token that their readers send",
        "slow-log" => "What is slow for get @slow",
        "slow-calls" => "The same of calls of objects",
        "drain" => "Longest wait of SIGTERM for held requests",
        "unsent-memory" => "Memory for replies that are not taken yet",
        "stat-delimiter" => "What ends the prefix in stats detail",
        "extended" => "More options, by commas; see --help-all",
        _ => row.doc.split(['.', ';']).next().unwrap_or_default(),
    }
}

const ADVISE: &str = "\
Usage: cattlegrid advise ADDR [OPTION]...

Watches a running memcached or Cattlegrid at ADDR (host:port or the path of a
unix socket) and prints a rule file that fits its traffic: shapes of keys that
several clients compute at the same time, how long they take, how many
computations a rule would have saved; what clients put before every key; keys
that are deleted together; and what is stored and never fetched. It never
writes to that server. It reads by the commands watch, which -W switches off,
stats, and lru_crawler metadump, which -X switches off. A reader that is too
slow is not waited for: the report says what it has not seen.

      --seconds N  for how long, 1 to 86400; 60 by default
      --shadow ADDR
                   repeat what is seen, by key and size, on the empty
                   Cattlegrid or memcached at this address, and compare hits,
                   computations and memory
      --no-dump    do not look at what is stored
      --tls        speak TLS to the watched server, and accept any certificate
      --tls-ca FILE
                   accept only certificates of the authorities in this PEM file
                   that are for the host of ADDR
      --user NAME  log in to the watched server as this user
      --password-file FILE
                   a file whose first line is the password
  -h, --help       print this

Ctrl-C ends it early, with what was seen until then.

Status: 0, or 1 if a server cannot be watched or compared with.
";

const DEMO: &str = "\
Usage: cattlegrid demo [--keep] [--open] [--picture FILE]

Starts two servers on free ports of this machine, puts loads on them that show
what a rule file is good for, and prints what happened: herd protection,
loaders, tags, a rolling flush, an object with methods, and a plain load. Each
scene checks what is promised. It takes about a minute; Ctrl-C ends it.

      --keep           leave the server with rules running at the end, and say
                       how to try it and how to stop it
      --open           print the address of the server's dashboard, and go on at
                       the end with a stampede every few seconds, until Ctrl-C
      --picture FILE   draw the first scene as an SVG
  -h, --help           print this

Status: 0, or 1 if a scene failed.
";

const CHECK: &str = "\
Usage: cattlegrid check FILE [--server ADDR] [--connect]
       cattlegrid check FILE --key KEY
       cattlegrid check FILE --try KEY

Reads a rule file as the server does. Prints it with all defaults, itself a rule
file, then warnings and the number of rules, loaders and cascades; or every
mistake with its line and what would be right.

      --key KEY   what applies to a key: its rule, the captures, tags and
                  cascades, and each parameter with where it comes from
      --try KEY   run the loader of a key once, without a server, and print the
                  value
      --server ADDR   ask the server at this host:port, too, which runs with the
                  file: rules that have matched no key, and prefixes that keep
                  keys from their rules
      --connect   connect to the logs that the file follows, and say what
                  they lack, with the statement that mends it
  -h, --help      print this

Status: 0, 2 for a file with mistakes, 1 for a loader that has failed, a
server that does not answer or a database that lacks something.
";

const DOCTOR: &str = "\
Usage: cattlegrid doctor [FILE] [--pid PID] [--json] [OPTION]...

Looks at this machine as the server would find it if it were started with the
rule file FILE and these options of the server, and says what to change:
limits, memory, control groups, ports, permissions, certificates, loaders, and
the databases that are followed. Of a server that runs at these addresses also
what it has met since its start. It changes nothing.

Each finding says what was found, why it matters, and what mends it. A problem
is something that fails, loses data or lets others in; the rest is advice.

      --pid PID   judge this running server by its own limits; without any
                  other option with those of its command line
      --json      the same as a JSON object, for monitoring
  -v              also what is fine
  -h, --help      print this

Run it as the user that starts the server, for it has the limits of its shell.
As root it can name the process that has a port.

Status: 0 without a problem, 1 with one, 2 for options or a file with mistakes.
";

const TOP: &str = "\
Usage: cattlegrid top [ADDR] [OPTION]...

Shows what a running Cattlegrid or memcached does, live, in the terminal: hit
ratio, requests by command, memory, and of Cattlegrid computations made and
saved, rules, loaders, objects, hot keys, slow computations and nodes. ADDR is
host:port or the path of a unix socket; 127.0.0.1:11211 by default. It asks
with stats and reads only. ? shows the keys.

      --once         print all views as text once, and end
      --view NAME    the first view, or with --once the only one: main, rules,
                     loaders, objects, keys, slow, memory, fleet, times, all
  -n, --interval SECONDS
                     between two looks, 0.2 to 60; 1 by default
      --login FILE   log in: the first line of the file is user:password
      --tls          speak TLS, and accept any certificate
      --tls-ca FILE  accept only those of the authorities in this PEM file
      --ascii        draw with ASCII only, as without a locale of UTF-8
  -h, --help         print this

Status: 0, 1 without a terminal, or if --once gets no answer.
";

const NODES: &str = "\
Usage: cattlegrid nodes ADDR

Asks the server at this host:port for the nodes that share its log of etcd, and
prints a line for each: name, address, state (joining, up, draining), the
revision of the log that it has obeyed, the age of its last confirmation, and
its version. A revision is as of the node's last word: after a barrier, when
its state changes, and each 10 s.

  -h, --help   print this

Status: 0, or 1 if the server does not answer or has no such log.
";

const PING: &str = "\
Usage: cattlegrid ping ADDR

Asks a server whether it answers, for health checks, and prints the first line
of its answer. ADDR is host:port or the path of a unix socket, where any answer
will do, or host:port/path for a page of --admin: 127.0.0.1:11280/readyz, whose
status must be 200. *:port is the address that others reach this machine by:
a server that listens on 127.0.0.1 alone does not answer there. It waits 2 s
for the connection and 2 s for the answer.

  -h, --help   print this

Status: 0, or 1 if there is no such answer.
";

const FOLLOW: &str = "\
Usage: cattlegrid follow FILE --to ADDR[,ADDR]... [OPTION]...

Follows the log of a PostgreSQL database, the [follow.NAME] of a rule file, and
deletes keys on ordinary memcached servers: delete_keys of its tables, for each
row that changed, when its transaction is committed. No Cattlegrid server is
needed, and no line of code in the application.

      --to ADDRS   the servers, in the order in which clients have them, by
                   commas: host, host:port, host:port:weight, /path of a socket
      --distribution ketama|ketama_weighted|all
                   which server has a key: as libmemcached with KETAMA (the
                   default), with KETAMA_WEIGHTED; all: deletes on each server,
                   which is right for every client
      --prefix P   what the client library puts before each key, after it has
                   chosen the server
      --on-gap warn|flush
                   when it is not known which keys changed: a line of the log
                   (the default), or flush_all, which takes everything else that
                   the servers have as well
      --log NAME   which [follow.NAME], if the file has several
  -h, --help       print this

It ends by SIGTERM or SIGINT. What is not guaranteed is in docs/follow.md; it
says on standard error what it does. cattlegrid check FILE --connect says what
the database lacks.

Status: 0 after a signal, 2 for words or a file with mistakes.
";

const OBJECTS: &str = "\
Usage: cattlegrid objects list [DIR] [TYPE]
       cattlegrid objects call [DIR] [--at TIME] NAME...
       cattlegrid objects test [--config FILE] PATH...
       cattlegrid objects lint PATH...
       cattlegrid objects bench [DIR] [--count N] NAME...

Types of objects and their methods, without a server.

  list    all types, or the methods of one
  call    make calls, such as counter:add:visits:1, on objects of its own; +90s
          moves the clock, --at sets it
  test    run transcripts of calls, and the tests of types of your own
  lint    check sources of types of your own, without their tests
  bench   time calls

DIR is a directory of types of your own, written with a slash (own/), or
--objects DIR; --config FILE takes the types of a rule file. test --config FILE
runs tests of types under the settings of a server with that file, without PATH
those of its dir.

  -h, --help   print this
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_fits_a_screen() {
        let text = help();
        assert!(text.lines().count() < 60, "{} lines", text.lines().count());
        for topic in [
            HelpTopic::Program,
            HelpTopic::Demo,
            HelpTopic::Check,
            HelpTopic::Advise,
            HelpTopic::Doctor,
            HelpTopic::Top,
            HelpTopic::Nodes,
            HelpTopic::Ping,
            HelpTopic::Follow,
            HelpTopic::Objects,
        ] {
            let text = topic.text();
            let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > WIDTH).collect();
            assert!(wide.is_empty() && text.ends_with('\n'), "{topic:?}: {wide:?}");
        }
    }

    #[test]
    fn each_option_that_does_something_is_in_it() {
        let text = help();
        for row in rows() {
            let is_there = text.lines().any(|line| line.starts_with(&short_usage(row)));
            assert_eq!(is_there, is_shown(row), "{}", usage(row));
        }
        assert!(!text.to_lowercase().contains("sasl"), "memcached without Cyrus SASL does not name it");
        assert!(rows().filter(|row| is_shown(row)).all(|row| !brief(row).is_empty()));
    }
}
