//! `cattlegrid doctor`: what to change on this machine, before the server is started or while it runs.
//!
//! `machine.rs` reads what the system says; the other files judge it, and the settings. It only reads: files,
//! `/proc` and `/sys`, and `stats` of a server that runs. Nothing waits longer than a few seconds.
//!
//! # Invariants
//! * Nothing is changed. An address is bound for a moment, as the server binds it, and nothing listens there.
//! * What cannot be seen is said, and how it can be.

mod certificates;
mod files;
mod finding;
mod kernel;
mod limits;
mod live;
mod machine;
mod network;
mod running;

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use cattlegrid_config::{self as config, Command, DoctorCommand, FollowSettings, Settings};
use cattlegrid_server::time;

use finding::Findings;
use limits::Needs;
use live::{Endpoint, RunningServer, StatsAnswer};
use machine::{Machine, SystemFiles};

/// For how long a database that is followed may take.
const DATABASE: Duration = Duration::from_secs(5);

/// The text to print, and whether it reports no problem.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    pub(crate) text: String,
    pub(crate) is_good: bool,
}

/// Judges the settings, and the server that runs with them if there is one.
///
/// # Errors
/// There is no process of this id, or it is another program.
pub(crate) fn run(command: DoctorCommand) -> Result<Diagnosis, String> {
    let files = SystemFiles::at(Path::new("/"));
    let mut to = Findings::default();
    let DoctorCommand { mut settings, has_options, pid, json, verbose } = command;
    if let Some(pid) = pid {
        let Some((words, dir)) = machine::command_line(&files, pid) else {
            return Err(format!("--pid {pid}: there is no such process"));
        };
        if !machine::is_program(&files, pid, &["cattlegrid"]) && !live::answers(&files, pid) {
            let name = machine::program_of(&files, pid).unwrap_or_default();
            return Err(format!("--pid {pid}: this process is {name}, and not Cattlegrid"));
        }
        if !has_options {
            settings = settings_of(pid, words, dir.as_deref(), settings, &mut to);
        }
    }
    let (live, answers) = live::find(&settings, pid, &files, &mut to);
    let pid = live.as_ref().and_then(|live| live.pid);
    let mut machine = Machine::read(&files, pid);
    if live.is_some() && pid.is_none() {
        // What was read is of this process.
        machine.process.resident = None;
        machine.process.uid = None;
    }
    judge(&settings, &files, &machine, (live.as_ref(), &answers), &mut to);
    let about = match (&live, pid) {
        (Some(_), Some(pid)) => format!("the server that runs, process {pid}"),
        (Some(_), None) => "the server that runs".to_owned(),
        (None, _) => "the server, if it is started here".to_owned(),
    };
    let text = if json { to.json(&about) } else { to.text(&about, verbose) };
    Ok(Diagnosis { text, is_good: to.is_good() })
}

/// The settings of a running server by its command line.
fn settings_of(
    pid: u32,
    words: Vec<String>,
    dir: Option<&Path>,
    otherwise: Settings,
    to: &mut Findings,
) -> Settings {
    // Its paths may be relative.
    let moved = dir.is_some_and(|dir| std::env::set_current_dir(dir).is_ok());
    if !moved {
        to.unseen("working directory", format!("that of process {pid}; run this as root or as its user"));
    }
    match config::parse_args_with(words, crate::own_types::TYPES) {
        Ok(Command::Serve(settings)) => *settings,
        Ok(_) => {
            to.unseen(
                "options",
                format!("process {pid} is no server of Cattlegrid; it is judged as one without options"),
            );
            otherwise
        }
        // A daemon (-d) has moved there since it read its paths.
        Err(error) if dir == Some(Path::new("/")) && to_relative_file(&error.to_string()) => {
            let how = format!(
                "those of process {pid} name a file by a relative path; give them, where it was started ({error})"
            );
            to.unseen("options", how);
            otherwise
        }
        Err(error) => {
            to.problem(
                "options",
                format!("process {pid} has options or a file that are wrong now: {error}"),
                "It could not be started again with them, and SIGHUP changes nothing.",
                "correct the file; without it the server is judged as one without options",
            );
            otherwise
        }
    }
}

/// Whether a message begins with a path that is not absolute.
fn to_relative_file(message: &str) -> bool {
    !message.starts_with(['/', '-']) && message.contains("No such file")
}

