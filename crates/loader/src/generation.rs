//! Generations: how loaders start, and how a reload replaces all of them, or none.
//!
//! A reload starts a new pool beside the old one for each loader, since its program may have changed. Both
//! share the bound on processes. With a template only the template must be ready, and it is no worker; the
//! other modes show by one worker that they can start, and the old pool gives up a worker for it. Then
//! [`Loaders::commit`] puts the new pools in place together with whatever belongs to them, such as rules; the
//! old ones take no more jobs and end the ones that their workers have begun, whose results count. The others
//! are ordered anew, from the new pools.
//!
//! # Invariants
//! * Until the commit nothing changes for clients. A [`NewGeneration`] that is dropped leaves everything as
//!   it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cattlegrid_config::{LoaderMode, LoaderSettings};
use cattlegrid_pool::{Pool, PoolStart};

use crate::host::Host;
use crate::loaders::{Generation, GenerationSet, Loaders};
use crate::pool::{builder, builder_of};
use crate::program::LoaderProgram;

/// The error of a loader that did not start. Its text has the loader's name, and the worker's last output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("loader {loader}: {reason}")]
pub struct StartError {
    /// The loader's name.
    pub loader: String,
    /// The step that failed, and the message of the system or the program.
    pub reason: String,
}

/// A new generation that is ready and not in force yet.
#[must_use = "it ends when it is dropped; commit() puts it in place"]
#[derive(Debug)]
pub struct NewGeneration {
    set: GenerationSet,
    /// Old pools that have given up a worker for it, with their former `idle` and `max`.
    squeezed: Vec<(Pool, usize, usize)>,
}

impl Drop for NewGeneration {
    fn drop(&mut self) {
        for (pool, idle, max) in &self.squeezed {
            pool.resize(*idle, *max);
        }
    }
}

impl Loaders {
    /// Starts all loaders at the same time, and waits until they are ready. `item_bytes_max`: the server's
    /// largest item.
    ///
    /// # Errors
    /// The first loader that did not become ready within its `start_timeout`; all others have been told to
    /// end.
    pub fn start(
        settings: &[LoaderSettings],
        item_bytes_max: usize,
        host: Arc<dyn Host>,
    ) -> Result<Self, StartError> {
        let loaders = Self::empty(host, item_bytes_max);
        let mut prepared = loaders.spawn(settings, |_| true, &|| true)?;
        *loaders.current_mut() = std::mem::take(&mut prepared.set);
        Ok(loaders)
    }

    /// Starts a new generation of all loaders, and waits until all are ready. `keeps_waiting` can end the
    /// wait.
    ///
    /// # Errors
    /// The first loader that did not become ready within its `start_timeout`, or before `keeps_waiting`
    /// returned false. Everything is as before.
    pub fn prepare(
        &self,
        settings: &[LoaderSettings],
        keeps_waiting: &dyn Fn() -> bool,
    ) -> Result<NewGeneration, StartError> {
        self.spawn(settings, |settings| settings.mode != LoaderMode::Template, keeps_waiting)
    }

    /// Puts a new generation in force, together with the changes of `put_in_force`. No load is lost: while
    /// that runs, new loaders are there already, and removed ones are still there.
    ///
    /// # Errors
    /// The error of `put_in_force`. Everything is as before.
    pub fn commit<R, E>(
        &self,
        mut prepared: NewGeneration,
        put_in_force: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let mut added = Vec::new();
        {
            let mut current = self.current_mut();
            for (name, running) in &prepared.set {
                if !current.contains_key(name) {
                    current.insert(Arc::clone(name), Arc::clone(running));
                    added.push(Arc::clone(name));
                }
            }
        }
        let done = match put_in_force() {
            Ok(done) => done,
            Err(error) => {
                let mut current = self.current_mut();
                let gone: Vec<_> = added.iter().filter_map(|name| current.remove(name)).collect();
                drop(current);
                self.drain(gone);
                return Err(error);
            }
        };
        let new = std::mem::take(&mut prepared.set);
        for running in new.values() {
            running.program.budget().resize(running.settings.max);
        }
        let mut current = self.current_mut();
        let old = std::mem::replace(&mut *current, new);
        // No job is submitted until `current` is released, so all jobs of these loaders are in old pools.
        // Jobs that no worker has begun are taken back, and the engine orders them again: they need not wait
        // for old workers to leave.
        self.common.table.withdraw_all(|name| old.contains_key(name));
        drop(current);
        // The old pools that gave up a worker end now.
        prepared.squeezed.clear();
        self.drain(old.into_iter().filter(|(name, _)| !added.contains(name)).map(|(_, running)| running));
        Ok(done)
    }

