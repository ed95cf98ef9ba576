//! The options of `-o`.

use crate::option_row::{NO_SLABS, OptionName, OptionRow, number, text};
use crate::settings::{KeyFormat, Settings, TlsVersion, VerifyMode};
use crate::table::{Class, ShownSetting, TableRow, set};
use crate::value::ValueKind;

const FILE: ValueKind = text("file");
const SWITCH: ValueKind = ValueKind::None;

const fn honoured(
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    doc: &'static str,
    class: Class<Settings>,
) -> OptionRow {
    TableRow { name: OptionName::Extended(name), kind, default, doc, class }
}

const fn inert(name: &'static str, setting: Option<ShownSetting>, why: &'static str) -> OptionRow {
    TableRow {
        name: OptionName::Extended(name),
        kind: ValueKind::Any,
        default: "",
        doc: "",
        class: Class::Inert { setting, why },
    }
}

const fn refused(name: OptionName, kind: ValueKind, doc: &'static str, why: &'static str) -> OptionRow {
    TableRow { name, kind, default: "", doc, class: Class::Refused(why) }
}

const ONE_LRU: &str = "eviction works without segments to tune";
const NO_CRAWLER: &str = "expired items are found without a crawler to tune";
const NO_REBALANCING: &str = "memory has no slab classes to move pages between";
const HASH: &str = "the hash table sizes itself";
const OWN_BUFFERS: &str = "buffers of connections are sized by need and returned when idle";

