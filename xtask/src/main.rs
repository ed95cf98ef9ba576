//! Commands for developers besides cargo's: see [`USAGE`].

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
        let status = cargo.args(options).status();
        let status = status.map_err(|error| format!("cargo: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("with the feature documents: {status}")) }
    }
}
#[cfg(test)]
mod architecture;
mod disturb;
mod fuzz;
mod package;
mod quick;
mod release;
mod site;
mod test;
mod words;

use std::process::{Command, ExitCode, Stdio};

const USAGE: &str = "usage: cargo xtask <command>
  quick [CRATE]...                  after an edit: layout, lints and tests of these crates and of those that depend on them;
                                    without a name, of the crates that git finds changed
  test [--stage NAME]... [--list]   install what the tests need and run them all, or only these stages
  fuzz TARGET [OPTION]...           random input for a target of fuzz/, with options of libFuzzer
  disturb [OPTION]... COMMAND...    run a command while processes of it are stopped and slowed at random
  docs [--check]                    write the generated documents, or say which are not current
  site                              build the documentation as a site in target/site and check all links
  words [PATH]...                   find phrases that are hard to read, in all tracked text or only there
  package WHAT [OPTION]...         deb, musl, crates or sbom, in target/package
  release                           build the optimised program, its symbols in a file beside it";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["quick", ref names @ ..] => quick::quick(names),
        ["fuzz", ref words @ ..] => fuzz::fuzz(words),
        ["disturb", ref words @ ..] => disturb::disturb(words),
        ["package", ref words @ ..] => package::package(words),
        ["release"] => release::release(),
        ["docs"] => docs::write(),
        ["docs", "--check"] => docs::check(),
        ["site"] => site::build(),
        ["words", ref paths @ ..] => words::check(paths),
        ["test", ref options @ ..] => test::test(options),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// A command in the root of the repository, with no input and without what `cargo run` has told this program:
/// build scripts that look at `CARGO_MANIFEST_DIR` or `CARGO_PKG_NAME` would be run again, and what depends
/// on them be compiled again.
fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null()).env_remove("CARGO_TARGET_DIR");
    let told = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in told.filter(|name| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_")) {
        command.env_remove(name);
    }
    command
}

/// The root of the repository.
fn root() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/..")
}
