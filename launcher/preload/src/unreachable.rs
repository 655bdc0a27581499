//! The message of a process that has no buffer, and the reason if it cannot reach the host's agent.

use crate::environment::Environment;
use crate::text::{Line, number};
use hostbuf_protocol::environment::{ENV_NETWORK, ENV_REPORT, ENV_REQUIRE};
use hostbuf_raw::syscall::{self as raw, Errno};

/// [Reports](report) that this process has no buffer although its job may be running.
pub(crate) fn tell(environment: &mut Environment, why: Option<Errno>) {
    // The connection closed without an answer, or the name now belongs to another user's socket:
    // the job is over.
    let Some(errno) = why else { return };
    let Some(there) = environment.value(ENV_NETWORK).and_then(number) else { return };
    let network = match (network(), errno) {
        // In the agent's own network namespace, a refused connection means that the job is over.
        (Some(here), Errno::CONNREFUSED) if here == there => return,
        (here, _) => here.map(|here| here != there),
    };
    match network {
        Some(true) => report(
            environment,
            b"it is in a network namespace of its own, where the job's agent cannot be reached. Start it in the host's \
              network namespace (no `unshare -n`, no `bwrap --unshare-net`)",
        ),
        _ => {
            let why = Line::new(format_args!("connecting to the job's agent failed, error {}", errno.0));
            report(environment, why.bytes());
        }
    }
}

/// Reports that this process, or the program that it starts, has no buffer. Of the ranks with the
/// same command line only one prints it. Ends the process if the user demands a buffer
/// (`--require`).
pub(crate) fn report(environment: &mut Environment, why: &[u8]) {
    let required = environment.value(ENV_REQUIRE).is_some_and(|value| !value.is_empty());
    let ranks = environment.value(ENV_REPORT).unwrap_or(b"-");
    let (silent, ranks) = match ranks.strip_prefix(b"-") {
        Some(own) => (true, own),
        None => (false, ranks),
    };
    if !silent || required {
        let mut path = [0u8; 256];
        let length = raw::read_link(b"/proc/self/exe\0", &mut path).unwrap_or(0);
        let mut line = Line::new(format_args!("hostbuf: no buffer in process {}", raw::pid()));
        if length > 0 {
            line = line.and(b", ").and(&path[..length]);
        }
        if !ranks.is_empty() {
            line = line.and(b" (").and(ranks).and(b")");
        }
        line = line.and(b": ").and(why);
        if required {
            line = line.and(b" (--require)");
        }
        line.say();
    }
    if required {
        crate::rank::end(hostbuf_protocol::failure::ErrorClass::Attach);
    }
    // Without this, children would print the same message.
    environment.write(ENV_REPORT, b"-");
}

/// Returns the inode number of this process's network namespace, or `None` without `/proc`.
fn network() -> Option<u64> {
    let mut link = [0u8; 64];
    let length = raw::read_link(b"/proc/self/ns/net\0", &mut link).ok()?;
    number(link[..length].strip_prefix(b"net:[")?.strip_suffix(b"]")?)
}
