//! The text of error replies, without CRLF: [`line`](fn@super::line) writes them.
//!
//! They are memcached 1.6.45's own where it has one for the case: clients compare them.

/// No such command.
pub const ERROR: &str = "ERROR";
/// Too few words, a key that is too long, a bad length, a blank line.
pub const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
/// A data block that does not end where its length says.
pub const BAD_DATA_CHUNK: &str = "CLIENT_ERROR bad data chunk";
/// `touch gat flush_all`.
pub const INVALID_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
/// `incr decr`.
pub const INVALID_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
/// `incr decr ma` on a value that is not a decimal number of 64 bits.
pub const NOT_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";
/// An unknown meta flag.
pub const INVALID_FLAG: &str = "CLIENT_ERROR invalid flag";
/// A meta flag for the second time.
pub const DUPLICATE_FLAG: &str = "CLIENT_ERROR duplicate flag";
/// The error of `ma` for any bad flag.
pub const INVALID_OR_DUPLICATE: &str = "CLIENT_ERROR invalid or duplicate flag";
/// A meta flag whose token is not a number.
pub const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
/// More than 20 words in a meta command.
pub const TOO_MANY_FLAGS: &str = "CLIENT_ERROR options flags are too long";
/// An opaque of more than 31 bytes.
pub const OPAQUE_TOO_LONG: &str = "CLIENT_ERROR opaque token too long";
/// A base64 key that cannot be decoded.
pub const BAD_KEY: &str = "CLIENT_ERROR error decoding key";
/// `J` elsewhere than on `ma`.
pub const INVALID_INITIAL: &str = "CLIENT_ERROR invalid numeric initial value";
/// `D` elsewhere than on `ma`.
pub const INVALID_META_DELTA: &str = "CLIENT_ERROR invalid numeric delta value";
/// `ms M`.
pub const INVALID_MS_MODE: &str = "CLIENT_ERROR invalid mode for ms M token";
/// `ma M`.
pub const INVALID_MA_MODE: &str = "CLIENT_ERROR invalid mode for ma M token";
/// `shutdown` with a word it does not know.
pub const INVALID_SHUTDOWN: &str = "CLIENT_ERROR invalid shutdown mode";
/// A line that is longer than the memory for it; the connection closes after it.
pub const OUT_OF_MEMORY_READING: &str = "SERVER_ERROR out of memory reading request";
/// A data block above the limit.
pub const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
/// Waiting would not help, and the rule says not to answer a miss.
pub const BUSY: &str = "SERVER_ERROR busy";
/// No room could be made for an item.
pub const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory storing object";
/// `flush_all` under `-F`.
pub const FLUSH_NOT_ALLOWED: &str = "CLIENT_ERROR flush_all not allowed";
/// `watch` under `-W`.
pub const WATCH_NOT_ALLOWED: &str = "CLIENT_ERROR watch commands not allowed";
/// `shutdown` without `-A`.
pub const SHUTDOWN_NOT_ENABLED: &str = "SERVER_ERROR: shutdown not enabled";
/// Any command except the authenticating `set`, under `-Y`.
pub const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";
/// The wrong user or password.
pub const AUTHENTICATION_FAILURE: &str = "CLIENT_ERROR authentication failure";
/// Sent to a connection above the limit, which is then closed.
pub const TOO_MANY_CONNECTIONS: &str = "ERROR Too many open connections";
/// A request that its user has no right to, or whose key lies outside the user's prefix.
pub const NOT_ALLOWED: &str = "CLIENT_ERROR not allowed";
