//! Loaders: workers that compute the values that a cache misses, one key a job.
//!
//! A loader is an ordinary function of a [`Job`]; a unit test makes one with [`Job::test`] and calls the
//! function.
//!
//! ```no_run
//! use cattlegrid_worker::JobError;
//! use cattlegrid_worker::loader::{self, Job, Value, not_found};
//!
//! fn load(job: &mut Job<'_>) -> Result<Value, JobError> {
//!     let id: u64 = job.arg("id")?.parse()?; // of the rule `page:{id}`
//!     if id == 0 {
//!         return Ok(not_found().ttl(5));
//!     }
//!     Ok(Value::new(format!("page {id}")).ttl(60).tag(format!("page:{id}")))
//! }
//!
//! if let Some(worker) = cattlegrid_worker::maybe_worker() {
//!     loader::serve(worker, load);
//! }
//! ```
//!
//! # Invariants
//! * A job that is not a loader's, and an answer that no cache accepts, are errors of that job only.
//! * The bytes of both are those of [`wire`].

use std::time::Instant;

use crate::job::{JobError, Level, Reply};
use crate::list::{List, put_varint};
use wire::{Answer, Captures, Tags, WireError};

pub mod wire;

/// Serves one key at a time with `load`, as [`crate::Worker::serve`] does with jobs.
///
/// What each worker does before its first job is given to [`crate::Worker::init`], whose context has the text
/// of `init` in `[loader.NAME]`.
///
/// `load` returns a [`Value`], or anything that becomes one: bytes, text, or an `Option` of these, where
/// `None` is [`not_found`]. An error or panic of `load` is the outcome of its job only.
pub fn serve<A, F>(worker: crate::Worker, mut load: F) -> !
where
    A: Into<Value>,
    F: FnMut(&mut Job<'_>) -> Result<A, JobError>,
{
    worker.holding_nothing().serve(move |job| {
        let value = load(&mut Job::of(job)?)?.into();
        value.checked()
    })
}

/// Serves up to `limit` keys in one call of `load`, as [`crate::Worker::serve_batch`] does with jobs.
///
/// `load` returns an outcome for each job, in the order of the slice.
pub fn serve_batch<A, F>(worker: crate::Worker, limit: u32, mut load: F) -> !
where
    A: Into<Value>,
    F: FnMut(&mut [Job<'_>]) -> Vec<Result<A, JobError>>,
{
    worker
        .holding_nothing()
        .serve_batch(limit, move |jobs| load_batch(jobs.iter_mut().map(Job::of), &mut load))
}

/// An outcome for each of `jobs`; those that are not a loader's are left out of the call.
fn load_batch<'a, A: Into<Value>>(
    jobs: impl Iterator<Item = Result<Job<'a>, JobError>>,
    load: &mut impl FnMut(&mut [Job<'_>]) -> Vec<Result<A, JobError>>,
) -> Vec<Result<Value, JobError>> {
    let mut loads = Vec::new();
    let others: Vec<_> = jobs.map(|job| job.map(|job| loads.push(job))).collect();
    let outcomes = if loads.is_empty() { Vec::new() } else { load(&mut loads) };
    if outcomes.len() != loads.len() {
        let (got, count) = (outcomes.len(), loads.len());
        let message = format!("a batch function returns an outcome for each of its {count} jobs, not {got}");
        return others.iter().map(|_| Err(JobError::new("bad_answer", message.clone()))).collect();
    }
    let mut outcomes = outcomes.into_iter();
    let next = |other: Result<(), JobError>| {
        other?;
        // There is an outcome for each job that was in the call.
        outcomes.next().ok_or_else(|| JobError::new("bad_answer", "no outcome"))??.into().checked()
    };
    others.into_iter().map(next).collect()
}

/// A key to load, and what is known about it.
pub struct Job<'a> {
    fields: wire::Job<'a>,
    attempt: u32,
    deadline: Option<Instant>,
    /// Absent in unit tests.
    live: Option<&'a mut dyn JobLink>,
}

impl<'a> Job<'a> {
    /// A job for a unit test: of the rule `test`, without hint, old value and deadline, and never cancelled.
    ///
    /// `captures` are the names and values of the rule's captures: `&[("id", "42")]`.
    pub fn test(key: &'a (impl AsRef<[u8]> + ?Sized), captures: &'a [(&'a str, &'a str)]) -> Self {
        let (key, captures) = (key.as_ref(), Captures::of(captures));
        let fields = wire::Job { key, rule: "test", hint: None, stale: None, captures };
        Self { fields, attempt: 0, deadline: None, live: None }
    }

    fn of<'j>(job: &'a mut crate::Job<'j>) -> Result<Self, JobError>
    where
        'j: 'a,
    {
        Self::parse(job.args(), job.attempt(), job.deadline(), Some(job))
    }

    fn parse(
        args: List<'a>,
        attempt: u32,
        deadline: Option<Instant>,
        live: Option<&'a mut dyn JobLink>,
    ) -> Result<Self, JobError> {
        let fields = wire::Job::parse(args).map_err(|error| JobError::new("protocol", error.to_string()))?;
        Ok(Self { fields, attempt, deadline, live })
    }

    /// For a unit test: with this rule.
    #[must_use]
    pub fn with_rule(mut self, rule: &'a str) -> Self {
        self.fields.rule = rule;
        self
    }

    /// For a unit test: with this hint; an empty one is none.
    #[must_use]
    pub fn with_hint(mut self, hint: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.fields.hint = Some(hint.as_ref()).filter(|hint| !hint.is_empty());
        self
    }

    /// For a unit test: with this old value.
    #[must_use]
    pub fn with_stale(mut self, stale: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        self.fields.stale = Some(stale.as_ref());
        self
    }

    /// For a unit test: as attempt number `attempt`, counted from 0.
    #[must_use]
    pub fn with_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// For a unit test: with this deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The key.
    pub fn key(&self) -> &'a [u8] {
        self.fields.key
    }

    /// The text that the capture `name` of the rule's pattern matched.
    ///
    /// # Errors
    /// When the rule has no such capture, or the text is not UTF-8 ([`Job::captures`] has its bytes).
    pub fn arg(&self, name: &str) -> Result<&'a str, JobError> {
        let value = self.fields.captures.get(name).ok_or_else(|| {
            let names: Vec<_> =
                self.captures().map(|(known, _)| String::from_utf8_lossy(known).into_owned()).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            JobError::new(
                "error",
                format!("the rule `{}` has no capture `{name}`; its captures: {names}", self.rule()),
            )
        })?;
        std::str::from_utf8(value)
            .map_err(|_| JobError::new("error", format!("the capture `{name}` of this key is not UTF-8")))
    }

    /// Names and values of all captures, in the order of the pattern.
    pub fn captures(&self) -> Captures<'a> {
        self.fields.captures.clone()
    }

    /// Text of the rule's pattern: `page:{id}`.
    pub fn rule(&self) -> &'a str {
        self.fields.rule
    }

    /// The client's hint about the value that it wants (`Ph` of `mg`), if it gave one.
    pub fn hint(&self) -> Option<&'a [u8]> {
        self.fields.hint
    }

    /// The old value, if there is one and the loader asks for it (`stale = true` in its table).
    pub fn stale(&self) -> Option<&'a [u8]> {
        self.fields.stale
    }

    /// When the value is no longer waited for; `None` for no limit.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// 0 at first, then 1 for every retry.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the value is no longer needed, as [`crate::Job::cancelled`]. Never in a unit test.
    pub fn cancelled(&mut self) -> bool {
        self.live.as_mut().is_some_and(|job| job.cancelled())
    }

    /// Writes a line to the log, as [`crate::Job::log`]; in a unit test to standard error.
    pub fn log(&mut self, level: Level, text: &str) {
        match &mut self.live {
            Some(job) => job.log(level, text),
            None => eprintln!("{level:?}: {text}"),
        }
    }
}