#[rustfmt::skip] // one option is one line, or one block of short ones
pub(crate) const ROWS: &[OptionRow] = &[
    honoured("idle_timeout", number("seconds", 0, u32::MAX as i64), "0",
        "Close connections that send no command for this time and have been sent all replies. A data block that is missing, wholly or in part, is waited for; a line, a header or a key is not. 0: never.",
        set!(idle_timeout, given => Some(std::time::Duration::from_secs(given.number())).filter(|time| !time.is_zero()))),
    honoured("maxconns_fast", SWITCH, "",
        "Above the limit of -c, or without a descriptor, answer an error and close at once. This is the default.",
        set!(connections_max_fast = true)),
    honoured("no_maxconns_fast", SWITCH, "",
        "Above the limit of -c, or without a descriptor, leave new connections waiting until there is room.",
        set!(connections_max_fast = false)),
    honoured("no_modern", SWITCH, "",
        "no_maxconns_fast, and statistics as of a memcached without LRU crawler, LRU maintainer and moves of slabs; nothing else depends on them here.",
        Class::Honoured(|settings, _| {
            settings.connections_max_fast = false;
            let off = ["slab_reassign", "lru_segmented", "lru_crawler", "lru_maintainer_thread"].map(|name| (name, "no"));
            for (name, value) in off.into_iter().chain([("slab_automove", "0")]) {
                settings.tuning.insert(name, value.to_owned());
            }
            Ok(())
        })),
    honoured("io_uring", SWITCH, "",
        "Send the replies of several connections in one system call, by io_uring. Where the kernel refuses it, a line in the log says so and replies are sent as without. Takes a descriptor for each thread of -t.",
        set!(io_uring = true)),
    honoured("watcher_logbuf_size", number("KiB", 1, 1 << 20), "256",
        "Buffer of each watcher, in KiB.",
        set!(watcher_buffer_bytes, given => given.number::<usize>() << 10)),
    honoured("worker_logbuf_size", number("KiB", 1, 1 << 20), "64",
        "Buffer of each thread that serves connections towards the watchers, in KiB.",
        set!(lane_log_buffer_bytes, given => given.number::<usize>() << 10)),
    honoured("drop_privileges", SWITCH, "",
        "Once it listens, give up all capabilities and the right to gain any (no_new_privs). memcached restricts system calls here; this does not.",
        set!(drop_privileges = true)),
    honoured("no_drop_privileges", SWITCH, "",
        "Undo drop_privileges. This is the default.",
        set!(drop_privileges = false)),
    honoured("relaxed_privileges", SWITCH, "",
        "With drop_privileges: keep the capabilities, give up only the right to gain more.",
        set!(relaxed_privileges = true)),
    honoured("track_sizes", SWITCH, "",
        "Let stats sizes count the items of each size. It looks at all items each time; nothing is tracked in between.",
        set!(track_sizes = true)),
    honoured("debugtime", SWITCH, "",
        "Allow the command debugtime, which moves the clock. For tests.",
        set!(debugtime = true)),
    honoured("ssl_chain_cert", FILE, "",
        "Certificate chain, PEM. Needed by -Z. SIGHUP and refresh_certs read it again.",
        set!(tls_given.chain_cert, given => given.text().into())),
    honoured("ssl_key", FILE, "",
        "Private key, if it is not in the chain file.",
        set!(tls_given.key, given => Some(given.text().into()))),
    honoured("ssl_keyformat",
        ValueKind::Choice { names: &["PEM", "DER"], refused: &[("ENGINE", "there are no key engines; use PEM or DER")] }, "PEM",
        "Format of the private key.",
        set!(tls_given.key_format, given => if given.text() == "DER" { KeyFormat::Der } else { KeyFormat::Pem })),
    honoured("ssl_verify_mode", number("", 0, 3), "0",
        "Certificates of clients: 0 none, 1 checked if one is sent, 2 required, 3 as 2.",
        set!(tls_given.verify_mode, given => match given.number::<i64>() {
            0 => VerifyMode::None,
            1 => VerifyMode::Request,
            2 => VerifyMode::Require,
            _ => VerifyMode::Once,
        })),
    honoured("ssl_ca_cert", FILE, "",
        "Authorities that vouch for clients, PEM.",
        set!(tls_given.ca_cert, given => Some(given.text().into()))),
    honoured("ssl_min_version",
        ValueKind::Choice { names: &["0", "1", "2", "3", "tlsv1.0", "tlsv1.1", "tlsv1.2", "tlsv1.3"], refused: &[] }, "2",
        "Oldest version spoken: 2 or tlsv1.2, 3 or tlsv1.3. 0 and 1 (tlsv1.0, tlsv1.1) mean tlsv1.2, with a line in the log.",
        Class::Honoured(|settings, given| {
            settings.tls_given.min_version = match given.text() {
                "3" | "tlsv1.3" => TlsVersion::Tls13,
                _ => TlsVersion::Tls12,
            };
            if matches!(given.text(), "0" | "1" | "tlsv1.0" | "tlsv1.1") {
                settings.notices.push(format!("-o ssl_min_version {}: means tlsv1.2, the oldest that is spoken", given.text()));
            }
            Ok(())
        })),
    honoured("ssl_ciphers", text("list"), "",
        "Cipher suites by their OpenSSL names, separated by colons. TLS 1.3 keeps all of its own unless the list names one of them.",
        set!(tls_given.ciphers, given => Some(given.text().to_owned()))),
    honoured("ssl_session_cache", SWITCH, "",
        "Let clients resume sessions, with tickets that are valid until the certificates are read again.",
        set!(tls_given.session_cache, _given => true)),

    inert("ssl_wbuf_size", Some(ShownSetting::Kib("ssl_wbuf_size")), OWN_BUFFERS),
    inert("ssl_kernel_tls", Some(ShownSetting::Fixed("ssl_kernel_tls", "yes")), "encryption is not left to the kernel"),
    inert("read_buf_mem_limit", Some(ShownSetting::Mib("read_buf_mem_limit")), OWN_BUFFERS),
    inert("resp_obj_mem_limit", None, OWN_BUFFERS),
    inert("hashpower", Some(ShownSetting::Given("hashpower_init")), HASH),
    inert("no_hashexpand", Some(ShownSetting::Fixed("hash_expand", "no")), HASH),
    inert("hash_algorithm", Some(ShownSetting::Given("hash_algorithm")), "the hash function is fixed"),
    inert("tail_repair_time", Some(ShownSetting::Given("tail_repair_time")), "items cannot leak references"),
    inert("slab_reassign", Some(ShownSetting::Fixed("slab_reassign", "yes")), NO_REBALANCING),
    inert("no_slab_reassign", Some(ShownSetting::Fixed("slab_reassign", "no")), NO_REBALANCING),
    inert("slab_automove", Some(ShownSetting::GivenOr("slab_automove", "1")), NO_REBALANCING),
    inert("no_slab_automove", Some(ShownSetting::Fixed("slab_automove", "0")), NO_REBALANCING),
    inert("slab_automove_ratio", Some(ShownSetting::Given("slab_automove_ratio")), NO_REBALANCING),
    inert("slab_automove_window", Some(ShownSetting::Given("slab_automove_window")), NO_REBALANCING),
    inert("slab_automove_freeratio", Some(ShownSetting::Given("slab_automove_freeratio")), NO_REBALANCING),
    inert("slab_chunk_max", Some(ShownSetting::Kib("slab_chunk_max")), NO_SLABS),
    inert("slab_sizes", None, NO_SLABS),
    inert("no_chunked_items", None, NO_SLABS),
    inert("lru_crawler", Some(ShownSetting::Fixed("lru_crawler", "yes")), NO_CRAWLER),
    inert("no_lru_crawler", Some(ShownSetting::Fixed("lru_crawler", "no")), NO_CRAWLER),
    inert("lru_crawler_sleep", Some(ShownSetting::Given("lru_crawler_sleep")), NO_CRAWLER),
    inert("lru_crawler_tocrawl", Some(ShownSetting::Given("lru_crawler_tocrawl")), NO_CRAWLER),
    inert("lru_maintainer", Some(ShownSetting::Fixed("lru_maintainer_thread", "yes")), ONE_LRU),
    inert("no_lru_maintainer", Some(ShownSetting::Fixed("lru_maintainer_thread", "no")), ONE_LRU),
    inert("hot_lru_pct", Some(ShownSetting::Given("hot_lru_pct")), ONE_LRU),
    inert("warm_lru_pct", Some(ShownSetting::Given("warm_lru_pct")), ONE_LRU),
    inert("hot_max_factor", Some(ShownSetting::Given("hot_max_factor")), ONE_LRU),
    inert("warm_max_factor", Some(ShownSetting::Given("warm_max_factor")), ONE_LRU),
    inert("temporary_ttl", Some(ShownSetting::Given("temporary_ttl")), ONE_LRU),
    inert("inline_ascii_resp", None, "it is without effect in memcached, too"),
    inert("no_inline_ascii_resp", None, "it is without effect in memcached, too"),
    inert("modern", None, "there is one set of defaults"),

    refused(OptionName::Extended("sock_cookie_id"), text("num"), "Mark sockets for packet filters.",
        "sockets are not marked; filter by port instead"),
    refused(OptionName::Family("ext_"), text("value"), "Storage of items on disk (extstore).",
        "items are kept in memory only, there is no extstore; leave the option out and raise -m"),
    refused(OptionName::Family("proxy_"), text("value"), "The proxy.",
        "the proxy is not built in; leave the option out"),
];
