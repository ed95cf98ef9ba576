//! The stages: what is tested, by which commands, and what a stage asks of the machine.
//!
//! [`STAGES`] is the whole list. Its order is the order of preference and of the summary: quick stages and
//! those that others need come first. What a stage needs comes before it.
//!
//! A stage that compiles or computes asks for cores and yields to the others; a stage that mostly waits for
//! timers, sockets or the network asks for none, so that the two kinds run side by side. Memory is a bound
//! from above: 600 MiB for a compiler, 1,000 MiB with a sanitizer, and for servers what their options allow
//! them.

/// One thing that is tested.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) name: &'static str,
    /// The result that the stage shows, in a few words.
    pub(super) shows: &'static str,
    /// The time limit of the stage in minutes, for all its steps together, on a machine with two cores that
    /// has to install and compile everything. On a machine that does other work a stage may take longer: it
    /// is ended at [`OVER`] times this.
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
    pub(super) when: StepCondition,
    /// How often it is run until it succeeds, at least 1. More than once: what has to do with real time and
    /// starts no runner of tests, which would do so itself.
    pub(super) tries: u32,
    pub(super) env: &'static [(&'static str, &'static str)],
    pub(super) command: &'static [&'static str],
}

/// Whether a step is run.
#[derive(Debug)]
pub(super) enum StepCondition {
    Always,
    /// Only if this command fails or does not exist.
    Unless(&'static [&'static str]),
    /// Only if this command succeeds within a minute, as it does where the network has what it fetches;
    /// otherwise a line says that the step is left out.
    Fetched {
        by: &'static [&'static str],
        else_say: &'static str,
    },
}

/// The cores of a stage that compiles: a compiler per core, of which more than four seldom have work.
const COMPILERS: usize = 4;

/// How many times its budget a stage may take, so that other work on the machine makes no run fail.
pub(super) const OVER: u64 = 3;

/// The tests of the workspace that a filter of nextest selects. Always all packages: naming one would choose
/// other features of what the packages share, and compile half of it again.
macro_rules! nextest {
    ($($argument:literal),*) => {
        &[
            "cargo", "nextest", "run", "--workspace", "--features", "xtask/documents", "--locked",
            "--profile", "ci", $($argument),*
        ]
    };
}

/// Tests under the sanitizer and fuzz targets, compiled with a target named, so that build scripts and macros
/// do without it. Always all of these packages, so that what they share is compiled once.
macro_rules! sanitized {
    ($($argument:expr),*) => {
        &[
            "cargo", "nextest", "run", "--locked", "--profile", "ci",
            "--cargo-profile", "sanitized", "--target", crate::fuzz::HOST,
            "-p", "cattlegrid-store", "-p", "cattlegrid-worker", "-p", "cattlegrid-pool",
            "-p", "cattlegrid-scripts", "-p", "cattlegrid-server", "-p", "cattlegrid",
            "-p", "cattlegrid-fuzz", "--features", "cattlegrid-fuzz/libfuzzer",
            "--lib", "--test", "it", $($argument),*
        ]
    };
}

/// The environments of the oldest and the newest Python of the machine, in target/python.
const PYTHONS: &[&str] = &["python3", "python/tests/environments.py"];

/// Succeeds where even the newest Python is older than what ruff and mypy need.
const OLD_PYTHON: &[&str] =
    &["target/python/newest/bin/python", "-c", "import sys; sys.exit(sys.version_info >= (3, 10))"];

/// Tests of the Python package, several at a time, since they mostly wait.
macro_rules! pytest {
    ($python:literal, $($argument:literal),*) => {
        Step {
            env: &[("CATTLEGRID_BIN", "target/fast/cattlegrid")],
            ..step(&[
                "python3", "python/tests/environments.py", $python, "-q", "-raR", "-n", "4", "--dist", "worksteal",
                "--reruns", "2", $($argument),*
            ])
        }
    };
}

