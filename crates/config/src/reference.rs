//! The help and the reference page, generated from the tables.

mod rule_file;

use std::fmt::Write as _;

use crate::option_row::{OptionName, OptionRow};
use crate::options::rows;
use crate::table::Class;
use crate::value::{ValueKind, ValueSyntax};

/// The text of `-V`, without the newline: `cattlegrid 0.1.0`.
pub fn version() -> String {
    format!("cattlegrid {}", env!("CARGO_PKG_VERSION"))
}

/// The first line of [`version`] and of the help when the program is called as `memcached`: scripts read the
/// version there.
pub const AS_MEMCACHED: &str = "memcached 1.6.45\n";

/// The text of `-i`.
pub fn license() -> String {
    format!(
        "{}\n\nLicensed under either of the Apache License, Version 2.0, or the MIT license, at your choice.\n\
         Provided \"as is\", without warranty of any kind.\n",
        version()
    )
}

/// The text of `--help-all`, and of `-h` when the program is called as `memcached`.
pub(crate) fn help_all() -> String {
    let mut text = format!("{}\n\n", version());
    text.push_str("Usage: cattlegrid [serve] [OPTION]...\n\nOptions:\n");
    help_rows(&mut text, is_plain);
    text.push_str("\nOptions of -o:\n");
    help_rows(&mut text, |row| !is_switch(row) && matches!(row.class, Class::Honoured(_)));
    text.push_str("\nAccepted for memcached's scripts, without effect:\n");
    help_rows(&mut text, |row| matches!(row.class, Class::Inert { .. }));
    text.push_str("\nRefused:\n");
    help_rows(&mut text, is_refused);
    text
}

/// Whether the option is a switch with an effect.
fn is_plain(row: &OptionRow) -> bool {
    is_switch(row) && !is_refused(row) && !matches!(row.class, Class::Inert { .. })
}

fn help_rows(text: &mut String, wanted: impl Fn(&OptionRow) -> bool) {
    for row in rows().filter(|row| wanted(row)) {
        let doc = words(row);
        write_to(text, format_args!("{:<28}", usage(row)));
        if usage(row).len() >= 28 {
            write_to(text, format_args!("\n{:28}", ""));
        }
        wrap(text, &doc, 28, 80);
    }
}

/// The description of an option: its effect and default, or why it has no effect.
pub(crate) fn words(row: &OptionRow) -> String {
    let mut doc = row.doc.to_owned();
    match row.class {
        Class::Inert { why, .. } if doc.is_empty() => {
            write_to(&mut doc, format_args!("Without effect: {why}."));
        }
        Class::Inert { why, .. } => write_to(&mut doc, format_args!(" Without effect: {why}.")),
        Class::Refused(reason) => write_to(&mut doc, format_args!(" Refused: {reason}.")),
        _ => {}
    }
    if !row.default.is_empty() {
        write_to(&mut doc, format_args!(" (default: {})", row.default));
    }
    doc
}

