//! The record: one item for each prefix, with the settings, the numbers that stand for all namespaces, and
//! the evidence.
//!
//! Written with `add` when it is absent, and with `cas` otherwise. It does not expire; its client
//! flags are 0. Numbers are big-endian:
//!
//! | bytes | |
//! |---|---|
//! | 4 | `CGNS` |
//! | 1 | version: 1 |
//! | 1 | flags: 1 tags are used, 2 the optimization is used, 4 a rolling flush begins when the evidence is muddled |
//! | 2 | evidence size E in bytes, an option |
//! | 4 | rolling period in milliseconds |
//! | 1 | length L of the separator |
//! | L | separator |
//! | 1 | number of windows: 1 to 4, newest first; 0 without tags and optimization |
//! | for each: 8 | master number, random |
//! | 8 | when it began, Unix time in milliseconds |
//! | E | evidence, see [`evidence`](super::evidence); absent with tags |
//!
//! Anything else, also bytes after these, is an error and stays as it is.
//!
//! # Windows
//! A rolling flush adds a window without evidence at the front. A key uses the newest window that began at
//! least the key's phase ago, or the oldest of all. A window is dropped with the next change once a newer one
//! began at least a period ago, and the oldest of five at once: its keys change early.

use super::evidence::{Evidence, TextHash};
use super::options::NamespacerOptions;

const MAGIC: &[u8; 4] = b"CGNS";
const VERSION: u8 = 1;
const TAGS: u8 = 1;
const OPTIMIZE: u8 = 2;
const RESET: u8 = 4;
const WINDOWS_MAX: usize = 4;

/// The settings that must be equal in all processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordSettings {
    pub(super) tags: bool,
    pub(super) optimize: bool,
    pub(super) reset_when_muddled: bool,
    pub(super) evidence_size: u16,
    pub(super) period_ms: u32,
    pub(super) separator: String,
}

/// A number that stands for all namespaces, and what was updated since it was drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EvidenceWindow {
    pub(super) master: u64,
    pub(super) start_ms: u64,
    pub(super) evidence: Evidence,
}

/// The record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamespaceRecord {
    pub(super) settings: RecordSettings,
    /// Newest first.
    windows: Vec<EvidenceWindow>,
}

/// An option that differs: its name, its value here and in the record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OptionDifference {
    pub(super) option: &'static str,
    pub(super) here: String,
    pub(super) there: String,
}

impl RecordSettings {
    /// The settings of options that were checked.
    pub(super) fn new(options: &NamespacerOptions, tags: bool) -> Self {
        Self {
            tags,
            optimize: options.optimize,
            reset_when_muddled: options.reset_when_muddled,
            evidence_size: options.evidence_size as u16,
            period_ms: options.rolling_period.as_millis() as u32,
            separator: options.separator.clone(),
        }
    }

    /// Whether there are master numbers.
    pub(super) fn windows(&self) -> bool {
        self.tags || self.optimize
    }

    /// Bytes of evidence in each window.
    fn evidence_bytes(&self) -> usize {
        if self.tags { 0 } else { usize::from(self.evidence_size) }
    }

    /// The first difference to those of the record.
    pub(super) fn difference(&self, there: &Self) -> Option<OptionDifference> {
        let pairs = self.texts().into_iter().zip(there.texts());
        let mut pairs = pairs.map(|((option, here), (_, there))| OptionDifference { option, here, there });
        pairs.find(|pair| pair.here != pair.there)
    }

    /// The names of the options and their values.
    fn texts(&self) -> [(&'static str, String); 6] {
        let period = std::time::Duration::from_millis(u64::from(self.period_ms));
        [
            ("the way of invalidation", if self.tags { "tags" } else { "counters" }.to_owned()),
            ("separator", format!("{:?}", self.separator)),
            ("optimize_with_default_counter_and_evidence", self.optimize.to_string()),
            ("evidence_size", self.evidence_size.to_string()),
            ("reset_when_evidence_muddled", self.reset_when_muddled.to_string()),
            ("rolling_period", format!("{period:?}")),
        ]
    }
}

impl NamespaceRecord {
    /// A record where none was: all keys are new.
    pub(super) fn new(settings: RecordSettings, master: u64, now_ms: u64) -> Self {
        let mut record = Self { windows: Vec::new(), settings };
        if record.settings.windows() {
            record.push(master, now_ms);
        }
        record
    }

