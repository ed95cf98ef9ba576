//! The options of `-o`.

use super::settings::{KeyFormat, TlsVersion, VerifyMode};
use super::table::{Class, INT, NO_SLABS, Name, Row, Setting, set};
use super::value::Value;

const fn number(unit: &'static str, min: i64, max: i64) -> Value {
    Value::Number { unit, min, max }
}

const fn honoured(
    name: &'static str,
    value: Value,
    default: &'static str,
    doc: &'static str,
    class: Class,
) -> Row {
    Row { name: Name::Extended(name), value, default, doc, class }
}

const fn accepted(
    name: &'static str,
    value: Value,
    default: &'static str,
    doc: &'static str,
    setting: Option<Setting>,
    why: &'static str,
) -> Row {
    Row { name: Name::Extended(name), value, default, doc, class: Class::Accepted { setting, why } }
}

/// A field of the TLS settings.
macro_rules! tls {
    ($field:ident, $given:ident => $value:expr) => {
        Class::Honoured(|settings, $given| {
            settings.tls_given.$field = $value;
            Ok(())
        })
    };
}

const ONE_LRU: &str = "eviction works without segments to tune";
const NO_CRAWLER: &str = "expired items are found without a crawler to tune";
const NO_REBALANCING: &str = "memory has no slab classes to move pages between";
const HASH: &str = "the hash table sizes itself";
const OWN_BUFFERS: &str = "buffers of connections are sized by need and returned when idle";

