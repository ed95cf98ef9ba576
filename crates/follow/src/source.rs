//! Follows the log of one database: two connections, and the [`Follower`] between them and the node.
//!
//! The *stream* brings the log. On the *second connection*, to the same socket address, the source asks for the head of the log and a
//! snapshot, reads the catalog, and makes the log write an entry when its head is not passed. What differs between databases is in a
//! [`Database`].

use std::future::pending;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::follower::{Action, Follower, Told};
use crate::log::Log;
use crate::missing::Missing;
use crate::node::{Node, Notice, Order, Standing, Wish};
use crate::tables::LeftOut;
use crate::wire::WireError;

/// Time between two looks into the catalog.
const CATALOG_EVERY: Duration = Duration::from_secs(30);

/// The same while something is missing.
const MISSING_EVERY: Duration = Duration::from_secs(3);

/// Between two looks whether a node that was full is so still.
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
    /// A reply to [`Question::Probe`].
    type Probed;
    /// A reply to [`Question::Catalog`].
    type Catalog;

    /// The address's own password.
    fn password(&self) -> Option<String>;
    /// Makes both connections, and begins the stream.
    async fn open(
        &mut self,
        resume: Option<Self::Position>,
        password: Option<&str>,
        core: &mut Core<Self>,
        node: &mut impl Node,
    ) -> Result<Opened<Self>, Failed>;
    /// The next part of the stream. Nothing is lost if the future is dropped before it is ready.
    async fn streamed(stream: &mut Self::Connection) -> Result<Self::Message, WireError>;
    /// Takes it.
    fn take(&mut self, message: Self::Message, core: &mut Core<Self>, node: &mut impl Node);
    /// The stream ended: why, for the log.
    fn ended(&mut self, error: &WireError) -> String;
    /// Whether it ended because another one takes its place.
    fn is_outbid(_error: &WireError) -> bool {
        false
    }
    /// Asks on the second connection.
    fn ask(&self, question: Question, second: Self::Connection, link: &mut Link<Self>) -> Answering<Self>;
    /// Takes the reply to a probe.
    fn probed(&mut self, number: u64, probed: Self::Probed, core: &mut Core<Self>, node: &mut impl Node);
    /// Takes what the catalog says.
    fn looked(&mut self, catalog: Self::Catalog, core: &mut Core<Self>) -> Looked;
    /// Counts of rows that got no tags so far.
    fn left_out(&self) -> LeftOut;
    /// From where on another node could go on.
    fn standing(
        &self,
        identity: &Self::Identity,
        position: Self::Position,
        running: &[Self::Transaction],
    ) -> Option<Standing>;
    /// Takes note of what the node has obeyed of the orders that it has.
    fn note_obeyed(link: &mut Link<Self>, node: &mut impl Node);
    /// Where a stream goes on that may go on at a place whose orders the node has.
    fn resumes(&self, resume: Self::Position, _node: &mut impl Node) -> Self::Position {
        resume
    }
    /// When [`Database::report`] is due.
    fn reports_at(_session: &Self::Session) -> Option<Instant> {
        None
    }
    /// Tells the server how far we are.
    async fn report(_link: &mut Link<Self>, _unix_now: Duration) -> Result<(), WireError> {
        Ok(())
    }
    /// Tells the server at the end what was obeyed since it was told last.
    async fn leave(_link: &mut Link<Self>, _unix_now: Duration) {}
}

/// A question to the second connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Question {
    Probe { number: u64 },
    Nudge,
    Catalog,
}

pub(crate) enum Reply<D: Database> {
    Probed { number: u64, probed: D::Probed },
    Nudged,
    Catalog(D::Catalog),
}

/// The second connection comes back with the reply.
pub(crate) type Answering<D> =
    Pin<Box<dyn Future<Output = (<D as Database>::Connection, Result<Reply<D>, WireError>)> + Send>>;

/// The findings of a look into the catalog.
pub(crate) struct Looked {
    pub(crate) missing: Vec<Missing>,
    /// How a table is defined that is followed was changed, and the stream has not said so.
    pub(crate) is_changed: bool,
    /// Look again this soon.
    pub(crate) again: Option<Duration>,
}

