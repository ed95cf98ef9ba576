//! The mistakes in a rule file.

use std::path::Path;

/// Mistakes and their offsets, in any order.
#[derive(Debug, Default)]
pub(crate) struct Problems(Vec<(usize, String)>);

impl Problems {
    pub(crate) fn add(&mut self, offset: usize, problem: impl Into<String>) {
        self.0.push((offset, problem.into()));
    }

    /// Reports a key or table that is not one of `known`; `label` names the enclosing table in messages.
    pub(crate) fn unknown<'k>(
        &mut self,
        offset: usize,
        label: &str,
        name: &str,
        known: impl Iterator<Item = &'k str>,
    ) {
        let what = if label.is_empty() { name.to_owned() } else { format!("{label}: {name}") };
        self.add(offset, format!("{what}: is unknown; {}", nearest(name, known)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The texts of the mistakes, without places.
    pub(crate) fn texts(self) -> Vec<String> {
        self.0.into_iter().map(|(_, problem)| problem).collect()
    }

    /// The mistakes, a line each, in the order of the file, whose text is `text`.
    pub(crate) fn lines(mut self, path: &Path, text: &str) -> Vec<String> {
        self.0.sort();
        let (mut line, mut counted) = (1, 0);
        self.0
            .into_iter()
            .map(|(offset, problem)| {
                let offset = offset.min(text.len()).max(counted);
                line += newlines(&text.as_bytes()[counted..offset]);
                counted = offset;
                format!("{}:{line}: {}", path.display(), one_line(&problem))
            })
            .collect()
    }
}

/// A message in one line, since it may quote escaped characters of the file.
fn one_line(problem: &str) -> String {
    let mut line = String::with_capacity(problem.len());
    for c in problem.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// The line of an offset, from 1.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    newlines(&text.as_bytes()[..offset.min(text.len())]) + 1
}

pub(crate) fn newlines(text: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', text).count()
}

/// A hint after an unknown name: the most similar name, or all names.
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    let known: Vec<&str> = known.collect();
    match most_similar(name, known.iter().copied()) {
        Some(best) => format!("did you mean {best}?"),
        None => format!("there are {}", known.join(", ")),
    }
}

/// The most similar name, if one is similar enough.
pub(crate) fn most_similar<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let similarity = |other: &str| strsim::jaro_winkler(name, other);
    let best = known.max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    // Similar names share a beginning; below this value they have little in common.
    best.filter(|best| similarity(best) >= 0.75)
}
