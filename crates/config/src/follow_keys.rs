//! The keys of `[follow.NAME]` and `[[follow.NAME.table]]`: see `keys.rs`.

use std::time::Duration;

use cattlegrid_engine::{MAX_LAG_MS_MAX, MAX_LAG_MS_MIN};
use cattlegrid_follow::postgres::{Cascade, SslMode, Template};
use cattlegrid_herd::WhenBehind;

use crate::follow::{BumpReply, FollowOrigin, FollowSettings, FollowTable};
use crate::keys::{TableKey, choice, key, list, toml_text};
use crate::table::{Class, set};
use crate::value::{HOUR, TextValue, URL, ValueKind, show_ms};

/// A `[follow.NAME]` that is being read.
#[derive(Debug)]
pub(crate) struct FollowDraft {
    pub(crate) kind: Option<TextValue>,
    pub(crate) url: Option<TextValue>,
    pub(crate) servers: Vec<TextValue>,
    pub(crate) prefix: Option<TextValue>,
    pub(crate) bump_reply: BumpReply,
    pub(crate) sslmode: Option<TextValue>,
    pub(crate) publication: String,
    pub(crate) max_lag: Duration,
    pub(crate) when_behind: WhenBehind,
    pub(crate) again: Duration,
    pub(crate) soft: bool,
    pub(crate) slot: Option<TextValue>,
    pub(crate) server_id: Option<u32>,
    pub(crate) via: Option<TextValue>,
    pub(crate) password_file: Option<TextValue>,
    pub(crate) password_command: Vec<TextValue>,
    pub(crate) ssl_ca: Option<TextValue>,
    pub(crate) ssl_cert: Option<TextValue>,
    pub(crate) ssl_key: Option<TextValue>,
}

impl FollowDraft {
    /// The value of `sslmode`, if it is valid.
    pub(crate) fn ssl_mode(&self) -> Option<SslMode> {
        SslMode::of(&self.sslmode.as_ref()?.text).ok()
    }
}

impl Default for FollowDraft {
    fn default() -> Self {
        Self {
            kind: None,
            url: None,
            servers: Vec::new(),
            prefix: None,
            bump_reply: BumpReply::default(),
            sslmode: None,
            publication: "cattlegrid".to_owned(),
            max_lag: Duration::from_secs(3),
            when_behind: WhenBehind::default(),
            again: Duration::ZERO,
            soft: false,
            slot: None,
            server_id: None,
            via: None,
            password_file: None,
            password_command: Vec::new(),
            ssl_ca: None,
            ssl_cert: None,
            ssl_key: None,
        }
    }
}

/// A `[[follow.NAME.table]]` that is being read.
#[derive(Debug, Default)]
pub(crate) struct FollowTableDraft {
    pub(crate) table: Option<TextValue>,
    pub(crate) bump: Vec<TextValue>,
    pub(crate) delete_keys: Vec<TextValue>,
    pub(crate) columns: Option<Vec<TextValue>>,
    pub(crate) truncate: Vec<TextValue>,
    pub(crate) truncate_keys: Vec<TextValue>,
    pub(crate) cascade: Cascade,
    pub(crate) prefixes: Option<Vec<TextValue>>,
}

