//! The database of a log of the rule file, whichever it is.

use std::sync::Arc;

use cattlegrid_config::{FollowOrigin, FollowSettings, FollowTable};
use cattlegrid_follow::postgres::{Missing, Table, TlsError, client_config};
use cattlegrid_follow::{Address, Node, Settings, SourceRequest, WireError, postgres};
use tokio::sync::watch;

/// A database whose log is followed.
pub(crate) enum Database {
    Postgres(Box<postgres::Source>),
    #[cfg(feature = "mysql")]
    Mysql(Box<cattlegrid_follow::mysql::Source>),
}

impl Database {
    /// That of a log; None: it is of no database, or this server was built without the feature for it, and the rule file is refused. `table`: what of a
    /// table is followed; `outlives`: see [`postgres::Source`].
    ///
    /// # Errors
    /// The file of certificates cannot be read.
    pub(crate) fn of(
        settings: &FollowSettings,
        table: fn(&FollowTable) -> Table,
        outlives: bool,
    ) -> Result<Option<Self>, TlsError> {
        let tables: Arc<[Table]> = settings.tables().iter().map(table).collect();
        let tls =
            |address: &Address| client_config(address.ssl, settings.ssl_ca.as_deref(), &address.host, None);
        let how = Settings {
            max_lag_ms: u64::try_from(settings.max_lag.as_millis()).unwrap_or(u64::MAX),
            again_ms: u64::try_from(settings.again.as_millis()).unwrap_or(u64::MAX),
        };
        Ok(match &settings.origin {
            FollowOrigin::Postgres(log) => Some(Self::Postgres(Box::new(postgres::Source {
                address: log.address.clone(),
                publication: log.publication.clone(),
                tables,
                slot: log.slot.clone(),
                outlives,
                tls: tls(&log.address)?,
                settings: how,
                standing: None,
            }))),
            #[cfg(feature = "mysql")]
            FollowOrigin::Mysql(log) => Some(Self::Mysql(Box::new(cattlegrid_follow::mysql::Source {
                address: log.address.clone(),
                tables,
                server_id: log.server_id,
                tls: tls(&log.address)?,
                settings: how,
                standing: None,
            }))),
            _ => None,
        })
    }

    /// Goes on where another node stood.
    #[cfg(feature = "etcd")]
    pub(crate) fn at(mut self, place: Option<Box<str>>) -> Self {
        match &mut self {
            Self::Postgres(source) => source.standing = place,
            #[cfg(feature = "mysql")]
            Self::Mysql(source) => source.standing = place,
        }
        self
    }

    /// What it lacks, each with the statement that mends it.
    ///
    /// # Errors
    /// It cannot be reached, or refuses.
    pub(crate) async fn check(&self, password: Option<&str>) -> Result<Vec<Missing>, WireError> {
        let password = |address: &Address| password.map(str::to_owned).or_else(|| address.password.clone());
        match self {
            Self::Postgres(source) => source.check(password(&source.address).as_deref()).await,
            #[cfg(feature = "mysql")]
            Self::Mysql(source) => source.check(password(&source.address).as_deref()).await,
        }
    }

    /// Follows it until it is told to stop, or the sender is gone.
    pub(crate) async fn follow(self, node: &mut impl Node, wished: watch::Receiver<SourceRequest>) {
        match self {
            Self::Postgres(source) => source.follow(node, wished).await,
            #[cfg(feature = "mysql")]
            Self::Mysql(source) => source.follow(node, wished).await,
        }
    }
}