    /// When it was made, or a time after that: that of its oldest window. None without windows.
    pub(super) fn began_ms(&self) -> Option<u64> {
        self.windows.last().map(|window| window.start_ms)
    }

    /// The window of a key; None without the optimization.
    pub(super) fn window(&self, key: TextHash, now_ms: u64) -> Option<&EvidenceWindow> {
        let phase_ms = key.phase_ms(u64::from(self.settings.period_ms));
        let begun = |window: &&EvidenceWindow| window.start_ms.saturating_add(phase_ms) <= now_ms;
        self.windows.iter().find(begun).or(self.windows.last())
    }

    /// Notes that a namespace was updated, in all windows; begins a rolling flush with `master` if there are
    /// too many. False: the record needs no change.
    pub(super) fn update(&mut self, namespace: TextHash, master: u64, now_ms: u64) -> bool {
        let dropped = self.drop_old(now_ms);
        let mut changed = !dropped.is_empty();
        for window in &mut self.windows {
            changed |= window.evidence.mark(namespace);
        }
        // The new window needs no mark: its master number is in no key yet.
        if self.settings.reset_when_muddled && self.windows.len() == 1 && self.windows[0].evidence.muddled() {
            self.push(master, now_ms);
            changed = true;
        }
        changed
    }

    /// Begins a rolling flush. Returns the master numbers of the windows that it ends.
    pub(super) fn flush(&mut self, master: u64, now_ms: u64) -> Vec<u64> {
        let mut dropped = self.drop_old(now_ms);
        self.push(master, now_ms);
        dropped.extend(self.windows.drain(WINDOWS_MAX.min(self.windows.len())..).map(|window| window.master));
        dropped
    }

    fn push(&mut self, master: u64, now_ms: u64) {
        let evidence = Evidence::new(self.settings.evidence_bytes());
        self.windows.insert(0, EvidenceWindow { master, start_ms: now_ms, evidence });
    }

    /// Drops the windows that no key uses any more, and returns their master numbers.
    fn drop_old(&mut self, now_ms: u64) -> Vec<u64> {
        let period_ms = u64::from(self.settings.period_ms);
        let over = |window: &EvidenceWindow| window.start_ms.saturating_add(period_ms) <= now_ms;
        let kept = self.windows.iter().position(over).map_or(self.windows.len(), |last| last + 1);
        self.windows.drain(kept..).map(|window| window.master).collect()
    }

    /// The record as it is stored.
    pub(super) fn encode(&self) -> Vec<u8> {
        let settings = &self.settings;
        let mut out = Vec::with_capacity(32 + self.windows.len() * (16 + settings.evidence_bytes()));
        out.extend_from_slice(MAGIC);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(settings.tags, TAGS)
            | flag(settings.optimize, OPTIMIZE)
            | flag(settings.reset_when_muddled, RESET);
        out.extend([VERSION, flags]);
        out.extend(settings.evidence_size.to_be_bytes());
        out.extend(settings.period_ms.to_be_bytes());
        out.push(settings.separator.len() as u8);
        out.extend_from_slice(settings.separator.as_bytes());
        out.push(self.windows.len() as u8);
        for window in &self.windows {
            out.extend(window.master.to_be_bytes());
            out.extend(window.start_ms.to_be_bytes());
            out.extend_from_slice(window.evidence.bytes());
        }
        out
    }

