//! Where a database is, and which role follows it: the address as libpq writes it.

use std::fmt;

/// A PostgreSQL server, a database there, and a user.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// A name, an IP address, or the directory of a Unix socket (begins with `/`).
    pub host: String,
    /// The port, 1 to 65,535.
    pub port: u16,
    /// The role that follows.
    pub user: String,
    /// The database.
    pub database: String,
    /// Its password, if the server asks for one.
    pub password: Option<String>,
    /// Whether the connection is encrypted.
    pub ssl: SslMode,
}

/// Whether a connection is encrypted, and what of the server's certificate is verified. The names are libpq's.
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
    /// As `VerifyCa`, and it must be for the host's name.
    VerifyFull,
}

/// What is wrong with an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}: write postgres://USER@HOST:5432/DATABASE")]
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
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        write!(f, "postgres://{user}@{host}:{port}/{database}")
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
    pub fn of(name: &str) -> Result<Self, AddressError> {
        Ok(match name {
            "disable" => Self::Disable,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => {
                let known = "disable, prefer, require, verify-ca or verify-full";
                return Err(AddressError(format!("sslmode={name} is not {known}")));
            }
        })
    }
}

impl Address {
    /// Reads `postgres://USER[:PASSWORD]@HOST[:PORT]/DATABASE[?sslmode=…&host=/DIRECTORY]`. The port is 5432 if it is left out, the
    /// database the user's name.
    ///
    /// # Errors
    /// What is missing or unknown.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let refuse = |what: String| Err(AddressError(what));
        let Some(rest) = text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://"))
        else {
            return refuse("the address does not begin with postgres://".to_owned());
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (server, database) = rest.split_once('/').unwrap_or((rest, ""));
        let Some((login, server)) = server.rsplit_once('@') else {
            return refuse("the address names no user".to_owned());
        };
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => {
                let decoded = decode(password);
                let hidden = |_| {
                    AddressError("the password has a % that two digits do not follow (a % itself is %25), or is not UTF-8".to_owned())
                };
                (decode(user)?, Some(decoded.map_err(hidden)?))
            }
            None => (decode(login)?, None),
        };
        if user.is_empty() {
            return refuse("the address names no user".to_owned());
        }
        let (mut host, port) = host_and_port(server)?;
        let database = if database.is_empty() { user.clone() } else { decode(database)? };
        let mut ssl = SslMode::default();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("sslmode", name)) => ssl = SslMode::of(name)?,
                Some(("host", directory)) => host = decode(directory)?,
                // Its value may be a password.
                Some((name, _)) => return refuse(format!("the address has an unknown option `{name}`")),
                None => return refuse("the address has an option without a value".to_owned()),
            }
        }
        if host.is_empty() {
            return refuse("the address names no host".to_owned());
        }
        Ok(Self { host, port, user, database, password, ssl })
    }
}

fn host_and_port(server: &str) -> Result<(String, u16), AddressError> {
    let (host, port) = if let Some(rest) = server.strip_prefix('[') {
        let Some((host, port)) = rest.split_once(']') else {
            return Err(AddressError(format!("[{rest} has no closing bracket")));
        };
        (host.to_owned(), port.strip_prefix(':').unwrap_or(port))
    } else {
        let (host, port) = server.split_once(':').unwrap_or((server, ""));
        (decode(host)?, port)
    };
    match port {
        "" => Ok((host, 5432)),
        _ => match port.parse() {
            Ok(port) if port > 0 => Ok((host, port)),
            _ => Err(AddressError(format!("port {port} is not 1 to 65535"))),
        },
    }
}

/// `%40` is `@`.
pub(crate) fn decode(text: &str) -> Result<String, AddressError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let Some(byte) = byte else {
            return Err(AddressError(format!(
                "`{text}` has a % that two digits do not follow (a % itself is %25)"
            )));
        };
        bytes.push(byte);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| AddressError(format!("`{text}` is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_and_short_addresses() {
        let whole =
            Address::parse("postgres://cattle:p%40s%25@db.internal:6432/shop?sslmode=verify-full").unwrap();
        assert_eq!(whole.password.as_deref(), Some("p@s%"));
        assert_eq!((whole.host.as_str(), whole.port, whole.ssl), ("db.internal", 6432, SslMode::VerifyFull));
        assert_eq!(format!("{whole} {whole:?}").matches("p@s%").count(), 0, "the password is shown");
        let short = Address::parse("postgresql://cattle@[::1]").unwrap();
        assert_eq!((short.host.as_str(), short.port, short.database.as_str()), ("::1", 5432, "cattle"));
        assert_eq!(short.to_string(), "postgres://cattle@[::1]:5432/cattle");
        let socket = Address::parse("postgres://cattle@/shop?host=%2Frun%2Fpostgresql").unwrap();
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
            let error = Address::parse(text).unwrap_err().to_string();
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
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(!error.contains("SECRET"), "{text}: {error}");
        }
    }
}