/// Both connections are there.
pub(crate) struct Opened<D: Database> {
    pub(crate) stream: D::Connection,
    pub(crate) second: D::Connection,
    pub(crate) session: D::Session,
    pub(crate) catalog: D::Catalog,
    pub(crate) identity: D::Identity,
    /// From where on the stream goes on; `None`: it begins.
    pub(crate) resumes_at: Option<D::Position>,
    /// Up to where the node has its orders, if that is known.
    pub(crate) ordered: Option<D::Position>,
}

/// Why there are no connections.
pub(crate) enum Failed {
    Wire(WireError),
    Missing(Vec<Missing>),
}

impl From<WireError> for Failed {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// Both connections.
pub(crate) struct Link<D: Database> {
    pub(crate) stream: D::Connection,
    /// The second connection, while nothing is asked.
    second: Option<D::Connection>,
    answering: Option<Answering<D>>,
    questions: Vec<Question>,
    pub(crate) catalog_at: Instant,
    /// Up to where the node has its orders.
    pub(crate) ordered: Option<D::Position>,
    pub(crate) session: D::Session,
}

impl<D: Database> Link<D> {
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
pub(crate) struct Core<D: Database> {
    pub(crate) follower: Follower<D>,
    /// The identity of the server that is followed.
    pub(crate) identity: Option<D::Identity>,
    pub(crate) link: Option<Link<D>>,
    pub(crate) missing: Vec<Missing>,
}

impl<D: Database> Core<D> {
    pub(crate) fn lose(&mut self, reason: String, node: &mut impl Node) {
        self.link = None;
        node.notice(Notice::Lost { reason: reason.clone() });
        self.follower.told(Told::Lost { reason }, node.now_ms());
    }

    /// Takes note of what is missing, and says it if it is something else than before.
    pub(crate) fn note_missing(&mut self, missing: Vec<Missing>, node: &mut impl Node) {
        if self.missing != missing {
            node.notice(Notice::Missing(missing.clone()));
        }
        self.missing = missing;
    }
}

/// Follows a log until it is told to stop, or the sender is gone. `identity`: of the server at which the follower goes on.
pub(crate) async fn follow<D: Database>(
    database: D,
    follower: Follower<D>,
    identity: Option<D::Identity>,
    node: &mut impl Node,
    mut wish: watch::Receiver<Wish>,
) {
    let mut running =
        Running { database, core: Core { follower, identity, link: None, missing: Vec::new() } };
    running.core.follower.tick(node.now_ms());
    loop {
        let began_ms = node.now_ms();
        let next = running.act(node).await;
        // An entry of 100,000s of names takes its time.
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
        // A step takes half a second at most. A new connection takes longer, and looks by itself.
        if let Some(link) = running.core.link.as_mut().filter(|_| looks) {
            link.catalog_at = Instant::now();
        }
    }
}

struct Running<D: Database> {
    database: D,
    core: Core<D>,
}

/// The next step after the follower's actions.
enum Next<P> {
    /// Make the connections.
    Connect { resume: Option<P> },
    /// Wait for something to happen.
    Wait,
}

enum Event<D: Database> {
    Streamed(Result<D::Message, WireError>),
    Answered(Box<D::Connection>, Result<Reply<D>, WireError>),
    Time,
}

impl<D: Database> Running<D> {
    /// Executes what the follower wants.
    async fn act(&mut self, node: &mut impl Node) -> Next<D::Position> {
        while let Some(action) = self.core.follower.poll_action() {
            match action {
                Action::Bump(names) => node.order(Order::Bump(names)),
                Action::Flush(reason) => node.order(Order::Flush(reason)),
                Action::Confirmed { asked_at_ms } => node.order(Order::Confirmed { asked_at_ms }),
                Action::Connect { resume } => {
                    let resume = resume.map(|resume| self.database.resumes(resume, node));
                    return Next::Connect { resume };
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
                        node.stands(standing);
                    }
                }
                Action::Probe { number } => self.ask(Question::Probe { number }),
                Action::Nudge => self.ask(Question::Nudge),
            }
        }
        let Some(link) = &mut self.core.link else { return Next::Wait };
        D::note_obeyed(link, node);
        if let Some(reason) = node.wants_again() {
            self.core.lose(reason, node);
        } else if D::reports_at(&link.session).is_some_and(|at| at <= Instant::now())
            && let Err(error) = D::report(link, node.unix_now()).await
        {
            self.core.lose(error.with_causes(), node);
        }
        Next::Wait
    }

