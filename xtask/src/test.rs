//! `cargo xtask test`: everything that is tested, stage by stage.
//!
//! [`STAGES`] is the whole list. A stage is a few commands and a time budget for all of them. They run in a
//! process group of their own, which is ended when the budget is used up or this program is told to stop.
//! The first failure ends the run. The last line says how many stages passed and failed.

use std::fmt::Display;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

/// One thing that is tested.
struct Stage {
    name: &'static str,
    /// What it shows, in a few words.
    shows: &'static str,
    /// For all its steps together, on a slow machine that has to install and compile everything.
    minutes: u64,
    steps: &'static [Step],
}

/// One command, run in the root of the repository.
struct Step {
    when: When,
    env: &'static [(&'static str, &'static str)],
    command: &'static [&'static str],
}

/// Whether a step is run.
enum When {
    Always,
    /// Only if this command fails or does not exist.
    Unless(&'static [&'static str]),
    /// Only if this command succeeds within a minute, as it does where the network has what it fetches; else a line
    /// says that the step is left out.
    Fetched {
        by: &'static [&'static str],
        else_say: &'static str,
    },
}

/// cargo-fuzz needs unstable flags of the compiler: they are opened in the toolchain that builds all else.
const OPENED: &[(&str, &str)] = &[("RUSTC_BOOTSTRAP", "1")];

/// 20 s of random input to a target of `fuzz/`, with options of libFuzzer.
macro_rules! fuzz {
    ($target:literal $(, $option:literal)*) => {
        Step {
            when: When::Always,
            env: OPENED,
            command: &[
                "cargo",
                "fuzz",
                "run",
                $target,
                "--",
                "-max_total_time=20",
                "-verbosity=0",
                "-print_funcs=0",
                "-malloc_limit_mb=256",
                $($option),*
            ],
        }
    };
}

