//! Scenes of load on the server without rules, and the state that all scenes share.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cattlegrid_load::harness::Server;
use cattlegrid_load::{
    BenchError, Cpu, Fill, Memcached, Meter, Mix, Peer, Plan, Popularity, Process, Report, Session, Sizes,
    Supply, Ttls, Until, count, micros,
};
use cattlegrid_server::poller::Poller;
use cattlegrid_server::time::Clock;

use super::picture::Curve;
use super::server::MEMORY_MIB;
use super::{Act, DemoError, Scene, SceneOutcome};

/// The act of these scenes.
pub(super) const ACT: Act = Act {
    heads: &["load", "requests/s", "hit ratio", "p50", "p99", "p99.9", "server CPU/key"],
    scenes: &[
        Scene { title: STORE, run: store },
        Scene { title: MANY_CONNECTIONS, run: many_connections },
        Scene { title: PIPELINED, run: pipelined },
        Scene { title: MULTIGET, run: multiget },
        Scene { title: OVERFULL, run: overfull },
    ],
};

const STORE: &str = "items are stored";
const MANY_CONNECTIONS: &str = "64 clients ask, 1,000 more are connected";
const PIPELINED: &str = "32 requests at a time";
const MULTIGET: &str = "32 keys in one get";
const OVERFULL: &str = "more data than memory, misses are filled";

/// The servers and the output that all scenes share.
pub(super) struct Stage {
    /// The address of the server with rules.
    ruled: String,
    /// The address of the server without rules.
    address: String,
    process: Process,
    meter: Arc<Meter>,
    /// The items of the first scene, which later scenes read.
    plan: Plan,
    peer: Arc<Peer>,
    /// The curves of the stampede without the rule, and with it.
    pub(super) stampedes: Vec<Curve>,
}

const ITEMS: u64 = 200_000;
const IDLE: usize = 1000;
const ACTIVE: usize = 64;
const SCENE_TIME: Duration = Duration::from_millis(1800);
const ROUND: Duration = Duration::from_millis(50);

impl Stage {
    pub(super) fn new(ruled: &Server, server: &Server, meter: Arc<Meter>) -> Result<Self, DemoError> {
        let plan = Plan {
            keys: ITEMS,
            key_bytes: 32,
            sizes: Sizes::fixed(100),
            ttls: Ttls::never(),
            flags: 0,
            get_share: 1.0,
            multiget: 1,
            popularity: Popularity::Zipf(1.0),
            drift: 0,
            one_hit_share: 0.0,
            fill_on_miss: false,
            seed: 1,
            run: Plan::new_run(),
        };
        Ok(Self {
            ruled: ruled.address().to_owned(),
            address: server.address().to_owned(),
            process: Process::new(server.pid()).map_err(DemoError::io("the server's process"))?,
            meter,
            peer: Arc::new(Peer::new(server.address(), &plan)?),
            plan,
            stampedes: Vec::new(),
        })
    }

    /// The address of the server with rules.
    pub(super) fn ruled(&self) -> &str {
        &self.ruled
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Waits for this time.
    pub(super) fn pause(&self, time: Duration) -> Result<(), DemoError> {
        let clock = Clock::new();
        let end = clock.now() + time;
        let mut poller = Poller::new().map_err(DemoError::io("no epoll"))?;
        loop {
            let left = end.saturating_duration_since(clock.now());
            if left.is_zero() {
                return Ok(());
            }
            if self.meter.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted.into());
            }
            poller.wait(Some(left.min(ROUND)), |_| {}).map_err(DemoError::io("epoll"))?;
        }
    }

    /// Loads the server.
    fn load(
        &self,
        plan: Plan,
        peer: &Arc<Peer>,
        (connections, depth): (usize, usize),
        supply: impl FnOnce(&Arc<Plan>) -> Box<dyn Supply>,
        until: Until,
    ) -> Result<Report, DemoError> {
        let plan = Arc::new(plan);
        let mut supply = supply(&plan);
        let mut session = Session::open(Memcached, plan, Arc::clone(peer), connections, depth)?;
        let before = self.cpu()?;
        let tally = session.run(&mut *supply, until, &self.meter)?;
        Ok(Report::new(&tally, Some(self.cpu()?.since(before))))
    }

    /// Reads the items of the first scene, with nine gets for each set.
    fn ask(&self, connections: usize, depth: usize, multiget: usize) -> Result<Report, DemoError> {
        let plan = Plan { get_share: 0.9, multiget, ..self.plan.clone() };
        let mix = |plan: &Arc<Plan>| -> Box<dyn Supply> { Box::new(Mix::new(Arc::clone(plan), 0)) };
        self.load(plan, &self.peer, (connections, depth), mix, Until::Elapsed(SCENE_TIME))
    }

    fn cpu(&self) -> Result<Cpu, DemoError> {
        self.process.cpu().map_err(DemoError::io("the server's processor time"))
    }

    fn resident_bytes(&self) -> Result<u64, DemoError> {
        self.process.resident_bytes().map_err(DemoError::io("the server's memory"))
    }
}

