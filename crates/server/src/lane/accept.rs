//! A lane accepts connections: when it polls the listeners, and how many it takes at a time. `acceptor.rs`
//! decides which are let in, and where to.

use std::sync::Arc;

use super::{Lane, WAKER};
use crate::acceptor::{AcceptEnd, ListeningSocket};
use crate::log;

/// Connections accepted from a listener in a round at most.
const ACCEPTED_A_ROUND: usize = 32;
/// With this many others reported a new connection has its first turn without being reported.
const BUSY: usize = 4;

impl Lane<'_> {
    /// Begins to accept connections.
    ///
    /// # Errors
    /// The system's, when the poller fails.
    pub(crate) fn accept_from(&mut self, sockets: Arc<[ListeningSocket]>) -> std::io::Result<()> {
        for (at, socket) in sockets.iter().enumerate() {
            self.poller.listen(&socket.listener, listener_token(at))?;
        }
        (self.sockets, self.listens) = (sockets, true);
        Ok(())
    }

    /// Accepts from the listeners that were reported, some. One connection each in a round that has little
    /// else to do: to find out that no other waits is almost as expensive as to accept it. While there are
    /// more in each round, twice as many as in the one before. `others`: what else was reported.
    pub(super) fn accept(&mut self, others: usize) {
        let (mut ready_sockets, sockets) =
            (std::mem::take(&mut self.ready_sockets), Arc::clone(&self.sockets));
        let most = self.accepts.max(others / 2).min(ACCEPTED_A_ROUND);
        self.accepts = 2 * most;
        for socket in ready_sockets.drain(..).filter_map(|number| sockets.get(number)) {
            let (shared, own) = (self.shared, self.number);
            let (end, handed_on) = shared.acceptor.accept(shared, socket, most, Some(own), |info| {
                // It has waited while this lane was busy, so its first request is probably there.
                if let Some(token) = self.open(info)
                    && others >= BUSY
                {
                    self.turns.ready(token);
                }
            });
            if end == AcceptEnd::Enough {
                self.accepts = 1;
            } else if end == AcceptEnd::Closed {
                self.stop_listening();
                break;
            }
            if handed_on {
                // The system wakes the lanes in the order in which they began to listen: others are first
                // now.
                self.stop_listening();
                self.listen();
            }
        }
        self.ready_sockets = ready_sockets;
    }

    /// Polls the listeners.
    #[cold]
    pub(super) fn listen(&mut self) {
        self.listens = true;
        for (at, socket) in self.sockets.iter().enumerate() {
            if let Err(error) = self.poller.listen(&socket.listener, listener_token(at)) {
                log::warning(format_args!("{}: {error}", socket.listener.address));
                self.shared.acceptor.pause_for_poller(self.shared);
                return self.stop_listening();
            }
        }
    }

    /// Polls them no more.
    #[cold]
    fn stop_listening(&mut self) {
        self.listens = false;
        for socket in &*self.sockets {
            // Fails where it has not begun.
            let _removed = self.poller.remove(&socket.listener);
        }
    }

    /// Accepts no connection any more.
    pub(super) fn leave_listeners(&mut self) {
        self.stop_listening();
        self.ready_sockets.clear();
        self.sockets = Arc::new([]);
    }
}

fn listener_token(number: usize) -> u64 {
    WAKER - 1 - number as u64
}
