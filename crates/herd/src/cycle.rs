//! Circles of connections that wait for each other.
//!
//! A connection that holds a lease and waits for another key can be part of a circle in which every
//! connection waits forever. It publishes what it holds and waits for, and then looks for a circle. If two
//! connections close a circle at the same moment, the connection that published last sees the other. (If they
//! looked first and published afterwards, both could miss it.)
//!
//! Only connections that both hold and wait are in the graph, so its lock is taken rarely. What is published
//! may be out of date: a circle that was found must be verified against the leases themselves. A real circle
//! stays, because all connections in it wait.

use std::collections::{HashMap, HashSet};

use crate::sync::{Mutex, PoisonError};

/// The graph of connections that wait for keys that others hold.
#[derive(Debug, Default)]
pub struct WaitGraph(Mutex<Graph>);

#[derive(Debug, Default)]
struct Graph {
    /// Keys (by hash) that a connection waits for and holds.
    nodes: HashMap<u64, GraphNode>,
    /// Connections that say they hold a key: several, while a connection has not heard yet that it lost the
    /// lease.
    holders: HashMap<u64, Vec<u64>>,
}

#[derive(Debug, Default)]
struct GraphNode {
    waits: Vec<u64>,
    holds: Vec<u64>,
}

/// An edge of a circle: this connection holds the key (by hash) for which the connection before it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// The key's hash.
    pub hash: u64,
    /// The connection that published that it holds the key.
    pub holder: u64,
}

/// The result of a search for a circle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CircleSearch {
    /// No circle.
    Clear,
    /// A circle, as far as was published.
    Circle(Vec<Edge>),
    /// More than [`EDGES_MAX`] edges were walked: it is not known whether there is a circle.
    TooLong,
}

/// Edges that are walked before a search is given up. The graph is locked meanwhile: for 0.06 ms where 64
/// lists of 50 keys wait for half of each other's (1,600 edges), for 0.2 ms where each edge leads to another
/// connection (measured in a release build).
pub const EDGES_MAX: usize = 2048;

impl WaitGraph {
    /// Publishes what a connection waits for and holds, then looks for a circle through it.
    pub fn publish(&self, connection: u64, waits: Vec<u64>, holds: Vec<u64>) -> CircleSearch {
        let mut graph = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        graph.remove(connection);
        for hash in &holds {
            graph.holders.entry(*hash).or_default().push(connection);
        }
        graph.nodes.insert(connection, GraphNode { waits, holds });
        graph.walk(connection, &[])
    }

    /// Looks again for a circle through a connection, without the edges that were found untrue.
    pub fn look_again(&self, connection: u64, untrue: &[Edge]) -> CircleSearch {
        let graph = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        graph.walk(connection, untrue)
    }

    /// A connection no longer waits, or no longer holds a lease.
    pub fn withdraw(&self, connection: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(connection);
    }

