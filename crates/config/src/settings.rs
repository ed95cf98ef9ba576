//! The settings of the server: every value is checked and typed, and has its unit.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::UsageError;
use crate::follow::FollowSettings;
use crate::listen_address::{ListenAddress, TcpPort};
use crate::loader::LoaderSettings;
use crate::objects::Objects;
use crate::options_file::OptionsFile;
use crate::own_types::{NoScripts, TypeLoader};
use crate::protection::{Protection, ServerDraft};
use crate::protocol::Protocol;
use crate::rule_file::RuleFile;

/// The server's settings.
///
/// [`crate::parse_args`] makes them, and checks every value and their combination. `default()` has the
/// values without any option.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct Settings {
    /// `-p`: the port of listening addresses without a port. Default 11211.
    pub tcp_port: TcpPort,
    /// `-l`: the addresses to listen on, in the given order; empty if the option was not given, see
    /// [`Settings::tcp_addresses`].
    pub listen: Vec<ListenAddress>,
    /// `-s`: the Unix socket. With it, and without `-p` and `-l`, there is no TCP.
    pub unix_socket: Option<PathBuf>,
    /// `-a`: the access bits of the Unix socket. Default 0o700.
    pub unix_mask: u32,
    /// `-b`: the most connections in the kernel's backlog. Default 1024.
    pub backlog: i32,

    /// `-m`: memory for items, in bytes. Default 64 MiB.
    pub memory_bytes: usize,
    /// `-I`: the largest item, in bytes: 1 KiB to 1 GiB, at most half of [`Self::memory_bytes`]. Default 1
    /// MiB.
    pub item_bytes_max: usize,
    /// False under `-M`: whether old items are evicted when the memory is full (otherwise the store returns
    /// an error).
    pub evictions: bool,
    /// `-k`: keep all memory from being paged out.
    pub lock_memory: bool,
    /// `-L`: ask the kernel for large pages for item memory.
    pub large_pages: bool,

    /// `-t`: threads that serve connections, 1 or more. Default 4.
    pub threads: usize,
    /// `-c`: the most simultaneous connections, 1 or more. Default 1024.
    pub connections_max: usize,
    /// `-o maxconns_fast`: above that limit, answer `ERROR Too many open connections` and close (the
    /// default). Otherwise new connections stay in the backlog until another closes.
    pub connections_max_fast: bool,
    /// `-R`: the most requests of a connection in one turn. Default 256.
    pub requests_per_event: usize,
    /// `-o idle_timeout`: close connections that have sent no command for this time. None (0): never.
    pub idle_timeout: Option<Duration>,
    /// `-o io_uring`: send the replies of several connections in one system call where the kernel allows it.
    pub io_uring: bool,

    /// False under `-C`: whether clients see CAS values.
    pub cas: bool,
    /// False under `-F`: whether `flush_all` is allowed.
    pub flush: bool,
    /// False under `-X`: whether `stats cachedump` and `lru_crawler metadump` are allowed.
    pub dump: bool,
    /// False under `-W`: whether `watch` is allowed.
    pub watch: bool,
    /// `-A`: whether `shutdown` is allowed.
    pub shutdown_command: bool,
    /// `-o track_sizes`: whether `stats sizes` counts the items of each size.
    pub track_sizes: bool,
    /// `-o debugtime`: whether the command `debugtime` moves the clock.
    pub debugtime: bool,
    /// `-D`: the character that ends a key's prefix in `stats detail`. Default `:`.
    pub stat_delimiter: u8,
    /// Whether `-D` was given, which switches `stats detail` on from the start.
    pub stat_detail: bool,
    /// `-o watcher_logbuf_size`: the buffer of each watcher, in bytes. Default 256 KiB.
    pub watcher_buffer_bytes: usize,
    /// `-o worker_logbuf_size`: the queue of each lane for watchers' lines, in bytes. Default 64 KiB.
    pub lane_log_buffer_bytes: usize,

    /// The protocols that connections may use: the value of `-B`, or derived from `-S` and `-Y`.
    pub protocol: Protocol,
    pub(crate) protocol_given: Option<Protocol>,
    /// `-Y`: the file of users and passwords. With it, clients must log in.
    pub auth_file: Option<PathBuf>,
    /// `-S`: whether binary clients must log in by SASL, with that file or, without it, the file of
    /// `MEMCACHED_SASL_PWDB`.
    pub sasl: bool,
    /// `-Z` and the `ssl_*` options; None without `-Z`.
    pub tls: Option<TlsSettings>,
    /// The `ssl_*` options, with or without `-Z` (for `stats settings`).
    pub(crate) tls_given: TlsSettings,
    pub(crate) tls_wanted: bool,

    /// `-u`: the user to which the server changes if it is started as root.
    pub user: Option<String>,
    /// `-d`: leave the terminal and run in the background.
    pub daemon: bool,
    /// `-P`: the file for the process id.
    pub pid_file: Option<PathBuf>,
    /// `-r`: whether to raise the limit on core files.
    pub core_dumps: bool,
    /// `-o drop_privileges` and `-o relaxed_privileges`.
    pub privileges: Privileges,
    pub(crate) drop_privileges: bool,
    pub(crate) relaxed_privileges: bool,

    /// The number of `-v`.
    pub verbosity: u8,
    /// `--config`: the rule file.
    pub rule_file: Option<RuleFile>,
    /// The keys of `[server]` for rules and control keys, with the defaults that follow from the memory
    /// limit.
    pub protection: Protection,
    /// `[objects]` of the rule file, or `--objects`: the types of objects; None: they are switched off.
    pub objects: Option<Objects>,
    pub(crate) objects_dir: Option<PathBuf>,
    /// Loads users' own types.
    pub(crate) types: &'static dyn TypeLoader,
    pub(crate) config: Option<PathBuf>,
    /// The path of `--options-file`.
    pub(crate) options_file: Option<String>,
    /// The name of that file on the command line, and its contents at the start.
    pub(crate) options_read: Option<(String, OptionsFile)>,
    pub(crate) own: ServerDraft,

    /// `--log-format`.
    pub log_format: LogFormat,
    /// `--admin`: the address of the pages for monitoring; None: there are none.
    pub admin: Option<ListenAddress>,
    /// `--admin-token`: the file of the token that readers of the pages must send.
    pub admin_token: Option<PathBuf>,
    /// The TLS of the pages beyond loopback: the `ssl_*` options, with or without `-Z`; None without a
    /// certificate.
    pub admin_tls: Option<TlsSettings>,
    /// `--slow-log`: computations and loads that take at least this long are in the slow log. Default 1 s.
    pub slow: Duration,
    /// `--slow-calls`: calls of objects that take at least this long are in the slow log. Default 10 ms.
    pub slow_calls: Duration,
    /// `--drain`: how long the server waits at most for held requests after SIGTERM. Default 5 s.
    pub drain: Duration,
    /// `--unsent-memory`: the most bytes of unsent replies, of all connections together. At least 1 MiB,
    /// default 64 MiB.
    pub unsent_bytes: usize,

    /// Settings of memcached that exist here in `stats settings` only: memcached's name, and the given value
    /// or memcached's default.
    pub tuning: BTreeMap<&'static str, String>,
    /// A line for each option that was accepted without effect, to be logged at the start.
    pub notices: Vec<String>,
    /// A line for each thing in the rule file or in sources of types that is probably a mistake, or goes with
    /// the next release, to be logged at the start as a warning.
    pub warnings: Vec<String>,
    /// Words of the command line that are neither an option nor a value.
    pub(crate) strays: Vec<String>,
    pub(crate) port_given: bool,
}