    /// Reads what [`encode`](Self::encode) has written. An error says what is wrong.
    pub(super) fn decode(data: &[u8]) -> Result<Self, String> {
        let mut rest = data;
        if take(&mut rest)? != *MAGIC {
            return Err("it does not begin with CGNS, so another program has written it".to_owned());
        }
        let [version, flags] = take(&mut rest)?;
        if version != VERSION {
            return Err(format!("it has version {version}, and version {VERSION} is known"));
        }
        if flags & !(TAGS | OPTIMIZE | RESET) != 0 {
            return Err(format!("it has the flags {flags:#04x}, some of which are not known"));
        }
        let evidence_size = u16::from_be_bytes(take(&mut rest)?);
        let period_ms = u32::from_be_bytes(take(&mut rest)?);
        let [long] = take(&mut rest)?;
        let (separator, after) = rest.split_at_checked(usize::from(long)).ok_or("it is cut off")?;
        rest = after;
        let settings = RecordSettings {
            tags: flags & TAGS != 0,
            optimize: flags & OPTIMIZE != 0,
            reset_when_muddled: flags & RESET != 0,
            evidence_size,
            period_ms,
            separator: String::from_utf8(separator.to_vec()).map_err(|_| "its separator is not text")?,
        };
        let [windows] = take(&mut rest)?;
        let possible = if settings.windows() { 1..=WINDOWS_MAX } else { 0..=0 };
        if !possible.contains(&usize::from(windows)) || evidence_size == 0 {
            return Err(format!("it has {windows} windows of {evidence_size} bytes"));
        }
        let mut record = Self { windows: Vec::with_capacity(usize::from(windows)), settings };
        for _ in 0..windows {
            let master = u64::from_be_bytes(take(&mut rest)?);
            let start_ms = u64::from_be_bytes(take(&mut rest)?);
            let bits = rest.split_at_checked(record.settings.evidence_bytes()).ok_or("it is cut off")?;
            rest = bits.1;
            record.windows.push(EvidenceWindow { master, start_ms, evidence: Evidence::from_bytes(bits.0) });
        }
        if rest.is_empty() { Ok(record) } else { Err(format!("{} bytes follow its end", rest.len())) }
    }
}

/// The next bytes, which `rest` then begins behind.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (next, after) = rest.split_first_chunk().ok_or("it is cut off")?;
    *rest = after;
    Ok(*next)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings(options: &NamespacerOptions) -> RecordSettings {
        RecordSettings::new(options, false)
    }

    fn ten_seconds() -> RecordSettings {
        settings(&NamespacerOptions::default().evidence_size(2).rolling_period(Duration::from_secs(10)))
    }

    fn hash(text: &str) -> TextHash {
        TextHash::new(text)
    }

    #[test]
    fn the_format_is_the_documented_one() {
        let mut record = NamespaceRecord::new(ten_seconds(), 0x0102_0304_0506_0708, 9);
        record.windows[0].evidence = Evidence::from_bytes(&[0x80, 0x01]);
        assert!(record.flush(u64::MAX, 0x0a0b).is_empty());
        let mut expected = b"CGNS\x01\x06\x00\x02\x00\x00\x27\x10\x01:\x02".to_vec();
        expected.extend(b"\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\x0a\x0b\0\0");
        expected.extend(b"\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\x09\x80\x01");
        assert_eq!(record.encode(), expected);
        assert_eq!(NamespaceRecord::decode(&expected), Ok(record));
    }

