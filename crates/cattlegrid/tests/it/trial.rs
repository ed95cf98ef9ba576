//! `cattlegrid check FILE --try KEY`: what is printed, the exit status, and that no process is left.

#![expect(clippy::unwrap_used, reason = "a test may panic, its helpers too")]

use std::process::{Command, Output};

use cattlegrid_load::harness::until;

/// A loader in the shell: its answer depends on the key. `MARK` makes its processes known.
const RULES: &str = r#"
[[rule]]
match = "page:{id}"
loader = "pages"
ttl = "60s"
tags = ["page:{id}"]

[loader.pages]
mode = "jsonl"
timeout = "20s"
command = ["sh", "-c", '''
: MARK
echo '{"ready":true}'
while read -r line; do
  case $line in
    *page:none*) echo '{"not_found":5}' ;;
    *page:bad*) echo '{"error":"no luck: 5 %"}' ;;
    *'"type":"job"'*) echo '{"value":"a\u000ab","ttl":-1,"flags":3,"tags":["x"]}' ;;
  esac
done
''']
"#;

fn check(rules: &str, key: &str) -> (Output, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mark = file.path().display().to_string();
    std::fs::write(file.path(), rules.replace("MARK", &mark)).unwrap();
    let program = env!("CARGO_BIN_EXE_cattlegrid");
    let output = Command::new(program).arg("check").arg(file.path()).args(["--try", key]).output().unwrap();
    until("its processes are gone", || !runs(&mark));
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    (output, text)
}

fn runs(mark: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let words = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    let mark = format!(": {mark}\n");
    processes.filter_map(words).any(|words| String::from_utf8_lossy(&words).contains(&mark))
}

#[test]
fn a_value_an_absence_and_an_error() {
    let (output, text) = check(RULES, "page:1");
    assert_eq!(output.status.code(), Some(0), "{text}");
    let lines: Vec<_> = text.lines().collect();
    let ttl = "ttl    for the clients that wait; it is not kept";
    assert_eq!(lines[..4], [r"value  3 bytes: a\nb", "flags  3", ttl, "tags   page:1 x"]);
    assert!(lines[4].starts_with("time   ") && lines[4].ends_with(" ms"), "{text}");

    let (output, text) = check(RULES, "page:none");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("not found, for 5 s\ntime   "), "{text}");

    let (output, text) = check(RULES, "page:bad");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("loader pages: page:bad: no luck: 5 % (after "), "{text}");
}

#[test]
fn a_loader_that_does_not_start_and_a_key_without_one() {
    let (output, text) = check(&RULES.replace(": MARK", "echo broken >&2; exit 7"), "page:1");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("loader pages: ") && text.contains("broken"), "{text}");
    let (output, text) = check(RULES, "user:1");
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--try \"user:1\": it has no rule"), "{text}");
}
