//! `stats`: memcached's names, in memcached's order and number, with our numbers.
//!
//! What is about slabs, the LRU crawler or other things that do not exist here reads 0 or its sensible
//! equivalent. All items are shown in one slab class, number 1.

mod rules;

use std::fmt::{Display, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_config::{KeyFormat, TlsVersion, VerifyMode};
use cattlegrid_engine::{Counters, Cursor};
use cattlegrid_protocol::{Words, reply};
use nix::sys::resource::{UsageWho, getrusage};

use crate::state::Shared;
use crate::turn::Turn;

pub(crate) use rules::abandoned;

/// What this server says it is: the version it behaves as, and its own.
pub(crate) const VERSION: &str = concat!("1.6.45-cattlegrid-", env!("CARGO_PKG_VERSION"));

/// Executes `stats` with its words.
pub(crate) fn stats(mut words: Words<'_>, turn: &mut Turn<'_>) {
    let mut lines = Lines(String::new());
    match words.next() {
        None => general(&mut lines, turn),
        Some(b"settings") => settings(&mut lines, turn.shared),
        Some(b"items") => items(&mut lines, turn),
        Some(b"slabs") => slabs(&mut lines, turn),
        Some(b"sizes") => lines.stat("sizes_status", "disabled"),
        Some(b"conns") => conns(&mut lines, turn),
        Some(b"cachedump") => return cachedump(words, turn),
        Some(b"detail") => return detail(words, turn),
        Some(b"reset") => {
            turn.shared.lanes.iter().for_each(|w| w.counters.reset());
            turn.shared.engine.reset_stats();
            if let Some(active) = turn.shared.engine.shared().rules().as_ref() {
                active.each().for_each(|(_, state)| state.counters().reset());
            }
            turn.shared.gauges.total.store(0, Relaxed);
            turn.shared.gauges.rejected.store(0, Relaxed);
            turn.shared.uploads.reset_stats();
            turn.shared.watchers.reset_stats();
            turn.shared.unsent.reset_stats();
            turn.shared.detail.reset();
            return turn.out.bytes.extend_from_slice(reply::RESET);
        }
        Some(b"cattlegrid") => own(&mut lines, turn),
        Some(b"rules") => rules::rules(&mut lines, turn),
        Some(b"leases") => rules::leases(&mut lines, turn),
        Some(b"tags") => rules::tags(&mut lines, turn),
        Some(_) => return reply::line(&mut turn.out.bytes, "ERROR"),
    }
    turn.out.bytes.extend_from_slice(lines.0.as_bytes());
    turn.out.bytes.extend_from_slice(reply::END);
}

/// `STAT` lines.
struct Lines(String);

impl Lines {
    fn stat(&mut self, name: impl Display, value: impl Display) {
        // Writing to a string cannot fail.
        let _ok = write!(self.0, "STAT {name} {value}\r\n");
    }

    fn zeros(&mut self, names: &str) {
        names.split_whitespace().for_each(|name| self.stat(name, 0));
    }
}

/// The lanes' counters by name.
struct Counts(Vec<u64>);

impl Counts {
    fn of(&self, name: &str) -> u64 {
        Counters::NAMES.iter().position(|n| *n == name).map_or(0, |i| self.0[i])
    }

    fn stats(&self, lines: &mut Lines, names: &str) {
        names.split_whitespace().for_each(|name| lines.stat(name, self.of(name)));
    }
}

fn general(lines: &mut Lines, turn: &Turn<'_>) {
    let shared = turn.shared;
    let gauges = &shared.gauges;
    let counts = Counts(shared.counts());
    let (usage, store) = shared.engine.usage();
    let current = gauges.current.load(Relaxed);
    lines.stat("pid", std::process::id());
    lines.stat("uptime", turn.now.second.saturating_sub(2));
    lines.stat("time", turn.now.unix(turn.now.second));
    lines.stat("version", VERSION);
    lines.stat("libevent", "none");
    lines.stat("pointer_size", usize::BITS);
    let (user, system) = cpu();
    lines.stat("rusage_user", user);
    lines.stat("rusage_system", system);
    lines.stat("max_connections", shared.settings.connections_max);
    lines.stat("curr_connections", current);
    lines.stat("total_connections", gauges.total.load(Relaxed));
    lines.stat("rejected_connections", gauges.rejected.load(Relaxed));
    lines.stat("connection_structures", gauges.most.load(Relaxed));
    lines.zeros("response_obj_oom");
    lines.stat("response_obj_count", 0);
    lines.stat("response_obj_bytes", 0);
    lines.stat("read_buf_count", shared.settings.threads);
    lines
        .stat("read_buf_bytes", shared.settings.threads * shared.caps.receive_bytes + shared.uploads.bytes());
    lines.zeros("read_buf_bytes_free");
    lines.stat("read_buf_oom", shared.uploads.lines_refused());
    lines.stat("reserved_fds", shared.settings.threads * 2 + 8);
    counts.stats(
        lines,
        "cmd_get cmd_set cmd_flush cmd_touch cmd_meta get_hits get_misses get_expired get_flushed",
    );
    counts.stats(
        lines,
        "delete_misses delete_hits incr_misses incr_hits decr_misses decr_hits cas_misses cas_hits cas_badval touch_hits \
         touch_misses store_too_large store_no_memory auth_cmds auth_errors bytes_read bytes_written",
    );
    lines.stat("limit_maxbytes", shared.engine.limit_bytes());
    lines.stat("accepting_conns", u8::from(gauges.accepting.load(Relaxed)));
    lines.stat("listen_disabled_num", gauges.listen_disabled.load(Relaxed));
    lines.stat("time_in_listen_disabled_us", gauges.listen_disabled_micros.load(Relaxed));
    lines.stat("threads", shared.settings.threads);
    counts.stats(lines, "conn_yields");
    lines.stat("hash_power_level", usage.hash_power);
    lines.stat("hash_bytes", usage.index_bytes);
    lines.zeros(
        "hash_is_expanding slab_reassign_rescues slab_reassign_chunk_rescues slab_reassign_inline_reclaim \
         slab_reassign_busy_items slab_reassign_busy_deletes slab_reassign_busy_nomem",
    );
    lines.stat("slab_reassign_last_busy_status", "none");
    lines.zeros("slab_reassign_running slabs_moved");
    lines.stat("lru_crawler_running", u8::from(shared.dumps.is_running()));
    lines.stat("lru_crawler_starts", shared.dumps.started());
    lines.zeros("lru_maintainer_juggles malloc_fails");
    counts.stats(lines, "log_worker_dropped log_worker_written");
    let (sent, skipped) = shared.watchers.lines_sent_and_skipped();
    lines.stat("log_watcher_skipped", skipped);
    lines.stat("log_watcher_sent", sent);
    lines.stat("log_watchers", shared.watchers.count());
    lines.zeros("unexpected_napi_ids round_robin_fallback");
    lines.stat("bytes", usage.bytes);
    lines.stat("curr_items", usage.items);
    lines.stat("total_items", store.total);
    lines.zeros("slab_global_page_pool");
    lines.stat("expired_unfetched", store.expired_unfetched);
    lines.stat("evicted_unfetched", store.evicted_unfetched);
    lines.zeros("evicted_active");
    lines.stat("evictions", store.evictions);
    lines.stat("reclaimed", store.reclaimed);
    lines.zeros(
        "crawler_reclaimed crawler_items_checked lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru \
         direct_reclaims lru_bumps_dropped",
    );
    if shared.settings.idle_timeout.is_some() {
        lines.stat("idle_kicks", gauges.idle_kicks.load(Relaxed));
    }
    if shared.tls.is_some() {
        counts.stats(lines, "ssl_handshake_errors ssl_proto_errors");
        let age = turn.now.second.saturating_sub(gauges.certificates_read.load(Relaxed));
        lines.stat("time_since_server_cert_refresh", age);
    }
}

/// What only this server has.
fn own(lines: &mut Lines, turn: &Turn<'_>) {
    let (usage, store) = turn.shared.engine.usage();
    let memory = turn.shared.engine.memory();
    lines.stat("version", env!("CARGO_PKG_VERSION"));
    lines.stat("shards", turn.shared.engine.shard_count());
    lines.stat("memory_limit", memory.limit_bytes());
    lines.stat("memory_for_rules", turn.shared.engine.limit_bytes() - memory.limit_bytes());
    lines.stat("memory_used", memory.used_bytes());
    lines.stat("index_bytes", usage.index_bytes);
    lines.stat("segments", usage.segments);
    lines.stat("segment_bytes", usage.segment_bytes);
    lines.stat("huge_bytes", usage.huge_bytes);
    lines.stat("pinned_bytes", memory.pinned_bytes());
    lines.stat("ghost_bytes", usage.ghost_bytes);
    lines.stat("items_small", usage.queue_items[0]);
    lines.stat("items_main", usage.queue_items[1]);
    lines.stat("items_moved", store.moved);
    lines.stat("collected_in_haste", store.collected_in_haste);
    lines.stat("no_free_segment", store.no_free_segment);
    lines.stat("partial_bytes", turn.shared.uploads.bytes());
    lines.stat("uploads_refused", turn.shared.uploads.refused());
    lines.stat("uploads_displaced", turn.shared.uploads.displaced());
    lines.stat("auth_closed", turn.shared.gauges.auth_closed.load(Relaxed));
    lines.stat("memory_refused", turn.shared.shortage.refused.load(Relaxed));
    lines.stat("dumps_stalled", turn.shared.dumps.stalled.load(Relaxed));
    lines.stat("unsent_bytes", turn.shared.unsent.bytes() + turn.shared.unsent_values());
    lines.stat("unsent_paused", turn.shared.unsent.paused());
    lines.stat("unsent_stalled", turn.shared.unsent.stalled());
    lines.stat("unsent_displaced", turn.shared.unsent.displaced());
    lines.stat("accept_errors", turn.shared.gauges.accept_errors.load(Relaxed));
    let log = crate::log::counts();
    lines.stat("log_lines_written", log.written);
    lines.stat("log_lines_dropped", log.dropped);
    lines.stat("log_lines_limited", log.limited);
    lines.stat("clock", turn.shared.engine.shared().clock());
    rules::usage(lines, &turn.shared.engine, turn.now.ms);
}

fn cpu() -> (String, String) {
    let format = |seconds: i64, micros: i64| format!("{seconds}.{micros:06}");
    getrusage(UsageWho::RUSAGE_SELF).map_or_else(
        |_| (format(0, 0), format(0, 0)),
        |usage| {
            let (user, system) = (usage.user_time(), usage.system_time());
            (format(user.tv_sec(), user.tv_usec()), format(system.tv_sec(), system.tv_usec()))
        },
    )
}

fn settings(lines: &mut Lines, shared: &Shared) {
    let settings = &shared.settings;
    let yes_no = |on: bool| if on { "yes" } else { "no" };
    let tuning = |name: &str| settings.tuning.get(name).cloned().unwrap_or_else(|| "0".to_owned());
    let tuned = |lines: &mut Lines, names: &str| {
        names.split_whitespace().for_each(|name| lines.stat(name, tuning(name)));
    };
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
    tuned(lines, "growth_factor chunk_size");
    lines.stat("num_threads", settings.threads);
    lines.stat("num_threads_per_udp", settings.threads);
    lines.stat("stat_key_prefix", char::from(settings.stat_delimiter));
    lines.stat("detail_enabled", yes_no(shared.detail.is_on()));
    lines.stat("reqs_per_event", settings.requests_per_event);
    lines.stat("cas_enabled", yes_no(settings.cas));
    lines.stat("tcp_backlog", settings.backlog);
    lines.stat("binding_protocol", "ascii");
    lines.stat("auth_enabled_sasl", "no");
    lines.stat(
        "auth_enabled_ascii",
        settings.auth_file.as_ref().map_or_else(|| "no".into(), |p| p.display().to_string()),
    );
    lines.stat("item_size_max", settings.item_bytes_max);
    lines.stat("maxconns_fast", yes_no(settings.connections_max_fast));
    tuned(
        lines,
        "hashpower_init slab_reassign slab_automove slab_automove_ratio slab_automove_window slab_chunk_max \
         lru_crawler lru_crawler_sleep lru_crawler_tocrawl tail_repair_time",
    );
    lines.stat("flush_enabled", yes_no(settings.flush));
    lines.stat("dump_enabled", yes_no(settings.dump));
    lines.stat("hash_algorithm", "rapidhash");
    tuned(
        lines,
        "lru_maintainer_thread lru_segmented hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temp_lru \
         temporary_ttl",
    );
    lines.stat("idle_timeout", settings.idle_timeout.map_or(0, |t| t.as_secs()));
    lines.stat("watcher_logbuf_size", settings.watcher_buffer_bytes);
    lines.stat("worker_logbuf_size", settings.lane_log_buffer_bytes);
    tuned(lines, "read_buf_mem_limit");
    lines.stat("track_sizes", "no");
    lines.stat("inline_ascii_response", "no");
    tls_settings(lines, shared);
    tuned(lines, "num_napi_ids");
    lines.stat("memory_file", "(null)");
    lines.stat("client_flags_size", 4);
}

fn tls_settings(lines: &mut Lines, shared: &Shared) {
    let tls = shared.settings.tls_given();
    let path = |path: Option<&std::path::PathBuf>| {
        path.filter(|p| !p.as_os_str().is_empty())
            .map_or_else(|| "(null)".to_owned(), |p| p.display().to_string())
    };
    let yes_no = |on: bool| if on { "yes" } else { "no" };
    lines.stat("ssl_enabled", yes_no(shared.tls.is_some()));
    lines.stat("ssl_chain_cert", path(Some(&tls.chain_cert)));
    lines.stat("ssl_key", path(tls.key.as_ref()));
    lines.stat(
        "ssl_verify_mode",
        match tls.verify_mode {
            VerifyMode::None => 0,
            VerifyMode::Request => 1,
            VerifyMode::Require => 2,
            VerifyMode::Once => 3,
        },
    );
    lines.stat("ssl_keyformat", if tls.key_format == KeyFormat::Pem { 1 } else { 2 });
    lines.stat("ssl_ciphers", tls.ciphers.as_deref().unwrap_or("NULL"));
    lines.stat(
        "ssl_ca_cert",
        tls.ca_cert.as_ref().map_or_else(|| "NULL".to_owned(), |p| p.display().to_string()),
    );
    lines.stat("ssl_wbuf_size", shared.settings.tuning.get("ssl_wbuf_size").map_or("16384", String::as_str));
    lines.stat("ssl_session_cache", yes_no(tls.session_cache));
    lines.stat("ssl_kernel_tls", "no");
    lines.stat("ssl_min_version", if tls.min_version == TlsVersion::Tls12 { "tlsv1.2" } else { "tlsv1.3" });
    Counts(shared.counts()).stats(lines, "ssl_proto_errors");
}

fn items(lines: &mut Lines, turn: &Turn<'_>) {
    let (usage, store) = turn.shared.engine.usage();
    if usage.items == 0 {
        return;
    }
    let counts = Counts(turn.shared.counts());
    let oldest = turn.shared.engine.oldest_use().unwrap_or(turn.now.second);
    let mut stat = |name: &str, value: u64| lines.stat(format_args!("items:1:{name}"), value);
    stat("number", usage.items);
    stat("number_hot", 0);
    stat("number_warm", usage.queue_items[1]);
    stat("number_cold", usage.queue_items[0]);
    stat("age_hot", 0);
    stat("age_warm", 0);
    stat("age", turn.now.second.saturating_sub(oldest).into());
    stat("mem_requested", usage.bytes);
    stat("evicted", store.evictions);
    stat("evicted_nonzero", 0);
    stat("evicted_time", 0);
    stat("outofmemory", counts.of("store_no_memory"));
    stat("tailrepairs", 0);
    stat("reclaimed", store.reclaimed);
    stat("expired_unfetched", store.expired_unfetched);
    stat("evicted_unfetched", store.evicted_unfetched);
    for name in
        ["evicted_active", "crawler_reclaimed", "crawler_items_checked", "lrutail_reflocked", "moves_to_cold"]
    {
        stat(name, 0);
    }
    stat("moves_to_warm", store.moved);
    for name in ["moves_within_lru", "direct_reclaims", "hits_to_hot", "hits_to_warm"] {
        stat(name, 0);
    }
    stat("hits_to_cold", counts.of("get_hits"));
    stat("hits_to_temp", 0);
}

fn slabs(lines: &mut Lines, turn: &Turn<'_>) {
    let (usage, _) = turn.shared.engine.usage();
    let counts = Counts(turn.shared.counts());
    if usage.segments > 0 {
        // One class: its pages are segments, its chunks the items that are in them.
        let page = usage.segment_bytes / usage.segments.max(1);
        let chunk = usage.bytes.checked_div(usage.items).unwrap_or(0);
        let mut stat = |name: &str, value: u64| lines.stat(format_args!("1:{name}"), value);
        stat("chunk_size", chunk);
        stat("chunks_per_page", page.checked_div(chunk).unwrap_or(0));
        stat("total_pages", usage.segments);
        stat("total_chunks", usage.items);
        stat("used_chunks", usage.items);
        stat("free_chunks", 0);
        stat("free_chunks_end", 0);
        for name in [
            "get_hits",
            "cmd_set",
            "delete_hits",
            "incr_hits",
            "decr_hits",
            "cas_hits",
            "cas_badval",
            "touch_hits",
        ] {
            stat(name, counts.of(name));
        }
    }
    lines.stat("active_slabs", u8::from(usage.segments > 0));
    lines.stat("total_malloced", turn.shared.engine.memory().used_bytes());
}

fn conns(lines: &mut Lines, turn: &Turn<'_>) {
    for listener in turn.shared.listeners.lock().expect("nobody panics with it held").iter() {
        lines.stat(format_args!("{}:addr", listener.fd), listener.name());
        lines.stat(format_args!("{}:state", listener.fd), "conn_listening");
        lines.stat(format_args!("{}:secs_since_last_cmd", listener.fd), turn.now.second.saturating_sub(2));
    }
    let connections = turn.shared.connections.lock().expect("nobody panics with it held");
    for (fd, info) in connections.iter() {
        debug_assert_eq!(*fd, info.fd.as_raw_fd());
        let transport =
            |peer: &str| if peer.starts_with("unix:") { peer.to_owned() } else { format!("tcp:{peer}") };
        lines.stat(format_args!("{fd}:addr"), transport(&info.peer));
        lines.stat(format_args!("{fd}:listen_addr"), info.listener.name());
        lines.stat(format_args!("{fd}:state"), info.state());
        let idle = turn.now.second.saturating_sub(info.last_command.load(Relaxed));
        lines.stat(format_args!("{fd}:secs_since_last_cmd"), idle);
    }
}

/// `stats cachedump <class> <limit>`: some keys of the one class; at most 2 MiB, as memcached.
fn cachedump(words: Words<'_>, turn: &mut Turn<'_>) {
    const MOST: usize = 2 << 20;
    let arguments: Vec<&[u8]> = words.collect();
    let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u32>().ok();
    let text = match arguments[..] {
        _ if !turn.shared.settings.dump => "CLIENT_ERROR stats cachedump not allowed",
        [class, limit] => match (number(class), number(limit)) {
            (Some(class), Some(limit)) if class < 64 => {
                let limit = if limit == 0 { usize::MAX } else { limit as usize };
                return dump_class(class, limit, MOST, turn);
            }
            (Some(_), Some(_)) => "CLIENT_ERROR Illegal slab id",
            _ => "CLIENT_ERROR bad command line format",
        },
        _ => "CLIENT_ERROR bad command line",
    };
    reply::line(&mut turn.out.bytes, text);
}

fn dump_class(class: u32, limit: usize, most: usize, turn: &mut Turn<'_>) {
    let (engine, now, out) = (&turn.shared.engine, turn.now, &mut turn.out.bytes);
    let end = out.len() + most;
    let mut left = if class == 1 { limit } else { 0 };
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor.filter(|_| left > 0 && out.len() < end) {
        cursor = engine.scan(at, 64, |item| {
            if left > 0 && item.key().iter().all(u8::is_ascii_graphic) {
                left -= 1;
                out.extend_from_slice(b"ITEM ");
                out.extend_from_slice(item.key());
                let expiry = if item.expiry() == 0 { 0 } else { now.unix(item.expiry()) };
                out.extend_from_slice(format!(" [{} b; {expiry} s]\r\n", item.value_len()).as_bytes());
            }
        });
    }
    out.extend_from_slice(reply::END);
}

fn detail(mut words: Words<'_>, turn: &mut Turn<'_>) {
    let detail = &turn.shared.detail;
    match words.next() {
        Some(b"on") => detail.switch(true),
        Some(b"off") => detail.switch(false),
        Some(b"dump") => return detail.dump(&mut turn.out.bytes),
        _ => return reply::line(&mut turn.out.bytes, "CLIENT_ERROR usage: stats detail on|off|dump"),
    }
    reply::line(&mut turn.out.bytes, "OK");
}
