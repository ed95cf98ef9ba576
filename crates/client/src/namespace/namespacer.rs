//! Namespaces over a cache: the commands around [`NamespaceRecord`] and [`Naming`].

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

use rand::TryRng as _;
use rand::rngs::SysRng;

use super::key::{LogicalKey, Namespace, NamespacedKey, Naming, number};
use super::options::NamespacerOptions;
use super::record::{NamespaceRecord, RecordSettings};
use crate::cache::Cache;
use crate::error::Error;
use crate::item::{Clock, Item, Write, Written};

/// Makes keys that can be invalidated by namespace, such as all keys of a user. Cheap to clone.
///
/// ```no_run
/// # async fn example(cache: impl cattlegrid_client::Cache) -> Result<(), cattlegrid_client::Error> {
/// use cattlegrid_client::{Namespacer, NamespacerOptions};
/// let namespaces = Namespacer::new(cache, NamespacerOptions::default()).await?;
/// let basket = namespaces.key_of("basket", &[("userId", 12543)]).await?;
/// // get and set under `basket`, then, when something has changed for the user:
/// namespaces.update("userId", 12543).await?;
/// # Ok(())
/// # }
/// ```
///
/// Over servers with tags a key has the tags of its namespaces, and an update invalidates the tag. Over other
/// servers, and with [`use_tags(false)`](NamespacerOptions::use_tags), numbers in the keys do the same. An
/// update by any process is seen by each key made after it. What is stored under a key that was made before
/// an update is not found by a key made after it; with tags that holds for values stored before the update,
/// and for all values of keys that a rule of the server matches or that are filled under a lease.
///
/// # Servers that change
/// The record says which way is used, for all processes. Servers without tags take the place of others, or
/// are added: processes notice it within five seconds while they make keys, or at the next update, and go on
/// with numbers. Until then values with tags are refused. The way back is taken when the record is lost, as
/// by a restart of its server, and all servers have tags. All keys are new then.
///
/// # Other clients
/// Another client may read and write under the text of a key. What it writes over tags has none, unless a
/// rule of the server derives them from the key (for each kind of key in use, with the option `prefix` in
/// place of `___`):
///
/// ```toml
/// [[rule]]
/// match = "___{master}:userId:{id}"
/// tags  = ["___userId:{id}", "___{master}"]
///
/// [[rule]]
/// match = "___{master}:lastWatched:userId:{user}:prodId:{product}"
/// tags  = ["___userId:{user}", "___prodId:{product}", "___{master}"]
/// ```
///
/// `delete @tag:___userId:1234` then invalidates a namespace from any client.
///
/// # Clocks
/// The clocks of all processes should agree: a rolling flush begins and ends in each process by its own
/// clock.
pub struct Namespacer<C: Cache>(Arc<NamespacerInner<C>>);

struct NamespacerInner<C> {
    cache: C,
    /// With numbers, and with tags.
    ways: [Invalidation; 2],
    /// Tags are wanted, if all servers have them.
    wants_tags: bool,
    current: Mutex<KnownInvalidation>,
    record_key: String,
    clock: Clock,
    /// The record as last read, where a copy is good enough.
    copy: Mutex<Option<RecordCopy>>,
    /// Held by the task of this process that changes the record: fewer conflicts.
    turn: tokio::sync::Mutex<()>,
}

/// A way of invalidation: numbers or tags.
struct Invalidation {
    naming: Naming,
    settings: RecordSettings,
}

/// This process's knowledge of the common way.
struct KnownInvalidation {
    tags: bool,
    /// When it was found to have changed, Unix time in milliseconds.
    changed_ms: Option<u64>,
    /// When the servers were asked last whether they have tags.
    asked_ms: u64,
}

/// A record that was read.
struct RecordCopy {
    record: Arc<NamespaceRecord>,
    /// When it was asked for, Unix time in milliseconds.
    at_ms: u64,
}

/// Age of a copy at most.
const COPY_MS: u64 = 1_000;
/// While tags are used the servers are asked this often whether they have them still.
const ASK_MS: u64 = 5_000;
/// For this long after the way has changed an update is made in both: other processes may have copies of the
/// old record.
const CHANGING_MS: u64 = 3 * COPY_MS;
/// Tries to update while the way changes.
const WAYS: usize = 4;
/// Tries to read or create an item that disappears again and again.
const TRIES: usize = 16;
/// Tries to change the record while others change it. In each round one of them succeeds.
const CHANGES: usize = 1_000;

