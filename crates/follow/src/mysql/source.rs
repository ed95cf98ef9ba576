//! The binary log of a MySQL or MariaDB server: what of following it is theirs.
//!
//! The stream is that of a replica, which acknowledges nothing.
//!
//! A stream that does not resume begins at a snapshot: all transactions before its beginning are visible, and
//! the others are in it. So history 5 of the crate has no transaction to wait for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::address::Address;
use crate::follower::{Follower, FollowerEvent, Settings};
use crate::log::Log;
use crate::missing::Missing;
use crate::mysql::catalog::MysqlCatalog;
use crate::mysql::decoder::{DecodedEvent, Decoder};
use crate::mysql::position::{BinlogPosition, BinlogSnapshot, BinlogTransaction};
use crate::mysql::server::{MysqlIdentity, MysqlProbe, ServerSettings};
use crate::mysql::standing::MysqlStanding;
use crate::mysql::wire::{ER_MASTER_FATAL, MysqlConnection, Payload};
use crate::node::{Node, Notice, ResumePoint, SourceRequest};
use crate::source::{
    self, CatalogFindings, Connections, Database, DatabaseQuestion, DatabaseReply, FollowState, OpenError,
    OpenedConnections, PendingReply,
};
use crate::tables::{LeftOut, Table};
use crate::wire::{OUR_NAME, Peer, WireError};

/// Time between two looks into the catalog while it is not known how tables are defined.
const DOUBTED_EVERY: Duration = Duration::from_millis(200);

/// Time after which the server says how far a log is that does not grow.
const HEARTBEAT: Duration = Duration::from_millis(200);

// Commands.
const COM_REGISTER_SLAVE: u8 = 0x15;
const COM_BINLOG_DUMP: u8 = 0x12;
const COM_BINLOG_DUMP_GTID: u8 = 0x1e;

/// The server's number of the error of a connection that was ended.
const ER_KILLED: &str = "1927";

/// `COM_BINLOG_DUMP_GTID` begins at a set of transactions.
const THROUGH_GTID: u16 = 4;

/// The log of a server.
#[derive(Clone)]
pub struct Source {
    /// Where the server is.
    pub address: Address,
    /// The tables that are followed.
    pub tables: Arc<[Table]>,
    /// The number by which the server knows its replicas; `None`: a random one.
    pub server_id: Option<u32>,
    /// How the server's certificate is verified.
    pub tls: Arc<rustls::ClientConfig>,
    /// How it is followed.
    pub settings: Settings,
    /// The place of a node that followed before, as its [`ResumePoint`] says it, and from which this one goes
    /// on.
    pub standing: Option<Box<str>>,
}

impl Log for Mysql {
    type Position = BinlogPosition;
    type Transaction = BinlogTransaction;
    type Snapshot = BinlogSnapshot;
    type Identity = MysqlIdentity;
}

