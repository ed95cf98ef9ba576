//! Replies that wait until a bump is in the log of the fleet.

use std::sync::Arc;

use crate::bump_log::{BumpWait, BumpWaiter};
use crate::engine::Engine;
use crate::parked::{NOT_CONFIRMED, ParkedForm, ParkedRequest};
use crate::reply::meta::Refusals;
use crate::step::Context;

impl Engine {
    /// Lets the reply that was written since `from` wait for the bump of this ticket, as far as the log asks
    /// for it. What is not answered (`noreply`, `q`) does not wait.
    #[cold]
    pub(crate) fn await_bump(
        &self,
        (ticket, is_barrier): (u64, bool),
        from: (usize, usize),
        refusals: Refusals,
        cx: &mut Context<'_>,
    ) -> Option<Box<ParkedRequest>> {
        if cx.out.place() == from {
            return None;
        }
        let log = self.shared().bump_log()?;
        let who = BumpWaiter { caller: Arc::clone(cx.session.caller()), request: cx.ticket.request };
        match log.wait(ticket, is_barrier, who, cx.step.now.ms) {
            BumpWait::Over => None,
            BumpWait::Lost => {
                let _unsaid = cx.out.split_off(from);
                refusals.write_not_stored(NOT_CONFIRMED, &mut cx.out.bytes);
                None
            }
            BumpWait::Until(deadline_ms) => {
                let form = ParkedForm::Bump { done: cx.out.split_off(from), refusals, is_confirmed: false };
                // It is hurried by no reply behind it: it has little time anyway.
                Some(Box::new(ParkedRequest::new(cx.ticket.request, deadline_ms, u32::MAX, false, form)))
            }
        }
    }
}