const STAGES: &[Stage] = &[
    Stage {
        name: "format",
        shows: "the code is laid out as rustfmt does it",
        minutes: 5,
        steps: &[
            Step {
                when: When::Unless(&["cargo", "fmt", "--version"]),
                env: &[],
                command: &["rustup", "component", "add", "rustfmt"],
            },
            step(&["cargo", "fmt", "--all", "--check"]),
        ],
    },
    Stage {
        name: "lints",
        shows: "no warning of the compiler or of clippy",
        minutes: 15,
        steps: &[
            Step {
                when: When::Unless(&["cargo", "clippy", "--version"]),
                env: &[],
                command: &["rustup", "component", "add", "clippy"],
            },
            step(&["cargo", "clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
        ],
    },
    Stage {
        name: "docs",
        shows: "documentation without dead links, generated pages current",
        minutes: 15,
        steps: &[
            Step {
                when: When::Always,
                env: &[("RUSTDOCFLAGS", "-D warnings")],
                command: &["cargo", "doc", "--workspace", "--no-deps", "--locked"],
            },
            step(&["cargo", "run", "--locked", "--package", "xtask", "--", "docs", "--check"]),
        ],
    },
    Stage {
        name: "licences",
        shows: "dependencies have licences and sources that are allowed, and no known vulnerability",
        minutes: 20,
        steps: &[
            Step {
                when: When::Unless(&["cargo", "deny", "--version"]),
                env: &[],
                command: &["cargo", "install", "cargo-deny", "--locked", "--no-default-features"],
            },
            step(&["cargo", "deny", "check", "licenses", "bans", "sources"]),
            Step {
                when: When::Fetched {
                    by: &["cargo", "deny", "fetch", "db"],
                    else_say: "the advisory database cannot be fetched from here: advisories are not checked",
                },
                env: &[],
                command: &["cargo", "deny", "--offline", "check", "advisories"],
            },
        ],
    },
    Stage {
        name: "unit",
        shows: "unit, property and whole-server tests",
        minutes: 20,
        steps: &[
            // Workers in Python and Node are among what is tested.
            step(&["conformance/setup.sh"]),
            step(&["cargo", "test", "--workspace", "--all-features", "--locked"]),
        ],
    },
    Stage {
        name: "loom",
        shows: "interleavings of invalidations and look-ups, and of claims to jobs, under a model checker",
        minutes: 10,
        steps: &[
            Step {
                when: When::Always,
                env: &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")],
                command: &["cargo", "test", "--locked", "-p", "cattlegrid-tags", "--test", "loom"],
            },
            Step {
                when: When::Always,
                env: &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")],
                command: &["cargo", "test", "--locked", "-p", "cattlegrid-worker", "--test", "loom"],
            },
        ],
    },
    Stage {
        name: "shuttle",
        shows: "threads that meet in one engine, in the orders that a scheduler tries",
        minutes: 10,
        steps: &[Step {
            when: When::Always,
            env: &[("RUSTFLAGS", "--cfg shuttle"), ("CARGO_TARGET_DIR", "target/shuttle")],
            command: &["cargo", "test", "--locked", "-p", "cattlegrid-engine", "--test", "shuttle"],
        }],
    },
    Stage {
        name: "python",
        shows: "the workers' library for Python",
        minutes: 10,
        steps: &[
            step(&["conformance/setup.sh"]),
            step(&["target/conformance/venv/bin/python", "-m", "pytest", "python"]),
        ],
    },
    Stage {
        name: "sanitizer",
        shows: "the modules with unsafe code, and processes of the pool, under AddressSanitizer",
        minutes: 30,
        // Not under Miri: it knows neither mprotect nor fork, so that it would test stand-ins; and no stable toolchain has it.
        steps: &[
            asan(&[
                "cargo",
                "test",
                "--locked",
                "--target",
                HOST,
                "-p",
                "cattlegrid-store",
                "--lib",
                "--test",
                "prop",
            ]),
            // Real templates and workers.
            asan(&[
                "cargo",
                "test",
                "--locked",
                "--target",
                HOST,
                "-p",
                "cattlegrid-worker",
                "-p",
                "cattlegrid-pool",
                "--lib",
                "--test",
                "basics",
                "--",
                // The sanitizer needs more address space than that test allows.
                "--skip",
                "limits_and_privileges",
            ]),
            // The server's fork and its handlers of signals.
            asan(&[
                "cargo",
                "test",
                "--locked",
                "--target",
                HOST,
                "-p",
                "cattlegrid-server",
                "-p",
                "cattlegrid",
                "--lib",
                "--test",
                "options",
                "--",
                "sys::",
                "signals::",
                "a_daemon_is_ready",
                "every_signal_ends_it_well",
            ]),
        ],
    },
    Stage {
        name: "fuzz",
        shows: "20 s of random input to each parser, to the store, the herd and connections",
        minutes: 25,
        steps: &[
            Step {
                when: When::Unless(&["c++", "--version"]), // libFuzzer is compiled
                env: &[],
                command: &["conformance/setup.sh"],
            },
            Step {
                when: When::Unless(&["cargo", "fuzz", "--version"]),
                env: &[],
                command: &["cargo", "install", "cargo-fuzz", "--locked"],
            },
            // All at once: what they share is compiled once, and side by side.
            Step { when: When::Always, env: OPENED, command: &["cargo", "fuzz", "build"] },
            fuzz!("text", "-dict=fuzz/protocol.dict"),
            fuzz!("meta", "-dict=fuzz/protocol.dict"),
            fuzz!("response", "-max_len=300"),
            fuzz!("store"),
            fuzz!("connection", "-max_len=8192"),
            fuzz!("frames"),
            fuzz!("jsonl"),
            fuzz!("herd", "-len_control=0", "-max_len=2000"),
            fuzz!("rules", "-len_control=0", "-max_len=2000"),
        ],
    },
    Stage {
        name: "build",
        shows: "the optimised server that the next stages run",
        minutes: 15,
        steps: &[BUILD],
    },
    Stage {
        name: "demo",
        shows: "the tour, each of its replies verified",
        minutes: 15,
        steps: &[BUILD, step(&["target/fast/cattlegrid", "demo"])],
    },
    Stage {
        name: "conformance",
        shows: "unmodified clients and recorded answers of memcached",
        minutes: 25,
        steps: &[
            BUILD,
            Step {
                when: When::Always,
                env: &[("CATTLEGRID_BIN", "target/fast/cattlegrid")],
                command: &["conformance/run.sh"],
            },
        ],
    },
];

const BUILD: Step = step(&["cargo", "build", "--locked", "--profile", "fast", "-p", "cattlegrid"]);

const HOST: &str =
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };

const fn step(command: &'static [&'static str]) -> Step {
    Step { when: When::Always, env: &[], command }
}

