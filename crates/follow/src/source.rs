//! Follows the log of one database: two connections, and the [`Follower`] between them and the node.
//!
//! The *stream* brings the log. On the *second connection*, to the same socket address, the source asks for
//! the head of the log and a snapshot, reads the catalog, and makes the log write an entry when its head is
//! not passed. What differs between databases is in a [`Database`].

use std::future::pending;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::follower::{Action, Follower, FollowerEvent};
use crate::log::Log;
use crate::missing::Missing;
use crate::node::{LogOrder, Node, Notice, ResumePoint, SourceRequest};
use crate::tables::LeftOut;
use crate::wire::WireError;

/// Time between two looks into the catalog.
const CATALOG_EVERY: Duration = Duration::from_secs(30);

/// Time between two looks into the catalog while a requirement is not met.
const MISSING_EVERY: Duration = Duration::from_secs(3);

/// Time between two checks whether a full node has room again.
const FULL_WAIT: Duration = Duration::from_millis(10);

/// Longest wait when nothing is due.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(10);

/// The part that differs between databases: the state of one database while it is followed.
pub(crate) trait Database: Log + Sized {
    type Connection;
    /// A part of the stream.
    type Message;
    /// State of one pair of connections.
    type Session;
    /// A reply to [`DatabaseQuestion::Probe`].
    type Probed;
    /// A reply to [`DatabaseQuestion::Catalog`].
    type Catalog;

    /// The password in the address.
    fn password(&self) -> Option<String>;
    /// Opens both connections and begins the stream.
    async fn open(
        &mut self,
        resume: Option<Self::Position>,
        password: Option<&str>,
        core: &mut FollowState<Self>,
        node: &mut impl Node,
    ) -> Result<OpenedConnections<Self>, OpenError>;
    /// The next part of the stream. Nothing is lost if the future is dropped before it is ready.
    async fn streamed(stream: &mut Self::Connection) -> Result<Self::Message, WireError>;
    /// Handles a part of the stream.
    fn take(&mut self, message: Self::Message, core: &mut FollowState<Self>, node: &mut impl Node);
    /// Called when the stream has ended. Returns the reason, for the log.
    fn ended(&mut self, error: &WireError) -> String;
    /// Whether the stream ended because another client has taken it over.
    fn is_outbid(_error: &WireError) -> bool {
        false
    }
    /// Asks a question on the second connection.
    fn ask(
        &self,
        question: DatabaseQuestion,
        second: Self::Connection,
        link: &mut Connections<Self>,
    ) -> PendingReply<Self>;
    /// Handles the reply to a probe.
    fn probed(
        &mut self,
        number: u64,
        probed: Self::Probed,
        core: &mut FollowState<Self>,
        node: &mut impl Node,
    );
    /// Handles the reply to a look into the catalog.
    fn looked(&mut self, catalog: Self::Catalog, core: &mut FollowState<Self>) -> CatalogFindings;
    /// Counts of rows that got no tags so far.
    fn left_out(&self) -> LeftOut;
    /// The point from which another node can continue; None: there is none.
    fn standing(
        &self,
        identity: &Self::Identity,
        position: Self::Position,
        running: &[Self::Transaction],
    ) -> Option<ResumePoint>;
    /// Notes how far the node has obeyed the orders that it has.
    fn note_obeyed(link: &mut Connections<Self>, node: &mut impl Node);
    /// The position from which to resume a stream, if the node has not obeyed all orders before `resume`.
    fn resumes(&self, resume: Self::Position, _node: &mut impl Node) -> Self::Position {
        resume
    }
    /// When [`Database::report`] is due.
    fn reports_at(_session: &Self::Session) -> Option<Instant> {
        None
    }
    /// Tells the server the position up to which the log was obeyed.
    async fn report(_link: &mut Connections<Self>, _unix_now: Duration) -> Result<(), WireError> {
        Ok(())
    }
    /// Tells the server, at the end, the position up to which the log was obeyed.
    async fn leave(_link: &mut Connections<Self>, _unix_now: Duration) {}
}

