//! A lane sends the replies of a batch by its ring, where it has one.

use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use cattlegrid_engine::Output;

use super::slot;
use crate::connection::Connection;
use crate::log;
use crate::ring::{self, Offer, Ring};
use crate::shared::Shared;
use crate::sys::reason;
use crate::turns::BATCH;

/// The calling lane's ring; closed if the system refuses it.
pub(super) fn make_ring(shared: &Shared) -> Ring {
    match Ring::new() {
        Ok(ring) => {
            shared.gauges.io_uring.fetch_add(1, Relaxed);
            ring
        }
        Err(error) => {
            // As it is for one lane, it is for the others.
            if !shared.gauges.io_uring_refused.swap(true, Relaxed) {
                log::warning(format_args!(
                    "-o io_uring: {}; replies are sent with a call for each connection: {}",
                    reason(&error),
                    ring::advice(&error)
                ));
            }
            Ring::default()
        }
    }
}

/// Sends the replies of a batch in one call. For each connection: how many bytes its socket has taken; None
/// if it must be sent to by itself.
pub(super) fn send_by_ring(
    shared: &Shared,
    ring: &mut Ring,
    connections: &[Option<Box<Connection>>],
    tokens: &[u64],
    outputs: &[Output],
) -> [Option<usize>; BATCH] {
    let mut places = ArrayVec::<usize, BATCH>::new();
    let mut offers = ArrayVec::<Offer<'_>, BATCH>::new();
    for (place, (token, out)) in tokens.iter().zip(outputs).enumerate() {
        let connection = connections.get(slot(*token)).and_then(Option::as_deref);
        let connection = connection.filter(|connection| connection.token == *token);
        if let Some(fd) = connection.and_then(|connection| connection.plain_socket(out)) {
            places.push(place);
            offers.push(Offer { fd, bytes: &out.bytes, taken: None });
        }
    }
    let mut taken = [None; BATCH];
    if offers.len() > 1 {
        if let Err(error) = ring.send_all(&mut offers) {
            shared.gauges.io_uring.fetch_sub(1, Relaxed);
            log::warning(format_args!("-o io_uring: a thread goes on without it: {}", reason(&error)));
        }
        for (place, offer) in places.iter().zip(&offers) {
            taken[*place] = offer.taken;
        }
    }
    taken
}
