//! The definition of each option with a letter or a long name; `extended.rs` has the options of `-o`.

use crate::extended;
use crate::listen_address::{ListenAddress, TcpPort};
use crate::option_row::{INT, NO_SLABS, OptionName, OptionRow, both, number, text};
use crate::protocol::{NAMES, Protocol};
use crate::settings::{LogFormat, Settings};
use crate::table::{Class, ShownSetting, TableRow, set};
use crate::value::{OptionValue, ValueKind};

/// All options, in the order of the help.
pub(crate) fn rows() -> impl Iterator<Item = &'static OptionRow> {
    ROWS.iter().chain(extended::ROWS)
}

const fn inert(name: OptionName, setting: Option<ShownSetting>, why: &'static str) -> OptionRow {
    TableRow { name, kind: ValueKind::Any, default: "", doc: "", class: Class::Inert { setting, why } }
}

#[rustfmt::skip] // one option is one block of short lines, all alike
const ROWS: &[OptionRow] = &[
    TableRow { name: both('p', "port"), kind: number("", -1, 65535), default: "11211",
        doc: "TCP port to listen on. -1 takes a free one, 0 none.",
        class: Class::Honoured(set_port) },
    TableRow { name: both('l', "listen"), kind: text("addr"), default: "127.0.0.1",
        doc: "Addresses to listen on, separated by commas or in several -l: a name or address, with a port or without (host:port, [v6]:port); * is every address. Under -Z the prefix notls: keeps one free of TLS; btls: and mtls: say what ssl_verify_mode says for all, that clients are not asked for certificates or must have one.",
        class: Class::Honoured(set_listen) },
    TableRow { name: both('s', "unix-socket"), kind: text("file"), default: "",
        doc: "Unix socket to listen on. Without -p or -l beside it there is no TCP.",
        class: set!(unix_socket, given => Some(given.text().into())) },
    TableRow { name: both('a', "unix-mask"), kind: ValueKind::Octal, default: "700",
        doc: "Access bits of the unix socket, in octal.",
        class: set!(unix_mask, given => given.octal()) },
    TableRow { name: both('b', "listen-backlog"), kind: number("connections", 0, INT), default: "1024",
        doc: "Connections the kernel may hold until they are accepted.",
        class: set!(backlog, given => given.number()) },
    TableRow { name: both('u', "user"), kind: text("user"), default: "",
        doc: "User to become once the sockets are open; only root can. Started as root without it, the server warns and stays root.",
        class: set!(user, given => Some(given.text().to_owned())) },
    TableRow { name: both('m', "memory-limit"), kind: number("MiB", 1, 1 << 30), default: "64",
        doc: "Memory for items, in MiB; a suffix m changes nothing.",
        class: set!(memory_bytes, given => given.number::<usize>() << 20) },
    TableRow { name: both('M', "disable-evictions"), kind: ValueKind::None, default: "",
        doc: "When memory is full answer an error instead of evicting items.",
        class: set!(evictions = false) },
    TableRow { name: both('I', "max-item-size"), kind: ValueKind::Size { min: 1 << 10, max: 1 << 30 }, default: "1m",
        doc: "Largest item; at most half of -m.",
        class: set!(item_bytes_max, given => given.bytes()) },
    TableRow { name: both('t', "threads"), kind: number("", 1, 1024), default: "4",
        doc: "Threads that serve connections.",
        class: set!(threads, given => given.number()) },
    TableRow { name: both('c', "conn-limit"), kind: number("connections", 1, INT), default: "1024",
        doc: "Simultaneous connections. The limit on open files is raised to fit.",
        class: set!(connections_max, given => given.number()) },
    TableRow { name: both('R', "max-reqs-per-event"), kind: number("requests", 1, INT), default: "256",
        doc: "Requests served from one connection before the others get their turn. memcached's default is 20; a turn here costs one send whatever it holds, so that more are better.",
        class: set!(requests_per_event, given => given.number()) },
    TableRow { name: both('C', "disable-cas"), kind: ValueKind::None, default: "",
        doc: "Hide CAS values from clients. The numbers are still kept, so that nothing about memory changes.",
        class: set!(cas = false) },
    TableRow { name: both('F', "disable-flush-all"), kind: ValueKind::None, default: "",
        doc: "Refuse flush_all.",
        class: set!(flush = false) },
    TableRow { name: both('X', "disable-dumping"), kind: ValueKind::None, default: "",
        doc: "Refuse stats cachedump and lru_crawler metadump.",
        class: set!(dump = false) },
    TableRow { name: both('W', "disable-watch"), kind: ValueKind::None, default: "",
        doc: "Refuse watch.",
        class: set!(watch = false) },
    TableRow { name: both('A', "enable-shutdown"), kind: ValueKind::None, default: "",
        doc: "Allow the command shutdown.",
        class: set!(shutdown_command = true) },
    TableRow { name: both('B', "protocol"), kind: ValueKind::Choice { names: NAMES, refused: &[] }, default: "auto",
        doc: "Protocol: ascii is text and meta, binary the binary protocol, auto both; the first byte of a connection says which. Under -Y and -S it follows from them.",
        class: set!(protocol_given, given => Some(Protocol::of_name(given.text()))) },
    TableRow { name: both('Y', "auth-file"), kind: text("file"), default: "",
        doc: "Text clients must log in; the file has up to 8 lines user:password. SIGHUP reads it again. Without -S the binary protocol is not spoken.",
        class: set!(auth_file, given => Some(given.text().into())) },
    TableRow { name: both('S', "enable-sasl"), kind: ValueKind::None, default: "",
        doc: "Binary clients must log in, by SASL PLAIN, against the file of -Y, without it against the file that MEMCACHED_SASL_PWDB names. Without -Y text is not spoken.",
        class: set!(sasl = true) },
    TableRow { name: both('Z', "enable-ssl"), kind: ValueKind::None, default: "",
        doc: "Speak TLS on TCP; see the ssl_ options of -o.",
        class: set!(tls_wanted = true) },
    TableRow { name: both('d', "daemon"), kind: ValueKind::None, default: "",
        doc: "Run in the background, in /. The command returns when the server listens. Without -v its log goes to /dev/null.",
        class: set!(daemon = true) },
    TableRow { name: both('P', "pidfile"), kind: text("file"), default: "",
        doc: "Write the process id to this file; removed at exit.",
        class: set!(pid_file, given => Some(given.text().into())) },
    TableRow { name: both('r', "enable-coredumps"), kind: ValueKind::None, default: "",
        doc: "Raise the limit on core files; -d then stays in the current directory.",
        class: set!(core_dumps = true) },
    TableRow { name: both('k', "lock-memory"), kind: ValueKind::None, default: "",
        doc: "Keep memory from being paged out. Each page is locked from its first use on. If the limit (ulimit -l) forbids it, a warning, and it runs.",
        class: set!(lock_memory = true) },
    TableRow { name: both('L', "enable-largepages"), kind: ValueKind::None, default: "",
        doc: "Ask the kernel for large pages for items.",
        class: set!(large_pages = true) },
    TableRow { name: both('D', "stat-delimiter"), kind: text("char"), default: ":",
        doc: "What ends a key's prefix in stats detail: the first character of this. Given, it switches stats detail on.",
        class: Class::Honoured(set_delimiter) },
    TableRow { name: both('v', "verbose"), kind: ValueKind::None, default: "",
        doc: "Log what happens; -vv also requests and replies, -vvv also internal steps.",
        class: Class::Honoured(|settings, _| { settings.verbosity = settings.verbosity.saturating_add(1); Ok(()) }) },
    TableRow { name: OptionName::Switch { short: None, long: Some("config") }, kind: text("file"), default: "",
        doc: "Rule file: which keys are protected and which tags they carry; it may also hold these options. SIGHUP reads it again.",
        class: set!(config, given => Some(given.text().into())) },
    TableRow { name: OptionName::Switch { short: None, long: Some("options-file") }, kind: text("file"), default: "",
        doc: "File of options, as Debian's memcached has one in /etc/memcached.conf: a line has an option, # begins a comment, lines that begin with -d, -h or another word than an option are left out. Options of the command line win. A - before the name: the file may be missing. It is read at the start only.",
        class: set!(options_file, given => Some(given.text().to_owned())) },
    TableRow { name: OptionName::Switch { short: None, long: Some("objects") }, kind: text("dir"), default: "",
        doc: "Switch objects with methods on, all types, as [objects] in the rule file does, and those of this directory: NAME.luau is the type NAME. SIGHUP loads them again.",
        class: set!(objects_dir, given => Some(given.text().into())) },
    TableRow { name: OptionName::Switch { short: None, long: Some("log-format") },
        kind: ValueKind::Choice { names: &["text", "json"], refused: &[] }, default: "text",
        doc: "How log lines look; json is one object a line with ts, level and msg.",
        class: set!(log_format, given => if given.text() == "json" { LogFormat::Json } else { LogFormat::Text }) },
    TableRow { name: OptionName::Switch { short: None, long: Some("admin") }, kind: text("addr"), default: "",
        doc: "Address of HTTP pages for monitoring: /metrics, /healthz, /readyz and JSON; host:port, port 11280 if none is named. Off without it. Beyond loopback it needs --admin-token and -o ssl_chain_cert, and speaks TLS.",
        class: Class::Honoured(set_admin) },
    TableRow { name: OptionName::Switch { short: None, long: Some("admin-token") }, kind: text("file"), default: "",
        doc: "File whose first line readers of --admin must send as a bearer token, except for /healthz and /readyz. SIGHUP reads it again.",
        class: set!(admin_token, given => Some(given.text().into())) },
    TableRow { name: OptionName::Switch { short: None, long: Some("slow-log") }, kind: ValueKind::Ms { min: 1, max: u64::MAX }, default: "1s",
        doc: "Computations and loads that take this long or longer are in the slow log: get @slow.",
        class: set!(slow, given => given.duration()) },
    TableRow { name: OptionName::Switch { short: None, long: Some("slow-calls") }, kind: ValueKind::Ms { min: 1, max: u64::MAX }, default: "10ms",
        doc: "Calls of objects that take this long or longer are in the slow log, as far as their time is taken.",
        class: set!(slow_calls, given => given.duration()) },
    TableRow { name: OptionName::Switch { short: None, long: Some("drain") }, kind: ValueKind::Ms { min: 0, max: u64::MAX }, default: "5s",
        doc: "How long the server takes at most to leave after SIGTERM. Gets that wait for a value keep waiting until 0.5 s before its end.",
        class: set!(drain, given => given.duration()) },
    TableRow { name: OptionName::Switch { short: None, long: Some("unsent-memory") }, kind: ValueKind::Size { min: 1 << 20, max: 1 << 40 }, default: "64m",
        doc: "Memory for replies that clients have not taken yet, of all connections together. Near it connections whose clients do not read are no longer served, and closed after 10 s; beyond it those with most are closed at once.",
        class: set!(unsent_bytes, given => given.bytes()) },
    TableRow { name: both('h', "help"), kind: ValueKind::None, default: "",
        doc: "Print the most used options and exit; --help-all prints all.", class: Class::Help },
    TableRow { name: both('V', "version"), kind: ValueKind::None, default: "",
        doc: "Print the version and exit.", class: Class::Version },
    TableRow { name: both('i', "license"), kind: ValueKind::None, default: "",
        doc: "Print the licence and exit.", class: Class::License },
    TableRow { name: both('o', "extended"), kind: text("list"), default: "",
        doc: "More options, separated by commas: name or name=value. May be repeated.", class: Class::List },

    inert(both('f', "slab-growth-factor"), Some(ShownSetting::Given("growth_factor")), NO_SLABS),
    inert(both('n', "slab-min-size"), Some(ShownSetting::Given("chunk_size")), NO_SLABS),
    TableRow { name: both('U', "udp-port"), default: "0", kind: number("", 0, 0),
        doc: "UDP port. There is no UDP, so only 0.",
        class: Class::Inert { setting: None, why: "there is no UDP" } },
    inert(both('N', "napi_ids"), Some(ShownSetting::Given("num_napi_ids")), "connections are spread over the threads without regard to receive queues"),

    TableRow { name: both('e', "memory-file"), kind: text("file"), default: "",
        doc: "File for item memory that outlives a restart.",
        class: Class::Refused("items do not outlive a restart; leave the option out") },
];

