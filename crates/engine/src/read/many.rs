//! `get` of one or of many keys, across shards.

use cattlegrid_protocol::{Get, Keys};

use crate::engine::Engine;
use crate::read::get::Answer;
use crate::read::pending::{Got, Pending, Piece};
use crate::shards::{PREFETCH_MAX, ShardLock};
use crate::step::Context;

impl Engine {
    /// Executes a piece of a `get` whose first key has the hash `first`. To continue, call it again with the remaining
    /// keys.
    ///
    /// The pauses between pieces keep a request for many large values from filling the memory while its client reads
    /// slowly, and a request for many keys from delaying other clients.
    pub fn get<'k>(
        &self,
        get: &Get<'k>,
        first: u64,
        piece: Piece,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Got<'k> {
        let mut keys = get.keys.clone().flatten();
        let one = keys.next().filter(|_| keys.clone().next().is_none());
        let mut pending = Pending::new(cx);
        let left = match one {
            Some(key) if cx.out.len() < piece.bytes => {
                let answer = lock.shard(first).get(key, first, get.cas, get.touch, cx);
                if answer != Answer::Hit {
                    pending.note(key, first, answer, cx);
                }
                None
            }
            _ => self.get_many(get, piece, lock, &mut pending, cx),
        };
        // A lease that was revoked may have had a slot of its rule.
        self.settle(lock, &mut cx.step);
        if pending.is_special() {
            let got = self.finish_get(get, &pending, piece.begun, left, lock, cx);
            self.settle(lock, &mut cx.step);
            return got;
        }
        if let Some(left) = left {
            return Got::More(left);
        }
        cx.out.bytes.extend_from_slice(cattlegrid_protocol::reply::END);
        Got::Done
    }

    fn get_many<'k>(
        &self,
        get: &Get<'k>,
        piece: Piece,
        lock: &mut ShardLock<'_>,
        pending: &mut Pending<'k>,
        cx: &mut Context<'_>,
    ) -> Option<Keys<'k>> {
        let mut keys = get.keys.clone().flatten();
        let mut room = piece.keys;
        let mut batch: [&[u8]; PREFETCH_MAX] = [&[]; PREFETCH_MAX];
        let mut hashes = [0; PREFETCH_MAX];
        loop {
            let mut count = 0;
            while let Some(key) = (count < PREFETCH_MAX).then(|| keys.next()).flatten() {
                batch[count] = key;
                hashes[count] = self.hash_key(key);
                count += 1;
            }
            lock.prefetch(&hashes[..count]);
            for (key, hash) in batch.iter().copied().zip(hashes).take(count) {
                if cx.out.len() >= piece.bytes || room == 0 {
                    let all = get.keys.rest();
                    return Some(Keys::of_rest(&all[key.as_ptr().addr() - all.as_ptr().addr()..]));
                }
                room -= 1;
                let answer = lock.shard(hash).get(key, hash, get.cas, get.touch, cx);
                if answer != Answer::Hit {
                    pending.note(key, hash, answer, cx);
                }
            }
            if count < PREFETCH_MAX {
                return None;
            }
        }
    }
}