/// A question to the second connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DatabaseQuestion {
    Probe { number: u64 },
    Nudge,
    Catalog,
}

pub(crate) enum DatabaseReply<D: Database> {
    Probed { number: u64, probed: D::Probed },
    Nudged,
    Catalog(D::Catalog),
}

/// A future that returns the second connection, with the reply.
pub(crate) type PendingReply<D> =
    Pin<Box<dyn Future<Output = (<D as Database>::Connection, Result<DatabaseReply<D>, WireError>)> + Send>>;

/// The findings of a look into the catalog.
pub(crate) struct CatalogFindings {
    pub(crate) missing: Vec<Missing>,
    /// Whether the definition of a followed table has changed without a message of the stream.
    pub(crate) is_changed: bool,
    /// The time after which to look again; None: the usual one.
    pub(crate) again: Option<Duration>,
}

/// Both connections after they were opened.
pub(crate) struct OpenedConnections<D: Database> {
    pub(crate) stream: D::Connection,
    pub(crate) second: D::Connection,
    pub(crate) session: D::Session,
    pub(crate) catalog: D::Catalog,
    pub(crate) identity: D::Identity,
    /// The position from which the stream resumes; `None`: it begins.
    pub(crate) resumes_at: Option<D::Position>,
    /// The position up to which the node has its orders, if it is known.
    pub(crate) ordered: Option<D::Position>,
}

/// The reason why the connections could not be opened.
pub(crate) enum OpenError {
    Wire(WireError),
    Missing(Vec<Missing>),
}

impl From<WireError> for OpenError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// Both connections.
pub(crate) struct Connections<D: Database> {
    pub(crate) stream: D::Connection,
    /// The second connection, while no question is open.
    second: Option<D::Connection>,
    answering: Option<PendingReply<D>>,
    questions: Vec<DatabaseQuestion>,
    pub(crate) catalog_at: Instant,
    /// The position up to which the node has its orders.
    pub(crate) ordered: Option<D::Position>,
    pub(crate) session: D::Session,
}

impl<D: Database> Connections<D> {
    fn ask_next(&mut self, database: &D) {
        if self.answering.is_some() || self.questions.is_empty() {
            return;
        }
        let Some(second) = self.second.take() else { return };
        let question = self.questions.remove(0);
        self.answering = Some(database.ask(question, second, self));
    }
}

/// State that is the same for any database.
pub(crate) struct FollowState<D: Database> {
    pub(crate) follower: Follower<D>,
    /// The identity of the server that is followed.
    pub(crate) identity: Option<D::Identity>,
    pub(crate) link: Option<Connections<D>>,
    pub(crate) missing: Vec<Missing>,
}

impl<D: Database> FollowState<D> {
    pub(crate) fn lose(&mut self, reason: String, node: &mut impl Node) {
        self.link = None;
        node.notice(Notice::Lost { reason: reason.clone() });
        self.follower.handle(FollowerEvent::Lost { reason }, node.now_ms());
    }

    /// Records the requirements that are not met, and reports them if they have changed.
    pub(crate) fn note_missing(&mut self, missing: Vec<Missing>, node: &mut impl Node) {
        if self.missing != missing {
            node.notice(Notice::Missing(missing.clone()));
        }
        self.missing = missing;
    }
}

/// Follows a log until it is told to stop, or the sender is gone. `identity`: of the server at which the
/// follower goes on.
pub(crate) async fn follow<D: Database>(
    database: D,
    follower: Follower<D>,
    identity: Option<D::Identity>,
    node: &mut impl Node,
    mut wish: watch::Receiver<SourceRequest>,
) {
    let mut running =
        SourceLoop { database, core: FollowState { follower, identity, link: None, missing: Vec::new() } };
    running.core.follower.tick(node.now_ms());
    loop {
        let began_ms = node.now_ms();
        let next = running.act(node).await;
        // An entry with 100,000s of names takes a long time.
        running.core.follower.stalled(node.now_ms().saturating_sub(began_ms));
        node.state(running.core.follower.state(), running.database.left_out());
        let (mut looks, mut stops) = (false, false);
        {
            let mut step = pin!(running.step(next, node));
            loop {
                tokio::select! {
                    () = &mut step => break,
                    changed = wish.changed() => {
                        if changed.is_err() || wish.borrow_and_update().stops {
                            stops = true;
                            break;
                        }
                        looks = true;
                    }
                }
            }
        }
        if stops {
            if let Some(link) = &mut running.core.link {
                D::note_obeyed(link, node);
                D::leave(link, node.unix_now()).await;
            }
            return;
        }
        // A step takes half a second at most. Opening a connection takes longer, and looks into the catalog
        // by itself.
        if let Some(link) = running.core.link.as_mut().filter(|_| looks) {
            link.catalog_at = Instant::now();
        }
    }
}

