//! What tests of types call: a server of their own, as one client sees it. The program that runs them has one.

/// A server, empty at first, and its clock, which only the test moves.
pub trait TestServer {
    /// The clock: Unix time in milliseconds.
    fn now_ms(&self) -> u64;

    /// Sets the clock, forward or back.
    ///
    /// # Errors
    /// It cannot be set to this time.
    fn set_time(&mut self, unix_ms: u64) -> Result<(), String>;

    /// Makes a call by its name, as clients write it.
    fn call_name(&mut self, name: &[u8]) -> TestReply;

    /// Makes a call with keys and arguments of any bytes.
    fn call(&mut self, object_type: &str, method: &str, key: &[u8], arguments: &[Vec<u8>]) -> TestReply;

    /// Reads an ordinary key.
    fn plain(&mut self, key: &[u8]) -> TestReply;

    /// Stores an ordinary key.
    fn set_plain(&mut self, key: &[u8], value: &[u8]) -> TestReply;

    /// What calls have left, for the test to take.
    fn seen(&mut self) -> &mut Seen;
}

/// What a client has been answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestReply {
    /// A value.
    Value(Vec<u8>),
    /// A miss, or that something is done.
    None,
    /// The line of an error, without its end.
    Error(String),
    /// Why no client can ask for this.
    Wrong(String),
}

/// What calls have left besides their replies, in order.
#[derive(Debug, Default)]
pub struct Seen {
    /// Names and texts of events, in JSON.
    pub events: Vec<(String, String)>,
    /// Lines of the log.
    pub log: Vec<String>,
    /// Keys that a loader would have been asked for.
    pub loads: Vec<Vec<u8>>,
}
