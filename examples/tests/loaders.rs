//! Every example loader runs and answers: Python and Rust as workers of a pool, shell and Node by their lines.
#![allow(clippy::unwrap_used, reason = "a failure is a panic in a test")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use cattlegrid_pool::{Error, Launch, Pool, Reply};
use cattlegrid_worker::loader::wire::{Answer, job_parts};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// An empty directory for the files that a loader makes.
fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::remove_dir_all(&path).ok();
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn python_path() -> String {
    format!("{HERE}/../python/src")
}

fn example(file: &str) -> String {
    format!("{HERE}/loaders/{file}")
}

/// Loads `key` with a worker of the pool; the answer in words.
fn load(pool: &Pool, key: &str, captures: &[(&str, &str)]) -> Result<String, Error> {
    pool.call(job_parts(key.as_bytes(), "rule", b"", None, captures)).wait().map(|reply| words(&reply))
}

fn words(reply: &Reply) -> String {
    match Answer::parse(reply.parts()).unwrap() {
        Answer::Value { value, ttl, flags, tags } => {
            let tags: Vec<_> = tags.iter().map(|tag| String::from_utf8_lossy(tag)).collect();
            assert_eq!(flags, 0);
            format!("{} ttl {ttl:?} tags {}", String::from_utf8_lossy(value), tags.join(" "))
        }
        Answer::NotFound { ttl } => format!("not found ttl {ttl:?}"),
    }
}

fn pool(launch: Launch) -> Pool {
    Pool::builder(launch).max(2).spawn().wait().unwrap()
}

#[test]
fn python_over_sqlite_in_every_mode() {
    let file = example("sqlite.py");
    for (name, launch) in [
        ("template", Launch::template("python3", [&file])),
        ("exec", Launch::exec("python3", [&file])),
        ("stdio", Launch::stdio("python3", [&file])),
    ] {
        let directory = scratch(&format!("sqlite-{name}"));
        let pool = pool(launch.env("PYTHONPATH", python_path()).dir(&directory));
        let page = load(&pool, "page:42", &[("id", "42")]).unwrap();
        assert_eq!(page, "Text of page 42. ttl Some(60) tags author:author-2", "{name}");
        for id in ["0", "1001", "18446744073709551616"] {
            assert_eq!(load(&pool, "page", &[("id", id)]).unwrap(), "not found ttl Some(5)", "{name}: {id}");
        }
        let error = load(&pool, "page", &[("ib", "42")]).unwrap_err();
        assert!(error.to_string().contains("has no capture 'id'; its captures: ib"), "{name}: {error}");
        pool.shutdown().wait();
    }
}

#[test]
fn python_in_batches() {
    let launch = Launch::template("python3", [example("sqlite_batch.py")]);
    let launch = launch.env("PYTHONPATH", python_path()).dir(scratch("sqlite-batch"));
    let pool = Pool::builder(launch).max(2).batch(100).spawn().wait().unwrap();
    assert_eq!(load(&pool, "price:42", &[("id", "42")]).unwrap(), "41.58 ttl Some(10) tags prices");
    assert_eq!(load(&pool, "price:0", &[("id", "0")]).unwrap(), "not found ttl Some(5)");
    assert_eq!(load(&pool, "price", &[("id", "18446744073709551616")]).unwrap(), "not found ttl Some(5)");
    pool.shutdown().wait();
}

