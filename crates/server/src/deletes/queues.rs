//! Waiting commands for each memcached server, in the order of the log, and the position up to which all
//! servers have executed the log.
//!
//! Sans-io: `link.rs` takes the commands, and reports their replies.
//!
//! # Invariants
//! * An order is done when every server has answered each of its commands, or a later `flush_all` in their
//!   place.
//! * A command that was sent and not answered is sent again, before all later commands.
//! * Commands for servers that do not answer take at most [`BYTES_MAX`]. The log is not read while more than
//!   [`FULL_BYTES`] wait for servers that answer. So those take at most that and one transaction.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use cattlegrid_config::OnGap;

/// The most memory of waiting commands of all servers, in bytes: about 500,000 keys.
pub(super) const BYTES_MAX: usize = 80 << 20;

/// Memory of commands that wait for answering servers, in bytes, from which on the log is not read.
const FULL_BYTES: usize = 16 << 20;

/// Memory of a command besides its key, in bytes: its places in the queue and in the set, and the allocator's
/// overhead.
const COMMAND_BYTES: usize = 120;

/// The commands for all servers.
#[derive(Debug)]
pub(super) struct Queues {
    servers: Vec<ServerQueue>,
    /// The number of orders so far.
    given: u64,
    bytes: usize,
    bytes_max: usize,
    overflow: Overflow,
}

/// What happens to a server for whose commands there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overflow {
    /// The log has the missing commands, and sends them again; no position is acknowledged meanwhile.
    Again,
    /// The commands are lost, which is a gap.
    Gap(OnGap),
}

#[derive(Debug, Default)]
struct ServerQueue {
    waiting: VecDeque<Command>,
    /// The keys in `waiting`.
    keys: HashSet<Arc<[u8]>>,
    /// Commands without a reply, in order.
    sent: VecDeque<Command>,
    bytes: usize,
    /// The first order whose commands are missing and must be repeated.
    lacks: Option<u64>,
    /// Whether the server answers.
    is_up: bool,
}

#[derive(Debug, Clone)]
struct Command {
    order: u64,
    what: CommandKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CommandKind {
    Delete(Arc<[u8]>),
    Flush,
}

/// The meaning of a server's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServerReply {
    /// The key is deleted. `was_there`: it had a value.
    Deleted { was_there: bool },
    /// The server is empty.
    Flushed,
    /// The server refuses `flush_all`.
    FlushRefused { reply: String },
    /// The command failed, and must be sent again.
    Failed { reply: String },
}

/// There was no memory for the commands of a server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QueueFull {
    pub(super) place: usize,
    /// The number of commands that were dropped.
    pub(super) count: usize,
}

impl Command {
    fn bytes(&self) -> usize {
        match &self.what {
            CommandKind::Delete(key) => key.len() + COMMAND_BYTES,
            CommandKind::Flush => COMMAND_BYTES,
        }
    }
}

impl Queues {
    pub(super) fn new(servers: usize, overflow: Overflow) -> Self {
        let servers = (0..servers).map(|_| ServerQueue::default()).collect();
        Self { servers, given: 0, bytes: 0, bytes_max: BYTES_MAX, overflow }
    }

    /// Begins a new order, to which the following commands belong.
    pub(super) fn begin(&mut self) {
        self.given += 1;
    }

    /// The number of orders so far.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// Queues the delete of a key on a server. A key that waits already is deleted once, after both changes.
    pub(super) fn delete(&mut self, place: usize, key: &Arc<[u8]>) -> Option<QueueFull> {
        let queue = &mut self.servers[place];
        if queue.lacks.is_some() || !queue.keys.insert(Arc::clone(key)) {
            return None;
        }
        let command = Command { order: self.given, what: CommandKind::Delete(Arc::clone(key)) };
        self.bytes += queue.push(command);
        if self.bytes <= self.bytes_max {
            return None;
        }
        let down = (0..self.servers.len()).filter(|place| !self.servers[*place].is_up);
        let place = down.max_by_key(|place| self.servers[*place].bytes)?;
        let queue = &mut self.servers[place];
        let (order, count) = (queue.oldest().unwrap_or(self.given), queue.waiting.len());
        self.bytes -= queue.clear();
        match self.overflow {
            Overflow::Again => queue.lacks = Some(order),
            Overflow::Gap(OnGap::Flush) => {
                self.bytes += queue.push(Command { order, what: CommandKind::Flush });
            }
            Overflow::Gap(OnGap::Warn) => {}
        }
        Some(QueueFull { place, count })
    }

