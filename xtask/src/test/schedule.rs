//! The order of stages: which one may start now.
//!
//! Stages are tried in their order, which so is their priority. One starts when
//!
//! * every stage that it needs has passed (if one has not, it is never run and counts as failed);
//! * no running stage uses the same directory of cargo, whose lock would make it wait;
//! * the processors that running stages keep busy leave it enough;
//! * so does the memory, both what is free now and what running stages may still take.
//!
//! A stage that asks for more than the machine has runs alone. This module starts nothing itself:
//! [`Schedule`] is told what has ended and what memory is free.
//!
//! # Invariants
//! * While a stage is left, one is running or one may start.
//! * A stage that failed changes nothing for those that do not need it.

use super::stages::Stage;

/// The outcome of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StageOutcome {
    Passed,
    /// Why.
    Failed(String),
    /// Never started, and why.
    NotRun(String),
}

#[derive(Debug)]
enum StageState {
    Waiting,
    Running,
    Ended(StageOutcome),
}

/// The stages of a run and how far each is.
pub(super) struct Schedule<'a> {
    stages: Vec<&'a Stage>,
    states: Vec<StageState>,
    cores: usize,
    /// The memory that was free before any stage ran, in MiB.
    memory_mib: u64,
}

impl<'a> Schedule<'a> {
    /// `cores`: processors of this machine, at least 1. `memory_mib`: memory that is free before the first
    /// stage runs.
    pub(super) fn new(stages: Vec<&'a Stage>, cores: usize, memory_mib: u64) -> Self {
        Self { states: stages.iter().map(|_| StageState::Waiting).collect(), stages, cores, memory_mib }
    }

    /// The number of the stage to start now, which then counts as running. None: nothing can start before
    /// another ends, or nothing is left.
    pub(super) fn start(&mut self, free_mib: u64) -> Option<usize> {
        self.leave_out();
        let next = (0..self.stages.len()).find(|&i| self.may_start(i, free_mib))?;
        self.states[next] = StageState::Running;
        Some(next)
    }

    /// A running stage has ended.
    pub(super) fn end(&mut self, number: usize, outcome: StageOutcome) {
        debug_assert!(matches!(self.states[number], StageState::Running));
        self.states[number] = StageState::Ended(outcome);
        self.leave_out();
    }

    /// Nothing that waits is started any more: this program was told to stop.
    pub(super) fn stop(&mut self, reason: &str) {
        for state in &mut self.states {
            if matches!(state, StageState::Waiting) {
                *state = StageState::Ended(StageOutcome::NotRun(reason.to_owned()));
            }
        }
    }

