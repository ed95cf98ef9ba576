//! Where a database is, and which user follows it.

use std::fmt;

use percent_encoding::percent_decode_str;

/// The database products that can be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    Mysql,
}

/// A server, a database there, and a user.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// The product of the server.
    pub product: Product,
    /// A name, an IP address, or begins with `/`: the directory of PostgreSQL's Unix socket, or the path of
    /// that of MySQL.
    pub host: String,
    /// The port, 1 to 65,535.
    pub port: u16,
    /// The user that follows.
    pub user: String,
    /// The database; of MySQL, that of tables that are named without one.
    pub database: String,
    /// The password, if the server asks for one.
    pub password: Option<String>,
    /// Whether the connection is encrypted.
    pub ssl: SslMode,
}

/// Whether a connection is encrypted, and what of the server's certificate is verified. The names are
/// libpq's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SslMode {
    /// Never.
    Disable,
    /// If the server can; its certificate is not verified.
    #[default]
    Prefer,
    /// Always; the certificate is not verified.
    Require,
    /// Always; the certificate must be signed by an authority that is trusted.
    VerifyCa,
    /// Verifies as `VerifyCa` does, and that the certificate is for the host's name.
    VerifyFull,
}

/// The reason why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: write {}", product.example())]
pub struct AddressError {
    what: String,
    product: Product,
}

impl Product {
    /// The schemes of addresses; the first one is used when an address is written.
    const fn schemes(self) -> [&'static str; 2] {
        match self {
            Self::Postgres => ["postgres://", "postgresql://"],
            Self::Mysql => ["mysql://", "mariadb://"],
        }
    }

    const fn port(self) -> u16 {
        match self {
            Self::Postgres => 5432,
            Self::Mysql => 3306,
        }
    }

    fn example(self) -> String {
        format!("{}USER@HOST:{}/DATABASE", self.schemes()[0], self.port())
    }

    fn without_scheme(self, text: &str) -> Option<&str> {
        self.schemes().into_iter().find_map(|scheme| text.strip_prefix(scheme))
    }

    /// Whether an address begins as those of its servers do.
    pub fn is_of(self, address: &str) -> bool {
        self.without_scheme(address).is_some()
    }
}

impl fmt::Debug for Address {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Address {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { product, user, host, port, database, .. } = self;
        let scheme = product.schemes()[0];
        if *product == Product::Mysql && host.starts_with('/') {
            return write!(f, "{scheme}{user}@/{database}?host={host}");
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        write!(f, "{scheme}{user}@{host}:{port}/{database}")
    }
}

impl SslMode {
    /// libpq's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }

    /// By libpq's name.
    ///
    /// # Errors
    /// An unknown name, with those there are.
    pub fn of(name: &str) -> Result<Self, String> {
        Ok(match name {
            "disable" => Self::Disable,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => {
                let known = "disable, prefer, require, verify-ca or verify-full";
                return Err(format!("sslmode={name} is not {known}"));
            }
        })
    }
}

impl Address {
    /// Reads `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE[?sslmode=…&host=/SOCKET]`; `postgresql://`,
    /// `mysql://` and `mariadb://` are read the same. The port is 5432 or 3306 if it is left out,
    /// PostgreSQL's database the user's name.
    ///
    /// # Errors
    /// What is missing or unknown.
    pub fn parse(product: Product, text: &str) -> Result<Self, AddressError> {
        Self::read(product, text).map_err(|what| AddressError { what, product })
    }

    fn read(product: Product, text: &str) -> Result<Self, String> {
        let refuse = |what: &str| Err(what.to_owned());
        let Some(rest) = product.without_scheme(text) else {
            return Err(format!("the address does not begin with {}", product.schemes()[0]));
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (server, database) = rest.split_once('/').unwrap_or((rest, ""));
        let Some((login, server)) = server.rsplit_once('@') else {
            return refuse("the address names no user");
        };
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => {
                let hidden = |_| {
                    "the password has a % that two digits do not follow (a % itself is %25), or is not UTF-8"
                        .to_owned()
                };
                (decode(user)?, Some(decode(password).map_err(hidden)?))
            }
            None => (decode(login)?, None),
        };
        if user.is_empty() {
            return refuse("the address names no user");
        }
        let (mut host, port) = host_and_port(server, product.port())?;
        let database = match product {
            Product::Postgres if database.is_empty() => user.clone(),
            Product::Postgres | Product::Mysql => decode(database)?,
        };
        let mut ssl = SslMode::default();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("sslmode", name)) => ssl = SslMode::of(name)?,
                Some(("host", path)) => host = decode(path)?,
                // Its value may be a password.
                Some((name, _)) => return Err(format!("the address has an unknown option `{name}`")),
                None => return refuse("the address has an option without a value"),
            }
        }
        if host.is_empty() {
            return refuse("the address names no host");
        }
        if database.is_empty() {
            return refuse("the address names no database");
        }
        Ok(Self { product, host, port, user, database, password, ssl })
    }
}

