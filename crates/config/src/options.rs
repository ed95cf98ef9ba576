//! The one definition of every option: here those with a letter or a long name; [`super::extended`] has those
//! of `-o`.

use super::settings::{LogFormat, Settings};
use super::value::{Given, Value};
use super::{ListenAddress, TcpPort, extended};

/// One option.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: Name,
    pub(crate) value: Value,
    /// As the help shows it; empty for switches and for what is off or absent by default.
    pub(crate) default: &'static str,
    /// One or two sentences for the help and the reference.
    pub(crate) doc: &'static str,
    pub(crate) class: Class,
}

/// How an option is written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Name {
    /// `-p`, `--port`, or both.
    Switch { short: Option<char>, long: Option<&'static str> },
    /// `-o name`.
    Extended(&'static str),
    /// Every `-o` name that starts so.
    Family(&'static str),
}

/// What happens to an option.
#[derive(Debug)]
pub(crate) enum Class {
    /// It does what it says. The error continues a sentence that began with the option.
    Honoured(fn(&mut Settings, &Given) -> Result<(), String>),
    /// It is checked, shown in `stats settings`, and otherwise without effect; one line in the log says why.
    Accepted { setting: Option<Setting>, why: &'static str },
    /// The server does not start, for this reason.
    Refused(&'static str),
    /// `-o`: a list of more options.
    List,
    /// `-h`.
    Help,
    /// `-V`.
    Version,
    /// `-i`.
    License,
}

/// What an accepted option shows in `stats settings`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Setting {
    /// The value given, under this name.
    Given(&'static str),
    /// The value given in KiB, shown in bytes.
    Kib(&'static str),
    /// The value given in MiB, shown in bytes.
    Mib(&'static str),
    /// Always this text, for switches.
    Fixed(&'static str, &'static str),
}

impl Setting {
    pub(crate) fn entry(self, given: &Given) -> (&'static str, String) {
        match self {
            Self::Given(name) => (name, given.as_setting()),
            Self::Kib(name) => (name, (given.number::<i64>() << 10).to_string()),
            Self::Mib(name) => (name, (given.number::<i64>() << 20).to_string()),
            Self::Fixed(name, text) => (name, text.to_owned()),
        }
    }
}

impl Name {
    /// As messages name it.
    pub(crate) fn shown(self) -> String {
        match self {
            Self::Switch { long: Some(long), .. } => format!("--{long}"),
            Self::Switch { short: Some(short), .. } => format!("-{short}"),
            Self::Switch { .. } => String::new(),
            Self::Extended(name) => format!("-o {name}"),
            Self::Family(prefix) => format!("-o {prefix}*"),
        }
    }
}

/// All options, in the order of the help.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(extended::ROWS)
}

/// Upper end of numbers that memcached keeps in a C `int`.
pub(super) const INT: i64 = i32::MAX as i64;

const fn both(short: char, long: &'static str) -> Name {
    Name::Switch { short: Some(short), long: Some(long) }
}

const fn number(unit: &'static str, min: i64, max: i64) -> Value {
    Value::Number { unit, min, max }
}

/// A field that takes the value as it is.
macro_rules! set {
    ($field:ident = $value:expr) => {
        Class::Honoured(|settings, _| {
            settings.$field = $value;
            Ok(())
        })
    };
    ($field:ident, $given:ident => $value:expr) => {
        Class::Honoured(|settings, $given| {
            settings.$field = $value;
            Ok(())
        })
    };
}
pub(super) use set;

#[rustfmt::skip] // one option is one block of short lines, all alike
const ROWS: &[Row] = &[
    Row { name: both('p', "port"), value: number("", -1, 65535), default: "11211",
        doc: "TCP port to listen on. -1 takes a free one, 0 none.",
        class: Class::Honoured(set_port) },
    Row { name: both('l', "listen"), value: Value::Text { what: "addr" }, default: "127.0.0.1",
        doc: "Addresses to listen on, separated by commas or in several -l: a name or address, with a port or without (host:port, [v6]:port); * is every address. Under -Z the prefix notls: keeps one free of TLS; btls: and mtls: say what ssl_verify_mode says for all, that clients are not asked for certificates or must have one.",
        class: Class::Honoured(set_listen) },
    Row { name: both('s', "unix-socket"), value: Value::Text { what: "file" }, default: "",
        doc: "Unix socket to listen on. Without -p or -l beside it there is no TCP.",
        class: set!(unix_socket, given => Some(given.text().into())) },
    Row { name: both('a', "unix-mask"), value: Value::Octal, default: "700",
        doc: "Access bits of the unix socket, in octal.",
        class: set!(unix_mask, given => match given { Given::Octal(bits) => *bits, _ => 0o700 }) },
    Row { name: both('b', "listen-backlog"), value: number("connections", 0, INT), default: "1024",
        doc: "Connections the kernel may hold until they are accepted.",
        class: set!(backlog, given => given.number()) },
    Row { name: both('u', "user"), value: Value::Text { what: "user" }, default: "",
        doc: "User to become once the sockets are open; only root can. Started as root without it, the server warns and stays root.",
        class: set!(user, given => Some(given.text().to_owned())) },
    Row { name: both('m', "memory-limit"), value: number("MiB", 1, 1 << 30), default: "64",
        doc: "Memory for items, in MiB; a suffix m changes nothing.",
        class: set!(memory_bytes, given => given.number::<usize>() << 20) },
    Row { name: both('M', "disable-evictions"), value: Value::None, default: "",
        doc: "When memory is full answer an error instead of evicting items.",
        class: set!(evictions = false) },
    Row { name: both('I', "max-item-size"), value: Value::Size { min: 1 << 10, max: 1 << 30 }, default: "1m",
        doc: "Largest item; at most half of -m.",
        class: set!(item_bytes_max, given => match given { Given::Bytes(bytes) => *bytes as usize, _ => 1 << 20 }) },
    Row { name: both('t', "threads"), value: number("", 1, 1024), default: "4",
        doc: "Worker threads.",
        class: set!(threads, given => given.number()) },
    Row { name: both('c', "conn-limit"), value: number("connections", 1, INT), default: "1024",
        doc: "Simultaneous connections. The limit on open files is raised to fit.",
        class: set!(connections_max, given => given.number()) },
    Row { name: both('R', "max-reqs-per-event"), value: number("requests", 1, INT), default: "256",
        doc: "Requests served from one connection before the others get their turn. memcached's default is 20; a turn here costs one send whatever it holds, so that more are better.",
        class: set!(requests_per_event, given => given.number()) },
    Row { name: both('C', "disable-cas"), value: Value::None, default: "",
        doc: "Hide CAS values from clients. The numbers are still kept, so that nothing about memory changes.",
        class: set!(cas = false) },
    Row { name: both('F', "disable-flush-all"), value: Value::None, default: "",
        doc: "Refuse flush_all.",
        class: set!(flush = false) },
    Row { name: both('X', "disable-dumping"), value: Value::None, default: "",
        doc: "Refuse stats cachedump and lru_crawler metadump.",
        class: set!(dump = false) },
    Row { name: both('W', "disable-watch"), value: Value::None, default: "",
        doc: "Refuse watch.",
        class: set!(watch = false) },
    Row { name: both('A', "enable-shutdown"), value: Value::None, default: "",
        doc: "Allow the command shutdown.",
        class: set!(shutdown_command = true) },
    Row { name: both('Y', "auth-file"), value: Value::Text { what: "file" }, default: "",
        doc: "Clients must log in; the file has up to 8 lines user:password. SIGHUP reads it again.",
        class: set!(auth_file, given => Some(given.text().into())) },
    Row { name: both('Z', "enable-ssl"), value: Value::None, default: "",
        doc: "Speak TLS on TCP; see the ssl_ options of -o.",
        class: set!(tls_wanted = true) },
    Row { name: both('d', "daemon"), value: Value::None, default: "",
        doc: "Run in the background, in /. The command returns when the server listens. Without -v its log goes to /dev/null.",
        class: set!(daemon = true) },
    Row { name: both('P', "pidfile"), value: Value::Text { what: "file" }, default: "",
        doc: "Write the process id to this file; removed at exit.",
        class: set!(pid_file, given => Some(given.text().into())) },
    Row { name: both('r', "enable-coredumps"), value: Value::None, default: "",
        doc: "Raise the limit on core files; -d then stays in the current directory.",
        class: set!(core_dumps = true) },
    Row { name: both('k', "lock-memory"), value: Value::None, default: "",
        doc: "Keep all memory from being paged out. If the limit (ulimit -l) forbids it, a warning, and it runs.",
        class: set!(lock_memory = true) },
    Row { name: both('L', "enable-largepages"), value: Value::None, default: "",
        doc: "Ask the kernel for large pages for items.",
        class: set!(large_pages = true) },
    Row { name: both('D', "stat-delimiter"), value: Value::Text { what: "char" }, default: ":",
        doc: "What ends a key's prefix in stats detail: the first character of this. Given, it switches stats detail on.",
        class: Class::Honoured(set_delimiter) },
    Row { name: both('v', "verbose"), value: Value::None, default: "",
        doc: "Log what happens; -vv also requests and replies, -vvv also internal steps.",
        class: Class::Honoured(|settings, _| { settings.verbosity = settings.verbosity.saturating_add(1); Ok(()) }) },
    Row { name: Name::Switch { short: None, long: Some("config") }, value: Value::Text { what: "file" }, default: "",
        doc: "Rule file: which keys are protected and which tags they carry; it may also hold these options. SIGHUP reads it again.",
        class: set!(config, given => Some(given.text().into())) },
    Row { name: Name::Switch { short: None, long: Some("log-format") },
        value: Value::Choice { names: &["text", "json"], refused: &[] }, default: "text",
        doc: "How log lines look; json is one object a line with ts, level and msg.",
        class: set!(log_format, given => if given.text() == "json" { LogFormat::Json } else { LogFormat::Text }) },
    Row { name: Name::Switch { short: None, long: Some("drain") }, value: Value::Duration, default: "5s",
        doc: "How long SIGTERM waits at most for requests that are held.",
        class: set!(drain, given => match given { Given::Duration(time) => *time, _ => std::time::Duration::ZERO }) },
    Row { name: Name::Switch { short: None, long: Some("unsent-memory") }, value: Value::Size { min: 1 << 20, max: 1 << 40 }, default: "64m",
        doc: "Memory for replies that clients have not taken yet, of all connections together. Near it connections whose clients do not read are no longer served, and closed after 10 s; beyond it those with most are closed at once.",
        class: set!(unsent_bytes, given => match given { Given::Bytes(bytes) => *bytes as usize, _ => 64 << 20 }) },
    Row { name: both('h', "help"), value: Value::None, default: "",
        doc: "Print this help and exit.", class: Class::Help },
    Row { name: both('V', "version"), value: Value::None, default: "",
        doc: "Print the version and exit.", class: Class::Version },
    Row { name: both('i', "license"), value: Value::None, default: "",
        doc: "Print the licence and exit.", class: Class::License },
    Row { name: both('o', "extended"), value: Value::Text { what: "list" }, default: "",
        doc: "More options, separated by commas: name or name=value. May be repeated.", class: Class::List },

    Row { name: both('f', "slab-growth-factor"), value: Value::Decimal { above: 1.0, below: f64::INFINITY }, default: "1.25",
        doc: "Growth of chunk sizes between slab classes.",
        class: Class::Accepted { setting: Some(Setting::Given("growth_factor")), why: NO_SLABS } },
    Row { name: both('n', "slab-min-size"), value: number("bytes", 1, INT), default: "48",
        doc: "Smallest chunk.",
        class: Class::Accepted { setting: Some(Setting::Given("chunk_size")), why: NO_SLABS } },
    Row { name: both('B', "protocol"), default: "auto",
        value: Value::Choice { names: &["auto", "ascii"],
            refused: &[("binary", "the binary protocol is not spoken; use auto, and a client's text or meta protocol")] },
        doc: "Protocol. Text and meta are spoken either way.",
        class: Class::Accepted { setting: None, why: "text and meta are always spoken, nothing else is" } },
    Row { name: both('U', "udp-port"), default: "0", value: number("", 0, 0),
        doc: "UDP port. There is no UDP, so only 0.",
        class: Class::Accepted { setting: None, why: "there is no UDP" } },
    Row { name: both('N', "napi_ids"), value: number("", 1, INT), default: "",
        doc: "Number of receive queues to spread connections by.",
        class: Class::Accepted { setting: Some(Setting::Given("num_napi_ids")), why: "connections are spread over the threads without regard to receive queues" } },

    Row { name: both('S', "enable-sasl"), value: Value::None, default: "",
        doc: "SASL authentication.",
        class: Class::Refused("SASL belongs to the binary protocol, which is not spoken; use -Y <file>, and -Z to keep passwords secret") },
    Row { name: both('e', "memory-file"), value: Value::Text { what: "file" }, default: "",
        doc: "File for item memory that outlives a restart.",
        class: Class::Refused("items do not outlive a restart; leave the option out") },
];

pub(super) const NO_SLABS: &str = "memory has no slab classes to tune";

#[expect(clippy::unnecessary_wraps, reason = "as the table wants it")]
fn set_port(settings: &mut Settings, given: &Given) -> Result<(), String> {
    settings.tcp_port = match given.number::<i64>() {
        -1 => TcpPort::Ephemeral,
        0 => TcpPort::None,
        _ => TcpPort::Fixed(given.number()),
    };
    settings.port_given = true;
    Ok(())
}

fn set_listen(settings: &mut Settings, given: &Given) -> Result<(), String> {
    for entry in given.text().split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        settings.listen.push(ListenAddress::parse(entry)?);
    }
    if settings.listen.is_empty() {
        return Err(format!("{}: names no address", given.text()));
    }
    Ok(())
}

fn set_delimiter(settings: &mut Settings, given: &Given) -> Result<(), String> {
    let &[delimiter, ..] = given.text().as_bytes() else {
        return Err("\"\": must be a char".to_owned());
    };
    settings.stat_delimiter = delimiter;
    settings.stat_detail = true;
    Ok(())
}
