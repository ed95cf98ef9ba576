//! Where a MySQL or MariaDB server is, and which user follows it.

use std::fmt;

use crate::postgres::SslMode;
use crate::postgres::address::decode;

/// A MySQL or MariaDB server, a database there, and a user.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// A name, an IP address, or the path of a Unix socket (begins with `/`).
    pub host: String,
    /// The port, 1 to 65,535.
    pub port: u16,
    /// The user that follows.
    pub user: String,
    /// The database of tables that are named without one.
    pub database: String,
    /// Its password, if it has one.
    pub password: Option<String>,
    /// Whether the connection is encrypted.
    pub ssl: SslMode,
}

/// What is wrong with an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}: write mysql://USER@HOST:3306/DATABASE")]
pub struct AddressError(String);

impl fmt::Debug for Address {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Address {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, host, port, database, .. } = self;
        if host.starts_with('/') {
            return write!(f, "mysql://{user}@/{database}?host={host}");
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        write!(f, "mysql://{user}@{host}:{port}/{database}")
    }
}

impl Address {
    /// Whether it is the address of such a server: `mysql://` or `mariadb://`.
    pub fn is_one(text: &str) -> bool {
        text.starts_with("mysql://") || text.starts_with("mariadb://")
    }

    /// Reads `mysql://USER[:PASSWORD]@HOST[:PORT]/DATABASE[?sslmode=…&host=/SOCKET]`; `mariadb://` is the same. The port is 3306 if it is
    /// left out.
    ///
    /// # Errors
    /// What is missing or unknown.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let refuse = |what: &str| Err(AddressError(what.to_owned()));
        let decoded = |text: &str| {
            decode(text).map_err(|_| {
                AddressError(
                    "the address has a % that two digits do not follow (a % itself is %25), or is not UTF-8"
                        .to_owned(),
                )
            })
        };
        let Some(rest) = text.strip_prefix("mysql://").or_else(|| text.strip_prefix("mariadb://")) else {
            return refuse("the address does not begin with mysql://");
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (server, database) = rest.split_once('/').unwrap_or((rest, ""));
        let Some((login, server)) = server.rsplit_once('@') else {
            return refuse("the address names no user");
        };
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (decoded(user)?, Some(decoded(password)?)),
            None => (decoded(login)?, None),
        };
        if user.is_empty() {
            return refuse("the address names no user");
        }
        let (host, port) = if let Some(rest) = server.strip_prefix('[') {
            let Some((host, port)) = rest.split_once(']') else {
                return refuse("the host has no closing bracket");
            };
            (host.to_owned(), port.strip_prefix(':').unwrap_or(port))
        } else {
            let (host, port) = server.split_once(':').unwrap_or((server, ""));
            (decoded(host)?, port)
        };
        let port = match port {
            "" => 3306,
            _ => match port.parse() {
                Ok(port) if port > 0 => port,
                _ => return Err(AddressError(format!("port {port} is not 1 to 65535"))),
            },
        };
        let (mut host, mut ssl) = (host, SslMode::default());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("sslmode", name)) => {
                    ssl = SslMode::of(name).map_err(|_| {
                        AddressError(
                            "sslmode is not disable, prefer, require, verify-ca or verify-full".to_owned(),
                        )
                    })?;
                }
                Some(("host", path)) => host = decoded(path)?,
                // Its value may be a password.
                Some((name, _)) => {
                    return Err(AddressError(format!("the address has an unknown option `{name}`")));
                }
                None => return refuse("the address has an option without a value"),
            }
        }
        if host.is_empty() {
            return refuse("the address names no host");
        }
        let database = decoded(database)?;
        if database.is_empty() {
            return refuse("the address names no database");
        }
        Ok(Self { host, port, user, database, password, ssl })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_and_short_addresses() {
        let whole =
            Address::parse("mysql://cattle:p%40s%25@db.internal:3307/shop?sslmode=verify-full").unwrap();
        assert_eq!(whole.password.as_deref(), Some("p@s%"));
        assert_eq!((whole.host.as_str(), whole.port, whole.ssl), ("db.internal", 3307, SslMode::VerifyFull));
        assert!(!format!("{whole} {whole:?}").contains("p@s%"), "the password is shown");
        let short = Address::parse("mariadb://cattle@[::1]/shop").unwrap();
        assert_eq!(short.to_string(), "mysql://cattle@[::1]:3306/shop");
        let socket = Address::parse("mysql://cattle@/shop?host=%2Frun%2Fmysqld.sock").unwrap();
        assert_eq!(socket.host, "/run/mysqld.sock");
        assert_eq!(Address::parse(&socket.to_string()), Ok(socket));
    }

    #[test]
    fn what_is_wrong_is_named_without_the_password() {
        for (text, part) in [
            ("postgres://a:SECRET@b/c", "mysql://"),
            ("mysql://db/shop", "no user"),
            ("mysql://:SECRET@db/shop", "no user"),
            ("mysql://a:SECRET@/shop", "no host"),
            ("mysql://a:SECRET@db", "no database"),
            ("mysql://a:SECRET@db:0/shop", "port 0"),
            ("mysql://a:SECRET%4@db/shop", "%"),
            ("mysql://a@db/shop?sslmode=on", "sslmode"),
            ("mysql://a@db/shop?password=SECRET", "`password`"),
            ("mysql://a:SECRET@[::1/shop", "bracket"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("SECRET"), "{text}: {error}");
        }
    }
}