    /// Queues `flush_all` for all servers, which replaces all waiting commands.
    pub(super) fn flush(&mut self) {
        for queue in &mut self.servers {
            let order = queue.waiting.front().map(|command| command.order);
            let order = order.into_iter().chain(queue.lacks.take()).chain([self.given]).min().unwrap_or(0);
            self.bytes -= queue.clear();
            self.bytes += queue.push(Command { order, what: CommandKind::Flush });
        }
    }

    /// Notes that missing commands are being repeated from now on, or are known to be lost.
    pub(super) fn note_repetition(&mut self) {
        self.servers.iter_mut().for_each(|queue| queue.lacks = None);
    }

    /// Sets whether a server answers.
    pub(super) fn set_up(&mut self, place: usize, is_up: bool) {
        self.servers[place].is_up = is_up;
    }

    /// Whether so much waits for answering servers that the log must not be read.
    pub(super) fn is_full(&self) -> bool {
        self.servers.iter().filter(|queue| queue.is_up).map(|queue| queue.bytes).sum::<usize>() > FULL_BYTES
    }

    /// A server that answers again and has missing commands that must be repeated.
    pub(super) fn needs_repetition(&self) -> Option<usize> {
        self.servers.iter().position(|queue| queue.is_up && queue.lacks.is_some())
    }

    /// Whether a server has missing commands that must be repeated, and is not known to answer.
    pub(super) fn needs_check(&self, place: usize) -> bool {
        self.servers[place].lacks.is_some() && !self.servers[place].is_up
    }

    /// Whether a server has missing commands that must be repeated.
    pub(super) fn is_incomplete(&self, place: usize) -> bool {
        self.servers[place].lacks.is_some()
    }

    /// Takes the next commands for a server, at most `most`, as they are sent.
    pub(super) fn take(&mut self, place: usize, most: usize) -> Vec<u8> {
        let queue = &mut self.servers[place];
        let mut text = Vec::new();
        for command in queue.waiting.drain(..most.min(queue.waiting.len())) {
            match &command.what {
                CommandKind::Delete(key) => {
                    queue.keys.remove(key);
                    text.extend_from_slice(b"delete ");
                    text.extend_from_slice(key);
                    text.extend_from_slice(b"\r\n");
                }
                CommandKind::Flush => text.extend_from_slice(b"flush_all\r\n"),
            }
            queue.sent.push_back(command);
        }
        text
    }

    /// The number of commands without a reply.
    pub(super) fn sent(&self, place: usize) -> usize {
        self.servers[place].sent.len()
    }

    /// The number of commands that are waiting or without a reply.
    pub(super) fn backlog(&self, place: usize) -> usize {
        self.servers[place].waiting.len() + self.sent(place)
    }

    /// Handles a line from a server, the reply to the first command without one; the line has no line end.
    pub(super) fn answered(&mut self, place: usize, line: &[u8]) -> ServerReply {
        let reply = || line.escape_ascii().to_string();
        let queue = &mut self.servers[place];
        let Some(command) = queue.sent.front() else { return ServerReply::Failed { reply: reply() } };
        let answer = match (&command.what, line) {
            (CommandKind::Delete(_), b"DELETED") => ServerReply::Deleted { was_there: true },
            (CommandKind::Delete(_), b"NOT_FOUND") => ServerReply::Deleted { was_there: false },
            (CommandKind::Flush, b"OK") => ServerReply::Flushed,
            // memcached replies so with `-F`. Any other reply may come from a server that is not a memcached
            // at this moment.
            (CommandKind::Flush, line) if line.starts_with(b"CLIENT_ERROR") => {
                ServerReply::FlushRefused { reply: reply() }
            }
            _ => return ServerReply::Failed { reply: reply() },
        };
        if let Some(command) = queue.sent.pop_front() {
            queue.bytes -= command.bytes();
            self.bytes -= command.bytes();
        }
        answer
    }

    /// Notes that sent commands have no reply: they are sent again, first.
    pub(super) fn failed(&mut self, place: usize) {
        let queue = &mut self.servers[place];
        while let Some(command) = queue.sent.pop_back() {
            // A key that has changed again is queued further back; this earlier delete replaces it.
            if let CommandKind::Delete(key) = &command.what {
                queue.keys.insert(Arc::clone(key));
            }
            queue.waiting.push_front(command);
        }
    }

    /// Whether no server has commands left.
    pub(super) fn is_done(&self) -> bool {
        self.obeyed() == self.given
    }

