//! A call that has not ended, with its objects: see `engine/call_later.rs`. And the key of an object's item.

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;
use cattlegrid_herd::Caller;
use cattlegrid_objects::{Listing, MethodId, OBJECT_KEY_MAX, Registry};

/// The key of an object's item: its type's number, then its own key.
pub(crate) type ItemKey = ArrayVec<u8, { OBJECT_KEY_MAX + 2 }>;

/// A call that has not ended, with its objects.
#[derive(Debug)]
pub struct RunningCall {
    pub(crate) registry: Arc<Registry>,
    pub(crate) method: MethodId,
    pub(crate) type_id: u16,
    /// The call's objects, in the order of their hashes.
    pub(crate) objects: Vec<TakenObject>,
    /// The place of the object that is called among them.
    pub(crate) own: usize,
    /// The number of these objects that are busy with the call: the first ones.
    pub(crate) taken: usize,
    pub(crate) arguments: Vec<Box<[u8]>>,
    pub(crate) tags: Vec<u64>,
    pub(crate) random: u64,
    pub(crate) changes: u64,
    pub(crate) work: CallWork,
    /// Runs of a host's method that were lost because the object had changed.
    pub(crate) losses: u32,
    pub(crate) caller: Arc<Caller>,
    pub(crate) request: u64,
    pub(crate) begun_ns: u64,
    pub(crate) own_lane: bool,
}

/// An object of a call.
#[derive(Debug)]
pub(crate) struct TakenObject {
    pub(crate) hash: u64,
    pub(crate) item_key: Box<[u8]>,
    /// The object's CAS, once it has been read; 0: it is absent.
    pub(crate) cas: Option<u64>,
    pub(crate) ttl: Option<u64>,
}

/// What a call has to do when its objects are busy with it.
#[derive(Debug)]
pub(crate) enum CallWork {
    /// Call the method, on its only object.
    Method,
    Read(Box<Listing>),
}

/// The queue of an object that is busy.
pub(crate) type CallQueue = VecDeque<Box<RunningCall>>;

impl RunningCall {
    /// The lane on which it was called is to run it: it was only postponed, and other lanes need not wait for
    /// it.
    pub fn is_for_own_lane(&self) -> bool {
        self.own_lane
    }

    /// The lane that is to run it otherwise, of this many.
    pub fn home(&self, lanes: usize) -> usize {
        let hash = self.objects.first().map_or(0, |object| object.hash);
        (hash >> 32) as usize % lanes.max(1)
    }
}

/// The key of the item of an object; None: the object's key is too long.
pub(crate) fn item_key(type_id: u16, key: &[u8]) -> Option<ItemKey> {
    let mut item_key = ItemKey::new();
    fill_item_key(&mut item_key, type_id, key).then_some(item_key)
}

/// Writes the key of an object's item in place, for callers that must not move it; false: the object's key is
/// too long.
#[inline]
pub(crate) fn fill_item_key(item_key: &mut ItemKey, type_id: u16, key: &[u8]) -> bool {
    item_key.clear();
    item_key.try_extend_from_slice(&type_id.to_le_bytes()).is_ok()
        && item_key.try_extend_from_slice(key).is_ok()
}
