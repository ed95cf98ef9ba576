//! The loader of the rule: its jobs read the source when they begin, take some time, and end in every way.

use cattlegrid_engine::{LoadEnd, LoadFailure, LoadOutcome};

use super::*;

/// A job of the loader.
pub(crate) struct SimLoad {
    token: u64,
    /// None: not one of the keys that are judged.
    key: Option<usize>,
    due_ms: u64,
    version: u64,
    /// Soft invalidations of the key before it began.
    softs: usize,
    /// See [`Sim`]; None: it may be of a lease from before the rules went.
    pub(crate) era: Option<u64>,
}

impl SimLoad {
    /// Which of the two rules its key has.
    pub(crate) fn rule(&self) -> usize {
        usize::from(self.key.is_none())
    }
}

/// Most jobs of one key at once.
const JOBS_MAX: usize = 2;

impl Sim {
    /// Jobs that have begun read the source now.
    pub(crate) fn note_loads(&mut self) {
        for at in 0..self.w.jobs.len() {
            let load = &self.w.jobs[at];
            let token = load.token;
            if self.loads.iter().any(|known| known.token == token) {
                continue;
            }
            let text = String::from_utf8_lossy(&load.key).into_owned();
            let key = text.strip_prefix("page:").and_then(|n| n.parse().ok());
            let (version, softs) = key.map_or((0, 0), |n: usize| (self.version[n], self.softs[n].len()));
            let of_key = self.w.jobs.iter().filter(|load| *load.key == *text.as_bytes()).count();
            assert!(of_key <= JOBS_MAX, "{of_key} jobs of {text}");
            assert!(!text.contains("junk"), "{text} has no rule");
            self.trace(|| format!("job {token} of {text}, version {version}"));
            self.note(if self.w.jobs[at].is_refresh { "refresh by the loader" } else { "load" });
            let takes = self.rng.of(&[0, 5, 30, 120, 300, 600, 1500, 4000]);
            let era = Some(self.era).filter(|_| !self.mixed);
            self.loads.push(SimLoad { token, key, due_ms: self.w.ms + takes, version, softs, era });
        }
        for _ in std::mem::take(&mut self.w.raised) {
            self.note("a refresh is raised");
        }
        // A job that no worker has begun ends at once.
        for token in std::mem::take(&mut self.w.cancelled) {
            let begun = self.rng.one_in(2);
            if let Some(at) = self.loads.iter().position(|load| load.token == token).filter(|_| !begun) {
                self.note("a load is cancelled");
                self.loads.swap_remove(at);
                assert_eq!(self.w.fail(token, "", LoadFailure::Cancelled), LoadOutcome::Late);
            }
        }
    }

    /// Ends the jobs whose time has come.
    pub(crate) fn finish_loads(&mut self) {
        self.note_loads();
        while let Some(at) = self.loads.iter().position(|load| load.due_ms <= self.w.ms) {
            let load = self.loads.swap_remove(at);
            self.finish_load(&load);
            self.note_loads();
        }
    }

    fn finish_load(&mut self, load: &SimLoad) {
        let ttl_s: i64 = self.rng.of(&[0, 0, 1, 3, 5, 8, 12, 3600, -1]);
        let drawn = self.rng.below(16);
        let Some(n) = load.key.filter(|_| drawn > 4) else {
            let end = match drawn {
                0 => LoadEnd::Failed { text: b"no", cause: LoadFailure::Error },
                1 => LoadEnd::Failed { text: b"", cause: LoadFailure::Lost },
                2 => LoadEnd::Failed { text: b"", cause: LoadFailure::Refused },
                _ => LoadEnd::NotFound { ttl_s: self.rng.of(&[None, Some(0), Some(2)]) },
            };
            self.trace(|| format!("job {} ends: {end:?}", load.token));
            let landed = self.w.finish(load.token, &end);
            self.note(match (landed, end) {
                (LoadOutcome::Late, _) => "a result comes too late",
                (_, LoadEnd::NotFound { .. }) => "the loader finds nothing",
                _ => "a load fails",
            });
            return;
        };
        let grace_s = u64::from(self.policy.kept_s());
        let until = match ttl_s {
            1.. => self.second() + ttl_s.unsigned_abs() + grace_s,
            _ => u64::MAX,
        };
        let number = self.stored.len();
        let softs = Some(load.softs);
        let mut stored =
            Stored { version: load.version, until, grace_s, shown_until_ms: 0, softs, negative: false };
        if let Some(second) = self.softs[n].get(load.softs) {
            stored.soften(*second);
        }
        let (data, tag) = (format!("{}.{number}.", load.version), format!("named:{n}"));
        let tags: &[&[u8]] = if self.named_by.is_some() { &[tag.as_bytes()] } else { &[] };
        self.stored.push(stored);
        self.of_key[n].push(number);
        let end = LoadEnd::Value { data: data.as_bytes(), flags: 0, ttl_s: Some(ttl_s), tags };
        self.trace(|| format!("job {} ends: {data} {ttl_s}", load.token));
        let landed = self.w.finish(load.token, &end);
        self.note(match landed {
            LoadOutcome::Stored => "the loader's value is stored",
            LoadOutcome::Late => "a result comes too late",
            LoadOutcome::NoRoom => "there is no room for a load",
            LoadOutcome::TooLarge | LoadOutcome::TooManyTags | LoadOutcome::Failed => {
                unreachable!("{landed:?}")
            }
        });
    }

    /// The loader goes: its jobs are cancelled.
    pub(crate) fn end_loads(&mut self) {
        self.note_loads();
        for load in std::mem::take(&mut self.loads) {
            let _landed = self.w.fail(load.token, "", LoadFailure::Refused);
        }
        assert!(self.w.jobs.is_empty(), "a job begins for nobody");
    }
}
