//! A server under load from several threads.

use std::sync::Arc;
use std::thread;

use crate::driver::{Meter, Peer, Session, Until};
use crate::wire::Wire;
use crate::workload::{Fill, Mix, Plan, Supply};
use crate::{BenchError, Cpu, Process, Tally, Tls};

/// The threads and connections of a load.
#[derive(Debug, Clone, Default)]
pub struct Shape {
    /// The number of threads that drive the connections, at least 1. At most as many as connections are
    /// started.
    pub threads: usize,
    /// The number of connections of all threads, at least 1.
    pub connections: usize,
    /// The number of requests that a connection sends before it waits for replies, at least 1.
    pub depth: usize,
    /// Whether each connection is closed after a batch, so that the next batch goes over a new one.
    pub reconnects: bool,
    /// TLS for the connections; None: they are plain.
    pub tls: Option<Tls>,
}

/// A server, and the threads that load it.
pub struct Target<W> {
    plan: Arc<Plan>,
    process: Option<Process>,
    workers: Vec<(Session<W>, Box<dyn Supply>)>,
}

impl<W: Wire + Clone + Send> Target<W> {
    /// Opens the connections. Requests are drawn from the plan's mix until [`Target::supply`] sets another
    /// source.
    ///
    /// `pid`: the server's process, for its processor time.
    pub fn open(
        wire: &W,
        plan: &Arc<Plan>,
        address: &str,
        pid: Option<u32>,
        shape: &Shape,
    ) -> Result<Self, BenchError> {
        let process = pid.map(Process::new).transpose().map_err(BenchError::io("no process of this pid"))?;
        let peer = Arc::new(Peer::new(address, plan)?.over_tls(shape.tls.clone()));
        let connections = shape.connections;
        let threads = shape.threads.min(connections);
        let workers = (0..threads).map(|thread| {
            let own = connections / threads + usize::from(thread < connections % threads);
            let mut session =
                Session::open(wire.clone(), Arc::clone(plan), Arc::clone(&peer), own, shape.depth)?;
            if shape.reconnects {
                session.reconnect();
            }
            let mix: Box<dyn Supply> = Box::new(Mix::new(Arc::clone(plan), thread as u64));
            Ok((session, mix))
        });
        Ok(Self { plan: Arc::clone(plan), process, workers: workers.collect::<Result<_, BenchError>>()? })
    }

    /// Draws requests from clones of this supply from now on.
    pub fn supply(&mut self, supply: &(impl Supply + Clone + 'static)) {
        for (_, own) in &mut self.workers {
            *own = Box::new(supply.clone());
        }
    }

    /// Sets every key once.
    pub fn fill(&mut self, meter: &Meter) -> Result<Tally, BenchError> {
        let fill = Fill::new(&self.plan);
        run(self.workers.iter_mut().map(|(session, _)| (session, fill.clone())), Until::Exhausted, meter)
    }

    /// Loads the server until the end. Returns the counts, and the processor time that the server has used.
    pub fn run(&mut self, until: Until, meter: &Meter) -> Result<(Tally, Option<Cpu>), BenchError> {
        let until = match until {
            Until::Requests(number) => Until::Requests(number.div_ceil(self.workers.len() as u64)),
            other => other,
        };
        let before = self.cpu()?;
        let tally = run(self.workers.iter_mut().map(|(session, supply)| (session, supply)), until, meter)?;
        let after = self.cpu()?;
        Ok((tally, after.zip(before).map(|(after, before)| after.since(before))))
    }

    fn cpu(&self) -> Result<Option<Cpu>, BenchError> {
        let cpu = self.process.map(Process::cpu).transpose();
        cpu.map_err(BenchError::io("the server's processor time"))
    }
}

impl Supply for &mut Box<dyn Supply> {
    fn next(&mut self, keys: &mut Vec<u64>) -> Option<crate::Op> {
        (***self).next(keys)
    }
}

/// Runs each session in a thread. All start and end together.
fn run<'a, W: Wire + Clone + Send + 'a, S: Supply>(
    workers: impl Iterator<Item = (&'a mut Session<W>, S)>,
    until: Until,
    meter: &Meter,
) -> Result<Tally, BenchError> {
    thread::scope(|scope| {
        let running: Vec<_> = workers
            .map(|(session, mut supply)| scope.spawn(move || session.run(&mut supply, until, meter)))
            .collect();
        let mut sum = Tally::new();
        for worker in running {
            sum.add_beside(&worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(sum)
    })
}
