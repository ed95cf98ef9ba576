//! Built without scripts: there are no types of users' own.

use std::path::Path;

use cattlegrid_config::{NoScripts, ScriptLimits, TypeLoader};

use super::{SourceReport, TestReport, TestSettings};

/// Refuses a directory that has sources.
pub(crate) const TYPES: &dyn TypeLoader = &NoScripts;
/// The same: there are no tests.
pub(crate) const UNTESTED: &dyn TypeLoader = &NoScripts;

/// # Errors
/// Always.
pub(crate) fn lint(_path: &Path) -> Result<SourceReport, String> {
    Err("this program was built without scripts (cargo feature `scripts`)".to_owned())
}

/// None: the directory has no sources, of which there could be tests.
///
/// # Errors
/// It has sources, or cannot be read.
pub(crate) fn test(path: &Path, _given: Option<&TestSettings>) -> Result<Option<TestReport>, Vec<String>> {
    let dir = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    NoScripts.load(dir, ScriptLimits::default()).map(|_| None)
}
