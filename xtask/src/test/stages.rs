//! The stages: what is tested, by which commands, and what a stage asks of the machine.
//!
//! [`STAGES`] is the whole list. Its order is the order of preference and of the summary: quick stages and those that
//! others need come first. What a stage needs comes before it.
//!
//! A stage that compiles asks for all cores and yields to the others; a stage that mostly waits for timers, sockets or the
//! network asks for none, so that the two kinds run side by side. Memory is a bound from above: 600 MiB for a compiler, 1,000 MiB with a sanitizer,
//! and for servers what their options allow them.

/// One thing that is tested.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) name: &'static str,
    /// What it shows, in a few words.
    pub(super) shows: &'static str,
    /// For all its steps together, on a slow machine that has to install and compile everything.
    pub(super) minutes: u64,
    /// Stages that must have passed before.
    pub(super) needs: &'static [&'static str],
    /// Where cargo compiles, under a lock: two stages with the same directory do not run side by side.
    pub(super) directory: Option<&'static str>,
    /// Processors that it keeps busy, as far as the machine has them; 0 if it mostly waits.
    pub(super) cores: usize,
    /// Memory that it may take, in MiB.
    pub(super) memory_mib: u64,
    pub(super) steps: &'static [Step],
}

/// One command, run in the root of the repository.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) when: When,
    pub(super) env: &'static [(&'static str, &'static str)],
    pub(super) command: &'static [&'static str],
}

/// Whether a step is run.
#[derive(Debug)]
pub(super) enum When {
    Always,
    /// Only if this command fails or does not exist.
    Unless(&'static [&'static str]),
    /// Only if this command succeeds within a minute, as it does where the network has what it fetches; otherwise a
    /// line says that the step is left out.
    Fetched {
        by: &'static [&'static str],
        else_say: &'static str,
    },
}

/// What a stage that compiles asks for: a compiler per core, of which more than four seldom have work.
pub(super) const COMPILERS: usize = 4;

/// cargo-fuzz needs unstable flags of the compiler: they are opened in the toolchain that builds all else.
const OPENED: &[(&str, &str)] = &[("RUSTC_BOOTSTRAP", "1")];

/// 20 s of random input, from the same seed in each run, to a target of `fuzz/`, with options of libFuzzer.
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
                "-seed=1",
                "-verbosity=0",
                "-print_funcs=0",
                "-malloc_limit_mb=256",
                $($option),*
            ],
        }
    };
}

/// Tests of some packages under the sanitizer, which needs an unstable flag, too. With a target named, build scripts and
/// macros do without it. All packages are compiled for the first of these commands, with the same features.
macro_rules! asan {
    ($packages:literal $(, $argument:literal)*) => {
        Step {
            when: When::Always,
            env: &[
                ("RUSTC_BOOTSTRAP", "1"),
                ("RUSTFLAGS", "-Zsanitizer=address"),
                ("CARGO_TARGET_DIR", "target/asan"),
                (RUNNER, concat!("xtask/of-package.sh ", $packages)),
            ],
            command: &[
                "cargo",
                "test",
                "--locked",
                "--target",
                HOST,
                "-p",
                "cattlegrid-store",
                "-p",
                "cattlegrid-worker",
                "-p",
                "cattlegrid-pool",
                "-p",
                "cattlegrid-scripts",
                "-p",
                "cattlegrid-server",
                "-p",
                "cattlegrid",
                "--lib",
                "--test",
                "prop",
                "--test",
                "tree",
                "--test",
                "basics",
                "--test",
                "options",
                "--",
                $($argument),*
            ],
        }
    };
}