/// Appends the words of `doc` from the current column on; further lines begin at `indent`.
fn wrap(text: &mut String, doc: &str, indent: usize, width: usize) {
    let mut column = indent;
    for (index, word) in doc.split(' ').enumerate() {
        if index > 0 && column + 1 + word.len() > width {
            write_to(text, format_args!("\n{:indent$}", ""));
            column = indent;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += word.len();
    }
    text.push('\n');
}

/// The written form of an option: `-p, --port=<num>`, or `  ext_*=<value>` for an option of `-o`.
pub(crate) fn usage(row: &OptionRow) -> String {
    // The option is used as a switch and with a value: scripts have both, and neither is read.
    let value = match (row.kind, row.name) {
        (ValueKind::Any, OptionName::Extended(_)) => String::new(),
        (kind, _) => kind.placeholder(),
    };
    let equals = if value.is_empty() { "" } else { "=" };
    match row.name {
        OptionName::Switch { short: Some(short), long: Some(long) } => {
            format!("-{short}, --{long}{equals}{value}")
        }
        OptionName::Switch { long: Some(long), .. } => format!("    --{long}{equals}{value}"),
        OptionName::Switch { short, .. } => format!("-{} {value}", short.unwrap_or_default()),
        OptionName::Extended(name) => format!("  {name}{equals}{value}"),
        OptionName::Family(prefix) => format!("  {prefix}*"),
    }
}

/// The text of `docs/configuration.md`.
pub fn reference_markdown() -> String {
    let mut text = String::from(
        "# Options\n\n\
         <!-- Written by `cargo xtask docs`; change crates/config/src instead. -->\n\n\
         `cattlegrid` takes memcached's command line: `cattlegrid [serve] [options]`. Short flags cluster \
         (`-dvv`), values follow in the same word or the next (`-p11211`, `-p 11211`, `--port=11211`, \
         `--port 11211`), long names may be shortened while that is unambiguous, `-o` takes a list \
         (`-o idle_timeout=60,no_modern`). The last one wins, but `-l` adds. A value that makes no sense is an \
         error: one line, and status 2.\n\n\
         Exit status: 0 after an orderly end, 2 for a command line or a file named there that cannot be used, 1 \
         otherwise (an address in use, a missing right).\n\n",
    );
    section(&mut text, "## Honoured\n\n| option | value | default | meaning |\n|---|---|---|---|\n", |row| {
        let usable = !matches!(row.class, Class::Inert { .. } | Class::Refused(_));
        usable.then(|| {
            let default = if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
            let value = if row.kind.is_wanted() {
                row.kind.describe(ValueSyntax::CommandLine)
            } else {
                String::new()
            };
            format!("{value} | {default} | {}", row.doc)
        })
    });
    section(
        &mut text,
        "\n## Accepted without effect\n\nAccepted so that existing scripts work. Any value is taken, with one \
         exception: `-U` only takes 0. Where memcached has a setting of it, \
         `stats settings` shows the value given. One line in the log says why the option has no effect.\n\n\
         | option | why it has no effect |\n|---|---|\n",
        |row| match row.class {
            Class::Inert { why, .. } => Some(why.to_owned()),
            _ => None,
        },
    );
    section(
        &mut text,
        "\n## Refused\n\nThe server does not start, since it would behave otherwise than asked.\n\n\
         | option | reason |\n|---|---|\n",
        |row| match row.class {
            Class::Refused(reason) => Some(reason.to_owned()),
            _ => None,
        },
    );
    text.push_str(
        "\nValues that are refused for a reason of their own: `-U` above 0 (there is no UDP), `-o \
         ssl_keyformat=ENGINE`, and `-B` [with `-Y` or `-S`](#logging-in).\n\n\
         ## Logging in\n\n\
         No command is executed before the login, so that a protocol in which clients cannot log in is not spoken:\n\n\
         | options | text and meta | binary protocol | `-B` |\n|---|---|---|---|\n\
         | none | spoken, no login | spoken, no login | any |\n\
         | `-Y <file>` | log in against the file | not spoken | `ascii`; anything else is refused |\n\
         | `-S`, with `MEMCACHED_SASL_PWDB` | not spoken | SASL PLAIN against the file that it names | `binary`; anything \
         else is refused |\n\
         | `-S -Y <file>` | log in against the file | SASL PLAIN against the same file | `auto`; anything else is refused \
         |\n\n\
         A packet where the binary protocol is not spoken is taken for a line, as in memcached: its client gets an error in \
         text, is closed, or waits until its own time limit. `-S` without a file is refused. With both files only that of `-Y` is read, and a line in the log says so. \
         Passwords are not encrypted by either protocol: `-Z` keeps them secret.\n\n\
         | | file of `-Y` | file of `MEMCACHED_SASL_PWDB`, in memcached's format |\n|---|---|---|\n\
         | line | `user:password`, 255 bytes at most | `user:password`, or `user:password:` and anything, which is ignored |\n\
         | users | 8 at most | no limit but that of the file, 1 MiB |\n\
         | a colon in a password | is part of it | ends it |\n\
         | two lines of one user | both passwords are right | the first counts |\n\
         | a line without a user or without a password | allowed, for text clients: SASL PLAIN has neither | an error |\n\
         | `user@realm` | is the whole name | logs in as `user@realm` and as `user`, unless `user` has a line of its own: libsasl2 takes the \
         realm off |\n\n\
         Neither file has comments: a line without a colon is an error. At the start an error in the file ends the server with \
         status 2, and the message names the line. SIGHUP reads the file again; after an error the users stay as they were, \
         and the log has the reason. A connection that has logged in stays logged in; with [`[[user]]`](#user) it has the rights that its user has by then.\n\n\
         The configuration of Cyrus SASL (`SASL_CONF_PATH`, `sasldb`, PAM) is not read, and PLAIN is the only mechanism. The \
         identity that a client asks to act as (authzid) must be empty or its own user.\n\n",
    );
    text.push_str(CERTIFICATES);
    text.push_str(
        "## Environment\n\n\
         `MEMCACHED_SASL_PWDB`: under `-S` the file of users, unless `-Y` names one. Not read without `-S`.\n\n\
         `MEMCACHED_PORT_FILENAME`: a file that gets one line for each TCP address, `TCP INET: <port>` or \
         `TCP INET6: <port>`, once the server listens on all of them; it appears whole.\n\n\
         ## Signals\n\n\
         | signal | effect |\n|---|---|\n\
         | SIGTERM, SIGINT, SIGUSR1 | stop accepting; gets that wait for a value go on waiting until 0.5 s before the end of \
         `--drain`, then they are answered as `on_busy` says; leave when none waits, after `--drain` at most. A second one leaves \
         at once |\n\
         | SIGHUP | read the certificates, the file of users and the rule file again; if one of them is wrong the \
         old ones stay, and the log says so. Anything that is not a regular file (a pipe, a device) is refused, at the start as \
         well. While loaders start it is obeyed after that |\n\n\
         As process 1 of a container the server is a child of a process that passes these signals on, and SIGQUIT and SIGUSR2, \
         collects what the system gives it of processes whose parent has ended, and exits as the server does: with its status, or \
         128 and the number of the signal that has ended it. A container needs no other init.\n\n\
         ## Log\n\n\
         The log goes to standard error, as text or with `--log-format json` as one object a line. While the server \
         runs a thread of its own writes it, so that a terminal that is stopped or a pipe without a reader stops \
         nothing else: up to 256 KiB of lines wait, what comes then is dropped. Without `-vv` there are at most ten \
         lines a second of each kind, since clients can bring about most of them. The log says how many lines were \
         dropped or left out, `stats cattlegrid` counts them. At the end the last lines have one second to be \
         written.\n",
    );
    text.push_str(&rule_file::reference_markdown());
    text
}

/// The section about usable certificates and keys.
const CERTIFICATES: &str = "## Certificates and keys\n\n\
     | | usable | not usable |\n|---|---|---|\n\
     | private key | RSA of 2048 to 4096 bits; ECDSA with P-256 or P-384; Ed25519 | RSA of other lengths (memcached serves 8192 bits), \
     P-521, P-224, secp256k1, Ed448, DSA, RSA-PSS |\n\
     | its format | PEM or DER; PKCS#8, PKCS#1, SEC 1 | encrypted by a pass phrase: `openssl pkey -in FILE -out NEW_FILE` writes it \
     without one |\n\
     | certificate of the server | X.509 of version 3, and of version 1, which is what `openssl x509 -req` makes without \
     extensions | |\n\
     | certificate of a client | version 3; version 1 if an authority of `ssl_ca_cert` has signed it itself; any that is in \
     `ssl_ca_cert` itself | version 1 behind an authority in between |\n\n\
     What cannot be used ends the start with status 2, and the message names the file and what would be right. Some clients \
     do not take certificates of version 1. This makes one of version 3: `openssl x509 -req -in FILE.csr -CA ca.pem -CAkey ca.key \
     -CAcreateserial -days 365 -extfile <(echo basicConstraints=CA:FALSE) -out FILE.pem`.\n\n\
     With `ssl_verify_mode` but without `ssl_ca_cert` no certificate of a client is good: under 1 clients without one are served, under 2 \
     and 3 none is, as in memcached. A line in the log says so.\n\n";

fn section(text: &mut String, head: &str, cells: impl Fn(&OptionRow) -> Option<String>) {
    text.push_str(head);
    for row in rows() {
        if let Some(cells) = cells(row) {
            let name = match row.name {
                OptionName::Switch { short: Some(short), long: Some(long) } => {
                    format!("`-{short}`, `--{long}`")
                }
                _ => format!("`{}`", row.name.shown()),
            };
            write_to(text, format_args!("| {name} | {} |\n", cells.replace("<file>", "`<file>`")));
        }
    }
}

fn is_switch(row: &OptionRow) -> bool {
    matches!(row.name, OptionName::Switch { .. })
}

fn is_refused(row: &OptionRow) -> bool {
    matches!(row.class, Class::Refused(_))
}

fn write_to(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checked_in_reference_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(checked_in == reference_markdown(), "run `cargo xtask docs`");
    }

    #[test]
    fn the_help_and_the_reference_name_every_option() {
        let (help, reference) = (help_all(), reference_markdown());
        for row in rows() {
            assert!(help.contains(&usage(row)), "help lacks {}", usage(row));
            assert!(reference.contains(&row.name.shown()), "reference lacks {}", row.name.shown());
        }
        assert!(help.lines().all(|line| line.len() <= 80));
    }
}
