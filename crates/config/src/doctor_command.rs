//! The command line of `cattlegrid doctor`: the server's options, and its own.

use std::path::PathBuf;

use crate::apply::InfoOption;
use crate::command_line::{Command, next_value, settings_of, stray_notice};
use crate::error::UsageError;
use crate::help::HelpTopic;
use crate::own_types::TypeLoader;
use crate::settings::Settings;

/// The subject of the diagnosis, and the form of the report.
#[derive(Debug, Clone)]
pub struct DoctorCommand {
    /// The settings of the server with these options.
    pub settings: Settings,
    /// Whether an option of the server or a rule file was given.
    pub has_options: bool,
    /// The process id of a running server; 1 or more.
    pub pid: Option<u32>,
    /// Whether to print a JSON object.
    pub json: bool,
    /// `-v`: whether to report correct settings too.
    pub verbose: bool,
}

/// Parses `[FILE] [--pid PID] [--json] [OPTION]...`, in any order.
pub(crate) fn parse_doctor(words: &[String], types: &'static dyn TypeLoader) -> Result<Command, UsageError> {
    let (mut pid, mut json, mut options) = (None, false, Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        // `--pid` is not an abbreviation of `--pidfile` here.
        match word.as_str() {
            "--json" => json = true,
            "--pid" => {
                let given = next_value(&mut words);
                let missing = || UsageError::new("doctor --pid: needs a value: the id of a process");
                pid = Some(parse_pid(given.ok_or_else(missing)?)?);
            }
            word if word.starts_with("--pid=") => pid = Some(parse_pid(&word["--pid=".len()..])?),
            _ => options.push(word.clone()),
        }
    }
    let mut verbose = false;
    let settings = settings_of(&options, types, |settings| {
        verbose = settings.verbosity > 0;
        take_file(settings)
    })?;
    let mut settings = match settings {
        Ok(settings) => settings,
        Err(InfoOption::Help | InfoOption::HelpAll) => return Ok(Command::Help(HelpTopic::Doctor)),
        Err(stop) => return Ok(stop.into()),
    };
    let strays = std::mem::take(&mut settings.strays);
    settings.notices.retain(|notice| strays.iter().all(|word| *notice != stray_notice(word)));
    let is_option = |word: &String| !matches!(word.as_str(), "-v" | "-vv" | "-vvv" | "--verbose");
    let has_options = options.iter().any(is_option);
    Ok(Command::Doctor(Box::new(DoctorCommand { settings, has_options, pid, json, verbose })))
}

fn parse_pid(text: &str) -> Result<u32, UsageError> {
    if text == "0" {
        return Err(UsageError::new("doctor --pid 0: no process; is the unit running?"));
    }
    let pid = text.parse().ok().filter(|pid| (1..=i32::MAX.cast_unsigned()).contains(pid));
    pid.ok_or_else(|| UsageError::new(format!("doctor --pid {text}: must be the id of a process, 1 or more")))
}

/// Takes the word that is not an option as the rule file.
fn take_file(settings: &mut Settings) -> Result<(), UsageError> {
    match (&settings.strays[..], &settings.config) {
        ([], _) => {}
        ([file], None) => settings.config = Some(PathBuf::from(file)),
        ([file], Some(_)) => {
            return Err(UsageError::new(format!(
                "doctor {file}: the rule file is named by --config already; leave one of them out"
            )));
        }
        ([_, word, ..], _) => {
            return Err(UsageError::new(format!("doctor {word}: unexpected; doctor takes one file")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::parse_args;

    fn doctor(words: &[&str]) -> Result<DoctorCommand, String> {
        match parse_args(["doctor"].iter().chain(words)) {
            Ok(Command::Doctor(command)) => Ok(*command),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn options_of_the_server_and_its_own() {
        let command = doctor(&[]).unwrap();
        assert!(command.pid.is_none() && !command.json && !command.verbose && !command.has_options);
        let command = doctor(&["-v", "--pid", "7", "--json"]).unwrap();
        assert_eq!((command.pid, command.json, command.verbose), (Some(7), true, true));
        assert!(!command.has_options);
        let command = doctor(&["--pid=8", "-m", "100", "--pidfile", "/x", "-c5000"]).unwrap();
        assert_eq!((command.pid, command.settings.memory_bytes), (Some(8), 100 << 20));
        assert_eq!((command.settings.connections_max, command.has_options), (5000, true));
    }

    #[test]
    fn the_rule_file_by_its_place_or_by_its_option() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            "[server]\nmemory_limit = \"99MiB\"\nverbose = true\n[[rule]]\nmatch = \"a\"\n",
        )
        .unwrap();
        let path = file.path().to_str().unwrap();
        for words in [&[path][..], &["-m", "98", path], &[path, "-m98"], &["--config", path, "-m", "98"]] {
            let settings = doctor(words).unwrap().settings;
            let memory = if words.len() > 1 { 98 << 20 } else { 99 << 20 };
            assert_eq!(settings.memory_bytes, memory, "{words:?}");
            assert!(settings.rule_file.is_some() && settings.notices.is_empty(), "{:?}", settings.notices);
        }
        assert!(doctor(&[path, "--config", path]).unwrap_err().contains("leave one of them out"));
        assert!(doctor(&[path, "b"]).unwrap_err().contains("doctor takes one file"));
    }

    #[test]
    fn mistakes_are_those_of_the_server() {
        for (words, part) in [
            (&["--pid"][..], "needs a value"),
            (&["--pid", "0"], "no process; is the unit running?"),
            (&["--pid=-1"], "1 or more"),
            (&["--pid", "x"], "1 or more"),
            (&["-c", "x"], "-c x"),
            (&["--nonsense"], "--nonsense: unknown option"),
            (&["/nonexistent/rules.toml"], "/nonexistent/rules.toml"),
            (&["-Y"], "-Y"),
        ] {
            let error = doctor(words).unwrap_err();
            assert!(error.contains(part), "{words:?}: {error}");
        }
        assert!(doctor(&["--help"]).unwrap_err().contains("Help(Doctor)"));
        assert!(doctor(&["-V"]).unwrap_err().contains("Version"));
    }
}