/// The `ssl_*` options of `-Z`.
#[derive(Debug, Clone, Default)]
pub struct TlsSettings {
    /// `ssl_chain_cert`: the certificate and its chain up to the root, PEM.
    pub chain_cert: PathBuf,
    /// `ssl_key`: the private key; None: the chain file has it.
    pub key: Option<PathBuf>,
    /// `ssl_keyformat`: the format of the private key.
    pub key_format: KeyFormat,
    /// `ssl_verify_mode`: whether clients need a certificate.
    pub verify_mode: VerifyMode,
    /// `ssl_ca_cert`: the authorities of clients' certificates, PEM.
    pub ca_cert: Option<PathBuf>,
    /// `ssl_min_version`: the oldest version of TLS.
    pub min_version: TlsVersion,
    /// `ssl_ciphers`: names of cipher suites in OpenSSL's form, separated by `:`.
    pub ciphers: Option<String>,
    /// `ssl_session_cache`: whether clients may resume sessions.
    pub session_cache: bool,
}

/// The format of the private key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeyFormat {
    /// PEM, which is text.
    #[default]
    Pem,
    /// DER, which is binary.
    Der,
}

/// Whether clients need a certificate, by memcached's numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VerifyMode {
    /// 0: clients are not asked for a certificate.
    #[default]
    None,
    /// 1: clients are asked for a certificate; if they send one it must be valid.
    Request,
    /// 2: clients must send a valid certificate.
    Require,
    /// 3: the same as 2. It would differ when a connection is renegotiated, which is not supported.
    Once,
}

