//! A program that panics as it is told: a cache that is served, a pool of Rust workers and methods in Luau, in one process.
//!
//! `panic-fixture SCENE`: each scene is a function of this file or of `scripts.rs`. A scene that survives its panics prints `survived` at its
//! end. All but `without_hook` install the hook, as the server's binary does.

mod cache;
mod scripts;

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};

use cattlegrid_panic::guarded;
use cattlegrid_pool::{Builder, Codec, Error, Launch, Pool, PoolError};
use cattlegrid_worker::{AsyncJob, JobError, Level};

use cache::{Cache, Serving};

fn main() {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none).expect("a lower limit");
    let scene = std::env::args().nth(1).unwrap_or_default();
    if scene != "without_hook" {
        cattlegrid_panic::install();
    }
    if let Some(worker) = cattlegrid_worker::maybe_worker() {
        match std::env::var("FIXTURE").as_deref() {
            Ok("init") => worker.init(|_| panic!("in init, as meant")).serve(|_| Ok(())),
            Ok("async") => worker.serve_async(2, work_async),
            _ => worker.serve(|job| match job.arg(0) {
                b"panic" => panic!("in a job, as meant"),
                b"thread" => {
                    std::thread::spawn(|| panic!("in a thread of a job, as meant")).join().ok();
                    Ok(Vec::new())
                }
                b"talk" => {
                    job.progress(b"half");
                    job.event(&["event"]);
                    job.log(Level::Info, "line");
                    Ok(Vec::new())
                }
                _ => Ok(std::process::id().to_string().into_bytes()),
            }),
        }
    }
    match scene.as_str() {
        "callbacks" => callbacks(),
        "jobs" => jobs(),
        "thread_of_a_job" => thread_of_a_job(),
        "payload" => payload(),
        "locked_in_callback" => locked_in_callback(),
        "locked_around_guarded" => locked_around_guarded(),
        "locked_elsewhere" => locked_elsewhere(),
        "serving" => serving(),
        "thread_of_guarded" => thread_of_guarded(),
        "destructor" => destructor(),
        "poisoned" => poisoned(),
        "without_hook" => without_hook(),
        "scripts_panics" => scripts::panics(),
        "scripts_errors" => scripts::errors(),
        "scripts_locked" => scripts::locked(),
        other => panic!("{other}: no such scene"),
    }
    say("survived");
}

/// Panics before it has a future, or in it.
fn work_async(job: AsyncJob) -> impl Future<Output = Result<Vec<u8>, JobError>> {
    assert_ne!(job.arg(0), b"early", "as meant");
    async move {
        assert_ne!(job.arg(0), b"late", "as meant");
        Ok(std::process::id().to_string().into_bytes())
    }
}

/// Every place at which the pool calls code of the program, a hundred times; then it works as before.
fn callbacks() {
    let cache = Cache::new();
    let serving = Serving::start(&cache);
    let reported = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reported);
    let (sender, destroyed) = mpsc::channel();
    let pool = builder("", move |error| {
        assert!(matches!(error, PoolError::Callback), "{error}");
        count.fetch_add(1, Ordering::SeqCst);
        panic!("in on_error, as meant");
    })
    .on_event(|_| panic!("in on_event, as meant"))
    .on_log(|_| panic!("in on_log, as meant"))
    .on_destroy(move || {
        sender.send(()).ok();
        panic!("in on_destroy, as meant")
    });
    let pool = pool.spawn().wait().expect("a pool");
    let worker = pid(&pool, "pid");
    for _ in 0..100 {
        pool.submit(["pid"], |_| panic!("in a callback, as meant"));
        let talk = pool.job(["talk"]).on_progress(|_| panic!("in on_progress, as meant"));
        talk.call().wait().expect("a reply");
        // Polled once, so that its waker is there when the reply is.
        let mut call = pin!(pool.call(["pid"]));
        let waker = Waker::from(Arc::new(Panics));
        if call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            let mut ready = pin!(pool.ready(1));
            drop(ready.as_mut().poll(&mut Context::from_waker(&waker)));
        }
        assert!(matches!(Codec::Json.args(&Panics), Err(Error::Codec(text)) if text.contains("as meant")));
        serving.goes_on();
    }
    assert_eq!(pid(&pool, "pid"), worker, "the worker stays");
    // Callback, progress, event, log; wakers may come too late to be called.
    let reported = reported.load(Ordering::SeqCst);
    assert!((400..=600).contains(&reported), "{reported} of 400 to 600");
    pool.shutdown().wait();
    destroyed.recv().expect("on_destroy was called");
    // On this thread: the pool has ended.
    pool.submit(["pid"], |outcome| {
        assert_eq!(outcome, Err(Error::Shutdown));
        panic!("in a callback of a pool that has ended, as meant")
    });
    serving.goes_on();
}