fn host_and_port(server: &str, default: u16) -> Result<(String, u16), String> {
    let (host, port) = if let Some(rest) = server.strip_prefix('[') {
        let Some((host, port)) = rest.split_once(']') else {
            return Err(format!("[{rest} has no closing bracket"));
        };
        (host.to_owned(), port.strip_prefix(':').unwrap_or(port))
    } else {
        let (host, port) = server.split_once(':').unwrap_or((server, ""));
        (decode(host)?, port)
    };
    match port {
        "" => Ok((host, default)),
        _ => match port.parse() {
            Ok(port) if port > 0 => Ok((host, port)),
            _ => Err(format!("port {port} is not 1 to 65535")),
        },
    }
}

/// Decodes percent codes: `%40` is `@`. An error is text for the user.
pub(crate) fn decode(text: &str) -> Result<String, String> {
    let is_code =
        |rest: &str| rest.as_bytes().get(..2).is_some_and(|code| code.iter().all(u8::is_ascii_hexdigit));
    if !text.split('%').skip(1).all(is_code) {
        return Err(format!("`{text}` has a % that two digits do not follow (a % itself is %25)"));
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| format!("`{text}` is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn postgres(text: &str) -> Result<Address, AddressError> {
        Address::parse(Product::Postgres, text)
    }

    fn mysql(text: &str) -> Result<Address, AddressError> {
        Address::parse(Product::Mysql, text)
    }

    #[test]
    fn whole_and_short_addresses() {
        let whole = postgres("postgres://cattle:p%40s%25@db.internal:6432/shop?sslmode=verify-full").unwrap();
        assert_eq!(whole.password.as_deref(), Some("p@s%"));
        assert_eq!((whole.host.as_str(), whole.port, whole.ssl), ("db.internal", 6432, SslMode::VerifyFull));
        assert_eq!(format!("{whole} {whole:?}").matches("p@s%").count(), 0, "the password is shown");
        let short = postgres("postgresql://cattle@[::1]").unwrap();
        assert_eq!((short.host.as_str(), short.port, short.database.as_str()), ("::1", 5432, "cattle"));
        assert_eq!(short.to_string(), "postgres://cattle@[::1]:5432/cattle");
        let socket = postgres("postgres://cattle@/shop?host=%2Frun%2Fpostgresql").unwrap();
        assert_eq!(socket.host, "/run/postgresql");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("mysql://a@b/c", "postgres://"),
            ("postgres://db/shop", "no user"),
            ("postgres://@db/shop", "no user"),
            ("postgres://a@/shop", "no host"),
            ("postgres://a@db:0/shop", "port 0"),
            ("postgres://a@db:x/shop", "port x"),
            ("postgres://a@db/shop?sslmode=on", "sslmode=on"),
            ("postgres://a@db/shop?ssl=1", "`ssl`"),
            ("postgres://a@db/shop?ssl", "without a value"),
            ("postgres://a:%4@db/shop", "%"),
            ("postgres://a@[::1/shop", "bracket"),
        ] {
            let error = postgres(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn no_error_shows_a_password() {
        for text in [
            "postgres://a:SECRET%zz@db/shop",
            "postgres://a:%ffSECRET@db/shop",
            "postgres://a@db/shop?password=SECRET",
            "postgres://a:SECRET@db:x/shop",
            "postgres://a:SECRET@/shop",
            "postgres://a:SEC/SECRET@db/shop",
            "postgres://a:SEC?SECRET@db/shop",
            "postgres://a:SEC?x=SECRET@db/shop",
            "postgres://a:SEC@SECRET@db:0/shop",
            "postgres://:SECRET@db/shop",
            "postgres://a:SECRET@db/sh%zop",
        ] {
            let error = postgres(text).unwrap_err().to_string();
            assert!(!error.contains("SECRET"), "{text}: {error}");
        }
    }

    #[test]
    fn whole_and_short_addresses_of_mysql() {
        let whole = mysql("mysql://cattle:p%40s%25@db.internal:3307/shop?sslmode=verify-full").unwrap();
        assert_eq!(whole.password.as_deref(), Some("p@s%"));
        assert_eq!((whole.host.as_str(), whole.port, whole.ssl), ("db.internal", 3307, SslMode::VerifyFull));
        assert!(!format!("{whole} {whole:?}").contains("p@s%"), "the password is shown");
        let short = mysql("mariadb://cattle@[::1]/shop").unwrap();
        assert_eq!(short.to_string(), "mysql://cattle@[::1]:3306/shop");
        let socket = mysql("mysql://cattle@/shop?host=%2Frun%2Fmysqld.sock").unwrap();
        assert_eq!(socket.host, "/run/mysqld.sock");
        assert_eq!(mysql(&socket.to_string()), Ok(socket));
    }

    #[test]
    fn what_is_wrong_with_those_of_mysql_is_named_without_the_password() {
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
            let error = mysql(text).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("SECRET"), "{text}: {error}");
        }
    }
}
