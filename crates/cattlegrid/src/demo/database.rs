//! A shop on PostgreSQL: a row is changed in the database, and the page that was made from it is gone.
//!
//! The database is the machine's own release, in a temporary directory; where there is none the tour says how
//! to get it.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cattlegrid_server::time::Clock;
use nix::unistd::User;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

use super::plain::PlainClient;
use super::protection::promise;
use super::scenes::Stage;
use super::{Act, DemoError, Scene, SceneOutcome, server};

/// This scene.
pub(super) const ACT: Act = Act {
    heads: &["a shop on PostgreSQL", "page:7", "page:8"],
    scenes: &[Scene { title: "a row is changed in the database", run: shop }],
};

/// Where Debian has releases, each in a directory with its number.
const RELEASES: &str = "/usr/lib/postgresql";
/// Longest time for the database to start, and for its log to be confirmed.
const START: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);
/// Connections of a server that one client uses.
const CONNECTIONS: usize = 64;

const SCHEMA: &str = "CREATE TABLE users (id int PRIMARY KEY, name text);
INSERT INTO users VALUES (7, 'Ada'), (8, 'Ben');
CREATE PUBLICATION cattlegrid FOR TABLE users";
const CHANGE: &str = "UPDATE users SET name = 'Zoe' WHERE id = 7";

fn rules(port: u16) -> String {
    format!(
        "[[rule]]\nmatch = \"page:{{user}}\"\nhold = \"400ms\"\ntags = [\"user:{{user}}\"]\n\n\
         [follow.shop]\nurl = \"postgres://postgres@127.0.0.1:{port}/postgres\"\n\n\
         [[follow.shop.table]]\ntable = \"users\"\nbump = [\"user:{{id}}\"]\n"
    )
}

fn shop(stage: &mut Stage) -> Result<SceneOutcome, DemoError> {
    let database = match PostgresProcess::start(stage)? {
        Ok(database) => database,
        Err(reason) => {
            let row = ["not shown, see below", "-", "-"].map(str::to_owned).to_vec();
            let note = format!(
                "A database that invalidates is not shown: {reason}. With PostgreSQL (apt-get install postgresql) the demo \
                 changes a row there, and the page that was made from it is gone."
            );
            return Ok(SceneOutcome { rows: vec![row], note: Some(note) });
        }
    };
    let sql = |text: &str| database.sql(text).map_err(DemoError::Server);
    sql(SCHEMA)?;
    let server = server::start_with(CONNECTIONS, &rules(database.port))?;
    let mut client = PlainClient::open(server.address(), stage.meter())?;
    let (clock, mut rows) = (Clock::new(), Vec::new());
    let begun = clock.now();
    while client.text("follow", "shop:state")? != "confirmed" {
        stage.pause(LOOK)?;
        promise(clock.now() < begun + START, || "the database's log is not confirmed".to_owned())?;
    }
    for (title, expected) in [("first visit", "computed"), ("second visit", "from the cache")] {
        let mut row = vec![title.to_owned()];
        for (id, name) in [(7, "Ada"), (8, "Ben")] {
            let (page, how) = page(&mut client, &database, id)?;
            promise(page == name && how == expected, || format!("{title}: page {id} is {page}, {how}"))?;
            row.push(format!("{page}, {how}"));
        }
        rows.push(row);
    }
    sql(CHANGE)?;
    let changed = clock.now();
    while !client.get(&["page:7".to_owned()])?.is_empty() {
        promise(clock.now() < changed + START, || "a changed row does not invalidate".to_owned())?;
    }
    let gone = clock.now().saturating_duration_since(changed).as_millis();
    let kept = client.get(&["page:8".to_owned()])?;
    promise(kept.len() == 1, || "page 8 is gone, too".to_owned())?;
    rows.push(vec![
        "UPDATE users ... id = 7".to_owned(),
        format!("gone within {} ms", gone + 1),
        "there".to_owned(),
    ]);
    let (page, how) = page(&mut client, &database, 7)?;
    promise(page == "Zoe", || format!("page 7 is {page} after the change"))?;
    rows.push(vec!["next visit".to_owned(), format!("{page}, {how}"), "there".to_owned()]);
    drop(client);
    server.stop();
    Ok(SceneOutcome { rows, note: None })
}