impl<C: Cache> Clone for Namespacer<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C: Cache> fmt::Debug for Namespacer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        f.debug_struct("Namespacer")
            .field("prefix", &inner.naming().prefix)
            .field("settings", &inner.way().settings)
            .finish()
    }
}

impl<C: Cache> Namespacer<C> {
    /// Namespaces over `cache`. Reads the record of the prefix, or creates it, and asks whether the servers
    /// have tags.
    ///
    /// # Errors
    /// [`Error::Usage`]: an option is out of its range. [`Error::SettingsDiffer`]: other processes have other
    /// options. [`Error::Value`]: the item `PREFIXrecord` was written by another program or version. Those of
    /// the cache.
    pub async fn new(cache: C, options: NamespacerOptions) -> Result<Self, Error> {
        options.check()?;
        let tags = options.use_tags && cache.has_tags().await?;
        let ways = [false, true].map(|tags| {
            let settings = RecordSettings::new(&options, tags);
            let (prefix, separator) = (options.prefix.clone(), options.separator.clone());
            Invalidation { naming: Naming { prefix, separator, tags, master: settings.windows() }, settings }
        });
        let record_key = ways[0].naming.record_key();
        let (copy, turn) = (Mutex::new(None), tokio::sync::Mutex::new(()));
        let current = Mutex::new(KnownInvalidation { tags, changed_ms: None, asked_ms: 0 });
        let (wants_tags, clock) = (options.use_tags, options.clock);
        let inner = NamespacerInner { cache, ways, wants_tags, current, record_key, clock, copy, turn };
        let now_ms = inner.now_ms();
        inner.current().asked_ms = now_ms;
        let record = inner.recent().await?;
        if record.began_ms().is_none() {
            // Nor can it be known what others have seen before.
            inner.current().changed_ms = Some(now_ms);
        }
        Ok(Self(Arc::new(inner)))
    }

    /// The cache.
    pub fn cache(&self) -> &C {
        &self.0.cache
    }

    /// Whether tags are used, not numbers.
    pub fn uses_tags(&self) -> bool {
        self.0.current().tags
    }

    /// The key of a namespace: `key("userId", 1234)`.
    ///
    /// Costs one read of the record, and one of the namespace's number if it may have been updated. With tags
    /// the record is read once a second at most.
    ///
    /// # Errors
    /// [`Error::Usage`] and [`Error::Key`]: a part is empty, the key can become longer than 250 bytes, or,
    /// with tags, a tag longer than 200. [`Error::SettingsDiffer`], [`Error::Value`] as [`new`](Self::new).
    /// Those of the cache.
    pub fn key(
        &self,
        name: &str,
        id: impl Display,
    ) -> impl Future<Output = Result<NamespacedKey, Error>> + Send {
        let naming = self.0.naming();
        let logical = naming.namespace(name, &id).and_then(|namespace| naming.single(namespace));
        async move { one(self.0.keys(vec![logical?]).await?) }
    }

    /// A key with a name of its own in one to seven namespaces: `key_of("lastWatched", &[("userId", 12543),
    /// ("prodId", 549)])`.
    ///
    /// # Errors
    /// As [`key`](Self::key); [`Error::Usage`]: no namespace, or more than seven.
    pub fn key_of<D: Display>(
        &self,
        name: &str,
        namespaces: &[(&str, D)],
    ) -> impl Future<Output = Result<NamespacedKey, Error>> + Send {
        let logical = self.0.naming().named(name, namespaces);
        async move { one(self.0.keys(vec![logical?]).await?) }
    }

    /// [`key`](Self::key) of many namespaces, with one read of the record and at most one of all numbers, in
    /// their order.
    ///
    /// # Errors
    /// As [`key`](Self::key), for all of them.
    pub fn keys<D: Display>(
        &self,
        namespaces: &[(&str, D)],
    ) -> impl Future<Output = Result<Vec<NamespacedKey>, Error>> + Send {
        let naming = self.0.naming();
        let all = namespaces.iter().map(|(name, id)| naming.single(naming.namespace(name, id)?));
        let all: Result<Vec<_>, Error> = all.collect();
        async move { self.0.keys(all?).await }
    }