    /// The number of orders, from the first on, that are done.
    pub(super) fn obeyed(&self) -> u64 {
        let oldest = self.servers.iter().filter_map(ServerQueue::oldest).min();
        oldest.map_or(self.given, |oldest| oldest.saturating_sub(1))
    }
}

impl ServerQueue {
    /// Appends a command; returns the memory that it takes.
    fn push(&mut self, command: Command) -> usize {
        let bytes = command.bytes();
        self.bytes += bytes;
        self.waiting.push_back(command);
        bytes
    }

    /// Drops waiting commands; returns the freed memory.
    fn clear(&mut self) -> usize {
        let bytes = self.waiting.drain(..).map(|command| command.bytes()).sum();
        // The capacity is freed too.
        (self.waiting, self.keys) = (VecDeque::new(), HashSet::new());
        self.bytes -= bytes;
        bytes
    }

    /// The first order that is not done.
    fn oldest(&self) -> Option<u64> {
        let first = |list: &VecDeque<Command>| list.front().map(|command| command.order);
        // A command that is sent again may belong to an earlier order than the first command.
        [first(&self.sent), first(&self.waiting), self.lacks].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(overflow: Overflow) -> Queues {
        Queues::new(2, overflow)
    }

    fn delete(queues: &mut Queues, place: usize, key: &str) -> Option<QueueFull> {
        queues.delete(place, &Arc::from(key.as_bytes()))
    }

    fn taken(queues: &mut Queues, place: usize) -> String {
        String::from_utf8(queues.take(place, 100)).unwrap()
    }

    #[test]
    fn an_order_is_obeyed_when_every_server_has_answered() {
        let mut queues = queues(Overflow::Again);
        for (place, key) in [(0, "a"), (1, "b"), (0, "c")] {
            queues.begin();
            delete(&mut queues, place, key);
        }
        assert_eq!((queues.given(), queues.obeyed()), (3, 0));
        assert_eq!(taken(&mut queues, 0), "delete a\r\ndelete c\r\n");
        assert_eq!(queues.answered(0, b"DELETED"), ServerReply::Deleted { was_there: true });
        assert_eq!(queues.obeyed(), 1);
        assert_eq!(queues.answered(0, b"NOT_FOUND"), ServerReply::Deleted { was_there: false });
        assert_eq!(queues.obeyed(), 1, "the other server");
        assert_eq!(taken(&mut queues, 1), "delete b\r\n");
        queues.answered(1, b"DELETED");
        assert_eq!((queues.obeyed(), queues.bytes, queues.backlog(0)), (3, 0, 0));
    }

    #[test]
    fn what_has_no_reply_is_sent_again_first() {
        let mut queues = queues(Overflow::Again);
        queues.begin();
        delete(&mut queues, 0, "a");
        delete(&mut queues, 0, "b");
        taken(&mut queues, 0);
        queues.answered(0, b"DELETED");
        queues.begin();
        delete(&mut queues, 0, "b");
        delete(&mut queues, 0, "b");
        let failed = ServerReply::Failed { reply: "SERVER_ERROR proxy".to_owned() };
        assert_eq!(queues.answered(0, b"SERVER_ERROR proxy"), failed);
        queues.failed(0);
        assert_eq!(queues.obeyed(), 0);
        assert_eq!(taken(&mut queues, 0), "delete b\r\ndelete b\r\n");
        queues.answered(0, b"DELETED");
        assert_eq!(queues.obeyed(), 1);
        queues.answered(0, b"NOT_FOUND");
        assert_eq!((queues.obeyed(), queues.bytes), (2, 0));
        assert_eq!(queues.answered(0, b"DELETED"), ServerReply::Failed { reply: "DELETED".to_owned() });
    }

    #[test]
    fn a_flush_takes_the_place_of_what_waits() {
        let mut queues = queues(Overflow::Gap(OnGap::Flush));
        queues.begin();
        delete(&mut queues, 0, "a");
        taken(&mut queues, 0);
        queues.begin();
        delete(&mut queues, 0, "b");
        queues.begin();
        queues.flush();
        queues.begin();
        delete(&mut queues, 0, "b");
        queues.failed(0);
        assert_eq!(taken(&mut queues, 0), "delete a\r\nflush_all\r\ndelete b\r\n");
        queues.answered(0, b"NOT_FOUND");
        assert_eq!(queues.obeyed(), 1, "the flush stands for b");
        let refused = ServerReply::FlushRefused { reply: "CLIENT_ERROR flush_all not allowed".to_owned() };
        assert_eq!(queues.answered(0, b"CLIENT_ERROR flush_all not allowed"), refused);
        assert_eq!(taken(&mut queues, 1), "flush_all\r\n");
        assert_eq!(queues.answered(1, b"OK"), ServerReply::Flushed);
        assert_eq!(queues.obeyed(), 3);
    }

    #[test]
    fn what_does_not_fit_is_given_up_by_the_server_that_has_most() {
        for overflow in [Overflow::Again, Overflow::Gap(OnGap::Flush), Overflow::Gap(OnGap::Warn)] {
            let mut queues = queues(overflow);
            queues.bytes_max = 4 * (COMMAND_BYTES + 1);
            queues.begin();
            for key in ["a", "b", "c"] {
                assert_eq!(delete(&mut queues, 0, key), None);
            }
            queues.begin();
            assert_eq!(delete(&mut queues, 1, "d"), None);
            assert_eq!(delete(&mut queues, 1, "e"), Some(QueueFull { place: 0, count: 3 }));
            taken(&mut queues, 1);
            queues.answered(1, b"DELETED");
            queues.answered(1, b"DELETED");
            let (rest, obeyed) = match overflow {
                Overflow::Again => ("", 0),
                Overflow::Gap(OnGap::Flush) => ("flush_all\r\n", 0),
                Overflow::Gap(OnGap::Warn) => ("", 2),
            };
            assert_eq!((queues.obeyed(), queues.is_incomplete(0)), (obeyed, overflow == Overflow::Again));
            assert_eq!(taken(&mut queues, 0), rest);
            if !rest.is_empty() {
                queues.answered(0, b"OK");
            }
            // Nothing is queued for a server that lacks something, until the log sends it again.
            queues.begin();
            delete(&mut queues, 0, "f");
            assert_eq!(queues.backlog(0), usize::from(overflow != Overflow::Again));
            queues.note_repetition();
            queues.begin();
            delete(&mut queues, 0, "a");
            taken(&mut queues, 0);
            while queues.sent(0) > 0 {
                queues.answered(0, b"DELETED");
            }
            assert_eq!((queues.obeyed(), queues.bytes), (4, 0));
        }
    }

    /// Against a plain list: no key is lost, and none counts as obeyed too early, whatever fails.
    #[test]
    fn random_histories_lose_nothing() {
        use rand::{RngExt as _, SeedableRng as _};
        for seed in 0..300 {
            let mut random = rand::rngs::StdRng::seed_from_u64(seed);
            let mut queues = queues(Overflow::Again);
            queues.bytes_max = 40 * COMMAND_BYTES;
            // By order: keys that no server has deleted since.
            let mut open: Vec<HashSet<(usize, Arc<[u8]>)>> = vec![HashSet::new()];
            let mut sent: [VecDeque<Arc<[u8]>>; 2] = Default::default();
            let mut acknowledged = 0;
            for _ in 0..400 {
                let place = random.random_range(0..2);
                match random.random_range(0..8) {
                    0..=3 => {
                        queues.begin();
                        let mut own = HashSet::new();
                        for _ in 0..random.random_range(0..6) {
                            let key: Arc<[u8]> = Arc::from(&[random.random_range(b'a'..=b'z')][..]);
                            let to = random.random_range(0..2);
                            queues.delete(to, &key);
                            own.insert((to, key));
                        }
                        open.push(own);
                    }
                    4 if sent[place].is_empty() => {
                        let text = queues.take(place, random.random_range(1..20));
                        let keys = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                        sent[place].extend(keys.map(|line| Arc::from(&line[7..line.len() - 1])));
                    }
                    4 | 5 => {
                        let Some(key) = sent[place].pop_front() else { continue };
                        queues.answered(place, b"DELETED");
                        for own in &mut open {
                            own.remove(&(place, Arc::clone(&key)));
                        }
                    }
                    6 => {
                        queues.failed(place);
                        sent[place].clear();
                    }
                    _ if (0..2).any(|place| queues.is_incomplete(place)) => {
                        // The log sends all again that was not acknowledged, as new orders.
                        queues.note_repetition();
                        for order in acknowledged as usize + 1..open.len() {
                            let again = std::mem::take(&mut open[order]);
                            if again.is_empty() {
                                continue;
                            }
                            queues.begin();
                            for (to, key) in &again {
                                queues.delete(*to, key);
                            }
                            open.push(again);
                        }
                    }
                    _ => {}
                }
                acknowledged = queues.obeyed().max(acknowledged);
                let done = &open[..=queues.obeyed() as usize];
                assert!(done.iter().all(HashSet::is_empty), "seed {seed}");
                assert!(queues.bytes <= queues.bytes_max, "seed {seed}");
            }
        }
    }
}