/// Reads a page as an application does: from the cache, or from the database with a store in the cache. It
/// deletes nothing.
fn page(
    client: &mut PlainClient<'_>,
    database: &PostgresProcess,
    id: u32,
) -> Result<(String, &'static str), DemoError> {
    let key = format!("page:{id}");
    if let Some((_, page)) = client.get(std::slice::from_ref(&key))?.pop() {
        return Ok((page, "from the cache"));
    }
    let select = format!("SELECT name FROM users WHERE id = {id}");
    let page = database.sql(&select).map_err(DemoError::Server)?;
    client.set(&key, &page, 0)?;
    Ok((page, "computed"))
}

/// A server of the machine's newest release; ended when dropped.
struct PostgresProcess {
    process: Child,
    port: u16,
    psql: PathBuf,
    _directory: TempDir,
}

impl PostgresProcess {
    /// Starts one; why there is none.
    fn start(stage: &Stage) -> Result<Result<Self, String>, DemoError> {
        let database = match Self::launch() {
            Ok(database) => database,
            Err(reason) => return Ok(Err(reason)),
        };
        let clock = Clock::new();
        let begun = clock.now();
        loop {
            match database.sql("SELECT 1") {
                Ok(_) => return Ok(Ok(database)),
                Err(reason) if clock.now() > begun + START => return Ok(Err(reason)),
                Err(_) => stage.pause(LOOK)?,
            }
        }
    }

    fn launch() -> Result<Self, String> {
        let said = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
        let programs = programs().ok_or("PostgreSQL is not installed")?;
        // It refuses to run as root, and the directory of root's temporary files may be closed to others.
        let user = if geteuid().is_root() {
            let user = User::from_name("postgres").ok().flatten();
            Some(user.ok_or("there is no user postgres, and PostgreSQL does not run as root")?)
        } else {
            None
        };
        let place = if user.is_some() { PathBuf::from("/tmp") } else { std::env::temp_dir() };
        let directory = tempfile::tempdir_in(place).map_err(said("no temporary directory"))?;
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), open).map_err(said("no temporary directory"))?;
        let data = directory.path().join("data");
        let command = |name: &str| {
            let mut command = Command::new(programs.join(name));
            command.arg("-D").arg(&data).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
            command.stderr(Stdio::null()).process_group(0);
            if let Some(user) = &user {
                command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
            }
            command
        };
        let made = command("initdb").args(["-U", "postgres", "-A", "trust", "-N"]).status();
        if !made.map_err(said("initdb"))?.success() {
            return Err("initdb failed".to_owned());
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port.map_err(said("no free port"))?.port();
        let settings = [
            format!("port={port}"),
            "listen_addresses=127.0.0.1".to_owned(),
            "unix_socket_directories=".to_owned(),
            "wal_level=logical".to_owned(),
            "fsync=off".to_owned(),
            "shared_buffers=16MB".to_owned(),
        ];
        let mut server = command("postgres");
        for setting in &settings {
            server.arg("-c").arg(setting);
        }
        let process = server.spawn().map_err(said("postgres"))?;
        Ok(Self { process, port, psql: programs.join("psql"), _directory: directory })
    }

    /// Runs a statement and returns its result as text.
    fn sql(&self, text: &str) -> Result<String, String> {
        let output = Command::new(&self.psql)
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres", "-XqAt", "-c", text])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("psql: {error}"))?;
        if !output.status.success() {
            return Err(format!("psql: {}", String::from_utf8_lossy(&output.stderr).trim_end()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }
}

impl Drop for PostgresProcess {
    fn drop(&mut self) {
        // At once: it takes its own processes along.
        let pid = Pid::from_child(&self.process);
        if kill_process(pid, Signal::QUIT).is_err() || self.process.wait().is_err() {
            self.process.kill().unwrap_or_default();
        }
    }
}

/// The directory of the newest release's programs.
fn programs() -> Option<PathBuf> {
    let entries = std::fs::read_dir(RELEASES).ok()?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse::<u32>().ok());
    let programs = Path::new(RELEASES).join(numbers.max()?.to_string()).join("bin");
    ["initdb", "postgres", "psql"].iter().all(|name| programs.join(name).exists()).then_some(programs)
}