    /// [`key_of`](Self::key_of) for many keys, with one read of the record and at most one of all numbers, in
    /// their order.
    ///
    /// # Errors
    /// As [`key_of`](Self::key_of), for all of them.
    pub fn keys_of<D: Display>(
        &self,
        keys: &[(&str, &[(&str, D)])],
    ) -> impl Future<Output = Result<Vec<NamespacedKey>, Error>> + Send {
        let all = keys.iter().map(|(name, namespaces)| self.0.naming().named(name, namespaces));
        let all: Result<Vec<_>, Error> = all.collect();
        async move { self.0.keys(all?).await }
    }

    /// Invalidates all keys of a namespace.
    ///
    /// # Errors
    /// As [`key`](Self::key). After an error of the cache the update may have been made or not: call it
    /// again.
    pub fn update(&self, name: &str, id: impl Display) -> impl Future<Output = Result<(), Error>> + Send {
        let namespace = self.0.naming().namespace(name, &id);
        async move { self.0.update(vec![namespace?]).await }
    }

    /// [`update`](Self::update) of many namespaces, with one change of the record.
    ///
    /// # Errors
    /// As [`update`](Self::update); after an error of the cache each of the updates may have been made or
    /// not.
    pub fn update_many<D: Display>(
        &self,
        namespaces: &[(&str, D)],
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let all = namespaces.iter().map(|(name, id)| self.0.naming().namespace(name, id));
        let all: Result<Vec<_>, Error> = all.collect();
        async move { self.0.update(all?).await }
    }

    /// Changes all keys of this prefix, each at its own time within the [rolling
    /// period](NamespacerOptions::rolling_period). At most three flushes are in progress at a time: another
    /// ends the oldest at once.
    ///
    /// With tags, other processes notice it within a second, so their first keys change up to a second late.
    ///
    /// # Errors
    /// [`Error::Usage`]: without the optimization there is no master number. Otherwise as
    /// [`update`](Self::update).
    pub async fn flush_all_rolling(&self) -> Result<(), Error> {
        self.0.flush().await
    }
}

