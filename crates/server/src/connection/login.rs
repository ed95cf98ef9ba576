//! The commands before a login, how a client logs in, and how long it waits for the answer to a wrong one.
//!
//! # Invariants
//! * Before a login no command is executed but those that log in.
//! * While a wrong login waits for its answer nothing is received or executed.

use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cattlegrid_protocol::{
    BINARY_MAGIC, HEADER_BYTES, LINE_MAX, Packet, PacketStatus, Parsed, Request, opcode, parse_packet, reply,
};

use super::input::{Front, Speaks};
use super::{Connection, Phase, Reason};
use crate::auth::attempts::{ATTEMPTS_MAX, WINDOW_MS};
use crate::auth::{AuthFile, LoginFailures};
use crate::log;
use crate::shared::Shared;
use crate::turns::Turn;
use crate::watch::Topics;

/// Most bytes of a data block before authentication, and behind a wrong login.
pub(super) const AUTH_MAX: usize = 4 << 10;
/// A shorter line before authentication, its LF not counted, closes the connection.
const SHORTEST: usize = 4;

/// The only mechanism to log in (RFC 4616).
const PLAIN: &[u8] = b"PLAIN";
/// Most bytes of the name of a mechanism, as in memcached.
const MECHANISM_MAX: usize = 32;
/// The reply to a login, as memcached has it.
const AUTHENTICATED: &str = "Authenticated";

/// How far a login has come.
#[derive(Debug, Default)]
pub(super) struct Login {
    /// Wrong ones.
    failures: LoginFailures,
    /// The packet of the last one, if it was one.
    failed: Option<Packet>,
    /// One by SASL has begun, and waits for its next step.
    is_begun: bool,
    /// The name of the user who has logged in.
    user: Option<Arc<[u8]>>,
    /// [`AuthFile::generation`] when it was asked what limits the user.
    generation: u64,
}

impl Login {
    /// When a wrong one is answered, in milliseconds, if one waits for that.
    #[inline]
    pub(super) fn answer_ms(&self) -> Option<u64> {
        self.failures.answer_ms()
    }
}

impl Connection {
    /// A wrong login waits for its answer.
    #[inline]
    pub(crate) fn is_delayed(&self) -> bool {
        self.login.answer_ms().is_some()
    }

    /// Executes what comes before a login. Returns the bytes used; 0: more are needed.
    pub(super) fn before_login(&mut self, rest: &[u8], turn: &mut Turn<'_>) -> usize {
        match self.input.speaks {
            Speaks::Binary => self.authenticate_packet(rest, turn),
            _ => self.authenticate(rest, turn),
        }
    }

    /// The only command under `-Y` until it succeeds: `set <key> <flags> <exptime> <n>` with `user password`
    /// as its data. As in memcached, only the length is looked at. Returns the bytes used; 0: more are
    /// needed.
    fn authenticate(&mut self, rest: &[u8], turn: &mut Turn<'_>) -> usize {
        let Some(end) = rest.iter().take(LINE_MAX + 1).position(|b| *b == b'\n') else {
            if rest.len() > LINE_MAX {
                self.close(Reason::Error);
            }
            return 0;
        };
        if end < SHORTEST {
            // As memcached. It is how a client of the binary protocol is told that it is not spoken.
            self.close(Reason::Error);
            return rest.len();
        }
        if turn.shared.watchers.wanted().has(Topics::LOG) {
            // What looks like a line may be a password that its client has cut wrongly.
            crate::wire_log::request(self.info.fd.as_raw_fd(), b"(before login)");
        }
        let mut words = rest[..end].trim_ascii_end().split(|b| *b == b' ').filter(|w| !w.is_empty());
        let is_set = words.next() == Some(b"set");
        let len = words.nth(3).and_then(|w| std::str::from_utf8(w).ok()?.parse::<usize>().ok());
        let (true, Some(len @ ..=AUTH_MAX)) = (is_set, len) else {
            reply::line(&mut turn.out.bytes, reply::error::UNAUTHENTICATED);
            return end + 1;
        };
        let Some(data) = rest.get(end + 1..end + 1 + len + 2) else { return 0 };
        if data.ends_with(b"\r\n") && !data.contains(&b' ') {
            reply::line(&mut turn.out.bytes, "CLIENT_ERROR bad authentication token format");
        } else if let Some(payload) = data.strip_suffix(b"\r\n") {
            turn.counters.auth_cmds.add(1);
            if self.try_login(|auth| auth.user_of(payload), turn) {
                turn.out.bytes.extend_from_slice(reply::STORED);
            }
        } else {
            reply::line(&mut turn.out.bytes, "CLIENT_ERROR bad command line termination");
        }
        end + 1 + len + 2
    }

    /// Before a login: the command at the front of `rest`. Returns the bytes used; 0: more are needed.
    fn authenticate_packet(&mut self, rest: &[u8], turn: &mut Turn<'_>) -> usize {
        let Some(header) = rest.first_chunk::<HEADER_BYTES>() else {
            self.input.front = Front::Partial { scanned: 0, need: HEADER_BYTES, awaits_block: false };
            return 0;
        };
        let packet = Packet { opcode: header[1], opaque: [header[12], header[13], header[14], header[15]] };
        let is_login = matches!(packet.opcode, opcode::SASL_LIST | opcode::SASL_AUTH | opcode::SASL_STEP);
        if header[0] == BINARY_MAGIC && !is_login {
            reply::packet::error(&mut turn.out.bytes, packet, PacketStatus::Unauthenticated);
            self.close(Reason::Error);
            return rest.len();
        }
        if turn.shared.watchers.wanted().has(Topics::LOG) {
            crate::wire_log::request(self.info.fd.as_raw_fd(), b"(before login)");
        }
        match parse_packet(rest, &turn.shared.limits) {
            Parsed::Incomplete { need, .. } => {
                self.input.front = Front::Partial { scanned: 0, need, awaits_block: false };
                0
            }
            Parsed::Complete { request: Request::Packet(packet, command), used } => {
                self.begin_command(turn);
                self.packet_command(packet, &command, turn);
                used
            }
            Parsed::Complete { used, .. } => used,
            Parsed::Refused(refused) => {
                self.refused(&refused, turn);
                refused.used
            }
        }
    }

