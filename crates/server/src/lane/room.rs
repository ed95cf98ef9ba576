//! A lane closes connections whose clients do not take their replies, when these take too much:
//! [`crate::connection::unsent`] has the sums and the choice.

use super::{Lane, STOPPED_S};
use crate::connection::Reason;
use crate::connection::unsent::{choose, stalled};
use crate::lane::handle::Message;

impl Lane<'_> {
    /// While there is more unsent output than may be: closes connections of this lane, as long as they have
    /// its share. Then another lane's have more, and it is told.
    #[cold]
    pub(super) fn make_room(&mut self) {
        let (shared, lanes) = (self.shared, &self.shared.lanes);
        loop {
            let keepers = self.connections.iter().flatten().filter_map(|connection| connection.keeper());
            let chosen = if shared.is_too_much_pinned() {
                choose(keepers, |keeper| keeper.pinned, shared.pinned_cap(), lanes.len())
            } else if shared.unsent.is_over(shared.unsent_values()) {
                choose(keepers, |keeper| keeper.bytes, shared.unsent.cap_bytes(), lanes.len())
            } else {
                return;
            };
            let Some(token) = chosen else {
                if shared.unsent.may_ask_others() {
                    let others = lanes.iter().enumerate().filter(|(number, _)| *number != self.number);
                    others.for_each(|(_, lane)| lane.tell(Message::MakeRoom));
                }
                return;
            };
            shared.unsent.count_closed(false);
            self.close(token, Reason::Unread);
        }
    }

    /// After a round in which there is unsent output; once a second while it is scarce: closes connections
    /// whose clients take nothing, until it is not.
    pub(super) fn check_unsent(&mut self) {
        let now = self.now();
        let since = now.second.saturating_sub(std::mem::replace(&mut self.last_unsent_check, now.second));
        if since == 0 {
            return;
        }
        self.has_unsent = self.connections.iter().flatten().any(|connection| connection.has_unsent());
        // After a stop of the process clients are sent what they have made room for meanwhile first.
        if since > STOPPED_S || !self.shared.is_output_scarce() {
            return;
        }
        for token in stalled(self.connections.iter().flatten().filter_map(|c| c.keeper()), now.ms) {
            if !self.shared.is_output_scarce() {
                break;
            }
            self.shared.unsent.count_closed(true);
            self.close(token, Reason::Unread);
        }
    }
}
