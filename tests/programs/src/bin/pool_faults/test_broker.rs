//! The broker of the rounds, in a process of its own.

use std::time::Duration;

use hostbuf_pool::{Pool, PoolMode, PoolOptions};

use crate::broken_promise::BrokenPromise;
use crate::child::RoleProcess;

/// The time for which the blocks of a producer that was killed stay readable.
const LINGER: Duration = Duration::from_millis(20);

/// The broker, in a process that ends with this object.
#[derive(Debug)]
pub(crate) struct BrokerProcess {
    name: String,
    limit: String,
    /// The linger time in milliseconds.
    linger: String,
    process: RoleProcess,
}

impl BrokerProcess {
    /// Starts a broker with a limit in bytes.
    pub(crate) fn start(limit: u64) -> Result<BrokerProcess, BrokenPromise> {
        BrokerProcess::start_at("host", limit, LINGER)
    }

    /// Starts the broker of one of several hosts, with its linger time.
    pub(crate) fn start_at(host: &str, limit: u64, linger: Duration) -> Result<BrokerProcess, BrokenPromise> {
        let name = format!("hostbuf-pool-faults-{}-{host}", std::process::id());
        let (limit, linger) = (limit.to_string(), linger.as_millis().to_string());
        let process = run(&name, &limit, &linger)?;
        Ok(BrokerProcess { name, limit, linger, process })
    }

    /// Kills the broker.
    pub(crate) fn kill(&mut self) -> Result<(), BrokenPromise> {
        self.process.kill()
    }

    /// Starts the next broker.
    pub(crate) fn start_again(&mut self) -> Result<(), BrokenPromise> {
        self.process = run(&self.name, &self.limit, &self.linger)?;
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

    /// Returns the process.
    pub(crate) fn process(&self) -> &RoleProcess {
        &self.process
    }

    /// Returns the number of descriptors that the broker has.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.pid())).map_or(0, Iterator::count)
    }
}

fn run(name: &str, limit: &str, linger: &str) -> Result<RoleProcess, BrokenPromise> {
    let mut process = RoleProcess::start("broker", &[name, limit, linger])?;
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
