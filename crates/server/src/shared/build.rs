//! Makes what all threads share of the settings.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cattlegrid_config::{Protection, RuleFile, Settings, ShareSettings};
use cattlegrid_engine::{Engine, EngineConfig, RulesConfig};
use cattlegrid_loader::Loaders;
use cattlegrid_protocol::Limits;
use cattlegrid_store::Share;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::acceptor::Acceptor;
use crate::admin::Secrets;
use crate::auth::AuthFile;
use crate::caps::Caps;
use crate::connection::unsent::UnsentOutput;
use crate::detail::Detail;
use crate::dump::Dumps;
use crate::error::ServeError;
use crate::follows::Follows;
use crate::gauges::Gauges;
use crate::lane::handle::LaneHandle;
use crate::loading::LaneHost;
use crate::poller::Waker;
use crate::reload::ReloadStatus;
use crate::reload::in_force::{InForce, log_own_types};
use crate::shared::{RareStates, Shared};
use crate::shortage::Shortage;
use crate::signals::{Signal, Signals};
use crate::time::Clock;
use crate::tls::TlsAcceptor;
use crate::uploads::Uploads;
use crate::watch::Watchers;
use crate::{log, why};

/// What is there before anything is shared: loaders run, and the lanes can be told of their jobs.
pub(crate) struct Ground {
    clock: Clock,
    caps: Caps,
    lanes: Arc<[LaneHandle]>,
    loaders: Loaders,
}

impl Ground {
    /// Starts the loaders, and waits until they are ready.
    pub(crate) fn new(settings: &Settings) -> Result<Self, ServeError> {
        let caps = Caps::new(settings.item_bytes_max, settings.unsent_bytes);
        Self::with(settings, Clock::new(), caps)
    }

