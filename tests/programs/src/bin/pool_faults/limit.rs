//! Clients that ask for the last bytes at the same time.

use std::io::Read;

use crate::broken_promise::BrokenPromise;
use crate::child::{RoleProcess, eventually};
use crate::test_broker::{BrokerProcess, status};

/// The number of clients.
const CLIENTS: usize = 64;
const BLOCK_BYTES: u64 = 64 << 10;

/// Lets clients ask at once in each round.
pub(crate) fn ask_at_once(rounds: u32) -> Result<String, BrokenPromise> {
    // Two blocks, a table and a row.
    let each = 2 * BLOCK_BYTES + 2 * 8192;
    let fits = 5;
    let limit = fits * each + each / 2;
    let broker = BrokerProcess::start(limit)?;
    let watcher = broker.connect("watcher")?;
    let block_bytes = BLOCK_BYTES.to_string();
    for _ in 0..rounds {
        let ask = |_| RoleProcess::start("asker", &[broker.name(), &block_bytes]);
        let mut askers = (0..CLIENTS).map(ask).collect::<Result<Vec<_>, _>>()?;
        askers.iter_mut().try_for_each(RoleProcess::wait_ready)?;
        for asker in &mut askers {
            asker.send(b"g");
        }
        let mut granted = 0;
        for asker in &mut askers {
            let mut answer = [0];
            asker.output.read_exact(&mut answer).map_err(|error| error.to_string())?;
            granted += u64::from(answer == *b"y");
        }
        let bytes = status(&watcher)?["bytes"].as_u64().unwrap_or(u64::MAX);
        if granted != fits || bytes > limit {
            return Err(format!("{granted} of {fits} segments were granted, {bytes} of {limit} bytes"));
        }
        askers.iter_mut().try_for_each(RoleProcess::kill)?;
        eventually("the memory of all clients is free", || {
            status(&watcher).is_ok_and(|status| status["bytes"] == 0)
        })?;
    }
    Ok(format!("{fits} of {CLIENTS} clients got memory each time"))
}
