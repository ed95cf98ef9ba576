//! The log of a PostgreSQL database: what of following it is PostgreSQL's own.
//!
//! The stream is a replication slot's.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::address::Address;
use crate::follower::{Follower, FollowerEvent, Settings};
use crate::log::Log;
use crate::missing::Missing;
use crate::names::Names;
use crate::node::{Node, ResumePoint, SourceRequest};
use crate::postgres::catalog::{CatalogTable, PostgresCatalog, ReadReason, Requirements, literal, quoted};
use crate::postgres::definitions::{DefinitionsLook, SeenDefinitions};
use crate::postgres::history::{OTHER_HISTORY, ReceivedCommit, SlotHistory, slot_position};
use crate::postgres::pgoutput::{Lsn, PgoutputMessage};
use crate::postgres::probe::{PostgresIdentity, PostgresProbe, PostgresSnapshot, identify, probe};
use crate::postgres::standing::PostgresStanding;
use crate::postgres::waits::{exhausted, writing};
use crate::postgres::wire::{PostgresConnection, is_of_lost_log};
use crate::rows::{BoundTable, OldRow, Relation};
use crate::source::{
    self, CatalogFindings, Connections, Database, DatabaseQuestion, DatabaseReply, FollowState, OpenError,
    OpenedConnections, PendingReply, WAIT_MAX,
};
use crate::tables::{LeftOut, Table};
use crate::wire::{OUR_NAME, Peer, WireError};

/// Time between two looks into the catalog while it is not known whether a table was truncated, or changed.
const DOUBTED_EVERY: Duration = Duration::from_secs(1);

/// How long a slot is waited for before it is said why.
const SLOT_WAIT: Duration = Duration::from_secs(3);

/// A transaction that has been open for longer is worth a line of `check`.
const LONG_TRANSACTION: Duration = Duration::from_secs(60);

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
    /// The tables that are followed.
    pub tables: Arc<[Table]>,
    /// The name of a permanent slot; `None`: a temporary one.
    pub slot: Option<String>,
    /// A permanent slot that is there was left by a process that obeyed what it acknowledged, and whose
    /// effects stay: the stream goes on there from the first connection.
    pub outlives: bool,
    /// How the server's certificate is verified.
    pub tls: Arc<rustls::ClientConfig>,
    /// How it is followed.
    pub settings: Settings,
    /// The place of a node that followed before, as its [`ResumePoint`](crate::ResumePoint) says it, and from
    /// which this one goes on.
    pub standing: Option<Box<str>>,
}

impl Log for Postgres {
    type Position = Lsn;
    type Transaction = u32;
    type Snapshot = PostgresSnapshot;
    type Identity = PostgresIdentity;
}

/// State of one pair of connections.
struct PostgresSession {
    /// When the server is told how far we are: an idle one ends a connection that is silent for
    /// `wal_sender_timeout` (60 s).
    status_at: Instant,
    bound: HashMap<u32, RelationRole>,
    /// The tables as the stream has described them.
    relations: HashMap<u32, Relation>,
    /// Those that it had described when the catalog was asked last.
    listed: HashSet<u32>,
    transaction: Option<(u32, Names)>,
    /// Up to where the node has obeyed its orders.
    acknowledged: Lsn,
    /// The position that the server was told last.
    told: Lsn,
    received: Lsn,
}

impl Source {
    fn wanted(&self) -> Requirements {
        Requirements {
            publication: self.publication.clone(),
            tables: Arc::clone(&self.tables),
            user: self.address.user.clone(),
            slot: self.slot.clone(),
        }
    }