impl Source {
    /// Checks the requirements on the server: those that are not met, each with the statement that meets it.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub async fn check(&self, password: Option<&str>) -> Result<Vec<Missing>, WireError> {
        let (mut connection, _) = self.connection(password, None).await?;
        let catalog = MysqlCatalog::read(&mut connection, &self.tables, true).await?;
        let mut missing = catalog.missing.clone();
        let number = self.number();
        missing.extend(same_number(&catalog.server, number));
        if let Err(error) = self.register(&mut connection, number).await {
            missing.push(no_right(&catalog.account, &error));
        }
        Ok(missing)
    }

    fn number(&self) -> u32 {
        self.server_id.unwrap_or_else(random_id)
    }

    /// A connection with the modes that are relied on.
    async fn connection(
        &self,
        password: Option<&str>,
        peer: Option<&Peer>,
    ) -> Result<(MysqlConnection, Peer), WireError> {
        let (mut connection, peer) = MysqlConnection::open(&self.address, password, &self.tls, peer).await?;
        connection
            .query("SET SESSION sql_mode = '', SESSION sql_quote_show_create = 1, SESSION wait_timeout = 600, SESSION net_write_timeout = 600")
            .await?;
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await?;
        if !connection.is_mariadb() {
            // Keys that MySQL makes by itself are in the rows. Before 8.0.30 there are none.
            drop(connection.query("SET SESSION show_gipk_in_create_table_and_information_schema = ON").await);
        }
        Ok((connection, peer))
    }

    async fn register(&self, stream: &mut MysqlConnection, number: u32) -> Result<(), WireError> {
        let mut command = vec![COM_REGISTER_SLAVE];
        command.extend_from_slice(&number.to_le_bytes());
        for text in [OUR_NAME, "", ""] {
            command.push(text.len() as u8);
            command.extend_from_slice(text.as_bytes());
        }
        // No port, no rank, and no server of its own.
        command.extend_from_slice(&[0; 2 + 4 + 4]);
        stream.command(&command).await?;
        stream.done().await
    }

    /// Tells the server what kind of replica this is, which decides what it sends. Nothing says that it is
    /// semi-synchronous: it is not waited for.
    async fn introduce(
        &self,
        stream: &mut MysqlConnection,
        server: &ServerSettings,
        number: u32,
    ) -> Result<(), WireError> {
        let period = HEARTBEAT.as_nanos();
        let mut settings = vec![
            "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum".to_owned(),
            format!("SET @master_heartbeat_period = {period}, @source_heartbeat_period = {period}"),
        ];
        if server.is_mariadb {
            settings.push("SET @mariadb_slave_capability = 4".to_owned());
        } else {
            let uuid = format!("ca771e00-0000-4000-8000-{number:012x}");
            settings.push(format!("SET @slave_uuid = '{uuid}', @replica_uuid = '{uuid}'"));
        }
        for setting in settings {
            stream.query(&setting).await?;
        }
        Ok(())
    }

    /// Follows the log until it is told to stop, or the sender is gone.
    pub async fn follow(self, node: &mut impl Node, wish: watch::Receiver<SourceRequest>) {
        let stands = self.standing.as_deref().and_then(MysqlStanding::parse);
        let identity = stands.as_ref().map(|stands| stands.identity.clone());
        let (follower, decoder, begun) = match stands {
            Some(MysqlStanding { identity, place, begun }) => (
                // A stream begins at a snapshot: nothing ran then.
                Follower::resumed(self.settings, identity, place, Vec::new()),
                Decoder::resumed(&self.tables, place, begun),
                place,
            ),
            None => (Follower::new(self.settings), Decoder::new(&self.tables), BinlogPosition::default()),
        };
        let number = self.number();
        let database = Mysql { source: self, decoder, number, is_log_gone: false, begun };
        source::follow(database, follower, identity, node, wish).await;
    }
}

/// State of a server while it is followed.
struct Mysql {
    source: Source,
    decoder: Decoder,
    /// By which the server knows its replicas.
    number: u32,
    /// The server does not have the log any more from where the last stream stopped.
    is_log_gone: bool,
    /// Where the first of the streams began that go on from one another.
    begun: BinlogPosition,
}

impl Database for Mysql {
    type Connection = MysqlConnection;
    type Message = Payload;
    type Session = ServerSettings;
    /// Where the stream was when it was asked.
    type Probed = (BinlogPosition, MysqlProbe);
    /// The number of changes of definitions when it was asked; `None`: before the stream begins.
    type Catalog = (Option<u64>, MysqlCatalog);

    fn password(&self) -> Option<String> {
        self.source.address.password.clone()
    }