impl std::fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("fields", &self.fields)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// The functions of a job that need its running worker.
trait JobLink {
    fn cancelled(&mut self) -> bool;
    fn log(&mut self, level: Level, text: &str);
}

impl JobLink for crate::Job<'_> {
    fn cancelled(&mut self) -> bool {
        self.cancelled()
    }

    fn log(&mut self, level: Level, text: &str) {
        self.log(level, text);
    }
}

/// An answer of a loader: a value, or that there is none ([`not_found`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    data: Option<Vec<u8>>,
    ttl: Option<i32>,
    flags: u32,
    tags: Vec<String>,
}

impl Value {
    /// A value with the rule's TTL, client flags 0 and no tags but those of the rule.
    pub fn new(data: impl Into<Vec<u8>>) -> Self {
        Self { data: Some(data.into()), ttl: None, flags: 0, tags: Vec::new() }
    }

    /// Seconds for which it is fresh instead of the rule's `ttl`. Of a value: 0 for no expiry, below 0: it is
    /// given to waiting clients and not kept. Of [`not_found`]: above 0, otherwise the job fails.
    #[must_use]
    pub fn ttl(mut self, seconds: i32) -> Self {
        self.ttl = Some(seconds);
        self
    }

    /// Adds a tag to those of the rule: 1 to 200 bytes, no blanks. With more than 8, or another text, the job
    /// fails.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Client flags.
    #[must_use]
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    /// The value's bytes; `None` for [`not_found`].
    pub fn data(&self) -> Option<&[u8]> {
        self.data.as_deref()
    }