fn store(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let before = stage.resident_bytes()?;
    let fill = |plan: &Arc<Plan>| -> Box<dyn Supply> { Box::new(Fill::new(plan)) };
    let report = stage.load(stage.plan.clone(), &stage.peer, (ACTIVE, 32), fill, Until::Exhausted)?;
    let grown = stage.resident_bytes()?.saturating_sub(before);
    let note = format!(
        "Memory: {} items of 32 + 100 bytes took {} bytes of RAM each, everything included.",
        count(ITEMS),
        grown / ITEMS
    );
    Ok(outcome(STORE, &report, Some(note)))
}

fn many_connections(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let before = stage.resident_bytes()?;
    let idle = (0..IDLE).map(|_| stage.peer.connect()).collect::<Result<Vec<_>, _>>()?;
    let report = stage.ask(ACTIVE, 1, 1)?;
    let grown = stage.resident_bytes()?.saturating_sub(before);
    drop(idle);
    let note = format!(
        "Connections: {} idle and {ACTIVE} busy ones took {} KiB of RAM together.",
        count(IDLE as u64),
        count(grown >> 10)
    );
    Ok(outcome(MANY_CONNECTIONS, &report, Some(note)))
}

fn pipelined(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    Ok(outcome(PIPELINED, &stage.ask(ACTIVE, 32, 1)?, None))
}

fn multiget(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    Ok(outcome(MULTIGET, &stage.ask(ACTIVE, 1, 32)?, None))
}

fn overfull(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let plan = Plan {
        keys: 2_000_000,
        sizes: Sizes::fixed(300),
        fill_on_miss: true,
        run: Plan::new_run(),
        ..stage.plan.clone()
    };
    let peer = Arc::new(Peer::new(&stage.address, &plan)?);
    let mix = |plan: &Arc<Plan>| -> Box<dyn Supply> { Box::new(Mix::new(Arc::clone(plan), 0)) };
    let until = Until::Elapsed(SCENE_TIME / 2);
    // Memory is filled first; only later requests count.
    stage.load(plan.clone(), &peer, (ACTIVE, 32), mix, until)?;
    let report = stage.load(plan.clone(), &peer, (ACTIVE, 32), mix, until)?;
    let note = format!(
        "Eviction: {} keys by Zipf 1.0, some {} MiB of data in {MEMORY_MIB} MiB.",
        count(plan.keys),
        (plan.keys * 332) >> 20
    );
    Ok(outcome(OVERFULL, &report, Some(note)))
}

fn outcome(title: &str, report: &Report, note: Option<String>) -> SceneOutcome {
    #[expect(clippy::cast_sign_loss, reason = "a rate is not negative")]
    let rate = report.requests_per_second as u64;
    let row = vec![
        title.to_owned(),
        count(rate),
        report.hit_ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0)),
        micros(report.p50_us),
        micros(report.p99_us),
        micros(report.p999_us),
        report.cpu_us_per_operation.map_or_else(|| "-".to_owned(), |us| format!("{us:.2} us")),
    ];
    SceneOutcome { rows: vec![row], note }
}