    /// Checks the requirements on the database: those that are not met, each with the statement that meets
    /// it.
    ///
    /// # Errors
    /// The database cannot be reached, or refuses.
    pub async fn check(&self, password: Option<&str>) -> Result<Vec<Missing>, WireError> {
        let (mut connection, _) = PostgresConnection::open(&self.address, password, &self.tls, None).await?;
        let mut missing =
            PostgresCatalog::read(&mut connection, &self.wanted(), ReadReason::Check).await?.missing;
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
    pub async fn follow(self, node: &mut impl Node, wish: watch::Receiver<SourceRequest>) {
        let stands = self.standing.as_deref().and_then(PostgresStanding::parse);
        let follower = match &stands {
            Some(PostgresStanding { identity, position, running, .. }) => {
                Follower::resumed(self.settings, identity.clone(), *position, running.clone())
            }
            None => Follower::new(self.settings),
        };
        let database = Postgres {
            source: self,
            found: Vec::new(),
            others: HashSet::new(),
            left_out: LeftOut::default(),
            history: SlotHistory::resumed(stands.as_ref().and_then(|stands| stands.last)),
            stream_process: stands.as_ref().and_then(|stands| stands.process),
            definitions: SeenDefinitions::after(stands.as_ref().map(|stands| stands.catalog)),
            is_log_gone: false,
        };
        source::follow(database, follower, stands.map(|stands| stands.identity), node, wish).await;
    }
}

/// State of a database while it is followed.
struct Postgres {
    source: Source,
    /// The tables that the catalog had last.
    found: Vec<CatalogTable>,
    others: HashSet<u32>,
    left_out: LeftOut,
    history: SlotHistory,
    /// The database's process of the last stream.
    stream_process: Option<i32>,
    definitions: SeenDefinitions,
    /// The files that the slot needs are gone, though the slot does not say so.
    is_log_gone: bool,
}

/// Why changes of a table invalidate everything.
fn is_new(name: &str) -> String {
    format!("{name} is new, or was changed")
}

/// The role of a table of the stream.
enum RelationRole {
    Followed(BoundTable),
    /// The table is not followed.
    Other,
    /// The table's definition is newer than the last look into the catalog: perhaps it is a partition of a
    /// followed table.
    Unknown {
        name: String,
    },
}

impl Database for Postgres {
    type Connection = PostgresConnection;
    /// `None`: it was too long, and was skipped.
    type Message = Option<Bytes>;
    type Session = PostgresSession;
    type Probed = PostgresProbe;
    type Catalog = PostgresCatalog;

    fn password(&self) -> Option<String> {
        self.source.address.password.clone()
    }

