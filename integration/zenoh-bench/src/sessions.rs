//! The sessions of zenoh, and the names of what both processes share.

use std::path::{Path, PathBuf};

use hostbuf_pool::{Pool, PoolMode, PoolOptions};
use hostbuf_zenoh::client_storage;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use zenoh::{Config, Session, Wait};

/// The key of all frames.
pub(crate) const KEY: &str = "hostbuf/bench";

/// Returns the path of the broker's socket.
pub(crate) fn broker_path(folder: &Path) -> PathBuf {
    folder.join("pool.socket")
}

/// Connects to the broker at the path in `folder`.
pub(crate) fn connect(folder: &Path, client: &str) -> Result<Pool, String> {
    let options = PoolOptions::new(client).mode(PoolMode::Required).path(broker_path(folder));
    Pool::connect(options).map_err(|error| error.to_string())
}

/// Raises the soft limit of locked memory as far as this process may.
pub(crate) fn raise_locked_memory() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_MEMLOCK) {
        let _ = setrlimit(Resource::RLIMIT_MEMLOCK, most, most);
    }
}

/// Returns the limit of locked memory as a text.
pub(crate) fn locked_memory() -> String {
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((nix::libc::RLIM_INFINITY, _)) => "unlimited".into(),
        Ok((bytes, _)) => format!("{} KiB", bytes >> 10),
        Err(error) => error.to_string(),
    }
}

/// Opens a session over a socket path, with zenoh's shared memory set up at its start and the
/// clients of the pool. `role` is `listen` or `connect`.
pub(crate) fn tuned(role: &str, folder: &Path, pool: Option<&Pool>) -> Result<Session, String> {
    let endpoint = format!("unixsock-stream/{}", folder.join("zenoh").display());
    let mut config = bare(role, &endpoint)?;
    set(&mut config, "transport/shared_memory/mode", "\"init\"")?;
    let mut builder = zenoh::open(config);
    if let Some(pool) = pool {
        let clients = client_storage(pool).map_err(|error| error.to_string())?;
        builder = builder.with_shm_clients(clients);
    }
    builder.wait().map_err(|error| error.to_string())
}

/// Opens a session over the socket path without zenoh's shared memory.
pub(crate) fn without_shared_memory(role: &str, folder: &Path) -> Result<Session, String> {
    let mut config = bare(role, &format!("unixsock-stream/{}", folder.join("zenoh").display()))?;
    set(&mut config, "transport/shared_memory/enabled", "false")?;
    zenoh::open(config).wait().map_err(|error| error.to_string())
}

/// Opens a session by TCP, with zenoh's defaults but the search for others.
pub(crate) fn with_defaults(role: &str, folder: &Path) -> Result<Session, String> {
    let file = folder.join("port");
    let port = match role {
        "listen" => {
            let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
            let port = free.map_err(|error| error.to_string())?.port();
            std::fs::write(&file, port.to_string()).map_err(|error| error.to_string())?;
            port.to_string()
        }
        _ => std::fs::read_to_string(&file).map_err(|error| error.to_string())?,
    };
    let config = bare(role, &format!("tcp/127.0.0.1:{port}"))?;
    zenoh::open(config).wait().map_err(|error| error.to_string())
}

fn bare(role: &str, endpoint: &str) -> Result<Config, String> {
    let mut config = Config::default();
    set(&mut config, "scouting/multicast/enabled", "false")?;
    set(&mut config, "listen/endpoints", "[]")?;
    set(&mut config, &format!("{role}/endpoints"), &format!("[\"{endpoint}\"]"))?;
    Ok(config)
}

fn set(config: &mut Config, key: &str, value: &str) -> Result<(), String> {
    config.insert_json5(key, value).map_err(|error| format!("{key}: {error}"))
}