/// The sanitizer needs an unstable flag, too. With a target named, build scripts and macros do without it.
const fn asan(command: &'static [&'static str]) -> Step {
    let env = &[
        ("RUSTC_BOOTSTRAP", "1"),
        ("RUSTFLAGS", "-Zsanitizer=address"),
        ("CARGO_TARGET_DIR", "target/asan"),
    ];
    Step { when: When::Always, env, command }
}

/// Runs the stages that `options` name, all without them.
pub(crate) fn test(options: &[&str]) -> Result<(), String> {
    if options == ["--list"] {
        for stage in STAGES {
            say(format_args!("{:<12} at most {:>2} min  {}", stage.name, stage.minutes, stage.shows));
        }
        return Ok(());
    }
    let stages = select(options)?;
    let mut runner = Runner::new()?;
    let begin = now();
    for (i, stage) in stages.iter().enumerate() {
        let (number, count, minutes) = (i + 1, stages.len(), stage.minutes);
        say(format_args!("\n== {} ({number}/{count}, at most {minutes} min): {}", stage.name, stage.shows));
        let stage_begin = now();
        if let Err(reason) = runner.stage(stage) {
            say(format_args!(
                "== {}: failed after {} s: {reason}",
                stage.name,
                stage_begin.elapsed().as_secs()
            ));
            say(format_args!("{i} passed, 1 failed"));
            return Err(format!("stage {} failed; again: cargo xtask test --stage {0}", stage.name));
        }
        say(format_args!("== {}: passed in {} s", stage.name, stage_begin.elapsed().as_secs()));
    }
    say(format_args!("\nall of it took {} s", begin.elapsed().as_secs()));
    say(format_args!("{} passed, 0 failed", stages.len()));
    Ok(())
}

/// The stages that `--stage NAME` (once or more) names, in their order; all without it.
fn select(options: &[&str]) -> Result<Vec<&'static Stage>, String> {
    let mut names = Vec::new();
    for pair in options.chunks(2) {
        match *pair {
            ["--stage", name] if STAGES.iter().any(|stage| stage.name == name) => names.push(name),
            ["--stage", name] => {
                let known: Vec<_> = STAGES.iter().map(|stage| stage.name).collect();
                return Err(format!("there is no stage {name}; there are {}", known.join(", ")));
            }
            _ => return Err(crate::USAGE.to_owned()),
        }
    }
    Ok(STAGES.iter().filter(|stage| names.is_empty() || names.contains(&stage.name)).collect())
}

/// Runs commands and waits for whichever comes first: their end, the budget's, or a signal.
struct Runner {
    sender: Sender<Happened>,
    happened: Receiver<Happened>,
}

enum Happened {
    Ended(std::io::Result<ExitStatus>),
    Stop(Signal),
}

/// Why a command did not succeed.
enum Failure {
    /// Its status, or why there is none.
    Failed(String),
    /// This program was told to stop.
    Stopped(Signal),
    /// Its time was used up.
    Late,
}

/// How long a [`When::Fetched`] may take: where packets are dropped, a connection attempt takes minutes.
const FETCH_MOST: Duration = Duration::from_secs(60);

