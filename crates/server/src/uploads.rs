//! Memory for commands that arrive in pieces: which uploads get memory, and which are displaced.
//!
//! An upload is the input that a connection keeps: an incomplete command (a data block, a line, a header, a
//! record of TLS) of any size, or commands that must not be executed yet. All uploads of the server share one
//! limit. Below the limit each upload takes what it needs. At the limit, room for a newcomer (an upload that
//! begins or grows) is made in this order, until there is enough:
//!
//! 1. The upload that has been silent longest is displaced, if it has received no byte for [`STALLED_MS`].
//! 2. Otherwise the client address with most bytes loses an upload; the newcomer's request counts for its
//!    address. Of that address, the upload that has waited longest for a byte is displaced. If it is the
//!    newcomer's own address, only uploads larger than the newcomer are.
//! 3. If that is not enough, the newcomer is refused, and no upload is displaced.
//!
//! So an address that has at most an equal share is never refused, and a client with many connections (or a
//! proxy, which is one address) cannot keep others out. A displaced upload may belong to another lane, which
//! is told. Until that lane has acted, the upload is leaving, and its bytes do not count for the limit.
//!
//! Input that is executed in the next turn of its connection counts too, but is not an upload: it is never
//! displaced or refused ([`Uploads::pass`]). While it and the uploads have three quarters of the limit, lanes
//! receive less at a time.
//!
//! There may be an upload for each connection, so that no operation visits all of them. They are kept in the
//! order of their last known times; an upload that has received a byte since is moved when it is met.
//!
//! Sans-io: time and identities are arguments. The lock is taken when an upload begins, grows or ends, and
//! not for each receive: the time of the last byte is an atomic.
//!
//! # Invariants
//! * Uploads that are not leaving have at most the limit, and so have those that are leaving. Input of the
//!   next turns may exceed it.
//! * `by_age`, `by_bytes` and `peers` have the uploads that are not leaving.
//! * An upload that is leaving is not chosen again, and does not grow.
//! * Ids are never reused: a lane that is told too late finds another id, or no upload.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

use cattlegrid_herd::PeerKey;

/// An upload without a byte for this long, in milliseconds, is stalled.
pub(crate) const STALLED_MS: u64 = 10_000;

/// The uploads of the server, and their limit.
#[derive(Debug)]
pub(crate) struct Uploads {
    cap_bytes: usize,
    /// Guards the entries of all uploads.
    table: Mutex<UploadTable>,
    /// Bytes of all uploads.
    bytes: AtomicUsize,
    /// Bytes of input that is executed in its connection's next turn.
    passing: AtomicUsize,
    refused: AtomicU64,
    displaced: AtomicU64,
    lines_refused: AtomicU64,
    closed: AtomicU64,
}

/// A connection's upload, which must be passed to [`Uploads::end`].
#[derive(Debug)]
pub(crate) struct Upload {
    id: u64,
    bytes: usize,
    last_byte_ms: Arc<AtomicU64>,
}

impl Upload {
    /// The upload's id, above 0.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The number of bytes that were granted.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The owner of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The client.
    pub(crate) peer: PeerKey,
    /// The lane that has its connection.
    pub(crate) lane: usize,
    /// The lane's token for the connection.
    pub(crate) token: u64,
}

/// A displaced upload, of which its lane must be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DisplacedUpload {
    pub(crate) lane: usize,
    pub(crate) token: u64,
    pub(crate) upload: u64,
}

/// The answer to a request for memory.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Claim {
    /// The memory is granted, and these uploads are displaced for it.
    Granted(Vec<DisplacedUpload>),
    /// The memory is refused, or this upload was displaced. It must be ended.
    Refused,
}

#[derive(Debug, Default)]
struct UploadTable {
    entries: HashMap<u64, Entry>,
    last_id: u64,
    /// Bytes of uploads that are not leaving.
    staying_bytes: usize,
    /// Bytes of uploads that are leaving.
    leaving_bytes: usize,
    /// Uploads that are not leaving.
    by_age: BTreeSet<Age>,
    peers: BTreeMap<PeerKey, PeerUploads>,
    /// The keys of `peers` by their bytes.
    by_bytes: BTreeSet<(usize, PeerKey)>,
}