struct SourceLoop<D: Database> {
    database: D,
    core: FollowState<D>,
}

/// The next step after the follower's actions.
enum SourceStep<P> {
    /// Open the connections.
    Connect { resume: Option<P> },
    /// Wait for an event.
    Wait,
}

enum SourceEvent<D: Database> {
    Streamed(Result<D::Message, WireError>),
    Answered(Box<D::Connection>, Result<DatabaseReply<D>, WireError>),
    Time,
}

impl<D: Database> SourceLoop<D> {
    /// Executes the follower's actions.
    async fn act(&mut self, node: &mut impl Node) -> SourceStep<D::Position> {
        while let Some(action) = self.core.follower.poll_action() {
            match action {
                Action::Bump(names) => node.order(LogOrder::Bump(names)),
                Action::Flush(reason) => node.order(LogOrder::Flush(reason)),
                Action::Confirmed { asked_at_ms } => node.order(LogOrder::Confirmed { asked_at_ms }),
                Action::Connect { resume } => {
                    let resume = resume.map(|resume| self.database.resumes(resume, node));
                    return SourceStep::Connect { resume };
                }
                Action::Disconnect { reason } => {
                    self.core.link = None;
                    node.notice(Notice::Lost { reason });
                }
                Action::Acknowledge(position) => {
                    if let Some(link) = &mut self.core.link {
                        link.ordered = Some(position.clone());
                    }
                    let known = self.core.identity.as_ref().zip(self.core.follower.running());
                    let standing = known
                        .and_then(|(identity, running)| self.database.standing(identity, position, running));
                    if let Some(standing) = standing {
                        node.note_resume_point(standing);
                    }
                }
                Action::Probe { number } => self.ask(DatabaseQuestion::Probe { number }),
                Action::Nudge => self.ask(DatabaseQuestion::Nudge),
            }
        }
        let Some(link) = &mut self.core.link else { return SourceStep::Wait };
        D::note_obeyed(link, node);
        if let Some(reason) = node.wants_again() {
            self.core.lose(reason, node);
        } else if D::reports_at(&link.session).is_some_and(|at| at <= Instant::now())
            && let Err(error) = D::report(link, node.unix_now()).await
        {
            self.core.lose(error.with_causes(), node);
        }
        SourceStep::Wait
    }

    fn ask(&mut self, question: DatabaseQuestion) {
        if let Some(link) = &mut self.core.link {
            link.questions.push(question);
            link.ask_next(&self.database);
        }
    }

    async fn connect(&mut self, resume: Option<D::Position>, node: &mut impl Node) {
        let password = match node.password() {
            Ok(password) => password.or_else(|| self.database.password()),
            Err(reason) => return self.core.lose(reason, node),
        };
        match self.database.open(resume, password.as_deref(), &mut self.core, node).await {
            Ok(OpenedConnections { stream, second, session, catalog, identity, resumes_at, ordered }) => {
                let resumes = resumes_at.is_some();
                self.core.link = Some(Connections {
                    stream,
                    second: Some(second),
                    answering: None,
                    questions: Vec::new(),
                    catalog_at: Instant::now() + CATALOG_EVERY,
                    ordered,
                    session,
                });
                self.core.identity = Some(identity.clone());
                node.notice(Notice::Connected { identity: identity.to_string(), resumes });
                self.core.follower.handle(FollowerEvent::Connected { identity, resumes }, node.now_ms());
                self.note_catalog(catalog, node);
            }
            Err(OpenError::Wire(error)) => self.core.lose(error.with_causes(), node),
            Err(OpenError::Missing(missing)) => {
                let reason = missing.iter().map(Missing::to_string).collect::<Vec<_>>().join("; ");
                self.core.lose(reason, node);
            }
        }
    }