    /// # Errors
    /// When the cache would refuse it; the text says why.
    fn checked(self) -> Result<Self, JobError> {
        match self.answer() {
            Ok(_) => Ok(self),
            Err(error) => Err(JobError::new("bad_answer", error)),
        }
    }

    fn answer(&self) -> Result<Answer<'_>, String> {
        let Some(value) = &self.data else {
            if self.flags != 0 || !self.tags.is_empty() {
                return Err("not_found() has a ttl only, no tags and no flags".into());
            }
            let ttl = self.ttl.map(|seconds| u32::try_from(seconds).unwrap_or(0));
            if wire::valid_negative_ttl(ttl) {
                return Ok(Answer::NotFound { ttl });
            }
            return Err(WireError::NegativeTtl(self.ttl.unwrap_or(0).to_string()).to_string());
        };
        let tags = Tags::new(self.tags.iter().map(String::as_bytes)).map_err(|error| error.to_string())?;
        Ok(Answer::Value { value, ttl: self.ttl, flags: self.flags, tags })
    }
}

/// The answer that there is no such value. Clients get a miss for the rule's `negative_ttl`, or for
/// [`Value::ttl`], without a further job.
pub fn not_found() -> Value {
    Value { data: None, ttl: None, flags: 0, tags: Vec::new() }
}

macro_rules! values {
    ($($type:ty),*) => {$(
        impl From<$type> for Value {
            fn from(data: $type) -> Self {
                Self::new(data)
            }
        }

        impl From<Option<$type>> for Value {
            fn from(data: Option<$type>) -> Self {
                data.map_or_else(not_found, Self::new)
            }
        }
    )*};
}

values!(Vec<u8>, String, &str, &[u8], Box<[u8]>);

