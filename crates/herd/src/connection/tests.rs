//! Peers and sessions by themselves.

use super::*;
use crate::connection::{PeerKey, Peers};

#[test]
fn a_peer_keeps_its_connections_until_it_crosses() {
    let peers = Peers::default();
    let [peer, again] = [(); 2].map(|()| peers.join(PeerKey::Process(7)));
    (0..UNCROSSED - 1).for_each(|_| peer.note_fill(true));
    assert_eq!(peers.keep_connections(), 0);
    again.note_fill(true);
    assert_eq!(peers.keep_connections(), 1);
    peer.note_fill(false);
    assert_eq!(peers.keep_connections(), 0);
}

#[test]
fn the_last_free_connection_stays() {
    let peers = Peers::default();
    let key = PeerKey::Process(7);
    let peer = peers.join(key);
    assert!(!peer.take_free(1), "the only one");
    let again = peers.join(key);
    assert!(Arc::ptr_eq(&peer, &again));
    assert!(peer.take_free(1));
    assert!(!peer.take_free(1));
    assert!(peer.take_free(0), "other peers' connections may all be held");
    peer.give_free();
    peer.give_free();
    peers.leave(&peer);
    peers.leave(&again);
    assert!(peers.is_empty());
}

fn session(most: usize) -> Session {
    let peer = Peers::default().join(PeerKey::Process(1));
    Session::with_room(Arc::new(Caller::new(1, 0, 1, peer)), most)
}

fn record(hash: u64, number: u64, until_ms: u64, leased: bool) -> MissRecord {
    MissRecord { hash, number, until_ms, leased }
}

#[test]
fn a_record_without_room_does_not_concern_other_keys() {
    let mut session = session(2);
    session.record(record(1, 10, 1000, false), 0);
    session.record(record(2, 11, 2000, false), 0);
    session.record(record(3, 12, 1500, false), 0);
    assert_eq!([1, 2, 3, 4].map(|key| session.oldest(key, 0)), [Some(10), Some(11), None, None]);
    assert!(session.has_lost(1499) && !session.has_lost(1500));
}

#[test]
fn expired_records_make_room() {
    let mut session = session(2);
    session.record(record(1, 10, 1000, false), 0);
    session.record(record(2, 11, 2000, false), 0);
    session.record(record(3, 12, 3000, false), 1000);
    assert_eq!(session.oldest(3, 1000), Some(12));
    assert!(!session.has_lost(0));
}

#[test]
fn a_lease_takes_the_place_of_a_miss_without_one() {
    let mut session = session(2);
    session.record(record(1, 10, 1000, true), 0);
    session.record(record(2, 11, 1000, false), 0);
    session.record(record(3, 12, 900, true), 0);
    session.record(record(4, 13, 1100, true), 0);
    assert_eq!(session.leases().collect::<Vec<_>>(), [(1, 10), (3, 12)]);
    assert!(session.has_lost(1099) && !session.has_lost(1100));
}

#[test]
fn misses_do_not_grow_old_in_a_stop() {
    let peers = Peers::default();
    let peer = peers.join(PeerKey::Process(1));
    let session = || Session::with_room(Arc::new(Caller::new(1, 0, 1, Arc::clone(&peer))), 1);
    let mut before = session();
    before.record(record(1, 10, 1_000, false), 0);
    before.record(record(2, 11, 1_000, false), 0);
    peers.delay(5_000);
    let mut after = session();
    after.record(record(1, 12, 6_500, false), 5_500);
    assert_eq!([5_999, 6_000].map(|now_ms| before.oldest(1, now_ms)), [Some(10), None]);
    assert_eq!([5_999, 6_000].map(|now_ms| before.has_lost(now_ms)), [true, false]);
    assert_eq!([6_499, 6_500].map(|now_ms| after.oldest(1, now_ms)), [Some(12), None]);
    assert!(!after.has_lost(0));
    // What is full does not let go of it, and it is found once.
    before.record(record(3, 13, 6_500, false), 5_500);
    assert_eq!(before.take_oldest(1, 5_999).map(|record| record.number), Some(10));
    assert_eq!(before.take_oldest(1, 5_999), None);
}
