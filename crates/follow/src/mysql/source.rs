//! Follows the binary log of one server: two connections, and the [`Follower`] between them and the node.
//!
//! The *stream* is that of a replica, which acknowledges nothing. On the *second connection*, to the same socket address, the source asks
//! for the head of the log and a snapshot, and reads the catalog.
//!
//! A stream that does not resume begins at a snapshot: all transactions before its beginning are visible, and the others are in it. So
//! history 5 of the crate has no transaction to wait for.

use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::follower::{Action, Follower, Settings, Told};
use crate::log::Log;
use crate::missing::Missing;
use crate::mysql::address::Address;
use crate::mysql::catalog::Catalog;
use crate::mysql::decoder::{Decoder, Said};
use crate::mysql::place::{Place, Seen, Transaction};
use crate::mysql::server::{Identity, Probed, Server};
use crate::mysql::wire::{Connection, ER_MASTER_FATAL, OUR_NAME, Payload, WireError};
use crate::node::{Node, Notice, Order, Wish};
use crate::tables::Table;

/// Time between two looks into the catalog.
const CATALOG_EVERY: Duration = Duration::from_secs(30);

/// The same while something is missing.
const MISSING_EVERY: Duration = Duration::from_secs(3);

/// The same while it is not known how tables are defined.
const DOUBTED_EVERY: Duration = Duration::from_millis(200);

/// Time after which the server says how far a log is that does not grow.
const HEARTBEAT: Duration = Duration::from_millis(200);

/// Between two looks whether a node that was full is so still.
const FULL_WAIT: Duration = Duration::from_millis(10);

/// Longest wait when nothing is due.
const WAIT_MAX: Duration = Duration::from_secs(10);

// Commands.
const COM_REGISTER_SLAVE: u8 = 0x15;
const COM_BINLOG_DUMP: u8 = 0x12;
const COM_BINLOG_DUMP_GTID: u8 = 0x1e;

/// The server's number of the error of a connection that was ended.
const ER_KILLED: u16 = 1927;

/// `COM_BINLOG_DUMP_GTID` begins at a set of transactions.
const THROUGH_GTID: u16 = 4;

/// The log of a server.
#[derive(Clone)]
pub struct Source {
    /// Where the server is.
    pub address: Address,
    /// What is followed.
    pub tables: Arc<[Table]>,
    /// The number by which the server knows its replicas; `None`: a random one.
    pub server_id: Option<u32>,
    /// How the server's certificate is verified.
    pub tls: Arc<rustls::ClientConfig>,
    /// How it is followed.
    pub settings: Settings,
}

struct Mysql;

impl Log for Mysql {
    type Position = Place;
    type Transaction = Transaction;
    type Snapshot = Seen;
    type Identity = Identity;
}

/// What the second connection is asked.
#[derive(Debug, Clone, Copy)]
enum Question {
    /// `place`: where the stream was when it was asked.
    Probe { number: u64, place: Place },
    /// `changes`: those of definitions so far.
    Catalog { changes: u64 },
}

enum Reply {
    Probed { number: u64, place: Place, probed: Probed },
    Catalog { changes: u64, catalog: Catalog },
}

type Answering = Pin<Box<dyn Future<Output = (Connection, Result<Reply, WireError>)> + Send>>;

/// Both connections.
struct Link {
    stream: Connection,
    server: Server,
    /// The second connection, while nothing is asked.
    second: Option<Connection>,
    answering: Option<Answering>,
    questions: Vec<Question>,
    catalog_at: Instant,
    /// Up to where the node has its orders.
    ordered: Place,
}

impl Source {
    /// What the server lacks, each with the statement that mends it.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses.
    pub async fn check(&self, password: Option<&str>) -> Result<Vec<Missing>, WireError> {
        let (mut connection, _) = self.connection(password, None).await?;
        let catalog = Catalog::read(&mut connection, &self.tables, &self.address.user, true).await?;
        let mut missing = catalog.missing;
        let number = self.number();
        if catalog.server.variable("server_id") == number.to_string() {
            missing.push(Missing {
                what: format!("server_id = {number} is that of the server itself"),
                mend: "name another one".to_owned(),
                is_fatal: true,
            });
        }
        if let Err(error) = self.register(&mut connection, number).await {
            missing.push(self.no_right(&error));
        }
        Ok(missing)
    }