    async fn open(
        &mut self,
        resume: Option<Lsn>,
        password: Option<&str>,
        core: &mut FollowState<Self>,
        node: &mut impl Node,
    ) -> Result<OpenedConnections<Self>, OpenError> {
        let source = self.source.clone();
        let (mut second, peer) =
            PostgresConnection::open(&source.address, password, &source.tls, None).await?;
        second.query("SET synchronous_commit = local").await?;
        if let (Some(slot), Some(process)) = (&source.slot, self.stream_process.take()) {
            end_stream(&mut second, slot, process).await?;
        }
        let catalog = PostgresCatalog::read(&mut second, &source.wanted(), ReadReason::Begin).await?;
        if catalog.missing.iter().any(|missing| missing.is_fatal) {
            return Err(OpenError::Missing(catalog.missing));
        }
        let open = PostgresConnection::open(&source.address, password, &source.tls, Some(&peer));
        let (mut stream, _): (PostgresConnection, Peer) = open.await?;
        let identity = identify(&mut stream).await?;
        let (slot, stands) = match &source.slot {
            Some(slot) => (slot.clone(), slot_position(&mut second, slot, self.is_log_gone, false).await?),
            // Ours alone, and gone with the connection.
            None => (format!("cattlegrid_{:016x}", rand_bits()), None),
        };
        self.is_log_gone = false;
        if stands.is_none() {
            // It waits for the transactions that write now. As a statement, so that the database looks
            // meanwhile whether the connection is still there; a replication command would keep waiting
            // without it.
            let (name, is_temporary) = (literal(&slot), source.slot.is_none());
            let sql =
                format!("SELECT pg_create_logical_replication_slot({name}, 'pgoutput', {is_temporary})");
            let mut made = pin!(stream.query_that_waits(&sql));
            loop {
                match tokio::time::timeout(SLOT_WAIT, &mut made).await {
                    Ok(made) => break drop(made?),
                    Err(_) => say_writing(&catalog, &mut second, core, node).await?,
                }
            }
        }
        // From where the slot stands: after a restore that may be before what was acknowledged. A slot that
        // stands behind it was moved by another client, or made anew.
        let outlives = source.outlives;
        let resumes_at = stands.filter(|stands| outlives || resume.is_some_and(|resume| *stands <= resume));
        let publication = literal(&quoted(&source.publication));
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {publication})",
            quoted(&slot)
        );
        self.stream_process = stream.process();
        if let Err(error) = stream.start_stream(&command).await {
            self.is_log_gone = is_of_lost_log(&error);
            return Err(error.into());
        }
        self.history.begins(resumes_at);
        let session = PostgresSession {
            status_at: Instant::now() + WAIT_MAX,
            bound: HashMap::new(),
            relations: HashMap::new(),
            listed: HashSet::new(),
            transaction: None,
            acknowledged: Lsn(0),
            told: Lsn(0),
            received: Lsn(0),
        };
        Ok(OpenedConnections { stream, second, session, catalog, identity, resumes_at, ordered: None })
    }

    async fn streamed(stream: &mut PostgresConnection) -> Result<Option<Bytes>, WireError> {
        stream.streamed().await
    }

    fn take(&mut self, message: Option<Bytes>, core: &mut FollowState<Self>, node: &mut impl Node) {
        let taken = if let Some(message) = message {
            self.message(&message, core, node.now_ms())
        } else {
            // Which row it was is not known.
            let session = core.link.as_mut().map(|link| &mut link.session);
            if let Some((_, names)) = session.and_then(|session| session.transaction.as_mut()) {
                names.all("a changed row is larger than 16 MiB");
            }
            Ok(())
        };
        if let Err(reason) = taken {
            core.lose(reason, node);
        }
    }

    fn ended(&mut self, error: &WireError) -> String {
        self.is_log_gone = is_of_lost_log(error);
        error.with_causes()
    }

    fn ask(
        &self,
        question: DatabaseQuestion,
        mut second: PostgresConnection,
        link: &mut Connections<Self>,
    ) -> PendingReply<Self> {
        if matches!(question, DatabaseQuestion::Catalog) {
            link.session.listed = link.session.relations.keys().copied().collect();
        }
        let (wanted, process) = (self.source.wanted(), link.stream.process().unwrap_or(0));
        Box::pin(async move {
            let reply = match question {
                DatabaseQuestion::Probe { number } => {
                    probe(&mut second, process).await.map(|probed| DatabaseReply::Probed { number, probed })
                }
                DatabaseQuestion::Nudge => {
                    let sql = "SELECT pg_logical_emit_message(true, 'cattlegrid', '')";
                    second.query(sql).await.map(|_| DatabaseReply::Nudged)
                }
                DatabaseQuestion::Catalog => PostgresCatalog::read(&mut second, &wanted, ReadReason::Again)
                    .await
                    .map(DatabaseReply::Catalog),
            };
            (second, reply)
        })
    }

    fn probed(
        &mut self,
        number: u64,
        probed: PostgresProbe,
        core: &mut FollowState<Self>,
        node: &mut impl Node,
    ) {
        let PostgresProbe { identity, head, snapshot, works } = probed;
        if let Some(link) = &mut core.link
            && link.session.received < head
        {
            // A server that has nothing to say says how far it is when it is asked.
            link.session.status_at = Instant::now();
        }
        let now_ms = node.now_ms();
        if self.history.ends(head) {
            restored(core, now_ms);
        }
        // It may be us who do not read.
        let works = works || node.is_full();
        core.follower.handle(FollowerEvent::Probed { number, identity, head, snapshot, works }, now_ms);
    }

    fn looked(&mut self, catalog: PostgresCatalog, core: &mut FollowState<Self>) -> CatalogFindings {
        let look = self.definitions.look(catalog.mark, catalog.written);
        let mut again = (look == DefinitionsLook::Doubtful).then_some(DOUBTED_EVERY);
        (self.found, self.others) = (catalog.found, catalog.others);
        if let Some(Connections { session, .. }) = &mut core.link {
            // What the stream had described before is known now: what is in neither list is not followed.
            let role = |relation: &Relation| self.role(relation, session.listed.contains(&relation.id));
            session.bound =
                session.relations.values().map(|relation| (relation.id, role(relation))).collect();
            if session.bound.values().any(|role| matches!(role, RelationRole::Unknown { .. })) {
                again = Some(Duration::ZERO);
            }
        }
        CatalogFindings { missing: catalog.missing, is_changed: look == DefinitionsLook::Changed, again }
    }

    fn left_out(&self) -> LeftOut {
        self.left_out
    }

    fn standing(&self, identity: &PostgresIdentity, position: Lsn, running: &[u32]) -> Option<ResumePoint> {
        let (identity, running) = (identity.clone(), running.to_vec());
        let (catalog, process) = (self.definitions.number(), self.stream_process);
        PostgresStanding { identity, position, last: self.history.last(), running, catalog, process }
            .standing()
    }

    fn note_obeyed(link: &mut Connections<Self>, node: &mut impl Node) {
        let obeyed = Lsn(node.obeyed(link.ordered.map_or(0, |ordered| ordered.0)));
        if obeyed != link.session.acknowledged {
            link.session.acknowledged = obeyed;
            link.session.status_at = link.session.status_at.min(Instant::now() + Duration::from_secs(1));
        }
    }

    fn reports_at(session: &PostgresSession) -> Option<Instant> {
        Some(session.status_at)
    }

    /// Says what is applied; the server answers with how far the stream is.
    async fn report(link: &mut Connections<Self>, unix_now: Duration) -> Result<(), WireError> {
        let since_2000 = unix_now.saturating_sub(Duration::from_secs(EPOCH_SECONDS));
        let micros = u64::try_from(since_2000.as_micros()).unwrap_or(u64::MAX);
        let session = &mut link.session;
        let mut message = Vec::with_capacity(34);
        message.push(b'r');
        for number in [session.acknowledged.0, session.acknowledged.0, session.acknowledged.0, micros] {
            message.extend_from_slice(&number.to_be_bytes());
        }
        message.push(1);
        session.status_at = Instant::now() + WAIT_MAX;
        session.told = session.acknowledged;
        link.stream.send(&message).await
    }

    /// Without it that comes again, which does no harm.
    async fn leave(link: &mut Connections<Self>, unix_now: Duration) {
        if link.session.acknowledged == link.session.told {
            return;
        }
        let told = async {
            Self::report(link, unix_now).await?;
            // Its answer says that it has read it. A connection that is closed before may lose it.
            while link.stream.streamed().await?.is_none_or(|message| message.first() != Some(&b'k')) {}
            Ok::<(), WireError>(())
        };
        drop(tokio::time::timeout(LEAVE, told).await);
    }
}

