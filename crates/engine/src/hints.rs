//! What keeps a key from having a rule, or from being a call: a prefix that the server does not know, a
//! method that does not exist.

use cattlegrid_objects::Registry;
use cattlegrid_tags::PrefixId;

use crate::rules::unmatched::{self, BehindPrefix};
use crate::rules::{ActiveRules, PrefixHint};
use crate::shared::EngineShared;
use crate::step::Step;

impl EngineShared {
    /// Takes a sample of the keys that have no rule.
    #[cold]
    pub(crate) fn note_unmatched(&self, key: &[u8]) {
        if self.prefixes().split(key).0 != PrefixId::NONE {
            return;
        }
        let (active, objects) = (self.rules(), self.objects());
        self.unmatched.note(key, |rest| self.meant(rest, active.as_deref(), objects.as_deref()));
    }

    /// What keeps a key from having a rule, or from being a name: a prefix that the server does not know.
    fn prefix_hint(&self, key: &[u8]) -> Option<String> {
        if self.prefixes().split(key).0 != PrefixId::NONE {
            return None;
        }
        let (active, objects) = (self.rules(), self.objects());
        let (prefix, meant) =
            unmatched::behind(key, |rest| self.meant(rest, active.as_deref(), objects.as_deref()))?;
        let prefix = std::str::from_utf8(prefix).ok()?;
        let what = match meant {
            BehindPrefix::Rule(number) => format!("have rule {number}"),
            BehindPrefix::Control => "be a control key".to_owned(),
            BehindPrefix::Object => "name an object".to_owned(),
        };
        let remedy = unmatched::remedy(prefix, !self.prefixes().is_empty());
        Some(format!("it would {what} behind {prefix:?}: {remedy}"))
    }

    /// A key that is not there, and would be a call if its method existed, leaves a line of the log, once for
    /// each such method.
    #[cold]
    pub(crate) fn note_stray(&self, key: &[u8], step: &mut Step<'_>) {
        if !self.has_objects() {
            return;
        }
        let objects = self.objects();
        let Some(registry) = objects.as_ref() else { return };
        if let Some(stray) = registry.stray(key).filter(|stray| registry.is_new_stray(stray)) {
            step.effects.line(stray.to_string());
        }
    }

    /// What keeps a key from being a call: there is no such method; or a key without a rule from having one.
    pub(crate) fn hint(&self, key: &[u8], is_ruled: bool) -> Option<String> {
        let stray = self.objects().as_ref().and_then(|registry| registry.stray(key));
        let of_prefix = || if is_ruled { None } else { self.prefix_hint(key) };
        stray.map(|stray| stray.to_string()).or_else(of_prefix)
    }

    /// The meaning that a key would have behind a prefix that the server knows.
    fn meant(
        &self,
        key: &[u8],
        active: Option<&ActiveRules>,
        objects: Option<&Registry>,
    ) -> Option<BehindPrefix> {
        let control = self.control.get().filter(|control| !control.is_empty());
        if control.is_some_and(|control| key.starts_with(control)) {
            return Some(BehindPrefix::Control);
        }
        if objects.is_some_and(|registry| registry.named(key).is_some()) {
            return Some(BehindPrefix::Object);
        }
        active?.rules().find_name(key).map(|rule| BehindPrefix::Rule(rule.number))
    }

    /// Prefixes that the server should know, since keys without a rule would have one behind them.
    pub fn prefix_hints(&self) -> Vec<PrefixHint> {
        let active = self.rules();
        let rule_of = |number: u32| active.as_ref()?.each().nth(number as usize - 1);
        let hint = |(prefix, meant, count, sampled): (Box<[u8]>, BehindPrefix, u64, u64)| {
            let prefix = String::from_utf8(prefix.into()).ok()?;
            let rule = match meant {
                // Where the rule has keys, those behind a text of their own may be others on purpose:
                // counters, locks.
                BehindPrefix::Rule(number) => {
                    let (rule, _) = rule_of(number).filter(|(_, state)| !state.has_matched())?;
                    Some((rule.number, rule.pattern.text().to_owned()))
                }
                BehindPrefix::Control | BehindPrefix::Object => None,
            };
            Some(PrefixHint { prefix, rule, has_some: !self.prefixes().is_empty(), count, sampled })
        };
        self.unmatched.frequent().into_iter().filter_map(hint).collect()
    }
}
