//! `get` of one or of many keys, across shards, and the gets of the binary protocol.

use cattlegrid_protocol::{Get, Keys, PacketGet};

use crate::engine::Engine;
use crate::engine::called::{CallCx, Called};
use crate::engine::hold::Wait;
use crate::engine::pending::{Got, Pending, Piece};
use crate::parked::Parked;
use crate::reply::call::Shape;
use crate::reply::get::Asked;
use crate::reply::meta::Refusals;
use crate::shard::flow::{Answer, Executed};
use crate::shards::{PREFETCH_MAX, ShardLock};
use crate::step::{Context, TURN_CALLS_NS};

/// Why a piece of a `get` of many keys ends.
enum Stop<'k> {
    /// All keys are done.
    End,
    /// The piece is full, or these keys, at least one, must wait for others.
    More(Keys<'k>),
    /// The call of an object waits; then these keys are left, at least one.
    Parked(Box<Parked>, Option<Keys<'k>>),
}

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
        let one = keys.next().filter(|_| keys.next().is_none());
        let (mut pending, mut left) = (None, None);
        if let Some(key) = one.filter(|_| cx.out.len() < piece.bytes) {
            let from = cx.out.place();
            match lock.shard(first).get(&Asked::classic(get, key), first, cx) {
                // It has no other key that could wait.
                Answer::Hit | Answer::Miss | Answer::Compute => {}
                Answer::Object(spot) => {
                    let shape = Shape::Get { key, cas: get.cas, alone: !piece.progress.is_begun() };
                    let request = CallCx { shape, key, last: true, lock, cx };
                    match self.get_object(spot, get.touch.is_some(), request) {
                        Called::Written => {}
                        Called::Refused => return Got::Done,
                        Called::Parked(parked) => return Got::Parked(parked),
                    }
                }
                answer => {
                    let one = pending.insert(Pending::at(from));
                    one.note(Asked::classic(get, key), first, answer, cx);
                }
            }
        } else {
            let many = pending.insert(Pending::at(cx.out.place()));
            match self.get_many(get, piece, lock, many, cx) {
                Stop::End => {}
                Stop::More(rest) => left = Some(rest),
                Stop::Parked(parked, rest) => {
                    self.settle(lock, &mut cx.step);
                    return match rest {
                        None => Got::Parked(parked),
                        Some(rest) => Got::ParkedMore(parked, rest),
                    };
                }
            }
        }
        // A lease that was revoked may have had a slot of its rule.
        self.settle(lock, &mut cx.step);
        if let Some(pending) = pending.filter(Pending::is_special) {
            let got = self.finish_get(get, &pending, piece, left, lock, cx);
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
    ) -> Stop<'k> {
        let all = get.keys.rest();
        let from = |key: &[u8]| Keys::of_rest(&all[key.as_ptr().addr() - all.as_ptr().addr()..]);
        let mut keys = get.keys.clone().flatten();
        let mut room = piece.keys;
        let calls_ns = cx.step.effects.calls_ns();
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
                    return Stop::More(from(key));
                }
                room -= 1;
                let answer = lock.shard(hash).get(&Asked::classic(get, key), hash, cx);
                if let Answer::Object(spot) = answer {
                    if pending.is_special() {
                        // It is asked again in the next piece, and counts once.
                        Asked::classic(get, key).count(1_u64.wrapping_neg(), cx.step.counters);
                        // Nothing waits behind the keys of a piece that waits.
                        pending.call_next = true;
                        return Stop::More(from(key));
                    }
                    let rest = &all[key.as_ptr().addr() - all.as_ptr().addr() + key.len()..];
                    let last = Keys::of_rest(rest).flatten().next().is_none();
                    let shape = Shape::Get { key, cas: get.cas, alone: false };
                    let request = CallCx { shape, key, last, lock, cx };
                    let called = self.get_object(spot, get.touch.is_some(), request);
                    if let Called::Parked(parked) = called {
                        return Stop::Parked(parked, (!last).then(|| Keys::of_rest(rest)));
                    }
                    if !last && cx.step.effects.calls_ns() - calls_ns >= TURN_CALLS_NS {
                        return Stop::More(Keys::of_rest(rest));
                    }
                } else if answer != Answer::Hit {
                    pending.note(Asked::classic(get, key), hash, answer, cx);
                }
            }
            if count < PREFETCH_MAX {
                return Stop::End;
            }
        }
    }

    /// A get of the binary protocol.
    pub(crate) fn get_packet(
        &self,
        get: &PacketGet<'_>,
        hash: u64,
        of_run: bool,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Executed {
        let asked = Asked::packet(get);
        let mut pending = Pending::at(cx.out.place());
        let answer = lock.shard(hash).get(&asked, hash, cx);
        // A lease that was revoked may have had a slot of its rule.
        self.settle(lock, &mut cx.step);
        match answer {
            Answer::Hit | Answer::Miss => Executed::Done,
            Answer::Compute => Executed::Computes,
            Answer::Busy => {
                asked.write_error(cattlegrid_protocol::reply::error::BUSY, &mut cx.out.bytes);
                Executed::Done
            }
            Answer::Control => {
                lock.release();
                self.answer_control_key(&asked, Refusals::Packet(get.packet), cx).into()
            }
            Answer::Object(spot) => {
                let shape = Shape::Packet { key: get.key, packet: get.packet };
                let request = CallCx { shape, key: get.key, last: true, lock, cx };
                self.get_object(spot, asked.touches(), request).into()
            }
            Answer::Leased(holds) if of_run => Executed::Leased(holds),
            Answer::Leased(_) => {
                pending.note(asked, hash, answer, cx);
                let parked = self.park_get([].into_iter(), &pending, Wait::ONE, lock, cx);
                self.settle(lock, &mut cx.step);
                parked.map_or(Executed::Done, Executed::Parked)
            }
        }
    }
}