/// Tests of the running server, without those that have a stage of their own. They mostly wait, one after the other.
macro_rules! conformance {
    ($left_out:literal) => {
        Step {
            env: &[
                ("CATTLEGRID_BIN", "target/fast/cattlegrid"),
                ("CATTLEGRID_CLIENT_RING", "target/fast/examples/ring"),
                ("CATTLEGRID_FACTORS", "target/fast/factors"),
                ("CATTLEGRID_SET_UP", "1"),
            ],
            ..step(&[
                "conformance/run.sh",
                $left_out,
                "--ignore-glob=*test_follow*.py",
                "--ignore-glob=*test_mysql*.py",
                "--ignore-glob=*test_nodes*.py",
                "--ignore-glob=*test_via*.py",
                "--ignore-glob=*test_documents.py",
                "--ignore-glob=*test_doctor.py",
                "--ignore-glob=*test_dashboard.py",
                "--reruns",
                "2",
                "--rerun-show-tracebacks",
            ])
        }
    };
}

/// Stands for this program in commands.
pub(super) const XTASK: &str = "xtask";

pub(super) const STAGES: &[Stage] = &[
    Stage {
        name: "tools",
        shows: "rustfmt, clippy, cargo-nextest and cargo-deny are installed",
        minutes: 15,
        needs: &[],
        directory: None,
        cores: 0,
        memory_mib: 1500,
        steps: &[
            unless(&["cargo", "fmt", "--version"], &["rustup", "component", "add", "rustfmt"]),
            unless(&["cargo", "clippy", "--version"], &["rustup", "component", "add", "clippy"]),
            installed(&["cargo", "nextest", "--version"], &["cargo", "install", "--locked", "cargo-nextest"]),
            installed(
                &["cargo", "deny", "--version"],
                &["cargo", "install", "--locked", "cargo-deny", "--no-default-features"],
            ),
        ],
    },
    Stage {
        name: "packages",
        shows: "Debian, Python and Node packages that tests use are installed",
        minutes: 10,
        needs: &[],
        directory: None,
        cores: 0,
        memory_mib: 500,
        steps: &[step(&["conformance/setup.sh"])],
    },
    Stage {
        name: "build",
        shows: "the optimised server, and programs of tests, that other stages run",
        minutes: 15,
        needs: &[],
        directory: Some("target/fast"),
        cores: COMPILERS,
        memory_mib: 2400,
        // One command, so that what they share is compiled once.
        steps: &[step(&[
            "cargo",
            "build",
            "--locked",
            "--profile",
            "fast",
            "-p",
            "cattlegrid",
            "-p",
            "cattlegrid-examples",
            "-p",
            "cattlegrid-client",
            "-p",
            "cattlegrid-panic-tests",
            "--bin",
            "cattlegrid",
            "--bin",
            "factors",
            "--bin",
            "client-fixture",
            "--example",
            "ring",
        ])],
    },
    Stage {
        name: "format",
        shows: "the code is laid out as rustfmt does it",
        minutes: 1,
        needs: &["tools"],
        directory: None,
        cores: 0,
        memory_mib: 100,
        steps: &[step(&["cargo", "fmt", "--all", "--check"])],
    },
    Stage {
        name: "words",
        shows: "phrases that are hard to read are not used",
        minutes: 2,
        needs: &[],
        directory: None,
        cores: 0,
        memory_mib: 100,
        steps: &[step(&[XTASK, "words"])],
    },
    Stage {
        name: "site",
        shows: "the documentation as a site; every link and heading that it names is there",
        minutes: 5,
        needs: &[],
        directory: None,
        cores: 1, // of mdBook's compilation, where it is not installed
        memory_mib: 1500,
        steps: &[installed(&["mdbook", "--version"], crate::site::MDBOOK), step(&[XTASK, "site"])],
    },
    Stage {
        name: "licences",
        shows: "dependencies have licences and sources that are allowed, and no known vulnerability",
        minutes: 3,
        needs: &["tools"],
        directory: None,
        cores: 0,
        memory_mib: 200,
        steps: &[
            step(&["cargo", "deny", "check", "licenses", "bans", "sources"]),
            Step {
                when: StepCondition::Fetched {
                    by: &["cargo", "deny", "fetch", "db"],
                    else_say: "the advisory database cannot be fetched from here: advisories are not checked",
                },
                ..step(&["cargo", "deny", "--offline", "check", "advisories"])
            },
        ],
    },
    Stage {
        name: "python",
        shows: "the workers' library for Python",
        minutes: 3,
        needs: &["packages"],
        directory: None,
        cores: 0,
        memory_mib: 200,
        steps: &[step(&[
            "target/conformance/venv/bin/python",
            "-m",
            "pytest",
            "-raR",
            "--reruns",
            "2",
            "--rerun-show-tracebacks",
            "--ignore=python/tests/client",
            "--ignore=python/tests/features",
            "--ignore=python/tests/frameworks",
            "--ignore=python/tests/namespace",
            "--ignore=python/tests/packaging",
            "--ignore=python/tests/test_docs.py",
            "python",
        ])],
    },
    Stage {
        name: "python-client",
        shows: "the client for Python: types, tests over three servers with the oldest and newest Python, wheel and sdist",
        minutes: 8,
        needs: &["packages", "build"],
        directory: None,
        cores: 1,
        memory_mib: 1500,
        steps: &[
            step(PYTHONS),
            unless(
                OLD_PYTHON,
                &[
                    "target/python/newest/bin/ruff",
                    "check",
                    "--config",
                    "python/pyproject.toml",
                    "python/src",
                ],
            ),
            unless(OLD_PYTHON, &["target/python/newest/bin/mypy", "--config-file", "python/pyproject.toml"]),
            pytest!(
                "newest",
                // What the oldest does not know.
                "--rerun-show-tracebacks",
                // First, since they take longest.
                "python/tests/packaging",
                "python/tests/client",
                "python/tests/features",
                "python/tests/namespace",
                "python/tests/test_docs.py"
            ),
            pytest!("oldest", "python/tests/client", "python/tests/namespace"),
        ],
    },
    Stage {
        name: "python-frameworks",
        shows: "the tests of Django, dogpile.cache and Flask-Caching with this package, sites of FastAPI and Django, workers of Celery",
        minutes: 8,
        needs: &["packages", "build"],
        directory: None,
        cores: 1,
        memory_mib: 1500,
        steps: &[
            step(PYTHONS),
            pytest!("newest", "--rerun-show-tracebacks", "python/tests/frameworks"),
            pytest!("oldest", "python/tests/frameworks"),
        ],
    },
    Stage {
        name: "conformance-a-l",
        shows: "unmodified clients, memcached's answers, faults: files test_a to test_l",
        minutes: 20,
        needs: &["packages", "build"],
        directory: None,
        cores: 0,
        memory_mib: 4000,
        steps: &[conformance!("--ignore-glob=test_[m-z]*.py")],
    },
    Stage {
        name: "conformance-m-z",
        shows: "the same and recorded answers of memcached: files test_m to test_z",
        minutes: 20,
        needs: &["packages", "build"],
        directory: None,
        cores: 0,
        memory_mib: 3000,
        steps: &[conformance!("--ignore-glob=test_[a-l]*.py")],
    },
    Stage {
        name: "documents",
        shows: "every code block of the documentation is run, or says why not; the doctor on machines of many kinds",
        minutes: 8,
        needs: &["packages", "build"],
        directory: None,
        cores: 0,
        memory_mib: 1000,
        steps: &[Step {
            env: &[("CATTLEGRID_BIN", "target/fast/cattlegrid"), ("CATTLEGRID_SET_UP", "1")],
            ..step(&[
                "conformance/run.sh",
                "test_documents.py",
                "test_doctor.py",
                "--reruns",
                "2",
                "--rerun-show-tracebacks",
            ])
        }],
    },
    Stage {
        name: "dashboard",
        shows: "the dashboard in Chromium: figures, keyboard, token, restarts, a phone, and what axe finds",
        minutes: 6,
        needs: &["packages", "build"],
        directory: None,
        cores: 0,
        memory_mib: 1500,
        steps: &[
            // Not with the other packages: it is large, and where it cannot be installed only this stage
            // fails.
            unless(&["chromium", "--version"], &["conformance/chromium.sh"]),
            Step {
                env: &[("CATTLEGRID_BIN", "target/fast/cattlegrid"), ("CATTLEGRID_SET_UP", "1")],
                ..step(&[
                    "conformance/run.sh",
                    "test_dashboard.py",
                    "--reruns",
                    "2",
                    "--rerun-show-tracebacks",
                ])
            },
        ],
    },
    Stage {
        name: "package",
        shows: "the Debian package in memcached's place and back, upgraded and purged, on a machine of its own; completions, man page, manifests, crates",
        minutes: 5,
        needs: &["tools", "packages", "build"],
        directory: None,
        cores: 0, // it waits for installations, and for systemd
        memory_mib: 1200,
        steps: &[
            step(&["packaging/tests/setup.sh"]),
            installed(&["cargo", "deb", "--version"], &["cargo", "install", "--locked", "cargo-deb"]),
            step(&[XTASK, "package", "deb", "--no-build", "fast", "--version", "0.1.0-1"]),
            step(&[XTASK, "package", "deb", "--no-build", "fast", "--version", "0.1.0-2"]),
            step(&[
                "target/conformance/venv/bin/python",
                "packaging/tests/life_cycle.py",
                "target/package/cattlegrid_0.1.0-1_amd64.deb",
                "target/package/cattlegrid_0.1.0-2_amd64.deb",
            ]),
            step(&["python3", "packaging/tests/test_completions.py"]),
            step(&[
                "target/package/venv/bin/python",
                "packaging/tests/test_manifests.py",
                "target/fast/cattlegrid",
            ]),
            step(&[XTASK, "package", "crates"]),
        ],
    },
    Stage {
        name: "follow",
        shows: "the logs of a real PostgreSQL and a real etcd, with faults one after the other",
        minutes: 20,
        needs: &["packages", "build"],
        directory: None,
        cores: 0,
        memory_mib: 1200,
        steps: &[Step {
            env: &[("CATTLEGRID_BIN", "target/fast/cattlegrid"), ("CATTLEGRID_SET_UP", "1")],
            ..step(&[
                "conformance/run.sh",
                "test_follow.py",
                "test_follow_database.py",
                "test_follow_to.py",
                "test_nodes.py",
                "test_via.py",
                "--reruns",
                "2",
                "--rerun-show-tracebacks",
            ])
        }],
    },
    Stage {
        name: "mysql",
        shows: "the binary log of a real MariaDB, with faults one after the other",
        minutes: 8,
        needs: &["packages", "build"],
        directory: None,
        cores: 0,
        memory_mib: 1000,
        steps: &[Step {
            env: &[("CATTLEGRID_BIN", "target/fast/cattlegrid"), ("CATTLEGRID_SET_UP", "1")],
            ..step(&[
                "conformance/run.sh",
                "test_follow_mysql.py",
                "--reruns",
                "2",
                "--rerun-show-tracebacks",
            ])
        }],
    },
    Stage {
        name: "mysql-tables",
        shows: "unusual tables, rights and servers of a real MariaDB",
        minutes: 8,
        needs: &["packages", "build"],
        directory: None,
        cores: 0,
        memory_mib: 1000,
        steps: &[Step {
            env: &[("CATTLEGRID_BIN", "target/fast/cattlegrid"), ("CATTLEGRID_SET_UP", "1")],
            ..step(&[
                "conformance/run.sh",
                "test_mysql_tables.py",
                "--reruns",
                "2",
                "--rerun-show-tracebacks",
            ])
        }],
    },
    Stage {
        name: "tests",
        shows: "the tests of all crates compile",
        minutes: 12,
        needs: &["tools"],
        directory: Some("target/debug"),
        cores: COMPILERS,
        memory_mib: 2400,
        steps: &[step(nextest!("--no-run"))],
    },
    Stage {
        name: "pool",
        shows: "workers as processes, in Rust, Python, Perl and Node",
        minutes: 10,
        // Workers in Python and Node are among what is tested.
        needs: &["packages", "tests"],
        directory: None,
        cores: 0,
        memory_mib: 1500,
        steps: &[step(nextest!("-E", "package(=cattlegrid-pool)"))],
    },
    Stage {
        name: "client",
        shows: "the client against memcached and Cattlegrid: many processes, guarantees, servers killed and stopped",
        minutes: 15,
        needs: &["packages", "build", "tests"],
        directory: None,
        cores: 0, // fifty processes at a time, which mostly wait
        memory_mib: 2000,
        steps: &[Step {
            env: &[("CATTLEGRID_BIN", "target/fast/cattlegrid"), ("CATTLEGRID_CHAOS_SECONDS", "60")],
            ..step(nextest!("--run-ignored", "only", "-E", "package(=cattlegrid-client)"))
        }],
    },
    Stage {
        name: "unit",
        shows: "unit, property and whole-server tests, examples in the documentation, generated pages current",
        minutes: 12,
        needs: &["tests"],
        directory: None,
        cores: 2,
        memory_mib: 1500,
        steps: &[
            step(nextest!("-E", "not package(=cattlegrid-pool) and not test(/^orders::/)")),
            step(&["cargo", "test", "--workspace", "--features", "xtask/documents", "--locked", "--doc"]),
        ],
    },
    Stage {
        name: "orders",
        shows: "all orders of the steps of a few clients that can differ",
        minutes: 5,
        needs: &["tests"],
        directory: None,
        cores: 1,
        memory_mib: 500,
        steps: &[step(nextest!("-E", "test(/^orders::/)"))],
    },
    Stage {
        name: "lints",
        shows: "no warning of the compiler or of clippy, with the features of the tests and with none",
        minutes: 10,
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
                "--features",
                "xtask/documents",
                "--locked",
                "--",
                "-D",
                "warnings",
            ]),
            // Without scripts, which need a C++ compiler, and without the log of PostgreSQL.
            step(&[
                "cargo",
                "clippy",
                "-p",
                "cattlegrid-client",
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
        minutes: 8,
        needs: &["lints"], // which has checked what it reads
        directory: Some("target/debug"),
        cores: COMPILERS,
        memory_mib: 2400,
        steps: &[Step {
            env: &[("RUSTDOCFLAGS", "-D warnings")],
            ..step(&["cargo", "doc", "--workspace", "--no-deps", "--locked"])
        }],
    },
    Stage {
        name: "panics",
        shows: "which panics end the process and which cost a callback or a job, compiled as shipped",
        minutes: 5,
        needs: &["tools", "build"],
        directory: Some("target/fast"),
        cores: COMPILERS,
        memory_mib: 2400,
        steps: &[step(&[
            "cargo",
            "nextest",
            "run",
            "--locked",
            "--profile",
            "ci",
            "--cargo-profile",
            "fast",
            // The packages of "build": others would choose other features of what they share.
            "-p",
            "cattlegrid",
            "-p",
            "cattlegrid-examples",
            "-p",
            "cattlegrid-client",
            "-p",
            "cattlegrid-panic-tests",
            "--test",
            "panics",
        ])],
    },
    Stage {
        name: "demo",
        shows: "the tour, each of its replies verified",
        minutes: 3,
        needs: &["build"],
        directory: None,
        cores: 1,
        memory_mib: 1000,
        steps: &[Step { tries: 3, ..step(&["target/fast/cattlegrid", "demo"]) }],
    },
    Stage {
        name: "models",
        shows: "threads in the orders that model checkers try: invalidations and look-ups, claims to jobs, lanes in one engine",
        minutes: 10,
        needs: &["tools"],
        directory: Some("target/debug"),
        cores: 1,
        memory_mib: 1500,
        steps: &[
            Step {
                env: &[("RUSTFLAGS", "--cfg loom")],
                ..step(&[
                    "cargo",
                    "nextest",
                    "run",
                    "--locked",
                    "--profile",
                    "ci",
                    "-p",
                    "cattlegrid-tags",
                    "-p",
                    "cattlegrid-worker",
                    "--test",
                    "it",
                ])
            },
            Step {
                env: &[("RUSTFLAGS", "--cfg shuttle")],
                ..step(&[
                    "cargo",
                    "nextest",
                    "run",
                    "--locked",
                    "--profile",
                    "ci",
                    "-p",
                    "cattlegrid-engine",
                    "--test",
                    "shuttle",
                ])
            },
        ],
    },
    Stage {
        name: "sanitized",
        shows: "tests and fuzz targets compile under AddressSanitizer",
        minutes: 15,
        needs: &["tools", "packages"], // libFuzzer is compiled by c++
        directory: Some(crate::fuzz::DIRECTORY),
        cores: COMPILERS,
        memory_mib: 4000,
        steps: &[Step { env: SANITIZED, ..step(sanitized!("--no-run")) }],
    },
    Stage {
        name: "sanitizer",
        shows: "the modules with unsafe code, and processes of the pool, under AddressSanitizer",
        minutes: 10,
        needs: &["sanitized"],
        directory: None,
        cores: 1,
        memory_mib: 3000,
        // Not under Miri: it knows neither mprotect nor fork, so that it would test replacements; and no
        // stable toolchain has it.
        steps: &[Step { env: SANITIZED, ..step(sanitized!("-E", UNSAFE_CODE)) }],
    },
    Stage {
        name: "fuzz",
        shows: "10 s of random input to each parser, the store, its trees, the herd, its rules, objects, states of scripts and connections",
        minutes: 10,
        needs: &["sanitized"],
        directory: None,
        cores: 1,
        memory_mib: 2400,
        steps: &[Step {
            env: SANITIZED,
            ..step(sanitized!("--test-threads", "2", "-E", "package(=cattlegrid-fuzz)"))
        }],
    },
];

