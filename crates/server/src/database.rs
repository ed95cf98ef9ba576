//! A database of any kind whose log is followed.

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
    /// The database of the log `settings`. None: the log has no database, or this build lacks the feature for
    /// it; such a rule file is refused. `table`: which parts of a table are followed; `outlives`: see
    /// [`postgres::Source`].
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

    /// Starts following at the position where another node ended.
    #[cfg(feature = "etcd")]
    pub(crate) fn at(mut self, place: Option<Box<str>>) -> Self {
        match &mut self {
            Self::Postgres(source) => source.standing = place,
            #[cfg(feature = "mysql")]
            Self::Mysql(source) => source.standing = place,
        }
        self
    }

    /// Asks the database which settings and rights are missing; each entry has the statement that corrects
    /// it.
    ///
    /// # Errors
    /// The database cannot be reached, or refuses the login or the query.
    pub(crate) async fn check(&self, password: Option<&str>) -> Result<Vec<Missing>, WireError> {
        let password = |address: &Address| password.map(str::to_owned).or_else(|| address.password.clone());
        match self {
            Self::Postgres(source) => source.check(password(&source.address).as_deref()).await,
            #[cfg(feature = "mysql")]
            Self::Mysql(source) => source.check(password(&source.address).as_deref()).await,
        }
    }

    /// Follows the log until `wished` says to stop, or its sender is dropped.
    pub(crate) async fn follow(self, node: &mut impl Node, wished: watch::Receiver<SourceRequest>) {
        match self {
            Self::Postgres(source) => source.follow(node, wished).await,
            #[cfg(feature = "mysql")]
            Self::Mysql(source) => source.follow(node, wished).await,
        }
    }
}