    /// Starts a pool for each loader, and waits for all. `probes`: whether one worker of each must become
    /// ready.
    fn spawn(
        &self,
        settings: &[LoaderSettings],
        probes: impl Fn(&LoaderSettings) -> bool,
        keeps_waiting: &dyn Fn() -> bool,
    ) -> Result<NewGeneration, StartError> {
        let mut prepared = NewGeneration { set: GenerationSet::new(), squeezed: Vec::new() };
        let mut starting: Vec<(Arc<LoaderProgram>, &LoaderSettings, Arc<AtomicBool>, PoolStart)> = Vec::new();
        for settings in settings {
            let program = self.program(settings);
            let failed = |reason| StartError { loader: settings.name.clone(), reason };
            let builder = builder_of(settings, self.common.item_bytes_max, &program, &self.common.room)
                .map_err(failed)?;
            let probe = probes(settings);
            if probe && let Some(old) = self.current().get(settings.name.as_str()) {
                let (idle, max) = (old.settings.idle, old.settings.max);
                old.pool.resize(idle.min(max - 1), max - 1);
                prepared.squeezed.push((old.pool.clone(), idle, max));
            }
            let gone = Arc::new(AtomicBool::new(false));
            let (tell, draining) = (Arc::clone(&gone), Arc::clone(self.draining()));
            let builder = builder.probe(probe).on_destroy(move || {
                tell.store(true, SeqCst);
                draining.let_go();
            });
            starting.push((program, settings, gone, builder.spawn()));
        }
        let mut starting = starting.into_iter();
        while let Some((program, settings, gone, own)) = starting.next() {
            let Some(pool) = own.wait_while(keeps_waiting) else {
                starting.for_each(|(.., other)| other.give_up());
                let reason = "it was not ready when another reload was asked for".to_owned();
                return Err(StartError { loader: settings.name.clone(), reason });
            };
            let pool = pool.map_err(|error| start_error(settings, program.why(&error)))?;
            let name = Arc::clone(program.name());
            let running = Generation { program, settings: settings.clone(), pool, gone };
            prepared.set.insert(name, Arc::new(running));
        }
        Ok(prepared)
    }

    /// The state that all generations of a loader share, found by its name; also of a loader that was removed
    /// and whose last jobs run.
    fn program(&self, settings: &LoaderSettings) -> Arc<LoaderProgram> {
        let current = self.current().get(settings.name.as_str()).map(|running| Arc::clone(&running.program));
        let old = || {
            let draining = self.draining().all();
            let mut of_name = draining.iter().filter(|old| **old.program.name() == *settings.name);
            of_name.next().map(|old| Arc::clone(&old.program))
        };
        let host = || Arc::clone(&self.common.host);
        current.or_else(old).unwrap_or_else(|| LoaderProgram::new(&settings.name, settings.max, host()))
    }
}

fn start_error(settings: &LoaderSettings, reason: String) -> StartError {
    let reason = match &settings.user {
        Some(user) if reason.contains("Permission denied") => {
            format!("{reason}; user {user} needs access to the program, its files and its directory")
        }
        _ => reason,
    };
    StartError { loader: settings.name.clone(), reason }
}

/// The most descriptors that the pools of these loaders need while a reload replaces all of them.
pub fn descriptors(settings: &[LoaderSettings]) -> usize {
    let of_one = |settings| builder(settings, 0).map_or(0, |builder| builder.descriptors());
    2 * settings.iter().map(of_one).sum::<usize>()
}