/// The oldest version of TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// The privileges that the server gives up once it listens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Privileges {
    /// None are given up.
    #[default]
    Keep,
    /// `-o drop_privileges,relaxed_privileges`: programs that the server starts gain nothing from setuid
    /// bits.
    NoNew,
    /// `-o drop_privileges`: the same, and all capabilities are given up.
    Drop,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `cattlegrid: message`
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tcp_port: TcpPort::Fixed(11211),
            listen: Vec::new(),
            unix_socket: None,
            unix_mask: 0o700,
            backlog: 1024,
            memory_bytes: 64 << 20,
            item_bytes_max: 1 << 20,
            evictions: true,
            lock_memory: false,
            large_pages: false,
            threads: 4,
            connections_max: 1024,
            connections_max_fast: true,
            requests_per_event: 256,
            idle_timeout: None,
            io_uring: false,
            cas: true,
            flush: true,
            dump: true,
            watch: true,
            shutdown_command: false,
            track_sizes: false,
            debugtime: false,
            stat_delimiter: b':',
            stat_detail: false,
            watcher_buffer_bytes: 256 << 10,
            lane_log_buffer_bytes: 64 << 10,
            protocol: Protocol::Auto,
            protocol_given: None,
            auth_file: None,
            sasl: false,
            tls: None,
            tls_given: TlsSettings::default(),
            tls_wanted: false,
            user: None,
            daemon: false,
            pid_file: None,
            core_dumps: false,
            privileges: Privileges::Keep,
            drop_privileges: false,
            relaxed_privileges: false,
            verbosity: 0,
            rule_file: None,
            protection: ServerDraft::default().resolve(64 << 20),
            objects: None,
            objects_dir: None,
            types: &NoScripts,
            config: None,
            options_file: None,
            options_read: None,
            own: ServerDraft::default(),
            log_format: LogFormat::Text,
            admin: None,
            admin_token: None,
            admin_tls: None,
            slow: Duration::from_secs(1),
            slow_calls: Duration::from_millis(10),
            drain: Duration::from_secs(5),
            unsent_bytes: 64 << 20,
            tuning: TUNING.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            notices: Vec::new(),
            warnings: Vec::new(),
            strays: Vec::new(),
            port_given: false,
        }
    }
}

impl Settings {
    /// The TCP addresses to listen on: those of `-l`, or else loopback, each with its port. Entries whose
    /// port is [`TcpPort::None`] are left out. Empty with `-s` and neither `-p` nor `-l`.
    pub fn tcp_addresses(&self) -> Vec<(ListenAddress, TcpPort)> {
        if self.unix_socket.is_some() && !self.port_given && self.listen.is_empty() {
            return Vec::new();
        }
        let loopback = [ListenAddress::loopback()];
        let given = if self.listen.is_empty() { &loopback[..] } else { &self.listen[..] };
        given
            .iter()
            .map(|address| (address.clone(), address.port.map_or(self.tcp_port, TcpPort::Fixed)))
            .filter(|(_, port)| *port != TcpPort::None)
            .collect()
    }

    /// The given addresses, separated by commas; memcached's `stats settings` calls them `inter`.
    pub fn inter(&self) -> String {
        match &self.listen[..] {
            [] => ListenAddress::loopback().to_string(),
            given => given.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        }
    }

    /// Whether text clients must log in. Under [`Self::auth_binary`] alone the text protocol is not accepted,
    /// see [`Self::protocol`].
    pub fn auth_text(&self) -> bool {
        self.auth_file.is_some()
    }

    /// Whether binary clients must log in. Under [`Self::auth_text`] alone the binary protocol is not
    /// accepted.
    pub fn auth_binary(&self) -> bool {
        self.sasl
    }

    /// The given `ssl_*` options, for `stats settings`, with or without `-Z`.
    pub fn tls_given(&self) -> &TlsSettings {
        &self.tls_given
    }

    /// The loaders of the rule file that are started; empty without a rule file.
    pub fn loaders(&self) -> &[LoaderSettings] {
        self.rule_file.as_ref().map_or(&[], |file| &file.running)
    }

    /// The logs that the rule file follows; empty without a rule file.
    pub fn follows(&self) -> &[FollowSettings] {
        self.rule_file.as_ref().map_or(&[], |file| &file.follows)
    }

