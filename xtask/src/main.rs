//! What a developer runs besides cargo: `cargo xtask test`, `cargo xtask docs` and `cargo xtask words`.

#[cfg(feature = "documents")]
mod docs;
#[cfg(not(feature = "documents"))]
mod docs {
    //! The documents are written from the server's code, which this program is compiled without: the tests start
    //! sooner so. Another one is compiled with it.

    use std::process::Command;

    pub(crate) fn write() -> Result<(), String> {
        again(&["docs"])
    }

    pub(crate) fn check() -> Result<(), String> {
        again(&["docs", "--check"])
    }

    fn again(options: &[&str]) -> Result<(), String> {
        let mut cargo = Command::new("cargo");
        cargo.args(["run", "--quiet", "--locked", "--package", "xtask", "--features", "documents", "--"]);
        let status = cargo.args(options).current_dir(crate::root()).status();
        let status = status.map_err(|error| format!("cargo: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("with the feature documents: {status}")) }
    }
}
mod test;
mod words;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <command>
  test [--stage NAME]... [--list]   install what the tests need and run them all, or only these stages
  docs [--check]                    write the generated documents, or say which are not current
  words [PATH]...                   find phrases that are hard to read, in all tracked text or only there";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["docs"] => docs::write(),
        ["docs", "--check"] => docs::check(),
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

/// The root of the repository.
fn root() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/..")
}
