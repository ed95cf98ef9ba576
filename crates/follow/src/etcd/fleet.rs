//! The listed nodes, and the barriers that wait for them.
//!
//! A barrier is over when no node that was listed at the commit of its bump can serve an older value any
//! more. A node cannot once its record says that it has obeyed the bump, or once it is behind: then it treats
//! everything older than its `max_lag` as bumped.
//!
//! So after a node has gone from the list, barriers wait until its `max_lag` has passed since the commit. For
//! [`GONE_MS`] after its lease has run out new barriers wait for it as well, since it may be cut off and
//! still serve; not for a node that has left by itself.

use std::collections::BTreeMap;

use crate::etcd::record::{NodeRecord, NodeState};

/// The time in milliseconds by which the floor of a node that is behind may lag, and by which its threads may
/// be late.
const SLACK_MS: u64 = 300;

/// How long barriers still wait for a node after its lease has run out, in milliseconds.
pub const GONE_MS: u64 = 60_000;

/// A node that is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedNode {
    /// The node's name, unique in the fleet.
    pub name: String,
    /// The node's record.
    pub record: NodeRecord,
}

/// The nodes. See the module's text.
#[derive(Debug)]
pub struct Fleet<W> {
    /// The listed nodes, by name.
    nodes: BTreeMap<String, NodeRecord>,
    /// The revision that the list is of.
    seen: u64,
    /// Nodes that are not listed any more, each with the time until which barriers wait for it.
    gone: BTreeMap<String, (NodeRecord, u64)>,
    barriers: Vec<Barrier<W>>,
}

#[derive(Debug)]
struct Barrier<W> {
    own: u64,
    revision: u64,
    committed_ms: u64,
    /// Listed nodes that have not obeyed: name, instance, and `max_lag`. None: the list is older than the
    /// bump.
    waits_for: Option<Vec<(String, u64, u64)>>,
    waiters: Vec<W>,
}

impl<W> Default for Fleet<W> {
    fn default() -> Self {
        Self { nodes: BTreeMap::new(), seen: 0, gone: BTreeMap::new(), barriers: Vec::new() }
    }
}