    /// Does as [`Ground::new`], and says whether a signal has asked for a reload meanwhile; None: a signal
    /// has asked the server to leave before the loaders were ready. A thread of its own waits for them; the
    /// end of the process ends them.
    pub(crate) fn unless_told(
        settings: &Settings,
        signals: &mut Signals,
    ) -> Result<Option<(Self, bool)>, ServeError> {
        if settings.loaders().is_empty() {
            return Ok(Some((Self::new(settings)?, false)));
        }
        let mut must_reload = false;
        let io = |what| move |error| ServeError::Io { what, error };
        let failed = io("loaders cannot be started");
        let ready = Arc::new(Waker::new().map_err(failed)?);
        let (sender, receiver) = channel();
        let (settings, tell) = (settings.clone(), Arc::clone(&ready));
        let start = move || {
            // The receiver is gone if the server leaves.
            sender.send(Self::new(&settings)).unwrap_or_default();
            tell.wake();
        };
        std::thread::Builder::new().name("loaders".to_owned()).spawn(start).map_err(failed)?;
        loop {
            let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(&*ready, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
            while let Some(signal) = signals.next().map_err(io("signals cannot be received"))? {
                if signal != Signal::Reload {
                    return Ok(None);
                }
                must_reload = true;
            }
            if let Ok(ground) = receiver.try_recv() {
                return ground.map(|ground| Some((ground, must_reload)));
            }
        }
    }

    /// Makes the ground as [`Ground::new`] does, with another clock and other caps.
    pub(crate) fn with(settings: &Settings, clock: Clock, caps: Caps) -> Result<Self, ServeError> {
        let lanes: Arc<[LaneHandle]> = (0..settings.threads)
            .map(|_| LaneHandle::new())
            .collect::<Result<_, _>>()
            .map_err(|error| ServeError::Io { what: "a lane cannot be made", error })?;
        let host = LaneHost::new(Arc::clone(&lanes), clock.clone());
        let loaders = Loaders::start(settings.loaders(), settings.item_bytes_max, Arc::new(host))?;
        Ok(Self { clock, caps, lanes, loaders })
    }
}

/// Makes the state that all threads share.
pub(crate) fn share(
    settings: Settings,
    auth: Option<AuthFile>,
    tls: Option<TlsAcceptor>,
    admin: Arc<Secrets>,
    ground: Ground,
) -> Result<Arc<Shared>, ServeError> {
    let io = |what| move |error| ServeError::Io { what, error };
    let Ground { clock, caps, lanes, loaders } = ground;
    let extensions = settings.rule_file.is_some() || settings.objects.is_some();
    let engine = Engine::new(EngineConfig {
        memory_bytes: settings.memory_bytes,
        threads: settings.threads,
        evictions: settings.evictions,
        hide_cas: !settings.cas,
        max_item_bytes: settings.item_bytes_max,
        large_pages: settings.large_pages,
        tag_bytes: if extensions { settings.protection.tag_bytes } else { 0 },
        allows_flush: settings.flush,
        explain: why::text,
        nanos: crate::time::nanos,
        seed: random_seed(),
        shares: settings.rule_file.as_ref().map_or_else(Vec::new, shares),
        prefixes: settings.protection.prefixes.clone(),
    })
    .map_err(io("there is no memory for the items: -m is too large for this machine, or too small"))?;
    if settings.lock_memory {
        engine.memory().set_locked();
    }
    if let Some(file) = &settings.rule_file {
        engine
            .set_rules(Some(Arc::clone(&file.rules)), &rules_config(&settings.protection), clock.millis())
            .map_err(io("there is no memory for the rules"))?;
        engine.shared().note_start(clock.millis());
    }
    if let Some(objects) = &settings.objects {
        engine.set_objects(Some(Arc::new(objects.registry())));
        log_own_types(objects);
    }
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    engine.shared().slow().set(millis(settings.slow), millis(settings.slow_calls));
    let gauges = Gauges::default();
    gauges.certificates_read.store(clock.seconds(), Relaxed);
    let watchers = Watchers::new(settings.threads, settings.lane_log_buffer_bytes);
    watchers.log_requests(settings.verbosity >= log::REQUESTS);
    let shared = Arc::new(Shared {
        clock,
        auth,
        not_allowed: crate::auth::rights::RefusalLog::default(),
        tls,
        admin,
        engine,
        lanes,
        loaders,
        follows: Follows::default(),
        #[cfg(feature = "etcd")]
        fleet: Arc::default(),
        watchers,
        detail: Detail::new(settings.stat_detail, settings.stat_delimiter),
        limits: Limits {
            max_item_bytes: settings.item_bytes_max,
            debugtime: settings.debugtime,
            extensions,
            max_get_line_bytes: caps.get_line_bytes,
        },
        gauges,
        uploads: Uploads::new(caps.uploads_bytes),
        rare: RareStates::default(),
        shortage: Shortage::default(),
        dumps: Dumps::default(),
        unsent: UnsentOutput::new(caps.unsent_bytes),
        caps,
        connections: Mutex::default(),
        listeners: Mutex::default(),
        acceptor: Acceptor::default(),
        control: Waker::new().map_err(io("a lane cannot be made"))?,
        stop_asked: AtomicBool::new(false),
        in_force: Mutex::new(InForce {
            rule_file: settings.rule_file.clone(),
            objects: settings.objects.clone(),
        }),
        reload_status: Mutex::new(ReloadStatus {
            unix: crate::time::unix_now().as_secs(),
            ..ReloadStatus::default()
        }),
        settings,
    });
    #[cfg(feature = "etcd")]
    shared.engine.shared().set_bump_log(Arc::<crate::fleet::Fleet>::clone(&shared.fleet));
    shared.note_watched();
    shared.engine.begin(shared.now_at(shared.clock.now()));
    Ok(shared)
}

/// What the store is told of the shares of a file.
pub(crate) fn shares(file: &RuleFile) -> Vec<Share> {
    const { assert!(cattlegrid_config::SHARES_MAX <= cattlegrid_store::SHARES_MAX) };
    let part = |percent: u8| f64::from(percent) / 100.0;
    let share = |own: &ShareSettings| Share {
        prefix: own.prefix.as_bytes().into(),
        at_least: part(own.at_least),
        at_most: part(own.at_most),
    };
    file.shares.iter().map(share).collect()
}

/// What the engine is told of rules and control keys.
pub(crate) fn rules_config(protection: &Protection) -> RulesConfig {
    RulesConfig {
        tag_bytes: protection.tag_bytes,
        ledger_bytes: protection.ledger_bytes,
        fence_bytes: protection.fence_bytes,
        waiters: protection.waiters,
        control: protection.control.as_bytes().into(),
        prefixes: protection.prefixes.clone(),
    }
}

/// The shared state of a server of these settings, without users and certificates.
#[cfg(test)]
pub(crate) fn alone(settings: Settings) -> Arc<Shared> {
    let ground = Ground::new(&settings).expect("its loaders start");
    share(settings, None, None, Arc::default(), ground).expect("a small server can be made")
}

/// A seed that clients cannot know, from the system's random numbers.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}
