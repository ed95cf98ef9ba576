//! Helpers of the tests: a host that keeps what it is told, loaders of a rule file, programs in Python.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a module of several test binaries, each of which uses a part"
)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cattlegrid_config::{NoScripts, RuleFile};
use cattlegrid_engine::{Load, LoadEnd, LoadFailure, LoadOrder, LoadOutcome};
use cattlegrid_loader::{Finished, Host, Loaders, Severity, StartError};
use tempfile::TempDir;

/// The longest wait of a test, far longer than any wait takes on any machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A host that keeps everything.
pub struct Kept {
    sender: Mutex<Sender<(usize, Finished)>>,
    lines: Mutex<Vec<String>>,
}

impl Host for Kept {
    #[expect(clippy::disallowed_methods, reason = "tests run in real time")]
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn log(&self, severity: Severity, text: &str) {
        self.lines.lock().unwrap().extend(text.lines().map(|line| format!("{severity:?} {line}")));
    }

    fn finished(&self, lane: usize, finished: Finished) {
        // At the end of a test there may be no reader.
        self.sender.lock().unwrap().send((lane, finished)).ok();
    }
}

/// A directory with a rule file and programs, and the host of its loaders.
pub struct World {
    pub directory: TempDir,
    pub host: Arc<Kept>,
    ends: Mutex<Receiver<(usize, Finished)>>,
    tokens: AtomicU64,
}

/// The parts of an end that tests look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Value { data: Vec<u8>, flags: u32, ttl_s: Option<i64>, tags: Vec<Vec<u8>> },
    NotFound(Option<u32>),
    Failed(LoadFailure, String),
}

impl World {
    /// With the program `pages.py`, and this rule file.
    pub fn new(rules: &str) -> Self {
        let (sender, ends) = channel();
        let host = Arc::new(Kept { sender: Mutex::new(sender), lines: Mutex::default() });
        let world = Self {
            directory: tempfile::tempdir().unwrap(),
            host,
            ends: Mutex::new(ends),
            tokens: AtomicU64::new(1),
        };
        world.write("pages.py", PAGES);
        world.write("rules.toml", rules);
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file; `PYTHON` in it is where the SDK is.
    pub fn write(&self, name: &str, text: &str) {
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/src");
        std::fs::write(self.path(name), text.replace("PYTHON", sdk.to_str().unwrap())).unwrap();
    }

    /// Lets the jobs end that wait at the gate.
    pub fn open_gate(&self) {
        self.write("open", "");
    }

    pub fn file(&self) -> RuleFile {
        RuleFile::load(&self.path("rules.toml"), &NoScripts).unwrap()
    }

    /// Starts the loaders of a server whose items have at most `item_bytes_max` bytes.
    pub fn start(&self, item_bytes_max: usize) -> Result<Loaders, StartError> {
        Loaders::start(&self.file().loaders, item_bytes_max, Arc::clone(&self.host) as Arc<dyn Host>)
    }

    /// A load of this key under its rule.
    pub fn load(&self, key: &str) -> Load {
        let file = self.file();
        let (rule, _) = file.rules.find(key.as_bytes()).expect("the key has a rule");
        Load {
            prefix_len: 0,
            key: key.as_bytes().into(),
            token: self.tokens.fetch_add(1, Ordering::Relaxed),
            rule: Arc::clone(rule),
            hint: None,
            stale: None,
            is_refresh: false,
            ordered_ms: 0,
        }
    }

    pub fn order(&self, key: &str) -> LoadOrder {
        LoadOrder::Start(self.load(key))
    }

    /// Waits for the next end of a job, as the host got it.
    pub fn next(&self) -> (usize, Finished) {
        self.ends.lock().unwrap().recv_timeout(PATIENCE).expect("each job ends")
    }

    /// Waits for the next end of a job.
    pub fn end(&self) -> (String, End) {
        let (_, finished) = self.next();
        (String::from_utf8(finished.load().key.to_vec()).unwrap(), look(finished))
    }

    /// Runs a load to its end.
    pub fn run(&self, loaders: &Loaders, key: &str) -> End {
        loaders.submit(0, vec![self.order(key)]);
        let (ended, end) = self.end();
        assert_eq!(ended, key);
        end
    }

    pub fn lines(&self) -> Vec<String> {
        self.host.lines.lock().unwrap().clone()
    }
}

/// Reads an end, and counts it as stored.
pub fn look(finished: Finished) -> End {
    let end = finished.with_end(|end| match *end {
        LoadEnd::Value { data, flags, ttl_s, tags } => End::Value {
            data: data.to_vec(),
            flags,
            ttl_s,
            tags: tags.iter().map(|tag| tag.to_vec()).collect(),
        },
        LoadEnd::NotFound { ttl_s } => End::NotFound(ttl_s),
        LoadEnd::Failed { text, cause } => {
            End::Failed(cause, String::from_utf8(text.to_vec()).unwrap().replace("%20", " "))
        }
    });
    finished.landed(if matches!(end, End::Failed(..)) { LoadOutcome::Failed } else { LoadOutcome::Stored });
    end
}

pub fn value(data: impl AsRef<[u8]>) -> End {
    End::Value { data: data.as_ref().to_vec(), flags: 0, ttl_s: None, tags: Vec::new() }
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let (_keep, never) = channel::<()>();
    for _ in 0..PATIENCE.as_millis() / 10 {
        if is_so() {
            return;
        }
        never.recv_timeout(Duration::from_millis(10)).unwrap_err();
    }
    panic!("it did not happen: {what}");
}

/// The processes whose command line has `text` in it, zombies excluded.
pub fn processes(text: &str) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        *pid != std::process::id() && String::from_utf8_lossy(&words).contains(text)
    };
    pids.filter(has).collect()
}

/// Open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A loader whose keys say what to do: `page:echo`, `page:full`, and so on.
pub const PAGES: &str = r#"
import os, signal, sys, time
sys.path.insert(0, "PYTHON")
sys.dont_write_bytecode = True
from cattlegrid import loader

@loader.load
def load(job):
    what, _, rest = job.args["id"].partition("-")
    if what == "full":
        return loader.Value(b"\xff full", ttl=-1, tags=["a", "b"], flags=7)
    if what == "none":
        return loader.not_found(ttl=int(rest)) if rest else loader.not_found()
    if what == "raise":
        raise ValueError("no luck")
    if what == "die":
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        open("begun", "w").close()
        time.sleep(float(rest))
    if what == "gate":
        open("begun", "w").close()
        while not os.path.exists("open"):
            time.sleep(0.002)
    if what == "big":
        return b"x" * int(rest)
    if what == "say":
        for line in range(int(rest)):
            print("line", line, file=sys.stderr)
        sys.stderr.flush()
    if what == "stale":
        return "None" if job.stale is None else str(len(job.stale))
    return "value of " + job.key

loader.serve()
"#;
