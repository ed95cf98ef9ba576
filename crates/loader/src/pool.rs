//! The pool of a loader: its settings in the words of [`cattlegrid_pool`].
//!
//! Limits follow the largest item of the server: a reply may be 64 KiB longer, and a frame must hold it, or
//! an old value on its way to the worker. As text in JSON each byte of a value may take six (`\u0041`).
//! Replies of all loaders share one room of a few of the longest: a worker whose reply has none waits in its
//! write.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use cattlegrid_config::{LoaderMode, LoaderSettings};
use cattlegrid_engine::rules::Urgency;
use cattlegrid_pool::{Builder, Launch, Limits, Pool, Priority, ReplyRoom, Retry, Sandbox};
use nix::unistd::{Uid, User};

use crate::program::LoaderProgram;

/// The builder of a pool for this loader. `item_bytes_max`: the largest item of the server, in bytes.
///
/// # Errors
/// Why its workers cannot become its user.
pub(crate) fn builder(settings: &LoaderSettings, item_bytes_max: usize) -> Result<Builder, String> {
    let user = settings.user.as_deref().map(find_user).transpose()?;
    let mut builder = Pool::builder(launch(settings))
        .max(settings.max)
        .idle(settings.idle)
        .load(settings.load)
        .batch(settings.batch)
        .spare(settings.spare)
        .start(settings.start)
        .stop(settings.stop)
        .job_timeout(settings.timeout)
        .kill_grace(settings.kill_grace)
        .start_timeout(settings.start_timeout)
        .shutdown_grace(settings.timeout.saturating_add(settings.kill_grace).saturating_add(LAST))
        .queue_limit(settings.queue)
        .retries(Retry::times(settings.retries).and_errors())
        .max_jobs(settings.max_jobs)
        .max_rss(settings.max_rss)
        .init(settings.init.clone().into_bytes())
        .max_reply(reply_bytes_max(settings.mode, item_bytes_max))
        .max_frame(frame_bytes_max(settings.mode, item_bytes_max))
        .inflight_bytes(INFLIGHT_MIN.max(item_bytes_max))
        .limits(Limits { oom_score_adj: Some(OOM_SCORE_ADJ), ..Limits::default() })
        .sandbox(Sandbox { uid_gid: user.as_ref().and_then(identity), ..Sandbox::default() })
        .privileged_template(settings.init_as_root)
        .env_clear();
    if let Some(age) = settings.max_age {
        builder = builder.max_age(age);
    }
    for name in &settings.env {
        // A template that keeps the server's user has its home.
        let of_user = user.as_ref().filter(|_| !settings.init_as_root).and_then(|user| of_user(name, user));
        if let Some(value) = of_user.or_else(|| std::env::var_os(name)) {
            builder = builder.env(name, value);
        }
    }
    Ok(builder)
}

/// The same, with its words going to the log and its processes counted in the loader's budget.
pub(crate) fn builder_of(
    settings: &LoaderSettings,
    item_bytes_max: usize,
    program: &Arc<LoaderProgram>,
    room: &ReplyRoom,
) -> Result<Builder, String> {
    let [logs, errors] = [Arc::clone(program), Arc::clone(program)];
    Ok(builder(settings, item_bytes_max)?
        .within(program.budget())
        .reply_room(room)
        .on_log(move |chunk| logs.pass_on(&chunk))
        .on_error(move |error| errors.report(error)))
}

/// The room for replies of all loaders that are read, or on their way to be stored: they are stored at the
/// speed of memory, so that a few are enough.
pub(crate) fn reply_room(item_bytes_max: usize) -> ReplyRoom {
    ReplyRoom::new(ROOM_MIN.max(item_bytes_max.saturating_add(2 * SLACK_BYTES).saturating_mul(2)))
}

/// The longest frame of a worker of this mode, or line.
pub(crate) fn frame_bytes_max(mode: LoaderMode, item_bytes_max: usize) -> u32 {
    let frame_max = reply_bytes_max(mode, item_bytes_max).saturating_add(SLACK_BYTES);
    u32::try_from(frame_max).unwrap_or(u32::MAX).max(FRAME_MIN)
}

/// The longest reply: a value, and what an answer says besides.
fn reply_bytes_max(mode: LoaderMode, item_bytes_max: usize) -> usize {
    let value_max = match mode {
        LoaderMode::JsonLines => item_bytes_max.saturating_mul(JSON_BYTES_MAX),
        LoaderMode::Template | LoaderMode::Exec | LoaderMode::Stdio => item_bytes_max,
    };
    value_max.saturating_add(SLACK_BYTES)
}

/// The longest job with an old value. Its room counts the value's bytes, so as text in JSON it must not be
/// much longer.
pub(crate) fn stale_job_bytes_max(mode: LoaderMode, item_bytes_max: usize) -> usize {
    let doubled = reply_bytes_max(LoaderMode::Template, item_bytes_max.saturating_mul(2));
    doubled.min(frame_bytes_max(mode, item_bytes_max) as usize - SLACK_BYTES)
}

/// How urgent a load of a rule with this urgency is in the queue.
pub(crate) fn priority(urgency: Urgency) -> Priority {
    match urgency {
        Urgency::High => Priority::High,
        Urgency::Normal => Priority::Normal,
        Urgency::Low => Priority::Low,
    }
}

fn launch(settings: &LoaderSettings) -> Launch {
    let mut words = settings.command.iter();
    // Settings have a program; an empty one is refused by the pool with a reason.
    let program = words.next().cloned().unwrap_or_default();
    let launch = match settings.mode {
        LoaderMode::Template => Launch::template(program, words),
        LoaderMode::Exec => Launch::exec(program, words),
        LoaderMode::Stdio => Launch::stdio(program, words),
        LoaderMode::JsonLines => Launch::json_lines(program, words).objects(),
    };
    launch.dir(&settings.dir)
}

fn find_user(name: &str) -> Result<User, String> {
    let known = User::from_name(name).map_err(|error| format!("user {name}: {error}"))?;
    known.ok_or_else(|| format!("user {name}: there is no such user"))
}

/// The user and group that workers become; None: they stay what the server is.
fn identity(user: &User) -> Option<(u32, u32)> {
    (user.uid != Uid::effective()).then(|| (user.uid.as_raw(), user.gid.as_raw()))
}

/// The value of a variable that follows from the user.
fn of_user(variable: &str, user: &User) -> Option<OsString> {
    match variable {
        "HOME" => Some(user.dir.clone().into()),
        "USER" | "LOGNAME" => Some(user.name.clone().into()),
        _ => None,
    }
}

/// Bytes of an answer that are not its value.
pub(crate) const SLACK_BYTES: usize = 64 << 10;
/// Bytes that a byte of a value may take in JSON: `\u0041`. What the value has is counted when it was read.
const JSON_BYTES_MAX: usize = 6;
/// The least limit of a frame in bytes, so that log lines and texts of errors fit where items are small.
const FRAME_MIN: u32 = 1 << 20;
/// Least bytes of the room for replies.
const ROOM_MIN: usize = 16 << 20;
/// Bytes of arguments at a worker: the pool's default.
const INFLIGHT_MIN: usize = 4 << 20;
/// The system ends workers first when it has no memory.
const OOM_SCORE_ADJ: i32 = 500;
/// The time left for the end of a generation's last jobs.
const LAST: Duration = Duration::from_secs(1);
