//! Users' own types of objects. The caller supplies the code that loads and runs their sources.
//!
//! This module is independent of the language. A [`TypeLoader`] turns a directory into the types for the
//! registry, or reports mistakes. [`NoScripts`] is the loader of a program without scripts, for which a
//! directory with scripts is an error.
//!
//! # Invariants
//! * The types of a directory are complete, and from one moment; otherwise there are none.

use std::fmt::Debug;
use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_objects::{Host, Settings as Registered};

/// Loads users' own types of objects.
pub trait TypeLoader: Debug + Sync {
    /// The types in the directory `dir`, before their tests are run; None: it has no sources.
    ///
    /// # Errors
    /// A line for each mistake in the sources.
    fn load(&self, dir: &Path, limits: ScriptLimits) -> Result<Option<OwnTypes>, Vec<String>>;

    /// Whether this program supports users' own types. Otherwise keys of a rule file for them are refused.
    fn has_scripts(&self) -> bool {
        true
    }
}

/// The tests of users' own types.
pub trait TypeTests: Debug + Send + Sync {
    /// Runs the tests under these settings, of which `result_max` is the longest item. `control`: what
    /// control keys begin with; empty: there are none.
    ///
    /// # Errors
    /// A line for each test that fails.
    fn run(&self, settings: &Registered, control: &str) -> Result<(), Vec<String>>;
}

/// Limits of the methods of users' own types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptLimits {
    /// The longest processor time of a call; 1 ms to 1 s.
    pub time: Duration,
    /// The most memory of a call, in bytes; 1 MiB to 1 GiB.
    pub memory_bytes: usize,
    /// The largest state of an object, in bytes; 1 KiB to 1 MiB.
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
    /// The host that runs the types.
    pub host: Arc<dyn Host>,
    /// The names of the libraries, as sources require them.
    pub libraries: Vec<String>,
    /// Warnings, a line each.
    pub warnings: Vec<String>,
    /// The tests of the directory.
    pub tests: Arc<dyn TypeTests>,
}

/// Types with the same digest are equal, since they run alike.
impl PartialEq for OwnTypes {
    fn eq(&self, other: &Self) -> bool {
        self.host.digest() == other.host.digest()
    }
}

impl Eq for OwnTypes {}

impl OwnTypes {
    /// The names of the types.
    pub fn names(&self) -> Vec<&'static str> {
        self.host.types().iter().map(|one| one.object_type.name).collect()
    }

    /// A digest of the names, sizes and times of the files in `dir` and its subdirectories, up to
    /// `LOOKED_AT_MAX` entries. It changes with the sources.
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

/// The loader of a program without scripts, which refuses a directory with scripts.
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

/// Why this program cannot use users' own types.
pub(crate) const WITHOUT: &str =
    "this server was built without scripts (cargo feature `scripts`); leave it out";
/// The most entries of a directory that are checked for changes.
const LOOKED_AT_MAX: usize = 1000;
/// The most levels of directories.
const DEPTH_MAX: usize = 8;

/// The state of a file: path, size, the times of the last changes of its data and of its inode.
type FileStamp = (PathBuf, u64, [i64; 4], u64);

fn list(dir: &Path, depth: usize, left: &mut usize, files: &mut Vec<FileStamp>) {
    let Ok(entries) = dir.read_dir() else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if *left == 0 {
            return;
        }
        *left -= 1;
        // The same entries as when sources are read: links to files are followed, and names that begin with a
        // dot are skipped.
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