    fn no_right(&self, error: &WireError) -> Missing {
        Missing {
            what: format!("user `{}` may not read the binary log ({error})", self.address.user),
            mend: format!("GRANT REPLICATION SLAVE ON *.* TO '{}'", self.address.user),
            is_fatal: true,
        }
    }

    fn number(&self) -> u32 {
        self.server_id.unwrap_or_else(random_id)
    }

    /// A connection with the modes that are relied on.
    async fn connection(
        &self,
        password: Option<&str>,
        peer: Option<&crate::mysql::wire::Peer>,
    ) -> Result<(Connection, crate::mysql::wire::Peer), WireError> {
        let (mut connection, peer) = Connection::open(&self.address, password, &self.tls, peer).await?;
        connection
            .query("SET SESSION sql_mode = '', SESSION sql_quote_show_create = 1, SESSION wait_timeout = 600, SESSION net_write_timeout = 600")
            .await?;
        connection.query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await?;
        Ok((connection, peer))
    }

    async fn register(&self, stream: &mut Connection, number: u32) -> Result<(), WireError> {
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

    /// Tells the server what kind of replica this is, which decides what it sends. Nothing says that it is semi-synchronous: it is not
    /// waited for.
    async fn introduce(
        &self,
        stream: &mut Connection,
        server: &Server,
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
    pub async fn follow(self, node: &mut impl Node, mut wish: watch::Receiver<Wish>) {
        let mut running = Running {
            follower: Follower::new(self.settings),
            decoder: Decoder::new(&self.tables),
            number: self.number(),
            source: self,
            link: None,
            missing: Vec::new(),
            is_log_gone: false,
            identity: None,
            begun: Place::default(),
        };
        running.follower.tick(node.now_ms());
        loop {
            let began_ms = node.now_ms();
            let next = running.act(node);
            // An entry of 100,000s of names takes its time.
            running.follower.stalled(node.now_ms().saturating_sub(began_ms));
            node.state(running.follower.state(), running.decoder.left_out);
            let mut looks = false;
            {
                let mut step = pin!(running.step(next, node));
                loop {
                    tokio::select! {
                        () = &mut step => break,
                        changed = wish.changed() => {
                            if changed.is_err() || wish.borrow_and_update().stops {
                                return;
                            }
                            looks = true;
                        }
                    }
                }
            }
            if let Some(link) = running.link.as_mut().filter(|_| looks) {
                link.catalog_at = Instant::now();
            }
        }
    }
}

struct Running {
    source: Source,
    follower: Follower<Mysql>,
    decoder: Decoder,
    /// By which the server knows its replicas.
    number: u32,
    link: Option<Link>,
    missing: Vec<Missing>,
    /// The server does not have the log any more from where the last stream stopped.
    is_log_gone: bool,
    identity: Option<Identity>,
    /// Where the first of the streams began that go on from one another.
    begun: Place,
}

/// What comes after the follower's actions.
enum Next {
    /// Make the connections.
    Connect { resume: Option<Place> },
    /// Wait for something to happen.
    Wait,
}

enum Event {
    Streamed(Result<Payload, WireError>),
    Answered(Box<Connection>, Result<Reply, WireError>),
    Time,
}

impl Running {
    /// Executes what the follower wants.
    fn act(&mut self, node: &mut impl Node) -> Next {
        while let Some(action) = self.follower.poll_action() {
            match action {
                Action::Bump(names) => node.order(Order::Bump(names)),
                Action::Flush(reason) => node.order(Order::Flush(reason)),
                Action::Confirmed { asked_at_ms } => node.order(Order::Confirmed { asked_at_ms }),
                Action::Connect { resume } => {
                    // What is ordered may not be obeyed yet.
                    let obeyed = |place: Place| {
                        Place::unpacked(node.obeyed(place.packed())).min(place).max(self.begun)
                    };
                    return Next::Connect { resume: resume.map(obeyed) };
                }
                Action::Disconnect { reason } => {
                    self.link = None;
                    node.notice(Notice::Lost { reason });
                }
                Action::Acknowledge(position) => {
                    if let Some(link) = &mut self.link {
                        link.ordered = position;
                    }
                }
                Action::Probe { number } => {
                    let place = self.decoder.place();
                    self.ask(Question::Probe { number, place });
                }
                // The server says by heartbeats how far a log is that does not grow.
                Action::Nudge => {}
            }
        }
        if let Some(link) = &self.link {
            node.obeyed(link.ordered.packed());
        }
        if let Some(reason) = self.link.as_ref().and_then(|_| node.wants_again()) {
            self.lose(reason, node);
        }
        Next::Wait
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

    async fn connect(&mut self, resume: Option<Place>, node: &mut impl Node) {
        let password = match node.password() {
            Ok(password) => password.or_else(|| self.source.address.password.clone()),
            Err(reason) => return self.lose(reason, node),
        };
        match self.open(resume, password.as_deref()).await {
            Ok((link, catalog, identity, resumes)) => {
                self.link = Some(link);
                self.identity = Some(identity.clone());
                node.notice(Notice::Connected { identity: identity.to_string(), resumes });
                self.follower.told(Told::Connected { identity, resumes }, node.now_ms());
                let changes = self.decoder.definitions.changes();
                self.note_catalog(changes, catalog, node);
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
        resume: Option<Place>,
        password: Option<&str>,
    ) -> Result<(Link, Catalog, Identity, bool), Failed> {
        let source = self.source.clone();
        let (mut second, peer) = source.connection(password, None).await?;
        let server = Server::read(&mut second).await?;
        // Before the catalog: a statement in between is in the stream.
        let begins = if server.is_on("log_bin") && (server.is_mariadb || server.variable("gtid_mode") == "ON")
        {
            Some(server.snapshot(&mut second).await?)
        } else {
            None
        };
        let catalog = Catalog::read(&mut second, &source.tables, &source.address.user, false).await?;
        let (fatal, head) = (catalog.missing.iter().any(|missing| missing.is_fatal), catalog.head.clone());
        let (Some(begins), Some((base, head)), false) = (begins, head, fatal) else {
            return Err(Failed::Missing(catalog.missing));
        };
        let (mut stream, _) = source.connection(password, Some(&peer)).await?;
        let identity = server.identify(&mut stream).await?;
        source.introduce(&mut stream, &server, self.number).await?;
        if let Err(error) = source.register(&mut stream, self.number).await {
            return Err(Failed::Missing(vec![source.no_right(&error)]));
        }
        let has_checksum = !matches!(server.variable("binlog_checksum"), "" | "NONE");
        let is_gone = std::mem::take(&mut self.is_log_gone);
        let resume = resume.filter(|_| !is_gone && self.identity.as_ref() == Some(&identity));
        let (command, place) = match (resume, begins) {
            (Some(resume), _) => {
                let place = self.decoder.resume(resume);
                (dump(&base, place, self.number)?, Some(place))
            }
            (None, Seen::Before(place)) => (dump(&base, place, self.number)?, Some(place)),
            (None, Seen::Executed(gtids)) => (dump_gtids(&gtids.encoded(), self.number), None),
        };
        if resume.is_none() {
            self.begun = place.unwrap_or(head);
        }
        self.decoder.begins(&base, place, resume.is_some(), server.ignores_case(), has_checksum);
        stream.command(&command).await?;
        let link = Link {
            stream,
            server,
            second: Some(second),
            answering: None,
            questions: Vec::new(),
            catalog_at: Instant::now() + CATALOG_EVERY,
            ordered: resume.unwrap_or_default(),
        };
        Ok((link, catalog, identity, resume.is_some()))
    }

    fn note_catalog(&mut self, changes: u64, catalog: Catalog, node: &mut impl Node) {
        let missing = catalog.missing.first().map(Missing::to_string);
        if self.missing != catalog.missing {
            node.notice(Notice::Missing(catalog.missing.clone()));
        }
        self.missing = catalog.missing;
        let mut is_other = false;
        if let Some((_, head)) = catalog.head {
            is_other = self.decoder.definitions.read(catalog.targets, changes, head, self.decoder.place());
        }
        if let Some(link) = &mut self.link {
            let is_doubted = !self.decoder.definitions.is_known() && !self.decoder.definitions.is_waiting();
            let every = match (is_doubted, self.missing.is_empty()) {
                (true, _) => DOUBTED_EVERY,
                (false, true) => CATALOG_EVERY,
                (false, false) => MISSING_EVERY,
            };
            link.catalog_at = Instant::now() + every;
        }
        if is_other {
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
            tokio::time::sleep(wait.unwrap_or(WAIT_MAX)).await;
            return Event::Time;
        };
        let own = link.catalog_at.saturating_duration_since(Instant::now()).min(WAIT_MAX);
        let wait =
            wait.map_or(own, |wait| wait.min(own)).min(if is_full { FULL_WAIT } else { Duration::MAX });
        let answered = async {
            match &mut link.answering {
                Some(answering) => answering.await,
                None => pending().await,
            }
        };
        tokio::select! {
            payload = link.stream.streamed(), if !is_full => Event::Streamed(payload),
            (connection, reply) = answered => Event::Answered(Box::new(connection), reply),
            () = tokio::time::sleep(wait) => Event::Time,
        }
    }

    fn take(&mut self, event: Event, node: &mut impl Node) {
        let now_ms = node.now_ms();
        match event {
            Event::Streamed(Ok(payload)) => match self.decoder.take(&payload.bytes, payload.is_cut) {
                Ok(said) => said.into_iter().for_each(|said| self.said(said, now_ms)),
                Err(reason) => {
                    // It would be read in the same way again.
                    self.is_log_gone = true;
                    self.lose(reason, node);
                }
            },
            Event::Streamed(Err(error)) => {
                self.is_log_gone = error.number() == Some(ER_MASTER_FATAL) && !is_of_other(&error);
                self.lose(self.explained(&error), node);
            }
            Event::Answered(connection, Ok(reply)) => {
                if let Some(link) = &mut self.link {
                    (link.second, link.answering) = (Some(*connection), None);
                    link.ask_next(&self.source);
                }
                match reply {
                    Reply::Probed { number, place, probed } => {
                        let Probed { identity, head, snapshot } = probed;
                        if head < place && self.identity.as_ref() == Some(&identity) {
                            let reason = format!(
                                "the log was begun anew: it ends at {head}, and was followed up to {place}"
                            );
                            self.is_log_gone = true;
                            self.follower.told(Told::Gap { reason: reason.clone() }, now_ms);
                            return self.lose(reason, node);
                        }
                        // It may be us who do not read.
                        let works = node.is_full();
                        self.follower.told(Told::Probed { number, identity, head, snapshot, works }, now_ms);
                    }
                    Reply::Catalog { changes, catalog } => self.note_catalog(changes, catalog, node),
                }
            }
            Event::Answered(_, Err(error)) => self.lose(error.with_causes(), node),
            Event::Time => {
                if let Some(link) = &mut self.link
                    && link.catalog_at <= Instant::now()
                {
                    link.catalog_at = Instant::now() + CATALOG_EVERY;
                    let changes = self.decoder.definitions.changes();
                    self.ask(Question::Catalog { changes });
                }
                self.follower.tick(now_ms);
            }
        }
    }

    fn explained(&self, error: &WireError) -> String {
        let text = error.with_causes();
        if is_of_other(error) {
            return format!(
                "{text}: another replica or server has server_id = {}, and the server keeps one of a number only: each server needs its own",
                self.number
            );
        }
        text
    }

    fn said(&mut self, said: Said, now_ms: u64) {
        let told = match said {
            Said::Entry { transaction, names } => {
                Told::Entry { position: transaction.end, transaction, names, is_own: false }
            }
            Said::Passed(position) => Told::Passed { position },
            Said::Gap(reason) => Told::Gap { reason },
            Said::Changed => {
                if let Some(link) = &mut self.link {
                    link.catalog_at = Instant::now();
                }
                return;
            }
        };
        self.follower.told(told, now_ms);
    }
}

impl Link {
    fn ask_next(&mut self, source: &Source) {
        if self.answering.is_some() || self.questions.is_empty() {
            return;
        }
        let Some(mut connection) = self.second.take() else { return };
        let question = self.questions.remove(0);
        let (server, tables, user) =
            (self.server.clone(), Arc::clone(&source.tables), source.address.user.clone());
        self.answering = Some(Box::pin(async move {
            let reply = match question {
                Question::Probe { number, place } => {
                    let probed = server.probe(&mut connection).await;
                    probed.map(|probed| Reply::Probed { number, place, probed })
                }
                Question::Catalog { changes } => Catalog::read(&mut connection, &tables, &user, false)
                    .await
                    .map(|catalog| Reply::Catalog { changes, catalog }),
            };
            (connection, reply)
        }));
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

/// Whether the server has ended a stream for another one of the same number, as it says, or by its number of a connection that was
/// ended.
fn is_of_other(error: &WireError) -> bool {
    let is_said = |message: &str| message.contains("same server_uuid/server_id");
    matches!(error, WireError::Server { number, message } if *number == ER_KILLED || is_said(message))
}

/// Asks for the log from a place on.
fn dump(base: &str, place: Place, number: u32) -> Result<Vec<u8>, WireError> {
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
