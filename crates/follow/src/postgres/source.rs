//! Follows the log of one database: two connections, and the [`Follower`] between them and the node.
//!
//! The *stream* is a replication slot's. On the *second connection*, to the same socket address, the source asks for the head of the
//! log and a snapshot, reads the catalog, and makes the log write an entry when its head is not passed.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::follower::{Action, Follower, Settings, Told};
use crate::log::Log;
use crate::missing::Missing;
use crate::names::Names;
use crate::node::{Node, Notice, Order, Standing, Wish};
use crate::postgres::address::Address;
use crate::postgres::catalog::{Asked, Catalog, Found, Wanted, literal, quoted};
use crate::postgres::definitions::{Definitions, Look};
use crate::postgres::history::{Commit, History, OTHER_HISTORY, slot_position};
use crate::postgres::pgoutput::{Lsn, Message};
use crate::postgres::probe::{Identity, Probed, Seen, identify, probe};
use crate::postgres::standbys::OUR_NAME;
use crate::postgres::standing::Stands;
use crate::postgres::waits::{exhausted, writing};
use crate::postgres::wire::{Connection, Peer, WireError};
use crate::rows::{Bound, Old, Relation};
use crate::tables::{LeftOut, Table};

/// Time between two looks into the catalog.
const CATALOG_EVERY: Duration = Duration::from_secs(30);

/// The same while something is missing.
const MISSING_EVERY: Duration = Duration::from_secs(3);

/// The same while it is not known whether a table was truncated, or changed.
const DOUBTED_EVERY: Duration = Duration::from_secs(1);

/// How long a slot is waited for before it is said why.
const SLOT_WAIT: Duration = Duration::from_secs(3);

/// A transaction that has been open for longer is worth a line of `check`.
const LONG_TRANSACTION: Duration = Duration::from_secs(60);

/// Longest time between two messages to the server, which ends a connection that is silent for `wal_sender_timeout` (60 s).
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// Between two looks whether a node that was full is so still.
const FULL_WAIT: Duration = Duration::from_millis(10);

/// Longest time in which the server is told at the end what was obeyed.
const LEAVE: Duration = Duration::from_secs(1);

/// Seconds between 1970, Unix's epoch, and 2000, PostgreSQL's.
const EPOCH_SECONDS: u64 = 946_684_800;

/// A database's log.
#[derive(Clone)]
pub struct Source {
    /// Where the database is.
    pub address: Address,
    /// The publication.
    pub publication: String,
    /// What is followed.
    pub tables: Arc<[Table]>,
    /// The name of a permanent slot; `None`: a temporary one.
    pub slot: Option<String>,
    /// A permanent slot that is there was left by a process that obeyed what it acknowledged, and whose effects stay: the stream goes on
    /// there from the first connection.
    pub outlives: bool,
    /// How the server's certificate is verified.
    pub tls: Arc<rustls::ClientConfig>,
    /// How it is followed.
    pub settings: Settings,
    /// The place of a node that followed before, as its [`Standing`](crate::Standing) says it, and from which this one goes on.
    pub standing: Option<Box<str>>,
}

struct Postgres;

impl Log for Postgres {
    type Position = Lsn;
    type Transaction = u32;
    type Snapshot = Seen;
    type Identity = Identity;
}

/// What the second connection is asked.
#[derive(Debug, Clone, Copy)]
enum Question {
    Probe { number: u64 },
    Nudge,
    Catalog,
}

enum Reply {
    Probed { number: u64, probed: Probed },
    Nudged,
    Catalog(Catalog),
}

type Answering = Pin<Box<dyn Future<Output = (Connection, Result<Reply, WireError>)> + Send>>;

/// Both connections.
struct Link {
    stream: Connection,
    /// The second connection, while nothing is asked.
    second: Option<Connection>,
    answering: Option<Answering>,
    questions: Vec<Question>,
    catalog_at: Instant,
    status_at: Instant,
    bound: HashMap<u32, Role>,
    /// As the stream has described them.
    relations: HashMap<u32, Relation>,
    /// Those that it had described when the catalog was asked last.
    listed: HashSet<u32>,
    transaction: Option<(u32, Names)>,
    /// Up to where the node has its orders.
    ordered: Lsn,
    /// Up to where it has obeyed them.
    acknowledged: Lsn,
    /// What the server was told last of that.
    told: Lsn,
    received: Lsn,
}

