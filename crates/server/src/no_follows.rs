//! Replaces `follows.rs` in a build without the feature `postgres`. Such a build refuses a rule file with a
//! log, so that no log is followed.

use std::sync::Arc;

use cattlegrid_config::FollowSettings;

use crate::followed::LogView;
use crate::shared::Shared;

/// The followers of logs: none.
#[derive(Debug, Default)]
pub(crate) struct Follows(());

#[expect(clippy::unused_self, reason = "it is that of `follows.rs`")]
impl Follows {
    pub(crate) fn follow(&self, _: &Arc<Shared>, follows: &[FollowSettings]) {
        debug_assert!(follows.is_empty(), "the rule file is refused");
    }

    pub(crate) fn drain(&self) {}

    pub(crate) fn stop(&self) {}

    pub(crate) fn views(&self) -> Vec<(FollowSettings, LogView)> {
        Vec::new()
    }
}

/// Missing settings of these logs' databases: none.
pub fn check_logs(_: &[FollowSettings]) -> (String, bool) {
    ("# no log is followed\n".to_owned(), true)
}

/// Refuses: this program cannot ask the database of the log.
pub fn log_lacks(_: &FollowSettings) -> Result<Vec<(String, String)>, String> {
    Err("this program was built without the cargo feature `postgres`".to_owned())
}
