//! Reading of the logs, `[follow.NAME]`.
//!
//! The database is not contacted here: whether a file is valid does not depend on what can be reached.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cattlegrid_follow::etcd::EtcdAddress;
use cattlegrid_follow::postgres::{SslMode, Table, Template};
use cattlegrid_follow::{Address, Product};
use cattlegrid_tags::{Prefixes, TAG_BYTES_MAX};
use toml::de::{DeTable, DeValue};

use crate::follow::{EtcdLog, FollowOrigin, FollowSettings, FollowTable, FollowVia, MysqlLog, PostgresLog};
use crate::follow_keys::{FOLLOW, FOLLOW_TABLE, FollowDraft, FollowTableDraft};
use crate::problems::{Problems, line_of};
use crate::rules::read_table;
use crate::trial::KEY_BYTES_MAX;
use crate::value::TextValue;

/// The most logs in a file.
pub(crate) const FOLLOWS_MAX: usize = 8;
/// The most tables of a log.
pub(crate) const FOLLOW_TABLES_MAX: usize = 200;
/// The most tags, and the most keys, of a table.
const BUMP_MAX: usize = 8;
/// The longest name of a log, in bytes.
const NAME_MAX: usize = 64;

/// The logs of `[follow]` in the rule file at `path`, in the order of the file.
pub(crate) fn read_follows(
    table: &DeTable<'_>,
    path: &Path,
    prefixes: &Prefixes,
    problems: &mut Problems,
) -> Vec<FollowSettings> {
    let mut follows: Vec<(usize, FollowSettings)> = Vec::new();
    for (key, value) in table {
        let (name, offset) = (&**key.get_ref(), key.span().start);
        let DeValue::Table(table) = value.get_ref() else {
            problems.add(offset, format!("follow: {name}: is no table; a log is written [follow.NAME]"));
            continue;
        };
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !(1..=NAME_MAX).contains(&name.len()) || !name.bytes().all(is_allowed) {
            let rule = format!("must be a name of letters, digits, _ and -, up to {NAME_MAX} bytes");
            problems.add(offset, format!("follow {name:?}: {rule}"));
        }
        let follow = LogTable { name, offset, table };
        if let Some(settings) = follow.read(path, prefixes, problems) {
            follows.push((offset, settings));
        }
    }
    follows.sort_by_key(|(offset, _)| *offset);
    for (at, (offset, own)) in follows.iter().enumerate() {
        let before = &follows[..at];
        match &own.origin {
            FollowOrigin::Postgres(log) => {
                let is_same = |other: &PostgresLog| {
                    other.slot == log.slot
                        && other.address.host == log.address.host
                        && other.address.port == log.address.port
                };
                let same = before.iter().find(|(_, other)| other.postgres().is_some_and(is_same));
                if let Some((_, other)) = same.filter(|_| log.slot.is_some()) {
                    let problem = format!(
                        "has the slot of follow {}, which follows one log only; name another",
                        other.name
                    );
                    problems.add(*offset, format!("follow {}: slot: {problem}", own.name));
                }
            }
            FollowOrigin::Mysql(log) => {
                let is_same = |other: &MysqlLog| {
                    other.server_id == log.server_id
                        && other.address.host == log.address.host
                        && other.address.port == log.address.port
                };
                let same = before.iter().find(|(_, other)| other.mysql().is_some_and(is_same));
                if let Some((_, other)) = same.filter(|_| log.server_id.is_some()) {
                    let problem = format!("is that of follow {}; each log needs its own", other.name);
                    problems.add(*offset, format!("follow {}: server_id: {problem}", own.name));
                }
            }
            FollowOrigin::Etcd(_) => {
                if let Some((_, other)) = before.iter().find(|(_, other)| other.etcd().is_some()) {
                    let problem =
                        format!("follow {} is of etcd, too; a server writes into one log", other.name);
                    problems.add(*offset, format!("follow {}: {problem}", own.name));
                }
            }
        }
    }
    find_vias(&mut follows, problems);
    if let Some((offset, _)) = follows.get(FOLLOWS_MAX) {
        problems.add(*offset, format!("follow: {} of them; at most {FOLLOWS_MAX}", follows.len()));
    }
    follows.into_iter().map(|(_, follow)| follow).collect()
}