    /// Connections in the graph.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).nodes.len()
    }

    /// The graph has no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Graph {
    fn remove(&mut self, connection: u64) {
        let Some(node) = self.nodes.remove(&connection) else { return };
        for hash in node.holds {
            if let Some(holders) = self.holders.get_mut(&hash) {
                holders.retain(|holder| *holder != connection);
                if holders.is_empty() {
                    self.holders.remove(&hash);
                }
            }
        }
    }

    /// Breadth first, each connection once: a circle is found if there is one.
    fn walk(&self, start: u64, untrue: &[Edge]) -> CircleSearch {
        // Each with the edge that led to it, and the place of the connection before.
        let mut reached: Vec<(Edge, usize)> = Vec::new();
        let (mut known, mut edges, mut next) = (HashSet::new(), 0, None);
        loop {
            let at = next.map_or(start, |place: usize| reached[place].0.holder);
            for hash in self.nodes.get(&at).into_iter().flat_map(|node| &node.waits) {
                for holder in self.holders.get(hash).into_iter().flatten() {
                    // A connection does not wait for itself: its `set` is read while its get waits. Other
                    // connections may be published as holders of the key, too.
                    let edge = Edge { hash: *hash, holder: *holder };
                    if *holder == at || untrue.contains(&edge) {
                        continue;
                    }
                    edges += 1;
                    if edges > EDGES_MAX {
                        return CircleSearch::TooLong;
                    }
                    if *holder == start {
                        return CircleSearch::Circle(Self::path(&reached, next, edge));
                    }
                    if known.insert(*holder) {
                        reached.push((edge, next.unwrap_or(usize::MAX)));
                    }
                }
            }
            let place = next.map_or(0, |place| place + 1);
            if place == reached.len() {
                return CircleSearch::Clear;
            }
            next = Some(place);
        }
    }

    /// The edges that lead to a place of `reached`, and the last one.
    fn path(reached: &[(Edge, usize)], from: Option<usize>, last: Edge) -> Vec<Edge> {
        let mut path = vec![last];
        let mut at = from.unwrap_or(usize::MAX);
        while let Some((edge, before)) = reached.get(at) {
            path.push(*edge);
            at = *before;
        }
        path.reverse();
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_connections_that_wait_for_each_other() {
        let graph = WaitGraph::default();
        assert_eq!(graph.publish(1, vec![20], vec![10]), CircleSearch::Clear);
        let circle = vec![Edge { hash: 10, holder: 1 }, Edge { hash: 20, holder: 2 }];
        assert_eq!(graph.publish(2, vec![10], vec![20]), CircleSearch::Circle(circle));
        graph.withdraw(1);
        assert_eq!(graph.publish(2, vec![10], vec![20]), CircleSearch::Clear);
    }

    #[test]
    fn waiting_for_its_own_lease_is_no_circle() {
        let graph = WaitGraph::default();
        assert_eq!(graph.publish(1, vec![10], vec![10]), CircleSearch::Clear);
    }

    #[test]
    fn an_outdated_edge_hides_no_circle() {
        let graph = WaitGraph::default();
        // 1 still says that it holds 10, and waits for it: the lease is 2's now.
        graph.publish(1, vec![10], vec![10, 20]);
        let CircleSearch::Circle(circle) = graph.publish(2, vec![20], vec![10]) else { panic!() };
        assert_eq!(circle.len(), 2);
        // 3 says that it holds 10, too: there are two circles, and one of them is real.
        graph.publish(3, vec![20], vec![10]);
        let CircleSearch::Circle(circle) = graph.look_again(1, &[Edge { hash: 10, holder: 2 }]) else {
            panic!()
        };
        assert_eq!(circle[0], Edge { hash: 10, holder: 3 });
    }

    #[test]
    fn a_path_of_too_many_edges_is_not_walked() {
        let graph = WaitGraph::default();
        let long = EDGES_MAX as u64 + 10;
        for n in 1..=long {
            graph.publish(n, vec![n + 1], vec![n]);
        }
        assert_eq!(graph.publish(long + 10, vec![1], vec![long + 10]), CircleSearch::TooLong);
        assert_eq!(graph.publish(long + 11, vec![20], vec![long + 11]), CircleSearch::Clear, "ends before");
    }

    #[test]
    fn lists_in_a_row_are_no_circle() {
        let graph = WaitGraph::default();
        let list = |from: u64| (from..from + 50).collect::<Vec<u64>>();
        for n in 0..20 {
            let [waits, holds] = [list(25 * n), list(25 * n + 25)];
            assert_eq!(
                graph.publish(n + 1, waits[..25].to_vec(), holds[25..].to_vec()),
                CircleSearch::Clear,
                "{n}"
            );
        }
        let CircleSearch::Circle(circle) = graph.publish(100, list(500), list(25)[..25].to_vec()) else {
            panic!()
        };
        assert_eq!(circle.last().unwrap().holder, 100);
    }

    #[test]
    fn a_circle_of_four_behind_a_side_path() {
        let graph = WaitGraph::default();
        graph.publish(5, vec![60], vec![50]);
        graph.publish(1, vec![50, 20], vec![10]);
        graph.publish(2, vec![30], vec![20]);
        graph.publish(3, vec![40], vec![30]);
        let CircleSearch::Circle(circle) = graph.publish(4, vec![10], vec![40]) else { panic!() };
        assert_eq!(circle.iter().map(|edge| edge.holder).collect::<Vec<_>>(), [1, 2, 3, 4]);
    }
}
