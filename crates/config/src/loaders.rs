//! Reading of the loaders, `[loader.NAME]`.
//!
//! Directory, program and user of a loader are looked up when the file is read, so that `check` reports the
//! same errors as the start of the server.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::unistd::User;
use rustix::fs::{Access, access};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::keys::{self, LOADER_NAME_MAX, LoaderDraft};
use crate::loader::{LoaderMode, LoaderSettings};
use crate::problems::Problems;
use crate::rules::read_table;
use crate::value::TextValue;

/// The most loaders in a file.
pub(crate) const LOADERS_MAX: usize = 64;
/// The most words of a command.
const WORDS_MAX: usize = 256;
/// The most bytes of a command.
const COMMAND_BYTES_MAX: usize = 1 << 16;
/// The most environment variables that are passed on.
const ENV_MAX: usize = 256;
/// Where a program is searched if its environment has no `PATH`, as in `crates/worker`.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// The loaders of `[loader]` in the rule file at `path`, in the order of the file. Where a loader has a
/// problem it gets the default; the file is refused anyway.
pub(crate) fn read_loaders(table: &DeTable<'_>, path: &Path, problems: &mut Problems) -> Vec<LoaderSettings> {
    let mut loaders: Vec<(usize, LoaderSettings)> = Vec::new();
    for (key, value) in table {
        let (name, offset) = (&**key.get_ref(), key.span().start);
        let DeValue::Table(table) = value.get_ref() else {
            problems.add(offset, format!("loader: {name}: is no table; a loader is written [loader.NAME]"));
            continue;
        };
        if !is_name(name) {
            problems.add(
                offset,
                format!(
                    "loader {name:?}: must be a name of letters, digits, _ and -, up to {LOADER_NAME_MAX} bytes"
                ),
            );
        }
        loaders.push((offset, LoaderTable { name, offset, table }.read(path, problems)));
    }
    loaders.sort_by_key(|(offset, _)| *offset);
    if let Some((offset, _)) = loaders.get(LOADERS_MAX) {
        problems.add(*offset, format!("loader: {} of them; at most {LOADERS_MAX}", loaders.len()));
    }
    loaders.into_iter().map(|(_, loader)| loader).collect()
}

fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=LOADER_NAME_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// A `[loader.NAME]` that is being read.
struct LoaderTable<'t> {
    name: &'t str,
    offset: usize,
    table: &'t DeTable<'t>,
}

impl LoaderTable<'_> {
    fn read(&self, path: &Path, problems: &mut Problems) -> LoaderSettings {
        let settings = LoaderSettings::new(self.name, PathBuf::new());
        let mut draft =
            LoaderDraft { command: Vec::new(), load: None, dir: None, env: None, user: None, settings };
        read_table(keys::LOADER, &self.label(), self.table, &mut draft, problems);
        let LoaderDraft { command, load, dir, env, user, mut settings } = draft;
        settings.load = load.unwrap_or(if settings.mode.takes_one() { 1 } else { settings.load });
        self.check_numbers(&settings, problems);
        if let Some(env) = env {
            self.check_env(&env, problems);
            settings.env = env.into_iter().map(|name| name.text).collect();
        }
        match directory(path, dir.as_ref()) {
            Ok(dir) => settings.dir = dir,
            Err(problem) => self.report(problems, "dir", dir.as_ref(), &problem),
        }
        self.check_command(&command, &settings, problems);
        settings.command = command.into_iter().map(|word| word.text).collect();
        if let Some(user) = user {
            if let Err(problem) = look_up_user(&user.text) {
                self.report(problems, "user", Some(&user), &problem);
            }
            settings.user = Some(user.text);
        }
        self.check_init_as_root(&settings, problems);
        settings
    }

    fn label(&self) -> String {
        format!("loader {}", self.name)
    }

    /// Reports a problem of a key, at its value if it has one.
    fn report(&self, problems: &mut Problems, key: &str, value: Option<&TextValue>, problem: &str) {
        let (offset, shown) = match value {
            Some(text) => (text.offset, format!(" {:?}", text.text)),
            None => (self.offset, String::new()),
        };
        problems.add(offset, format!("{}: {key}{shown}: {problem}", self.label()));
    }

    /// Checks numbers that depend on each other.
    fn check_numbers(&self, settings: &LoaderSettings, problems: &mut Problems) {
        let LoaderSettings { mode, max, idle, load, batch, .. } = *settings;
        let mut report = |key: &str, problem: String| {
            let offset = self.table.get(key).map_or(self.offset, |value| value.span().start);
            problems.add(offset, format!("{}: {key} {problem}", self.label()));
        };
        if idle > max {
            report("idle", format!("{idle}: is above max, {max}; lower it or raise max"));
        }
        let one = format!("a worker of mode {:?} takes one job at a time; leave it out", mode.name());
        if mode.takes_one() && load > 1 {
            report("load", format!("{load}: {one}"));
        }
        if mode == LoaderMode::JsonLines && batch > 1 {
            report("batch", format!("{batch}: {one}"));
        }
    }

    fn check_init_as_root(&self, settings: &LoaderSettings, problems: &mut Problems) {
        if settings.init_as_root && (settings.user.is_none() || settings.mode != LoaderMode::Template) {
            let offset = self.table.get("init_as_root").map_or(self.offset, |value| value.span().start);
            let problem = "does nothing without user and mode \"template\"; leave it out";
            problems.add(offset, format!("{}: init_as_root: {problem}", self.label()));
        }
    }

    fn check_env(&self, env: &[TextValue], problems: &mut Problems) {
        if let Some(extra) = env.get(ENV_MAX) {
            let problem = format!("{}: env: {} of them; at most {ENV_MAX}", self.label(), env.len());
            problems.add(extra.offset, problem);
        }
        for (index, name) in env.iter().enumerate() {
            if name.text.contains('=') {
                let problem = "is more than a name; set the variable where the server is started";
                self.report(problems, "env", Some(name), problem);
            } else if name.text.is_empty()
                || name.text.contains(|c: char| c.is_whitespace() || c.is_control())
            {
                self.report(problems, "env", Some(name), "must be the name of a variable, without blanks");
            } else if env[..index].iter().any(|earlier| earlier.text == name.text) {
                self.report(problems, "env", Some(name), "is there twice");
            }
        }
    }

    fn check_command(&self, command: &[TextValue], settings: &LoaderSettings, problems: &mut Problems) {
        let Some(program) = command.first() else {
            let problem = match self.table.get("command").map(Spanned::get_ref) {
                None => "lacks command, the program and its arguments",
                Some(DeValue::Array(list)) if list.is_empty() => {
                    "command: is empty; it is the program and its arguments"
                }
                // A value of another type is reported elsewhere.
                Some(_) => return,
            };
            return problems.add(self.offset, format!("{}: {problem}", self.label()));
        };
        let bytes: usize = command.iter().map(|word| word.text.len()).sum();
        if command.len() > WORDS_MAX || bytes > COMMAND_BYTES_MAX {
            let (words, label) = (command.len(), self.label());
            let problem =
                format!("{words} words of {bytes} bytes; at most {WORDS_MAX} of {COMMAND_BYTES_MAX} bytes");
            return problems.add(program.offset, format!("{label}: command: {problem}"));
        }
        if let Some(word) = command.iter().find(|word| word.text.contains('\0')) {
            return self.report(problems, "command", Some(word), "has a NUL byte; leave it out");
        }
        if let Err(problem) = find_program(&program.text, settings) {
            self.report(problems, "command", Some(program), &problem);
        }
    }
}