/// Copies the settings of logs of etcd to the logs that are relayed by them.
fn find_vias(follows: &mut [(usize, FollowSettings)], problems: &mut Problems) {
    let all = follows.iter().map(|(_, own)| own);
    let found: Vec<FollowSettings> = all.filter(|own| own.etcd().is_some()).cloned().collect();
    for (offset, own) in follows {
        let max_lag = own.max_lag;
        let (FollowOrigin::Postgres(PostgresLog { via: Some(via), .. })
        | FollowOrigin::Mysql(MysqlLog { via: Some(via), .. })) = &mut own.origin
        else {
            continue;
        };
        let Some(log) = found.iter().find(|log| log.name == via.name) else {
            let problem = "is no log of etcd of this file; name one";
            problems.add(*offset, format!("follow {}: via {:?}: {problem}", own.name, via.name));
            continue;
        };
        if max_lag < log.max_lag {
            let problem = format!("is below that of follow {}, by way of which it comes; raise it", via.name);
            problems.add(*offset, format!("follow {}: max_lag {problem}", own.name));
        }
        via.log = Some(Box::new(log.clone()));
    }
}

/// The lines at which the tables of each log begin.
pub(crate) fn table_lines(all: &DeTable<'_>, text: &str) -> BTreeMap<String, Vec<usize>> {
    let of_log = |value: &DeValue<'_>| match value {
        DeValue::Table(log) => match log.get("table").map(toml::Spanned::get_ref) {
            Some(DeValue::Array(list)) => list.iter().map(|own| line_of(text, own.span().start)).collect(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    all.iter().map(|(name, value)| (name.get_ref().to_string(), of_log(value.get_ref()))).collect()
}

/// The origin of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogKind {
    Postgres,
    Mysql,
    Etcd,
}

impl LogKind {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "postgres" => Self::Postgres,
            "mysql" | "mariadb" => Self::Mysql,
            "etcd" => Self::Etcd,
            _ => return None,
        })
    }

    /// The name in a rule file, and of the cargo feature.
    const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Etcd => "etcd",
        }
    }
}

/// A `[follow.NAME]` that is being read.
struct LogTable<'t> {
    name: &'t str,
    offset: usize,
    table: &'t DeTable<'t>,
}