/// A panic in a job fails that job, in both kinds of Rust workers; in `init` the start.
fn jobs() {
    for (kind, words) in [("", &["panic"][..]), ("async", &["early", "late"])] {
        let pool = builder(kind, |_| ()).spawn().wait().expect("a pool");
        let worker = pid(&pool, "pid");
        for word in words.iter().cycle().take(10) {
            let outcome = pool.call([word]).wait();
            let Err(Error::Worker { code, message, .. }) = &outcome else { panic!("{word}: {outcome:?}") };
            assert!(code == "panic" && message.contains("as meant"), "{word}: {message}");
            assert_eq!(pid(&pool, "pid"), worker, "{word}: the worker stays");
        }
        pool.shutdown().wait();
    }
    let outcome = builder("init", |_| ()).spawn().wait();
    assert!(
        matches!(outcome, Err(Error::StartFailed { reason, .. }) if reason.contains("in init, as meant"))
    );
}

/// A thread that a job has started is not guarded: its panic ends the worker, and no more.
fn thread_of_a_job() {
    let pool = builder("", |_| ()).spawn().wait().expect("a pool");
    let outcome = pool.call(["thread"]).wait();
    assert!(matches!(outcome, Err(Error::WorkerLost { .. })), "{outcome:?}");
    pid(&pool, "pid");
}

/// A panic whose payload panics when it is dropped.
fn payload() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in the destructor of a payload, as meant");
        }
    }
    let reported = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reported);
    let pool = builder("", move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    })
    .spawn()
    .wait()
    .expect("a pool");
    pool.submit(["pid"], |_| std::panic::panic_any(Bomb));
    pid(&pool, "pid");
    assert_eq!(reported.load(Ordering::SeqCst), 1);
}

/// A callback uses the cache, and panics with a shard locked.
fn locked_in_callback() {
    let cache = Cache::new();
    let pool = builder("", |_| ()).spawn().wait().expect("a pool");
    let (sender, done) = mpsc::channel();
    pool.submit(["pid"], move |_| {
        sender.send(guarded(|| cache.locked(|| panic!("with a shard locked, as meant")))).ok();
    });
    done.recv().ok();
}

/// What runs with a shard locked is guarded: the lock counts.
fn locked_around_guarded() {
    Cache::new().locked(|| drop(guarded(|| panic!("with a shard locked, as meant"))));
}

/// A guarded panic while another thread has a shard locked.
fn locked_elsewhere() {
    let cache = Cache::new();
    let (locked, is_locked) = mpsc::channel();
    let (panicked, has_panicked) = mpsc::channel::<()>();
    let other = Arc::clone(&cache);
    let thread = std::thread::spawn(move || {
        other.locked(|| {
            locked.send(()).ok();
            has_panicked.recv().ok();
        });
    });
    is_locked.recv().expect("it is locked");
    assert!(guarded(|| panic!("without a lock, as meant")).is_err());
    panicked.send(()).expect("it is still locked");
    thread.join().expect("the lock is released");
    Serving::start(&cache).goes_on();
}

/// A thread that serves panics.
fn serving() {
    let cache = Cache::new();
    let serving = Serving::start(&cache);
    std::thread::spawn(|| panic!("in a serving thread, as meant")).join().ok();
    serving.goes_on();
}

/// Guarded code starts a thread, which panics.
fn thread_of_guarded() {
    guarded(|| drop(std::thread::spawn(|| panic!("in a thread, as meant")).join())).ok();
}

/// A destructor panics while a panic unwinds.
fn destructor() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in a destructor, as meant");
        }
    }
    guarded(|| {
        let _bomb = Bomb;
        panic!("the first panic, as meant")
    })
    .ok();
}

/// A guarded panic poisons a standard mutex; who relies on its data aborts then.
fn poisoned() {
    let mutex = Mutex::new(7);
    assert!(
        guarded(|| {
            let _locked = mutex.lock();
            panic!("with a mutex locked, as meant")
        })
        .is_err()
    );
    say("caught");
    let refused = guarded(|| drop(mutex.lock().expect("poisoned, as meant")));
    assert!(refused.expect_err("poisoned").text().is_some_and(|text| text.contains("poisoned, as meant")));
    say("refused");
    drop(mutex.lock().expect("poisoned, as meant"));
}

/// Without the hook a panic with a shard locked is caught, and the shard is not used again.
fn without_hook() {
    let cache = Cache::new();
    assert!(guarded(|| cache.locked(|| panic!("with a shard locked, as meant"))).is_err());
    for _ in 0..3 {
        let refused = guarded(|| cache.ask("get key\r\n")).expect_err("broken");
        assert!(
            refused.text().is_some_and(|text| text.contains("the shard is not used again")),
            "{refused:?}"
        );
    }
}

/// A pool of one worker of this program.
fn builder(kind: &str, on_error: impl FnMut(&PoolError) + Send + 'static) -> Builder {
    Pool::builder(Launch::rust().env("FIXTURE", kind)).max(1).idle(1).load(1).on_error(on_error)
}

/// The worker's answer to this job.
fn pid(pool: &Pool, job: &str) -> String {
    pool.call([job]).wait().expect("a reply").text()
}

/// As a waker, and as a value to be converted.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("in a waker, as meant");
    }
}

impl serde::Serialize for Panics {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("in Serialize, as meant")
    }
}

#[expect(clippy::print_stdout, reason = "the test reads it")]
fn say(text: &str) {
    println!("{text}");
}