    fn note_catalog(&mut self, catalog: D::Catalog, node: &mut impl Node) {
        let CatalogFindings { missing, is_changed, again } = self.database.looked(catalog, &mut self.core);
        if let Some(link) = &mut self.core.link {
            let every = if missing.is_empty() { CATALOG_EVERY } else { MISSING_EVERY };
            link.catalog_at = Instant::now() + again.unwrap_or(every);
        }
        let first = missing.first().map(Missing::to_string);
        self.core.note_missing(missing, node);
        if is_changed {
            let reason = "the definition of a table that is followed was changed".to_owned();
            self.core.follower.handle(FollowerEvent::Gap { reason }, node.now_ms());
        }
        self.core.follower.handle(FollowerEvent::Covers { missing: first }, node.now_ms());
    }

    /// Opens the connections, or waits for an event and handles it.
    async fn step(&mut self, next: SourceStep<D::Position>, node: &mut impl Node) {
        match next {
            SourceStep::Connect { resume } => self.connect(resume, node).await,
            SourceStep::Wait => {
                let event = self.event(node.now_ms(), node.is_full()).await;
                self.take(event, node);
            }
        }
    }

    /// Waits for the next event. `is_full`: the node has no room, so the stream is not read.
    async fn event(&mut self, now_ms: u64, is_full: bool) -> SourceEvent<D> {
        let next_ms = self.core.follower.next_ms();
        let wait = next_ms.map(|next_ms| Duration::from_millis(next_ms.saturating_sub(now_ms)));
        let Some(link) = &mut self.core.link else {
            tokio::time::sleep(wait.unwrap_or(WAIT_MAX)).await;
            return SourceEvent::Time;
        };
        let own = D::reports_at(&link.session).map_or(link.catalog_at, |at| at.min(link.catalog_at));
        let own = own.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        let wait =
            wait.map_or(own, |wait| wait.min(own)).min(if is_full { FULL_WAIT } else { Duration::MAX });
        let answered = async {
            match &mut link.answering {
                Some(answering) => answering.await,
                None => pending().await,
            }
        };
        tokio::select! {
            message = D::streamed(&mut link.stream), if !is_full => SourceEvent::Streamed(message),
            (connection, reply) = answered => SourceEvent::Answered(Box::new(connection), reply),
            () = tokio::time::sleep(wait) => SourceEvent::Time,
        }
    }

    fn take(&mut self, event: SourceEvent<D>, node: &mut impl Node) {
        match event {
            SourceEvent::Streamed(Ok(message)) => self.database.take(message, &mut self.core, node),
            SourceEvent::Streamed(Err(error)) => {
                let reason = self.database.ended(&error);
                if D::is_outbid(&error) {
                    self.core.follower.outbid(node.now_ms());
                }
                self.core.lose(reason, node);
            }
            SourceEvent::Answered(connection, Ok(reply)) => {
                if let Some(link) = &mut self.core.link {
                    (link.second, link.answering) = (Some(*connection), None);
                    link.ask_next(&self.database);
                }
                match reply {
                    DatabaseReply::Probed { number, probed } => {
                        self.database.probed(number, probed, &mut self.core, node);
                    }
                    DatabaseReply::Nudged => {}
                    DatabaseReply::Catalog(catalog) => self.note_catalog(catalog, node),
                }
            }
            SourceEvent::Answered(_, Err(error)) => self.core.lose(error.with_causes(), node),
            SourceEvent::Time => {
                if let Some(link) = &mut self.core.link
                    && link.catalog_at <= Instant::now()
                {
                    link.catalog_at = Instant::now() + CATALOG_EVERY;
                    self.ask(DatabaseQuestion::Catalog);
                }
                self.core.follower.tick(node.now_ms());
            }
        }
    }
}