impl Runner {
    /// Takes over the signals that would end this program: its children must go first. Before the first
    /// thread, since threads inherit the mask.
    fn new() -> Result<Self, String> {
        let (sender, happened) = mpsc::channel();
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        signals.thread_block().map_err(|error| format!("signals cannot be blocked: {error}"))?;
        let told = sender.clone();
        thread::spawn(move || {
            while let Ok(signal) = signals.wait() {
                if told.send(Happened::Stop(signal)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { sender, happened })
    }

    fn stage(&mut self, stage: &Stage) -> Result<(), String> {
        let end = now() + Duration::from_secs(stage.minutes * 60);
        for step in stage.steps {
            if self.is_wanted(step, end)? {
                self.step(step, end)?;
            }
        }
        Ok(())
    }

    /// Whether a step is to be run; an error if this program is told to stop meanwhile.
    fn is_wanted(&mut self, step: &Step, end: Instant) -> Result<bool, String> {
        match step.when {
            When::Always => Ok(true),
            When::Unless(probe) => Ok(!succeeds(probe)),
            When::Fetched { by, else_say } => {
                let mut fetch = command(by);
                fetch.stdout(Stdio::null()).stderr(Stdio::null());
                match self.run(fetch, end.min(now() + FETCH_MOST)) {
                    Ok(()) => Ok(true),
                    Err(Failure::Stopped(signal)) => Err(format!("{}: stopped by {signal}", by.join(" "))),
                    Err(Failure::Failed(_) | Failure::Late) => {
                        say(else_say);
                        Ok(false)
                    }
                }
            }
        }
    }

    fn step(&mut self, step: &Step, end: Instant) -> Result<(), String> {
        let line = step.command.join(" ");
        let env: Vec<String> = step.env.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
        let env = env.concat();
        say(format_args!("$ {env}{line}"));
        let mut command = command(step.command);
        command.envs(step.env.iter().copied());
        self.run(command, end).map_err(|failure| match failure {
            Failure::Failed(reason) => format!("{line}: {reason}"),
            Failure::Stopped(signal) => format!("{line}: stopped by {signal}"),
            Failure::Late => format!("{line}: the stage's time is used up"),
        })
    }

    /// Runs a command in a process group of its own, which has ended afterwards.
    fn run(&mut self, mut command: Command, end: Instant) -> Result<(), Failure> {
        let child = command.process_group(0).spawn().map_err(|error| Failure::Failed(error.to_string()))?;
        let group = Pid::from_raw(i32::try_from(child.id()).expect("process ids are positive i32s"));
        self.wait_in_thread(child);
        let failure = match self.happened.recv_timeout(end.saturating_duration_since(now())) {
            Ok(Happened::Ended(Ok(status))) if status.success() => return Ok(()),
            Ok(Happened::Ended(Ok(status))) => return Err(Failure::Failed(status.to_string())),
            Ok(Happened::Ended(Err(error))) => return Err(Failure::Failed(error.to_string())),
            Ok(Happened::Stop(signal)) => Failure::Stopped(signal),
            Err(_) => Failure::Late,
        };
        for (signal, grace) in [(Signal::SIGTERM, 5), (Signal::SIGKILL, 5)] {
            // It fails only when the group is gone, as it should be.
            let _gone = killpg(group, signal);
            if self.happened.recv_timeout(Duration::from_secs(grace)).is_ok() {
                break;
            }
        }
        // What its leader has left behind.
        let _gone = killpg(group, Signal::SIGKILL);
        Err(failure)
    }

    fn wait_in_thread(&self, mut child: Child) {
        let ended = self.sender.clone();
        thread::spawn(move || {
            // Nobody listens any more: this program is ending.
            let _unheard = ended.send(Happened::Ended(child.wait()));
        });
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    // The stages know where results lie.
    command.args(&words[1..]).current_dir(crate::root()).stdin(Stdio::null()).env_remove("CARGO_TARGET_DIR");
    command
}

fn succeeds(probe: &[&str]) -> bool {
    let status = command(probe).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A line for whoever watches; one that has gone is no reason to stop.
fn say(line: impl Display) {
    let _unread = writeln!(std::io::stdout(), "{line}");
}

#[expect(clippy::disallowed_methods, reason = "a stage has a budget of real time")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_have_names_of_their_own_budgets_and_commands() {
        for (i, stage) in STAGES.iter().enumerate() {
            assert!(STAGES[..i].iter().all(|other| other.name != stage.name), "{}", stage.name);
            assert!(stage.minutes > 0 && !stage.steps.is_empty(), "{}", stage.name);
            assert!(stage.steps.iter().all(|step| !step.command.is_empty()), "{}", stage.name);
        }
    }

    #[test]
    fn stages_are_selected_by_name_and_keep_their_order() {
        let names = |options: &[&str]| select(options).map(|s| s.iter().map(|s| s.name).collect::<Vec<_>>());
        assert_eq!(names(&[]).map(|all| all.len()), Ok(STAGES.len()));
        assert_eq!(names(&["--stage", "unit", "--stage", "format"]), Ok(vec!["format", "unit"]));
        assert!(
            names(&["--stage", "units"])
                .is_err_and(|error| error.contains("unit, loom, shuttle, python, sanitizer"))
        );
        assert!(names(&["--stage"]).is_err());
        assert!(names(&["unit"]).is_err());
    }

    #[test]
    fn a_failing_command_and_one_over_its_budget_are_told_apart() {
        let mut runner = Runner::new().unwrap();
        let far = now() + Duration::from_secs(60);
        assert_eq!(runner.step(&step(&["true"]), far), Ok(()));
        assert!(runner.step(&step(&["false"]), far).is_err_and(|reason| reason.contains("exit status: 1")));
        let begin = now();
        let late = runner.step(&step(&["sh", "-c", "sleep 60 & wait"]), begin + Duration::from_millis(50));
        assert!(late.is_err_and(|reason| reason.contains("time is used up")));
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn what_cannot_be_fetched_is_left_out_and_what_can_must_be_right() {
        const ABSENT: &[Step] = &[Step {
            when: When::Fetched { by: &["false"], else_say: "left out, as a test wants it" },
            env: &[],
            command: &["false"],
        }];
        const LISTED: &[Step] =
            &[Step { when: When::Fetched { by: &["true"], else_say: "" }, env: &[], command: &["false"] }];
        let mut runner = Runner::new().unwrap();
        let far = now() + Duration::from_secs(60);
        let step = |by| Step {
            when: When::Fetched { by, else_say: "left out, as a test wants it" },
            env: &[],
            command: &["false"],
        };
        assert_eq!(runner.is_wanted(&step(&["true"]), far), Ok(true));
        assert_eq!(runner.is_wanted(&step(&["false"]), far), Ok(false));
        assert_eq!(runner.is_wanted(&step(&["no-such-program"]), far), Ok(false));
        let begin = now();
        let hangs = step(&["sh", "-c", "sleep 60 & wait"]);
        assert_eq!(runner.is_wanted(&hangs, begin + Duration::from_millis(50)), Ok(false));
        assert!(begin.elapsed() < Duration::from_secs(30));

        let stage = |steps| Stage { name: "fetched", shows: "", minutes: 1, steps };
        assert_eq!(runner.stage(&stage(ABSENT)), Ok(()));
        assert!(runner.stage(&stage(LISTED)).is_err_and(|reason| reason.contains("exit status: 1")));
    }

    #[test]
    fn probes_decide_what_is_run() {
        let steps = &[
            Step { when: When::Unless(&["true"]), env: &[], command: &["false"] },
            Step { when: When::Unless(&["no-such-program"]), env: &[], command: &["true"] },
        ];
        let stage = Stage { name: "probes", shows: "", minutes: 1, steps };
        assert_eq!(Runner::new().unwrap().stage(&stage), Ok(()));
    }
}