impl LogTable<'_> {
    fn read(&self, path: &Path, prefixes: &Prefixes, problems: &mut Problems) -> Option<FollowSettings> {
        let label = format!("follow {}", self.name);
        let mut draft = FollowDraft::default();
        read_table(FOLLOW, &label, self.table, &mut draft, problems);
        let kind = self.kind(&draft, &label, problems);
        let feature = kind.name();
        let built = [
            ("etcd", cfg!(feature = "etcd")),
            ("mysql", cfg!(feature = "mysql")),
            ("postgres", cfg!(feature = "postgres")),
        ];
        if !built.contains(&(feature, true)) {
            let why = format!("this server was built without the cargo feature `{feature}`");
            let mend = format!("build it with the feature, or leave [follow.{}] out", self.name);
            problems.add(self.offset, format!("{label}: kind {feature:?}: {why}; {mend}"));
        }
        let via = draft.via.as_ref().filter(|_| kind != LogKind::Etcd);
        let via = via.map(|via| Self::via(via, kind, &draft, &label, problems));
        let origin = if kind == LogKind::Mysql {
            let address = self.address(Product::Mysql, &draft, &label, problems);
            let database = address.as_ref().map_or("", |address| &address.database);
            let tables = self.read_tables(&label, (kind, database), prefixes, problems);
            FollowOrigin::Mysql(MysqlLog { address: address?, tables, server_id: draft.server_id, via })
        } else if kind == LogKind::Etcd {
            FollowOrigin::Etcd(EtcdLog {
                place: self.place(&draft, &label, problems)?,
                bump_reply: draft.bump_reply,
            })
        } else {
            let tables = self.read_tables(&label, (kind, "public"), prefixes, problems);
            let address = self.address(Product::Postgres, &draft, &label, problems)?;
            let slot = draft.slot.map(|slot| {
                let is_allowed =
                    |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
                if !slot.text.bytes().all(is_allowed) {
                    let rule = "must be a name of lower-case letters, digits and _";
                    problems.add(slot.offset, format!("{label}: slot {:?}: {rule}", slot.text));
                }
                slot.text
            });
            FollowOrigin::Postgres(PostgresLog { address, publication: draft.publication, tables, slot, via })
        };
        if let (Some(file), [first, ..]) = (&draft.password_file, draft.password_command.as_slice()) {
            let offset = file.offset.max(first.offset);
            problems
                .add(offset, format!("{label}: password_file and password_command: leave one of them out"));
        }
        let beside = |given: &TextValue| {
            let joined = path.parent().unwrap_or(Path::new("")).join(&given.text);
            std::path::absolute(&joined).unwrap_or(joined)
        };
        let mut file = |key: &str, given: Option<&TextValue>| -> Option<PathBuf> {
            let given = given?;
            let found = beside(given);
            if let Err(error) = std::fs::metadata(&found) {
                problems
                    .add(given.offset, format!("{label}: {key} {:?}: cannot be used: {error}", given.text));
            }
            Some(found)
        };
        let password_file = file("password_file", draft.password_file.as_ref());
        let ssl_ca = file("ssl_ca", draft.ssl_ca.as_ref());
        let own = (file("ssl_cert", draft.ssl_cert.as_ref()), file("ssl_key", draft.ssl_key.as_ref()));
        let ssl_own = match own {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                problems.add(self.offset, format!("{label}: ssl_cert and ssl_key: name both"));
                None
            }
        };
        Some(FollowSettings {
            name: self.name.to_owned(),
            origin,
            max_lag: draft.max_lag,
            when_behind: draft.when_behind,
            again: draft.again,
            soft: draft.soft,
            password_file,
            password_command: draft.password_command.into_iter().map(|word| word.text).collect(),
            ssl_ca,
            ssl_own,
        })
    }

    /// The origin of the log, by `kind` or by the keys that are present. Keys of other origins are reported
    /// as problems.
    fn kind(&self, draft: &FollowDraft, label: &str, problems: &mut Problems) -> LogKind {
        // The URL is read unchecked, so that its errors are reported for the right origin.
        let url = self.table.get("url").and_then(|url| url.get_ref().as_str()).unwrap_or_default();
        let by_place = if self.table.contains_key("servers") || url.starts_with("etcd://") {
            LogKind::Etcd
        } else if Product::Mysql.is_of(url) {
            LogKind::Mysql
        } else {
            LogKind::Postgres
        };
        let kind = match &draft.kind {
            Some(kind) => LogKind::named(&kind.text).unwrap_or_else(|| {
                let there = "there are \"postgres\", \"mysql\" and \"etcd\"";
                problems.add(kind.offset, format!("{label}: kind {:?}: is unknown; {there}", kind.text));
                by_place
            }),
            None => by_place,
        };
        let (others, what) = match kind {
            LogKind::Etcd => (&["publication", "slot", "via", "table", "server_id"][..], "etcd"),
            LogKind::Postgres => {
                (&["servers", "prefix", "bump_reply", "ssl_cert", "ssl_key", "server_id"][..], "PostgreSQL")
            }
            LogKind::Mysql => (
                &["servers", "prefix", "bump_reply", "ssl_cert", "ssl_key", "publication", "slot"][..],
                "MySQL or MariaDB",
            ),
        };
        for name in others {
            if let Some(value) = self.table.get(*name) {
                problems.add(
                    value.span().start,
                    format!("{label}: {name}: the log is that of {what}, which has none; leave it out"),
                );
            }
        }
        kind
    }

    /// The relaying log of etcd, whose settings follow when all logs have been read.
    fn via(
        via: &TextValue,
        kind: LogKind,
        draft: &FollowDraft,
        label: &str,
        problems: &mut Problems,
    ) -> FollowVia {
        if kind == LogKind::Postgres && draft.slot.is_none() {
            let problem = "needs a slot, at which another node goes on when the one that follows is gone";
            problems.add(via.offset, format!("{label}: via: {problem}; write slot = \"cattlegrid\""));
        }
        if !draft.again.is_zero() {
            let problem = format!("is that of the log of etcd; write it in [follow.{}]", via.text);
            problems.add(via.offset, format!("{label}: again: with via it {problem}"));
        }
        FollowVia { name: via.text.clone(), log: None }
    }

    fn place(&self, draft: &FollowDraft, label: &str, problems: &mut Problems) -> Option<EtcdAddress> {
        let first = draft.servers.first();
        let offset = first.or(draft.url.as_ref()).map_or(self.offset, |given| given.offset);
        let read = match (&draft.url, first) {
            (Some(_), Some(_)) => {
                problems.add(offset, format!("{label}: url and servers: leave one of them out"));
                return None;
            }
            (Some(url), None) => EtcdAddress::parse(&url.text),
            (None, Some(_)) => {
                EtcdAddress::of_servers(draft.servers.iter().map(|server| &*server.text), None)
            }
            // `servers` is not a list, which is reported elsewhere.
            (None, None) if self.table.get("servers").is_some_and(|given| !given.get_ref().is_array()) => {
                return None;
            }
            (None, None) => {
                let example = "servers = [\"http://10.0.0.1:2379\"]";
                problems.add(offset, format!("{label}: lacks servers, those of etcd; write {example}"));
                return None;
            }
        };
        let named = read.and_then(|mut place| {
            if let Some(prefix) = &draft.prefix {
                place.set_prefix(&prefix.text)?;
            }
            Ok(place)
        });
        let mut place = match named {
            Ok(place) => place,
            Err(error) => {
                problems.add(offset, format!("{label}: {error}"));
                return None;
            }
        };
        if let Some((given, mode)) =
            draft.sslmode.as_ref().and_then(|given| Some((given, SslMode::of(&given.text).ok()?)))
        {
            if place.ssl == SslMode::VerifyFull && mode == SslMode::Disable {
                let problem = "the servers are https://; write http://, or leave it out";
                problems.add(given.offset, format!("{label}: sslmode \"disable\": {problem}"));
            }
            place.ssl = mode;
        }
        if let (None, Some(given)) =
            (&place.user, draft.password_file.as_ref().or(draft.password_command.first()))
        {
            let problem = "a password without a user; name one, url = \"etcd://USER@HOST:2379/PREFIX\"";
            problems.add(given.offset, format!("{label}: {:?}: {problem}", given.text));
        }
        if place.ssl == SslMode::Prefer {
            let offset = draft.sslmode.as_ref().map_or(offset, |mode| mode.offset);
            let problem = "etcd is spoken to encrypted or not; write \"disable\", \"require\", \"verify-ca\" or \"verify-full\"";
            problems.add(offset, format!("{label}: sslmode \"prefer\": {problem}"));
        }
        if let (SslMode::Disable, Some(given)) =
            (place.ssl, draft.ssl_ca.as_ref().or(draft.ssl_cert.as_ref()))
        {
            let problem = "no connection is encrypted; write https://, or an sslmode";
            problems.add(given.offset, format!("{label}: {:?}: {problem}", given.text));
        }
        Some(place)
    }

    fn address(
        &self,
        product: Product,
        draft: &FollowDraft,
        label: &str,
        problems: &mut Problems,
    ) -> Option<Address> {
        let Some(url) = &draft.url else {
            if !self.table.contains_key("url") {
                let example = match product {
                    Product::Postgres => "url = \"postgres://cattlegrid@db.internal:5432/shop\"",
                    Product::Mysql => "url = \"mysql://cattlegrid@db.internal:3306/shop\"",
                };
                problems.add(self.offset, format!("{label}: lacks url, the database; write {example}"));
            }
            return None;
        };
        match Address::parse(product, &url.text) {
            Ok(mut address) => {
                address.ssl = draft.ssl_mode().unwrap_or(address.ssl);
                Some(address)
            }
            Err(error) => {
                problems.add(url.offset, format!("{label}: url: {error}"));
                None
            }
        }
    }

    /// Reads the tables. `schema`: the schema of tables that are named without one.
    fn read_tables(
        &self,
        label: &str,
        (kind, schema): (LogKind, &str),
        prefixes: &Prefixes,
        problems: &mut Problems,
    ) -> Vec<FollowTable> {
        let mut tables: Vec<FollowTable> = Vec::new();
        let list = self.table.get("table");
        let Some(DeValue::Array(list)) = list.map(toml::Spanned::get_ref) else {
            let offset = list.map_or(self.offset, |list| list.span().start);
            let problem = format!("{label}: lacks tables; each is written [[follow.{}.table]]", self.name);
            problems.add(offset, problem);
            return tables;
        };
        for own in list {
            let offset = own.span().start;
            let DeValue::Table(table) = own.get_ref() else {
                problems.add(
                    offset,
                    format!("{label}: table: is no table; write [[follow.{}.table]]", self.name),
                );
                continue;
            };
            let mut draft = FollowTableDraft::default();
            let label = format!("{label}: table {}", tables.len() + 1);
            read_table(FOLLOW_TABLE, &label, table, &mut draft, problems);
            if let (true, Some(given)) = (kind != LogKind::Mysql, table.get("cascade")) {
                let problem = "the log has the rows that foreign keys change; leave it out";
                problems.add(given.span().start, format!("{label}: cascade: {problem}"));
            }
            let at = (tables.len(), schema);
            if let Some(read) = finish(draft, (offset, table), at, &label, prefixes, problems) {
                let name = |own: &FollowTable| (own.table.schema.clone(), own.table.name.clone());
                if tables.iter().any(|earlier| name(earlier) == name(&read)) {
                    problems.add(offset, format!("{label}: is there already; name all its tags in one bump"));
                }
                tables.push(read);
            }
        }
        if let Some(own) = list.get(FOLLOW_TABLES_MAX) {
            let problem = format!("{label}: {} tables; at most {FOLLOW_TABLES_MAX}", list.len());
            problems.add(own.span().start, problem);
        }
        tables
    }
}

