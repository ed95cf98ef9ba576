//! Commands that arrive in pieces, and the memory that they may take meanwhile: who gets some, and who gives way.
//!
//! An upload is a command of which 64 KiB or more have arrived and the rest has not: a data block, or the line of a
//! long `get`. All uploads of the server share one cap. While there is room each takes what it needs. Once the cap is
//! reached, room for a newcomer (an upload that begins or grows) is made like this, until there is enough:
//!
//! 1. The upload that has been silent longest gives way, if it has had no byte for [`STALLED_MS`].
//! 2. Otherwise the client address with most bytes gives way, the newcomer's counted with what it asks for: of its uploads
//!    the one that has waited longest for a byte. If it is the newcomer's own address, only uploads that are larger than
//!    the newcomer's do.
//! 3. If that is not enough, the newcomer is refused, and nobody gives way.
//!
//! So an address that has no more than its equal share is never refused, and one client with many connections (or a
//! proxy, which is one address) keeps nobody else out. An upload that gives way may be on another lane, which
//! is told; until it has acted, the upload is leaving, and its bytes are not counted under the cap.
//!
//! Sans-io: time and identities are arguments. The lock is taken when an upload begins, grows or ends, not for each of
//! its bytes: the time of the last one is an atomic of its own.
//!
//! # Invariants
//! * What is not leaving is at most the cap, and so is what is leaving.
//! * An upload that is leaving is not chosen again, and does not grow.
//! * Ids are never reused: a lane that is told too late finds another id, or none.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use cattlegrid_herd::PeerKey;

/// An upload without a byte for this long, in milliseconds, is stalled.
pub(crate) const STALLED_MS: u64 = 10_000;

/// All uploads of the server. See the module's text.
#[derive(Debug)]
pub(crate) struct Uploads {
    cap_bytes: usize,
    /// Guards who has what.
    table: Mutex<Table>,
    /// Bytes of all uploads, for statistics.
    bytes: AtomicUsize,
    refused: AtomicU64,
    displaced: AtomicU64,
    lines_refused: AtomicU64,
}

/// A connection's upload. It must be given back to [`Uploads::end`].
#[derive(Debug)]
pub(crate) struct Upload {
    id: u64,
    bytes: usize,
    last_byte_ms: Arc<AtomicU64>,
}

impl Upload {
    /// Its id, above 0.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// What it was granted.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Whose upload it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The client.
    pub(crate) peer: PeerKey,
    /// The lane that has its connection.
    pub(crate) lane: usize,
    /// What that lane calls the connection.
    pub(crate) token: u64,
}

/// An upload that must give way; its lane must be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GivesWay {
    pub(crate) lane: usize,
    pub(crate) token: u64,
    pub(crate) upload: u64,
}

/// The answer to an upload that asks for memory.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Claim {
    /// It has the memory. These give way for it.
    Granted(Vec<GivesWay>),
    /// It does not get the memory, or has to give way itself. It must be ended.
    Refused,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    last_id: u64,
    /// Sum of those that are not leaving.
    staying_bytes: usize,
    /// Sum of those that are.
    leaving_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    origin: Origin,
    bytes: usize,
    last_byte_ms: Arc<AtomicU64>,
    leaving: bool,
}

impl Entry {
    /// The order in which uploads give way: who has waited longest for a byte, then who began first.
    fn age(&self, id: u64) -> (u64, u64) {
        (self.last_byte_ms.load(Relaxed), id)
    }
}

impl Uploads {
    /// None yet; `cap_bytes` for all together.
    pub(crate) fn new(cap_bytes: usize) -> Self {
        Self {
            cap_bytes,
            table: Mutex::default(),
            bytes: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            lines_refused: AtomicU64::new(0),
        }
    }

