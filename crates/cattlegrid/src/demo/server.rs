//! The demo's servers: this program, in processes of their own.

use std::net::TcpListener;
use std::path::Path;

use cattlegrid_load::harness::{Server, Start, StartError};

use super::{DemoError, worker};

/// Their memory limit in MiB.
pub(super) const MEMORY_MIB: u32 = 64;

/// Starts one on a free port of 127.0.0.1, with a rule file of this text, whose last table is its loader's:
/// the command of the loader, which is this program, is added. `admin`: the address of its dashboard, host
/// and port.
pub(super) fn start(
    connections: usize,
    rules: Option<&str>,
    admin: Option<&str>,
) -> Result<Server, DemoError> {
    let program = std::env::current_exe().map_err(DemoError::io("this program cannot be found"))?;
    let rules = match rules {
        Some(rules) => {
            let command = [&*program.to_string_lossy(), worker::WORD];
            // A string of JSON is one of TOML, too.
            Some(format!("{rules}command = {}\n", serde_json::Value::from(&command[..])))
        }
        None => None,
    };
    run(&program, connections, rules.as_deref(), admin)
}

/// The same with a rule file of this text, without a loader.
pub(super) fn start_with(connections: usize, rules: &str) -> Result<Server, DemoError> {
    let program = std::env::current_exe().map_err(DemoError::io("this program cannot be found"))?;
    run(&program, connections, Some(rules), None)
}

/// A free port of 127.0.0.1, as an address.
pub(super) fn free_address() -> Result<String, DemoError> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(address.map_err(DemoError::io("no free port"))?.to_string())
}

fn run(
    program: &Path,
    connections: usize,
    rules: Option<&str>,
    admin: Option<&str>,
) -> Result<Server, DemoError> {
    let (memory, connections) = (MEMORY_MIB.to_string(), connections.to_string());
    let mut words =
        vec!["serve", "-p", "-1", "-l", "127.0.0.1", "-m", &memory, "-t", "1", "-c", &connections];
    if let Some(admin) = admin {
        words.extend(["--admin", admin]);
    }
    // Ctrl-C is for the demo, which stops its servers or leaves one running.
    let start = Start { rules, own_group: true, ..Start::new(program, &words) };
    Server::start(&start).map_err(|error| match error {
        StartError::Io { what, error } => DemoError::Io { what, error },
        other => DemoError::Server(other.to_string()),
    })
}

/// Leaves a server running; what can be done with it.
pub(super) fn keep(server: Server) -> String {
    let text = format!(
        "The server goes on, on {address}.\n  \
         talk to it:  printf 'stats\\r\\nquit\\r\\n' | nc 127.0.0.1 {port}\n  \
         ask it why:  printf 'get @why:page:1\\r\\nquit\\r\\n' | nc 127.0.0.1 {port}\n  \
         its rules:   {rules}; kill -HUP {pid} makes it read them again\n  \
         load it:     cattlegrid bench {address} --pid {pid}\n  \
         stop it:     kill {pid}",
        address = server.address(),
        port = server.address().rsplit(':').next().unwrap_or_default(),
        pid = server.pid(),
        rules = server.rule_file().display(),
    );
    server.keep();
    text
}