fn finish(
    draft: FollowTableDraft,
    (offset, table): (usize, &DeTable<'_>),
    (number, schema): (usize, &str),
    label: &str,
    prefixes: &Prefixes,
    problems: &mut Problems,
) -> Option<FollowTable> {
    let Some(name) = draft.table else {
        if !table.contains_key("table") {
            problems.add(offset, format!("{label}: lacks table; write table = \"public.users\""));
        }
        return None;
    };
    let mut read = match Table::named_in(&name.text, schema) {
        Ok(read) => read,
        Err(error) => {
            problems.add(name.offset, format!("{label}: {error}"));
            return None;
        }
    };
    read.scope = number as u8;
    read.cascade = draft.cascade;
    read.bump = templates(&draft.bump, ("bump", "tags"), label, problems);
    let delete_keys = templates(&draft.delete_keys, ("delete_keys", "keys"), label, problems);
    for key in draft.delete_keys.iter().chain(&draft.truncate_keys).filter(|key| !is_key(&key.text)) {
        let problem = format!("a key has 1 to {KEY_BYTES_MAX} bytes, and no blanks");
        problems.add(key.offset, format!("{label}: {:?}: {problem}", key.text));
    }
    for key in draft.truncate_keys.iter().filter(|key| key.text.contains(['{', '}'])) {
        problems.add(
            key.offset,
            format!("{label}: truncate_keys {:?}: no row is named; leave braces out", key.text),
        );
    }
    let is_none = |key: &str| table.get(key).is_none_or(|value| value.get_ref().is_array());
    if draft.bump.is_empty() && draft.delete_keys.is_empty() && is_none("bump") && is_none("delete_keys") {
        problems.add(
            offset,
            format!(
                "{label}: lacks bump, the tags to invalidate, or, for `cattlegrid follow` and memcached servers, delete_keys"
            ),
        );
    }
    if let (true, Some(key)) = (draft.delete_keys.is_empty(), draft.truncate_keys.first()) {
        problems.add(key.offset, format!("{label}: truncate_keys: belongs to delete_keys; name those too"));
    }
    for tag in &draft.truncate {
        if tag.text.is_empty() || tag.text.len() > TAG_BYTES_MAX {
            problems.add(tag.offset, format!("{label}: truncate: a tag has 1 to {TAG_BYTES_MAX} bytes"));
        } else if tag.text.contains(['{', '}']) {
            problems.add(
                tag.offset,
                format!("{label}: truncate {:?}: no row is named; leave braces out", tag.text),
            );
        }
    }
    let empty = [("columns", draft.columns.as_ref()), ("prefixes", draft.prefixes.as_ref())];
    for (key, _) in empty.into_iter().filter(|(_, list)| list.is_some_and(Vec::is_empty)) {
        let at = table.get(key).map_or(offset, |value| value.span().start);
        problems.add(at, format!("{label}: {key}: names none; leave it out for all"));
    }
    read.truncate = draft.truncate.into_iter().map(|tag| tag.text).collect();
    read.columns = draft.columns.map(|names| names.into_iter().map(|name| name.text).collect());
    for prefix in draft.prefixes.iter().flatten().filter(|prefix| !prefix.text.is_empty()) {
        if prefixes.find(prefix.text.as_bytes()).is_none() {
            let problem = "is not one of [server] prefixes; add it there";
            problems.add(prefix.offset, format!("{label}: prefixes {:?}: {problem}", prefix.text));
        }
    }
    let prefixes = draft.prefixes.map(|all| all.into_iter().map(|prefix| prefix.text).collect());
    let truncate_keys = draft.truncate_keys.into_iter().map(|key| key.text).collect();
    Some(FollowTable { table: read, prefixes, delete_keys, truncate_keys })
}

fn templates(
    texts: &[TextValue],
    (key, what): (&str, &str),
    label: &str,
    problems: &mut Problems,
) -> Vec<Template> {
    if let Some(extra) = texts.get(BUMP_MAX) {
        problems.add(extra.offset, format!("{label}: {key}: {} {what}; at most {BUMP_MAX}", texts.len()));
    }
    let mut read = Vec::new();
    for text in texts {
        match Template::parse(&text.text) {
            Ok(template) => read.push(template),
            Err(error) => problems.add(text.offset, format!("{label}: {key} {error}")),
        }
    }
    read
}

/// Whether the text can be a key, or a template of one, where column names may have blanks.
fn is_key(text: &str) -> bool {
    let mut is_column = false;
    let is_right = |c: char| {
        is_column = c == '{' || is_column && c != '}';
        is_column || !(c == ' ' || c.is_ascii_control())
    };
    (1..=KEY_BYTES_MAX).contains(&text.len()) && text.chars().all(is_right)
}

#[cfg(all(test, not(feature = "postgres")))]
mod tests {
    use std::path::Path;

    use crate::rule_file::RuleFile;

    #[test]
    fn a_server_without_the_feature_says_so() {
        let text = "[follow.shop]\nurl = \"postgres://a@b/c\"\n[[follow.shop.table]]\ntable = \"t\"\nbump = [\"t\"]\n";
        let error = RuleFile::parse(Path::new("f.toml"), text).unwrap_err().to_string();
        assert!(
            error.starts_with("f.toml:1: ") && error.contains("without the cargo feature `postgres`"),
            "{error}"
        );
    }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use cattlegrid_herd::WhenBehind;

    use crate::check::explain;
    use crate::follow::FollowOrigin;
    use crate::rule_file::RuleFile;

    const SHOP: &str = "[follow.shop]\nurl = \"postgres://cattle:secret@db.internal/shop\"\n";
    const USERS: &str = "[[follow.shop.table]]\ntable = \"users\"\nbump = [\"user:{id}\"]\n";

    fn parse(text: &str) -> Result<RuleFile, String> {
        RuleFile::parse(Path::new("f.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let file = parse(&format!("{SHOP}{USERS}")).unwrap();
        let [shop] = &file.follows[..] else { panic!("one") };
        assert_eq!((shop.max_lag, shop.again), (Duration::from_secs(3), Duration::ZERO));
        let log = shop.postgres().unwrap();
        assert_eq!((shop.when_behind, shop.soft, &log.slot), (WhenBehind::Refresh, false, &None));
        assert_eq!(log.publication, "cattlegrid");
        assert_eq!((log.address.port, log.address.password.as_deref()), (5432, Some("secret")));
        let users = &log.tables[0];
        assert_eq!((users.table.schema.as_str(), users.table.name.as_str()), ("public", "users"));
        assert_eq!(users.prefixes, None);
    }

    #[test]
    fn what_is_shown_is_a_file_again_without_the_password() {
        let more = "max_lag = \"1s\"\nwhen_behind = \"miss\"\nslot = \"own\"\nsoft = true\nagain = \"5s\"\nsslmode = \"require\"\n";
        let table = "columns = [\"name\"]\ntruncate = [\"users\"]\nprefixes = [\"\"]\n";
        let file = parse(&format!("{SHOP}{more}{USERS}{table}")).unwrap();
        let shown = explain(&file, None).unwrap();
        assert!(!shown.contains("secret") && shown.contains("1 log that is followed"), "{shown}");
        let mut again = parse(&shown).unwrap().follows;
        let FollowOrigin::Postgres(log) = &mut again[0].origin else { panic!("a database") };
        log.address.password = Some("secret".to_owned());
        assert_eq!(again, file.follows);
        let changes = file.changes(&parse(&format!("{SHOP}{USERS}")).unwrap());
        assert_eq!(changes, ["logs changed: shop"]);
        assert_eq!(file.changes(&parse("").unwrap()), ["logs removed: shop"]);
        assert_eq!(parse("").unwrap().changes(&file), ["logs added: shop"]);
    }

    #[test]
    fn a_server_obeys_tags_and_memcached_keys() {
        let keys = "delete_keys = [\"user:{id}\", \"name:{a name}\"]\ntruncate_keys = [\"users\"]\n";
        let both = parse(&format!("{SHOP}{USERS}{keys}")).unwrap();
        both.for_server().unwrap();
        let log = both.log_of_keys(None).unwrap();
        assert_eq!(log.name, "shop");
        let of_keys = log.tables()[0].of_keys();
        let texts = |table: &cattlegrid_follow::postgres::Table| {
            table.bump.iter().map(|own| own.text().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(texts(&of_keys), ["user:{id}", "name:{a name}"]);
        assert_eq!(of_keys.truncate, ["users"]);
        assert_eq!(texts(&log.tables()[0].of_all()).len(), 3);
        let only_keys =
            parse(&format!("{SHOP}{}{keys}", USERS.replace("bump = [\"user:{id}\"]\n", ""))).unwrap();
        only_keys.log_of_keys(Some("shop")).unwrap();
        let error = only_keys.for_server().unwrap_err().to_string();
        assert!(
            error.starts_with("f.toml:3: follow shop: table public.users has delete_keys and no bump"),
            "{error}"
        );
        let shown = explain(&only_keys, None).unwrap();
        assert!(shown.contains("# for `cattlegrid follow` only: f.toml:3: "), "{shown}");
        assert!(!shown.contains("bump = "), "{shown}");
        parse(&shown).unwrap().log_of_keys(None).unwrap();
        let only_tags = parse(&format!("{SHOP}{USERS}")).unwrap();
        let error = only_tags.log_of_keys(None).unwrap_err().to_string();
        assert!(error.starts_with("f.toml:3: follow shop: table public.users has no delete_keys"), "{error}");
        assert_eq!(both.changes(&only_tags), ["logs changed: shop"]);
    }

    #[test]
    fn each_mistake_has_its_line_and_what_would_be_right() {
        let users = |key: &str| format!("{SHOP}{USERS}{key}\n");
        let shop = |key: &str| format!("{SHOP}{key}\n{USERS}");
        for (text, line, part) in [
            (USERS.to_owned(), 1, "lacks url"),
            (SHOP.to_owned(), 1, "lacks tables; each is written [[follow.shop.table]]"),
            (shop("kind = \"mysql\""), 2, "does not begin with mysql://"),
            (shop("server_id = 7"), 3, "that of PostgreSQL, which has none"),
            (users("cascade = \"flush\""), 6, "has the rows that foreign keys change"),
            (shop("prefix = \"/x\""), 3, "that of PostgreSQL, which has none"),
            (shop("kind = \"oracle\""), 3, "is unknown; there are \"postgres\", \"mysql\" and \"etcd\""),
            (shop("slot = \"A\""), 3, "lower-case letters"),
            (shop("max_lag = \"50ms\""), 3, "max_lag"),
            (shop("password_file = \"none\""), 3, "cannot be used"),
            (shop("password_command = [\"a\"]\npassword_file = \"none\""), 4, "leave one of them out"),
            (shop("ssl_ca = \"none\""), 3, "cannot be used"),
            (shop("tabel = 1"), 3, "did you mean table?"),
            (users("prefixes = [\":1:\"]"), 6, "is not one of [server] prefixes"),
            (users("truncate = [\"a:{b}\"]"), 6, "no row is named"),
            (users("truncate_keys = [\"a\"]"), 6, "belongs to delete_keys; name those too"),
            (users("delete_keys = [\"a\"]\ntruncate_keys = [\"a:{b}\"]"), 7, "no row is named"),
            (users("delete_keys = [\"a:{b\"]"), 6, "a column is written"),
            (users("delete_keys = [\"a b:{c}\"]"), 6, "a key has 1 to 250 bytes, and no blanks"),
            (users("columns = []"), 6, "names none; leave it out for all"),
            (users("prefixes = []"), 6, "names none; leave it out for all"),
            (
                shop("slot = \"a\"") + &shop("slot = \"a\"").replace("follow.shop", "follow.other"),
                7,
                "has the slot of follow shop",
            ),
            (users(USERS), 6, "is there already"),
            (format!("{SHOP}[[follow.shop.table]]\nbump = [\"a\"]"), 3, "lacks table"),
            (format!("{SHOP}[[follow.shop.table]]\ntable = \"a\""), 3, "lacks bump"),
            (format!("{SHOP}[[follow.shop.table]]\ntable = \"a.b.c\"\nbump = [\"a\"]"), 4, "is no table"),
            (
                format!("{SHOP}[[follow.shop.table]]\ntable = \"a\"\nbump = [\"a:{{\"]"),
                5,
                "a column is written",
            ),
            ("[follow]\nshop = 1".to_owned(), 2, "is no table; a log is written [follow.NAME]"),
            ("[follow.\"a b\"]\nurl = \"x\"".to_owned(), 1, "must be a name of letters"),
            (SHOP.replace("postgres:", "mysq:") + USERS, 2, "does not begin with postgres://"),
        ] {
            let error = parse(&text).unwrap_err();
            let found =
                error.lines().any(|own| own.starts_with(&format!("f.toml:{line}: ")) && own.contains(part));
            assert!(found, "{text}: {error}");
        }
    }
}

#[cfg(all(test, feature = "etcd"))]
mod etcd_tests {
    use std::path::Path;

    use cattlegrid_follow::postgres::SslMode;

    use crate::check::explain;
    use crate::follow::{BumpReply, FollowOrigin};
    use crate::rule_file::RuleFile;

    const BUMPS: &str = "[follow.bumps]\nservers = [\"http://10.0.0.1:2379\", \"http://10.0.0.2\"]\n";

    fn parse(text: &str) -> Result<RuleFile, String> {
        RuleFile::parse(Path::new("f.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn servers_or_an_address() {
        let file = parse(BUMPS).unwrap();
        let log = file.follows[0].etcd().unwrap();
        assert_eq!((log.place.prefix.as_str(), log.bump_reply), ("/cattlegrid", BumpReply::Commit));
        assert_eq!(log.place.servers[1], ("10.0.0.2".to_owned(), 2379));
        let text = "[follow.bumps]\nkind = \"etcd\"\nurl = \"etcd://a:secret@b/shop\"\nbump_reply = \"barrier\"\nsslmode = \"require\"\nmax_lag = \"1s\"\n";
        let file = parse(text).unwrap();
        let log = file.follows[0].etcd().unwrap();
        assert_eq!((log.place.ssl, log.bump_reply), (SslMode::Require, BumpReply::Barrier));
        let shown = explain(&file, None).unwrap();
        assert!(!shown.contains("secret"), "{shown}");
        let mut again = parse(&shown).unwrap().follows;
        let FollowOrigin::Etcd(log) = &mut again[0].origin else { panic!("an etcd") };
        log.place.password = Some("secret".to_owned());
        assert_eq!(again, file.follows);
    }

    #[test]
    fn each_mistake_has_its_line_and_what_would_be_right() {
        for (more, line, part) in [
            ("url = \"etcd://a\"", 2, "leave one of them out"),
            ("kind = \"postgres\"", 2, "that of PostgreSQL, which has none"),
            ("slot = \"a\"", 3, "that of etcd, which has none"),
            ("publication = \"a\"", 3, "that of etcd, which has none"),
            ("prefix = \"shop\"", 2, "does not begin with /"),
            ("sslmode = \"prefer\"", 3, "encrypted or not"),
            ("ssl_ca = \"f.toml\"", 3, "no connection is encrypted"),
            ("bump_reply = \"never\"", 3, "bump_reply"),
            ("ssl_cert = \"/dev/null\"", 1, "name both"),
            ("[follow.more]\nurl = \"etcd://a\"", 3, "a server writes into one log"),
        ] {
            let error = parse(&format!("{BUMPS}{more}\n")).unwrap_err();
            let found =
                error.lines().any(|own| own.starts_with(&format!("f.toml:{line}: ")) && own.contains(part));
            assert!(found, "{more}: {error}");
        }
        let error = parse("[follow.bumps]\nkind = \"etcd\"\n").unwrap_err();
        assert!(error.starts_with("f.toml:1: ") && error.contains("lacks servers"), "{error}");
    }
}

#[cfg(all(test, feature = "mysql"))]
mod mysql_tests;
