//! The table of events and states that the histories must visit, and the actions that they must take.

use cattlegrid_engine::KeyState;

use super::is_leased;

pub(crate) const EVENTS: [&str; 21] = [
    "get",
    "get by its computer",
    "mg N",
    "mg N Pw",
    "fills_stored",
    "fills_dropped",
    "fills_stale",
    "other write",
    "set exptime < 0",
    "add",
    "cas",
    "replace append incr touch",
    "delete or flush",
    "md I",
    "eviction",
    "holder gives up",
    "promoted_deadline",
    "lease ends in time",
    "holder is gone",
    "holder leaves",
    "waiter closes",
];
pub(crate) const STATES: [(&str, KeyState); 7] = [
    ("A", KeyState::Absent),
    ("F", KeyState::Fresh),
    ("S", KeyState::Stale),
    ("LA", KeyState::LeasedAbsent),
    ("LS", KeyState::LeasedStale),
    ("LF", KeyState::LeasedFresh),
    ("PASS", KeyState::Pass),
];

/// The actions of clients and operators.
pub(crate) const STEPS_OF: [&str; 56] = [
    "sync client",
    "pool",
    "elastic pool",
    "multiplexed connection",
    "explicit client",
    "writer",
    "liar",
    "time passes",
    "a pool grows",
    "a pool shrinks",
    "a client gives up waiting",
    "a client gives up a run",
    "a thread gives up waiting",
    "a client asks twice",
    "a busy error is taken for misses",
    "a computer asks for a slot",
    "fill with a named tag",
    "fill with a line of tags",
    "fill with an announced tag",
    "a malformed line of tags",
    "soft invalidation",
    "soft invalidation, twice",
    "negative answer",
    "bump of a named tag",
    "bump by a log",
    "bump by a log, left out",
    "other notes of tags",
    "cascade",
    "soft cascade",
    "refused, no cascade",
    "touch",
    "gat",
    "eviction",
    "slow flush",
    "gradual purge",
    "reload",
    "reload without rules",
    "rules come back at once",
    "a connection remembers no more",
    "a value is refused",
    "several gets in a packet",
    "a run of quiet gets",
    "a held run of quiet gets",
    "load",
    "refresh by the loader",
    "a load is cancelled",
    "a load fails",
    "a result comes too late",
    "the loader finds nothing",
    "the loader's value is stored",
    "a refresh is raised",
    "an old value is shown for a time",
    "proved",
    "provisional",
    "doubted",
    "lost",
];

/// Events that only leases have.
pub(crate) fn is_reachable(event: &str, state: KeyState) -> bool {
    match event {
        "promoted_deadline" | "waiter closes" => state == KeyState::LeasedAbsent,
        "lease ends in time" => is_leased(state),
        // A soft invalidation ends an early refresh.
        "fills_stale" => state != KeyState::LeasedFresh,
        _ => true,
    }
}