impl Reply for Value {
    fn put(&self, out: &mut Vec<u8>) {
        match self.answer() {
            Ok(answer) => answer.put(out),
            // Answers are checked before; a list without parts is none.
            Err(_) => put_varint(out, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(job: &mut Job<'_>) -> Result<Value, JobError> {
        let id: u64 = job.arg("id")?.parse()?;
        if job.cancelled() {
            return Err(JobError::new("cancelled", ""));
        }
        if id == 0 {
            return Ok(not_found().ttl(5));
        }
        Ok(Value::new(format!("page {id}")).ttl(60).tag(format!("page:{id}")).flags(3))
    }

    fn message(result: Result<Value, JobError>) -> String {
        result.unwrap_err().body.message
    }

    #[test]
    fn a_unit_test_calls_the_function() {
        let value = load(&mut Job::test("page:42", &[("id", "42")])).unwrap();
        assert_eq!(value, Value::new("page 42").ttl(60).tag("page:42").flags(3));
        assert_eq!(value.data(), Some(&b"page 42"[..]));
        assert_eq!(load(&mut Job::test("page:0", &[("id", "0")])).unwrap().data(), None);
        let text = message(load(&mut Job::test("page:x", &[("id", "x")])));
        assert_eq!(text, "invalid digit found in string");
        let mut job = Job::test("page:x", &[("ib", "x"), ("ic", "y")]).with_rule("page:{ib}:{ic}");
        assert_eq!(
            message(load(&mut job)),
            "the rule `page:{ib}:{ic}` has no capture `id`; its captures: ib, ic"
        );
        let text = message(load(&mut Job::test("page", &[])));
        assert_eq!(text, "the rule `test` has no capture `id`; its captures: none");
    }

    #[test]
    fn a_job_of_a_unit_test_has_what_it_was_given() {
        let at = crate::link::now();
        let job = Job::test(&[0xff, 1], &[]).with_hint("").with_stale("").with_attempt(2).with_deadline(at);
        assert_eq!((job.key(), job.rule(), job.hint()), (&[0xff, 1][..], "test", None));
        assert_eq!((job.stale(), job.attempt(), job.deadline()), (Some(&b""[..]), 2, Some(at)));
        assert_eq!(job.with_hint("mobile").hint(), Some(&b"mobile"[..]));
    }

    #[test]
    fn each_job_of_a_batch_has_its_own_outcome() {
        let keys = ["a", "not a loader's", "b", "c", "d"];
        let jobs = || {
            keys.into_iter().map(|key| match key {
                "not a loader's" => Err(JobError::new("protocol", key)),
                key => Ok(Job::test(key, &[])),
            })
        };
        let mut load = |jobs: &mut [Job<'_>]| {
            let outcome = |job: &Job<'_>| match job.key() {
                b"b" => Err(JobError::new("error", "as told")),
                b"c" => Ok(Value::new("").tag("a b")),
                key => Ok(Value::new(key)),
            };
            jobs.iter().map(outcome).collect()
        };
        let shown = |outcome: &Result<Value, JobError>| match outcome {
            Ok(value) => String::from_utf8_lossy(value.data().unwrap()).into_owned(),
            Err(error) => format!("{}: {}", error.body.code, error.body.message),
        };
        let outcomes: Vec<_> = load_batch(jobs(), &mut load).iter().map(shown).collect();
        let refused = "bad_answer: a tag has no blanks and no control characters: \"a b\"";
        assert_eq!(outcomes, ["a", "protocol: not a loader's", "error: as told", refused, "d"]);
        let few = &mut |jobs: &mut [Job<'_>]| vec![Ok::<_, JobError>("x"); jobs.len() - 1];
        let outcomes: Vec<_> = load_batch(jobs(), few).iter().map(shown).collect();
        let text = "bad_answer: a batch function returns an outcome for each of its 4 jobs, not 3";
        assert_eq!(outcomes, [text; 5]);
        let none = [Err(JobError::new("protocol", "x"))].into_iter();
        let never = &mut |_: &mut [Job<'_>]| -> Vec<Result<Value, JobError>> { panic!("there is no load") };
        assert_eq!(load_batch(none, never).iter().map(shown).collect::<Vec<_>>(), ["protocol: x"]);
    }

    #[test]
    fn what_a_function_may_return() {
        for (value, data) in [
            (Value::from("text"), Some(&b"text"[..])),
            (Value::from(String::from("text")), Some(b"text")),
            (Value::from(vec![1_u8]), Some(&[1])),
            (Value::from(Some("x")), Some(b"x")),
            (Value::from(None::<Vec<u8>>), None),
        ] {
            assert_eq!(value.data(), data);
            assert!(value.checked().is_ok());
        }
    }

    #[test]
    fn an_answer_that_no_cache_accepts_is_an_error_of_the_job() {
        let nine = (0..9).fold(Value::new(""), |value, n| value.tag(format!("t{n}")));
        for (value, text) in [
            (nine, "a value has at most 8 tags"),
            (Value::new("").tag("a b"), "no blanks"),
            (Value::new("").tag("x".repeat(201)), "1 to 200 bytes, not 201"),
            (not_found().ttl(0), "1 to 2147483647"),
            (not_found().ttl(-5), "not \"-5\""),
            (not_found().tag("a"), "no tags and no flags"),
            (not_found().flags(1), "no tags and no flags"),
        ] {
            let text_of = message(value.checked());
            assert!(text_of.contains(text), "{text_of}");
        }
        for value in
            [Value::new("").ttl(-1), Value::new("").ttl(0), not_found().ttl(1), not_found().ttl(i32::MAX)]
        {
            assert!(value.checked().is_ok());
        }
    }

    #[test]
    fn a_value_is_written_as_the_cache_reads_it() {
        let value = Value::new(vec![0, 0xff]).ttl(-1).tag("a").tag("b").flags(u32::MAX).checked().unwrap();
        let mut out = Vec::new();
        value.put(&mut out);
        let answer = Answer::parse(List::parse(&out).unwrap()).unwrap();
        let tags = Tags::new([&b"a"[..], b"b"]).unwrap();
        assert_eq!(answer, Answer::Value { value: &[0, 0xff], ttl: Some(-1), flags: u32::MAX, tags });
        out.clear();
        not_found().ttl(5).put(&mut out);
        assert_eq!(Answer::parse(List::parse(&out).unwrap()), Ok(Answer::NotFound { ttl: Some(5) }));
    }
}
