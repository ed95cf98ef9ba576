//! What a connection does while one of its requests waits.

use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_engine::{Context, Counters, Now, ParkedRequest, ReplyQueue, Wake};
use cattlegrid_protocol::{Admin, PacketCommand, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::sockopt;

use super::Connection;
use crate::listen::Address;
use crate::shared::Shared;
use crate::turns::Turn;

impl Connection {
    /// While it is held: nothing more is received.
    pub(super) fn is_paused(&self) -> bool {
        self.closing.is_some() || self.replies.is_full(self.requests, self.read_ahead, self.read_ahead_bytes)
    }

    /// When a request has waited long enough, in milliseconds.
    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        let held = self.login.answer_ms().or_else(|| self.replies.next_deadline_ms());
        held.into_iter().chain(self.input.run_until_ms()).min()
    }

    /// Whether its client, on this connection or on another one, may send a value for which others wait: it
    /// was given a lease.
    pub(crate) fn may_bring_value(&self) -> bool {
        self.session.caller().peer().has_leases()
    }

    /// Keeps a request that waits, behind all that was answered before it.
    #[cold]
    pub(super) fn park(&mut self, parked: Box<ParkedRequest>, len: usize, turn: &mut Turn<'_>) {
        self.replies.push(turn.out, turn.now.ms);
        let is_barrier = parked.is_barrier();
        self.replies.park(parked, len, turn.now.ms);
        if is_barrier {
            self.replies.set_blocked(true);
        }
        self.tell_front();
    }

    /// Puts what was executed last behind what waits; whether the next command may be executed.
    #[cold]
    pub(super) fn may_read_ahead(&mut self, turn: &mut Turn<'_>) -> bool {
        self.replies.push(turn.out, turn.now.ms);
        !self.replies.is_full(self.requests, self.read_ahead, self.read_ahead_bytes)
    }

    /// Leases must know whether what is executed next is read ahead.
    fn tell_front(&self) {
        self.session.caller().set_front(self.replies.front());
    }

    /// Tells a request of this connection what became of one of its keys; [`Connection::answer_held`] is to
    /// follow.
    pub(crate) fn wake(&mut self, wake: Wake, now: Now, counters: &Counters) {
        let Self { replies, session, .. } = self;
        let Wake { request, slot, verdict, .. } = wake;
        replies.wake(request, now.ms, |parked| parked.resolve(slot, verdict, session, now.ms, counters));
    }

    /// Answers the requests whose time is up; [`Connection::answer_held`] is to follow.
    pub(crate) fn expire(&mut self, turn: &mut Turn<'_>) {
        self.end_run(turn);
        self.with_replies(turn, |replies, shared, cx| {
            replies.expire(cx.step.now.ms, |parked| shared.engine.expire(parked, cx));
        });
    }

    /// Answers all requests that wait; [`Connection::answer_held`] is to follow.
    pub(crate) fn release(&mut self, turn: &mut Turn<'_>) {
        self.with_replies(turn, |replies, shared, cx| {
            replies.release(cx.step.now.ms, |parked| shared.engine.release(parked, cx));
        });
    }

    /// The engine needs the whole connection as context: the replies are taken out meanwhile.
    fn with_replies(
        &mut self,
        turn: &mut Turn<'_>,
        act: impl FnOnce(&mut ReplyQueue, &Shared, &mut Context<'_>),
    ) {
        let mut replies = std::mem::take(&mut self.replies);
        let (shared, mut cx) = self.context(turn);
        act(&mut replies, shared, &mut cx);
        self.replies = replies;
    }

    /// Hands out the replies that may leave. Called after anything that concerns a connection that is held.
    #[cold]
    pub(crate) fn answer_held(&mut self, turn: &mut Turn<'_>) {
        self.replies.push(turn.out, turn.now.ms);
        if self.hung_up || self.closing.is_some() {
            self.release(turn);
        }
        if self.session.needs_a_look() {
            // It may have been given a lease, and be part of a circle now.
            let (shared, mut cx) = self.context(turn);
            shared.engine.look_at_waits(&mut shared.engine.shard_lock(), &mut cx);
        }
        let blocked = self.replies.is_blocked();
        if self.replies.pop_done(turn.out) {
            // It was not idle: it waited for us.
            self.info.last_command.store(turn.now.second, Relaxed);
            self.has_more |= blocked;
        }
        self.tell_front();
        self.publish(turn);
    }

    /// Tells the client's system what has arrived, now that no reply does. A client without `TCP_NODELAY`
    /// sends its next command only then (RFC 896), and a receiver with nothing to send takes 40 ms for it.
    #[cold]
    pub(crate) fn acknowledge(&self) {
        if !matches!(self.info.listener.address, Address::Unix(_)) {
            // Without it commands come later, but they come.
            let _later = sockopt::set_tcp_quickack(&self.info.fd, true);
        }
    }

    /// Nothing is received for now: has the client gone, or said that it sends no more?
    pub(super) fn look_for_hang_up(&mut self) {
        let mut fds = [PollFd::from_borrowed_fd(self.info.fd.as_fd(), PollFlags::RDHUP)];
        let asked = retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
        let seen = fds[0].revents();
        if asked.is_err() || seen.contains(PollFlags::ERR) {
            self.fail();
        } else if seen.intersects(PollFlags::RDHUP | PollFlags::HUP) {
            self.hung_up = true;
        }
    }
}

/// Takes the connection over, may end its login, or ends the server: executed only when nothing is held
/// before it.
pub(super) fn is_barrier(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Admin(Admin::Watch(_) | Admin::LruCrawler(_) | Admin::Shutdown { .. })
            | Request::Packet(_, PacketCommand::SaslAuth { .. })
    )
}
