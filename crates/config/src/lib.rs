//! The configuration of the server: options of the command line, and the rule file.
//!
//! Each option and each key is a row of a table (`options.rs`, `extended.rs`, `keys.rs`) of one framework
//! (`table.rs`): its name, the kind of its value (`value.rs`), its default, its description in the reference,
//! and the field that it sets. The parsers, `--help`, `check` and `docs/configuration.md` use these tables.
//!
//! ```text
//!   command line ──▶ command_line.rs ──▶ apply.rs ──▶ Settings
//!   rule file ─────▶ read.rs ──▶ section.rs [server] ──┘
//!                            ├──▶ loaders.rs [loader.NAME] ──┐
//!                            ├──▶ objects.rs [objects] ──────┤   own_types.rs: the types of its directory
//!                            ├──▶ users.rs [[user]] ───────────┤
//!                            └──▶ rules.rs [[rule]], [[cascade]] ──▶ RuleFile
//! ```
//!
//! # Invariants
//! * Settings are plain data: they have no socket and no lock, and of the engine only its rules. The server
//!   makes its own structures of them.
//! * No script is run here: the caller supplies the loader of users' own types ([`TypeLoader`]).
//! * An invalid value is an error that names the option, the mistake and the correct form. A rule file is
//!   accepted as a whole or not at all.

mod advise_command;
mod apply;
mod changes;
mod check;
mod command_line;
mod doctor_command;
mod error;
mod extended;
mod file;
mod file_option;
mod follow;
mod follow_command;
mod follow_keys;
mod follows;
mod help;
mod hints;
mod keys;
mod listen_address;
mod loader;
mod loaders;
mod loading;
mod moment;
mod named_files;
mod object_keys;
mod objects;
mod objects_command;
mod option_row;
mod options;
mod options_file;
mod origins;
mod own_types;
mod places;
mod problems;
mod protection;
mod protocol;
mod read;
mod reference;
mod rule_file;
mod rules;
mod section;
mod settings;
mod shares;
mod table;
mod toml_value;
mod top_command;
mod trial;
mod usage;
mod users;
mod value;

pub use advise_command::{AdviseCommand, AdviseLogin, AdviseTls};
pub use check::{check, explain, parameters};
pub use command_line::{Command, parse_args, parse_args_with};
pub use doctor_command::DoctorCommand;
pub use error::{ConfigError, UsageError};
pub use file::{open_file, read_file};
pub use follow::{
    BumpReply, EtcdLog, FollowOrigin, FollowSettings, FollowTable, FollowVia, MysqlLog, PostgresLog,
};
pub use follow_command::{Distribution, FollowCommand, MemcachedAddress, MemcachedServer, OnGap};
pub use help::HelpTopic;
pub use listen_address::{Host, ListenAddress, TcpPort};
pub use loader::{LoaderMode, LoaderSettings};
pub use moment::{MOMENT_MAX_MS, parse_moment, parse_step, show_moment};
pub use named_files::NamedFile;
pub use objects::Objects;
pub use objects_command::{CallStep, ObjectsCommand, TypeSelection};
pub use own_types::{NoScripts, OwnTypes, ScriptLimits, TypeLoader, TypeTests};
pub use problems::nearest;
pub use protection::Protection;
pub use protocol::Protocol;
pub use read::{FILE_BYTES_MAX, RULES_MAX};
pub use reference::{AS_MEMCACHED, license, reference_markdown, version};
pub use rule_file::RuleFile;
pub use settings::{KeyFormat, LogFormat, Privileges, Settings, TlsSettings, TlsVersion, VerifyMode};
pub use shares::{SHARES_MAX, ShareSettings};
pub use top_command::{TOP_VIEWS, TopCommand};
pub use trial::LoaderTrial;
pub use usage::{OptionStatus, OptionUsage, SUBCOMMANDS, option_usages};
pub use users::UserSettings;
