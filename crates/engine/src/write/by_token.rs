//! Fills by a filler without a connection: it is known only by its token.
//!
//! For instance a worker of the server itself that computes a missing value. What a client does with `ms key <size>
//! C<token>` and `md key C<token> Pe<text>` is done here without a request, a session or a reply. Waiters are answered,
//! and fills that come too late are dropped, as for any client.

use cattlegrid_herd::Filler;
use cattlegrid_store::NEVER;

use crate::engine::Engine;
use crate::event::{Event, EventKind, Interest};
use crate::rules::Change;
use crate::shard::Shard;
use crate::shards::ShardLock;
use crate::step::{Step, Ticket};
use crate::write::fill::{Fill, Filling};
use crate::write::store::{Mode, Outcome, Write};

/// A value that was computed under a lease.
#[derive(Debug, Clone, Copy)]
pub struct TokenFill<'a> {
    /// The key, of 1 to 250 bytes.
    pub key: &'a [u8],
    /// The lease's token.
    pub token: u64,
    /// The value. With `negative` it is kept and never sent.
    pub data: &'a [u8],
    /// The client flags.
    pub flags: u32,
    /// The expiration time as clients give it: seconds, or a Unix time above 30 days; 0: never.
    pub exptime: i64,
    /// The key is known to be absent. With the exptime 0 the answer ends as the rule says.
    pub negative: bool,
}

/// The result of a [`TokenFill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Filled {
    /// The value is stored, and its waiters have it; if it has expired already, only they have it.
    Stored,
    /// The key was invalidated after the computation began. The value is dropped.
    Late,
    /// The token is neither that of the key's lease nor of a lease that ended unfilled within its fill window; or the
    /// key has no rule.
    Unknown,
    /// A negative answer without an end, and its rule gives it none. Nothing was done: the lease goes on.
    NeedsTtl,
    /// There is no memory for the value, or it is larger than items may be. The lease passes on.
    Refused,
}

impl Engine {
    /// Stores the value of a lease, unless it comes too late.
    pub fn fill(&self, fill: &TokenFill<'_>, lock: &mut ShardLock<'_>, step: &mut Step<'_>) -> Filled {
        let hash = self.hash_key(fill.key);
        let mut write = Write {
            mode: Mode::Cas,
            flags: fill.flags,
            expiry: step.now.expiry(fill.exptime),
            compare: fill.token,
            takes_token: true,
            negative: fill.negative,
            ..Write::set(fill.key, hash, fill.data)
        };
        let mut room = self.shared().fits(fill.key, fill.flags, fill.data.len());
        if room && !self.fits_the_log(fill.data) {
            lock.release();
            write.huge = self.huge_value(fill.data);
            room = write.huge.is_some();
        }
        let mut filled = lock.shard(hash).fill_by_token(&mut write, room, false, step);
        if let Err(bytes) = filled {
            lock.release();
            self.make_room(bytes, hash);
            filled = lock.shard(hash).fill_by_token(&mut write, room, true, step);
        }
        self.settle(lock, step);
        filled.unwrap_or(Filled::Refused)
    }

    /// The holder of a lease gives up. `text`: sent to the waiters that asked for the lease; may be empty. False: the
    /// token is not that of the key's lease.
    pub fn fail(
        &self,
        key: &[u8],
        token: u64,
        text: &[u8],
        lock: &mut ShardLock<'_>,
        step: &mut Step<'_>,
    ) -> bool {
        let hash = self.hash_key(key);
        let shard = lock.shard(hash);
        shard.advance(step);
        let failed = shard.with_herd(step, |herd, step| herd.failed(hash, token, text, step));
        self.settle(lock, step);
        failed == Some(true)
    }
}

impl Shard {
    /// See [`Engine::fill`]. `room`: there is room for its value, otherwise it is refused. An error: the bytes for
    /// which the shard has no room; with `insist` the value is refused instead.
    fn fill_by_token(
        &mut self,
        write: &mut Write<'_>,
        room: bool,
        insist: bool,
        step: &mut Step<'_>,
    ) -> Result<Filled, usize> {
        self.advance(step);
        let (token, hash) = (write.compare, write.hash);
        let knows = |herd: &cattlegrid_herd::Herd| herd.knows_token(hash, token, step.now.ms);
        let Some(ruled) = self.rule_of(write.key).filter(|_| self.herd.as_deref().is_some_and(knows)) else {
            return Ok(Filled::Unknown);
        };
        if write.negative && write.expiry == NEVER {
            if ruled.negative_ttl_s == 0 {
                return Ok(Filled::NeedsTtl);
            }
            write.expiry = step.now.second.saturating_add(ruled.negative_ttl_s);
        }
        let by = Filler { connection: None, token: Some(token), pooled: false };
        let filling = Filling { fill: Fill::ByToken(token), by, session: None };
        let outcome = if room {
            let found = self.lookup_found(write.hash, write.key, step);
            self.store_value(write, found, filling, &ruled, step)
        } else {
            Outcome::NoRoom(0)
        };
        let filled = match outcome {
            Outcome::Stored { .. } => Filled::Stored,
            Outcome::NoRoom(bytes) if room && !insist => return Err(bytes),
            Outcome::NoRoom(_) => {
                step.counters.store_no_memory.add(1);
                let mut filling = Filling { fill: Fill::ByToken(token), by, session: None };
                self.consume(hash, &mut filling, step.now.ms);
                self.give_up_fill(hash, by, false, step);
                Filled::Refused
            }
            Outcome::NotStored | Outcome::Exists | Outcome::NotFound => Filled::Late,
        };
        step.counters.cmd_set.add(u64::from(filled != Filled::Refused));
        if filled == Filled::Stored {
            self.cascade(write.key, hash, Change::Set, step.now);
        }
        if step.interest.wants(Interest::MUTATIONS) {
            let status = match filled {
                Filled::Stored => "stored",
                Filled::Refused => "no_memory",
                _ => "not_stored",
            };
            let ttl = step.now.left(write.expiry).unwrap_or(0);
            let (command, size) = ("cas", write.data.len());
            let kind = EventKind::Store { status, command, ttl, size, classic: false };
            step.effects.events.push((Ticket::NONE, Event { key: write.key.into(), kind }));
        }
        Ok(filled)
    }
}