/// The working directory: `dir`, relative to that of the rule file at `path`. It is absolute, since the
/// server may change to `/`.
///
/// # Errors
/// There is no such directory.
pub(crate) fn directory(path: &Path, dir: Option<&TextValue>) -> Result<PathBuf, String> {
    if dir.is_some_and(|dir| dir.text.is_empty()) {
        return Err("is empty; write \".\" for the directory of the rule file".to_owned());
    }
    let of_file = path.parent().unwrap_or(Path::new(""));
    let joined = dir.map_or_else(|| of_file.to_owned(), |dir| of_file.join(&dir.text));
    let found = if joined.as_os_str().is_empty() { env::current_dir() } else { std::path::absolute(&joined) };
    let found = found.map_err(|error| format!("{}: cannot be used: {error}", joined.display()))?;
    match found.metadata() {
        Ok(data) if data.is_dir() => Ok(found),
        Ok(_) => Err(format!("{} is no directory", found.display())),
        Err(error) => Err(format!("{} cannot be used: {error}", found.display())),
    }
}

/// Checks that the program exists, where its workers will find it: by `PATH`, or relative to their directory.
///
/// # Errors
/// There is no such program, or it cannot be executed.
fn find_program(program: &str, settings: &LoaderSettings) -> Result<(), String> {
    if program.is_empty() {
        return Err("has no name; it is the program".to_owned());
    }
    if program.contains('/') {
        // A wrong directory is reported elsewhere.
        if settings.dir.as_os_str().is_empty() && program.starts_with(|first| first != '/') {
            return Ok(());
        }
        let file = settings.dir.join(program);
        return match file.metadata() {
            Ok(data) if !data.is_file() => Err(format!("{} is no file", file.display())),
            Ok(_) if !is_executable(&file) => {
                Err(format!("{} is not executable; allow it (chmod +x)", file.display()))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{} cannot be used: {error}", file.display())),
        };
    }
    let path = settings.env.iter().any(|name| name == "PATH").then(|| env::var_os("PATH")).flatten();
    let searched = path.unwrap_or_else(|| OsString::from(PATH_DEFAULT));
    if env::split_paths(&searched).any(|dir| is_executable(&dir.join(program))) {
        return Ok(());
    }
    let fix = "write its whole path, or put its directory into PATH where the server is started";
    Err(format!("is not found in {}; {fix}", searched.display()))
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

fn look_up_user(name: &str) -> Result<(), String> {
    match User::from_name(name) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err("there is no such user; add it or leave it out".to_owned()),
        Err(error) => Err(format!("cannot be looked up: {error}")),
    }
}

#[cfg(test)]
mod tests;
