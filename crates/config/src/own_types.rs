//! Types of objects of users' own: what loads and runs their sources is given by the caller.
//!
//! Nothing here knows a language: a [`TypeLoader`] makes of a directory what the registry needs of its types, or says what is
//! wrong with it. [`NoScripts`] is that of a program without scripts, for which a directory that has any is an error.
//!
//! # Invariants
//! * Types are all that a directory has, as their sources were at one moment, or none.

use std::fmt::Debug;
use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_objects::{Host, Settings as Registered};

/// Loads types of objects of users' own.
pub trait TypeLoader: Debug + Sync {
    /// The types of the directory `dir`, without their tests; None: it has no sources.
    ///
    /// # Errors
    /// What is wrong with the sources: a line for each.
    fn load(&self, dir: &Path, limits: ScriptLimits) -> Result<Option<OwnTypes>, Vec<String>>;

    /// Whether there can be types of users' own. Keys of a rule file that are for them are refused otherwise.
    fn has_scripts(&self) -> bool {
        true
    }
}

/// Tests of types of users' own.
pub trait TypeTests: Debug + Send + Sync {
    /// Runs them under these settings.
    ///
    /// # Errors
    /// A line for each test that fails.
    fn run(&self, settings: &Registered) -> Result<(), Vec<String>>;
}

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
    /// Runs the types.
    pub host: Arc<dyn Host>,
    /// The names of the libraries, as sources require them.
    pub libraries: Vec<String>,
    /// A line for each thing that is probably a mistake.
    pub warnings: Vec<String>,
    /// The tests of the directory.
    pub tests: Arc<dyn TypeTests>,
}

/// What runs alike is the same.
impl PartialEq for OwnTypes {
    fn eq(&self, other: &Self) -> bool {
        self.host.digest() == other.host.digest()
    }
}

impl Eq for OwnTypes {}

impl OwnTypes {
    /// The types' names.
    pub fn names(&self) -> Vec<&'static str> {
        self.host.types().iter().map(|one| one.object_type.name).collect()
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

/// Of a program without scripts: a directory that has any is refused.
#[derive(Debug, Clone, Copy)]
pub struct NoScripts;

impl TypeLoader for NoScripts {
    fn load(&self, dir: &Path, _limits: ScriptLimits) -> Result<Option<OwnTypes>, Vec<String>> {
        let cannot = |error| vec![format!("{} cannot be read: {error}", dir.display())];
        for entry in dir.read_dir().map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            if is_source(&path) {
                let name = path.file_name().unwrap_or_default().display();
                return Err(vec![format!("has {name}, a type of your own; {WITHOUT}")]);
            }
        }
        Ok(None)
    }

    fn has_scripts(&self) -> bool {
        false
    }
}

/// Why types of users' own cannot be used.
pub(crate) const WITHOUT: &str =
    "this server was built without scripts (cargo feature `scripts`); leave it out";
/// Entries of a directory of which changes are noticed.
const LOOKED_AT_MAX: usize = 1000;
/// Directories in directories.
const DEPTH_MAX: usize = 8;

/// A file: its path, size, the times of the last changes of its data and of its inode.
type FileStamp = (PathBuf, u64, [i64; 4], u64);

fn list(dir: &Path, depth: usize, left: &mut usize, files: &mut Vec<FileStamp>) {
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

fn seen(path: PathBuf, data: &Metadata) -> FileStamp {
    let times = [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()];
    (path, data.size(), times, data.ino())
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "luau" || end == "lua")
}

#[cfg(test)]
mod tests;