impl<W> Fleet<W> {
    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = ListedNode> + '_ {
        self.nodes.iter().map(|(name, record)| ListedNode { name: name.clone(), record: record.clone() })
    }

    /// How many nodes are listed.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no node is listed.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The names under which an instance is listed: one, or two for a moment.
    pub fn names_of(&self, instance: u64) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter(move |(_, record)| record.instance == instance).map(|(name, _)| &**name)
    }

    /// Replaces the list after it was read as a whole.
    pub fn replace(&mut self, nodes: impl Iterator<Item = (String, NodeRecord)>, now_ms: u64) {
        let before = std::mem::take(&mut self.nodes);
        for (name, record) in nodes {
            self.put(name, record);
        }
        for (name, record) in before {
            if !self.nodes.contains_key(&name) {
                self.note_gone(name, record, now_ms);
            }
        }
    }

    /// Records a record that a node has written.
    pub fn put(&mut self, name: String, record: NodeRecord) {
        self.gone.remove(&name);
        self.nodes.insert(name, record);
    }

    /// Removes a node whose lease has run out, or that has left.
    pub fn remove(&mut self, name: &str, now_ms: u64) {
        if let Some(record) = self.nodes.remove(name) {
            self.note_gone(name.to_owned(), record, now_ms);
        }
    }

    fn note_gone(&mut self, name: String, record: NodeRecord, now_ms: u64) {
        let is_listed = self.nodes.values().any(|other| other.instance == record.instance);
        if record.state != NodeState::Draining && !is_listed {
            self.gone.insert(name, (record, now_ms + GONE_MS));
        }
    }

    /// The record of a node.
    pub fn get(&self, name: &str) -> Option<&NodeRecord> {
        self.nodes.get(name)
    }

    /// Records that the list has all that was written up to this revision.
    pub fn see(&mut self, revision: u64) {
        self.seen = revision;
        let mut barriers = std::mem::take(&mut self.barriers);
        for barrier in &mut barriers {
            if barrier.waits_for.is_none() && barrier.revision <= revision {
                barrier.waits_for = Some(self.others(barrier.own, barrier.committed_ms));
            }
        }
        self.barriers = barriers;
    }

    /// Adds a barrier: waiters for a bump that was committed at `revision`. It waits for the nodes that are
    /// listed at that revision, which are known when the list is as new. `own`: this node, which has obeyed.
    pub fn wait(&mut self, own: u64, revision: u64, committed_ms: u64, waiters: Vec<W>) {
        let waits_for = (self.seen >= revision).then(|| self.others(own, committed_ms));
        self.barriers.push(Barrier { own, revision, committed_ms, waits_for, waiters });
    }

    fn others(&mut self, own: u64, committed_ms: u64) -> Vec<(String, u64, u64)> {
        self.gone.retain(|_, (_, until_ms)| committed_ms < *until_ms);
        let gone = self.gone.iter().map(|(name, (record, _))| (name, record));
        let others = self.nodes.iter().chain(gone).filter(|(_, record)| record.instance != own);
        others.map(|(name, record)| (name.clone(), record.instance, record.max_lag_ms)).collect()
    }

    /// Takes the waiters whose barrier is over.
    pub fn take_passed(&mut self, now_ms: u64) -> Vec<W> {
        let nodes = &self.nodes;
        for barrier in &mut self.barriers {
            let (revision, committed_ms) = (barrier.revision, barrier.committed_ms);
            let Some(waits_for) = &mut barrier.waits_for else { continue };
            waits_for.retain(|(name, instance, max_lag_ms)| {
                match nodes.get(name).filter(|record| record.instance == *instance) {
                    Some(record) => record.applied < revision,
                    None => now_ms < committed_ms + max_lag_ms + SLACK_MS,
                }
            });
        }
        let passed =
            self.barriers.extract_if(.., |barrier| barrier.waits_for.as_ref().is_some_and(Vec::is_empty));
        passed.flat_map(|barrier| barrier.waiters).collect()
    }

    /// Takes all waiters, because the state of other nodes is not known any more.
    pub fn take_all(&mut self) -> Vec<W> {
        self.barriers.drain(..).flat_map(|barrier| barrier.waiters).collect()
    }

    /// When [`Fleet::take_passed`] must be called if no record comes before.
    pub fn next_ms(&self) -> Option<u64> {
        let times = self.barriers.iter().flat_map(|barrier| {
            let gone = barrier.waits_for.iter().flatten().filter(|(name, instance, _)| {
                self.nodes.get(name).is_none_or(|record| record.instance != *instance)
            });
            gone.map(|(_, _, max_lag_ms)| barrier.committed_ms + max_lag_ms + SLACK_MS)
        });
        times.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(instance: u64, applied: u64) -> NodeRecord {
        NodeRecord {
            instance,
            state: NodeState::Up,
            address: String::new(),
            applied,
            max_lag_ms: 3000,
            lag_ms: None,
            release: String::new(),
        }
    }

    fn three() -> Fleet<&'static str> {
        let mut fleet = Fleet::default();
        fleet.replace((1..=3).map(|number| (format!("n{number}"), record(number, 5))), 0);
        fleet.see(10);
        fleet
    }

    #[test]
    fn a_barrier_waits_for_all_others() {
        let mut fleet = three();
        fleet.wait(1, 10, 1000, vec!["a"]);
        assert!(fleet.take_passed(1000).is_empty());
        fleet.put("n2".to_owned(), record(2, 10));
        assert!(fleet.take_passed(1001).is_empty());
        fleet.put("n3".to_owned(), record(3, 9));
        assert!(fleet.take_passed(1002).is_empty());
        assert_eq!(fleet.next_ms(), None, "a node that is listed says so, or its lease runs out");
        fleet.put("n3".to_owned(), record(3, 11));
        assert_eq!(fleet.take_passed(1003), ["a"]);
        assert!(fleet.take_passed(1004).is_empty(), "once");
    }

    #[test]
    fn nodes_that_were_listed_before_the_bump_count_though_it_was_not_known_yet() {
        let mut fleet = three();
        fleet.wait(1, 12, 1000, vec!["a"]);
        for name in ["n2", "n3"] {
            fleet.put(name.to_owned(), record(if name == "n2" { 2 } else { 3 }, 12));
        }
        assert!(fleet.take_passed(1000).is_empty(), "the list is older than the bump");
        fleet.put("n4".to_owned(), record(4, 0));
        fleet.see(11);
        assert!(fleet.take_passed(1000).is_empty());
        fleet.see(12);
        assert!(fleet.take_passed(1000).is_empty(), "n4 has not obeyed");
        fleet.put("n4".to_owned(), record(4, 12));
        assert_eq!(fleet.take_passed(1000), ["a"]);
    }

    #[test]
    fn a_node_that_has_gone_is_waited_for_until_it_serves_nothing_older() {
        let mut fleet = three();
        fleet.put("n2".to_owned(), record(2, 10));
        fleet.wait(1, 10, 1000, vec!["a", "b"]);
        fleet.remove("n3", 1100);
        assert!(fleet.take_passed(1500).is_empty());
        let due_ms = fleet.next_ms().unwrap();
        assert_eq!(due_ms, 1000 + 3000 + SLACK_MS);
        assert!(fleet.take_passed(due_ms - 1).is_empty());
        assert_eq!(fleet.take_passed(due_ms), ["a", "b"]);
    }

    #[test]
    fn another_instance_under_the_name_says_nothing_of_the_last_one() {
        let mut fleet = three();
        fleet.wait(1, 10, 1000, vec!["a"]);
        fleet.put("n2".to_owned(), record(2, 10));
        fleet.put("n3".to_owned(), record(33, 12));
        assert!(fleet.take_passed(1500).is_empty());
        assert_eq!(fleet.take_passed(1000 + 3000 + SLACK_MS), ["a"]);
    }

    #[test]
    fn a_node_that_may_be_cut_off_is_waited_for() {
        for (state, due_ms) in [(NodeState::Up, Some(2000 + 3000 + SLACK_MS)), (NodeState::Draining, None)] {
            let mut fleet = three();
            fleet.put("n2".to_owned(), record(2, 99));
            fleet.put("n3".to_owned(), NodeRecord { state, ..record(3, 5) });
            fleet.remove("n3", 1000);
            fleet.wait(1, 10, 2000, vec!["a"]);
            if let Some(due_ms) = due_ms {
                assert_eq!(fleet.take_passed(due_ms - 1).len(), 0);
            }
            assert_eq!(fleet.take_passed(due_ms.unwrap_or(2000)), ["a"], "a node that left serves nothing");
        }
        let mut fleet = three();
        fleet.put("n2".to_owned(), record(2, 99));
        fleet.replace((1..=2).map(|number| (format!("n{number}"), record(number, 99))), 1000);
        fleet.wait(1, 10, 2000, vec!["a"]);
        assert_eq!(fleet.take_passed(2001).len(), 0);
        // It is back, and has not obeyed; then it has.
        fleet.put("n3".to_owned(), record(3, 9));
        assert_eq!(fleet.take_passed(99_000).len(), 0);
        fleet.put("n3".to_owned(), record(3, 10));
        assert_eq!(fleet.take_passed(99_000), ["a"]);
        fleet.remove("n3", 100_000);
        fleet.see(110);
        fleet.wait(1, 110, 100_000 + GONE_MS, vec!["b"]);
        fleet.put("n2".to_owned(), record(2, 110));
        assert_eq!(fleet.take_passed(100_000 + GONE_MS), ["b"], "not for ever");
    }

    #[test]
    fn a_node_alone_waits_for_none() {
        let mut fleet = Fleet::default();
        fleet.put("n1".to_owned(), record(1, 5));
        fleet.see(10);
        fleet.wait(1, 10, 0, vec!["a"]);
        assert_eq!(fleet.take_passed(0), ["a"]);
        fleet.put("n2".to_owned(), record(2, 5));
        fleet.wait(1, 11, 0, vec!["b"]);
        assert_eq!(fleet.take_all(), ["b"]);
    }
}