/// The order in which uploads are displaced: by the time of the last byte, as it was last known, then by id,
/// which is the order in which they began.
type Age = (u64, u64);

#[derive(Debug)]
struct Entry {
    origin: Origin,
    bytes: usize,
    last_byte_ms: Arc<AtomicU64>,
    /// The time in `by_age`, in milliseconds.
    known_ms: u64,
    leaving: bool,
}

/// The uploads of one address.
#[derive(Debug, Default)]
struct PeerUploads {
    bytes: usize,
    by_age: BTreeSet<Age>,
    /// The uploads by their bytes.
    by_size: BTreeSet<(usize, u64)>,
}

impl Uploads {
    /// No uploads; `cap_bytes` is the limit for all together.
    pub(crate) fn new(cap_bytes: usize) -> Self {
        Self {
            cap_bytes,
            table: Mutex::default(),
            bytes: AtomicUsize::new(0),
            passing: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            lines_refused: AtomicU64::new(0),
            closed: AtomicU64::new(0),
        }
    }

    /// Requests memory for an upload that begins, continues or grows. `bytes`: its whole size now. To be
    /// called after each of its receives.
    pub(crate) fn claim(
        &self,
        upload: &mut Option<Upload>,
        origin: Origin,
        bytes: usize,
        now_ms: u64,
    ) -> Claim {
        if let Some(upload) = upload {
            upload.last_byte_ms.store(now_ms, Relaxed);
            if upload.bytes == bytes {
                return Claim::Granted(Vec::new());
            }
        }
        let mut table = self.lock();
        let id = upload.as_ref().map_or(0, |upload| upload.id);
        let before = match table.entries.get(&id) {
            Some(entry) if entry.leaving => return Claim::Refused,
            Some(entry) => entry.bytes,
            None => 0,
        };
        let all = table.staying_bytes - before + bytes + self.passing.load(Relaxed);
        let missing = all.saturating_sub(self.cap_bytes);
        let Some(leave) = table.make_room(id, origin.peer, bytes, missing, now_ms, self.cap_bytes) else {
            return Claim::Refused;
        };
        table.staying_bytes = table.staying_bytes - before + bytes;
        self.bytes.fetch_add(bytes.wrapping_sub(before), SeqCst);
        if let Some(upload) = upload {
            upload.bytes = bytes;
            table.unlist(id);
            table.entries.get_mut(&id).expect("it is in the table until it ends").bytes = bytes;
            table.list(id);
        } else {
            table.last_id += 1;
            let (id, last_byte_ms) = (table.last_id, Arc::new(AtomicU64::new(now_ms)));
            let entry = Entry {
                origin,
                bytes,
                last_byte_ms: Arc::clone(&last_byte_ms),
                known_ms: now_ms,
                leaving: false,
            };
            table.entries.insert(id, entry);
            table.list(id);
            *upload = Some(Upload { id, bytes, last_byte_ms });
        }
        Claim::Granted(leave)
    }

    /// Ends an upload that is complete, refused or abandoned.
    pub(crate) fn end(&self, upload: &Upload) {
        let mut table = self.lock();
        if table.entries.get(&upload.id).is_some_and(|entry| !entry.leaving) {
            table.unlist(upload.id);
        }
        let Some(entry) = table.entries.remove(&upload.id) else { return };
        *table.sum_of(entry.leaving) -= entry.bytes;
        self.bytes.fetch_sub(entry.bytes, SeqCst);
    }

    /// Changes the input that a connection's next turn executes, from `before` to `now` bytes.
    pub(crate) fn pass(&self, before: usize, now: usize) {
        self.passing.fetch_add(now.wrapping_sub(before), SeqCst);
    }

    /// Whether lanes must receive less at a time; they know it from
    /// [`Shared::is_input_scarce`](crate::shared::Shared::is_input_scarce).
    pub(crate) fn is_scarce(&self) -> bool {
        self.bytes() > self.cap_bytes / 4 * 3
    }