#[rustfmt::skip] // one option is one line, or one block of short ones
pub(super) const ROWS: &[Row] = &[
    honoured("idle_timeout", number("seconds", 0, u32::MAX as i64), "0",
        "Close connections without a command for so long. 0: never.",
        set!(idle_timeout, given => Some(std::time::Duration::from_secs(given.number())).filter(|time| !time.is_zero()))),
    honoured("maxconns_fast", Value::None, "",
        "Above the limit of -c, or without a descriptor, answer an error and close at once. This is the default.",
        set!(connections_max_fast = true)),
    honoured("no_maxconns_fast", Value::None, "",
        "Above the limit of -c, or without a descriptor, leave new connections waiting until there is room.",
        set!(connections_max_fast = false)),
    honoured("watcher_logbuf_size", number("KiB", 1, 1 << 20), "256",
        "Buffer of each watcher, in KiB.",
        set!(watcher_buffer_bytes, given => given.number::<usize>() << 10)),
    honoured("worker_logbuf_size", number("KiB", 1, 1 << 20), "64",
        "Buffer of each worker thread towards the watchers, in KiB.",
        set!(worker_log_buffer_bytes, given => given.number::<usize>() << 10)),
    honoured("drop_privileges", Value::None, "",
        "Once it listens, give up all capabilities and the right to gain any (no_new_privs). memcached restricts system calls here; this does not.",
        set!(drop_privileges = true)),
    honoured("no_drop_privileges", Value::None, "",
        "Undo drop_privileges. This is the default.",
        set!(drop_privileges = false)),
    honoured("relaxed_privileges", Value::None, "",
        "With drop_privileges: keep the capabilities, give up only the right to gain more.",
        set!(relaxed_privileges = true)),
    honoured("debugtime", Value::None, "",
        "Allow the command debugtime, which moves the clock. For tests.",
        set!(debugtime = true)),
    honoured("ssl_chain_cert", Value::Text { what: "file" }, "",
        "Certificate chain, PEM. Needed by -Z. SIGHUP and refresh_certs read it again.",
        tls!(chain_cert, given => given.text().into())),
    honoured("ssl_key", Value::Text { what: "file" }, "",
        "Private key, if it is not in the chain file.",
        tls!(key, given => Some(given.text().into()))),
    honoured("ssl_keyformat",
        Value::Choice { names: &["PEM", "DER"], refused: &[("ENGINE", "there are no key engines; use PEM or DER")] }, "PEM",
        "Format of the private key.",
        tls!(key_format, given => if given.text() == "DER" { KeyFormat::Der } else { KeyFormat::Pem })),
    honoured("ssl_verify_mode", number("", 0, 3), "0",
        "Certificates of clients: 0 none, 1 checked if one is sent, 2 required, 3 as 2.",
        tls!(verify_mode, given => match given.number::<i64>() {
            0 => VerifyMode::None,
            1 => VerifyMode::Request,
            2 => VerifyMode::Require,
            _ => VerifyMode::Once,
        })),
    honoured("ssl_ca_cert", Value::Text { what: "file" }, "",
        "Authorities that vouch for clients, PEM.",
        tls!(ca_cert, given => Some(given.text().into()))),
    honoured("ssl_min_version",
        Value::Choice { names: &["0", "1", "2", "3", "tlsv1.0", "tlsv1.1", "tlsv1.2", "tlsv1.3"], refused: &[] }, "2",
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
    honoured("ssl_ciphers", Value::Text { what: "list" }, "",
        "Cipher suites by their OpenSSL names, separated by colons. TLS 1.3 keeps all of its own unless the list names one of them.",
        tls!(ciphers, given => Some(given.text().to_owned()))),
    honoured("ssl_session_cache", Value::None, "",
        "Let clients resume sessions.",
        tls!(session_cache, _given => true)),

    accepted("ssl_wbuf_size", number("KiB", 1, 1 << 20), "16", "TLS output buffer of a connection, in KiB.", Some(Setting::Kib("ssl_wbuf_size")), OWN_BUFFERS),
    accepted("ssl_kernel_tls", Value::None, "", "Leave encryption to the kernel.", Some(Setting::Fixed("ssl_kernel_tls", "yes")), "encryption is not left to the kernel"),
    accepted("read_buf_mem_limit", number("MiB", 0, 1 << 30), "0", "Memory for buffers of connections, in MiB.", Some(Setting::Mib("read_buf_mem_limit")), OWN_BUFFERS),
    accepted("resp_obj_mem_limit", number("MiB", 0, 1 << 30), "0", "Memory for replies in progress, in MiB.", None, OWN_BUFFERS),
    accepted("hashpower", number("", 12, 64), "", "Initial size of the hash table, as a power of two.", Some(Setting::Given("hashpower_init")), HASH),
    accepted("no_hashexpand", Value::None, "", "Never grow the hash table.", Some(Setting::Fixed("hash_expand", "no")), HASH),
    accepted("hash_algorithm", Value::Choice { names: &["jenkins", "murmur3", "xxh3"], refused: &[] }, "murmur3", "Hash function.", Some(Setting::Given("hash_algorithm")), "the hash function is fixed"),
    accepted("tail_repair_time", number("seconds", 10, INT), "", "When to free items that leak.", Some(Setting::Given("tail_repair_time")), "items cannot leak references"),
    accepted("slab_reassign", Value::None, "", "Move memory between slab classes.", Some(Setting::Fixed("slab_reassign", "yes")), NO_REBALANCING),
    accepted("no_slab_reassign", Value::None, "", "Do not move memory between slab classes.", Some(Setting::Fixed("slab_reassign", "no")), NO_REBALANCING),
    accepted("slab_automove", Value::Optional { min: 0, max: 2, absent: 1 }, "1", "How eagerly to move it.", Some(Setting::Given("slab_automove")), NO_REBALANCING),
    accepted("no_slab_automove", Value::None, "", "Do not move it by itself.", Some(Setting::Fixed("slab_automove", "0")), NO_REBALANCING),
    accepted("slab_automove_ratio", Value::Decimal { above: 0.0, below: 1.0 }, "0.80", "Difference in age that moves it.", Some(Setting::Given("slab_automove_ratio")), NO_REBALANCING),
    accepted("slab_automove_window", number("", 3, INT), "30", "Samples that must agree.", Some(Setting::Given("slab_automove_window")), NO_REBALANCING),
    accepted("slab_automove_freeratio", Value::Decimal { above: 0.0, below: 1.0 }, "0.010", "Share of memory to keep free.", Some(Setting::Given("slab_automove_freeratio")), NO_REBALANCING),
    accepted("slab_chunk_max", number("KiB", 1, 1 << 20), "512", "Largest chunk, in KiB.", Some(Setting::Kib("slab_chunk_max")), NO_SLABS),
    accepted("slab_sizes", Value::Text { what: "list" }, "", "Chunk sizes, separated by dashes.", None, NO_SLABS),
    accepted("no_chunked_items", Value::None, "", "Store large items whole.", None, NO_SLABS),
    accepted("lru_crawler", Value::None, "", "Look for expired items in the background.", Some(Setting::Fixed("lru_crawler", "yes")), NO_CRAWLER),
    accepted("no_lru_crawler", Value::None, "", "Do not look for expired items in the background.", Some(Setting::Fixed("lru_crawler", "no")), NO_CRAWLER),
    accepted("lru_crawler_sleep", number("microseconds", 0, 1_000_000), "100", "Pause between items.", Some(Setting::Given("lru_crawler_sleep")), NO_CRAWLER),
    accepted("lru_crawler_tocrawl", number("items", 0, u32::MAX as i64), "0", "Items looked at in one run.", Some(Setting::Given("lru_crawler_tocrawl")), NO_CRAWLER),
    accepted("lru_maintainer", Value::None, "", "Segmented LRU.", Some(Setting::Fixed("lru_maintainer_thread", "yes")), ONE_LRU),
    accepted("no_lru_maintainer", Value::None, "", "Plain LRU.", Some(Setting::Fixed("lru_maintainer_thread", "no")), ONE_LRU),
    accepted("hot_lru_pct", number("percent", 1, 80), "20", "Share of the hot segment.", Some(Setting::Given("hot_lru_pct")), ONE_LRU),
    accepted("warm_lru_pct", number("percent", 1, 80), "40", "Share of the warm segment.", Some(Setting::Given("warm_lru_pct")), ONE_LRU),
    accepted("hot_max_factor", Value::Decimal { above: 0.0, below: f64::INFINITY }, "0.20", "Age at which items leave the hot segment.", Some(Setting::Given("hot_max_factor")), ONE_LRU),
    accepted("warm_max_factor", Value::Decimal { above: 0.0, below: f64::INFINITY }, "2.00", "Age at which items leave the warm segment.", Some(Setting::Given("warm_max_factor")), ONE_LRU),
    accepted("temporary_ttl", number("seconds", 0, u32::MAX as i64), "61", "Items with a shorter time to live have a segment of their own.", Some(Setting::Given("temporary_ttl")), ONE_LRU),
    accepted("track_sizes", Value::None, "", "Keep the numbers of stats sizes at hand.", Some(Setting::Fixed("track_sizes", "yes")), "stats sizes needs no preparation"),
    accepted("inline_ascii_resp", Value::None, "", "Store replies with items.", None, "it is without effect in memcached, too"),
    accepted("no_inline_ascii_resp", Value::None, "", "Do not store replies with items.", None, "it is without effect in memcached, too"),
    accepted("modern", Value::None, "", "Defaults of the next major version.", None, "there is one set of defaults"),
    accepted("no_modern", Value::None, "", "Defaults of version 1.4.", None, "there is one set of defaults"),

    Row { name: Name::Extended("sock_cookie_id"), value: Value::Text { what: "num" }, default: "",
        doc: "Mark sockets for packet filters.",
        class: Class::Refused("sockets are not marked; filter by port instead") },
    Row { name: Name::Family("ext_"), value: Value::Text { what: "value" }, default: "",
        doc: "Storage of items on disk (extstore).",
        class: Class::Refused("items are kept in memory only, there is no extstore; leave the option out and raise -m") },
    Row { name: Name::Family("proxy_"), value: Value::Text { what: "value" }, default: "",
        doc: "The proxy.",
        class: Class::Refused("the proxy is not built in; leave the option out") },
];

#[cfg(test)]
mod tests {
    use super::super::value::Given;
    use super::*;

    #[test]
    fn a_setting_in_kib_or_mib_comes_from_a_number() {
        for row in ROWS {
            if let Class::Accepted { setting: Some(setting @ (Setting::Kib(_) | Setting::Mib(_))), .. } =
                row.class
            {
                let (_, text) = setting.entry(&Given::Number(2));
                assert!(matches!(row.value, Value::Number { .. }), "{}", row.name.shown());
                assert!(text == "2048" || text == "2097152");
            }
        }
    }
}
