//! Findings of `cattlegrid doctor`, and how they are printed.

use std::fmt::Write as _;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Something fails, loses data, or lets others in.
    Problem,
    /// The server works; with the change it works better, or for longer.
    Advice,
}

impl Severity {
    const fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Advice => "advice",
        }
    }
}

/// Something to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) level: Severity,
    /// The thing that was checked.
    pub(crate) check: &'static str,
    /// The value, and where it is from.
    pub(crate) found: String,
    /// The consequence for the user.
    pub(crate) why: String,
    /// The command or the line that mends it.
    pub(crate) mend: String,
}

/// All findings.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) list: Vec<Finding>,
    /// Checks without a finding: the thing that was checked, and its state.
    pub(crate) passed: Vec<(&'static str, String)>,
    /// Checks that were not possible: the thing, and how it can be checked.
    pub(crate) unseen: Vec<(&'static str, String)>,
}

impl Findings {
    pub(crate) fn problem(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.push(Severity::Problem, check, found.into(), why.into(), mend.into());
    }

    pub(crate) fn advice(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.push(Severity::Advice, check, found.into(), why.into(), mend.into());
    }

    fn push(&mut self, level: Severity, check: &'static str, found: String, why: String, mend: String) {
        self.list.push(Finding { level, check, found, why, mend });
    }

    pub(crate) fn passed(&mut self, check: &'static str, found: impl Into<String>) {
        self.passed.push((check, found.into()));
    }

    pub(crate) fn unseen(&mut self, check: &'static str, how: impl Into<String>) {
        self.unseen.push((check, how.into()));
    }

    fn count(&self, level: Severity) -> usize {
        self.list.iter().filter(|finding| finding.level == level).count()
    }

    /// Whether there is none that is more than advice.
    pub(crate) fn is_good(&self) -> bool {
        self.count(Severity::Problem) == 0
    }

    /// For people: problems first, and at the end how much there is of everything.
    pub(crate) fn text(&self, about: &str, verbose: bool) -> String {
        let mut text = String::new();
        let mut line = |name: &str, words: std::fmt::Arguments<'_>| {
            // Of a pipe without a line end within, `grep` finds what belongs together.
            let words = words.to_string().replace('\n', " ");
            let _infallible = writeln!(text, "{name:<8} {words}");
        };
        let mut sorted: Vec<&Finding> = self.list.iter().collect();
        sorted.sort_by_key(|finding| finding.level);
        for Finding { level, check, found, why, mend } in sorted {
            line(level.name(), format_args!("{check}: {found}"));
            line("", format_args!("{why}"));
            line("", format_args!("change: {mend}"));
        }
        for (check, how) in &self.unseen {
            line("unseen", format_args!("{check}: {how}"));
        }
        for (check, found) in self.passed.iter().filter(|_| verbose) {
            line("ok", format_args!("{check}: {found}"));
        }
        let counts = [
            (self.count(Severity::Problem), "problem", "problems"),
            (self.count(Severity::Advice), "piece of advice", "pieces of advice"),
        ];
        let counts: Vec<String> = counts
            .iter()
            .filter(|(count, _, _)| *count > 0)
            .map(|(count, one, many)| format!("{count} {}", if *count == 1 { one } else { many }))
            .collect();
        let said = if counts.is_empty() { "nothing to change".to_owned() } else { counts.join(", ") };
        let passed = match self.passed.len() {
            1 => "1 check passed".to_owned(),
            passed => format!("{passed} checks passed"),
        };
        let _infallible = writeln!(text, "{about}: {said}; {passed}");
        text
    }

    /// The same as a JSON object on one line.
    pub(crate) fn json(&self, about: &str) -> String {
        let findings: Vec<_> = self
            .list
            .iter()
            .map(|finding| {
                serde_json::json!({
                    "level": finding.level.name(), "check": finding.check, "found": finding.found,
                    "why": finding.why, "change": finding.mend,
                })
            })
            .collect();
        let pairs = |list: &[(&'static str, String)], name: &str| {
            let each = list.iter().map(|(check, text)| serde_json::json!({"check": check, name: text}));
            each.collect::<Vec<_>>()
        };
        let all = serde_json::json!({
            "server": about,
            "problems": self.count(Severity::Problem),
            "advice": self.count(Severity::Advice),
            "findings": findings,
            "unseen": pairs(&self.unseen, "how"),
            "passed": pairs(&self.passed, "found"),
        });
        format!("{all}\n")
    }
}

/// Bytes as a person reads them: whole MiB, or KiB of less.
pub(crate) fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes.div_ceil(1 << 10)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_first_and_what_is_fine_only_if_asked_for() {
        let mut findings = Findings::default();
        assert_eq!(findings.text("-m 64", false), "-m 64: nothing to change; 0 checks passed\n");
        assert!(findings.is_good());
        findings.passed("port", "127.0.0.1:11211");
        findings.advice("swap", "1 GiB", "Why\nnot.", "do");
        assert!(findings.is_good());
        findings.problem("files", "256", "It fails.", "more");
        findings.unseen("limits", "run it as root");
        assert!(!findings.is_good());
        let expected = "\
problem  files: 256
         It fails.
         change: more
advice   swap: 1 GiB
         Why not.
         change: do
unseen   limits: run it as root
x: 1 problem, 1 piece of advice; 1 check passed
";
        assert_eq!(findings.text("x", false), expected);
        assert!(findings.text("x", true).contains("ok       port: 127.0.0.1:11211\n"));
        let json: serde_json::Value = serde_json::from_str(&findings.json("x")).unwrap();
        assert_eq!((&json["problems"], &json["advice"]), (&1.into(), &1.into()));
        assert_eq!(json["findings"][1]["change"], "more");
        assert_eq!(json["passed"][0]["check"], "port");
    }
}