#[test]
fn python_without_a_server() {
    let run = |file: &str, key: &str, capture: &str| {
        let mut command = Command::new("python3");
        command.args(["-m", "cattlegrid.loader", &example(file), key, capture]);
        command.env("PYTHONPATH", python_path()).current_dir(scratch(&format!("single-{file}")));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let page = run("sqlite.py", "page:42", "id=42");
    assert!(page.contains("\nttl    60 s\ntags   author:author-2\n"), "{page}");
    assert!(page.ends_with("\nText of page 42.\n"), "{page}");
    assert!(run("sqlite_batch.py", "price:42", "id=42").ends_with("\n41.58\n"));
    assert!(run("sqlite_batch.py", "price:0", "id=0").ends_with("\nnot found\n"));
}

#[test]
fn rust_as_a_template() {
    let pool = pool(Launch::template::<&str>(env!("CARGO_BIN_EXE_factors"), []));
    assert_eq!(load(&pool, "factors:60", &[("n", "60")]).unwrap(), "2 2 3 5 ttl Some(3600) tags ");
    assert_eq!(load(&pool, "factors:0", &[("n", "0")]).unwrap(), "not found ttl Some(5)");
    for (captures, text) in [
        (&[("n", "18446744073709551616")], "number too large"),
        (&[("m", "1")], "the rule `rule` has no capture `n`; its captures: m"),
    ] {
        let error = load(&pool, "factors", captures).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let error = pool.call(["not", "a loader's"]).wait().unwrap_err();
    assert!(matches!(&error, Error::Worker { code, .. } if code == "protocol"), "{error}");
    pool.shutdown().wait();
}

/// Jobs of one batch: each has its own answer, and wrong ones are errors of themselves only.
#[test]
fn rust_in_batches() {
    let launch = Launch::template::<&str>(env!("CARGO_BIN_EXE_squares-fixture"), []);
    let pool = Pool::builder(launch).max(1).batch(100).spawn().wait().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let inner = pool.clone();
    // On the pool's thread, so that they come in together; the time of the first job is up at once.
    pool.job(["x"]).timeout(std::time::Duration::ZERO).submit(move |_| {
        let job = |n: u32| match n {
            5 => inner.call(["not", "a loader's"]),
            n => inner.call(job_parts(b"square", "rule", b"", None, &[("n", n.to_string())])),
        };
        sender.send((0..50).map(job).collect::<Vec<_>>()).unwrap();
    });
    let mut sizes = [0; 51];
    for (n, call) in receiver.recv().unwrap().into_iter().enumerate() {
        match (n, call.wait().map(|reply| words(&reply))) {
            (0, Ok(answer)) => assert_eq!(answer, "not found ttl None"),
            (1, Err(error)) => assert!(error.to_string().contains("no blanks"), "{error}"),
            (5, Err(error)) => assert!(error.to_string().contains("5 arguments"), "{error}"),
            (n, answer) => {
                let answer = answer.unwrap();
                let (square, size) = answer.split_once(" of ").unwrap();
                assert_eq!(square, (n * n).to_string());
                sizes[size.split(' ').next().unwrap().parse::<usize>().unwrap()] += 1;
            }
        }
    }
    // The first batch has 19 loads and a job that is none.
    assert_eq!((sizes[19], sizes[20], sizes[10]), (17, 20, 10), "{sizes:?}");
    pool.shutdown().wait();
}

#[test]
fn rust_started_by_hand_says_what_it_is() {
    let output = Command::new(env!("CARGO_BIN_EXE_factors")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("[loader.NAME]"));
}

/// A loader that speaks lines of JSON, through pipes.
struct Lines {
    child: Child,
    replies: BufReader<std::process::ChildStdout>,
}

impl Lines {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .env("CATTLEGRID_MODE", "jsonl")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let replies = BufReader::new(child.stdout.take().unwrap());
        let mut lines = Self { child, replies };
        lines.say(r#"{"type":"init","worker":1,"generation":1,"config":""}"#);
        assert_eq!(lines.hear(), r#"{"ready":true}"#);
        lines
    }

    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    /// Sends a job with these members, which are JSON.
    fn load(&mut self, key: &str, args: &str) -> String {
        let job = r#"{"attempt":0,"deadline_ms":5000,"id":"7","type":"job""#;
        self.say(&format!(
            r#"{job},"key":{key},"rule":"a rule","args":{args},"hint":"h \"args\":{{","stale":"old"}}"#
        ));
        self.hear()
    }

    /// Asks it to leave.
    fn retire(mut self) {
        self.say(r#"{"type":"ping"}"#);
        assert_eq!(self.hear(), r#"{"pong":true}"#);
        self.say(r#"{"type":"retire"}"#);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn shell_by_lines() {
    let mut lines = Lines::start(Command::new("sh").arg(example("greetings.sh")));
    for (name, answer) in [
        (r#""Ada""#, r#""value":"Hello, Ada!","ttl":60,"tags":["greetings"]"#),
        (r#""nobody""#, r#""not_found":5"#),
        // What JSON escapes stays escaped; nothing is a command, a pattern or a format.
        (
            r#""a\"b\\ü \n%s $(id) * ""#,
            r#""value":"Hello, a\"b\\ü \n%s $(id) * !","ttl":60,"tags":["greetings"]"#,
        ),
        (
            r#""\",\"type\":\"retire\"""#,
            r#""value":"Hello, \",\"type\":\"retire\"!","ttl":60,"tags":["greetings"]"#,
        ),
        (r#"{"b64":"/w=="}"#, r#""error":"the rule has no capture name, or it is not UTF-8""#),
    ] {
        let reply = lines.load(r#""greeting:x""#, &format!(r#"{{"name":{name}}}"#));
        assert_eq!(reply, format!("{{{answer}}}"));
    }
    lines.retire();
}

#[test]
fn node_by_lines() {
    let mut lines = Lines::start(Command::new("node").arg(example("hashes.js")));
    let args = |algorithm: &str, text: &str| format!(r#"{{"algorithm":"{algorithm}","text":{text}}}"#);
    let value = |hash: &str| format!(r#"{{"id":"7","value":"{hash}","ttl":3600,"tags":["hash:md5"]}}"#);
    let key = r#""hash:x""#;
    assert_eq!(lines.load(key, &args("md5", r#""""#)), value("d41d8cd98f00b204e9800998ecf8427e"));
    assert_eq!(lines.load(key, &args("md5", r#""a""#)), value("0cc175b9c0f1b6a831c399e269772661"));
    assert_eq!(lines.load(key, &args("md5", r#"{"b64":"/w=="}"#)), value("00594fd4f42ba43fc1ca0427a0576295"));
    assert_eq!(lines.load(key, &args("no-such", r#""a""#)), r#"{"id":"7","not_found":60}"#);
    let error = lines.load(key, r#"{"algorithm":"md5"}"#);
    assert!(error.starts_with(r#"{"id":"7","error":{"code":"exception","message":"TypeError"#), "{error}");
    lines.retire();
}

#[test]
fn python_by_lines() {
    let mut command = Command::new("python3");
    command.arg(example("sqlite.py")).env("PYTHONPATH", python_path()).current_dir(scratch("sqlite-lines"));
    let mut lines = Lines::start(&mut command);
    let page = r#"{"id":"7","value":"Text of page 42.","ttl":60,"tags":["author:author-2"]}"#;
    assert_eq!(lines.load(r#""page:42""#, r#"{"id":"42"}"#), page);
    assert_eq!(lines.load(r#""page:0""#, r#"{"id":"0"}"#), r#"{"id":"7","not_found":5}"#);
    lines.retire();
}

/// The rule file names programs that are there, each by one loader with one rule.
#[test]
fn the_rule_file_names_every_example() {
    let rules = std::fs::read_to_string(example("rules.toml")).unwrap();
    for file in ["sqlite.py", "sqlite_batch.py", "greetings.sh", "hashes.js", "factors"] {
        assert_eq!(rules.matches(&format!("{file}\"]")).count(), 1, "{file}");
    }
    for name in ["pages", "prices", "factors", "greetings", "hashes"] {
        assert!(
            rules.contains(&format!("loader = \"{name}\"")) && rules.contains(&format!("[loader.{name}]"))
        );
    }
}