impl Source {
    fn wanted(&self) -> Wanted {
        Wanted {
            publication: self.publication.clone(),
            tables: Arc::clone(&self.tables),
            user: self.address.user.clone(),
            slot: self.slot.clone(),
        }
    }

    /// What the database lacks, each with the statement that mends it.
    ///
    /// # Errors
    /// The database cannot be reached, or refuses.
    pub async fn check(&self, password: Option<&str>) -> Result<Vec<Missing>, WireError> {
        let (mut connection, _) = Connection::open(&self.address, password, &self.tls, None).await?;
        let mut missing = Catalog::read(&mut connection, &self.wanted(), Asked::Check).await?.missing;
        let stands = match &self.slot {
            Some(slot) if !missing.iter().any(|one| one.is_fatal) => {
                slot_position(&mut connection, slot, false, true).await?
            }
            _ => None,
        };
        missing.extend(exhausted(&mut connection, stands.is_some()).await?);
        if stands.is_none() {
            missing.extend(writing(&mut connection, LONG_TRANSACTION).await?);
        }
        Ok(missing)
    }

    /// Follows the log until it is told to stop, or the sender is gone.
    pub async fn follow(self, node: &mut impl Node, mut wish: watch::Receiver<Wish>) {
        let stands = self.standing.as_deref().and_then(Stands::parse);
        let follower = match &stands {
            Some(Stands { identity, position, running, .. }) => {
                Follower::resumed(self.settings, identity.clone(), *position, running.clone())
            }
            None => Follower::new(self.settings),
        };
        let identity = stands.as_ref().map(|stands| stands.identity.clone());
        let mut running = Running {
            follower,
            identity,
            source: self,
            link: None,
            found: Vec::new(),
            others: HashSet::new(),
            missing: Vec::new(),
            left_out: LeftOut::default(),
            history: History::resumed(stands.as_ref().and_then(|stands| stands.last)),
            stream_process: stands.as_ref().and_then(|stands| stands.process),
            definitions: Definitions::after(stands.as_ref().map(|stands| stands.catalog)),
            is_log_gone: false,
        };
        running.follower.tick(node.now_ms());
        loop {
            let began_ms = node.now_ms();
            let next = running.act(node).await;
            // An entry of 100,000s of names takes its time.
            running.follower.stalled(node.now_ms().saturating_sub(began_ms));
            node.state(running.follower.state(), running.left_out);
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
                return running.leave(node).await;
            }
            // A step takes half a second at most. A new connection takes longer, and looks by itself.
            if let Some(link) = running.link.as_mut().filter(|_| looks) {
                link.catalog_at = Instant::now();
            }
        }
    }
}

struct Running {
    source: Source,
    follower: Follower<Postgres>,
    /// Of the server that is followed.
    identity: Option<Identity>,
    link: Option<Link>,
    /// What the catalog said last.
    found: Vec<Found>,
    others: HashSet<u32>,
    missing: Vec<Missing>,
    left_out: LeftOut,
    history: History,
    /// The database's process of the last stream.
    stream_process: Option<i32>,
    definitions: Definitions,
    /// The files that the slot needs are gone, though the slot does not say so.
    is_log_gone: bool,
}

/// Why changes of a table invalidate everything.
fn is_new(name: &str) -> String {
    format!("{name} is new, or was changed")
}

/// What a table of the stream is to us.
enum Role {
    Followed(Bound),
    /// It is not followed.
    Other,
    /// Its definition is newer than the last look into the catalog: perhaps it is a partition of what is followed.
    Unknown {
        name: String,
    },
}

/// What comes after the follower's actions.
enum Next {
    /// Make the connections.
    Connect { resume: Option<Lsn> },
    /// Wait for something to happen.
    Wait,
}

