//! The broker of the rounds, in a process of its own.

use hostbuf_pool::{Pool, PoolMode, PoolOptions};

use crate::broken_promise::BrokenPromise;
use crate::child::RoleProcess;

/// The broker, in a process that ends with this object.
#[derive(Debug)]
pub(crate) struct BrokerProcess {
    name: String,
    limit: String,
    process: RoleProcess,
}

impl BrokerProcess {
    /// Starts a broker with a limit in bytes.
    pub(crate) fn start(limit: u64) -> Result<BrokerProcess, BrokenPromise> {
        let name = format!("hostbuf-pool-faults-{}", std::process::id());
        let limit = limit.to_string();
        let process = run(&name, &limit)?;
        Ok(BrokerProcess { name, limit, process })
    }

    /// Kills the broker.
    pub(crate) fn kill(&mut self) -> Result<(), BrokenPromise> {
        self.process.kill()
    }

    /// Starts the next broker.
    pub(crate) fn start_again(&mut self) -> Result<(), BrokenPromise> {
        self.process = run(&self.name, &self.limit)?;
        Ok(())
    }

    /// Returns the name of the socket.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Connects to the broker.
    pub(crate) fn connect(&self, client: &str) -> Result<Pool, BrokenPromise> {
        connect(&self.name, client)
    }

    /// Returns the number of descriptors that the broker has.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.pid())).map_or(0, Iterator::count)
    }
}

fn run(name: &str, limit: &str) -> Result<RoleProcess, BrokenPromise> {
    let mut process = RoleProcess::start("broker", &[name, limit])?;
    process.wait_ready()?;
    Ok(process)
}

/// Connects to the broker at `name`.
pub(crate) fn connect(name: &str, client: &str) -> Result<Pool, BrokenPromise> {
    let options = PoolOptions::new(client).mode(PoolMode::Required).socket(name);
    Pool::connect(options).map_err(|error| error.to_string())
}

/// Returns the state of the pool.
pub(crate) fn status(pool: &Pool) -> Result<serde_json::Value, BrokenPromise> {
    let text = pool.status().map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| format!("{error} in {text}"))
}