impl<C: Cache> NamespacerInner<C> {
    fn current(&self) -> MutexGuard<'_, KnownInvalidation> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn way(&self) -> &Invalidation {
        &self.ways[usize::from(self.current().tags)]
    }

    fn naming(&self) -> &Naming {
        &self.way().naming
    }

    /// Whether other processes may still use the other way: this one has noticed a change lately, or the
    /// record is new.
    fn is_changing(&self, record: &NamespaceRecord) -> bool {
        let now_ms = self.now_ms();
        let is_late = |at_ms: u64| now_ms.checked_sub(at_ms).is_none_or(|age_ms| age_ms < CHANGING_MS);
        let changed_ms = self.current().changed_ms;
        self.wants_tags && (changed_ms.is_some_and(is_late) || record.began_ms().is_some_and(is_late))
    }

    /// The record as keys need it.
    async fn record(&self) -> Result<Arc<NamespaceRecord>, Error> {
        let is_copied = |settings: &RecordSettings| settings.tags || !settings.optimize;
        if is_copied(&self.way().settings) {
            let record = self.recent().await?;
            if is_copied(&record.settings) {
                return Ok(record);
            }
        }
        // With numbers, the record shows what was updated: a copy would hide it.
        Ok(Arc::new(self.read().await?))
    }

    async fn keys(&self, all: Vec<LogicalKey>) -> Result<Vec<NamespacedKey>, Error> {
        let record = self.record().await?;
        let Invalidation { naming, settings } = &self.ways[usize::from(record.settings.tags)];
        let now_ms = self.now_ms();
        let windows: Vec<_> = all.iter().map(|logical| record.window(logical.hash, now_ms)).collect();
        let own = |place: usize, namespace: &Namespace| {
            !settings.tags && windows[place].is_none_or(|window| window.evidence.marked(namespace.hash))
        };
        let mut places = HashMap::new();
        let mut wanted = Vec::new();
        for (place, logical) in all.iter().enumerate() {
            for namespace in logical.namespaces.iter().filter(|namespace| own(place, namespace)) {
                places.entry(namespace.text.as_str()).or_insert_with(|| {
                    wanted.push(naming.counter_key(namespace));
                    wanted.len() - 1
                });
            }
        }
        let numbers = self.counters(&wanted).await?;
        let keys = all.iter().enumerate().map(|(place, logical)| {
            let counter = |namespace: &Namespace| {
                if !own(place, namespace) {
                    return None;
                }
                places.get(namespace.text.as_str()).map(|place| numbers[*place])
            };
            let counters: Vec<_> = logical.namespaces.iter().map(counter).collect();
            naming.key(logical, windows[place].map(|window| window.master), &counters)
        });
        Ok(keys.collect())
    }

    async fn update(&self, namespaces: Vec<Namespace>) -> Result<(), Error> {
        if namespaces.is_empty() {
            return Ok(());
        }
        let mut failed = Err(self.unstable(WAYS));
        for _ in 0..WAYS {
            let settings = &self.way().settings;
            // The record tells the way, and whether other processes have other options: they would not see
            // this update.
            let copied = settings.tags || !settings.optimize;
            let copy = if copied { Some(self.recent().await?) } else { None };
            let is_tags = copy.as_ref().is_some_and(|record| record.settings.tags);
            if is_tags {
                match self.invalidate(&namespaces).await {
                    Err(Error::NoTags) => {
                        failed = Err(Error::NoTags);
                        self.tags_are_refused().await?;
                        continue;
                    }
                    invalidated => invalidated?,
                }
            }
            let record = match copy {
                Some(record) if is_tags && !self.is_changing(&record) => return Ok(()),
                _ => self.update_numbers(&namespaces).await?,
            };
            if !is_tags && self.is_changing(&record) {
                // For those that have tags still, and a copy of a record that wants them.
                self.invalidate(&namespaces).await.ok();
            }
            if record.settings.tags == is_tags {
                return Ok(());
            }
        }
        failed
    }

    async fn invalidate(&self, namespaces: &[Namespace]) -> Result<(), Error> {
        let tags: Vec<_> = namespaces.iter().map(|namespace| self.ways[1].naming.tag(namespace)).collect();
        self.cache.invalidate(&tags).await
    }

    /// Replaces the numbers of namespaces, and notes it in the record, unless that is one for tags.
    async fn update_numbers(&self, namespaces: &[Namespace]) -> Result<Arc<NamespaceRecord>, Error> {
        let Invalidation { naming, settings } = &self.ways[0];
        let mut counters = Vec::with_capacity(namespaces.len());
        for namespace in namespaces {
            counters.push((naming.counter_key(namespace), format!("{:016x}", random()?)));
        }
        let writes: Vec<_> = counters.iter().map(|(key, number)| write(key, number.as_bytes())).collect();
        for written in self.cache.set_many(&writes).await {
            written?;
        }
        if !settings.optimize {
            return self.recent().await;
        }
        // After the counters: otherwise a key made in between would change twice.
        let (master, now_ms) = (random()?, self.now_ms());
        let mark = |record: &mut NamespaceRecord| {
            if record.settings.tags {
                return false;
            }
            let changes = namespaces.iter().map(|namespace| record.update(namespace.hash, master, now_ms));
            changes.fold(false, |any, change| any | change)
        };
        self.change(mark).await.map(Arc::new)
    }

    async fn flush(&self) -> Result<(), Error> {
        let no_flush = || {
            let message = "without optimize_with_default_counter_and_evidence there is no rolling flush";
            Err(Error::Usage(message.to_owned()))
        };
        if !self.way().settings.windows() {
            return no_flush();
        }
        let (master, now_ms) = (random()?, self.now_ms());
        let mut ended = Vec::new();
        let record = self
            .change(|record| {
                let has_windows = record.settings.windows();
                if has_windows {
                    ended = record.flush(master, now_ms);
                }
                has_windows
            })
            .await?;
        if !record.settings.windows() {
            return no_flush();
        }
        tracing::info!(prefix = self.naming().prefix, "rolling flush begins");
        if record.settings.tags {
            self.keep(Arc::new(record), self.now_ms());
            // Keys that were handed out under these numbers long ago are misses too.
            let tags: Vec<_> = ended.iter().map(|master| self.naming().master_tag(*master)).collect();
            if !tags.is_empty() {
                match self.cache.invalidate(&tags).await {
                    // Then the record is replaced, and all keys are new.
                    Err(Error::NoTags) => self.tags_are_refused().await?,
                    invalidated => invalidated?,
                }
            }
        }
        Ok(())
    }

    /// The record, read a second ago at most.
    async fn recent(&self) -> Result<Arc<NamespaceRecord>, Error> {
        let now_ms = self.now_ms();
        if let Some(record) = self.fresh_copy(now_ms) {
            return Ok(record);
        }
        let record = Arc::new(self.read().await?);
        self.keep(Arc::clone(&record), now_ms);
        Ok(record)
    }

    fn fresh_copy(&self, now_ms: u64) -> Option<Arc<NamespaceRecord>> {
        let copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh =
            |copy: &&RecordCopy| now_ms.checked_sub(copy.at_ms).is_some_and(|age_ms| age_ms < COPY_MS);
        copy.as_ref().filter(fresh).map(|copy| Arc::clone(&copy.record))
    }

    /// Keeps what was asked for at this time, unless another task has asked later.
    fn keep(&self, record: Arc<NamespaceRecord>, at_ms: u64) {
        let now_ms = self.now_ms();
        let mut copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        if copy.as_ref().is_none_or(|copy| !(at_ms + 1..=now_ms).contains(&copy.at_ms)) {
            *copy = Some(RecordCopy { record, at_ms });
        }
    }

    fn forget(&self) {
        *self.copy.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Reads the record, or creates it.
    async fn read(&self) -> Result<NamespaceRecord, Error> {
        for _ in 0..TRIES {
            if let Some(item) = self.cache.get(self.record_key.as_bytes()).await? {
                let record = self.checked(&item)?;
                if self.is_possible(&record).await {
                    return Ok(record);
                }
                self.leave_tags().await?;
                continue;
            }
            if let Some(record) = self.create().await? {
                return Ok(record);
            }
        }
        Err(self.unstable(TRIES))
    }

    /// Writes a record where none is; None: one is.
    async fn create(&self) -> Result<Option<NamespaceRecord>, Error> {
        // The servers may be others than before.
        let tags = self.wants_tags && self.ask_for_tags().await?;
        let record =
            NamespaceRecord::new(self.ways[usize::from(tags)].settings.clone(), random()?, self.now_ms());
        let written = self.cache.add(write(&self.record_key, &record.encode())).await?;
        if written.is_stored() {
            tracing::debug!(prefix = self.naming().prefix, "no record of the namespaces: all keys are new");
            self.note(&record);
        }
        Ok(written.is_stored().then_some(record))
    }

    async fn ask_for_tags(&self) -> Result<bool, Error> {
        let now_ms = self.now_ms();
        self.current().asked_ms = now_ms;
        self.cache.has_tags().await
    }

    /// Whether the servers can do what the record wants.
    async fn is_possible(&self, record: &NamespaceRecord) -> bool {
        let (asked_ms, now_ms) = (self.current().asked_ms, self.now_ms());
        let is_known = now_ms.checked_sub(asked_ms).is_some_and(|age_ms| age_ms < ASK_MS);
        // A server that cannot be asked decides nothing.
        !record.settings.tags || is_known || self.ask_for_tags().await.unwrap_or(true)
    }

    /// Asks the servers, whatever another task of this process has asked and has no answer to yet.
    async fn tags_are_refused(&self) -> Result<(), Error> {
        if !self.ask_for_tags().await? {
            self.leave_tags().await?;
        }
        self.forget();
        Ok(())
    }

    /// Replaces a record that wants tags, which not all servers have any more.
    async fn leave_tags(&self) -> Result<(), Error> {
        let Some(item) = self.cache.gets(self.record_key.as_bytes()).await? else { return Ok(()) };
        if self.checked(&item)?.settings.tags {
            let record = NamespaceRecord::new(self.ways[0].settings.clone(), random()?, self.now_ms());
            tracing::warn!(prefix = self.naming().prefix, "a server has no tags any more: numbers are used");
            self.cache.cas(write(&self.record_key, &record.encode()), item.cas).await?;
        }
        Ok(())
    }

    /// Changes the record, unless `apply` says that it needs no change. A new record needs none: all keys
    /// differ.
    async fn change(
        &self,
        mut apply: impl FnMut(&mut NamespaceRecord) -> bool + Send,
    ) -> Result<NamespaceRecord, Error> {
        let _turn = self.turn.lock().await;
        for _ in 0..CHANGES {
            let Some(item) = self.cache.gets(self.record_key.as_bytes()).await? else {
                if let Some(record) = self.create().await? {
                    return Ok(record);
                }
                continue;
            };
            let mut record = self.checked(&item)?;
            if !self.is_possible(&record).await {
                self.leave_tags().await?;
                continue;
            }
            if !apply(&mut record) {
                return Ok(record);
            }
            let data = record.encode();
            if self.cache.cas(write(&self.record_key, &data), item.cas).await?.is_stored() {
                return Ok(record);
            }
        }
        Err(self.unstable(CHANGES))
    }

    fn checked(&self, item: &Item) -> Result<NamespaceRecord, Error> {
        let wrong = |message: String| Error::Value { key: self.record_key.clone(), message };
        let record = NamespaceRecord::decode(&item.data).map_err(wrong)?;
        // The way is what the record says, if this process may use tags at all.
        let own = &self.ways[usize::from(record.settings.tags && self.wants_tags)].settings;
        match own.difference(&record.settings) {
            None => {
                self.note(&record);
                Ok(record)
            }
            Some(difference) => Err(Error::SettingsDiffer {
                prefix: self.naming().prefix.clone(),
                option: difference.option,
                here: difference.here,
                there: difference.there,
            }),
        }
    }

    /// Takes the way of the record from now on.
    fn note(&self, record: &NamespaceRecord) {
        let now_ms = self.now_ms();
        let mut current = self.current();
        if current.tags != record.settings.tags {
            current.tags = record.settings.tags;
            current.changed_ms = Some(now_ms);
            drop(current);
            self.forget();
        }
    }

    /// The numbers under these keys. An absent number is replaced by a new one.
    async fn counters(&self, keys: &[String]) -> Result<Vec<u64>, Error> {
        let mut numbers = vec![None; keys.len()];
        let mut missing: Vec<usize> = (0..keys.len()).collect();
        for _ in 0..TRIES {
            if missing.is_empty() {
                break;
            }
            let wanted: Vec<_> = missing.iter().map(|place| keys[*place].as_bytes()).collect();
            let items = self.cache.get_many(&wanted).await;
            let mut absent = Vec::new();
            for (place, item) in missing.into_iter().zip(items) {
                match item? {
                    Some(item) => numbers[place] = Some(own_number(&keys[place], &item)?),
                    None => absent.push((place, random()?)),
                }
            }
            missing = self.add_counters(keys, &absent, &mut numbers).await?;
        }
        // Evicted as fast as they are written: a number that only this key has finds nothing, which is right.
        numbers.into_iter().map(|number| number.map_or_else(random, Ok)).collect()
    }

    /// Stores new numbers; returns the places where another process was faster.
    async fn add_counters(
        &self,
        keys: &[String],
        absent: &[(usize, u64)],
        numbers: &mut [Option<u64>],
    ) -> Result<Vec<usize>, Error> {
        if absent.is_empty() {
            return Ok(Vec::new());
        }
        let texts: Vec<_> = absent.iter().map(|(_, number)| format!("{number:016x}")).collect();
        let writes =
            absent.iter().zip(&texts).map(|((place, _), text)| write(&keys[*place], text.as_bytes()));
        let writes: Vec<_> = writes.collect();
        let mut missing = Vec::new();
        for ((place, number), written) in absent.iter().zip(self.cache.add_many(&writes).await) {
            if matches!(written?, Written::Stored { .. }) {
                numbers[*place] = Some(*number);
            } else {
                missing.push(*place);
            }
        }
        Ok(missing)
    }

    fn unstable(&self, tries: usize) -> Error {
        let message = format!("it was changed or evicted by others {tries} times in succession");
        Error::Value { key: self.record_key.clone(), message }
    }

    fn now_ms(&self) -> u64 {
        let now = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
    }
}

fn one(keys: Vec<NamespacedKey>) -> Result<NamespacedKey, Error> {
    keys.into_iter().next().ok_or_else(|| Error::Usage("no key".to_owned()))
}

fn own_number(key: &str, item: &Item) -> Result<u64, Error> {
    number(&item.data).ok_or_else(|| {
        let message = "not a namespace's number: another program has written it".to_owned();
        Error::Value { key: key.to_owned(), message }
    })
}

/// Without an end, flags and tags.
fn write<'a>(key: &'a str, data: &'a [u8]) -> Write<'a> {
    Write { key: key.as_bytes(), data, flags: 0, exptime: 0, tags: &[] }
}

fn random() -> Result<u64, Error> {
    SysRng.try_next_u64().map_err(|error| Error::Usage(format!("no random numbers from the system: {error}")))
}
