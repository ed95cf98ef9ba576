//! In the place of `follows.rs` without the feature `postgres`: a rule file with a log is refused, so that there is nothing to follow.

use std::sync::Arc;

use cattlegrid_config::FollowSettings;

use crate::followed::View;
use crate::shared::Shared;

/// No threads.
#[derive(Debug, Default)]
pub(crate) struct Follows(());

#[expect(clippy::unused_self, reason = "it is that of `follows.rs`")]
impl Follows {
    pub(crate) fn follow(&self, _: &Arc<Shared>, follows: &[FollowSettings]) {
        debug_assert!(follows.is_empty(), "the rule file is refused");
    }

    pub(crate) fn drain(&self) {}

    pub(crate) fn stop(&self) {}

    pub(crate) fn views(&self) -> Vec<(FollowSettings, View)> {
        Vec::new()
    }
}

/// What the databases of these logs lack: there are none.
pub fn check_logs(_: &[FollowSettings]) -> (String, bool) {
    ("# no log is followed\n".to_owned(), true)
}

/// What the database of this log lacks: this program cannot ask it.
pub fn log_lacks(_: &FollowSettings) -> Result<Vec<(String, String)>, String> {
    Err("this program was built without the cargo feature `postgres`".to_owned())
}
