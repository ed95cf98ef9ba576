//! Commands for developers besides cargo's: see [`XtaskCommand`].

#[cfg(feature = "documents")]
mod docs;
#[cfg(not(feature = "documents"))]
mod docs {
    //! The documents are written from the server's code, which this program is compiled without: the tests
    //! start sooner so. Another one is compiled with it.

    pub(crate) fn write() -> Result<(), String> {
        again(&["docs"])
    }

    pub(crate) fn check() -> Result<(), String> {
        again(&["docs", "--check"])
    }

    fn again(options: &[&str]) -> Result<(), String> {
        let mut cargo = crate::command("cargo");
        cargo.args(["run", "--quiet", "--locked", "--package", "xtask", "--features", "documents", "--"]);
        crate::processes::succeed(cargo.args(options), "with the feature documents")
    }
}
#[cfg(test)]
mod architecture;
mod disturb;
mod fuzz;
mod package;
mod processes;
mod quick;
mod release;
mod site;
mod test;
mod words;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;

/// Commands for developers besides cargo's
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", max_term_width = 120)]
enum XtaskCommand {
    /// After an edit: layout, lints and tests of crates and of those that depend on them
    Quick {
        /// Names of crates, with or without `cattlegrid-`, or paths in them; without any, the crates that git finds
        /// changed since the last commit
        #[arg(value_name = "CRATE")]
        crates: Vec<String>,
    },
    /// Install what the tests need and run them all
    Test(test::TestOptions),
    /// Random input for a target of `fuzz/`, until it fails
    Fuzz {
        /// The name of a file of `fuzz/fuzz_targets`; a wrong one lists them
        #[arg(value_parser = fuzz::target)]
        target: String,
        /// Options of `libFuzzer`, and files that are its input
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
        options: Vec<String>,
    },
    /// Run a command while its processes are stopped and slowed at random
    Disturb(disturb::DisturbOptions),
    /// Write the generated documents
    Docs {
        /// Write nothing; say which are not current
        #[arg(long)]
        check: bool,
    },
    /// Build the documentation as a site in target/site and check all links
    Site,
    /// Find phrases that are hard to read
    Words {
        /// Tracked files or folders; all without any
        #[arg(value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Make a package in target/package
    #[command(subcommand)]
    Package(package::PackageKind),
    /// Build the optimised program, its symbols in a file beside it
    Release,
}

fn main() -> ExitCode {
    let command = XtaskCommand::parse();
    if let Err(message) = verify_clone() {
        eprintln!("xtask: {message}");
        return ExitCode::FAILURE;
    }
    let done = match command {
        XtaskCommand::Quick { crates } => quick::quick(&crates),
        XtaskCommand::Fuzz { target, options } => fuzz::fuzz(&target, &options),
        XtaskCommand::Disturb(options) => disturb::disturb(&options),
        XtaskCommand::Package(kind) => package::package(&kind),
        XtaskCommand::Release => release::release(),
        XtaskCommand::Docs { check: false } => docs::write(),
        XtaskCommand::Docs { check: true } => docs::check(),
        XtaskCommand::Site => site::build(),
        XtaskCommand::Words { paths } => words::check(&paths),
        // It has said what failed.
        XtaskCommand::Test(options) => match test::test(&options) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Cargo says at run time, too, where this program's sources are. With one target folder for several clones it runs the
/// program of another one.
fn verify_clone() -> Result<(), String> {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(called) = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from) else { return Ok(()) };
    if compiled.canonicalize().ok() == called.canonicalize().ok() {
        return Ok(());
    }
    Err(format!(
        "compiled for {}, and called in {}: unset CARGO_TARGET_DIR, which several clones share, or touch xtask/src/main.rs",
        compiled.display(),
        called.display()
    ))
}

/// A command in the root of the repository, with no input. Without what `cargo run` has told this program:
/// build scripts that look at `CARGO_MANIFEST_DIR` or `CARGO_PKG_NAME` would be run again, and what depends
/// on them be compiled again. And without another target folder than `target`, where tests and stages look for
/// programs.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    command.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_BUILD_TARGET_DIR");
    let told = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in told.filter(|name| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_")) {
        command.env_remove(name);
    }
    command
}

/// A path that exists, relative to the current directory, as one from the root of the repository; None: it is outside.
fn from_root(path: &str) -> Option<PathBuf> {
    let path = Path::new(path).canonicalize().ok()?;
    Some(path.strip_prefix(Path::new(root()).canonicalize().ok()?).ok()?.to_owned())
}

/// The root of the repository.
fn root() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/..")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_commands_are_consistent() {
        super::XtaskCommand::command().debug_assert();
    }
}