/// The sanitizer is an unstable flag, which is opened in the toolchain that builds all else.
const SANITIZED: &[(&str, &str)] = &[
    ("RUSTC_BOOTSTRAP", "1"),
    ("RUSTFLAGS", crate::fuzz::FLAGS),
    ("CARGO_TARGET_DIR", crate::fuzz::DIRECTORY),
];

/// Tests of modules with unsafe code, and of what they hold up.
pub(crate) const UNSAFE_CODE: &str = "\
    (package(=cattlegrid-store) and (kind(lib) or test(/^(prop|tree)::/))) \
    or package(=cattlegrid-worker) \
    or (package(=cattlegrid-pool) and (kind(lib) or test(/^basics::/)) and not test(limits_and_privileges)) \
    or (package(=cattlegrid-scripts) and kind(lib)) \
    or (package(=cattlegrid-server) and kind(lib) and test(/(sys|ring|signals)::/)) \
    or (package(=cattlegrid) and test(/a_daemon_is_ready|every_signal_ends_it_well/))";

/// A command that is always run, once.
pub(super) const fn step(command: &'static [&'static str]) -> Step {
    Step { when: StepCondition::Always, tries: 1, env: &[], command }
}

/// A command that is run where another fails.
const fn unless(probe: &'static [&'static str], command: &'static [&'static str]) -> Step {
    Step { when: StepCondition::Unless(probe), ..step(command) }
}

