//! The source files in a directory of types.
//!
//! ```text
//!   quota.luau          the type quota; `.lua` is accepted
//!   lib/window.luau     require("lib/window"): all files of folders are libraries
//!   quota.test.luau     tests
//! ```
//! Other files, and all whose names begin with a dot, are skipped. Links to files are followed, so that a
//! directory may consist of links into another one, as in Kubernetes. Links to folders are not followed.
//!
//! # Invariants
//! * A source is valid UTF-8, and ASCII outside of strings and comments. Other blanks and quotes, which are
//!   common in texts from web pages, are reported with their lines and the right characters.

mod characters;

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::problem::{Problem, Severity};

/// The most files.
pub const FILES_MAX: usize = 200;
/// The longest file, in bytes.
pub const FILE_MAX: usize = 1 << 20;
/// The most levels of folders.
const FOLDERS_MAX: usize = 8;
/// The longest name of a type, in bytes.
const TYPE_NAME_MAX: usize = 16;

/// A source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The name of the type, of the library (`lib/window`), or, for tests, the name before `.test`.
    pub name: String,
    /// The path.
    pub path: PathBuf,
    /// The text.
    pub text: String,
}

/// The source files of a directory; each list is in the order of names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sources {
    /// Types.
    pub types: Vec<SourceFile>,
    /// Libraries.
    pub libraries: Vec<SourceFile>,
    /// Tests.
    pub tests: Vec<SourceFile>,
}

impl Sources {
    /// Reads a directory: at most [`FILES_MAX`] files of at most [`FILE_MAX`] bytes.
    ///
    /// # Errors
    /// All problems with the files.
    pub fn read(dir: &Path) -> Result<Self, Vec<Problem>> {
        let (sources, problems) = Self::read_all(dir);
        if problems.is_empty() { Ok(sources) } else { Err(problems) }
    }

    /// Reads a directory as far as that can be done: the sources without a problem, and all problems with the
    /// others.
    pub fn read_valid(dir: &Path) -> (Self, Vec<Problem>) {
        let (mut sources, problems) = Self::read_all(dir);
        for list in [&mut sources.types, &mut sources.libraries, &mut sources.tests] {
            list.retain(|source| problems.iter().all(|problem| problem.file != source.path));
        }
        (sources, problems)
    }

    fn read_all(dir: &Path) -> (Self, Vec<Problem>) {
        let mut reader = DirectoryReader { sources: Self::default(), files: 0, problems: Vec::new() };
        reader.folder(dir, "", 0);
        let DirectoryReader { mut sources, files, mut problems } = reader;
        if files > FILES_MAX {
            problems.push(problem(
                dir,
                None,
                format!("has {files} files of Luau, at most {FILES_MAX} are read"),
            ));
        }
        for list in [&mut sources.types, &mut sources.libraries, &mut sources.tests] {
            list.sort_by(|one, other| (&one.name, &one.path).cmp(&(&other.name, &other.path)));
            for pair in list.windows(2).filter(|pair| pair[0].name == pair[1].name) {
                let other = pair[0].path.display();
                problems.push(problem(
                    &pair[1].path,
                    None,
                    format!("{other} has the same name: remove one of them"),
                ));
            }
        }
        (sources, problems)
    }

    /// A number that changes with the names and texts.
    pub fn digest(&self) -> u64 {
        let mut all = Vec::new();
        for (kind, list) in [&self.types, &self.libraries, &self.tests].into_iter().enumerate() {
            for source in list {
                all.push(kind as u8);
                for part in [&source.name, &source.text] {
                    all.extend_from_slice(&(part.len() as u64).to_le_bytes());
                    all.extend_from_slice(part.as_bytes());
                }
            }
        }
        rapidhash::v3::rapidhash_v3(&all)
    }
}

struct DirectoryReader {
    sources: Sources,
    files: usize,
    problems: Vec<Problem>,
}

impl DirectoryReader {
    /// Reads a folder. `prefix`: its path in the directory, such as `lib/`.
    fn folder(&mut self, folder: &Path, prefix: &str, depth: usize) {
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.wrong(folder, format!("cannot be read: {error}")),
        };
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                if is_luau(&path) {
                    self.wrong(&path, "the file's name is not UTF-8: rename it".to_owned());
                }
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            match entry.file_type() {
                Err(error) => self.wrong(&path, format!("cannot be read: {error}")),
                Ok(kind) if kind.is_dir() && depth == FOLDERS_MAX => {
                    self.wrong(&path, format!("more than {FOLDERS_MAX} folders within each other"));
                }
                Ok(kind) if kind.is_dir() => self.folder(&path, &format!("{prefix}{name}/"), depth + 1),
                Ok(kind) if kind.is_symlink() && path.is_dir() => {
                    self.wrong(&path, "a link to a folder: put a folder in its place".to_owned());
                }
                Ok(_) if is_luau(&path) => self.file(path, prefix, &name),
                Ok(_) => {}
            }
        }
    }

    fn file(&mut self, path: PathBuf, prefix: &str, name: &str) {
        self.files += 1;
        if self.files > FILES_MAX {
            return;
        }
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        let tested = stem.strip_suffix(".test");
        let name = format!("{prefix}{}", tested.unwrap_or(stem));
        let is_type = tested.is_none() && prefix.is_empty();
        if is_type && !is_type_name(&name) {
            let text = format!(
                "a type's name is 1 to {TYPE_NAME_MAX} of a-z, 0-9 and _, first a letter: rename the file"
            );
            return self.wrong(&path, text);
        }
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'/')) {
            return self.wrong(&path, "a name is made of letters, digits, _ and -: rename it".to_owned());
        }
        let text = match read(&path) {
            Ok(text) => text,
            Err(text) => return self.wrong(&path, text),
        };
        let text = match String::from_utf8(text) {
            Ok(text) => text,
            Err(error) => {
                let line = line_of(error.as_bytes(), error.utf8_error().valid_up_to());
                let text = "not UTF-8: save the file as UTF-8, and write other bytes of strings as \\xNN";
                self.problems.push(problem(&path, Some(line), text.to_owned()));
                return;
            }
        };
        let found = characters::check(&text);
        self.problems.extend(found.into_iter().map(|(line, text)| problem(&path, Some(line), text)));
        let list = match (tested, is_type) {
            (Some(_), _) => &mut self.sources.tests,
            (None, true) => &mut self.sources.types,
            (None, false) => &mut self.sources.libraries,
        };
        list.push(SourceFile { name, path, text });
    }

    fn wrong(&mut self, path: &Path, text: String) {
        self.problems.push(problem(path, None, text));
    }
}

fn problem(file: &Path, line: Option<usize>, text: String) -> Problem {
    Problem { file: file.to_owned(), line, severity: Severity::Error, text }
}

fn is_luau(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "luau" || extension == "lua")
}

fn is_type_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.len() <= TYPE_NAME_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(is_part)
}

fn line_of(text: &[u8], at: usize) -> usize {
    text[..at].split(|byte| *byte == b'\n').count()
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: std::io::Error| format!("cannot be read: {error}");
    // The type of the file is checked before it is opened: opening a pipe would wait for its writer.
    if !fs::metadata(path).map_err(cannot)?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(cannot)?;
    file.take(FILE_MAX as u64 + 1).read_to_end(&mut text).map_err(cannot)?;
    if text.len() > FILE_MAX { Err(format!("is longer than {FILE_MAX} bytes")) } else { Ok(text) }
}