    /// The stage of this number.
    pub(super) fn stage(&self, number: usize) -> &'a Stage {
        self.stages[number]
    }

    /// The names of the stages that run.
    pub(super) fn running(&self) -> impl Iterator<Item = &'static str> {
        self.at_work().map(|stage| stage.name)
    }

    /// Each stage with what became of it; None if it has not ended.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&'a Stage, Option<&StageOutcome>)> {
        self.stages.iter().zip(&self.states).map(|(stage, state)| match state {
            StageState::Ended(outcome) => (*stage, Some(outcome)),
            StageState::Waiting | StageState::Running => (*stage, None),
        })
    }

    /// Stages that need one which did not pass are not run, nor those that need them.
    fn leave_out(&mut self) {
        // Needs come earlier in the list: one pass is enough.
        for i in 0..self.stages.len() {
            if !matches!(self.states[i], StageState::Waiting) {
                continue;
            }
            let missed = self.stages[i].needs.iter().find(|need| {
                self.outcomes().any(|(stage, outcome)| {
                    stage.name == **need && outcome.is_some_and(|outcome| *outcome != StageOutcome::Passed)
                })
            });
            if let Some(need) = missed {
                self.states[i] =
                    StageState::Ended(StageOutcome::NotRun(format!("it needs {need}, which did not pass")));
            }
        }
    }

    fn may_start(&self, number: usize, free_mib: u64) -> bool {
        let stage = self.stages[number];
        let is_ready = stage.needs.iter().all(|need| {
            let mut passed = self.outcomes().filter(|(_, outcome)| *outcome == Some(&StageOutcome::Passed));
            passed.any(|(other, _)| other.name == *need)
        });
        if !matches!(self.states[number], StageState::Waiting) || !is_ready {
            return false;
        }
        if self.at_work().next().is_none() {
            return true;
        }
        let shares_directory = self
            .at_work()
            .any(|other| other.directory.is_some_and(|directory| stage.directory == Some(directory)));
        let busy: usize = self.at_work().map(|other| other.cores.min(self.cores)).sum();
        let taken_mib: u64 = self.at_work().map(|other| other.memory_mib).sum();
        !shares_directory
            && busy + stage.cores.min(self.cores) <= self.cores
            && stage.memory_mib <= free_mib
            && taken_mib.saturating_add(stage.memory_mib) <= self.memory_mib
    }

    fn at_work(&self) -> impl Iterator<Item = &'a Stage> {
        let both = self.stages.iter().zip(&self.states);
        both.filter(|(_, state)| matches!(state, StageState::Running)).map(|(stage, _)| *stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit that no stage of these tests exceeds.
    const PLENTY: u64 = 1 << 20;

    const PLAIN: Stage = Stage {
        name: "plain",
        shows: "",
        minutes: 1,
        needs: &[],
        directory: None,
        cores: 0,
        memory_mib: 0,
        steps: &[],
    };

    /// Starts what may start; its names.
    fn started(schedule: &mut Schedule<'_>, free_mib: u64) -> Vec<&'static str> {
        let mut names = Vec::new();
        while let Some(number) = schedule.start(free_mib) {
            names.push(schedule.stages[number].name);
        }
        names
    }

    fn end(schedule: &mut Schedule<'_>, name: &str, outcome: StageOutcome) {
        let number = schedule.stages.iter().position(|stage| stage.name == name).unwrap();
        schedule.end(number, outcome);
    }

    #[test]
    fn one_that_computes_runs_with_those_that_wait() {
        let stages = [
            Stage { name: "lints", cores: 4, ..PLAIN },
            Stage { name: "build", cores: 4, ..PLAIN },
            Stage { name: "clients", ..PLAIN },
            Stage { name: "pool", ..PLAIN },
        ];
        let mut schedule = Schedule::new(stages.iter().collect(), 2, PLENTY);
        assert_eq!(started(&mut schedule, PLENTY), ["lints", "clients", "pool"]);
        end(&mut schedule, "clients", StageOutcome::Passed);
        assert!(started(&mut schedule, PLENTY).is_empty());
        end(&mut schedule, "lints", StageOutcome::Passed);
        assert_eq!(started(&mut schedule, PLENTY), ["build"]);
        assert_eq!(schedule.running().collect::<Vec<_>>(), ["build", "pool"]);
    }

    #[test]
    fn stages_of_one_core_share_the_machine() {
        let one = |name| Stage { name, cores: 1, ..PLAIN };
        let stages = [one("a"), one("b"), one("c")];
        let mut schedule = Schedule::new(stages.iter().collect(), 2, PLENTY);
        assert_eq!(started(&mut schedule, PLENTY), ["a", "b"]);
        let mut schedule = Schedule::new(stages.iter().collect(), 1, PLENTY);
        assert_eq!(started(&mut schedule, PLENTY), ["a"]);
        let mut schedule = Schedule::new(stages.iter().collect(), 64, PLENTY);
        assert_eq!(started(&mut schedule, PLENTY), ["a", "b", "c"]);
    }

    #[test]
    fn two_stages_never_wait_for_one_lock_of_cargo() {
        let stages = [
            Stage { name: "lints", directory: Some("debug"), cores: 1, ..PLAIN },
            Stage { name: "tests", directory: Some("debug"), cores: 1, ..PLAIN },
            Stage { name: "loom", directory: Some("loom"), cores: 1, ..PLAIN },
        ];
        let mut schedule = Schedule::new(stages.iter().collect(), 64, PLENTY);
        assert_eq!(started(&mut schedule, PLENTY), ["lints", "loom"]);
        end(&mut schedule, "lints", StageOutcome::Failed("a warning".to_owned()));
        assert_eq!(started(&mut schedule, PLENTY), ["tests"]);
    }

    #[test]
    fn memory_is_kept_for_what_runs() {
        let stages = [
            Stage { name: "sanitizer", memory_mib: 600, ..PLAIN },
            Stage { name: "fuzz", memory_mib: 600, ..PLAIN },
            Stage { name: "format", memory_mib: 400, ..PLAIN },
        ];
        // The sanitizer has taken nothing yet: all of it still looks free.
        let mut schedule = Schedule::new(stages.iter().collect(), 8, 1000);
        assert_eq!(started(&mut schedule, 1000), ["sanitizer", "format"]);
        end(&mut schedule, "sanitizer", StageOutcome::Passed);
        assert_eq!(started(&mut schedule, 600), ["fuzz"]);
        // Another program has taken it.
        let mut schedule = Schedule::new(stages.iter().collect(), 8, 2000);
        assert_eq!(started(&mut schedule, 599), ["sanitizer", "format"]);
        // With less than one stage needs, it runs alone.
        let mut schedule = Schedule::new(stages.iter().collect(), 8, 100);
        assert_eq!(started(&mut schedule, 100), ["sanitizer"]);
        end(&mut schedule, "sanitizer", StageOutcome::Passed);
        assert_eq!(started(&mut schedule, 100), ["fuzz"]);
    }

    #[test]
    fn a_failure_hides_only_what_needs_it() {
        let stages = [
            Stage { name: "set-up", ..PLAIN },
            Stage { name: "build", needs: &["set-up"], ..PLAIN },
            Stage { name: "clients", needs: &["build"], ..PLAIN },
            Stage { name: "format", ..PLAIN },
        ];
        let mut schedule = Schedule::new(stages.iter().collect(), 2, PLENTY);
        assert_eq!(started(&mut schedule, PLENTY), ["set-up", "format"]);
        end(&mut schedule, "set-up", StageOutcome::Failed("no network".to_owned()));
        assert!(started(&mut schedule, PLENTY).is_empty());
        end(&mut schedule, "format", StageOutcome::Passed);
        let outcomes: Vec<_> = schedule.outcomes().map(|(_, outcome)| outcome.unwrap().clone()).collect();
        assert_eq!(
            outcomes,
            [
                StageOutcome::Failed("no network".to_owned()),
                StageOutcome::NotRun("it needs set-up, which did not pass".to_owned()),
                StageOutcome::NotRun("it needs build, which did not pass".to_owned()),
                StageOutcome::Passed,
            ]
        );
    }

    #[test]
    fn nothing_starts_after_a_stop() {
        let stages = [Stage { name: "a", cores: 1, ..PLAIN }, Stage { name: "b", cores: 1, ..PLAIN }];
        let mut schedule = Schedule::new(stages.iter().collect(), 1, PLENTY);
        assert_eq!(started(&mut schedule, PLENTY), ["a"]);
        schedule.stop("SIGTERM");
        end(&mut schedule, "a", StageOutcome::Failed("stopped".to_owned()));
        assert!(started(&mut schedule, PLENTY).is_empty());
        assert_eq!(schedule.outcomes().nth(1).unwrap().1, Some(&StageOutcome::NotRun("SIGTERM".to_owned())));
    }
}