    async fn open(
        &mut self,
        resume: Option<BinlogPosition>,
        password: Option<&str>,
        core: &mut FollowState<Self>,
        node: &mut impl Node,
    ) -> Result<OpenedConnections<Self>, OpenError> {
        let source = self.source.clone();
        let (mut second, peer) = source.connection(password, None).await?;
        let server = ServerSettings::read(&mut second).await?;
        if let Some(same) = same_number(&server, self.number) {
            node.notice(Notice::Advice(same));
        }
        // Before the catalog: a statement in between is in the stream.
        let begins = if server.is_on("log_bin") && (server.is_mariadb || server.variable("gtid_mode") == "ON")
        {
            Some(server.snapshot(&mut second).await?)
        } else {
            None
        };
        let catalog = MysqlCatalog::read(&mut second, &source.tables, false).await?;
        let (fatal, head) = (catalog.missing.iter().any(|missing| missing.is_fatal), catalog.head.clone());
        let (Some(begins), Some((base, head)), false) = (begins, head, fatal) else {
            return Err(OpenError::Missing(catalog.missing));
        };
        let (mut stream, _) = source.connection(password, Some(&peer)).await?;
        let identity = server.identify(&mut stream).await?;
        source.introduce(&mut stream, &server, self.number).await?;
        if let Err(error) = source.register(&mut stream, self.number).await {
            return Err(OpenError::Missing(vec![no_right(&catalog.account, &error)]));
        }
        let has_checksum = !matches!(server.variable("binlog_checksum"), "" | "NONE");
        let is_gone = std::mem::take(&mut self.is_log_gone);
        let resume = resume.filter(|_| !is_gone && core.identity.as_ref() == Some(&identity));
        let (command, place) = match (resume, begins) {
            (Some(resume), _) => {
                let place = self.decoder.resume(resume);
                (dump(&base, place, self.number)?, Some(place))
            }
            (None, BinlogSnapshot::Before(place)) => (dump(&base, place, self.number)?, Some(place)),
            (None, BinlogSnapshot::Executed(gtids)) => (dump_gtids(&gtids.encoded(), self.number), None),
        };
        if resume.is_none() {
            self.begun = place.unwrap_or(head);
        }
        self.decoder.begins(&base, place, resume.is_some(), server.ignores_case(), has_checksum);
        stream.command(&command).await?;
        let catalog = (None, catalog);
        Ok(OpenedConnections {
            stream,
            second,
            session: server,
            catalog,
            identity,
            resumes_at: resume,
            ordered: resume,
        })
    }

    async fn streamed(stream: &mut MysqlConnection) -> Result<Payload, WireError> {
        stream.streamed().await
    }

    fn take(&mut self, payload: Payload, core: &mut FollowState<Self>, node: &mut impl Node) {
        match self.decoder.take(&payload.bytes, payload.is_cut) {
            Ok(said) => said.into_iter().for_each(|said| take_event(said, core, node.now_ms())),
            Err(reason) => {
                // It would be read in the same way again.
                self.is_log_gone = true;
                core.lose(reason, node);
            }
        }
    }

    fn ended(&mut self, error: &WireError) -> String {
        self.is_log_gone = error.code() == Some(ER_MASTER_FATAL) && !is_of_other(error);
        let text = error.with_causes();
        if is_of_other(error) {
            return format!(
                "{text}: another replica or server has server_id = {}, and the server keeps one of a number only: each server needs its own",
                self.number
            );
        }
        text
    }

    fn is_outbid(error: &WireError) -> bool {
        is_of_other(error)
    }

    fn ask(
        &self,
        question: DatabaseQuestion,
        mut second: MysqlConnection,
        link: &mut Connections<Self>,
    ) -> PendingReply<Self> {
        let (server, tables) = (link.session.clone(), Arc::clone(&self.source.tables));
        let (place, changes) = (self.decoder.place(), self.decoder.definitions.changes());
        Box::pin(async move {
            let reply = match question {
                DatabaseQuestion::Probe { number } => {
                    let probed = server.probe(&mut second).await;
                    probed.map(|probed| DatabaseReply::Probed { number, probed: (place, probed) })
                }
                // The server says by heartbeats how far a log is that does not grow.
                DatabaseQuestion::Nudge => Ok(DatabaseReply::Nudged),
                DatabaseQuestion::Catalog => MysqlCatalog::read(&mut second, &tables, false)
                    .await
                    .map(|catalog| DatabaseReply::Catalog((Some(changes), catalog))),
            };
            (second, reply)
        })
    }

    fn probed(
        &mut self,
        number: u64,
        (place, probed): (BinlogPosition, MysqlProbe),
        core: &mut FollowState<Self>,
        node: &mut impl Node,
    ) {
        let MysqlProbe { identity, head, snapshot } = probed;
        if head < place && core.identity.as_ref() == Some(&identity) {
            let reason = format!("the log was begun anew: it ends at {head}, and was followed up to {place}");
            self.is_log_gone = true;
            core.follower.handle(FollowerEvent::Gap { reason: reason.clone() }, node.now_ms());
            return core.lose(reason, node);
        }
        // It may be us who do not read.
        let works = node.is_full();
        core.follower
            .handle(FollowerEvent::Probed { number, identity, head, snapshot, works }, node.now_ms());
    }

