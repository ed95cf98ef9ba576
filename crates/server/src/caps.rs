//! Limits of connections that are no options.

use cattlegrid_protocol::Limits;

/// Limits of connections that are no options. Tests lower them, so that they are reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    /// The buffer of a command that arrives in pieces grows by this many bytes at most, or to twice its size.
    pub(crate) growth_bytes: usize,
    /// Most bytes of all input together that is kept.
    pub(crate) uploads_bytes: usize,
    /// Replies of one connection in one turn, in bytes; the rest has to wait for the next turn.
    pub(crate) output_bytes: usize,
    /// Keys of `get`s of one connection in one turn: the `get` that reaches this many may go on for as many.
    pub(crate) turn_keys: usize,
    /// Replies of one connection in one turn while unsent output is scarce, in bytes; also what is kept then of what was executed behind a request that waits.
    pub(crate) scarce_output_bytes: usize,
    /// Most bytes of replies that are encrypted before the socket has taken what was encrypted before.
    pub(crate) encrypted_bytes: usize,
    /// Most bytes of all unsent output together.
    pub(crate) unsent_bytes: usize,
    /// Bytes kept of what was executed behind a request that waits; no more is executed then.
    pub(crate) read_ahead_bytes: usize,
    /// Bytes of the buffer that a lane's connections share to receive into.
    pub(crate) receive_bytes: usize,
    /// Least room in it for a receive, in bytes.
    pub(crate) receive_room_bytes: usize,
    /// Most bytes of a receive while input that is kept is near its cap.
    pub(crate) scarce_receive_bytes: usize,
    /// Longest line of `get gets gat gats`, in bytes.
    pub(crate) get_line_bytes: usize,
    /// Bytes of the receive behind a value that has pages of its own.
    pub(crate) begin_bytes: usize,
    /// Bytes for which a value that arrives takes pages at first.
    pub(crate) piece_bytes: usize,
    /// All values that are not whole have at most one part in this many of the memory.
    pub(crate) arriving_part: usize,
}

impl Caps {
    /// Those of a server whose items have `item_bytes_max` at most, and its unsent output `unsent_bytes`.
    pub(crate) fn new(item_bytes_max: usize, unsent_bytes: usize) -> Self {
        Self {
            growth_bytes: 64 << 10,
            uploads_bytes: (64 << 20).max(2 * item_bytes_max),
            output_bytes: 64 << 10,
            turn_keys: 1024,
            scarce_output_bytes: 4 << 10,
            encrypted_bytes: 64 << 10,
            unsent_bytes,
            read_ahead_bytes: 256 << 10,
            receive_bytes: 256 << 10,
            receive_room_bytes: 16 << 10,
            scarce_receive_bytes: 2 << 10,
            get_line_bytes: Limits::default().max_get_line_bytes,
            begin_bytes: 4 << 10,
            piece_bytes: 64 << 10,
            arriving_part: 4,
        }
    }
}
