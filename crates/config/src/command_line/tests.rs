//! Tests of every row of the table, and of the grammar.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

use super::*;
use crate::file_option::FileOption;
use crate::listen_address::TcpPort;
use crate::protocol::Protocol;
use crate::settings::{KeyFormat, LogFormat, Privileges, TlsVersion, VerifyMode};
use crate::table::Class;
use crate::value::{ValueKind, ValueSyntax};

fn parse(words: &[&str]) -> Result<Settings, String> {
    match parse_args(words.iter().copied().map(OsString::from)) {
        Ok(Command::Serve(settings)) => Ok(*settings),
        Ok(other) => Err(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

type Effect = (&'static str, &'static [&'static str], fn(&Settings) -> bool);

/// For each honoured row: its name, a command line that uses it, and a condition that is true of the result
/// and false without the option. For a default that is stated explicitly, the other options of the command
/// line apply.
#[rustfmt::skip] // one row is one line
const EFFECTS: &[Effect] = &[
    ("--port", &["-p", "11311"], |s| s.tcp_port == TcpPort::Fixed(11311)),
    ("--listen", &["-l", "127.0.0.2:5,::1"], |s| s.inter() == "127.0.0.2:5,::1"),
    ("--unix-socket", &["-s", "/tmp/x"], |s| s.unix_socket == Some("/tmp/x".into()) && s.tcp_addresses().is_empty()),
    ("--unix-mask", &["-a", "777"], |s| s.unix_mask == 0o777),
    ("--listen-backlog", &["-b", "7"], |s| s.backlog == 7),
    ("--user", &["-u", "nobody"], |s| s.user.as_deref() == Some("nobody")),
    ("--memory-limit", &["-m", "100"], |s| s.memory_bytes == 100 << 20),
    ("--disable-evictions", &["-M"], |s| !s.evictions),
    ("--max-item-size", &["-I", "2m"], |s| s.item_bytes_max == 2 << 20),
    ("--threads", &["-t", "2"], |s| s.threads == 2),
    ("--conn-limit", &["-c", "5"], |s| s.connections_max == 5),
    ("--max-reqs-per-event", &["-R", "1"], |s| s.requests_per_event == 1),
    ("--disable-cas", &["-C"], |s| !s.cas),
    ("--disable-flush-all", &["-F"], |s| !s.flush),
    ("--disable-dumping", &["-X"], |s| !s.dump),
    ("--disable-watch", &["-W"], |s| !s.watch),
    ("--enable-shutdown", &["-A"], |s| s.shutdown_command),
    ("--protocol", &["-B", "binary"], |s| s.protocol == Protocol::Binary),
    ("--auth-file", &["-Y", "users"], |s| s.auth_file == Some("users".into()) && s.auth_text() && s.protocol == Protocol::Ascii),
    ("--enable-sasl", &["-S"], |s| s.auth_binary() && !s.auth_text() && s.protocol == Protocol::Binary),
    ("--enable-ssl", &["-Z", "-o", "ssl_chain_cert=c"], |s| s.tls.is_some()),
    ("--daemon", &["-d"], |s| s.daemon),
    ("--pidfile", &["-P", "pid"], |s| s.pid_file == Some("pid".into())),
    ("--enable-coredumps", &["-r"], |s| s.core_dumps),
    ("--lock-memory", &["-k"], |s| s.lock_memory),
    ("--enable-largepages", &["-L"], |s| s.large_pages),
    ("--stat-delimiter", &["-D", "/"], |s| s.stat_delimiter == b'/' && s.stat_detail),
    ("--verbose", &["-v"], |s| s.verbosity == 1),
    ("--config", &["--config", EXAMPLE], |s| s.rule_file.is_some() && s.memory_bytes == 256 << 20),
    ("--options-file", &["--options-file", DEBIAN], |s| s.tcp_port == TcpPort::Fixed(11311) && s.inter() == "127.0.0.1,127.0.0.2"),
    ("--objects", &["--objects", SOURCES], |s| s.objects.is_some()),
    ("--log-format", &["--log-format", "json"], |s| s.log_format == LogFormat::Json),
    ("--admin", &["--admin", "[::1]:11280"], |s| s.admin.as_ref().is_some_and(|own| own.port == Some(11280))),
    ("--admin-token", &["--admin", "127.0.0.1", "--admin-token", "t"], |s| s.admin_token == Some("t".into()) && s.admin_tls.is_none()),
    ("--slow-log", &["--slow-log", "250ms"], |s| s.slow == Duration::from_millis(250)),
    ("--slow-calls", &["--slow-calls", "5ms"], |s| s.slow_calls == Duration::from_millis(5)),
    ("--drain", &["--drain", "250ms"], |s| s.drain == Duration::from_millis(250)),
    ("--unsent-memory", &["--unsent-memory", "2m"], |s| s.unsent_bytes == 2 << 20),
    ("-o idle_timeout", &["-o", "idle_timeout=9"], |s| s.idle_timeout == Some(Duration::from_secs(9))),
    ("-o maxconns_fast", &["-o", "no_maxconns_fast,maxconns_fast"], |s| s.connections_max_fast),
    ("-o no_maxconns_fast", &["-o", "no_maxconns_fast"], |s| !s.connections_max_fast),
    ("-o io_uring", &["-o", "io_uring"], |s| s.io_uring),
    ("-o watcher_logbuf_size", &["-o", "watcher_logbuf_size=1"], |s| s.watcher_buffer_bytes == 1024),
    ("-o worker_logbuf_size", &["-o", "worker_logbuf_size=2"], |s| s.lane_log_buffer_bytes == 2048),
    ("-o drop_privileges", &["-o", "drop_privileges"], |s| s.privileges == Privileges::Drop),
    ("-o no_drop_privileges", &["-o", "drop_privileges,no_drop_privileges"], |s| s.privileges == Privileges::Keep),
    ("-o relaxed_privileges", &["-o", "drop_privileges,relaxed_privileges"], |s| s.privileges == Privileges::NoNew),
    ("-o no_modern", &["-o", "no_modern"], |s| !s.connections_max_fast && s.tuning["lru_crawler"] == "no"),
    ("-o track_sizes", &["-o", "track_sizes"], |s| s.track_sizes),
    ("-o debugtime", &["-o", "debugtime"], |s| s.debugtime),
    ("-o ssl_chain_cert", &["-Z", "-o", "ssl_chain_cert=c"], |s| s.tls.as_ref().unwrap().chain_cert.ends_with("c")),
    ("-o ssl_key", &["-o", "ssl_key=k"], |s| s.tls_given().key == Some("k".into())),
    ("-o ssl_keyformat", &["-o", "ssl_keyformat=DER"], |s| s.tls_given().key_format == KeyFormat::Der),
    ("-o ssl_verify_mode", &["-o", "ssl_verify_mode=2"], |s| s.tls_given().verify_mode == VerifyMode::Require),
    ("-o ssl_ca_cert", &["-o", "ssl_ca_cert=a"], |s| s.tls_given().ca_cert == Some("a".into())),
    ("-o ssl_min_version", &["-o", "ssl_min_version=tlsv1.3"], |s| s.tls_given().min_version == TlsVersion::Tls13),
    ("-o ssl_ciphers", &["-o", "ssl_ciphers=A:B"], |s| s.tls_given().ciphers.as_deref() == Some("A:B")),
    ("-o ssl_session_cache", &["-o", "ssl_session_cache"], |s| s.tls_given().session_cache),
];

/// A valid rule file.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/example.toml");
/// A file of options in the format of Debian's memcached.
const DEBIAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/tests/memcached.conf");
/// A directory without scripts.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

/// Options that state a default.
const SAME_AS_DEFAULT: &[&str] = &["-o maxconns_fast", "-o no_drop_privileges"];

#[test]
fn every_honoured_option_has_its_effect() {
    for row in rows().filter(|row| matches!(row.class, Class::Honoured(_))) {
        let name = row.name.shown();
        let (_, words, holds) =
            EFFECTS.iter().find(|(own, ..)| *own == name).unwrap_or_else(|| panic!("{name}: no test"));
        let settings = parse(words).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(holds(&settings), "{name}");
        if name != "-o ssl_chain_cert" && !SAME_AS_DEFAULT.contains(&name.as_str()) {
            assert!(!holds(&Settings::default()), "{name}: true without it, too");
        }
        assert!(settings.notices.is_empty(), "{name}: {:?}", settings.notices);
    }
}

/// A command line with the row's option and this value.
fn words_for(row: &OptionRow, value: Option<&str>) -> Vec<String> {
    let with = |name: &str| value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"));
    match row.name {
        OptionName::Switch { long: Some(long), .. } => vec![with(&format!("--{long}"))],
        OptionName::Switch { short, .. } => {
            vec![format!("-{}", short.unwrap()), value.unwrap_or_default().to_owned()]
        }
        OptionName::Extended(name) => vec!["-o".to_owned(), with(name)],
        OptionName::Family(prefix) => vec!["-o".to_owned(), with(&format!("{prefix}path"))],
    }
}

fn parse_row(row: &OptionRow, value: Option<&str>) -> Result<Settings, String> {
    let words = words_for(row, value);
    parse(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A valid value of the kind.
fn good(kind: ValueKind) -> Option<String> {
    match kind {
        ValueKind::None => None,
        ValueKind::Number { min, .. } => Some(min.to_string()),
        ValueKind::Size { min, .. } => Some(min.to_string()),
        ValueKind::Ms { .. } => Some("1s".to_owned()),
        ValueKind::Octal => Some("640".to_owned()),
        ValueKind::Choice { names, .. } => Some(names[0].to_owned()),
        ValueKind::Any | ValueKind::Text { .. } => Some("x".to_owned()),
        ValueKind::AutoMs { .. }
        | ValueKind::Percent { .. }
        | ValueKind::Share { .. }
        | ValueKind::Seconds { .. }
        | ValueKind::List { .. }
        | ValueKind::Words { .. }
        | ValueKind::Free { .. }
        | ValueKind::Flag
        | ValueKind::FlagOr { .. } => {
            panic!("for rule files: {kind:?}")
        }
    }
}

/// Invalid values of the kind.
fn bad(kind: ValueKind) -> Vec<String> {
    match kind {
        ValueKind::None | ValueKind::Any => vec![],
        ValueKind::Number { min, max, .. } => {
            let outside = [min - 1, max + 1].map(|number| number.to_string());
            [&["abc", "1x", "", "0.5"].map(ToOwned::to_owned)[..], &outside[..]].concat()
        }
        ValueKind::Size { min, max } => {
            let outside = [min - 1, max + 1].map(|number| number.to_string());
            [&["abc", "1x", "", "-1k"].map(ToOwned::to_owned)[..], &outside[..]].concat()
        }
        ValueKind::Ms { .. } => ["", "5x", "-1s"].map(ToOwned::to_owned).to_vec(),
        ValueKind::Octal => ["", "8", "1000", "-1", "rwx"].map(ToOwned::to_owned).to_vec(),
        ValueKind::Choice { refused, .. } => {
            let refused = refused.iter().map(|(name, _)| (*name).to_owned());
            refused.chain(["fooble".to_owned(), String::new()]).collect()
        }
        ValueKind::Text { .. } => vec![String::new()],
        ValueKind::AutoMs { .. }
        | ValueKind::Percent { .. }
        | ValueKind::Share { .. }
        | ValueKind::Seconds { .. }
        | ValueKind::List { .. }
        | ValueKind::Words { .. }
        | ValueKind::Free { .. }
        | ValueKind::Flag
        | ValueKind::FlagOr { .. } => {
            panic!("for rule files: {kind:?}")
        }
    }
}

#[test]
fn every_accepted_option_leaves_one_line_and_its_setting() {
    let mut seen = 0;
    for row in rows() {
        let Class::Inert { setting, why } = row.class else { continue };
        seen += 1;
        let name = row.name.shown();
        let value = good(row.kind);
        let settings = parse_row(row, value.as_deref()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(settings.notices.len(), 1, "{name}: {:?}", settings.notices);
        assert!(settings.notices[0].contains(&name) && settings.notices[0].ends_with(why), "{name}");
        if let Some(setting) = setting {
            let (key, text) = setting.entry(value.as_deref()).unwrap();
            assert_eq!(settings.tuning[key], text, "{name}");
            assert!(Settings::default().tuning.contains_key(key), "{name}: {key} has no default");
        }
    }
    assert!(seen > 30);
}

/// Scripts for memcached have values of all its versions: none may keep the server from starting.
#[test]
fn options_without_effect_take_any_value() {
    for words in [
        &["-o", "hashpower=99,slab_automove=7,tail_repair_time=,lru_crawler_sleep"][..],
        &["-f", "0", "-n", "many", "-N", "-1"],
    ] {
        assert!(!parse(words).unwrap().notices.is_empty(), "{words:?}");
    }
    assert_eq!(parse(&["-o", "slab_chunk_max=4,hot_lru_pct"]).unwrap().tuning["slab_chunk_max"], "4096");
    assert_eq!(parse(&["-o", "hot_lru_pct"]).unwrap().tuning["hot_lru_pct"], "20", "memcached's default");
}

#[test]
fn every_refused_option_names_its_reason_with_or_without_a_value() {
    let mut seen = 0;
    for row in rows() {
        let Class::Refused(reason) = row.class else { continue };
        seen += 1;
        let values = if row.kind.is_wanted() { vec![None, Some("x")] } else { vec![None] };
        for value in values {
            let error = parse_row(row, value).expect_err(reason);
            let name = row.name.shown();
            assert!(error.starts_with(name.trim_end_matches('*')) && error.ends_with(reason), "{error}");
        }
    }
    assert!(seen >= 4);
}

#[test]
fn every_option_refuses_values_that_make_no_sense() {
    for row in rows().filter(|row| !matches!(row.class, Class::Refused(_) | Class::List)) {
        let name = row.name.shown();
        for value in bad(row.kind) {
            let error = parse_row(row, Some(&value)).expect_err(&format!("{name} {value:?}"));
            assert!(error.starts_with(&name) && !error.contains('\n'), "{name} {value:?}: {error}");
        }
        let may_lack_it = row.kind.is_optional() && matches!(row.name, OptionName::Extended(_));
        if row.kind.is_wanted() && may_lack_it {
            assert!(parse_row(row, None).is_ok(), "{name}");
        } else if row.kind.is_wanted() {
            let error = parse_row(row, None).expect_err(&name);
            assert_eq!(
                error,
                format!("{name}: needs a value: {}", row.kind.describe(ValueSyntax::CommandLine))
            );
        } else if matches!(row.name, OptionName::Switch { .. }) {
            let error = parse_row(row, Some("1")).expect_err(&name);
            assert!(error.starts_with(&format!("{name}: takes no value")), "{error}");
        }
    }
}

#[test]
fn no_name_is_used_twice() {
    let mut names = BTreeSet::new();
    for row in rows() {
        if let OptionName::Switch { short: Some(short), .. } = row.name {
            assert!(names.insert(format!("-{short}")), "-{short}");
        }
        assert!(names.insert(row.name.shown()), "{}", row.name.shown());
        let is_explained = matches!(row.class, Class::Inert { .. }) || !row.doc.is_empty();
        assert!(is_explained && (row.doc.is_empty() || row.doc.ends_with('.')), "{}", row.name.shown());
    }
}

#[test]
fn defaults_said_aloud_change_nothing() {
    for row in rows().filter(|row| matches!(row.class, Class::Honoured(_)) && !row.default.is_empty()) {
        let settings = parse_row(row, Some(row.default)).unwrap();
        let mut shown = settings.clone();
        shown.port_given = false;
        shown.protocol_given = None;
        shown.stat_detail = false;
        shown.listen.clear();
        assert_eq!(format!("{shown:?}"), format!("{:?}", Settings::default()), "{}", row.name.shown());
        assert_eq!(settings.inter(), Settings::default().inter());
    }
}

#[test]
fn the_grammar_is_that_of_getopt() {
    assert_eq!(parse(&["-vvv"]).unwrap().verbosity, 3);
    assert_eq!(parse(&["-v", "--verbose", "-v"]).unwrap().verbosity, 3);
    for words in [
        &["-dp11311"][..],
        &["-dp", "11311"],
        &["-d", "-p11311"],
        &["-d", "--port=11311"],
        &["-d", "--port", "11311"],
        &["-d", "--por", "11311"],
        &["serve", "-d", "-p", "1", "-p", "11311", "--"],
    ] {
        let settings = parse(words).unwrap();
        assert!(settings.daemon && settings.tcp_port == TcpPort::Fixed(11311), "{words:?}");
    }
    let settings = parse(&["-o", "idle_timeout=3,,no_maxconns_fast=x", "-o", "", "-omodern"]).unwrap();
    assert_eq!(settings.idle_timeout, Some(Duration::from_secs(3)));
    assert!(!settings.connections_max_fast);
    assert_eq!(settings.notices.len(), 1);
    let settings = parse(&["-l", "127.0.0.1,[::1]:5", "-l", "a"]).unwrap();
    assert_eq!(settings.inter(), "127.0.0.1,[::1]:5,a");
}

#[test]
fn what_is_unknown_is_named() {
    for (words, part) in [
        (&["-Q"][..], "-Q: unknown option"),
        (&["-vQ"], "-Q: unknown option"),
        (&["--fooble"], "--fooble: unknown option"),
        (&["--=5"], "--: unknown option"),
        (&["--disable"], "could be --disable-evictions or --disable-cas"),
        (&["-o", "fooble=1"], "-o fooble: unknown option"),
        (&["--config", "/nonexistent"], "/nonexistent: cannot be read: "),
        (&["--con", "x"], "--con: could be --conn-limit or --config"),
        (&["check"], "check: needs a rule file"),
        (&["nodes"], "nodes: needs host:port"),
        (&["nodes", "a:1", "b:2"], "nodes b:2: unexpected"),
        (&["nodes", "--all"], "nodes --all: unknown option"),
        (&["check", "f", "g"], "check g: unexpected"),
        (&["check", "f", "--kye"], "check --kye: unknown option"),
        (&["check", "f", "--key"], "check --key: needs a value"),
        (&["check", "f", "--try"], "check --try: needs a value"),
        (&["check", "--try", "k"], "check: needs a rule file"),
        (&["check", "f", "--try", "k", "--key=k"], "check: takes one of --key and --try"),
        (
            &["fooble"],
            "fooble: no such subcommand, and options start with - (see --help); there are serve, demo, ",
        ),
        (
            &["chek", "f"],
            "chek: no such subcommand, and options start with - (see --help); did you mean check?",
        ),
        (
            &["help", "benhc"],
            "help benhc: no such subcommand, and options start with - (see --help); did you mean bench?",
        ),
        (&["version", "x"], "version x: unexpected"),
        (&["--memory-limt=5"], "--memory-limt: unknown option; did you mean --memory-limit?"),
        (&["--zzz"], "--zzz: unknown option; --help-all lists all"),
        (&["-o", "idle_timout=1"], "-o idle_timout: unknown option; did you mean -o idle_timeout?"),
        (&["-o", "zzz"], "-o zzz: unknown option; --help-all lists all"),
        (&["check", "--kee", "k", "f"], "check --kee: unknown option; did you mean --key <key>?"),
        (&["objects", "tset"], "objects tset: unknown; did you mean test? objects takes list"),
        (&["demo", "--kep"], "demo --kep: unknown option"),
    ] {
        let error = parse(words).expect_err(part);
        assert!(error.contains(part), "{words:?}: {error}");
    }
}

#[test]
fn options_that_do_not_go_together() {
    for (words, part) in [
        (&["-I", "256m"][..], "-I: an item of 268435456 bytes is above half of the memory (-m 64)"),
        (&["-I", "1025m", "-m", "10000"], "1k to 1g"),
        (&["-I", "1000"], "1k to 1g"),
        (&["-m", "1"], "above half of the memory"),
        (&["-c", "0"], "-c 0: must be a whole number of connections, 1 or more"),
        (&["-c", "-1"], "-c -1: must be"),
        (&["-t", "0"], "-t 0: must be a whole number, 1 to 1024"),
        (&["-U", "1"], "-U 1: must be 0 only; there is no UDP"),
        (&["-B", "http"], "-B http: must be one of auto, ascii, binary"),
        (&["-B", "auto", "-Y", "f"], "-B: under -Y alone only text clients can log in; leave -B out"),
        (&["-Y", "f", "-B", "binary"], "-B: under -Y alone"),
        (&["-S", "-B", "ascii"], "-B: under -S alone only binary clients can log in; leave -B out"),
        (&["-B", "auto", "-S"], "-B: under -S alone"),
        (&["-S", "-Y", "f", "-B", "ascii"], "-B: under -S with -Y both text and binary clients log in"),
        (&["-S", "-Y", "f", "-B", "binary"], "-B: under -S with -Y"),
        (&["-p", "0"], "nothing is left to listen on"),
        (&["-Z"], "ssl_chain_cert"),
        (&["-Z", "-s", "x", "-o", "ssl_chain_cert=c"], "TLS is spoken on TCP only"),
        (&["-l", "notls:127.0.0.1"], "only with -Z"),
        (&["-m", "64k"], "-m 64k: must be a whole number of MiB"),
        (&["-m", "m"], "-m m: must be"),
        (&["-Z", "-l", "mtls:a", "-o", "ssl_chain_cert=c"], "-l mtls:a: all addresses"),
        (
            &["-Z", "-l", "a,btls:b", "-o", "ssl_chain_cert=c,ssl_ca_cert=a,ssl_verify_mode=2"],
            "-l btls:b: all",
        ),
        (&["-Z", "-l", "btls:b", "-o", "ssl_chain_cert=c,ssl_ca_cert=a,ssl_verify_mode=1"], "-l btls:b: all"),
        (&["-l", ","], "names no address"),
        (&["-l", "127.0.0.1:x"], "-l 127.0.0.1:x: x is not a port"),
    ] {
        let error = parse(words).expect_err(part);
        assert!(error.contains(part), "{words:?}: {error}");
    }
    for (words, protocol) in [
        (&["-B", "ascii"][..], Protocol::Ascii),
        (&["-B", "binary", "-B", "auto"], Protocol::Auto),
        (&["-Y", "f", "-B", "ascii"], Protocol::Ascii),
        (&["-S", "-B", "binary"], Protocol::Binary),
        (&["-S", "-Y", "f"], Protocol::Auto),
        (&["-S", "-Y", "f", "-B", "auto"], Protocol::Auto),
    ] {
        assert_eq!(parse(words).unwrap().protocol, protocol, "{words:?}");
    }
    assert_eq!(parse(&["-I", "1g", "-m", "2048"]).unwrap().item_bytes_max, 1 << 30);
    assert_eq!(parse(&["-t", "65"]).unwrap().notices.len(), 1);
    assert_eq!(parse(&["-o", "relaxed_privileges"]).unwrap().privileges, Privileges::Keep);
    for (mode, what) in [
        ("1", "those that send none are served"),
        ("2", "every client is refused"),
        ("3", "every client is refused"),
    ] {
        let settings = parse(&["-Z", "-o", &format!("ssl_chain_cert=c,ssl_verify_mode={mode}")]).unwrap();
        assert!(settings.notices[0].contains("without -o ssl_ca_cert") && settings.notices[0].contains(what));
        let settings =
            parse(&["-Z", "-o", &format!("ssl_chain_cert=c,ssl_ca_cert=a,ssl_verify_mode={mode}")]);
        assert!(settings.unwrap().notices.is_empty());
    }
    assert!(parse(&["-o", "ssl_min_version=1"]).unwrap().notices[0].contains("tlsv1.2"));
}

/// Command lines that start memcached, although it reads only the beginning of a value, or ignores a word.
#[test]
fn what_memcached_overlooks_is_no_error() {
    for suffix in ["64", "64m", "64M"] {
        assert_eq!(parse(&["-m", suffix]).unwrap().memory_bytes, 64 << 20);
    }
    let of_addresses = |words: &[&str]| parse(words).unwrap().notices.len();
    assert_eq!(of_addresses(&["-l", "proto[auto]:a,proto[negotiating]:b,c"]), 0);
    assert_eq!(of_addresses(&["-l", "proto[binary]:a", "-B", "binary"]), 0);
    assert_eq!(of_addresses(&["-l", "a,proto[ascii]:b,proto[binary]:c"]), 1);
    let settings = parse(&["-D", "::"]).unwrap();
    assert!(settings.stat_delimiter == b':' && settings.stat_detail);
    let settings = parse(&["-v", "fooble", "-p", "5", "-", "--", "-v", "x"]).unwrap();
    assert_eq!((settings.verbosity, settings.tcp_port), (1, TcpPort::Fixed(5)));
    assert_eq!(settings.notices.len(), 4, "{:?}", settings.notices);
    assert!(settings.notices[0].starts_with("fooble: ignored"));
    for (list, value) in [("slab_automove", "1"), ("slab_automove=2", "2"), ("slab_automove,modern", "1")] {
        assert_eq!(parse(&["-o", list]).unwrap().tuning["slab_automove"], value);
    }
    let inter = |words: &[&str]| parse(words).unwrap().inter();
    assert_eq!(inter(&["-l", "mtls:a:1,btls:b,proto[auto]:c"]), "mtls:a:1,btls:b,c");
    let tls = "ssl_chain_cert=c,ssl_ca_cert=a,ssl_verify_mode=2";
    assert_eq!(inter(&["-Z", "-l", "mtls:a,notls:b", "-o", tls]), "mtls:a,notls:b");
    assert_eq!(inter(&["-Z", "-l", "btls:a,b", "-o", "ssl_chain_cert=c"]), "btls:a,b");
}

#[test]
fn where_to_listen() {
    let ports = |words: &[&str]| -> Vec<String> {
        let settings = parse(words).unwrap();
        settings
            .tcp_addresses()
            .iter()
            .map(|(address, port)| format!("{} {port}", address.host_text()))
            .collect()
    };
    assert_eq!(ports(&[]), ["127.0.0.1 11211"]);
    assert_eq!(ports(&["-p", "-1"]), ["127.0.0.1 -1"]);
    assert_eq!(ports(&["-p", "5", "-l", "a,b:6"]), ["a 5", "b 6"]);
    assert_eq!(ports(&["-p", "0", "-l", "a,b:6"]), ["b 6"]);
    assert_eq!(ports(&["-s", "x", "-p", "5"]), ["127.0.0.1 5"]);
    assert_eq!(ports(&["-s", "x", "-l", "a"]), ["a 11211"]);
    assert!(ports(&["-s", "x"]).is_empty());
    assert!(ports(&["-s", "x", "-p", "0"]).is_empty());
}

#[test]
fn the_other_commands() {
    let command = |words: &[&str]| parse_args(words.iter().copied().map(OsString::from)).unwrap();
    for (words, expected) in [
        (&["-h"][..], HelpTopic::Program),
        (&["-vh", "--fooble"], HelpTopic::Program),
        (&["--help"], HelpTopic::Program),
        (&["--hel"], HelpTopic::Program),
        (&["serve", "--help"], HelpTopic::Program),
        (&["help"], HelpTopic::Program),
        (&["help", "serve"], HelpTopic::Program),
        (&["--help-all"], HelpTopic::All),
        (&["serve", "-v", "--help-all"], HelpTopic::All),
        (&["demo", "--help"], HelpTopic::Demo),
        (&["help", "demo"], HelpTopic::Demo),
        (&["check", "-h"], HelpTopic::Check),
        (&["check", "f", "--help"], HelpTopic::Check),
        (&["help", "check"], HelpTopic::Check),
        (&["nodes", "-h"], HelpTopic::Nodes),
        (&["help", "nodes"], HelpTopic::Nodes),
        (&["follow", "-h"], HelpTopic::Follow),
        (&["help", "follow"], HelpTopic::Follow),
        (&["objects", "--help"], HelpTopic::Objects),
        (&["objects", "list", "-h"], HelpTopic::Objects),
        (&["help", "objects", "list"], HelpTopic::Objects),
    ] {
        assert!(matches!(command(words), Command::Help(topic) if topic == expected), "{words:?}");
    }
    assert!(matches!(command(&["help", "bench"]), Command::Bench(words) if words == ["bench", "--help"]));
    assert!(matches!(command(&["nodes", "a:1"]), Command::Nodes { server } if server == "a:1"));
    assert!(matches!(command(&["version"]), Command::Version));
    assert!(matches!(command(&["serve", "-V"]), Command::Version));
    assert!(matches!(command(&["-i"]), Command::License));
    assert!(matches!(command(&["demo"]), Command::Demo { keep: false, open: false, picture: None }));
    assert!(matches!(command(&["demo", "--open"]), Command::Demo { keep: false, open: true, picture: None }));
    assert!(matches!(command(&["demo", "--keep"]), Command::Demo { keep: true, open: false, picture: None }));
    assert!(matches!(
        command(&["demo", "--picture", "a.svg"]),
        Command::Demo { keep: false, open: false, picture: Some(file) } if file.as_os_str() == "a.svg"
    ));
    let refused = parse_args(["demo", "--picture"]).unwrap_err().to_string();
    assert!(refused.ends_with("demo --picture: needs a file"), "{refused}");
    let bench = &["bench", "localhost:11211", "--depth", "32"];
    assert!(matches!(command(bench), Command::Bench(words) if words == bench));
    assert!(matches!(
        command(&["check", "f"]),
        Command::Check { key: None, server: None, connect: false, .. }
    ));
    for words in [&["check", "f", "--key", "k"], &["check", "--key=k", "f"][..]] {
        let Command::Check { file, key, server: None, connect: false } = command(words) else {
            panic!("{words:?}")
        };
        assert_eq!((file, key.as_deref()), (PathBuf::from("f"), Some("k")));
    }
    for words in [&["check", "f", "--try", "k"], &["check", "--try=k", "f"][..]] {
        let Command::Try { file, key } = command(words) else { panic!("{words:?}") };
        assert_eq!((file, key.as_str()), (PathBuf::from("f"), "k"));
    }
    assert!(matches!(command(&[]), Command::Serve(_)));
    assert!(parse_args([OsString::from_vec(vec![b'-', b'u', 0xff])]).is_err());
}

#[test]
fn the_command_line_wins_over_the_rule_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "[server]\nport = 11300\nlisten = [\"127.0.0.2\", \"127.0.0.3:5\"]\nthreads = 3\n\
         memory_limit = \"1GiB\"\nmax_item_size = \"2MiB\"\ndisable_cas = true\ndisable_flush_all = false\n\
         protocol = \"binary\"\nverbose = true\nunix_mask = 0o750\ndrain = \"250ms\"\nextended = [\"idle_timeout=9\", \"modern\"]\n",
    )
    .unwrap();
    let with =
        |words: &[&str]| parse(&[words, &["--config", file.path().to_str().unwrap()]].concat()).unwrap();
    let alone = with(&[]);
    assert_eq!((alone.tcp_port, alone.threads, alone.memory_bytes), (TcpPort::Fixed(11300), 3, 1 << 30));
    assert_eq!((alone.inter().as_str(), alone.item_bytes_max), ("127.0.0.2,127.0.0.3:5", 2 << 20));
    assert_eq!((alone.cas, alone.flush, alone.verbosity, alone.unix_mask), (false, true, 1, 0o750));
    assert_eq!((alone.drain, alone.idle_timeout), (Duration::from_millis(250), Some(Duration::from_secs(9))));
    assert_eq!((alone.protocol, with(&["-S"]).auth_binary()), (Protocol::Binary, true));
    assert_eq!(with(&["-B", "ascii", "-Y", "f"]).protocol, Protocol::Ascii);
    assert_eq!(alone.notices.len(), 1, "{:?}", alone.notices);
    assert_eq!(alone.protection.tag_bytes, 32 << 20);

    let both = with(&["-p", "0", "-l", "[::1]:7", "-t1", "-m", "512", "-vv", "-o", "idle_timeout=1"]);
    assert_eq!((both.tcp_port, both.threads, both.memory_bytes), (TcpPort::None, 1, 512 << 20));
    assert_eq!((both.inter().as_str(), both.verbosity, both.cas), ("[::1]:7", 2, false));
    assert_eq!(both.idle_timeout, Some(Duration::from_secs(1)));
    assert_eq!(both.protection.tag_bytes, 16 << 20, "defaults follow from what counts in the end");
}

#[test]
fn a_rule_file_may_name_every_option_that_is_honoured() {
    for row in rows().filter(|row| matches!(row.name, OptionName::Switch { long: Some(_), .. })) {
        let name = row.name.shown().trim_start_matches('-').replace('-', "_");
        let option = FileOption::find(&name).unwrap_or_else(|| panic!("{name}"));
        let applied = option.apply(good(row.kind).as_deref(), &mut Settings::default());
        let usable = matches!(row.class, Class::Honoured(_) | Class::Inert { .. } | Class::List);
        assert_eq!(
            applied.is_ok() || name == "extended",
            usable && !["config", "options_file"].contains(&&*name),
            "{name}: {applied:?}"
        );
    }
}

#[test]
fn an_options_file_is_over_the_rule_file_and_under_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let [rules, options] =
        ["rules.toml", "options"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    std::fs::write(&rules, "[server]\nport = 1\nlisten = [\"127.0.0.9\"]\nthreads = 3\nverbose = true\n")
        .unwrap();
    let with = |text: &str, words: &[&str]| {
        std::fs::write(&options, text).unwrap();
        parse(&[words, &["--options-file", &options]].concat())
    };
    let debian = parse(&["--options-file", DEBIAN]).unwrap();
    assert_eq!((debian.memory_bytes, debian.connections_max, debian.threads), (100 << 20, 512, 2));
    assert_eq!((debian.item_bytes_max, debian.requests_per_event, debian.verbosity), (2 << 20, 40, 0));
    assert_eq!(
        (debian.user.as_deref(), debian.daemon, debian.unix_socket.is_none()),
        (Some("memcache"), false, true)
    );
    assert_eq!(debian.pid_file, Some("/var/run/memcached/memcached.pid".into()));

    let text = "-d\nlogfile /x\n-l 127.0.0.1\n-l 127.0.0.2\n-m 100\n--daemon\n-vv\n-p\n11311 # its value in the next line";
    let file = with(text, &[]).unwrap();
    assert_eq!(
        (file.inter().as_str(), file.memory_bytes, file.tcp_port),
        ("127.0.0.1,127.0.0.2", 100 << 20, TcpPort::Fixed(11311))
    );
    assert_eq!((file.daemon, file.verbosity, file.notices.len()), (false, 2, 0), "{:?}", file.notices);
    let both = with(text, &["-l", "127.0.0.3", "-d", "--config", &rules]).unwrap();
    assert_eq!((both.inter().as_str(), both.memory_bytes, both.threads), ("127.0.0.3", 100 << 20, 3));
    assert_eq!((both.daemon, both.verbosity, both.tcp_port), (true, 2, TcpPort::Fixed(11311)));
    let of_rules = with(&format!("--config {rules}"), &["-m", "70"]).unwrap();
    assert_eq!(
        (of_rules.inter().as_str(), of_rules.tcp_port, of_rules.verbosity),
        ("127.0.0.9", TcpPort::Fixed(1), 1)
    );

    let no_address = with("-m 64\nport 5", &[]).unwrap().notices.join("\n");
    assert!(
        no_address.contains("options:2: port: ignored") && no_address.contains("names no -l"),
        "{no_address}"
    );
    for text in ["", "# -m 64\n"] {
        assert!(with(text, &[]).unwrap().notices.join("\n").contains("names no -l"), "{text}");
    }
    for (text, error) in [
        ("-m 64\n-p x", "options:2: -p x: must be"),
        ("\n--prot 5", "options:2: --prot"),
        ("-m", "options:1: -m: needs a value"),
        ("-V", "options: --help, --version or --license: is for the command line only"),
        ("--options-file x", "options: --options-file: is for the command line only"),
    ] {
        let found = with(text, &[]).unwrap_err();
        assert!(found.contains(error), "{text}: {found}");
    }
    for name in ["--options-file=-/no/such", "--options-file -nosuch", "--options-file -conf"] {
        let words: Vec<&str> = name.split(' ').collect();
        assert!(parse(&words).unwrap().notices.is_empty(), "{name}");
    }
    assert!(
        parse(&["--options-file", "/no/such"])
            .unwrap_err()
            .starts_with("--options-file /no/such: cannot be read")
    );
}

#[test]
fn an_option_is_no_value_of_the_option_before() {
    for (words, expected) in [
        (
            &["-s", "-m", "64"][..],
            "-s: needs a value: a file, and -m is an option; write -s-m if it is the value",
        ),
        (
            &["-vs", "-m64"],
            "-s: needs a value: a file, and -m64 is an option; write -s-m64 if it is the value",
        ),
        (
            &["--unix-socket", "--port=1"],
            "--unix-socket: needs a value: a file, and --port=1 is an option; write --unix-socket=--port=1 if it is the value",
        ),
        (&["-P", "--", "x"], "-P: needs a value: a file, and -- is an option; write -P-- if it is the value"),
    ] {
        assert_eq!(parse(words).unwrap_err(), expected, "{words:?}");
    }
    let with_value = rows().filter(|row| row.kind.is_wanted());
    let names = with_value.filter_map(|row| match row.name {
        OptionName::Switch { short, long } => {
            Some((short.map(|short| format!("-{short}")), long.map(|long| format!("--{long}"))))
        }
        _ => None,
    });
    let mut count = 0;
    let names = names.flat_map(|(short, long)| [short, long]).flatten();
    // A - may be before the name of an options file.
    for name in names.filter(|name| name != "--options-file") {
        let error = parse(&[&name, "-v"]).unwrap_err();
        assert!(error.starts_with(&format!("{name}: ")), "{error}");
        count += 1;
    }
    assert!(count > 40, "{count}");
    // Other words that begin so are values, and so is what is in the same word.
    for (words, path) in
        [(&["-s", "-"][..], "-"), (&["-s", "-1"], "-1"), (&["-s-m"], "-m"), (&["--unix-socket=-m"], "-m")]
    {
        assert_eq!(parse(words).unwrap().unix_socket, Some(path.into()), "{words:?}");
    }
    for (line, expected) in [
        ("check f --key --try", "check --key: needs a value: a key"),
        ("demo --picture --keep", "demo --picture: needs a file"),
        ("top --interval --once", "top --interval: needs a value"),
        ("objects list --objects --config", "objects list --objects: needs a value: a directory"),
        ("advise a:1 --seconds --tls", "advise --seconds: needs a value"),
        ("follow f --to --weights", "follow --to: needs a value"),
        ("doctor --pid --json", "doctor --pid: needs a value"),
    ] {
        let error = parse_args(line.split(' ')).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{line}: {error}");
    }
}