enum Event {
    Streamed(Result<Option<Bytes>, WireError>),
    Answered(Connection, Result<Reply, WireError>),
    Time,
}

impl Running {
    /// Executes what the follower wants.
    async fn act(&mut self, node: &mut impl Node) -> Next {
        while let Some(action) = self.follower.poll_action() {
            match action {
                Action::Bump(names) => node.order(Order::Bump(names)),
                Action::Flush(reason) => node.order(Order::Flush(reason)),
                Action::Confirmed { asked_at_ms } => node.order(Order::Confirmed { asked_at_ms }),
                Action::Connect { resume } => return Next::Connect { resume },
                Action::Disconnect { reason } => {
                    self.link = None;
                    node.notice(Notice::Lost { reason });
                }
                Action::Acknowledge(position) => {
                    if let Some(link) = &mut self.link {
                        link.ordered = position;
                    }
                    if let Some(standing) = self.standing(position) {
                        node.stands(standing);
                    }
                }
                Action::Probe { number } => self.ask(Question::Probe { number }),
                Action::Nudge => self.ask(Question::Nudge),
            }
        }
        self.note_obeyed(node);
        if let Some(reason) = self.link.as_ref().and_then(|_| node.wants_again()) {
            self.lose(reason, node);
        }
        let status = self.link.as_mut().filter(|link| link.status_at <= Instant::now());
        if let Some(link) = status
            && let Err(error) = link.send_status(node.unix_now()).await
        {
            self.lose(error.with_causes(), node);
        }
        Next::Wait
    }

    /// Where another node could go on.
    fn standing(&self, position: Lsn) -> Option<Standing> {
        let (identity, running) = (self.identity.clone()?, self.follower.running()?.to_vec());
        let (catalog, process) = (self.definitions.number(), self.stream_process);
        Stands { identity, position, last: self.history.last(), running, catalog, process }.standing()
    }

    fn note_obeyed(&mut self, node: &mut impl Node) {
        let Some(link) = &mut self.link else { return };
        let obeyed = Lsn(node.obeyed(link.ordered.0));
        if obeyed != link.acknowledged {
            link.acknowledged = obeyed;
            link.status_at = link.status_at.min(Instant::now() + Duration::from_secs(1));
        }
    }

    /// Tells the server what was obeyed since it was told last. Without it that comes again, which does no harm.
    async fn leave(&mut self, node: &mut impl Node) {
        self.note_obeyed(node);
        let Some(link) = self.link.as_mut().filter(|link| link.acknowledged != link.told) else { return };
        let unix_now = node.unix_now();
        let told = async {
            link.send_status(unix_now).await?;
            // Its answer says that it has read it. A connection that is closed before may lose it.
            while link.stream.streamed().await?.is_none_or(|message| message.first() != Some(&b'k')) {}
            Ok::<(), WireError>(())
        };
        drop(tokio::time::timeout(LEAVE, told).await);
    }

    fn ask(&mut self, question: Question) {
        if let Some(link) = &mut self.link {
            link.questions.push(question);
            link.ask_next(&self.source);
        }
    }

    fn lose(&mut self, reason: String, node: &mut impl Node) {
        self.link = None;
        node.notice(Notice::Lost { reason: reason.clone() });
        self.follower.told(Told::Lost { reason }, node.now_ms());
    }

    async fn connect(&mut self, resume: Option<Lsn>, node: &mut impl Node) {
        let password = match node.password() {
            Ok(password) => password.or_else(|| self.source.address.password.clone()),
            Err(reason) => return self.lose(reason, node),
        };
        match self.open(resume, password.as_deref(), node).await {
            Ok((link, catalog, identity, resumes_at)) => {
                self.link = Some(link);
                self.identity = Some(identity.clone());
                self.history.begins(resumes_at);
                let resumes = resumes_at.is_some();
                node.notice(Notice::Connected { identity: identity.to_string(), resumes });
                self.follower.told(Told::Connected { identity, resumes }, node.now_ms());
                self.note_catalog(catalog, node);
            }
            Err(Failed::Wire(error)) => self.lose(error.with_causes(), node),
            Err(Failed::Missing(missing)) => {
                let reason = missing.iter().map(Missing::to_string).collect::<Vec<_>>().join("; ");
                self.lose(reason, node);
            }
        }
    }

