//! The protocol of the service manager systemd (`sd_notify(3)`): the server tells it that it is ready, is
//! reloading, is stopping, and is alive. Without `NOTIFY_SOCKET` in the environment nothing is sent.
//!
//! The control thread sends signs of life only while each lane has answered its last question. A lane that
//! hangs holds them back, and the manager restarts the process. A question is a number and a wake-up, its
//! answer the same number. So a lane pays a few times in an interval of the watchdog, and nothing for a
//! request.

use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::first_process::is_addressed;
use crate::lane::handle::LaneHandle;
use crate::{log, sys};

/// The longest time that a message waits for room in the manager's socket.
const SEND_MAX: Duration = Duration::from_secs(1);
/// Time for the end of the server beyond the drain.
const END_MAX: Duration = Duration::from_secs(5);
/// Signs of life in one interval of the watchdog.
const SIGNS: u32 = 4;

/// The service manager that started the server, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// The watchdog's interval: how long the manager waits for a sign of life. None: no watchdog.
    watchdog: Option<Duration>,
    /// The status text of a server without problems.
    serving: String,
}

impl Manager {
    /// The manager that `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` describe. A variable that cannot
    /// be used causes a warning: the server starts all the same.
    pub(crate) fn of_environment() -> Self {
        let read = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self::new(read("NOTIFY_SOCKET"), read("WATCHDOG_USEC").as_deref(), read("WATCHDOG_PID").as_deref())
    }

    fn new(socket: Option<OsString>, interval: Option<&OsStr>, pid: Option<&OsStr>) -> Self {
        let Some(name) = socket else { return Self::default() };
        let bytes = name.as_bytes();
        let address = match bytes[0] {
            b'@' => SocketAddr::from_abstract_name(&bytes[1..]),
            b'/' => SocketAddr::from_pathname(&name),
            _ => Err(std::io::Error::other("it is neither a path nor @name")),
        };
        let opened = address.and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(SEND_MAX))?;
            Ok((socket, address))
        });
        let socket = match opened {
            Ok(socket) => Some(socket),
            Err(error) => {
                let (name, why) = (name.display(), sys::reason(&error));
                log::warning(format_args!(
                    "NOTIFY_SOCKET {name}: {why}; the service manager is told nothing"
                ));
                None
            }
        };
        let is_ours = pid.is_none_or(is_addressed);
        let micros = interval.filter(|_| is_ours).and_then(|text| text.to_str()?.parse().ok());
        if let (Some(text), true, None) = (interval, is_ours, micros) {
            log::warning(format_args!(
                "WATCHDOG_USEC {}: is no number; there are no signs of life",
                text.display()
            ));
        }
        let watchdog = micros.filter(|micros| *micros > 0).map(Duration::from_micros);
        Self { socket, watchdog, serving: String::new() }
    }

    /// Sets the status text of a server without problems: a few words.
    pub(crate) fn serving(&mut self, words: String) {
        self.serving = words;
    }

    /// Sends what delays the start, as the status.
    pub(crate) fn starting(&self, words: &str) {
        self.send(&format!("STATUS={words}"));
    }

    /// Sends that clients are served, with the configuration read last.
    pub(crate) fn ready(&self) {
        self.send(&format!("READY=1\nSTATUS={}", self.serving));
    }

    /// Sends that files are being read again; [`Manager::reloaded`] follows.
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=Reading files anew"));
    }

    /// Sends that the files are in force, or, with the reason `error`, that the previous configuration stays.
    pub(crate) fn reloaded(&self, error: Option<&str>) {
        let Some(error) = error else { return self.ready() };
        let error = error.lines().next().unwrap_or_default();
        self.send(&format!("READY=1\nSTATUS={}; nothing reloaded: {error}", self.serving));
    }

    /// Sends that the server leaves within `drain`, which may be longer than the manager's default.
    pub(crate) fn stopping(&self, drain: Duration) {
        let micros = (drain + END_MAX).as_micros();
        let seconds = drain.as_secs_f64();
        self.send(&format!(
            "STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS=Leaving; held requests are answered within {seconds} s"
        ));
    }

    fn send(&self, message: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            log::warning(format_args!(
                "NOTIFY_SOCKET: the service manager is not told: {}",
                sys::reason(&error)
            ));
        }
    }
}

/// The watchdog's rounds of questions to the lanes.
#[derive(Debug)]
pub(crate) struct LaneHeartbeats {
    /// Time between two signs of life; None without a watchdog.
    every: Option<Duration>,
    next: Instant,
    /// The number of the last question.
    asked: u32,
    /// Whether a missing answer was logged.
    told: bool,
}

