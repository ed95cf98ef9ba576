//! The servers of a client at one time: their nodes, and the route over them.
//!
//! # Invariants
//! * A command uses the nodes and the route of one [`Servers`] from its beginning to its end, or to where it
//!   is sent again.
//! * A node that is in two of them is the same one: its connections, back-off and ejection stay.
//! * A node is dropped, and closes its connections, when no [`Servers`], no command under way and no lease
//!   has it any more.

use std::ops::Deref;
use std::sync::Arc;

use cattlegrid_ring::RingError;
use tokio::time::Instant;

use crate::client::nodes::Nodes;
use crate::net::address::Address;
use crate::net::connection::TimeLimit;
use crate::net::node::{Node, NodeSettings};
use crate::route::{Options, Route};

/// See the module's text.
pub(crate) struct Servers {
    /// In the order of their places in the route.
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) route: Arc<Route>,
}

impl Servers {
    pub(crate) fn new(
        addresses: Vec<Address>,
        options: Options,
        settings: &Arc<NodeSettings>,
    ) -> Result<Self, RingError> {
        let route = route(&addresses, options)?;
        let nodes = addresses.into_iter().map(|address| Arc::new(Node::new(address, settings.clone())));
        Ok(Self::of(nodes.collect(), route))
    }

    /// The servers after a change: those that stay keep their nodes.
    pub(crate) fn next(
        &self,
        addresses: Vec<Address>,
        options: Options,
        settings: &Arc<NodeSettings>,
    ) -> Result<Self, RingError> {
        let mut route = route(&addresses, options)?;
        route.take_over(&self.route, |place| {
            addresses.iter().position(|address| *address.name == *self.nodes[place].name())
        });
        let nodes = addresses.into_iter().map(|address| {
            let own = self.nodes.iter().find(|node| *node.name() == *address.name);
            own.map_or_else(|| Arc::new(Node::new(address, settings.clone())), Arc::clone)
        });
        Ok(Self::of(nodes.collect(), route))
    }

    fn of(nodes: Vec<Arc<Node>>, route: Route) -> Self {
        let route = Arc::new(route);
        for (place, node) in nodes.iter().enumerate() {
            node.is_at(route.clone(), place);
        }
        Self { nodes, route }
    }
}

fn route(addresses: &[Address], options: Options) -> Result<Route, RingError> {
    let servers = addresses.iter().map(|address| (&*address.name, address.weight));
    Route::new(servers, options, Instant::now().into_std())
}

/// Where a client has its servers from.
pub(crate) enum ServerSource {
    /// They were given.
    Fixed(Arc<Servers>),
    /// They are those of a list, which is asked for again and again.
    Listed(Arc<Nodes>),
}

impl ServerSource {
    /// The servers as of now, without asking.
    pub(crate) fn current(&self) -> ServersRef<'_> {
        match self {
            Self::Fixed(servers) => ServersRef::Fixed(servers),
            Self::Listed(nodes) => ServersRef::Listed(nodes.current()),
        }
    }
}

/// Servers that a command uses.
pub(crate) enum ServersRef<'a> {
    /// Always the same, so that nothing is counted.
    Fixed(&'a Arc<Servers>),
    /// Those of a list, which may be others by now.
    Listed(Arc<Servers>),
}

impl Deref for ServersRef<'_> {
    type Target = Arc<Servers>;

    fn deref(&self) -> &Arc<Servers> {
        match self {
            Self::Fixed(servers) => servers,
            Self::Listed(servers) => servers,
        }
    }
}

/// The servers of a command, and until when it must be answered.
pub(crate) struct CommandServers<'a> {
    pub(crate) servers: ServersRef<'a>,
    pub(crate) limit: TimeLimit,
}

impl Deref for CommandServers<'_> {
    type Target = Servers;

    fn deref(&self) -> &Servers {
        &self.servers
    }
}