    /// The log line about an options file that has changed since the start, which needs a restart, or that
    /// cannot be read.
    pub fn options_need_restart(&self) -> Option<String> {
        self.options_read.as_ref().and_then(|(given, file)| file.needs_restart(given))
    }

    /// Makes every path absolute, so that it stays valid after `-d` has changed to `/`.
    ///
    /// # Errors
    /// The present directory is unknown.
    pub fn make_paths_absolute(&mut self) -> std::io::Result<()> {
        let own = [
            &mut self.unix_socket,
            &mut self.auth_file,
            &mut self.pid_file,
            &mut self.objects_dir,
            &mut self.admin_token,
        ];
        for path in own.into_iter().flatten() {
            *path = std::path::absolute(&*path)?;
        }
        for tls in [&mut self.tls, &mut self.admin_tls].into_iter().flatten() {
            tls.chain_cert = std::path::absolute(&tls.chain_cert)?;
            for path in [&mut tls.key, &mut tls.ca_cert].into_iter().flatten() {
                *path = std::path::absolute(&*path)?;
            }
        }
        if let Some((given, _)) = &mut self.options_read {
            let (mark, path) = given.strip_prefix('-').map_or(("", given.as_str()), |path| ("-", path));
            *given = format!("{mark}{}", std::path::absolute(path)?.display());
        }
        if let Some(file) = &mut self.rule_file {
            file.path = std::path::absolute(&file.path)?;
            file.objects_dir.clone_from(&self.objects_dir);
        }
        Ok(())
    }

    /// Checks that need all options.
    ///
    /// # Errors
    /// Options contradict each other.
    pub(crate) fn check(&mut self) -> Result<(), UsageError> {
        self.protection = self.own.resolve(self.memory_bytes);
        self.check_memory()?;
        self.check_prefixes()?;
        if self.admin.is_none() && self.admin_token.is_some() {
            return Err(UsageError::new("--admin-token: means something only with --admin <addr>; add it"));
        }
        if self.admin.is_some() && !self.tls_given.chain_cert.as_os_str().is_empty() {
            self.admin_tls = Some(self.tls_given.clone());
        }
        self.protocol = Protocol::in_force(self.protocol_given, self.auth_text(), self.auth_binary())?;
        if let Some(address) = self.listen.iter().find(|a| a.protocol.is_some_and(|own| own != self.protocol))
        {
            let address = address.host_text();
            self.notices.push(format!(
                "-l: the proto prefix of {address} has no effect: all addresses speak what -B, -S and -Y say"
            ));
        }
        if self.tls_wanted {
            self.check_tls()?;
            self.tls = Some(self.tls_given.clone());
        }
        if self.unix_socket.is_none() && self.tcp_addresses().is_empty() {
            return Err(UsageError::new(
                "-p 0: nothing is left to listen on; add -s <file> or -l <address>:<port>",
            ));
        }
        if self.tls_wanted && self.tcp_addresses().is_empty() {
            return Err(UsageError::new("-Z: TLS is spoken on TCP only; add -p <num>"));
        }
        if self.threads > 64 {
            self.notices.push(format!(
                "-t {}: that many threads rarely help; the number of cores of the machine or less is best",
                self.threads
            ));
        }
        self.privileges = match (self.drop_privileges, self.relaxed_privileges) {
            (false, _) => Privileges::Keep,
            (true, true) => Privileges::NoNew,
            (true, false) => Privileges::Drop,
        };
        if let Some(file) = &self.rule_file {
            file.check_loaders(self)?;
            if let Some(share) = file.shares.first().filter(|_| !self.evictions) {
                return Err(UsageError::new(format!(
                    "{}:{}: share {:?}: under -M nothing is evicted, for whatever share; leave one of them out",
                    file.path.display(),
                    share.line,
                    share.prefix
                )));
            }
            self.warnings.extend(file.warns_of_loaders());
            self.warnings.extend(file.warns_of_patterns());
        }
        self.objects = self.objects_under(self.rule_file.as_ref())?;
        if let Some(objects) = &self.objects {
            self.warnings.extend(objects.warns(self.rule_file.as_ref()));
        }
        Ok(())
    }