pub(super) const STAGES: &[Stage] = &[
    Stage {
        name: "tools",
        shows: "rustfmt, clippy, cargo-deny and cargo-fuzz are installed",
        minutes: 20,
        needs: &[],
        directory: None,
        cores: 0,
        memory_mib: 1500,
        steps: &[
            Step {
                when: When::Unless(&["cargo", "fmt", "--version"]),
                env: &[],
                command: &["rustup", "component", "add", "rustfmt"],
            },
            Step {
                when: When::Unless(&["cargo", "clippy", "--version"]),
                env: &[],
                command: &["rustup", "component", "add", "clippy"],
            },
            Step {
                when: When::Unless(&["cargo", "deny", "--version"]),
                env: &[],
                command: &["cargo", "install", "cargo-deny", "--locked", "--no-default-features"],
            },
            Step {
                when: When::Unless(&["cargo", "fuzz", "--version"]),
                env: &[],
                command: &["cargo", "install", "cargo-fuzz", "--locked"],
            },
        ],
    },
    Stage {
        name: "packages",
        shows: "Debian, Python and Node packages that tests use are installed",
        minutes: 20,
        needs: &[],
        directory: None,
        cores: 0,
        memory_mib: 500,
        steps: &[step(&["conformance/setup.sh"])],
    },
    Stage {
        name: "format",
        shows: "the code is laid out as rustfmt does it",
        minutes: 5,
        needs: &["tools"],
        directory: None,
        cores: 0,
        memory_mib: 100,
        steps: &[step(&["cargo", "fmt", "--all", "--check"])],
    },
    Stage {
        name: "words",
        shows: "phrases that are hard to read are not used",
        minutes: 5,
        needs: &[],
        directory: None,
        cores: 0,
        memory_mib: 100,
        // Compiled already: it runs this stage.
        steps: &[step(&["target/debug/xtask", "words"])],
    },
    Stage {
        name: "licences",
        shows: "dependencies have licences and sources that are allowed, and no known vulnerability",
        minutes: 5,
        needs: &["tools"],
        directory: None,
        cores: 0,
        memory_mib: 200,
        steps: &[
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
        name: "python",
        shows: "the workers' library for Python",
        minutes: 5,
        needs: &["packages"],
        directory: None,
        cores: 0,
        memory_mib: 200,
        steps: &[step(&["target/conformance/venv/bin/python", "-m", "pytest", "python"])],
    },
    Stage {
        name: "lints",
        shows: "no warning of the compiler or of clippy, with all features and with none",
        minutes: 15,
        needs: &["tools"],
        directory: Some("target/debug"),
        cores: COMPILERS,
        memory_mib: 2400,
        steps: &[
            step(&[
                "cargo",
                "clippy",
                "--workspace",
                "--all-targets",
                "--all-features",
                "--locked",
                "--",
                "-D",
                "warnings",
            ]),
            step(&[
                "cargo",
                "clippy",
                "-p",
                "cattlegrid-client",
                "--no-default-features",
                "--locked",
                "--",
                "-D",
                "warnings",
            ]),
            // Without scripts, which need a C++ compiler.
            step(&[
                "cargo",
                "clippy",
                "-p",
                "cattlegrid",
                "--no-default-features",
                "--locked",
                "--",
                "-D",
                "warnings",
            ]),
        ],
    },
    Stage {
        name: "docs",
        shows: "documentation without dead links",
        minutes: 15,
        needs: &[],
        directory: Some("target/debug"),
        cores: COMPILERS,
        memory_mib: 2400,
        steps: &[Step {
            when: When::Always,
            env: &[("RUSTDOCFLAGS", "-D warnings")],
            command: &["cargo", "doc", "--workspace", "--no-deps", "--locked"],
        }],
    },
    Stage {
        name: "build",
        shows: "the optimised server, and programs of tests, that other stages run",
        minutes: 15,
        needs: &[],
        directory: Some("target/fast"),
        cores: COMPILERS,
        memory_mib: 2400,
        steps: &[
            step(&["cargo", "build", "--locked", "--profile", "fast", "-p", "cattlegrid"]),
            // Programs of the conformance suite, which would wait there for cargo's lock.
            step(&["cargo", "build", "--locked", "--profile", "fast", "-p", "cattlegrid-examples"]),
            step(&[
                "cargo",
                "build",
                "--locked",
                "--profile",
                "fast",
                "-p",
                "cattlegrid-client",
                "--example",
                "ring",
            ]),
        ],
    },
    Stage {
        name: "panics",
        shows: "which panics end the process and which cost a callback or a job, compiled as shipped",
        minutes: 10,
        needs: &["build"],
        directory: Some("target/fast"),
        cores: COMPILERS,
        memory_mib: 2400,
        steps: &[step(&["cargo", "test", "--locked", "--profile", "fast", "-p", "cattlegrid-panic-tests"])],
    },
    Stage {
        name: "conformance",
        shows: "unmodified clients and recorded answers of memcached",
        minutes: 35,
        needs: &["packages", "build"],
        directory: None,
        cores: 0,
        memory_mib: 4000,
        steps: &[Step {
            when: When::Always,
            env: &[
                ("CATTLEGRID_BIN", "target/fast/cattlegrid"),
                ("CATTLEGRID_CLIENT_RING", "target/fast/examples/ring"),
                ("CATTLEGRID_FACTORS", "target/fast/factors"),
                ("CATTLEGRID_SET_UP", "1"),
            ],
            command: &["conformance/run.sh"],
        }],
    },
    Stage {
        name: "tests",
        shows: "the tests of all crates compile",
        minutes: 20,
        needs: &[],
        directory: Some("target/debug"),
        cores: COMPILERS,
        memory_mib: 2400,
        steps: &[step(&["cargo", "test", "--workspace", "--all-features", "--locked", "--no-run"])],
    },
    Stage {
        name: "pool",
        shows: "workers as processes, in Rust, Python, Perl and Node",
        minutes: 20,
        // Workers in Python and Node are among what is tested.
        needs: &["packages", "tests"],
        directory: None,
        cores: 0,
        memory_mib: 1500,
        steps: &[Step {
            when: When::Always,
            env: &[(RUNNER, "xtask/of-package.sh only cattlegrid-pool")],
            command: TESTS,
        }],
    },
    Stage {
        name: "client",
        shows: "the client against memcached and Cattlegrid: many processes, guarantees, servers killed and stopped",
        minutes: 20,
        needs: &["packages", "build", "tests"],
        directory: None,
        // Fifty processes at a time, which mostly wait.
        cores: 1,
        memory_mib: 2000,
        steps: &[Step {
            when: When::Always,
            env: &[
                ("CATTLEGRID_BIN", "target/fast/cattlegrid"),
                ("CATTLEGRID_CHAOS_SECONDS", "60"),
                (RUNNER, "xtask/of-package.sh only cattlegrid-client"),
            ],
            command: SERVER_TESTS,
        }],
    },
    Stage {
        name: "unit",
        shows: "unit, property and whole-server tests, examples in the documentation, generated pages current",
        minutes: 20,
        needs: &["tests"],
        directory: None,
        cores: 2,
        memory_mib: 1500,
        steps: &[
            Step {
                when: When::Always,
                env: &[(RUNNER, "xtask/of-package.sh without cattlegrid-pool")],
                command: TESTS,
            },
            step(&["cargo", "test", "--workspace", "--all-features", "--locked", "--doc"]),
        ],
    },
    Stage {
        name: "demo",
        shows: "the tour, each of its replies verified",
        minutes: 5,
        needs: &["build"],
        directory: None,
        cores: 1,
        memory_mib: 1000,
        steps: &[step(&["target/fast/cattlegrid", "demo"])],
    },
    Stage {
        name: "loom",
        shows: "interleavings of invalidations and look-ups, and of claims to jobs, under a model checker",
        minutes: 10,
        needs: &[],
        directory: Some("target/loom"),
        cores: 1,
        memory_mib: 1000,
        steps: &[Step {
            when: When::Always,
            env: &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")],
            command: &[
                "cargo",
                "test",
                "--locked",
                "-p",
                "cattlegrid-tags",
                "-p",
                "cattlegrid-worker",
                "--test",
                "loom",
            ],
        }],
    },
    Stage {
        name: "shuttle",
        shows: "threads that meet in one engine, in the orders that a scheduler tries",
        minutes: 10,
        needs: &[],
        directory: Some("target/shuttle"),
        cores: 1,
        memory_mib: 1500,
        steps: &[Step {
            when: When::Always,
            env: &[("RUSTFLAGS", "--cfg shuttle"), ("CARGO_TARGET_DIR", "target/shuttle")],
            command: &["cargo", "test", "--locked", "-p", "cattlegrid-engine", "--test", "shuttle"],
        }],
    },
    Stage {
        name: "sanitizer",
        shows: "the modules with unsafe code, and processes of the pool, under AddressSanitizer",
        minutes: 30,
        needs: &[],
        directory: Some("target/asan"),
        cores: COMPILERS,
        memory_mib: 4000,
        // Not under Miri: it knows neither mprotect nor fork, so that it would test replacements; and no stable toolchain has it.
        steps: &[
            asan!("only cattlegrid-store"),
            // Real templates and workers. The sanitizer needs more address space than the test of limits allows.
            asan!("only cattlegrid-worker,cattlegrid-pool", "--skip", "limits_and_privileges"),
            // States through the VM's own interface.
            asan!("only cattlegrid-scripts", "state::", "library::", "reply::"),
            // The server's fork, its handlers of signals and its ring.
            asan!(
                "only cattlegrid-server,cattlegrid",
                "sys::",
                "ring::",
                "signals::",
                "a_daemon_is_ready",
                "every_signal_ends_it_well"
            ),
        ],
    },
    Stage {
        name: "fuzz-build",
        shows: "the targets that read random input compile",
        minutes: 20,
        needs: &["tools", "packages"], // libFuzzer is compiled by c++
        directory: Some("fuzz/target"),
        cores: COMPILERS,
        memory_mib: 4000,
        // All at once: what they share is compiled once, and side by side.
        steps: &[Step { when: When::Always, env: OPENED, command: &["cargo", "fuzz", "build"] }],
    },
    Stage {
        name: "fuzz-parsers",
        shows: "20 s of random input to each parser",
        minutes: 10,
        needs: &["fuzz-build"],
        directory: None,
        cores: 1,
        memory_mib: 2400,
        steps: &[
            fuzz!("text", "-dict=fuzz/protocol.dict"),
            fuzz!("meta", "-dict=fuzz/protocol.dict"),
            fuzz!("packets"),
            fuzz!("response"),
            fuzz!("frames"),
            fuzz!("jsonl"),
        ],
    },
    Stage {
        name: "fuzz-states",
        shows: "20 s of random input each to the store, its trees, the herd, its rules, objects, states of scripts and connections",
        minutes: 10,
        needs: &["fuzz-build"],
        directory: None,
        cores: 1,
        memory_mib: 2400,
        steps: &[
            fuzz!("store"),
            fuzz!("tree"),
            fuzz!("connection", "-max_len=8192"),
            fuzz!("herd", "-len_control=0", "-max_len=2000"),
            fuzz!("rules", "-len_control=0", "-max_len=2000"),
            fuzz!("object_names", "-len_control=0", "-max_len=4000"),
            fuzz!("script_state", "-max_len=2000"),
        ],
    },
];

const HOST: &str =
    if cfg!(target_arch = "aarch64") { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" };

/// How cargo names the program that starts the tests.
const RUNNER: &str = if cfg!(target_arch = "aarch64") {
    "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER"
} else {
    "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER"
};

/// All tests of all crates, compiled as the stage "tests" does it: naming a crate would choose other features of what
/// the crates share, and compile half of it again.
const TESTS: &[&str] =
    &["cargo", "test", "--workspace", "--all-features", "--locked", "--no-fail-fast", "--tests"];

/// Of these, the tests that need servers, which `cargo test` leaves out.
const SERVER_TESTS: &[&str] = &[
    "cargo",
    "test",
    "--workspace",
    "--all-features",
    "--locked",
    "--no-fail-fast",
    "--tests",
    "--",
    "--ignored",
];

/// A command that is always run.
pub(super) const fn step(command: &'static [&'static str]) -> Step {
    Step { when: When::Always, env: &[], command }
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
            assert!(stage.memory_mib > 0, "{}", stage.name);
        }
    }

    #[test]
    fn what_a_stage_needs_comes_before_it() {
        for (i, stage) in STAGES.iter().enumerate() {
            for need in stage.needs {
                assert!(STAGES[..i].iter().any(|other| other.name == *need), "{}: {need}", stage.name);
            }
        }
    }

    #[test]
    fn a_directory_of_cargo_is_named_by_every_stage_that_compiles_in_it() {
        for stage in STAGES {
            for step in stage.steps {
                let named =
                    step.env.iter().find(|(name, _)| *name == "CARGO_TARGET_DIR").map(|(_, value)| *value);
                assert!(named.is_none() || named == stage.directory, "{}", stage.name);
            }
        }
    }

    /// A package that there is not would have its tests left out.
    #[test]
    fn packages_whose_tests_are_run_apart_exist() {
        let crates = std::fs::read_dir(format!("{}/crates", crate::root())).unwrap();
        let manifests = crates.map(|entry| entry.unwrap().path().join("Cargo.toml"));
        let manifests: Vec<_> = manifests.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        let mut count = 0;
        for (_, runner) in STAGES.iter().flat_map(|s| s.steps).flat_map(|s| s.env).filter(|e| e.0 == RUNNER) {
            for package in runner.rsplit(' ').next().unwrap().split(',') {
                let name = format!("name = \"{package}\"");
                assert!(manifests.iter().any(|text| text.lines().any(|line| line == name)), "{package}");
                count += 1;
            }
        }
        assert_eq!(count, 9);
    }

    #[test]
    fn every_fuzz_target_is_run_once() {
        let manifest = std::fs::read_to_string(format!("{}/fuzz/Cargo.toml", crate::root())).unwrap();
        let names = manifest.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let steps: Vec<_> = STAGES.iter().flat_map(|stage| stage.steps).collect();
        let mut count = 0;
        for target in names.filter(|name| *name != "cattlegrid-fuzz") {
            let runs =
                steps.iter().filter(|step| step.command.contains(&"run") && step.command.contains(&target));
            assert_eq!(runs.count(), 1, "{target}");
            count += 1;
        }
        assert!(count >= 8, "{count} targets");
    }
}
