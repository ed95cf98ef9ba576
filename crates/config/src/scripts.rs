//! Types of objects of users' own: a directory of sources becomes the host of a registry, or is refused.
//!
//! The sources are read, checked and run by the crate `cattlegrid-scripts`, which the feature `scripts` brings. Without it a
//! directory that has any is an error.
//!
//! # Invariants
//! * Types are all that a directory has, as their sources were at one moment, or none.
//! * Sources run on a thread of their own, which has ended when they are loaded: nothing of theirs stays in the caller's.

use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_objects::{Host, Settings as Registered};

#[cfg(feature = "scripts")]
mod with;
#[cfg(not(feature = "scripts"))]
mod without;

#[cfg(feature = "scripts")]
use with as built;
#[cfg(not(feature = "scripts"))]
use without as built;

/// What methods of users' own types may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptLimits {
    /// Time of a call; 1 ms to 1 s.
    pub time: Duration,
    /// Memory of a call, in bytes; 1 MiB to 1 GiB.
    pub memory_bytes: usize,
    /// Largest state of an object, in bytes; 1 KiB to 1 MiB.
    pub state_max: usize,
}

impl Default for ScriptLimits {
    fn default() -> Self {
        Self { time: Duration::from_millis(10), memory_bytes: 16 << 20, state_max: 64 << 10 }
    }
}

/// The types of a directory, checked and ready to be called.
#[derive(Debug, Clone)]
pub struct OwnTypes {
    host: Arc<dyn Host>,
    sources: built::Sources,
    warnings: Vec<String>,
}

/// What runs alike is the same.
impl PartialEq for OwnTypes {
    fn eq(&self, other: &Self) -> bool {
        self.host.digest() == other.host.digest()
    }
}

impl Eq for OwnTypes {}

/// What a check of sources has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// In the order of the files.
    pub list: Vec<Finding>,
    /// The files that were checked.
    pub files: Vec<PathBuf>,
    /// How many of them are types; of a single file none is counted.
    pub types: usize,
    /// How many are libraries; the others are tests.
    pub libraries: usize,
}

/// Something in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The source.
    pub file: PathBuf,
    /// `FILE:LINE: TEXT`.
    pub line: String,
    /// The sources cannot be used.
    pub is_error: bool,
}

/// Tests of types that were run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tested {
    /// The names of the types.
    pub types: Vec<&'static str>,
    /// The names of the libraries, as they are required.
    pub libraries: Vec<String>,
    /// The name of each that has passed, and how much it has compared.
    pub passed: Vec<(String, usize)>,
    /// `FILE:LINE: TEXT` for each that has failed.
    pub failed: Vec<String>,
}

impl OwnTypes {
    /// The types of the directory `dir`, without their tests; None: it has no sources.
    ///
    /// # Errors
    /// What is wrong with the sources: a line for each.
    pub(crate) fn load(dir: &Path, limits: ScriptLimits) -> Result<Option<Self>, Vec<String>> {
        let loaded = apart(|| built::load(dir, limits))?;
        Ok(loaded.map(|(host, sources, warnings)| Self { host, sources, warnings }))
    }

    /// Runs the tests of the directory under these settings.
    ///
    /// # Errors
    /// A line for each test that fails.
    pub(crate) fn test(&self, settings: &Registered) -> Result<(), Vec<String>> {
        let Tested { failed, .. } = apart(|| Ok(built::test(&self.sources, settings)))?;
        if failed.is_empty() { Ok(()) } else { Err(failed) }
    }

    /// Runs the types.
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// A line for each thing that is probably a mistake.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The types' names.
    pub fn names(&self) -> Vec<&'static str> {
        self.host.types().iter().map(|one| one.object_type.name).collect()
    }

    /// The libraries' names, as sources require them.
    pub fn libraries(&self) -> Vec<String> {
        self.sources.libraries()
    }

    /// Another number when a source of `dir` has changed, by names, sizes and times. Reads the directory and its
    /// subdirectories, up to `LOOKED_AT_MAX` entries.
    pub fn look(dir: &Path) -> u64 {
        let mut files = Vec::new();
        let mut left = LOOKED_AT_MAX;
        list(dir, DEPTH_MAX, &mut left, &mut files);
        files.sort_unstable();
        let mut hasher = DefaultHasher::new();
        files.hash(&mut hasher);
        hasher.finish()
    }
}