    fn ask(&mut self, question: Question) {
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
            Ok(Opened { stream, second, session, catalog, identity, resumes_at, ordered }) => {
                let resumes = resumes_at.is_some();
                self.core.link = Some(Link {
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
                self.core.follower.told(Told::Connected { identity, resumes }, node.now_ms());
                self.note_catalog(catalog, node);
            }
            Err(Failed::Wire(error)) => self.core.lose(error.with_causes(), node),
            Err(Failed::Missing(missing)) => {
                let reason = missing.iter().map(Missing::to_string).collect::<Vec<_>>().join("; ");
                self.core.lose(reason, node);
            }
        }
    }

    fn note_catalog(&mut self, catalog: D::Catalog, node: &mut impl Node) {
        let Looked { missing, is_changed, again } = self.database.looked(catalog, &mut self.core);
        if let Some(link) = &mut self.core.link {
            let every = if missing.is_empty() { CATALOG_EVERY } else { MISSING_EVERY };
            link.catalog_at = Instant::now() + again.unwrap_or(every);
        }
        let first = missing.first().map(Missing::to_string);
        self.core.note_missing(missing, node);
        if is_changed {
            let reason = "the definition of a table that is followed was changed".to_owned();
            self.core.follower.told(Told::Gap { reason }, node.now_ms());
        }
        self.core.follower.told(Told::Covers { missing: first }, node.now_ms());
    }

    /// Connects, or waits for something to happen and takes note of it.
    async fn step(&mut self, next: Next<D::Position>, node: &mut impl Node) {
        match next {
            Next::Connect { resume } => self.connect(resume, node).await,
            Next::Wait => {
                let event = self.event(node.now_ms(), node.is_full()).await;
                self.take(event, node);
            }
        }
    }

    /// `is_full`: the stream is left as it is.
    async fn event(&mut self, now_ms: u64, is_full: bool) -> Event<D> {
        let next_ms = self.core.follower.next_ms();
        let wait = next_ms.map(|next_ms| Duration::from_millis(next_ms.saturating_sub(now_ms)));
        let Some(link) = &mut self.core.link else {
            tokio::time::sleep(wait.unwrap_or(WAIT_MAX)).await;
            return Event::Time;
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
            message = D::streamed(&mut link.stream), if !is_full => Event::Streamed(message),
            (connection, reply) = answered => Event::Answered(Box::new(connection), reply),
            () = tokio::time::sleep(wait) => Event::Time,
        }
    }

    fn take(&mut self, event: Event<D>, node: &mut impl Node) {
        match event {
            Event::Streamed(Ok(message)) => self.database.take(message, &mut self.core, node),
            Event::Streamed(Err(error)) => {
                let reason = self.database.ended(&error);
                if D::is_outbid(&error) {
                    self.core.follower.outbid(node.now_ms());
                }
                self.core.lose(reason, node);
            }
            Event::Answered(connection, Ok(reply)) => {
                if let Some(link) = &mut self.core.link {
                    (link.second, link.answering) = (Some(*connection), None);
                    link.ask_next(&self.database);
                }
                match reply {
                    Reply::Probed { number, probed } => {
                        self.database.probed(number, probed, &mut self.core, node);
                    }
                    Reply::Nudged => {}
                    Reply::Catalog(catalog) => self.note_catalog(catalog, node),
                }
            }
            Event::Answered(_, Err(error)) => self.core.lose(error.with_causes(), node),
            Event::Time => {
                if let Some(link) = &mut self.core.link
                    && link.catalog_at <= Instant::now()
                {
                    link.catalog_at = Instant::now() + CATALOG_EVERY;
                    self.ask(Question::Catalog);
                }
                self.core.follower.tick(node.now_ms());
            }
        }
    }
}