fn shown(time: Duration) -> String {
    format!("\"{}\"", show_ms(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
}

/// The names of [`WhenBehind`].
pub(crate) const WHEN_BEHIND: [&str; 3] = ["refresh", "miss", "serve"];

pub(crate) fn when_behind(name: &str) -> WhenBehind {
    match name {
        "miss" => WhenBehind::Miss,
        "serve" => WhenBehind::Serve,
        _ => WhenBehind::Refresh,
    }
}

pub(crate) fn when_behind_name(when_behind: WhenBehind) -> &'static str {
    match when_behind {
        WhenBehind::Refresh => "refresh",
        WhenBehind::Miss => "miss",
        WhenBehind::Serve => "serve",
    }
}

#[rustfmt::skip]
pub(crate) const FOLLOW: &[TableKey<FollowDraft, FollowSettings>] = &[
    key("kind", ValueKind::Text { what: "kind of log", max: 20 }, "that of `url`",
        "Whose log it is: \"postgres\", changed rows of PostgreSQL 14 or later, \"mysql\", changed rows of MySQL 8.0 or MariaDB 10.5 or later, or \"etcd\", bumps of all nodes of a fleet, in etcd 3.4 or later.",
        set!(kind, given => Some(given.placed().clone())),
        |follow| Some(toml_text(match &follow.origin {
            FollowOrigin::Postgres(_) => "postgres",
            FollowOrigin::Mysql(_) => "mysql",
            FollowOrigin::Etcd(_) => "etcd",
        }))),
    key("url", ValueKind::Text { what: URL, max: 1000 }, "",
        "The database and the role that follows: `postgres://cattlegrid@db.internal:5432/shop`. Needed. A Unix socket: `postgres://cattlegrid@/shop?host=/run/postgresql`. For MySQL and MariaDB `mysql://cattlegrid@db.internal:3306/shop`, or `mysql://cattlegrid@/shop?host=/run/mysqld/mysqld.sock`. For etcd `etcd://cattlegrid@10.0.0.1:2379,10.0.0.2:2379/PREFIX`, or `servers` and `prefix`; the user only where etcd has authentication. A password in it is shown by none of the commands, but is in the file.",
        set!(url, given => Some(given.placed().clone())),
        |follow| Some(toml_text(&follow.origin.to_string()))),
    key("servers", ValueKind::List { what: "addresses" }, "",
        "Of etcd, in the place of `url`: `http://10.0.0.1:2379`, or `https://` for encrypted connections.",
        set!(servers, given => given.list().to_vec()),
        |_| None),
    key("prefix", ValueKind::Text { what: "prefix", max: 200 }, "that of `url`, \"/cattlegrid\"",
        "Of etcd: before all keys. Nodes that share it obey each other's bumps.",
        set!(prefix, given => Some(given.placed().clone())),
        |follow| follow.etcd().map(|log| toml_text(&log.place.prefix))),
    key("bump_reply", choice(&BumpReply::NAMES), "\"commit\"",
        "Of etcd: when a client's bump is answered. commit: when it is in the log, after 400 ms at most. local: when it is obeyed here. barrier: when all nodes have obeyed it, after 400 ms at most. Later than that, and while the log is lost, the reply is `CLIENT_ERROR bump not confirmed`; it is obeyed here, and by the others when the log is back.",
        set!(bump_reply, given => BumpReply::named(given.text())),
        |follow| follow.etcd().map(|log| toml_text(log.bump_reply.name()))),
    key("publication", ValueKind::Text { what: "publication", max: 63 }, "\"cattlegrid\"",
        "The publication that has the tables.",
        set!(publication, given => given.text().to_owned()),
        |follow| follow.postgres().map(|log| toml_text(&log.publication))),
    key("max_lag", ValueKind::Ms { min: MAX_LAG_MS_MIN, max: MAX_LAG_MS_MAX }, "\"3s\"",
        "How long the server may go on without having confirmed that it has obeyed all that was in the log. Beyond, it is behind.",
        set!(max_lag, given => given.duration()),
        |follow| Some(shown(follow.max_lag))),
    key("when_behind", choice(&WHEN_BEHIND), "\"refresh\"",
        "What becomes, while it is behind, of items with tags that are older than `max_lag`. refresh: one client computes, and the others get the old value for as long as `grace` says, or wait. miss: nothing older is served. serve: they are served, and it is only counted.",
        set!(when_behind, given => when_behind(given.text())),
        |follow| Some(toml_text(when_behind_name(follow.when_behind)))),
    key("again", ValueKind::Ms { min: 0, max: HOUR }, "\"0s\"",
        "Bump each tag once more after this time: for applications that compute values from replicas which lag, or within long transactions. 0: once.",
        set!(again, given => given.duration()),
        |follow| Some(shown(follow.again))),
    key("soft", ValueKind::Flag, "false",
        "Whether tags are bumped softly: the old value is served while one client computes, for as long as `grace` says.",
        set!(soft, given => given.flag()),
        |follow| Some(follow.soft.to_string())),
    key("slot", ValueKind::Text { what: "name", max: 63 }, "\"temporary\"",
        "The name of a permanent replication slot, letters, digits and `_`, which is made if it is not there. Each server needs its own, unless one follows for all (`via`). It goes on where it stopped, and keeps the database's log while the server is down (`max_slot_wal_keep_size` limits that). \"temporary\": the slot ends with the connection, and all items with tags are refreshed after each new one.",
        set!(slot, given => Some(given.placed().clone()).filter(|slot| slot.text != "temporary")),
        |follow| follow.postgres().map(|log| toml_text(log.slot.as_deref().unwrap_or("temporary")))),
    key("server_id", ValueKind::Number { unit: "", min: 1, max: 4_294_967_295 }, "a random one",
        "Of MySQL and MariaDB: the number by which the server knows its replicas; this one acknowledges nothing. Each replica needs its own: of two with the same the server keeps the later one.",
        set!(server_id, given => Some(given.number())),
        |follow| follow.mysql().and_then(|log| log.server_id).map(|number| number.to_string())),
    key("via", ValueKind::Text { what: "name of a log", max: 64 }, "",
        "Of a database, in a fleet: the name of the log of etcd by way of which it is followed. One node follows the database and writes its bumps into that log, which all nodes obey; when it is gone another node goes on from its place. Needs, of PostgreSQL, a `slot`, which the nodes share, and a `max_lag` that is not below that of the log of etcd.",
        set!(via, given => Some(given.placed().clone())),
        |follow| follow.via().map(|via| toml_text(&via.name))),
    key("password_file", ValueKind::Free { what: "path", max: 4095 }, "",
        "A file whose first line is the password. It is read for each connection. A relative path begins at the directory of the rule file.",
        set!(password_file, given => Some(given.placed().clone())),
        |follow| follow.password_file.as_ref().and_then(|path| path.to_str()).map(toml_text)),
    key("password_command", ValueKind::List { what: "a program and its arguments" }, "",
        "A program that prints the password, and its arguments. It is run for each connection, and has 10 s. For passwords that rotate.",
        set!(password_command, given => given.list().to_vec()),
        |follow| (!follow.password_command.is_empty()).then(|| list(follow.password_command.iter().map(String::as_str)))),
    key("sslmode", choice(&["disable", "prefer", "require", "verify-ca", "verify-full"]), "that of `url`, \"prefer\"",
        "Whether the connection is encrypted, and what of the server's certificate is verified, as in libpq. Of etcd \"disable\" by default, \"verify-full\" with `https://`; there is no \"prefer\".",
        set!(sslmode, given => Some(given.placed().clone())),
        |follow| Some(toml_text(match &follow.origin {
            FollowOrigin::Postgres(log) => log.address.ssl.name(),
            FollowOrigin::Mysql(log) => log.address.ssl.name(),
            FollowOrigin::Etcd(log) => log.place.ssl.name(),
        }))),
    key("ssl_ca", ValueKind::Free { what: "path", max: 4095 }, "those of the system",
        "A file in PEM with the certificates of authorities that may sign the server's, or with the server's own if it is signed by itself. With sslmode require they are verified as with verify-ca, as libpq does.",
        set!(ssl_ca, given => Some(given.placed().clone())),
        |follow| follow.ssl_ca.as_ref().and_then(|path| path.to_str()).map(toml_text)),
    key("ssl_cert", ValueKind::Free { what: "path", max: 4095 }, "",
        "Of etcd: a file in PEM with this server's own certificate, for an etcd that asks for one (`--client-cert-auth`). With `ssl_key`.",
        set!(ssl_cert, given => Some(given.placed().clone())),
        |follow| follow.ssl_own.as_ref().and_then(|(path, _)| path.to_str()).map(toml_text)),
    key("ssl_key", ValueKind::Free { what: "path", max: 4095 }, "",
        "Of etcd: a file in PEM with the key of `ssl_cert`.",
        set!(ssl_key, given => Some(given.placed().clone())),
        |follow| follow.ssl_own.as_ref().and_then(|(_, path)| path.to_str()).map(toml_text)),
    key("table", ValueKind::Any, "",
        "Of a database: the tables, see below.",
        Class::Honoured(|_, _| Ok(())),
        |_| None),
];

#[rustfmt::skip]
pub(crate) const FOLLOW_TABLE: &[TableKey<FollowTableDraft, FollowTable>] = &[
    key("table", ValueKind::Text { what: "name of a table", max: 127 }, "",
        "The table, `schema.table`. Needed. Without a schema it is in `public`; of MySQL and MariaDB the schema is a database, by default that of `url`. Capitals count, as if it were quoted; a part with a dot is written in double quotes: `app.\"a.b\"`. Of a partitioned table changes of all partitions count.",
        set!(table, given => Some(given.placed().clone())),
        |own| Some(toml_text(&own.table.full_name()))),
    key("bump", ValueKind::List { what: "tags" }, "",
        "The tags to invalidate when a row changes, 1 to 8, made of text and columns: `user:{user_id}`. Needed by a server. A row that moves from one user to another invalidates both; a tag with a column that is NULL is left out.",
        set!(bump, given => given.list().to_vec()),
        |own| (!own.table.bump.is_empty()).then(|| list(own.table.bump.iter().map(Template::text)))),
    key("delete_keys", ValueKind::List { what: "keys" }, "",
        "For `cattlegrid follow FILE --to SERVERS`, which needs it: the keys to delete on memcached servers when a row changes, 1 to 8, made of text and columns as tags are: `profile:{user_id}`. A server obeys `bump`, and refuses a table that has only keys.",
        set!(delete_keys, given => given.list().to_vec()),
        |own| (!own.delete_keys.is_empty()).then(|| list(own.delete_keys.iter().map(Template::text)))),
    key("columns", ValueKind::List { what: "names of columns" }, "any",
        "An update counts only if one of these columns changed, or one in `bump` or `delete_keys`. Of PostgreSQL it needs `REPLICA IDENTITY FULL`; without it each update counts.",
        set!(columns, given => Some(given.list().to_vec())),
        |own| own.table.columns.as_ref().map(|names| list(names.iter().map(String::as_str)))),
    key("truncate", ValueKind::List { what: "tags" }, "",
        "The tags to invalidate when the table is truncated. Without it all items with tags are invalidated.",
        set!(truncate, given => given.list().to_vec()),
        |own| (!own.table.truncate.is_empty()).then(|| list(own.table.truncate.iter().map(String::as_str)))),
    key("truncate_keys", ValueKind::List { what: "keys" }, "",
        "For `cattlegrid follow`: the keys to delete when the table is truncated. Without it, it is not known which keys changed, and `--on-gap` says what is done.",
        set!(truncate_keys, given => given.list().to_vec()),
        |own| (!own.truncate_keys.is_empty()).then(|| list(own.truncate_keys.iter().map(String::as_str)))),
    key("cascade", choice(&Cascade::NAMES), "",
        "Of MySQL and MariaDB: what is done when a foreign key with ON DELETE or ON UPDATE changes rows of this table, which the server leaves out of its log. flush: a change of the other table's row that may change rows of this one invalidates all items with tags. parent: what the other table's row invalidates is enough. Without it a table with such a key is not followed. MySQL from 9.6 on has these rows in its log.",
        set!(cascade, given => Cascade::named(given.text())),
        |own| own.table.cascade.name().map(toml_text)),
    key("prefixes", ValueKind::List { what: "prefixes" }, "all, and none",
        "Behind which of the `prefixes` of `[server]` the tags are invalidated; \"\": without one.",
        set!(prefixes, given => Some(given.list().to_vec())),
        |own| own.prefixes.as_ref().map(|all| list(all.iter().map(String::as_str)))),
];
