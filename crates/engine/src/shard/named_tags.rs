//! Tags that a value gets besides those of its rule and those that its command names: its first line names
//! them, or they were announced for its key.
//!
//! They are known before the value is judged, as those that an `ms` names: a fill is asked for all of them
//! (history 2 of `fill`).
//!
//! # Histories
//! H misses a key, X is another client. A number behind "at" is the clock's. The tests named are in `tests/`.
//!
//! 1. H misses at 5. X bumps at 6 a tag that only H's value will name. H stores: the line is read first, 5 <
//!    6, the value is dropped. (`named_tags.rs`: `a_value_is_fenced_by_the_tags_of_its_line`)
//! 2. H's value has a line that cannot be taken. It would have filled H's miss, which is counted off, and the
//!    lease passes on; after a `set` the old value goes, as with any value that is refused. (`named_tags.rs`:
//!    `a_refused_line_passes_the_lease_on_and_leaves_no_old_value`)
//! 3. A value in pages of its own arrives while the rule's `tags_in_value` is changed by a reload. The line
//!    is taken off before the shard is locked, and its tags count whatever the rule says then. If it was not
//!    taken off and should have been, the value is refused: it is never stored with a line that was not read.
//!    (`cut_line` in `engine/room.rs`)

//! 4. X announces tag a for the key at 4 and H at 5; H's miss is at 3, and a bump of a comes at 6. Any value
//!    of the key that is stored now has the tag, and H's value, 3 < 6, is dropped. (`announced_tags.rs`:
//!    `a_bump_of_an_announced_tag_drops_what_was_computed_before_it`)
//! 5. Tags were announced, and then a reload gave the key more tags, so that they are more than fit. None of
//!    them may be left out: the value is refused. (`announced_tags.rs`:
//!    `a_reload_that_leaves_no_room_for_them_refuses_the_value`)

use std::sync::atomic::Ordering;

use cattlegrid_herd::TagsInValue;
use cattlegrid_tags::{TAG_LINE, TagError, TagLine, TagList};

use crate::announced::{ANNOUNCED_MAX, AnnounceError};
use crate::rules::OwnedMatch;
use crate::shard::Shard;
use crate::shard::put::{TagsRefused, Write, WriteData, WriteMode, WriteOutcome};
use crate::step::Context;
use crate::time::Now;

impl Shard {
    /// A storing command of a key under a rule, with the tags that its value brings and those announced for
    /// its key.
    pub(crate) fn write_tagged(
        &mut self,
        write: &Write<'_>,
        ruled: &OwnedMatch,
        cx: &mut Context<'_>,
    ) -> WriteOutcome {
        let policy = ruled.state.policy();
        let takes = policy.tags_in_value != TagsInValue::No || write.data.is_cut();
        if !takes && !policy.needs_announced_tags && self.announced.is_empty() {
            return self.write_ruled(write, ruled, cx);
        }
        let mut tagged = Write { data: write.data.clone(), ..*write };
        match self.add_tags(&mut tagged, ruled, cx.step.now.ms) {
            Ok(()) => self.write_ruled(&tagged, ruled, cx),
            Err(refused) => {
                let counters = ruled.state.counters();
                let counter = match refused {
                    TagsRefused::Invalid(_) => &counters.stores_tags_invalid,
                    TagsRefused::Missing => &counters.stores_without_tags,
                    TagsRefused::Unannounced => &counters.stores_unannounced,
                };
                counter.fetch_add(1, Ordering::Relaxed);
                // History 2.
                self.refused(write, cx);
                WriteOutcome::Refused(refused)
            }
        }
    }

    /// Adds to the tags that the command names those of the value's first line, which is taken off, and those
    /// announced for the key.
    fn add_tags(&self, write: &mut Write<'_>, ruled: &OwnedMatch, now_ms: u64) -> Result<(), TagsRefused> {
        let policy = ruled.state.policy();
        // A part of a value, or the answer that there is none.
        let is_part = matches!(write.mode, WriteMode::Append | WriteMode::Prepend);
        let is_value = !is_part && !write.negative;
        let line = if is_part { None } else { self.line_of(write, policy.tags_in_value)? };
        match line {
            Some((tags, bytes)) => {
                write.tags = write.tags.union(&tags)?;
                if let WriteData::Inline(value) = &mut write.data {
                    *value = &value[bytes..];
                }
            }
            None if policy.tags_in_value == TagsInValue::Required && is_value => {
                return Err(TagsRefused::Missing);
            }
            None => {}
        }
        match self.announced.of(write.hash, now_ms) {
            Some((tags, _)) => write.tags = write.tags.union(tags)?,
            None if policy.needs_announced_tags && is_value => return Err(TagsRefused::Unannounced),
            None => {}
        }
        // History 5.
        ruled.tags.union(&write.tags)?;
        Ok(())
    }

    /// The tags that a value's first line names, and the bytes of the line.
    fn line_of(
        &self,
        write: &Write<'_>,
        taken: TagsInValue,
    ) -> Result<Option<(TagList, usize)>, TagsRefused> {
        let front: Vec<u8>;
        let line = match &write.data {
            WriteData::Huge(huge) if huge.front_len() > 0 => {
                front = huge.front().flatten().copied().collect();
                TagLine::of(&front)
            }
            _ if taken == TagsInValue::No => TagLine::None,
            // History 3.
            WriteData::Huge(huge) if huge.slice_from(0).starts_with(TAG_LINE) => TagLine::Endless,
            WriteData::Huge(_) => TagLine::None,
            WriteData::Inline(value) => TagLine::of(value),
        };
        match line {
            TagLine::None => Ok(None),
            TagLine::Names(names, bytes) => {
                let (prefix, _) = self.shared.prefixes().split(write.key);
                Ok(Some((self.shared.tag_hasher().parse_text(prefix, names)?, bytes)))
            }
            TagLine::Endless => Err(TagError::Endless.into()),
        }
    }

    /// Announces tags for a key, until the rule's `fill_window` has passed. An error: the reply.
    pub(crate) fn announce(&mut self, key: &[u8], hash: u64, tags: &TagList, now: Now) -> Result<(), String> {
        let Some(ruled) = self.rule_of(key) else {
            return Err(format!("CLIENT_ERROR no rule covers {}", String::from_utf8_lossy(key)));
        };
        let times = (now.ms, now.ms + u64::from(ruled.state.fill_window_ms()));
        match self.announced.announce(hash, tags, &ruled.tags, times, &self.shared.announced) {
            Ok(()) => {
                ruled.state.counters().tags_announced.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(AnnounceError::Tags(error)) => Err(format!("CLIENT_ERROR {error}")),
            Err(AnnounceError::Full) => {
                Err(format!("SERVER_ERROR tags are announced for {ANNOUNCED_MAX} keys already"))
            }
        }
    }
}