/// Checks the sources of a directory, or one of them among the others of its directory.
///
/// # Errors
/// They cannot be read; or the program was built without scripts.
pub fn lint_types(path: &Path) -> Result<Findings, String> {
    let (dir, file) = place(path)?;
    let mut found = built::lint(&dir)?;
    if let Some(file) = file {
        if !found.files.contains(&file) {
            return Err(format!("{}: is no source of types: *.luau or *.lua", file.display()));
        }
        (found.types, found.libraries) = (0, 0);
        found.files.retain(|own| *own == file);
        found.list.retain(|own| own.file == file);
    }
    Ok(found)
}

/// Runs the tests of the types of a directory, or one file of them, with the defaults of all settings. None: it has no
/// sources.
///
/// # Errors
/// A line for each thing for which they cannot be run.
pub fn test_types(path: &Path) -> Result<Option<Tested>, Vec<String>> {
    let (dir, file) = place(path).map_err(|problem| vec![problem])?;
    let Some(own) = OwnTypes::load(&dir, ScriptLimits::default())? else { return Ok(None) };
    // The types of the directory as their sources say, in the place of shipped types too.
    let (types, libraries, mut settings) = (own.names(), own.libraries(), Registered::default());
    settings.types.retain(|shipped| !types.contains(&&*shipped.name));
    let mut sources = own.sources;
    if let Some(file) = file {
        built::keep_tests(&mut sources, &file);
    }
    let tested = apart(|| Ok(built::test(&sources, &settings)))?;
    Ok(Some(Tested { types, libraries, ..tested }))
}

/// Runs `work` on a thread of its own.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, Vec<String>> + Send) -> Result<T, Vec<String>> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("scripts".to_owned()).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| vec![format!("no thread for the sources: {error}")])?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The directory, and the file if it is one of its files.
fn place(path: &Path) -> Result<(PathBuf, Option<PathBuf>), String> {
    let cannot = |error| format!("{}: cannot be read: {error}", path.display());
    if path.metadata().map_err(cannot)?.is_dir() {
        return Ok((path.to_owned(), None));
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default();
    Ok((dir.to_owned(), Some(dir.join(name))))
}

/// Takes a key of types of users' own.
///
/// # Errors
/// The program was built without them.
pub(crate) fn with_scripts(set: impl FnOnce()) -> Result<(), String> {
    if !cfg!(feature = "scripts") {
        return Err(format!("is for types of your own; {WITHOUT}"));
    }
    set();
    Ok(())
}

/// The value of such a key; None: the program was built without them.
pub(crate) fn needs_scripts(value: String) -> Option<String> {
    cfg!(feature = "scripts").then_some(value)
}

/// Why types of users' own cannot be used.
const WITHOUT: &str = "this server was built without scripts (cargo feature `scripts`); leave it out";
/// Entries of a directory of which changes are noticed.
const LOOKED_AT_MAX: usize = 1000;
/// Directories in directories.
const DEPTH_MAX: usize = 8;

/// A file: its path, size, the times of the last changes of its data and of its inode.
type Seen = (PathBuf, u64, [i64; 4], u64);

fn list(dir: &Path, depth: usize, left: &mut usize, files: &mut Vec<Seen>) {
    let Ok(entries) = dir.read_dir() else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if *left == 0 {
            return;
        }
        *left -= 1;
        // As they are read: links to files are followed, and names that begin with a dot are left alone.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth > 0 {
                list(&path, depth - 1, left, files);
            }
        } else if is_source(&path)
            && let Ok(data) = path.metadata()
        {
            files.push(seen(path, &data));
        }
    }
}

fn seen(path: PathBuf, data: &Metadata) -> Seen {
    let times = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
    (path, data.size(), times, data.ino())
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "luau" || end == "lua")
}

#[cfg(test)]
mod tests;
