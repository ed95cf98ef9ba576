//! `get` of one or of many keys, across shards, and the gets of the binary protocol.

use cattlegrid_protocol::{Get, Keys, PacketGet};

use crate::engine::Engine;
use crate::engine::called::{CallCx, CallProgress};
use crate::engine::hold::GetWait;
use crate::parked::{GetPiece, ParkedRequest, Pending, PieceResult};
use crate::query::KeyAnswer;
use crate::reply::call::CallForm;
use crate::reply::get::AskedKey;
use crate::reply::meta::Refusals;
use crate::shard::Execution;
use crate::shards::{PREFETCH_MAX, ShardLock};
use crate::step::{Context, TURN_CALLS_NS};

/// Why a piece of a `get` of many keys ends.
enum PieceEnd<'k> {
    /// All keys are done.
    End,
    /// The piece is full, or these keys, at least one, must wait for others.
    More(Keys<'k>),
    /// The call of an object waits; then these keys are left, at least one.
    Parked(Box<ParkedRequest>, Option<Keys<'k>>),
}

impl Engine {
    /// Executes a piece of a `get` whose first key has the hash `first`. To continue, call it again with the
    /// remaining keys.
    ///
    /// The pauses between pieces keep a request for many large values from filling the memory while its
    /// client reads slowly, and a request for many keys from delaying other clients.
    pub fn get<'k>(
        &self,
        get: &Get<'k>,
        first: u64,
        piece: GetPiece,
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> PieceResult<'k> {
        let mut keys = get.keys.clone().flatten();
        let one = keys.next().filter(|_| keys.next().is_none());
        let (mut pending, mut left) = (None, None);
        if let Some(key) = one.filter(|_| cx.out.len() < piece.bytes) {
            let from = cx.out.place();
            match lock.shard(first).get(&AskedKey::classic(get, key), first, cx) {
                // It has no other key that could wait.
                KeyAnswer::Hit | KeyAnswer::Miss | KeyAnswer::Compute => {}
                KeyAnswer::Object(spot) => {
                    let shape = CallForm::Get { key, cas: get.cas, alone: !piece.progress.is_begun() };
                    let request = CallCx { shape, key, last: true, lock, cx };
                    match self.get_object(spot, get.touch.is_some(), request) {
                        CallProgress::Written => {}
                        CallProgress::Refused => return PieceResult::Done,
                        CallProgress::Parked(parked) => return PieceResult::Parked(parked),
                    }
                }
                answer => {
                    let one = pending.insert(Pending::at(from));
                    one.note(AskedKey::classic(get, key), first, answer, cx);
                }
            }
        } else {
            let many = pending.insert(Pending::at(cx.out.place()));
            match self.get_many(get, piece, lock, many, cx) {
                PieceEnd::End => {}
                PieceEnd::More(rest) => left = Some(rest),
                PieceEnd::Parked(parked, rest) => {
                    self.finish_step(lock, &mut cx.step);
                    return match rest {
                        None => PieceResult::Parked(parked),
                        Some(rest) => PieceResult::ParkedMore(parked, rest),
                    };
                }
            }
        }
        // A lease that was revoked may have had a slot of its rule.
        self.finish_step(lock, &mut cx.step);
        if let Some(pending) = pending.filter(Pending::is_special) {
            let got = self.finish_get(get, &pending, piece, left, lock, cx);
            self.finish_step(lock, &mut cx.step);
            return got;
        }
        if let Some(left) = left {
            return PieceResult::More(left);
        }
        cx.out.bytes.extend_from_slice(cattlegrid_protocol::reply::END);
        PieceResult::Done
    }

    fn get_many<'k>(
        &self,
        get: &Get<'k>,
        piece: GetPiece,
        lock: &mut ShardLock<'_>,
        pending: &mut Pending<'k>,
        cx: &mut Context<'_>,
    ) -> PieceEnd<'k> {
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
                    return PieceEnd::More(from(key));
                }
                room -= 1;
                let answer = lock.shard(hash).get(&AskedKey::classic(get, key), hash, cx);
                if let KeyAnswer::Object(spot) = answer {
                    if pending.is_special() {
                        // It is asked again in the next piece, and counts once.
                        AskedKey::classic(get, key).count(1_u64.wrapping_neg(), cx.step.counters);
                        // Nothing waits behind the keys of a piece that waits.
                        pending.call_next = true;
                        return PieceEnd::More(from(key));
                    }
                    let rest = &all[key.as_ptr().addr() - all.as_ptr().addr() + key.len()..];
                    let last = Keys::of_rest(rest).flatten().next().is_none();
                    let shape = CallForm::Get { key, cas: get.cas, alone: false };
                    let request = CallCx { shape, key, last, lock, cx };
                    let called = self.get_object(spot, get.touch.is_some(), request);
                    if let CallProgress::Parked(parked) = called {
                        return PieceEnd::Parked(parked, (!last).then(|| Keys::of_rest(rest)));
                    }
                    if !last && cx.step.effects.calls_ns() - calls_ns >= TURN_CALLS_NS {
                        return PieceEnd::More(Keys::of_rest(rest));
                    }
                } else if answer != KeyAnswer::Hit {
                    pending.note(AskedKey::classic(get, key), hash, answer, cx);
                }
            }
            if count < PREFETCH_MAX {
                return PieceEnd::End;
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
    ) -> Execution {
        let asked = AskedKey::packet(get);
        let mut pending = Pending::at(cx.out.place());
        let answer = lock.shard(hash).get(&asked, hash, cx);
        // A lease that was revoked may have had a slot of its rule.
        self.finish_step(lock, &mut cx.step);
        match answer {
            KeyAnswer::Hit | KeyAnswer::Miss => Execution::Done,
            KeyAnswer::Compute => Execution::Computes,
            KeyAnswer::Busy => {
                asked.write_error(cattlegrid_protocol::reply::error::BUSY, &mut cx.out.bytes);
                Execution::Done
            }
            KeyAnswer::Control => {
                lock.release();
                self.answer_control_key(&asked, Refusals::Packet(get.packet), cx).into()
            }
            KeyAnswer::Object(spot) => {
                let shape = CallForm::Packet { key: get.key, packet: get.packet };
                let request = CallCx { shape, key: get.key, last: true, lock, cx };
                self.get_object(spot, asked.touches(), request).into()
            }
            KeyAnswer::Leased(holds) if of_run => Execution::Leased(holds),
            KeyAnswer::Leased(_) => {
                pending.note(asked, hash, answer, cx);
                let parked = self.park_get([].into_iter(), &pending, GetWait::ONE, lock, cx);
                self.finish_step(lock, &mut cx.step);
                parked.map_or(Execution::Done, Execution::Parked)
            }
        }
    }
}
