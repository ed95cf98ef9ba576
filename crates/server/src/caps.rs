//! Limits of connections that are not options.

use cattlegrid_protocol::Limits;

/// Limits of connections that are not options. Tests lower them to reach them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caps {
    /// The buffer of a command that arrives in pieces grows by at most this many bytes, or doubles if that is
    /// more.
    pub(crate) growth_bytes: usize,
    /// The most bytes of input that all connections together may keep.
    pub(crate) uploads_bytes: usize,
    /// The most bytes of replies of one connection in one turn; the rest waits for the next turn.
    pub(crate) output_bytes: usize,
    /// Keys of `get`s of one connection in one turn. The `get` that reaches this number may go on for as many
    /// keys again.
    pub(crate) turn_keys: usize,
    /// The most bytes of replies of one connection in one turn while memory for unsent output is scarce. Also
    /// the limit of replies that are kept behind a request that waits.
    pub(crate) scarce_output_bytes: usize,
    /// The most bytes of replies that are encrypted while earlier encrypted bytes are unsent.
    pub(crate) encrypted_bytes: usize,
    /// The most bytes of unsent output of all connections together.
    pub(crate) unsent_bytes: usize,
    /// Bytes of kept replies behind a request that waits, at which no further command is executed.
    pub(crate) read_ahead_bytes: usize,
    /// Size of the buffer into which all connections of a lane receive, in bytes.
    pub(crate) receive_bytes: usize,
    /// The least free room in that buffer for a receive, in bytes.
    pub(crate) receive_room_bytes: usize,
    /// The most bytes of one receive while kept input is near its limit.
    pub(crate) scarce_receive_bytes: usize,
    /// The longest line of `get gets gat gats`, in bytes.
    pub(crate) get_line_bytes: usize,
    /// Bytes that are received into the common buffer while a value is received into pages of its own.
    pub(crate) begin_bytes: usize,
    /// Bytes for which an arriving value takes pages at first.
    pub(crate) piece_bytes: usize,
    /// All incomplete values together may have 1/`arriving_part` of the memory.
    pub(crate) arriving_part: usize,
}

impl Caps {
    /// The limits of a server whose items have at most `item_bytes_max` bytes, and its unsent output
    /// `unsent_bytes`.
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