    fn looked(
        &mut self,
        (changes, catalog): (Option<u64>, MysqlCatalog),
        _core: &mut FollowState<Self>,
    ) -> CatalogFindings {
        let mut is_changed = false;
        if let Some((_, head)) = catalog.head {
            is_changed = self.decoder.looked(catalog.targets, changes, head);
        }
        let mut missing = catalog.missing;
        missing.extend(self.decoder.missing());
        let is_doubted = !self.decoder.definitions.is_known() && !self.decoder.definitions.is_waiting();
        CatalogFindings { missing, is_changed, again: is_doubted.then_some(DOUBTED_EVERY) }
    }

    fn left_out(&self) -> LeftOut {
        self.decoder.left_out
    }

    fn standing(
        &self,
        identity: &MysqlIdentity,
        place: BinlogPosition,
        _running: &[BinlogTransaction],
    ) -> Option<ResumePoint> {
        let (identity, begun) = (identity.clone(), self.decoder.begun(place)?);
        Some(MysqlStanding { identity, place, begun }.standing())
    }

    fn note_obeyed(link: &mut Connections<Self>, node: &mut impl Node) {
        node.obeyed(link.ordered.map_or(0, |place| place.packed()));
    }

    /// The place from which a stream resumes: orders after it may not be obeyed yet.
    fn resumes(&self, place: BinlogPosition, node: &mut impl Node) -> BinlogPosition {
        BinlogPosition::unpacked(node.obeyed(place.packed())).min(place).max(self.begun)
    }
}

fn take_event(said: DecodedEvent, core: &mut FollowState<Mysql>, now_ms: u64) {
    let told = match said {
        DecodedEvent::Entry { transaction, names } => {
            FollowerEvent::Entry { position: transaction.end, transaction, names, is_own: false }
        }
        DecodedEvent::Passed(position) => FollowerEvent::Passed { position },
        DecodedEvent::Gap(reason) => FollowerEvent::Gap { reason },
        DecodedEvent::Changed => {
            if let Some(link) = &mut core.link {
                link.catalog_at = Instant::now();
            }
            return;
        }
    };
    core.follower.handle(told, now_ms);
}

/// The server's own number is given. A server that does not refuse it is followed all the same.
fn same_number(server: &ServerSettings, number: u32) -> Option<Missing> {
    (server.variable("server_id") == number.to_string()).then(|| Missing {
        what: format!("server_id = {number} is that of the server itself"),
        mend: "name another one".to_owned(),
        is_fatal: true,
    })
}

fn no_right(account: &str, error: &WireError) -> Missing {
    Missing {
        what: format!("user {account} may not read the binary log ({error})"),
        mend: format!("GRANT REPLICATION SLAVE ON *.* TO {account}"),
        is_fatal: true,
    }
}

/// Whether the server has ended a stream for another one of the same number, as it says, or by its number of
/// a connection that was ended.
fn is_of_other(error: &WireError) -> bool {
    let is_said = |message: &str| message.contains("same server_uuid/server_id");
    matches!(error, WireError::Server { code, message, .. } if code == ER_KILLED || is_said(message))
}

/// Asks for the log from a place on.
fn dump(base: &str, place: BinlogPosition, number: u32) -> Result<Vec<u8>, WireError> {
    let offset = u32::try_from(place.offset)
        .map_err(|_| WireError::Protocol("a file of the log of more than 4 GiB"))?;
    let mut command = vec![COM_BINLOG_DUMP];
    command.extend_from_slice(&offset.to_le_bytes());
    command.extend_from_slice(&[0; 2]);
    command.extend_from_slice(&number.to_le_bytes());
    command.extend_from_slice(place.name(base).as_bytes());
    Ok(command)
}

/// Asks for all but these transactions.
fn dump_gtids(encoded: &[u8], number: u32) -> Vec<u8> {
    let mut command = vec![COM_BINLOG_DUMP_GTID];
    command.extend_from_slice(&THROUGH_GTID.to_le_bytes());
    command.extend_from_slice(&number.to_le_bytes());
    command.extend_from_slice(&0u32.to_le_bytes());
    command.extend_from_slice(&4u64.to_le_bytes());
    command.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
    command.extend_from_slice(encoded);
    command
}

/// In the upper half, where those that people choose are not.
fn random_id() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) as u32 | 1 << 31
}