    /// Counts an upload that was refused memory, or, if `displaced`, displaced by another.
    pub(crate) fn count(&self, displaced: bool, is_line: bool) {
        let counter = if displaced { &self.displaced } else { &self.refused };
        counter.fetch_add(1, Relaxed);
        self.lines_refused.fetch_add(u64::from(is_line), Relaxed);
    }

    /// Counts a connection that was closed without a reply, since the refused command has none.
    pub(crate) fn count_closed(&self) {
        self.closed.fetch_add(1, Relaxed);
    }

    /// The number of connections closed without a reply.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Relaxed)
    }

    /// Whether an upload is displaced, and its lane has not acted yet.
    pub(crate) fn is_leaving(&self, upload: &Upload) -> bool {
        self.lock().entries.get(&upload.id).is_some_and(|entry| entry.leaving)
    }

    /// Bytes of all uploads, and of input that the next turns execute.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(SeqCst) + self.passing.load(SeqCst)
    }

    /// The number of uploads that were refused memory.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// The number of uploads that were displaced.
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced.load(Relaxed)
    }

    /// The number of refused and displaced uploads that were lines; their connections were closed.
    pub(crate) fn lines_refused(&self) -> u64 {
        self.lines_refused.load(Relaxed)
    }

    /// Sets the counters to 0.
    pub(crate) fn reset_stats(&self) {
        for counter in [&self.refused, &self.displaced, &self.lines_refused, &self.closed] {
            counter.store(0, Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, UploadTable> {
        self.table.lock().expect("nobody panics with it held")
    }

    /// Checks the table, for tests; returns the number of uploads.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn verify(&self) -> usize {
        let table = self.lock();
        let sum = |leaving| -> usize {
            table.entries.values().filter(|entry| entry.leaving == leaving).map(|entry| entry.bytes).sum()
        };
        assert_eq!((sum(false), sum(true)), (table.staying_bytes, table.leaving_bytes));
        assert!(table.staying_bytes <= self.cap_bytes && table.leaving_bytes <= self.cap_bytes, "{table:?}");
        assert_eq!(self.bytes.load(Relaxed), table.staying_bytes + table.leaving_bytes);
        let staying = || table.entries.iter().filter(|(_, entry)| !entry.leaving);
        let ages: BTreeSet<Age> = staying().map(|(id, entry)| (entry.known_ms, *id)).collect();
        assert_eq!(ages, table.by_age);
        for (peer, share) in &table.peers {
            let own = || staying().filter(|(_, entry)| entry.origin.peer == *peer);
            assert_eq!(share.bytes, own().map(|(_, entry)| entry.bytes).sum::<usize>());
            assert_eq!(share.by_age, own().map(|(id, entry)| (entry.known_ms, *id)).collect());
            assert_eq!(share.by_size, own().map(|(id, entry)| (entry.bytes, *id)).collect());
            assert!(table.by_bytes.contains(&(share.bytes, *peer)));
        }
        assert_eq!(table.peers.len(), table.by_bytes.len());
        assert_eq!(table.peers.values().map(|share| share.by_age.len()).sum::<usize>(), ages.len());
        table.entries.len()
    }
}

impl UploadTable {
    /// Chooses uploads to displace for `missing` bytes, and marks them as leaving. None: there is no room,
    /// and nothing has changed. `asks`: the newcomer's bytes, in all; `id`: the newcomer's id, 0 if it has
    /// none yet.
    fn make_room(
        &mut self,
        id: u64,
        peer: PeerKey,
        asks: usize,
        missing: usize,
        now_ms: u64,
        cap_bytes: usize,
    ) -> Option<Vec<DisplacedUpload>> {
        if missing == 0 {
            return Some(Vec::new());
        }
        // While uploads are chosen, the newcomer cannot be chosen, and counts with the bytes that it asks
        // for.
        let is_listed = self.entries.contains_key(&id);
        if is_listed {
            self.unlist(id);
        }
        self.weigh(peer, |bytes| bytes + asks);
        let (mut chosen, mut freed) = (Vec::new(), 0);
        while freed < missing {
            let Some(victim) = self.stalled(now_ms).or_else(|| self.of_the_largest(peer, asks)) else {
                break;
            };
            freed += self.entries[&victim].bytes;
            self.unlist(victim);
            chosen.push(victim);
        }
        self.weigh(peer, |bytes| bytes - asks);
        if is_listed {
            self.list(id);
        }
        // With more leaving uploads, their lanes are late: memory must not grow without a limit meanwhile.
        if freed < missing || self.leaving_bytes + freed > cap_bytes {
            for victim in chosen {
                self.list(victim);
            }
            return None;
        }
        self.staying_bytes -= freed;
        self.leaving_bytes += freed;
        let leave = |id: u64| {
            let entry = self.entries.get_mut(&id).expect("it was chosen from the table");
            entry.leaving = true;
            DisplacedUpload { lane: entry.origin.lane, token: entry.origin.token, upload: id }
        };
        Some(chosen.into_iter().map(leave).collect())
    }

    /// The upload that has been silent longest, if it is stalled.
    fn stalled(&mut self, now_ms: u64) -> Option<u64> {
        loop {
            let (known_ms, id) = *self.by_age.first()?;
            if now_ms.saturating_sub(known_ms) < STALLED_MS {
                return None;
            }
            if !self.ages(id) {
                return Some(id);
            }
        }
    }

    /// The upload of the largest address that has waited longest for a byte. If that address is the
    /// newcomer's own, `peer`, only uploads larger than `asks` count. Of addresses with equal bytes the
    /// newcomer's is chosen: otherwise each newcomer would displace another address's upload.
    fn of_the_largest(&mut self, peer: PeerKey, asks: usize) -> Option<u64> {
        let (most, key) = *self.by_bytes.last()?;
        let is_own = key == peer || self.peers.get(&peer).is_some_and(|own| own.bytes == most);
        let (key, more_than) = if is_own { (peer, asks) } else { (key, 0) };
        let mut at = (0, 0);
        loop {
            let share = self.peers.get(&key)?;
            if share.by_size.last()?.0 <= more_than {
                return None;
            }
            let age = *share.by_age.range((Excluded(at), Unbounded)).next()?;
            if self.ages(age.1) {
                continue;
            }
            if self.entries[&age.1].bytes > more_than {
                return Some(age.1);
            }
            at = age;
        }
    }

    /// Moves an upload that has received a byte since its last known time to its new place in `by_age`.
    /// False: it has received none.
    fn ages(&mut self, id: u64) -> bool {
        let entry = &self.entries[&id];
        let last_ms = entry.last_byte_ms.load(Relaxed);
        let is_older = entry.known_ms != last_ms;
        if is_older {
            self.unlist(id);
            self.entries.get_mut(&id).expect("as above").known_ms = last_ms;
            self.list(id);
        }
        is_older
    }

    /// Adds an upload that is not leaving to the orders.
    fn list(&mut self, id: u64) {
        let Entry { origin, bytes, known_ms, .. } = self.entries[&id];
        self.weigh(origin.peer, |sum| sum + bytes);
        self.by_age.insert((known_ms, id));
        let share = self.peers.entry(origin.peer).or_default();
        share.by_age.insert((known_ms, id));
        share.by_size.insert((bytes, id));
    }

    fn unlist(&mut self, id: u64) {
        let Entry { origin, bytes, known_ms, .. } = self.entries[&id];
        self.by_age.remove(&(known_ms, id));
        if let Some(share) = self.peers.get_mut(&origin.peer) {
            share.by_age.remove(&(known_ms, id));
            share.by_size.remove(&(bytes, id));
        }
        self.weigh(origin.peer, |sum| sum - bytes);
    }

    /// Changes the bytes of an address.
    fn weigh(&mut self, peer: PeerKey, change: impl FnOnce(usize) -> usize) {
        let share = self.peers.entry(peer).or_default();
        self.by_bytes.remove(&(share.bytes, peer));
        share.bytes = change(share.bytes);
        if share.bytes == 0 && share.by_age.is_empty() {
            self.peers.remove(&peer);
        } else {
            self.by_bytes.insert((share.bytes, peer));
        }
    }

    fn sum_of(&mut self, leaving: bool) -> &mut usize {
        if leaving { &mut self.leaving_bytes } else { &mut self.staying_bytes }
    }
}

#[cfg(test)]
mod tests;
