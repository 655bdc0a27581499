//! The message of a process that has no buffer, and the reason if it cannot reach the host's agent.

use crate::connection::PacketBuffer;
use crate::environment::Environment;
use crate::late::LateError;
use crate::path::Path;
use crate::rank::end;
use crate::text::{Line, number};
use hostbuf_protocol::environment::{ENV_NETWORK, ENV_REPORT, ENV_REQUIRE};
use hostbuf_protocol::failure::ErrorClass;
use hostbuf_protocol::message::Message;
use hostbuf_raw::syscall::{self as raw, Errno};

/// The reason of a process without a buffer whose job is over.
const JOB_OVER: &[u8] = b"the job is over, and its agent has ended";

/// [Reports](report) that this process has no buffer although its job may be running. If the job
/// is over or has failed, reports this only if the user demands a buffer (`--require`).
pub(crate) fn report_unless_over(environment: &mut Environment, why: LateError, answer: &PacketBuffer) {
    let errno = match why {
        LateError::Unreachable(errno) => errno,
        LateError::JobFailed => {
            if let Ok(Message::Fail { error, .. }) = answer.message() {
                require(environment, error.class, error.line.as_bytes());
            }
            return;
        }
        LateError::Refused => {
            if let Ok(Message::Refused { error }) = answer.message() {
                let why = "the agent of this host has refused this process";
                report(environment, Line::new(format_args!("{why}: {}", error.line)).bytes());
            }
            return;
        }
        LateError::JobOver => return require(environment, ErrorClass::Attach, JOB_OVER),
    };
    let why = Line::new(format_args!("connecting to the job's agent failed, error {}", errno.0));
    let Some(there) = environment.value(ENV_NETWORK).and_then(number) else {
        return require(environment, ErrorClass::Attach, why.bytes());
    };
    match (network(), errno) {
        // In the agent's own network namespace, a refused connection means that the job is over.
        (Some(here), Errno::CONNREFUSED) if here == there => {
            require(environment, ErrorClass::Attach, JOB_OVER);
        }
        (Some(here), _) if here != there => report(
            environment,
            b"it is in a network namespace of its own, where the job's agent cannot be reached. Start it in the host's \
              network namespace (no `unshare -n`, no `bwrap --unshare-net`)",
        ),
        _ => report(environment, why.bytes()),
    }
}

/// Reports that this process, or the program that it starts, has no buffer. Of the ranks with the
/// same command line only one prints it. Ends the process if the user demands a buffer
/// (`--require`).
pub(crate) fn report(environment: &mut Environment, why: &[u8]) {
    require(environment, ErrorClass::Attach, why);
    let ranks = environment.value(ENV_REPORT).unwrap_or(b"-");
    if !ranks.starts_with(b"-") {
        describe(ranks, why).say();
    }
    // Without this, children would print the same message.
    environment.write(ENV_REPORT, b"-");
}

/// Prints the reason why there is no buffer and ends the process, if the user demands a buffer.
fn require(environment: &Environment, class: ErrorClass, why: &[u8]) {
    if environment.value(ENV_REQUIRE).is_some_and(|value| !value.is_empty()) {
        let ranks = environment.value(ENV_REPORT).unwrap_or_default();
        describe(ranks.strip_prefix(b"-").unwrap_or(ranks), why).and(b" (--require)").say();
        end(class);
    }
}

/// Describes this process, which has no buffer, and the ranks to which it belongs.
fn describe(ranks: &[u8], why: &[u8]) -> Line {
    let mut line = Line::new(format_args!("hostbuf: no buffer in process {}", raw::pid()));
    let program = Path::of_link(b"/proc/self/exe\0");
    if !program.bytes().is_empty() {
        line = line.and(b", ").and(program.bytes());
    }
    if !ranks.is_empty() {
        line = line.and(b" (").and(ranks).and(b")");
    }
    line.and(b": ").and(why)
}

/// Returns the inode number of this process's network namespace, or `None` without `/proc`.
fn network() -> Option<u64> {
    let link = Path::of_link(b"/proc/self/ns/net\0");
    number(link.bytes().strip_prefix(b"net:[")?.strip_suffix(b"]")?)
}