    /// An upload begins, goes on, or grows: `bytes` are what it takes now, in all. To be called after each of its receives.
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
        let missing = (table.staying_bytes - before + bytes).saturating_sub(self.cap_bytes);
        let Some(leave) = table.make_room(id, origin.peer, bytes, missing, now_ms, self.cap_bytes) else {
            return Claim::Refused;
        };
        table.staying_bytes = table.staying_bytes - before + bytes;
        self.bytes.fetch_add(bytes.wrapping_sub(before), Relaxed);
        if let Some(upload) = upload {
            upload.bytes = bytes;
            table.entries.get_mut(&id).expect("it is in the table until it ends").bytes = bytes;
        } else {
            table.last_id += 1;
            let (id, last_byte_ms) = (table.last_id, Arc::new(AtomicU64::new(now_ms)));
            let entry = Entry { origin, bytes, last_byte_ms: Arc::clone(&last_byte_ms), leaving: false };
            table.entries.insert(id, entry);
            *upload = Some(Upload { id, bytes, last_byte_ms });
        }
        Claim::Granted(leave)
    }

    /// An upload is complete, refused, or gone.
    pub(crate) fn end(&self, upload: &Upload) {
        let mut table = self.lock();
        let Some(entry) = table.entries.remove(&upload.id) else { return };
        *table.sum_of(entry.leaving) -= entry.bytes;
        self.bytes.fetch_sub(entry.bytes, Relaxed);
    }

    /// An upload was refused when it asked for memory, or has given way to another.
    pub(crate) fn count(&self, displaced: bool, is_line: bool) {
        let counter = if displaced { &self.displaced } else { &self.refused };
        counter.fetch_add(1, Relaxed);
        self.lines_refused.fetch_add(u64::from(is_line), Relaxed);
    }

    /// Whether an upload has to give way, and its lane has not acted yet.
    pub(crate) fn is_leaving(&self, upload: &Upload) -> bool {
        self.lock().entries.get(&upload.id).is_some_and(|entry| entry.leaving)
    }

    /// Bytes of all uploads.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Uploads refused when they asked for memory.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Uploads that have given way to others.
    pub(crate) fn displaced(&self) -> u64 {
        self.displaced.load(Relaxed)
    }

    /// Of both, those that were lines; their connections were closed.
    pub(crate) fn lines_refused(&self) -> u64 {
        self.lines_refused.load(Relaxed)
    }

    /// Sets the counters to zero.
    pub(crate) fn reset_stats(&self) {
        for counter in [&self.refused, &self.displaced, &self.lines_refused] {
            counter.store(0, Relaxed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nobody panics with it held")
    }

    /// Walks the table, for tests; how many uploads there are.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn verify(&self) -> usize {
        let table = self.lock();
        let sum = |leaving| -> usize {
            table.entries.values().filter(|entry| entry.leaving == leaving).map(|entry| entry.bytes).sum()
        };
        assert_eq!((sum(false), sum(true)), (table.staying_bytes, table.leaving_bytes));
        assert!(table.staying_bytes <= self.cap_bytes && table.leaving_bytes <= self.cap_bytes, "{table:?}");
        assert_eq!(self.bytes(), table.staying_bytes + table.leaving_bytes);
        table.entries.len()
    }
}

/// The uploads of one address that may give way, and the bytes of all of them.
#[derive(Default)]
struct Share {
    bytes: usize,
    /// Age, bytes and id; the oldest is the last.
    uploads: Vec<((u64, u64), usize)>,
}

impl Table {
    /// Chooses the uploads that give way for `missing` bytes, and marks them as leaving. `None`: no room is available, and
    /// nothing has changed. `asks`: the newcomer's bytes, in all; `id`: its own, 0 if it has none yet.
    fn make_room(
        &mut self,
        id: u64,
        peer: PeerKey,
        asks: usize,
        missing: usize,
        now_ms: u64,
        cap_bytes: usize,
    ) -> Option<Vec<GivesWay>> {
        if missing == 0 {
            return Some(Vec::new());
        }
        let chosen = self.choose(id, peer, asks, missing, now_ms)?;
        let bytes: usize = chosen.iter().map(|id| self.entries[id].bytes).sum();
        if self.leaving_bytes + bytes > cap_bytes {
            // Their lanes are behind: memory must not grow without a limit meanwhile.
            return None;
        }
        self.staying_bytes -= bytes;
        self.leaving_bytes += bytes;
        let leave = |id: u64| {
            let entry = self.entries.get_mut(&id).expect("it was chosen from the table");
            entry.leaving = true;
            GivesWay { lane: entry.origin.lane, token: entry.origin.token, upload: id }
        };
        Some(chosen.into_iter().map(leave).collect())
    }

    fn choose(&self, id: u64, peer: PeerKey, asks: usize, missing: usize, now_ms: u64) -> Option<Vec<u64>> {
        let mut others: Vec<_> =
            self.entries.iter().filter(|(other, entry)| **other != id && !entry.leaving).collect();
        others.sort_unstable_by_key(|(id, entry)| entry.age(**id));
        let (mut chosen, mut freed) = (Vec::new(), 0);
        let is_stalled = |entry: &Entry| now_ms.saturating_sub(entry.age(0).0) >= STALLED_MS;
        let stalled = others.iter().take_while(|(_, entry)| is_stalled(entry)).count();
        for (id, entry) in others.drain(..stalled) {
            chosen.push(*id);
            freed += entry.bytes;
            if freed >= missing {
                return Some(chosen);
            }
        }
        let mut shares = BTreeMap::<PeerKey, Share>::new();
        shares.entry(peer).or_default().bytes += asks;
        for (id, entry) in others.into_iter().rev() {
            let share = shares.entry(entry.origin.peer).or_default();
            share.bytes += entry.bytes;
            if entry.origin.peer != peer || entry.bytes > asks {
                share.uploads.push((entry.age(*id), entry.bytes));
            }
        }
        // Of addresses that have equally much it is the newcomer's: otherwise each newcomer would displace another's.
        let rank = |key: PeerKey, share: &Share| (share.bytes, key == peer, key);
        let mut most: BinaryHeap<_> = shares.iter().map(|(key, share)| rank(*key, share)).collect();
        while freed < missing {
            let (_, _, key) = most.pop()?;
            let share = shares.get_mut(&key).expect("the heap is made of them");
            let ((_, id), bytes) = share.uploads.pop()?;
            chosen.push(id);
            freed += bytes;
            share.bytes -= bytes;
            most.push(rank(key, share));
        }
        Some(chosen)
    }

    fn sum_of(&mut self, leaving: bool) -> &mut usize {
        if leaving { &mut self.leaving_bytes } else { &mut self.staying_bytes }
    }
}

#[cfg(test)]
mod tests;