/// A tool that cargo compiles where it is missing: to be there soon matters more than its speed.
const fn installed(probe: &'static [&'static str], command: &'static [&'static str]) -> Step {
    const SOON: &[(&str, &str)] = &[
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
        ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
    ];
    Step { env: SOON, ..unless(probe, command) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_have_names_of_their_own_budgets_and_commands() {
        for (i, stage) in STAGES.iter().enumerate() {
            assert!(STAGES[..i].iter().all(|other| other.name != stage.name), "{}", stage.name);
            assert!(stage.minutes > 0 && !stage.steps.is_empty(), "{}", stage.name);
            assert!(stage.steps.iter().all(|s| !s.command.is_empty() && s.tries > 0), "{}", stage.name);
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
                // What a stage needs has compiled it.
                let compiled =
                    STAGES.iter().filter(|other| stage.needs.contains(&other.name)).map(|s| s.directory);
                let known = compiled.chain([stage.directory]).any(|directory| directory == named);
                assert!(named.is_none() || known, "{}", stage.name);
            }
        }
    }

    /// With a package that does not exist no test would be run.
    #[test]
    fn packages_that_filters_name_exist() {
        let packages = crate::quick::packages().unwrap();
        let mut count = 0;
        for word in STAGES.iter().flat_map(|stage| stage.steps).flat_map(|step| step.command) {
            for named in word.split("package(=").skip(1) {
                let name = named.split(')').next().unwrap();
                assert!(packages.iter().any(|package| package.name == name), "{name}");
                count += 1;
            }
        }
        assert_eq!(count, 10);
    }
}
