//! The pools of this user, as their brokers describe them.

use std::fs;
use std::time::Duration;

use hostbuf_pool::{Pool, PoolError, PoolMode, PoolOptions};
use serde_json::{Value, json};

/// The name of this client. A broker lists it like all others.
const CLIENT: &str = "hostbuf stat";
/// The beginning of the abstract names of brokers.
const PREFIX: &str = "hostbuf-pool-";
/// The beginning of the names of pools that one process has alone.
const PRIVATE: &str = "hostbuf-pool-private-";
/// The time for which a broker may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A pool with its socket.
pub(super) struct PoolReport {
    /// The socket: `@NAME` or a path.
    pub(super) socket: String,
    /// The description by the broker, or the reason why there is none.
    pub(super) status: Result<Value, String>,
}

/// The pools of this host that this user may see.
#[derive(Default)]
pub(super) struct PoolReports {
    pub(super) pools: Vec<PoolReport>,
    /// The number of pools of other users.
    pub(super) of_others: usize,
    /// True if `HOSTBUF_POOL` selects a pool whose broker has not answered.
    pub(super) lacks_selected: bool,
}

/// Returns the pool that `HOSTBUF_POOL` names, or else all pools of this user in this network
/// namespace.
pub(super) fn reports() -> PoolReports {
    let options = match PoolOptions::from_environment(CLIENT) {
        Ok(options) => options,
        Err(error) => {
            let report = PoolReport { socket: String::new(), status: Err(error.to_string()) };
            return PoolReports { pools: vec![report], of_others: 0, lacks_selected: true };
        }
    };
    let is_named = std::env::var_os("HOSTBUF_POOL")
        .is_some_and(|value| matches!(value.as_encoded_bytes().first(), Some(b'@' | b'/')));
    if is_named {
        let report = report(options);
        let lacks_selected = report.status.is_err();
        return PoolReports { pools: vec![report], of_others: 0, lacks_selected };
    }
    let own = nix::unistd::geteuid().as_raw();
    let mut reports = PoolReports::default();
    for name in names(&fs::read_to_string("/proc/net/unix").unwrap_or_default()) {
        let user = name[PREFIX.len()..].parse::<u32>();
        if user.is_ok_and(|user| user != own) {
            reports.of_others += 1;
        } else {
            reports.pools.push(report(PoolOptions::new(CLIENT).socket(name)));
        }
    }
    reports
}

/// Returns the names of the brokers in the kernel's list of unix sockets.
fn names(list: &str) -> Vec<String> {
    let name = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        // Number, references, protocol, flags (here: it listens), type (here: SOCK_SEQPACKET),
        // state, inode, path.
        let [_, _, _, "00010000", "0005", _, _, path] = columns[..] else { return None };
        let name = path.strip_prefix('@')?;
        (name.starts_with(PREFIX) && !name.starts_with(PRIVATE)).then(|| name.to_owned())
    };
    let mut names: Vec<String> = list.lines().filter_map(name).collect();
    names.sort_unstable();
    names
}

fn report(options: PoolOptions) -> PoolReport {
    let socket = match &options.path {
        Some(path) => path.display().to_string(),
        None => format!("@{}", options.socket),
    };
    let status = ask(options).map_err(|error| error.to_string());
    PoolReport { socket, status: status.and_then(|text| parse(&text)) }
}

fn ask(options: PoolOptions) -> Result<String, PoolError> {
    Pool::connect(options.mode(PoolMode::Required).timeout(TIMEOUT))?.status()
}

/// Parses the description, and leaves out this client, which has nothing of the pool.
fn parse(text: &str) -> Result<Value, String> {
    let mut status: Value = serde_json::from_str(text)
        .map_err(|error| format!("the broker has sent no JSON ({error}): use one installation of hostbuf"))?;
    if let Some(clients) = status["clients"].as_array_mut() {
        clients.retain(|client| client["name"] != CLIENT || client["bytes"] != 0);
    }
    Ok(status)
}

/// Returns the pools as JSON. The limits get their unit.
pub(super) fn json(reports: &PoolReports) -> Value {
    let one = |report: &PoolReport| match &report.status {
        Err(error) => json!({ "socket": report.socket, "error": error }),
        Ok(status) => {
            let mut status = status.clone();
            status["socket"] = json!(report.socket);
            if let Some(fields) = status.as_object_mut() {
                for name in ["limit", "per_client", "gpu_limit", "gpu_per_client"] {
                    let value = fields.remove(name);
                    fields.insert(format!("{name}_bytes"), value.unwrap_or_default());
                }
            }
            status
        }
    };
    Value::Array(reports.pools.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_found_in_the_list_of_the_kernel() {
        let list = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 1 @hostbuf-pool-1000
0000000000000000: 00000002 00000000 00010000 0005 01 2 @hostbuf-pool-private-07
0000000000000000: 00000003 00000000 00000000 0005 03 3 @hostbuf-pool-1000
0000000000000000: 00000002 00000000 00010000 0001 01 4 @hostbuf-pool-stream
0000000000000000: 00000002 00000000 00010000 0005 01 5 /run/hostbuf-pool-1000
0000000000000000: 00000002 00000000 00010000 0005 01 6
0000000000000000: 00000002 00000000 00010000 0005 01 7 @hostbuf-pool-0
";
        assert_eq!(names(list), ["hostbuf-pool-0", "hostbuf-pool-1000"]);
    }

    #[test]
    fn this_command_is_left_out_of_the_clients() {
        let text =
            r#"{"limit": 5, "clients": [{"name": "hostbuf stat", "bytes": 0}, {"name": "cam", "bytes": 0}]}"#;
        let status = parse(text).unwrap();
        assert_eq!(status["clients"], json!([{ "name": "cam", "bytes": 0 }]));
        let pools = vec![PoolReport { socket: "@a".into(), status: Ok(status) }];
        let json = json(&PoolReports { pools, ..Default::default() });
        assert_eq!((&json[0]["limit_bytes"], &json[0]["socket"]), (&json!(5), &json!("@a")));
        assert!(parse("{").unwrap_err().contains("no JSON"));
    }
}