#[expect(clippy::unnecessary_wraps, reason = "as the table wants it")]
fn set_port(settings: &mut Settings, given: &OptionValue) -> Result<(), String> {
    settings.tcp_port = match given.number::<i64>() {
        -1 => TcpPort::Ephemeral,
        0 => TcpPort::None,
        _ => TcpPort::Fixed(given.number()),
    };
    settings.port_given = true;
    Ok(())
}

fn set_listen(settings: &mut Settings, given: &OptionValue) -> Result<(), String> {
    for entry in given.text().split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        settings.listen.push(ListenAddress::parse(entry)?);
    }
    if settings.listen.is_empty() {
        return Err(format!("{}: names no address", given.text()));
    }
    Ok(())
}

fn set_admin(settings: &mut Settings, given: &OptionValue) -> Result<(), String> {
    let address = ListenAddress::parse(given.text())?;
    if !address.tls || address.peer.is_some() || address.protocol.is_some() {
        return Err(format!("{}: takes an address without a prefix", given.text()));
    }
    settings.admin = Some(address);
    Ok(())
}

fn set_delimiter(settings: &mut Settings, given: &OptionValue) -> Result<(), String> {
    let &[delimiter, ..] = given.text().as_bytes() else {
        return Err("\"\": must be a char".to_owned());
    };
    settings.stat_delimiter = delimiter;
    settings.stat_detail = true;
    Ok(())
}