    #[test]
    fn every_kind_of_record_is_read_as_written() {
        for (tags, optimize) in [(false, false), (false, true), (true, false), (true, true)] {
            let options = NamespacerOptions::default().optimize_with_default_counter_and_evidence(optimize);
            let mut record = NamespaceRecord::new(RecordSettings::new(&options.separator("::"), tags), 1, 2);
            assert_eq!(NamespaceRecord::decode(&record.encode()), Ok(record.clone()));
            if record.settings.windows() {
                for start in 0..5 {
                    record.flush(start, start);
                }
                assert_eq!(record.windows.len(), 4);
                assert_eq!(NamespaceRecord::decode(&record.encode()), Ok(record));
            }
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        let whole = NamespaceRecord::new(ten_seconds(), 1, 2).encode();
        for end in 0..whole.len() {
            assert!(NamespaceRecord::decode(&whole[..end]).is_err(), "{end}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert!(NamespaceRecord::decode(&longer).unwrap_err().contains("follow"));
        for (at, byte, text) in
            [(0, b'X', "CGNS"), (4, 2, "version 2"), (5, 0x86, "flags"), (14, 5, "windows")]
        {
            let mut other = whole.clone();
            other[at] = byte;
            assert!(NamespaceRecord::decode(&other).unwrap_err().contains(text), "{at}");
        }
    }

    #[test]
    fn windows_change_by_phase_and_end() {
        let mut record = NamespaceRecord::new(ten_seconds(), 1, 0);
        assert!(record.flush(2, 100_000).is_empty());
        let key = hash("___userId:7");
        let phase = key.phase_ms(10_000);
        let master = |record: &NamespaceRecord, now| record.window(key, now).unwrap().master;
        assert_eq!(master(&record, 0), 1);
        assert_eq!(master(&record, 100_000 + phase - 1), 1);
        assert_eq!(master(&record, 100_000 + phase), 2);
        assert!(record.flush(3, 109_999).is_empty());
        assert_eq!(master(&record, 109_999), 2);
        assert_eq!(record.flush(4, 110_000), [1_u64], "the first flush is over");
        assert!(record.flush(5, 110_001).is_empty());
        assert_eq!(record.flush(6, 110_002), [2_u64], "a fifth window ends the oldest");
        assert_eq!(master(&record, 110_002), 3, "the oldest left, though its time has not come");
    }

    #[test]
    fn an_update_is_noted_in_all_windows() {
        let mut record = NamespaceRecord::new(ten_seconds(), 1, 0);
        record.flush(2, 5);
        assert!(record.update(hash("userId:1"), 9, 6));
        assert!(record.windows.iter().all(|window| window.evidence.marked(hash("userId:1"))));
        assert!(!record.update(hash("userId:1"), 9, 7), "noted already");
        assert!(record.update(hash("userId:1"), 9, 20_000), "the old window is dropped");
        assert_eq!(record.windows.len(), 1);
    }

    #[test]
    fn muddled_evidence_begins_one_flush() {
        let mut record = NamespaceRecord::new(ten_seconds(), 1, 0);
        let mut id = 0;
        let mut update = |record: &mut NamespaceRecord, now| {
            id += 1;
            record.update(hash(&format!("userId:{id}")), 100 + id, now)
        };
        while record.windows.len() == 1 {
            update(&mut record, 50);
        }
        assert_eq!(record.windows[0].evidence, Evidence::new(2));
        for _ in 0..100 {
            update(&mut record, 51);
        }
        assert_eq!(record.windows.len(), 2, "not another while one is in force");
        assert!(record.windows[0].evidence.muddled());
        let newest = record.windows[0].master;
        update(&mut record, 10_050);
        assert_eq!(record.windows[1].master, newest, "the next once the first is over");

        let never = RecordSettings { reset_when_muddled: false, ..ten_seconds() };
        let mut record = NamespaceRecord::new(never, 1, 0);
        for _ in 0..100 {
            update(&mut record, 50);
        }
        assert_eq!(record.windows.len(), 1);
    }

    #[test]
    fn each_option_that_differs_is_named() {
        let options = NamespacerOptions::default;
        let here = settings(&options());
        let others = [
            (RecordSettings::new(&options(), true), "the way of invalidation"),
            (settings(&options().separator("/")), "separator"),
            (settings(&options().optimize_with_default_counter_and_evidence(false)), "optimize_with_default"),
            (settings(&options().evidence_size(81)), "evidence_size"),
            (settings(&options().reset_when_evidence_muddled(false)), "reset_when_evidence_muddled"),
            (settings(&options().rolling_period(Duration::from_secs(179))), "rolling_period"),
        ];
        for (there, option) in others {
            let difference = here.difference(&there).unwrap();
            assert!(difference.option.starts_with(option), "{difference:?}");
            assert_ne!(difference.here, difference.there);
        }
        assert_eq!(here.difference(&here), None);
    }
}
