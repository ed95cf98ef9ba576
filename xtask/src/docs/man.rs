//! The man page.

use std::fmt::Write as _;

use cattlegrid_config::{OptionStatus, OptionUsage, option_usages, version};

use super::commands::subcommands;

/// Where it is.
pub(super) const PAGE: &str = "packaging/man/cattlegrid.1";

pub(super) fn page() -> Result<String, String> {
    let mut text = String::from(".\\\" Written by `cargo xtask docs` from the options of the program.\n");
    let _infallible = writeln!(text, ".TH CATTLEGRID 1 \"\" \"{}\" \"User Commands\"", escaped(&version()));
    text.push_str(
        ".SH NAME\ncattlegrid \\- a cache server that speaks memcached's protocols\n.SH SYNOPSIS\n\
         .B cattlegrid\n.RB [ serve ]\n.RI [ option ...]\n.br\n.B cattlegrid\n.I subcommand\n.RI [ argument ...]\n.SH DESCRIPTION\n",
    );
    paragraph(
        &mut text,
        "cattlegrid takes the place of memcached: it has memcached's protocols (text, meta and binary) and options. With a rule file \
         one client computes a missing value while the others wait for it, tags invalidate many values at once, worker processes \
         compute missing values, and keys call methods of objects. Without one it behaves as memcached does, but listens on \
         127.0.0.1 unless -l names other addresses.",
    );
    text.push_str(".SH OPTIONS OF THE SERVER\n");
    each(&mut text, |option| option.standing == OptionStatus::Honoured && option.extended.is_none());
    text.push_str(".SS Names of \\-o\n");
    each(&mut text, |option| option.standing == OptionStatus::Honoured && option.extended.is_some());
    text.push_str(".SS Accepted for memcached's scripts, without effect\n");
    each(&mut text, |option| option.standing == OptionStatus::Inert);
    text.push_str(".SS Refused\n");
    each(&mut text, |option| option.standing == OptionStatus::Refused);
    text.push_str(".SH SUBCOMMANDS\n");
    for command in subcommands()? {
        let _infallible = writeln!(text, ".SS {}", command.name);
        if command.help.is_empty() {
            let brief = command.brief;
            paragraph(&mut text, &format!("Prints {brief}."));
        } else {
            let _infallible = writeln!(text, ".nf\n{}\n.fi", lines(command.help.trim_end()));
        }
    }
    text.push_str(".SH ENVIRONMENT\n");
    for (name, words) in ENVIRONMENT {
        item(&mut text, &format!("\\fB{name}\\fR"), words);
    }
    text.push_str(".SH FILES\n");
    for (name, words) in FILES {
        item(&mut text, &format!("\\fI{name}\\fR"), words);
    }
    text.push_str(".SH SIGNALS\n");
    for (name, words) in SIGNALS {
        item(&mut text, &format!("\\fB{name}\\fR"), words);
    }
    text.push_str(".SH EXIT STATUS\n");
    paragraph(
        &mut text,
        "0: done. 2: a mistake in the options or in a file that they name. 1: everything else.",
    );
    text.push_str(".SH EXAMPLES\n.nf\n");
    text.push_str(&lines(EXAMPLES));
    text.push_str("\n.fi\n.SH SEE ALSO\n.BR memcached (1),\n.BR systemd.service (5)\n");
    Ok(text)
}

const ENVIRONMENT: &[(&str, &str)] = &[
    ("MEMCACHED_SASL_PWDB", "Under -S the file of users, unless -Y names one."),
    ("MEMCACHED_PORT_FILENAME", "A file that gets a line for each TCP address, once the server listens."),
    (
        "NOTIFY_SOCKET",
        "A service manager is told there when the server is ready, reads its files anew, and leaves.",
    ),
    (
        "WATCHDOG_USEC, WATCHDOG_PID",
        "How often the service manager wants a sign of life. It gets one as long as each thread that serves connections answers.",
    ),
    (
        "LISTEN_FDS, LISTEN_PID",
        "Listening stream sockets that the service manager has opened; they replace the addresses of -l, -p and -s.",
    ),
];

const FILES: &[(&str, &str)] = &[
    (
        "/etc/memcached.conf",
        "Options, which the service of Debian's package reads by --options-file, as that of memcached does.",
    ),
    ("/etc/cattlegrid/cattlegrid.toml", "The rule file of the service."),
    ("/usr/share/doc/cattlegrid", "The documentation, with all keys of the rule file in configuration.md."),
];

const SIGNALS: &[(&str, &str)] = &[
    (
        "SIGTERM, SIGINT, SIGUSR1",
        "Stop accepting, answer what is held, and leave after --drain at most. A second one: leave at once.",
    ),
    (
        "SIGHUP",
        "Read the rule file, types of objects, certificates and users again: all of them, or none if one has a mistake.",
    ),
];

const EXAMPLES: &str = "\
cattlegrid -m 1024 -l 127.0.0.1,10.0.0.5
cattlegrid --options-file /etc/memcached.conf --config rules.toml
cattlegrid check rules.toml --key page:42";

fn each(text: &mut String, wanted: impl Fn(&OptionUsage) -> bool) {
    for option in option_usages().filter(wanted) {
        let value = match &*option.value {
            "" => String::new(),
            value => format!("\\fI{}\\fR", escaped(value.trim_matches(['<', '>']))),
        };
        let names = [
            option.short.map(|letter| format!("\\fB\\-{letter}\\fR{}", separated(" ", &value))),
            option.long.map(|name| format!("\\fB\\-\\-{}\\fR{}", escaped(name), separated("=", &value))),
            option.extended.map(|name| format!("\\fB{}\\fR{}", escaped(name), separated("=", &value))),
        ];
        let names: Vec<_> = names.into_iter().flatten().collect();
        item(text, &names.join(", "), &option.doc);
    }
}

fn separated(by: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!("{by}{value}") }
}

fn item(text: &mut String, head: &str, words: &str) {
    let _infallible = writeln!(text, ".TP\n{head}");
    paragraph(text, words);
}

/// A line for each sentence.
fn paragraph(text: &mut String, words: &str) {
    for sentence in words.split_inclusive(". ") {
        let _infallible = writeln!(text, "{}", lines(sentence.trim_end()));
    }
}

/// Text as it is, where a line may begin with what roff takes for a request.
fn lines(text: &str) -> String {
    let line = |line: &str| {
        let line = escaped(line);
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