    async fn open(
        &mut self,
        resume: Option<Lsn>,
        password: Option<&str>,
        node: &mut impl Node,
    ) -> Result<(Link, Catalog, Identity, Option<Lsn>), Failed> {
        let source = self.source.clone();
        let (mut second, peer) = Connection::open(&source.address, password, &source.tls, None).await?;
        second.query("SET synchronous_commit = local").await?;
        if let (Some(slot), Some(process)) = (&source.slot, self.stream_process.take()) {
            end_stream(&mut second, slot, process).await?;
        }
        let catalog = Catalog::read(&mut second, &source.wanted(), Asked::Begin).await?;
        if catalog.missing.iter().any(|missing| missing.is_fatal) {
            return Err(Failed::Missing(catalog.missing));
        }
        let open = Connection::open(&source.address, password, &source.tls, Some(&peer));
        let (mut stream, _): (Connection, Peer) = open.await?;
        let identity = identify(&mut stream).await?;
        let (slot, stands) = match &source.slot {
            Some(slot) => (slot.clone(), slot_position(&mut second, slot, self.is_log_gone, false).await?),
            // Ours alone, and gone with the connection.
            None => (format!("cattlegrid_{:016x}", rand_bits()), None),
        };
        self.is_log_gone = false;
        if stands.is_none() {
            // It waits for the transactions that write now. As a statement, so that the database looks meanwhile whether the connection is
            // still there; a replication command would keep waiting without it.
            let (name, is_temporary) = (literal(&slot), source.slot.is_none());
            let sql =
                format!("SELECT pg_create_logical_replication_slot({name}, 'pgoutput', {is_temporary})");
            let mut made = pin!(stream.query_that_waits(&sql));
            loop {
                match tokio::time::timeout(SLOT_WAIT, &mut made).await {
                    Ok(made) => break drop(made?),
                    Err(_) => self.say_writing(&catalog, &mut second, node).await?,
                }
            }
        }
        // From where the slot stands: after a restore that may be before what was acknowledged. A slot that stands behind it was moved by
        // another client, or made anew.
        let outlives = source.outlives;
        let resumes_at = stands.filter(|stands| outlives || resume.is_some_and(|resume| *stands <= resume));
        let publication = literal(&quoted(&source.publication));
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {publication})",
            quoted(&slot)
        );
        self.stream_process = stream.process();
        if let Err(error) = stream.start_stream(&command).await {
            self.is_log_gone = error.is_of_lost_log();
            return Err(error.into());
        }
        let now = Instant::now();
        let link = Link {
            stream,
            second: Some(second),
            answering: None,
            questions: Vec::new(),
            catalog_at: now + CATALOG_EVERY,
            status_at: now + STATUS_EVERY,
            bound: HashMap::new(),
            relations: HashMap::new(),
            listed: HashSet::new(),
            transaction: None,
            ordered: Lsn(0),
            acknowledged: Lsn(0),
            told: Lsn(0),
            received: Lsn(0),
        };
        Ok((link, catalog, identity, resumes_at))
    }

    /// Says what the slot that is being made waits for.
    async fn say_writing(
        &mut self,
        catalog: &Catalog,
        second: &mut Connection,
        node: &mut impl Node,
    ) -> Result<(), WireError> {
        let mut missing = catalog.missing.clone();
        missing.extend(writing(second, Duration::ZERO).await?);
        // The same transactions, some seconds later.
        let mends = |all: &[Missing]| all.iter().map(|one| one.mend.clone()).collect::<Vec<_>>();
        if mends(&self.missing) != mends(&missing) {
            node.notice(Notice::Missing(missing.clone()));
            self.missing = missing;
        }
        Ok(())
    }

    fn note_catalog(&mut self, catalog: Catalog, node: &mut impl Node) {
        let missing = catalog.missing.first().map(Missing::to_string);
        if self.missing != catalog.missing {
            node.notice(Notice::Missing(catalog.missing.clone()));
        }
        if let Some(link) = &mut self.link {
            let every = if catalog.missing.is_empty() { CATALOG_EVERY } else { MISSING_EVERY };
            link.catalog_at = Instant::now() + every;
        }
        let look = self.definitions.look(catalog.mark, catalog.written);
        if let (Look::Doubtful, Some(link)) = (look, &mut self.link) {
            link.catalog_at = Instant::now() + DOUBTED_EVERY;
        }
        (self.found, self.missing) = (catalog.found, catalog.missing);
        self.others = catalog.others;
        if let Some(mut link) = self.link.take() {
            // What the stream had described before is known now: what is in neither list is not followed.
            let role = |relation: &Relation| self.role(relation, link.listed.contains(&relation.id));
            link.bound = link.relations.values().map(|relation| (relation.id, role(relation))).collect();
            if link.bound.values().any(|role| matches!(role, Role::Unknown { .. })) {
                link.catalog_at = Instant::now();
            }
            self.link = Some(link);
        }
        if look == Look::Changed {
            let reason = "the definition of a table that is followed was changed".to_owned();
            self.follower.told(Told::Gap { reason }, node.now_ms());
        }
        self.follower.told(Told::Covers { missing }, node.now_ms());
    }

    /// Connects, or waits for something to happen and takes note of it.
    async fn step(&mut self, next: Next, node: &mut impl Node) {
        match next {
            Next::Connect { resume } => self.connect(resume, node).await,
            Next::Wait => {
                let event = self.event(node.now_ms(), node.is_full()).await;
                self.take(event, node);
            }
        }
    }

    /// `is_full`: the stream is left as it is.
    async fn event(&mut self, now_ms: u64, is_full: bool) -> Event {
        let wait =
            self.follower.next_ms().map(|next_ms| Duration::from_millis(next_ms.saturating_sub(now_ms)));
        let Some(link) = &mut self.link else {
            tokio::time::sleep(wait.unwrap_or(STATUS_EVERY)).await;
            return Event::Time;
        };
        let now = Instant::now();
        let own = link.status_at.min(link.catalog_at).saturating_duration_since(now);
        let wait =
            wait.map_or(own, |wait| wait.min(own)).min(if is_full { FULL_WAIT } else { Duration::MAX });
        let answered = async {
            match &mut link.answering {
                Some(answering) => answering.await,
                None => pending().await,
            }
        };
        tokio::select! {
            message = link.stream.streamed(), if !is_full => Event::Streamed(message),
            (connection, reply) = answered => Event::Answered(connection, reply),
            () = tokio::time::sleep(wait) => Event::Time,
        }
    }

    fn take(&mut self, event: Event, node: &mut impl Node) {
        let now_ms = node.now_ms();
        match event {
            Event::Streamed(Ok(Some(message))) => self.streamed(&message, node),
            Event::Streamed(Ok(None)) => {
                // Which row it was is not known.
                if let Some((_, names)) = self.link.as_mut().and_then(|link| link.transaction.as_mut()) {
                    names.all("a changed row is larger than 16 MiB");
                }
            }
            Event::Answered(connection, Ok(reply)) => {
                if let Some(link) = &mut self.link {
                    (link.second, link.answering) = (Some(connection), None);
                    link.ask_next(&self.source);
                }
                match reply {
                    Reply::Probed { number, probed } => {
                        let Probed { identity, head, snapshot, works } = probed;
                        if let Some(link) = &mut self.link
                            && link.received < head
                        {
                            // A server that has nothing to say says how far it is when it is asked.
                            link.status_at = Instant::now();
                        }
                        if self.history.ends(head) {
                            self.restored(now_ms);
                        }
                        // It may be us who do not read.
                        let works = works || node.is_full();
                        self.follower.told(Told::Probed { number, identity, head, snapshot, works }, now_ms);
                    }
                    Reply::Nudged => {}
                    Reply::Catalog(catalog) => self.note_catalog(catalog, node),
                }
            }
            Event::Streamed(Err(error)) => {
                self.is_log_gone = error.is_of_lost_log();
                self.lose(error.with_causes(), node);
            }
            Event::Answered(_, Err(error)) => self.lose(error.with_causes(), node),
            Event::Time => {
                if let Some(link) = &mut self.link
                    && link.catalog_at <= Instant::now()
                {
                    link.catalog_at = Instant::now() + CATALOG_EVERY;
                    self.ask(Question::Catalog);
                }
                self.follower.tick(now_ms);
            }
        }
    }

    fn streamed(&mut self, message: &[u8], node: &mut impl Node) {
        let now_ms = node.now_ms();
        match message.split_first() {
            // Its beginning, the log's end and the server's time, then a message of the plugin.
            Some((b'w', rest)) if rest.len() >= 24 => {
                if let Err(reason) = self.changed(&rest[24..], now_ms) {
                    self.lose(reason, node);
                }
            }
            Some((b'k', rest)) if rest.len() >= 17 => {
                let position = Lsn(rest[..8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
                if let Some(link) = &mut self.link {
                    link.received = link.received.max(position);
                    if rest[16] == 1 {
                        link.status_at = Instant::now();
                    }
                }
                if self.history.passed(position) {
                    self.restored(now_ms);
                }
                self.follower.told(Told::Passed { position }, now_ms);
            }
            _ => self.lose("the stream has a message that is unknown".to_owned(), node),
        }
    }

    fn restored(&mut self, now_ms: u64) {
        self.follower.told(Told::Gap { reason: OTHER_HISTORY.to_owned() }, now_ms);
    }

    /// What a table is to us. `is_listed`: the catalog was read after the stream had described it.
    fn role(&self, relation: &Relation, is_listed: bool) -> Role {
        let by_name = |table: &Table| table.schema == relation.schema && table.name == relation.name;
        let part =
            || self.found.iter().find(|found| found.relation.id == relation.id).map(|found| found.table);
        match self.source.tables.iter().position(by_name).or_else(part) {
            Some(table) => match Bound::new(&self.source.tables[table], relation) {
                Ok(bound) => Role::Followed(bound),
                // A column is missing: the catalog says so, and nothing is confirmed.
                Err(_) if is_listed => Role::Other,
                Err(_) => Role::Unknown { name: format!("{}.{}", relation.schema, relation.name) },
            },
            None if is_listed || self.others.contains(&relation.id) => Role::Other,
            None => Role::Unknown { name: format!("{}.{}", relation.schema, relation.name) },
        }
    }

    fn changed(&mut self, message: &[u8], now_ms: u64) -> Result<(), String> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let message = Message::parse(message).map_err(|error| error.to_string())?;
        let listed = &link.listed;
        let mut row = |relation: u32, old: Option<&Old<'_>>, new: Option<&[_]>, is_insert: bool| {
            let Some((_, names)) = &mut link.transaction else { return };
            match link.bound.get(&relation) {
                // Its replica identity was taken away. Once the catalog has said so nothing is confirmed.
                Some(Role::Followed(bound))
                    if !is_insert && bound.lacks(old) && !listed.contains(&relation) =>
                {
                    names.all(&format!("{} sends old rows no more", bound.name));
                }
                Some(Role::Followed(bound)) => bound.changed(old, new, names, &mut self.left_out),
                Some(Role::Unknown { name }) => names.all(&is_new(name)),
                Some(Role::Other) | None => {}
            }
        };
        match message {
            Message::Begin { transaction } => link.transaction = Some((transaction, Names::default())),
            Message::Insert { relation, new } => row(relation, None, Some(&new), true),
            Message::Update { relation, old, new } => row(relation, old.as_ref(), Some(&new), false),
            Message::Delete { relation, old } => row(relation, Some(&old), None, false),
            Message::Truncate { relations } => {
                if let Some((transaction, _)) = &link.transaction {
                    self.definitions.truncated(*transaction);
                }
                for relation in relations {
                    link.truncated(relation);
                }
            }
            Message::Relation(relation) => {
                let role = self.role(&relation, false);
                let Some(link) = &mut self.link else { return Ok(()) };
                let is_look_due = match &role {
                    Role::Unknown { .. } => true,
                    Role::Followed(bound) => bound.needs_whole,
                    Role::Other => false,
                };
                if is_look_due {
                    link.catalog_at = Instant::now();
                    // What the catalog said was of the table as it was.
                    link.listed.remove(&relation.id);
                }
                link.bound.insert(relation.id, role);
                link.relations.insert(relation.id, relation);
            }
            Message::Commit { end, time } => {
                let Some((transaction, names)) = link.transaction.take() else {
                    return Err("a commit that has no beginning".to_owned());
                };
                link.received = link.received.max(end);
                if self.history.committed(Commit { end, transaction, time }) {
                    self.restored(now_ms);
                }
                self.follower.told(Told::Entry { position: end, transaction, names, is_own: false }, now_ms);
            }
            Message::Other => {}
        }
        Ok(())
    }
}

