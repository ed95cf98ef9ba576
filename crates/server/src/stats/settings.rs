//! `stats settings`: the options in force, with memcached's names and in its order. Options without effect
//! are shown as they were given.

use std::sync::atomic::Ordering::Relaxed;

use super::StatLines;
use crate::shared::Shared;
use cattlegrid_config::{KeyFormat, TlsVersion, VerifyMode};

/// Writes all settings.
pub(super) fn settings(lines: &mut StatLines, shared: &Shared) {
    network(lines, shared);
    protocol(lines, shared);
    tls(lines, shared);
    tuned(lines, shared, "num_napi_ids");
    lines.stat("memory_file", "(null)");
    lines.stat("client_flags_size", 4);
}

/// Memory, addresses, threads.
fn network(lines: &mut StatLines, shared: &Shared) {
    let settings = &shared.settings;
    lines.stat("maxbytes", shared.engine.limit_bytes());
    lines.stat("maxconns", settings.connections_max);
    lines.stat("tcpport", settings.tcp_port);
    lines.stat("udpport", 0);
    lines.stat("inter", settings.inter());
    lines.stat("verbosity", crate::log::verbosity());
    lines.stat("oldest", shared.gauges.oldest.load(Relaxed));
    lines.stat("evictions", if settings.evictions { "on" } else { "off" });
    match &settings.unix_socket {
        Some(path) => lines.stat("domain_socket", path.display()),
        None => lines.stat("domain_socket", "NULL"),
    }
    lines.stat("umask", format_args!("{:o}", settings.unix_mask));
    lines.stat("shutdown_command", yes_no(settings.shutdown_command));
    tuned(lines, shared, "growth_factor chunk_size");
    lines.stat("num_threads", settings.threads);
    lines.stat("num_threads_per_udp", settings.threads);
    lines.stat("stat_key_prefix", char::from(settings.stat_delimiter));
    lines.stat("detail_enabled", yes_no(shared.detail.is_on()));
    lines.stat("reqs_per_event", settings.requests_per_event);
}

/// Commands, items, and options that memcached can tune.
fn protocol(lines: &mut StatLines, shared: &Shared) {
    let settings = &shared.settings;
    lines.stat("cas_enabled", yes_no(settings.cas));
    lines.stat("tcp_backlog", settings.backlog);
    lines.stat("binding_protocol", settings.protocol.stat());
    lines.stat("auth_enabled_sasl", yes_no(settings.auth_binary()));
    lines.stat(
        "auth_enabled_ascii",
        settings.auth_file.as_ref().map_or_else(|| "no".into(), |p| p.display().to_string()),
    );
    lines.stat("item_size_max", settings.item_bytes_max);
    lines.stat("maxconns_fast", yes_no(settings.connections_max_fast));
    tuned(
        lines,
        shared,
        "hashpower_init slab_reassign slab_automove slab_automove_ratio slab_automove_window slab_chunk_max \
         lru_crawler lru_crawler_sleep lru_crawler_tocrawl tail_repair_time",
    );
    lines.stat("flush_enabled", yes_no(settings.flush));
    lines.stat("dump_enabled", yes_no(settings.dump));
    lines.stat("hash_algorithm", "rapidhash");
    tuned(
        lines,
        shared,
        "lru_maintainer_thread lru_segmented hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temp_lru \
         temporary_ttl",
    );
    lines.stat("idle_timeout", settings.idle_timeout.map_or(0, |t| t.as_secs()));
    lines.stat("watcher_logbuf_size", settings.watcher_buffer_bytes);
    lines.stat("worker_logbuf_size", settings.lane_log_buffer_bytes);
    tuned(lines, shared, "read_buf_mem_limit");
    lines.stat("track_sizes", yes_no(settings.track_sizes));
    lines.stat("inline_ascii_response", "no");
}

/// Options without effect, as they were given.
fn tuned(lines: &mut StatLines, shared: &Shared, names: &str) {
    for name in names.split_whitespace() {
        lines.stat(name, shared.settings.tuning.get(name).map_or("0", String::as_str));
    }
}

fn yes_no(on: bool) -> &'static str {
    if on { "yes" } else { "no" }
}

fn tls(lines: &mut StatLines, shared: &Shared) {
    let given = shared.settings.tls_given();
    let path = |path: Option<&std::path::PathBuf>| {
        path.filter(|p| !p.as_os_str().is_empty())
            .map_or_else(|| "(null)".to_owned(), |p| p.display().to_string())
    };
    lines.stat("ssl_enabled", yes_no(shared.tls.is_some()));
    lines.stat("ssl_chain_cert", path(Some(&given.chain_cert)));
    lines.stat("ssl_key", path(given.key.as_ref()));
    lines.stat(
        "ssl_verify_mode",
        match given.verify_mode {
            VerifyMode::None => 0,
            VerifyMode::Request => 1,
            VerifyMode::Require => 2,
            VerifyMode::Once => 3,
        },
    );
    lines.stat("ssl_keyformat", if given.key_format == KeyFormat::Pem { 1 } else { 2 });
    lines.stat("ssl_ciphers", given.ciphers.as_deref().unwrap_or("NULL"));
    lines.stat(
        "ssl_ca_cert",
        given.ca_cert.as_ref().map_or_else(|| "NULL".to_owned(), |p| p.display().to_string()),
    );
    lines.stat("ssl_wbuf_size", shared.settings.tuning.get("ssl_wbuf_size").map_or("16384", String::as_str));
    lines.stat("ssl_session_cache", yes_no(given.session_cache));
    lines.stat("ssl_kernel_tls", "no");
    lines.stat("ssl_min_version", if given.min_version == TlsVersion::Tls12 { "tlsv1.2" } else { "tlsv1.3" });
}