    pub(super) fn log_in(
        &mut self,
        packet: Packet,
        mechanism: &[u8],
        data: &[u8],
        first: bool,
        turn: &mut Turn<'_>,
    ) {
        if mechanism.len() > MECHANISM_MAX {
            // As memcached: this is no login.
            return reply::packet::error(&mut turn.out.bytes, packet, PacketStatus::InvalidArguments);
        }
        turn.counters.auth_cmds.add(1);
        if mechanism != PLAIN || !first && !std::mem::take(&mut self.login.is_begun) {
            turn.counters.auth_errors.add(1);
            return reply::packet::error(&mut turn.out.bytes, packet, PacketStatus::Unauthenticated);
        }
        if first && data.is_empty() {
            // Its client wants to be asked.
            self.login.is_begun = true;
            return reply::packet::error(&mut turn.out.bytes, packet, PacketStatus::Continue);
        }
        if self.try_login(|auth| auth.user_of_plain(data), turn) {
            reply::packet::text(&mut turn.out.bytes, packet, AUTHENTICATED);
        } else {
            self.phase = Phase::BeforeLogin;
            (self.login.user, self.limited) = (None, None);
            self.login.failed = Some(packet);
        }
    }

    /// Logs the user in that `user_of` finds, if this client may try. A wrong login waits for its answer.
    fn try_login(
        &mut self,
        user_of: impl FnOnce(&AuthFile) -> Option<Arc<[u8]>>,
        turn: &mut Turn<'_>,
    ) -> bool {
        let Some(auth) = &turn.shared.auth else { return true };
        let (peer, now_ms) = (self.info.peer_key, turn.now.ms);
        let may_try = auth.attempts.may_try(peer, now_ms);
        if may_try && let Some(user) = user_of(auth) {
            self.phase = Phase::Serving;
            self.login.user = Some(user);
            self.look_up_rights(auth);
            return true;
        }
        turn.counters.auth_errors.add(1);
        let random = RandomState::new().hash_one(now_ms);
        if may_try {
            auth.attempts.note_wrong(peer, now_ms);
            self.login.failures.note(now_ms, random);
            log::warning(format_args!("{}: a wrong login", self.info.peer()));
        } else {
            turn.shared.gauges.auth_unseen.fetch_add(1, Relaxed);
            self.login.failures.note_last(now_ms, random);
            log::warning(format_args!(
                "{}: a login not looked at: {ATTEMPTS_MAX} wrong ones of its address within {} s",
                self.info.peer(),
                WINDOW_MS / 1000
            ));
        }
        false
    }

    /// What its user may do is asked anew if it may have changed.
    #[inline]
    pub(super) fn renew_rights(&mut self, auth: &AuthFile) {
        if auth.generation() != self.login.generation {
            self.look_up_rights(auth);
        }
    }

    #[cold]
    fn look_up_rights(&mut self, auth: &AuthFile) {
        // Before it is asked: what changes meanwhile is asked for again.
        self.login.generation = auth.generation();
        self.limited = self.login.user.as_ref().and_then(|user| auth.limited(user));
    }

    /// Rights have changed: a connection that is shown what its user may not see any more is closed.
    pub(crate) fn apply_rights(&mut self, shared: &Shared) {
        if let Some(auth) = &shared.auth {
            self.renew_rights(auth);
        }
        let shows_all = matches!(self.phase, Phase::Watching(_) | Phase::Dumping(_));
        if shows_all && self.limited.as_ref().is_some_and(|limited| !limited.rights.allows_whole()) {
            self.fail();
        }
    }

    /// A request that its user may not make was refused.
    #[cold]
    pub(super) fn note_not_allowed(&self, command: &'static str, turn: &Turn<'_>) {
        turn.shared.gauges.not_allowed.fetch_add(1, Relaxed);
        let Some(limited) = &self.limited else { return };
        let peer = self.info.peer().to_string();
        if let Some(line) = turn.shared.not_allowed.line(limited, command, &peer, turn.now.ms) {
            log::warning(line);
        }
    }

    /// Answers a wrong login whose time has come.
    #[cold]
    pub(crate) fn answer_failure(&mut self, turn: &mut Turn<'_>) {
        let Some(is_last) = self.login.failures.answer(turn.now.ms) else { return };
        self.tell_failure(turn);
        self.has_more = !self.input.bytes.is_empty();
        if is_last {
            turn.shared.gauges.auth_closed.fetch_add(1, Relaxed);
            log::warning(format_args!("{}: closed after its wrong logins", self.info.peer()));
            self.input.clear();
            self.has_more = false;
            self.close(Reason::Error);
        }
    }

    /// Says that a login has failed.
    fn tell_failure(&mut self, turn: &mut Turn<'_>) {
        match self.login.failed.take() {
            Some(packet) => reply::packet::error(&mut turn.out.bytes, packet, PacketStatus::Unauthenticated),
            None => reply::line(&mut turn.out.bytes, reply::error::AUTHENTICATION_FAILURE),
        }
    }
}
