//! Which patterns can match a key, found by the literals with which they begin and end.
//!
//! The prefixes of the patterns form a radix tree: a node is a common prefix of several of them, and its
//! children differ in their first byte. A key is followed down as far as it matches. Every node has the list
//! of all patterns whose prefix is at or above it, in the order of the patterns; the last bytes and the
//! shortest length of each pattern are checked before it is tried.
//!
//! Keys that clients use as locks, with `add` (`_lock*`, `lock:*`, `*:lock` and `*_lock`), match a pattern
//! only if it spells the lock out: a lock that is not held must be absent.

use crate::rules::pattern::Pattern;

/// The patterns by the literals with which they begin and end.
#[derive(Debug)]
pub(crate) struct RuleIndex {
    /// The root first; the children of a node are next to each other.
    nodes: Box<[PrefixNode]>,
    /// The byte that leads to each node; the root's is unused.
    first: Box<[u8]>,
    /// The labels of all nodes.
    labels: Box<[u8]>,
    candidates: Box<[Candidate]>,
}

/// A range of one of the index's arrays.
type Range = std::ops::Range<u32>;

#[derive(Debug, Clone)]
struct PrefixNode {
    /// The bytes that must follow the one that leads here.
    label: Range,
    children: Range,
    candidates: Range,
}

/// A pattern that may match, and the quick checks for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// The pattern's place in the order of all patterns.
    pub(crate) number: u32,
    /// A mask of the bits of a key's last four bytes that the pattern gives, and their values.
    end: (u32, u32),
    /// Length of the shortest key that it matches, in bytes.
    shortest: u8,
    locks: LockForms,
}

/// Properties of a key, read once for all candidates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyTraits {
    len: usize,
    /// The key's last four bytes, the last one lowest.
    end: u32,
    locks: LockForms,
}

impl KeyTraits {
    #[inline]
    pub(crate) fn of(key: &[u8]) -> Self {
        Self { len: key.len(), end: end_of(key), locks: LockForms::of_key(key) }
    }
}

#[inline]
fn end_of(bytes: &[u8]) -> u32 {
    match bytes.last_chunk() {
        Some(end) => u32::from_be_bytes(*end),
        None => bytes.iter().fold(0, |end, byte| end << 8 | u32::from(*byte)),
    }
}

impl Candidate {
    fn new(number: usize, pattern: &Pattern) -> Self {
        let suffix = pattern.suffix();
        let given = u32::MAX.checked_shr(32 - 8 * suffix.len().min(4) as u32).unwrap_or(0);
        Self {
            number: number as u32,
            end: (given, end_of(suffix)),
            // A pattern that needs more than KEY_MAX, 250 bytes, is refused.
            shortest: pattern.shortest() as u8,
            locks: LockForms::of_pattern(pattern),
        }
    }

    #[inline]
    pub(crate) fn may_match(&self, key: KeyTraits) -> bool {
        key.end & self.end.0 == self.end.1
            && key.len >= usize::from(self.shortest)
            && self.locks.allow(key.locks)
    }
}

/// Which of the four forms of a lock a key has, or a pattern spells out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockForms(u8);

impl LockForms {
    /// None of them.
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) fn of_key(key: &[u8]) -> Self {
        Self::of_ends(key, key)
    }

    pub(crate) fn of_pattern(pattern: &Pattern) -> Self {
        Self::of_ends(&pattern.prefix, pattern.suffix())
    }

    #[inline]
    fn of_ends(start: &[u8], end: &[u8]) -> Self {
        let mut forms = 0;
        // The first or the last byte rules out nearly all keys.
        if let Some(b'_' | b'l') = start.first() {
            forms |= u8::from(start.starts_with(b"_lock")) | u8::from(start.starts_with(b"lock:")) << 1;
        }
        if end.last() == Some(&b'k') {
            forms |= u8::from(end.ends_with(b":lock")) << 2 | u8::from(end.ends_with(b"_lock")) << 3;
        }
        Self(forms)
    }

    /// Whether a pattern that spells these forms out applies to a key with the forms `key`.
    #[inline]
    pub(crate) fn allow(self, key: Self) -> bool {
        key.0 == 0 || key.0 & self.0 != 0
    }

    /// Whether these include all forms of `other`.
    pub(crate) fn include(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}

impl RuleIndex {
    /// `patterns` in their order.
    pub(crate) fn new(patterns: &[&Pattern]) -> Self {
        Self::of_some(&patterns.iter().copied().enumerate().collect::<Vec<_>>())
    }

    /// Some patterns, each with its place among all, in their order.
    pub(crate) fn of_some(patterns: &[(usize, &Pattern)]) -> Self {
        let mut prefixes: Vec<&[u8]> = patterns.iter().map(|(_, pattern)| &*pattern.prefix).collect();
        prefixes.push(b"");
        prefixes.sort_unstable();
        prefixes.dedup();

        let root = PrefixNode { label: 0..0, children: 0..0, candidates: 0..0 };
        let (mut nodes, mut first) = (vec![root], vec![0]);
        let (mut labels, mut candidates) = (Vec::new(), Vec::new());
        // For each node: the prefixes that begin with it, and its length.
        let mut groups = vec![(&prefixes[..], 0)];
        let mut number = 0;
        while let Some(&(mut group, depth)) = groups.get(number) {
            if let [own, longer @ ..] = group
                && own.len() == depth
            {
                let from = candidates.len() as u32;
                let at_or_above = patterns.iter().filter(|(_, p)| own.starts_with(&p.prefix));
                candidates.extend(at_or_above.map(|(number, pattern)| Candidate::new(*number, pattern)));
                nodes[number].candidates = from..candidates.len() as u32;
                group = longer;
            }
            let children_from = nodes.len() as u32;
            for child in group.chunk_by(|a, b| a[depth] == b[depth]) {
                // They are sorted, so what the first and the last share, all share.
                let (least, greatest) = (child[0], child[child.len() - 1]);
                let shared = least.iter().zip(greatest).take_while(|(a, b)| a == b).count();
                let label_from = labels.len() as u32;
                labels.extend_from_slice(&least[depth + 1..shared]);
                nodes.push(PrefixNode {
                    label: label_from..labels.len() as u32,
                    children: 0..0,
                    candidates: nodes[number].candidates.clone(),
                });
                first.push(least[depth]);
                groups.push((child, shared));
            }
            nodes[number].children = children_from..nodes.len() as u32;
            number += 1;
        }
        Self {
            nodes: nodes.into(),
            first: first.into(),
            labels: labels.into(),
            candidates: candidates.into(),
        }
    }

    /// Patterns with whose prefix `key` begins, in their order.
    #[inline]
    pub(crate) fn candidates(&self, key: &[u8]) -> &[Candidate] {
        let mut node = &self.nodes[0];
        let mut rest = key;
        while let Some((byte, tail)) = rest.split_first()
            && let Some(child) = memchr::memchr(*byte, slice(&self.first, &node.children))
            && let next = &self.nodes[node.children.start as usize + child]
            && let Some(behind) = tail.strip_prefix(slice(&self.labels, &next.label))
        {
            (node, rest) = (next, behind);
        }
        slice(&self.candidates, &node.candidates)
    }
}

#[inline]
fn slice<'a, T>(all: &'a [T], range: &Range) -> &'a [T] {
    &all[range.start as usize..range.end as usize]
}
