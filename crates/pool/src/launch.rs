//! A program and how its worker processes are started: forked from a template, or exec'ed one by one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A program and how it is made into workers.
#[derive(Debug, Clone)]
pub struct Launch {
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) dir: Option<PathBuf>,
    /// `None` removes a variable.
    pub(crate) env: BTreeMap<OsString, Option<OsString>>,
    pub(crate) env_clear: bool,
    pub(crate) mode: LaunchMode,
    pub(crate) allow_threads: bool,
    /// JSON lines: a job and its reply are one object each.
    pub(crate) objects: bool,
}

/// How the pool talks to the processes that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaunchMode {
    /// One process is exec'ed and forks the workers.
    Template,
    /// Every worker is exec'ed; frames on descriptor 3.
    Exec,
    /// Every worker is exec'ed; frames on its standard streams.
    Stdio,
    /// Every worker is exec'ed; JSON lines on its standard streams.
    JsonLines,
}

impl LaunchMode {
    /// The value of `CATTLEGRID_MODE`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Exec => "exec",
            Self::Stdio => "stdio",
            Self::JsonLines => "jsonl",
        }
    }
}

impl Launch {
    /// A program that uses a worker SDK, started once and forked for every worker.
    pub fn template<A: Into<OsString>>(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        Self::new(program.into(), args, LaunchMode::Template)
    }

    /// A program that uses a worker SDK, started for every worker; frames on descriptor 3.
    pub fn exec<A: Into<OsString>>(program: impl Into<OsString>, args: impl IntoIterator<Item = A>) -> Self {
        Self::new(program.into(), args, LaunchMode::Exec)
    }

    /// Deprecated: it goes with the next release, and each start reports [`crate::PoolError::StdioMode`]. Use
    /// [`Launch::exec`]: programs that use an SDK need no change, others read and write the same frames on
    /// descriptor 3.
    ///
    /// As [`Launch::exec`], with the frames on standard input and output, and at most one job at a worker at
    /// a time.
    pub fn stdio<A: Into<OsString>>(program: impl Into<OsString>, args: impl IntoIterator<Item = A>) -> Self {
        Self::new(program.into(), args, LaunchMode::Stdio)
    }

    /// A program in any language that reads and writes one JSON object per line, started for every
    /// worker. At most one job is at such a worker at a time. See `docs/worker-protocol.md`.
    pub fn json_lines<A: Into<OsString>>(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        Self::new(program.into(), args, LaunchMode::JsonLines)
    }

    /// This very program as a template: its `main` calls `cattlegrid_worker::maybe_worker` first.
    pub fn rust() -> Self {
        let none: [OsString; 0] = [];
        Self::new("/proc/self/exe".into(), none, LaunchMode::Template)
    }

    fn new<A: Into<OsString>>(
        program: OsString,
        args: impl IntoIterator<Item = A>,
        mode: LaunchMode,
    ) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self {
            program,
            args,
            dir: None,
            env: BTreeMap::new(),
            env_clear: false,
            mode,
            allow_threads: false,
            objects: false,
        }
    }

    /// Working directory of the processes; the default is the pool's own.
    #[must_use]
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Sets a variable for this program only, after those of the builder.
    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.insert(key.into(), Some(value.into()));
        self
    }

    /// Accepts a template that has threads. Its children have copies of locks whose owners do not exist in
    /// the child.
    #[must_use]
    pub fn allow_threads(mut self) -> Self {
        self.allow_threads = true;
        self
    }

    /// JSON lines whose jobs and replies are one object each, for [`Launch::json_lines`] only. A job has one
    /// argument, the text of a JSON object, and its members stand in the job's line in the place of `args`. A
    /// line of the worker that is none of the messages of the protocol, and has the id of its job or none, is
    /// the job's reply: one part, the text of the whole object as the worker has sent it. Limits are those of
    /// all replies. A job whose argument is not an object ends as [`crate::Error::Codec`]. See
    /// `docs/worker-protocol.md`.
    #[must_use]
    pub fn objects(mut self) -> Self {
        self.objects = true;
        self
    }

    /// The environment of a process of this program: the parent's (unless cleared), then `ours`.
    pub(crate) fn environment(&self, ours: &[(&str, String)]) -> Vec<(OsString, OsString)> {
        let mut all: BTreeMap<OsString, OsString> = BTreeMap::new();
        if !self.env_clear {
            all.extend(
                std::env::vars_os().filter(|(key, _)| !key.to_string_lossy().starts_with("CATTLEGRID_")),
            );
        }
        for (key, value) in &self.env {
            match value {
                Some(value) => all.insert(key.clone(), value.clone()),
                None => all.remove(key),
            };
        }
        all.extend(ours.iter().map(|(key, value)| (OsString::from(key), OsString::from(value))));
        all.into_iter().collect()
    }

    /// Checks whether the system can start such a program at all: names without NUL bytes, and not empty.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.objects && self.mode != LaunchMode::JsonLines {
            return Err("objects: only programs of json_lines have jobs that are objects".into());
        }
        let has_nul = |text: &OsString| text.as_bytes().contains(&0);
        if self.program.is_empty() || has_nul(&self.program) {
            return Err(format!(
                "program {}: a name is neither empty nor has a NUL byte in it",
                self.program.display()
            ));
        }
        if let Some(arg) = self.args.iter().find(|arg| has_nul(arg)) {
            return Err(format!("argument {}: it has a NUL byte in it", arg.display()));
        }
        if let Some(dir) = self.dir.as_ref().filter(|dir| has_nul(&dir.as_os_str().to_owned())) {
            return Err(format!("directory {}: it has a NUL byte in it", dir.display()));
        }
        check_env(&self.env)
    }

    /// The program and its arguments, for messages.
    pub(crate) fn name(&self) -> String {
        let mut name = self.program.to_string_lossy().into_owned();
        for arg in self.args.iter().take(4) {
            name.push(' ');
            name.push_str(&arg.to_string_lossy());
        }
        name
    }
}

/// Checks variables as [`Launch::check`] checks arguments.
pub(crate) fn check_env(env: &BTreeMap<OsString, Option<OsString>>) -> Result<(), String> {
    for (key, value) in env {
        let bytes = key.as_bytes();
        if bytes.is_empty() || bytes.contains(&b'=') || bytes.contains(&0) {
            return Err(format!(
                "env {}: a name is not empty and has no `=` and no NUL byte in it",
                key.display()
            ));
        }
        if value.as_ref().is_some_and(|value| value.as_bytes().contains(&0)) {
            return Err(format!("env {}: its value has a NUL byte in it", key.display()));
        }
    }
    Ok(())
}
