//! What follows a call of a host's method that has taken effect: plain values, invalidations, loads, events,
//! lines of the log.
//!
//! Each is done as a client of its own would do it, in order, when the call's object is not locked.

use std::cell::Cell;

use cattlegrid_herd::{Caller, PeerKey, Session};
use cattlegrid_objects::FollowUp;
use cattlegrid_tags::BumpKind;

use crate::engine::Engine;
use crate::engine::room::{RoomSource, drop_write};
use crate::event::{Event, EventKind};
use crate::query::Query;
use crate::shard::Shard;
use crate::shard::object::Call;
use crate::shard::put::{Write, WriteData, WriteMode};
use crate::shard::standing::Standing;
use crate::shards::ShardLock;
use crate::step::Output;
use crate::step::{Context, Interest, Step, Ticket};
use crate::time::RELATIVE_MAX;

thread_local! {
    /// The second in which the log was last told that there is no memory.
    static TOLD: Cell<Option<u32>> = const { Cell::new(None) };
}

impl Engine {
    /// Does what follows a call, in order.
    pub(crate) fn follow(
        &self,
        call: &Call<'_>,
        after: Vec<FollowUp>,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) {
        if after.is_empty() {
            return;
        }
        for one in after {
            match one {
                FollowUp::Set { key, value, ttl_s } => {
                    self.set_after(call, &call.behind(&key), &value, ttl_s, lock, step);
                }
                FollowUp::Invalidate(tag) => {
                    // The first use of tags takes memory from all shards.
                    lock.release();
                    // A name that is not valid was refused before.
                    let bumped = self.bump(call.prefix(), &tag, BumpKind::Hard, step);
                    debug_assert!(bumped.is_ok(), "the host has checked it");
                }
                FollowUp::Load(key) => {
                    let key = call.behind(&key);
                    let hash = self.hash_key(&key);
                    self.without_client(step, |cx| lock.shard(hash).load_missing(&key, hash, cx));
                    self.finish_step(lock, step);
                }
                FollowUp::Event { name, json } if step.interest.wants(Interest::SCRIPTS) => {
                    let key = call.registry.object_name(call.type_id, call.key()).unwrap_or_default().into();
                    let kind = EventKind::Script { name: name.into(), json: json.into() };
                    step.effects.events.push((Ticket::NONE, Event { key, kind }));
                }
                FollowUp::Event { .. } => {}
                FollowUp::Log(line) => step.effects.line(line),
            }
        }
        lock.release();
    }

    /// `set` without a reply. Why it is refused, only the log is told, once a second.
    fn set_after(
        &self,
        call: &Call<'_>,
        key: &[u8],
        data: &[u8],
        ttl_s: u32,
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) {
        let mut exptime = i64::from(ttl_s);
        if exptime > RELATIVE_MAX {
            exptime += step.now.unix(step.now.second);
        }
        let write = Write {
            expiry: step.now.expiry(exptime),
            drops_old: true,
            ..Write::set(key, self.hash_key(key), data)
        };
        let mut failed = None;
        self.without_client(step, |cx| failed = self.set(write, data, lock, cx).err());
        if let Some(why) = failed
            && TOLD.replace(Some(step.now.second)) != Some(step.now.second)
        {
            let (object_type, method) = call.registry.names(call.method);
            step.effects.line(format!("{object_type}.{method}: cg.set: {why}"));
        }
    }

    /// An error: why it is not stored.
    fn set<'a>(
        &self,
        mut write: Write<'a>,
        data: &'a [u8],
        lock: &mut ShardLock<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let text = String::from_utf8_lossy(write.key);
        let no_memory = || format!("no memory for the value of {text}");
        let is_named = || self.objects().is_some_and(|registry| registry.named(write.key).is_some());
        if self.shared().control(write.key).is_some() || is_named() {
            // There was no rule file, or there were other types, when the method was run.
            return Ok(());
        }
        let stored = match self.data(data, lock) {
            None => {
                drop_write(&write, (WriteMode::Set, true), lock, cx);
                Err(no_memory())
            }
            Some(mut data) => {
                if let WriteData::Huge(pages) = &mut data {
                    self.cut_line(write.key, WriteMode::Set, pages);
                }
                write.data = data;
                let run = |lock: &mut ShardLock<'_>, last| lock.shard(write.hash).set(&write, last, cx);
                match self.with_room(RoomSource::Others, write.hash, lock, run) {
                    Ok(None) => Ok(()),
                    Ok(Some(refused)) => Err(format!("the value of {text} is refused: {refused}")),
                    Err(_) => Err(no_memory()),
                }
            }
        };
        self.finish_step(lock, &mut cx.step);
        stored
    }

    /// Calls `act` on behalf of a connection that has no client: it has missed nothing, and waits for
    /// nothing.
    fn without_client(&self, step: &mut Step<'_>, act: impl FnOnce(&mut Context<'_>)) {
        let peers = self.shared().peers();
        // The process number of no client.
        let peer = peers.join(PeerKey::Process(0));
        let caller = Caller::new(Ticket::NONE.connection, 0, 0, peer);
        let mut session = Session::with_room(caller.into(), 1);
        let mut out = Output::default();
        let Step { now, counters, interest, .. } = *step;
        let mut cx = Context {
            step: Step { now, counters, interest, effects: &mut *step.effects },
            ticket: Ticket::NONE,
            session: &mut session,
            out: &mut out,
        };
        act(&mut cx);
        peers.leave(session.caller().peer());
    }
}

impl Shard {
    /// Orders a load as a get would do, unless the key has a fresh value, is known to be absent, or has no
    /// loader.
    fn load_missing(&mut self, key: &[u8], hash: u64, cx: &mut Context<'_>) {
        self.advance(&cx.step);
        if self.is_named(key) {
            return;
        }
        let active = self.shared.rules();
        let Some(ruled) = active.as_ref().and_then(|active| active.find(key)) else { return };
        if !ruled.state.policy().loader {
            return;
        }
        let lookup = self.lookup(hash, key, &cx.step);
        let standing = self
            .lookup_found(hash, key, &cx.step)
            .map(|found| self.standing(found, hash, Some(ruled.state), &cx.step));
        if matches!(standing, Some(Standing::Fresh | Standing::Negative)) {
            return;
        }
        // Whatever it answers: no client waits.
        let _decision = self.decide(&Query::plain(key, hash, false), &ruled, lookup, cx);
    }
}