impl Postgres {
    fn message(&mut self, message: &[u8], core: &mut FollowState<Self>, now_ms: u64) -> Result<(), String> {
        match message.split_first() {
            // Its beginning, the log's end and the server's time, then a message of the plugin.
            Some((b'w', rest)) if rest.len() >= 24 => self.changed(&rest[24..], core, now_ms),
            Some((b'k', rest)) if rest.len() >= 17 => {
                let position = Lsn(rest[..8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
                if let Some(Connections { session, .. }) = &mut core.link {
                    session.received = session.received.max(position);
                    if rest[16] == 1 {
                        session.status_at = Instant::now();
                    }
                }
                if self.history.passed(position) {
                    restored(core, now_ms);
                }
                core.follower.handle(FollowerEvent::Passed { position }, now_ms);
                Ok(())
            }
            _ => Err("the stream has a message that is unknown".to_owned()),
        }
    }

    /// The role of a table. `is_listed`: the catalog was read after the stream had described it.
    fn role(&self, relation: &Relation, is_listed: bool) -> RelationRole {
        let by_name = |table: &Table| table.schema == relation.schema && table.name == relation.name;
        let part =
            || self.found.iter().find(|found| found.relation.id == relation.id).map(|found| found.table);
        match self.source.tables.iter().position(by_name).or_else(part) {
            Some(table) => match BoundTable::new(&self.source.tables[table], relation) {
                Ok(bound) => RelationRole::Followed(bound),
                // A column is missing: the catalog says so, and nothing is confirmed.
                Err(_) if is_listed => RelationRole::Other,
                Err(_) => RelationRole::Unknown { name: format!("{}.{}", relation.schema, relation.name) },
            },
            None if is_listed || self.others.contains(&relation.id) => RelationRole::Other,
            None => RelationRole::Unknown { name: format!("{}.{}", relation.schema, relation.name) },
        }
    }

    fn changed(&mut self, message: &[u8], core: &mut FollowState<Self>, now_ms: u64) -> Result<(), String> {
        let Some(link) = &mut core.link else { return Ok(()) };
        let session = &mut link.session;
        let message = PgoutputMessage::parse(message).map_err(|error| error.to_string())?;
        let listed = &session.listed;
        let mut row = |relation: u32, old: Option<&OldRow<'_>>, new: Option<&[_]>, is_insert: bool| {
            let Some((_, names)) = &mut session.transaction else { return };
            match session.bound.get(&relation) {
                // Its replica identity was taken away. Once the catalog has said so nothing is confirmed.
                Some(RelationRole::Followed(bound))
                    if !is_insert && bound.lacks(old) && !listed.contains(&relation) =>
                {
                    names.all(&format!("{} sends old rows no more", bound.name));
                }
                Some(RelationRole::Followed(bound)) => bound.changed(old, new, names, &mut self.left_out),
                Some(RelationRole::Unknown { name }) => names.all(&is_new(name)),
                Some(RelationRole::Other) | None => {}
            }
        };
        match message {
            PgoutputMessage::Begin { transaction } => {
                session.transaction = Some((transaction, Names::default()));
            }
            PgoutputMessage::Insert { relation, new } => row(relation, None, Some(&new), true),
            PgoutputMessage::Update { relation, old, new } => row(relation, old.as_ref(), Some(&new), false),
            PgoutputMessage::Delete { relation, old } => row(relation, Some(&old), None, false),
            PgoutputMessage::Truncate { relations } => {
                if let Some((transaction, _)) = &session.transaction {
                    self.definitions.truncated(*transaction);
                }
                for relation in relations {
                    session.truncated(relation);
                }
            }
            PgoutputMessage::Relation(relation) => {
                let role = self.role(&relation, false);
                let is_look_due = match &role {
                    RelationRole::Unknown { .. } => true,
                    RelationRole::Followed(bound) => bound.needs_whole,
                    RelationRole::Other => false,
                };
                if is_look_due {
                    link.catalog_at = Instant::now();
                    // What the catalog said was of the table as it was.
                    session.listed.remove(&relation.id);
                }
                session.bound.insert(relation.id, role);
                session.relations.insert(relation.id, relation);
            }
            PgoutputMessage::Commit { end, time } => {
                let Some((transaction, names)) = session.transaction.take() else {
                    return Err("a commit that has no beginning".to_owned());
                };
                session.received = session.received.max(end);
                if self.history.committed(ReceivedCommit { end, transaction, time }) {
                    restored(core, now_ms);
                }
                core.follower.handle(
                    FollowerEvent::Entry { position: end, transaction, names, is_own: false },
                    now_ms,
                );
            }
            PgoutputMessage::Other => {}
        }
        Ok(())
    }
}

impl PostgresSession {
    fn truncated(&mut self, relation: u32) {
        let Some((_, names)) = &mut self.transaction else { return };
        let bound = match self.bound.get(&relation) {
            Some(RelationRole::Followed(bound)) => bound,
            Some(RelationRole::Unknown { name }) => return names.all(&is_new(name)),
            Some(RelationRole::Other) | None => return,
        };
        if bound.truncate.is_empty() {
            names.all(&format!("{} was truncated", bound.name));
        }
        for tag in &bound.truncate {
            names.add(bound.scope, tag.as_bytes());
        }
    }
}

/// Everything is flushed: the database has another history than before.
fn restored(core: &mut FollowState<Postgres>, now_ms: u64) {
    core.follower.handle(FollowerEvent::Gap { reason: OTHER_HISTORY.to_owned() }, now_ms);
}

/// Says what the slot that is being made waits for.
async fn say_writing(
    catalog: &PostgresCatalog,
    second: &mut PostgresConnection,
    core: &mut FollowState<Postgres>,
    node: &mut impl Node,
) -> Result<(), WireError> {
    let mut missing = catalog.missing.clone();
    missing.extend(writing(second, Duration::ZERO).await?);
    // The same transactions, some seconds later.
    let mends = |all: &[Missing]| all.iter().map(|one| one.mend.clone()).collect::<Vec<_>>();
    if mends(&core.missing) != mends(&missing) {
        core.note_missing(missing, node);
    }
    Ok(())
}

/// Ends the process of the last stream, of this node or of the one for which it goes on, if it still has the
/// slot: the database has not noticed that its connection was lost.
async fn end_stream(connection: &mut PostgresConnection, slot: &str, process: i32) -> Result<(), WireError> {
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
