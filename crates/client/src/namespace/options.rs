//! Options of a [`Namespacer`](super::Namespacer), and their ranges.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::evidence::EVIDENCE_MAX;
use crate::calls::setters;
use crate::error::Error;
use crate::item::{Clock, system_time};

/// Options of a [`Namespacer`](crate::Namespacer). They must be the same in all processes that use the same
/// prefix, which is checked: [`Error::SettingsDiffer`].
///
/// To change them, use another prefix, or stop all processes, delete the item `PREFIXrecord` and start them
/// with the new ones.
#[derive(Clone)]
#[must_use]
pub struct NamespacerOptions {
    pub(super) prefix: String,
    pub(super) separator: String,
    pub(super) optimize: bool,
    pub(super) evidence_size: usize,
    pub(super) reset_when_muddled: bool,
    pub(super) rolling_period: Duration,
    pub(super) use_tags: bool,
    pub(super) clock: Clock,
}

const PREFIX_MAX: usize = 100;
const SEPARATOR_MAX: usize = 4;
const PERIOD_MIN: Duration = Duration::from_secs(1);
const PERIOD_MAX: Duration = Duration::from_secs(86_400);

impl Default for NamespacerOptions {
    fn default() -> Self {
        Self {
            prefix: "___".to_owned(),
            separator: ":".to_owned(),
            optimize: true,
            evidence_size: 80,
            reset_when_muddled: true,
            rolling_period: Duration::from_secs(180),
            use_tags: true,
            clock: Arc::new(system_time),
        }
    }
}

impl NamespacerOptions {
    /// An error names the first option that is out of its range.
    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Usage(text));
        let prefix = &self.prefix;
        if prefix.is_empty()
            || prefix.len() > PREFIX_MAX
            || !prefix.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return wrong(format!(
                "prefix {prefix:?}: 1 to {PREFIX_MAX} bytes of ASCII without blanks and control characters are possible"
            ));
        }
        if prefix.contains('%') || prefix.contains(',') {
            return wrong(format!("prefix {prefix:?}: the characters % and , are not possible"));
        }
        let separator = &self.separator;
        let possible = |byte: u8| byte.is_ascii_punctuation() && !matches!(byte, b'%' | b',' | b'|');
        if separator.is_empty() || separator.len() > SEPARATOR_MAX || !separator.bytes().all(possible) {
            return wrong(format!(
                "separator {separator:?}: 1 to {SEPARATOR_MAX} characters of ASCII punctuation other than % , | are possible"
            ));
        }
        if !(1..=EVIDENCE_MAX).contains(&self.evidence_size) {
            return wrong(format!(
                "evidence_size {}: 1 to {EVIDENCE_MAX} bytes are possible",
                self.evidence_size
            ));
        }
        let period = self.rolling_period;
        if !(PERIOD_MIN..=PERIOD_MAX).contains(&period) || !period.subsec_nanos().is_multiple_of(1_000_000) {
            return wrong(format!(
                "rolling_period {period:?}: 1s to 86400s in whole milliseconds are possible"
            ));
        }
        Ok(())
    }
}

setters! {
impl NamespacerOptions {
    /// All keys in the cache that the namespacer uses begin with this text: 1 to 100 bytes of ASCII without
    /// blanks, control characters, `%` and `,`; it should not begin with `@`, as Cattlegrid's control keys
    /// do. Default: `___`. No prefix in use may be the beginning of another.
    pub fn prefix(prefix: impl Into<String>) => prefix = prefix.into();

    /// Stands between the parts of a key: 1 to 4 ASCII punctuation characters other than `%`, `,` and `|`.
    /// Default: `:`. In names and ids it is percent-encoded.
    pub fn separator(separator: impl Into<String>) => separator = separator.into();

    /// Whether one master number stands for all namespaces that were not updated. Default: true. Without it
    /// the numbers of all namespaces are read for each key, and there is no rolling flush. No effect on a
    /// cache with tags.
    pub fn optimize_with_default_counter_and_evidence(optimize: bool) => optimize = optimize;

    /// Size of the evidence in bytes, 1 to 8192. Default: 80, with which 7 to 8 % of the keys need their
    /// namespace's own number after 100 updates, and half of them after 393. It is read for each key, up to
    /// four times this during rolling flushes.
    pub fn evidence_size(bytes: usize) => evidence_size = bytes;

    /// Whether an update begins a rolling flush when half of the keys need their namespace's own number.
    /// Default: true.
    pub fn reset_when_evidence_muddled(reset: bool) => reset_when_muddled = reset;

    /// The time over which the keys change in a rolling flush, 1 second to 1 day in whole milliseconds.
    /// Default: 180 seconds.
    pub fn rolling_period(period: Duration) => rolling_period = period;

    /// Whether the tags of the servers are used if all of them have some. Default: true. With false, numbers
    /// are used as over plain memcached: for programs that share the namespaces with clients that do not know
    /// tags.
    pub fn use_tags(use_tags: bool) => use_tags = use_tags;

    /// Where the present time comes from. Default: the system's clock. For tests of rolling flushes.
    pub fn clock(clock: impl Fn() -> SystemTime + Send + Sync + 'static) => clock = Arc::new(clock);
}
}

impl fmt::Debug for NamespacerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamespacerOptions")
            .field("prefix", &self.prefix)
            .field("separator", &self.separator)
            .field("optimize_with_default_counter_and_evidence", &self.optimize)
            .field("evidence_size", &self.evidence_size)
            .field("reset_when_evidence_muddled", &self.reset_when_muddled)
            .field("rolling_period", &self.rolling_period)
            .field("use_tags", &self.use_tags)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_are_named() {
        let options = NamespacerOptions::default;
        let wrong = [
            (options().prefix(""), "prefix"),
            (options().prefix("a".repeat(101)), "prefix"),
            (options().prefix("a b"), "prefix"),
            (options().prefix("ä"), "prefix"),
            (options().prefix("a%"), "prefix"),
            (options().separator(""), "separator"),
            (options().separator(":::::"), "separator"),
            (options().separator("a"), "separator"),
            (options().separator("%"), "separator"),
            (options().separator(":|"), "separator"),
            (options().evidence_size(0), "evidence_size"),
            (options().evidence_size(8193), "evidence_size"),
            (options().rolling_period(Duration::from_millis(999)), "rolling_period"),
            (options().rolling_period(Duration::from_micros(1_000_500)), "rolling_period"),
            (options().rolling_period(Duration::MAX), "rolling_period"),
        ];
        for (options, name) in wrong {
            let error = options.check().unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
        let right = [
            options(),
            options().prefix("a".repeat(100)).separator("::::").evidence_size(1).rolling_period(PERIOD_MIN),
            options().prefix("x").separator("#").evidence_size(8192).rolling_period(PERIOD_MAX),
        ];
        for options in right {
            options.check().unwrap();
        }
    }
}