impl LaneHeartbeats {
    /// The rounds of a watchdog whose first sign is due at once.
    pub(crate) fn new(manager: &Manager, now: Instant) -> Self {
        let every = manager.watchdog.filter(|_| manager.socket.is_some()).map(|interval| interval / SIGNS);
        Self { every, next: now, asked: 0, told: false }
    }

    /// `timeout`, or less if a sign is due before.
    pub(crate) fn until_next(&self, timeout: Duration, now: Instant) -> Duration {
        if self.every.is_none() {
            return timeout;
        }
        timeout.min(self.next.saturating_duration_since(now))
    }

    /// Sends a sign if one is due and each lane that has not `left` has answered, and asks the lanes again.
    pub(crate) fn tick(
        &mut self,
        manager: &Manager,
        lanes: &[LaneHandle],
        now: Instant,
        left: impl Fn(usize) -> bool,
    ) {
        let Some(every) = self.every.filter(|_| self.next <= now) else { return };
        self.next = now + every;
        let silent =
            lanes.iter().enumerate().find(|(number, lane)| !left(*number) && !lane.has_answered(self.asked));
        if let Some((number, _)) = silent {
            if !std::mem::replace(&mut self.told, true) {
                log::error(format_args!(
                    "lane {number} has not answered for {} ms: no sign of life for the service manager's watchdog",
                    every.as_millis()
                ));
            }
            return;
        }
        self.told = false;
        manager.send("WATCHDOG=1");
        self.asked = self.asked.wrapping_add(1);
        for lane in lanes {
            lane.ask(self.asked);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(dir: &tempfile::TempDir, interval: Option<&str>) -> (Manager, UnixDatagram) {
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (Manager::new(Some(path.into()), interval.map(OsStr::new), None), socket)
    }

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 512];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    }

    #[test]
    fn messages_have_a_state_and_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let (mut manager, socket) = manager(&dir, None);
        manager.serving("Serving on x".to_owned());
        manager.ready();
        assert_eq!(received(&socket), "READY=1\nSTATUS=Serving on x");
        manager.reloading();
        let text = received(&socket);
        let micros = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(micros.split('\n').next().unwrap().parse::<u64>().unwrap() > 0, "{text}");
        manager.reloaded(Some("f:1: no\nmore"));
        assert_eq!(received(&socket), "READY=1\nSTATUS=Serving on x; nothing reloaded: f:1: no");
        manager.stopping(Duration::from_millis(1_500));
        assert!(received(&socket).starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=6500000\nSTATUS="));
    }

    #[test]
    fn an_abstract_socket_and_none() {
        let name = format!("cattlegrid-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Manager::new(Some(format!("@{name}").into()), None, None).starting("x");
        assert_eq!(received(&socket), "STATUS=x");
        for manager in [
            Manager::new(None, Some(OsStr::new("5")), None),
            Manager::new(Some("vsock:2:1".into()), None, None),
        ] {
            assert!(manager.socket.is_none());
            manager.ready();
        }
    }

    #[test]
    fn a_watchdog_of_another_process_or_without_a_number_is_none() {
        let own = std::process::id().to_string();
        let of = |interval: &str, pid: Option<&str>| {
            Manager::new(Some("/x".into()), Some(OsStr::new(interval)), pid.map(OsStr::new)).watchdog
        };
        assert_eq!(of("2000000", Some(&own)), Some(Duration::from_secs(2)));
        assert_eq!(of("2000000", None), Some(Duration::from_secs(2)));
        for (interval, pid) in [("2000000", Some("1")), ("2000000", Some("x")), ("0", None), ("much", None)] {
            assert_eq!(of(interval, pid), None, "{interval} {pid:?}");
        }
    }

    #[test]
    fn a_lane_that_does_not_answer_keeps_the_sign_back() {
        let dir = tempfile::tempdir().unwrap();
        let (manager, socket) = manager(&dir, Some("40000"));
        socket.set_nonblocking(true).unwrap();
        let signs = || std::iter::from_fn(|| socket.recv(&mut [0; 64]).ok()).count();
        let lanes = [LaneHandle::new().unwrap(), LaneHandle::new().unwrap()];
        let mut now = crate::time::Clock::new().now();
        let mut life = LaneHeartbeats::new(&manager, now);
        let mut tick = |left: Option<usize>| {
            now += Duration::from_millis(11);
            life.tick(&manager, &lanes, now, |number| Some(number) == left);
            signs()
        };
        assert_eq!(tick(None), 1, "nothing was asked yet");
        assert_eq!(tick(None), 0, "neither lane has answered");
        lanes[0].answer();
        assert_eq!(tick(None), 0, "one has not");
        assert_eq!(tick(Some(1)), 1, "who has left answers nothing");
        lanes.iter().for_each(LaneHandle::answer);
        assert_eq!(tick(None), 1);
    }
}
