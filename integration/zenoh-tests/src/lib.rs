//! The common parts of the tests of hostbuf-zenoh: a broker, sessions, frames, reader processes.

mod broker_thread;
mod frame;
mod process_memory;
mod reader_process;

pub use broker_thread::BrokerThread;
pub use frame::{FRAME_BYTES, is_in_pool, stamp, torn_stamps};
pub use process_memory::{MemoryOwner, ProcessMemory};
pub use reader_process::{ReaderLine, ReaderProcess};

use std::time::{Duration, Instant};

use zenoh::{Config, Session, Wait};

/// The key of all frames.
pub const KEY: &str = "hostbuf/frame";

/// The variable with the number of restarts.
const ENV_RESTARTS: &str = "HOSTBUF_ZENOH_RESTARTS";

/// Returns the number of restarts of a process, which is 50 by default.
///
/// # Panics
/// If the variable `HOSTBUF_ZENOH_RESTARTS` is no number.
#[must_use]
pub fn restarts() -> usize {
    std::env::var(ENV_RESTARTS).map_or(50, |text| text.parse().expect("a number"))
}

/// Returns the configuration of a session that listens at or connects to a socket path.
#[must_use]
pub fn config(role: &str, endpoint: &str) -> Config {
    let mut config = Config::default();
    let mut set = |key: &str, value: &str| config.insert_json5(key, value).expect("a valid setting");
    set("scouting/multicast/enabled", "false");
    set("listen/endpoints", "[]");
    set(&format!("{role}/endpoints"), &format!("[\"unixsock-stream/{endpoint}\"]"));
    config
}

/// Opens the session of a producer that listens at a socket path.
#[must_use]
pub fn listen(endpoint: &str) -> Session {
    zenoh::open(config("listen", endpoint)).wait().expect("the path is free")
}

/// Waits until `condition` holds.
///
/// # Panics
/// After 30 seconds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
