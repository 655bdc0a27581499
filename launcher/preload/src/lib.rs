//! The preloaded object: maps the buffers into a process before its `main` and before the static
//! constructors of its executable.
//!
//! `LD_PRELOAD` loads it into every image of a job, so it must not disturb any of them. It has no
//! dependencies, refers to no symbol of a C library (one that needs a newer library than a
//! container has would end every program there), exports nothing, allocates nothing, and makes
//! system calls by instruction, since sanitizers intercept `mmap` of the C library. It runs in
//! three cases:
//!
//! 1. The first image of a rank. `hostbuf exec` has opened the connection to the host's agent and
//!    passed it through exec. The process votes, maps the agreed range, and continues to `main`
//!    when all ranks of all hosts have mapped it (`rank.rs`).
//! 2. A later image (a shell's child, a spawned process). It maps the agreed range, or ends with an
//!    error (`late.rs`).
//! 3. No agent answers. The process runs without the buffers, and without addresses in its
//!    environment. It prints nothing if the job is over, and a message if the agent cannot be
//!    reached from its network namespace. With `--require` it always prints the reason and ends
//!    (`unreachable.rs`).
//!
//! It uses little of the program's stack, which may be small: large buffers are static
//! (`static_buffer.rs`).
//!
//! In the first image of a rank that registers the buffers (`--register`) the object returns when
//! the range is mapped and leaves the connection open. The constructor of the registering object
//! (launcher/preregister), which is next, completes the start.

#![cfg_attr(not(test), no_std)]

mod argument_list;
mod chroot;
mod connection;
mod container;
mod environment;
mod late;
pub mod memory;
mod path;
mod publish;
mod rank;
mod refusal;
mod sanitizers;
mod static_buffer;
mod text;
mod unreachable;

use connection::PacketBuffer;
use environment::Environment;
use hostbuf_protocol::environment::{
    CONNECTION_SILENT, ENV_CONNECTION, ENV_JOB, ENV_PREFIX, ENV_REGISTER, ENV_REPORT,
};
use hostbuf_protocol::failure::ErrorClass;
use hostbuf_protocol::message::Message;
use hostbuf_raw::syscall as raw;
use path::Path;
use rank::{Rank, Until};
use sanitizers::address_window;
use text::Line;

/// Gets the buffer into this process, or ends the process with one line on standard error.
///
/// To be called once, by a constructor, while the process has one thread.
pub fn start() {
    let Some(mut environment) = Environment::find() else { return };
    let Some(job) = environment.value(ENV_JOB) else { return };
    let mut name = [0u8; 107];
    let Some(name) = name.get_mut(..job.len()) else { return };
    name.copy_from_slice(job);
    let connection = environment.value(ENV_CONNECTION).and_then(handed_over);
    let mut agreed = PacketBuffer::new();
    let attached = match connection {
        Some((fd, silent)) => {
            let registers = environment.value(ENV_REGISTER).is_some_and(names_this);
            if !registers {
                // A child inherits the variable, but in the child this number may be another file.
                environment.write(ENV_CONNECTION, b"-");
            }
            let until = if registers { Until::Mapped } else { Until::Go };
            let report = Rank { fd, silent }.take_part(address_window(), until, &mut agreed);
            if !registers {
                raw::close(fd);
            }
            environment.write(ENV_REPORT, report.bytes());
            true
        }
        None if is_the_prefix(&environment) => return,
        None => match late::attach(name, address_window(), &mut agreed) {
            Ok(()) => true,
            Err(why) => {
                unreachable::report_unless_over(&mut environment, why, &agreed);
                false
            }
        },
    };
    let range = match agreed.message() {
        Ok(Message::Agreed { range, .. }) if attached => Some(range),
        _ => None,
    };
    publish::publish(&mut environment, range.as_ref());
    container::enter(&mut environment);
    container::prepare(&mut environment);
}

/// Returns whether this process is `hostbuf exec` itself, which does not vote. (The engine passes
/// the variables to every process of the job, so that processes spawned later have them too; they
/// name the prefix.)
fn is_the_prefix(environment: &Environment) -> bool {
    let Some(prefix) = environment.value(ENV_PREFIX) else { return false };
    let program = Path::of_link(b"/proc/self/exe\0");
    // A prefix that was replaced by a newer one meanwhile is shown as deleted.
    program.bytes().strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest == b" (deleted)")
}

/// Returns the descriptor in `fd:pid`, as `hostbuf exec` wrote it, if this is the process that it
/// has become and the descriptor is a connection to a process of the same user, and whether this
/// rank leaves the report of the end of its agent to another process.
fn handed_over(value: &[u8]) -> Option<(i32, bool)> {
    let shorter = value.strip_suffix(CONNECTION_SILENT.as_bytes());
    let (value, silent) = (shorter.unwrap_or(value), shorter.is_some());
    let colon = value.iter().position(|&b| b == b':')?;
    let (fd, pid) = (text::number(&value[..colon])?, text::number(&value[colon + 1..])?);
    let fd = i32::try_from(fd).ok()?;
    (pid == u64::from(raw::pid()) && raw::peer_uid(fd) == Ok(raw::euid())).then_some((fd, silent))
}

/// Returns whether `pid:...` names this process.
fn names_this(value: &[u8]) -> bool {
    let pid = value.split(|&b| b == b':').next().and_then(text::number);
    pid == Some(u64::from(raw::pid()))
}

/// Ends the process after a panic.
pub fn panicked() -> ! {
    Line::new(format_args!("hostbuf: internal error before main (process {})", raw::pid())).say();
    rank::end(ErrorClass::Defect)
}