impl Link {
    fn ask_next(&mut self, source: &Source) {
        if self.answering.is_some() || self.questions.is_empty() {
            return;
        }
        let Some(mut connection) = self.second.take() else { return };
        let question = self.questions.remove(0);
        if matches!(question, Question::Catalog) {
            self.listed = self.relations.keys().copied().collect();
        }
        let (wanted, process) = (source.wanted(), self.stream.process().unwrap_or(0));
        self.answering = Some(Box::pin(async move {
            let reply = match question {
                Question::Probe { number } => {
                    probe(&mut connection, process).await.map(|probed| Reply::Probed { number, probed })
                }
                Question::Nudge => {
                    let sql = "SELECT pg_logical_emit_message(true, 'cattlegrid', '')";
                    connection.query(sql).await.map(|_| Reply::Nudged)
                }
                Question::Catalog => {
                    Catalog::read(&mut connection, &wanted, Asked::Again).await.map(Reply::Catalog)
                }
            };
            (connection, reply)
        }));
    }

    /// Says what is applied; the server answers with how far the stream is.
    async fn send_status(&mut self, unix_now: Duration) -> Result<(), WireError> {
        let since_2000 = unix_now.saturating_sub(Duration::from_secs(EPOCH_SECONDS));
        let micros = u64::try_from(since_2000.as_micros()).unwrap_or(u64::MAX);
        let mut message = Vec::with_capacity(34);
        message.push(b'r');
        for number in [self.acknowledged.0, self.acknowledged.0, self.acknowledged.0, micros] {
            message.extend_from_slice(&number.to_be_bytes());
        }
        message.push(1);
        self.status_at = Instant::now() + STATUS_EVERY;
        self.told = self.acknowledged;
        self.stream.send(&message).await
    }

    fn truncated(&mut self, relation: u32) {
        let Some((_, names)) = &mut self.transaction else { return };
        let bound = match self.bound.get(&relation) {
            Some(Role::Followed(bound)) => bound,
            Some(Role::Unknown { name }) => return names.all(&is_new(name)),
            Some(Role::Other) | None => return,
        };
        if bound.truncate.is_empty() {
            names.all(&format!("{} was truncated", bound.name));
        }
        for tag in &bound.truncate {
            names.add(bound.scope, tag.as_bytes());
        }
    }
}

enum Failed {
    Wire(WireError),
    Missing(Vec<Missing>),
}

impl From<WireError> for Failed {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// Ends the process of the last stream, of this node or of the one for which it goes on, if it still has the slot: the database has not
/// noticed that its connection was lost.
async fn end_stream(connection: &mut Connection, slot: &str, process: i32) -> Result<(), WireError> {
    let sql = format!(
        "SELECT pg_terminate_backend(a.pid, 5000) FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid \
         WHERE s.slot_name = {} AND a.pid = {process} AND a.application_name = {} AND a.usename = current_user",
        literal(slot),
        literal(OUR_NAME)
    );
    connection.query(&sql).await.map(drop)
}

fn rand_bits() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