    /// Checks that half of the memory can be for items, and an item for at most half of that.
    fn check_memory(&self) -> Result<(), UsageError> {
        let Protection { tag_bytes, ledger_bytes, fence_bytes, .. } = self.protection;
        let taken = tag_bytes.saturating_add(ledger_bytes).saturating_add(fence_bytes);
        if self.rule_file.is_some() && taken > self.memory_bytes / 2 {
            return Err(UsageError::new(format!(
                "[server]: tag_memory, ledger_memory and fence_memory take {taken} bytes, above half of the memory \
                 (-m {}); lower them or raise -m",
                self.memory_bytes >> 20,
            )));
        }
        if self.item_bytes_max > self.memory_bytes / 2 {
            return Err(UsageError::new(format!(
                "-I: an item of {} bytes is above half of the memory (-m {}); raise -m or lower -I",
                self.item_bytes_max,
                self.memory_bytes >> 20,
            )));
        }
        Ok(())
    }

    /// Checks the prefixes of `-l` without `-Z`.
    fn check_prefixes(&mut self) -> Result<(), UsageError> {
        if self.tls_wanted {
            return Ok(());
        }
        if self.listen.iter().any(|address| !address.tls) {
            return Err(UsageError::new(
                "-l notls: means something only with -Z; leave the prefix out or add -Z",
            ));
        }
        if self.listen.iter().any(|address| address.peer.is_some()) {
            self.notices.push(
                "-l mtls: and btls: mean nothing without -Z: those addresses speak plain text, as in memcached"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Checks the options of TLS under `-Z`.
    fn check_tls(&mut self) -> Result<(), UsageError> {
        let tls = &self.tls_given;
        let verifies = matches!(tls.verify_mode, VerifyMode::Require | VerifyMode::Once);
        let other = |peer: bool| peer != verifies || tls.verify_mode == VerifyMode::Request;
        if let Some(address) = self.listen.iter().find(|address| address.peer.is_some_and(other)) {
            return Err(UsageError::new(format!(
                "-l {address}: all addresses ask clients for certificates alike; mtls: needs -o \
                 ssl_verify_mode=2, btls: ssl_verify_mode=0"
            )));
        }
        if tls.chain_cert.as_os_str().is_empty() {
            return Err(UsageError::new("-Z: needs a certificate: -o ssl_chain_cert=<file>"));
        }
        let text = match tls.verify_mode {
            _ if tls.ca_cert.is_some() => return Ok(()),
            VerifyMode::None => return Ok(()),
            VerifyMode::Request => {
                "clients that send a certificate are refused, those that send none are served"
            }
            VerifyMode::Require | VerifyMode::Once => "every client is refused",
        };
        self.notices.push(format!(
            "-o ssl_verify_mode without -o ssl_ca_cert=<file>: no certificate of a client is good, so that {text}, as in memcached"
        ));
        Ok(())
    }
}

/// Names in memcached 1.6's `stats settings` that tune parts which do not exist here, with memcached's
/// defaults.
const TUNING: &[(&str, &str)] = &[
    ("oldest", "0"),
    ("growth_factor", "1.25"),
    ("chunk_size", "48"),
    ("hashpower_init", "0"),
    ("hash_expand", "yes"),
    ("slab_reassign", "yes"),
    ("slab_automove", "1"),
    ("slab_automove_ratio", "0.80"),
    ("slab_automove_window", "30"),
    ("slab_automove_freeratio", "0.010"),
    ("slab_chunk_max", "524288"),
    ("lru_crawler", "yes"),
    ("lru_crawler_sleep", "100"),
    ("lru_crawler_tocrawl", "0"),
    ("tail_repair_time", "0"),
    ("hash_algorithm", "murmur3"),
    ("lru_maintainer_thread", "yes"),
    ("lru_segmented", "yes"),
    ("hot_lru_pct", "20"),
    ("warm_lru_pct", "40"),
    ("hot_max_factor", "0.20"),
    ("warm_max_factor", "2.00"),
    ("temp_lru", "no"),
    ("temporary_ttl", "61"),
    ("read_buf_mem_limit", "0"),
    ("inline_ascii_response", "no"),
    ("ssl_wbuf_size", "16384"),
    ("ssl_kernel_tls", "no"),
    ("num_napi_ids", "0"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_absolute() {
        let mut settings = Settings {
            pid_file: Some("a.pid".into()),
            auth_file: Some("/etc/users".into()),
            ..Settings::default()
        };
        settings.make_paths_absolute().unwrap();
        let pid_file = settings.pid_file.unwrap();
        assert!(pid_file.is_absolute() && pid_file.ends_with("a.pid"));
        assert_eq!(settings.auth_file.unwrap(), PathBuf::from("/etc/users"));
    }
}
