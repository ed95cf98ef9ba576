//! Types of objects of users' own: what the feature `scripts` brings for the options and for `cattlegrid
//! objects`.
//!
//! The crate `cattlegrid-config` asks the loader [`TYPES`] for the types of a directory. With the feature it
//! is the crate `cattlegrid-scripts` that reads, checks and runs the sources; without it a directory that has
//! any is refused.

use std::path::PathBuf;

use cattlegrid_config::ScriptLimits;
use cattlegrid_objects::Settings;

#[cfg(feature = "scripts")]
mod luau;
#[cfg(not(feature = "scripts"))]
mod none;

#[cfg(feature = "scripts")]
pub(crate) use luau::{TYPES, UNTESTED, lint, test};
#[cfg(not(feature = "scripts"))]
pub(crate) use none::{TYPES, UNTESTED, lint, test};

/// The result of a check of sources.
#[derive(Debug, Default)]
pub(crate) struct SourceReport {
    /// In the order of the files.
    pub(crate) list: Vec<SourceProblem>,
    /// The files that were checked.
    pub(crate) files: Vec<PathBuf>,
    /// How many of them are types; of a single file none is counted.
    pub(crate) types: usize,
    /// How many are libraries; the others are tests.
    pub(crate) libraries: usize,
}

/// Something in a source.
#[derive(Debug)]
pub(crate) struct SourceProblem {
    /// The source.
    #[cfg_attr(not(feature = "scripts"), expect(dead_code, reason = "without scripts there are no sources"))]
    pub(crate) file: PathBuf,
    /// `FILE:LINE: TEXT`.
    pub(crate) line: String,
    /// The sources cannot be used.
    pub(crate) is_error: bool,
}

/// The settings under which tests of types are run, from a rule file.
#[derive(Debug)]
#[cfg_attr(not(feature = "scripts"), expect(dead_code, reason = "without scripts there are no tests"))]
pub(crate) struct TestSettings {
    /// `[objects]`.
    pub(crate) objects: Settings,
    /// What control keys begin with; empty: there are none.
    pub(crate) control: String,
    /// The limits of methods.
    pub(crate) limits: ScriptLimits,
}

/// Tests of types that were run.
#[derive(Debug)]
pub(crate) struct TestReport {
    /// The names of the types.
    pub(crate) types: Vec<&'static str>,
    /// The names of the libraries, as they are required.
    pub(crate) libraries: Vec<String>,
    /// The name of each that has passed, and how much it has compared.
    pub(crate) passed: Vec<(String, usize)>,
    /// `FILE:LINE: TEXT` for each that has failed.
    pub(crate) failed: Vec<String>,
}

#[cfg(all(test, feature = "scripts"))]
mod tests;