fn judge(
    settings: &Settings,
    files: &SystemFiles,
    machine: &Machine,
    (live, answers): (Option<&RunningServer>, &[(Endpoint, StatsAnswer)]),
    to: &mut Findings,
) {
    let stats = live.and_then(|live| live.stats.as_ref());
    let needs = Needs::of(settings);
    // `cache_memlimit`, or other options than these.
    let needs = match stats.map(running::memory_limit) {
        Some(limit) if limit > 0 => needs.with_items(limit),
        _ => needs,
    };
    let running = live.is_some_and(|live| live.pid.is_some());
    let own = live.map(|live| live.pid.unwrap_or(0));
    // The limits of a process that cannot be seen are not those of this one.
    if running || live.is_none() {
        limits::judge(&needs, machine, running, to);
    }
    if live.is_none()
        && let Err(error) = cattlegrid_server::sys::fit_address_space(settings.memory_bytes, settings.threads)
    {
        to.problem(
            "address space",
            error.to_string(),
            "The server does not start.",
            "`ulimit -v unlimited` in the shell that starts it",
        );
    }
    kernel::judge(settings, machine, clock_nanos(), running, to);
    network::judge_ports(settings, files, own, answers, to);
    network::judge_unix(settings, live.is_some(), to);
    network::judge_exposure(settings, to);
    files::judge(settings, machine.process.uid.filter(|_| running), to);
    users(settings, to);
    let now = unix_time().cast_signed();
    certificates::judge(settings, now, to);
    if let Some(address) = live.and_then(|live| live.addresses.first()) {
        certificates::judge_served(settings, network::reachable(*address), now, to);
    }
    rules(settings, to);
    followed(settings.follows(), to);
    if let Some(stats) = stats {
        running::judge(stats, settings, machine, unix_time(), needs.memory, to);
    }
}

/// The time of a read of the clock in nanoseconds: the least of several measurements, because other work on
/// the machine disturbs some.
fn clock_nanos() -> u64 {
    const READS: u64 = 100;
    let look = |_| {
        let begun = time::nanos();
        let mut last = begun;
        for _ in 0..READS {
            last = std::hint::black_box(time::nanos());
        }
        (last - begun) / READS
    };
    (0..20).map(look).min().unwrap_or(0)
}

fn unix_time() -> u64 {
    time::unix_now().as_secs()
}

/// The file of users.
fn users(settings: &Settings, to: &mut Findings) {
    use cattlegrid_server::auth::AuthFile;
    let pwdb = std::env::var_os("MEMCACHED_SASL_PWDB");
    if settings.auth_file.as_ref().is_some_and(|path| config::open_file(path).is_err()) {
        return;
    }
    match AuthFile::of_settings(settings, pwdb) {
        Ok(None) => {}
        Ok(Some(_)) => to.passed("users", "the file of users can be used"),
        Err(error) => {
            to.problem(
                "users",
                error.to_string(),
                "The server does not start.",
                "a file with a line user:password for each user",
            );
        }
    }
}

/// Adds the warnings about rules that the server itself would log.
fn rules(settings: &Settings, to: &mut Findings) {
    for notice in settings.notices.iter().chain(&settings.warnings) {
        let mend = match &settings.rule_file {
            Some(file) => {
                format!("correct it; `cattlegrid check {}` shows what the file means", file.path.display())
            }
            None => "leave the option out".to_owned(),
        };
        to.advice("settings", notice.clone(), "What was meant has no effect, or another one.", mend);
    }
    if let Some(file) = &settings.rule_file {
        match file.warns_of_no_rules() {
            Some(warning) if settings.objects.is_none() => {
                to.passed("rule file", warning);
            }
            _ => {
                to.passed(
                    "rule file",
                    format!("{}: {} rules", file.path.display(), file.rules.rules().len()),
                );
            }
        }
    }
}

/// Asks all databases at the same time, each for [`DATABASE`] at most.
fn followed(logs: &[FollowSettings], to: &mut Findings) {
    let name = "followed log";
    let (sender, receiver) = mpsc::channel();
    for (number, log) in logs.iter().enumerate() {
        let (sender, log) = (sender.clone(), log.clone());
        // The end of the process ends a thread that is still waiting.
        std::thread::spawn(move || sender.send((number, cattlegrid_server::log_lacks(&log))).is_ok());
    }
    drop(sender);
    let mut answers = vec![None; logs.len()];
    let end = time::nanos() + u64::try_from(DATABASE.as_nanos()).unwrap_or(u64::MAX);
    while answers.iter().any(Option::is_none) {
        let left = Duration::from_nanos(end.saturating_sub(time::nanos()));
        let Ok((number, answer)) = receiver.recv_timeout(left) else { break };
        answers[number] = Some(answer);
    }
    for (log, answer) in logs.iter().zip(answers) {
        let place = format!("{} ({})", log.name, log.origin);
        let why = "Changes there are not invalidated here until this is mended; when_behind says what clients get meanwhile.";
        match answer {
            Some(Ok(lacks)) if lacks.is_empty() => to.passed(name, format!("{place}: nothing is missing")),
            Some(Ok(lacks)) => {
                for (what, mend) in lacks {
                    to.problem(name, format!("{place}: {what}"), why, mend);
                }
            }
            Some(Err(error)) => {
                let mend = "the address, the password or the firewall; `cattlegrid check FILE --connect` tries again";
                to.problem(name, format!("{place}: {error}"), why, mend);
            }
            None => to.problem(
                name,
                format!("{place}: no answer within {} s", DATABASE.as_secs()),
                why,
                "the address or the firewall; `cattlegrid check FILE --connect` waits longer",
            ),
        }
    }
}
