//! Processes that use the client: `client-fixture`, started, released together, and read line by line.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// The longest wait of a test, far longer than any wait takes on any machine.
const PATIENCE: Duration = Duration::from_secs(45);

/// Where processes note what they compute.
pub struct Ledger {
    directory: TempDir,
}

/// A process; killed when dropped.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// The result of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// `value`, `computed`, `busy` and so on: the fixture's word for the outcome.
    pub outcome: String,
    pub took: Duration,
    pub key: String,
    pub text: String,
}

impl Ledger {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a directory") }
    }

    pub fn file(&self) -> PathBuf {
        self.directory.path().join("computed")
    }

    /// The file for which computations with `--until` wait.
    pub fn release(&self) -> PathBuf {
        self.directory.path().join("release")
    }

    /// Lets computations end that have begun with `--until` and [`Ledger::release`].
    pub fn let_go(&self) {
        fs::write(self.release(), "").expect("a file");
    }

    /// The keys that were computed, in the order in which computations began, over all processes.
    pub fn computed(&self) -> Vec<String> {
        let text = fs::read_to_string(self.file()).unwrap_or_default();
        text.lines().map(|line| line.split_once(' ').expect("a pid and a key").1.to_owned()).collect()
    }

    /// A process that calls the client so, with `--ledger` added. It waits for [`Process::go`].
    pub fn process(&self, words: &str) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_client-fixture"));
        command.args(words.split_ascii_whitespace()).arg("--ledger").arg(self.file());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the fixture starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let process = Process { child, stdin, lines };
        assert_eq!(process.line(), "ready");
        process
    }

    /// `count` of them, each connected. They wait for [`Process::go`].
    pub fn processes(&self, count: usize, words: &str) -> Vec<Process> {
        (0..count).map(|_| self.process(words)).collect()
    }

    /// `count` of them, each connected, all let go at about the same time.
    pub fn crew(&self, count: usize, words: &str) -> Vec<Process> {
        let mut crew = self.processes(count, words);
        crew.iter_mut().for_each(Process::go);
        crew
    }
}

impl Process {
    /// Lets it make its next call.
    pub fn go(&mut self) {
        let stdin = self.stdin.as_mut().expect("not closed");
        stdin.write_all(b"go\n").and_then(|()| stdin.flush()).expect("the process reads");
    }

    /// The next line of the process, without the line that says that its first request was answered.
    pub fn line(&self) -> String {
        let line = || self.lines.recv_timeout(PATIENCE).expect("a line within 45 seconds");
        let first = line();
        if first == "asked" { line() } else { first }
    }

    /// Waits until the first request of its call has been answered: it knows what there is then.
    pub fn has_asked(&self) {
        assert_eq!(self.lines.recv_timeout(PATIENCE).as_deref(), Ok("asked"));
    }

    /// Waits until it says that it computes.
    pub fn computes(&self) {
        assert_eq!(self.line(), "computes");
    }

    /// The result of its call. The line that says that it computes is skipped.
    pub fn ended(&self) -> Ended {
        loop {
            let line = self.line();
            if line == "computes" {
                continue;
            }
            let words: Vec<_> = line.splitn(4, ' ').collect();
            let [outcome, took, key, text] = words[..] else { panic!("{line}") };
            return Ended {
                outcome: outcome.to_owned(),
                took: Duration::from_micros(took.parse().expect("microseconds")),
                key: key.to_owned(),
                text: text.to_owned(),
            };
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("it runs");
    }

    /// Kills it at once.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}
