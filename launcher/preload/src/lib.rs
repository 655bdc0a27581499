//! The preloaded object: gets the buffer into a process before its `main` and before the static
//! constructors of its executable.
//!
//! It is loaded by `LD_PRELOAD` into every image of a job, so it must be invisible: it has no
//! dependency, refers to no symbol of any libc (one that asks for a newer libc than a container's
//! would make every program there exit), exports nothing, never allocates, and speaks to the kernel
//! by instruction, since sanitizers intercept libc's `mmap`. It runs in three cases:
//!
//! 1. the first image of a rank: `hostbuf exec` has opened the connection to the host's agent and
//!    handed it through exec; the process votes, maps what wins, and goes on to `main` when all
//!    ranks of all hosts have;
//! 2. any later image (a shell's child, a spawned process): it takes what is agreed, or ends with a
//!    clear error;
//! 3. no agent answers: the process runs without the buffer, and without an address in its
//!    environment. It prints nothing if the job is over, and a message if the agent is unreachable
//!    (in another network namespace).
//!
//! In the first image of a rank that registers the buffers (`--register`) it stops when they are
//! mapped, and leaves the connection open: the registering object (launcher/preregister), whose
//! constructor comes next, goes on from there.

#![cfg_attr(not(test), no_std)]
#![allow(unsafe_code)]

mod chroot;
mod command_line;
mod container;
mod environment;
mod text;
mod unreachable;

use environment::Environment;
use hostbuf_protocol::ballot::{Holds, answer};
use hostbuf_protocol::wire::{
    ENV_ADDRESS, ENV_ADDRESS_ROOM, ENV_CONNECTION, ENV_JOB, ENV_PREFIX, ENV_REGISTER, ENV_REPORT, ENV_SIZE,
    ENV_SIZE_ROOM, Frame, Hello, Kind, Role, Territory, Winner,
};
use hostbuf_raw::syscall::{self as raw, Errno};
use text::Line;

// Weak references: null unless a sanitizer's runtime is in the process.
core::arch::global_asm!(
    ".weak __tsan_init",
    ".weak __msan_init",
    ".pushsection .data.rel.ro,\"aw\"",
    ".balign 8",
    ".hidden hostbuf_sanitizers",
    "hostbuf_sanitizers: .quad __tsan_init",
    ".quad __msan_init",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "hostbuf_sanitizers"]
    static SANITIZERS: [usize; 2];
}

fn territory() -> Territory {
    // SAFETY: two words, written by the dynamic linker before any constructor runs.
    let [thread, memory] = unsafe { SANITIZERS };
    if thread == 0 && memory == 0 { Territory::Anywhere } else { Territory::Sanitized }
}

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
    let winner = match connection {
        Some(fd) => {
            let registers = environment.value(ENV_REGISTER).is_some_and(names_this);
            if !registers {
                // A child inherits the variable, but in the child this number may be another file.
                environment.write(ENV_CONNECTION, b"-");
            }
            let (winner, report) = take_part(fd, if registers { Until::Mapped } else { Until::Go });
            if !registers {
                raw::close(fd);
            }
            environment.write(ENV_REPORT, report.bytes());
            Some(winner)
        }
        None if is_the_prefix(&environment) => return,
        None => match come_late(name) {
            Ok(winner) => Some(winner),
            Err(why) => {
                unreachable::tell(&mut environment, why);
                None
            }
        },
    };
    publish(&mut environment, winner);
    container::enter(&mut environment);
    container::leave(&mut environment);
}

/// Whether this process is `hostbuf exec` itself, which votes for nobody. (The engine hands the
/// variables to every process of the job, so that processes spawned later have them too; they name
/// the prefix.)
fn is_the_prefix(environment: &Environment) -> bool {
    let Some(prefix) = environment.value(ENV_PREFIX) else { return false };
    let mut path = [0u8; 4096];
    let length = raw::read_link(b"/proc/self/exe\0", &mut path).unwrap_or(0);
    // A prefix that was replaced by a newer one meanwhile is shown as deleted.
    path[..length].strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest == b" (deleted)")
}

/// `fd:pid` as `hostbuf exec` wrote it, when this is the process that it became and the descriptor
/// is a connection to a process of the same user.
fn handed_over(value: &[u8]) -> Option<i32> {
    let colon = value.iter().position(|&b| b == b':')?;
    let (fd, pid) = (text::number(&value[..colon])?, text::number(&value[colon + 1..])?);
    let fd = i32::try_from(fd).ok()?;
    (pid == u64::from(raw::pid()) && raw::peer_uid(fd) == Ok(raw::euid())).then_some(fd)
}

/// Whether `pid:...` is about this process.
fn names_this(value: &[u8]) -> bool {
    let pid = value.split(|&b| b == b':').next().and_then(text::number);
    pid == Some(u64::from(raw::pid()))
}

/// Writes the address and the size of the first buffer into the environment, or removes those of a
/// parent.
fn publish(environment: &mut Environment, winner: Option<Winner>) {
    let first =
        winner.as_ref().and_then(|w| w.buffers.as_slice().first().map(|b| (w.address + b.offset, b.length)));
    let (address, size) = first.unwrap_or_default();
    let address = Line::new(format_args!("{address:#018x}"));
    let size = Line::new(format_args!("{size}"));
    for (name, room, value) in [(ENV_ADDRESS, ENV_ADDRESS_ROOM, address), (ENV_SIZE, ENV_SIZE_ROOM, size)] {
        environment.rename(room, name);
        if first.is_none() || !environment.write(name, value.bytes()) {
            environment.rename(name, room);
        }
    }
}

/// How far case 1 goes here.
#[derive(PartialEq, Eq)]
enum Until {
    /// This process has mapped, and nobody has been told.
    Mapped,
    /// Every rank of every host has mapped.
    Go,
}

/// Handles case 1. Returns the agreement and the value of [`ENV_REPORT`], and ends the process if
/// there can be no buffer.
fn take_part(fd: i32, until: Until) -> (Winner, Line) {
    let territory = territory();
    if raw::send(fd, Frame::new(Kind::Ready).with_words(&[territory as u64]).bytes()).is_err() {
        agent_ended();
    }
    let mut holds = Some(Holds::new(territory));
    let mut agreed = None;
    loop {
        let (frame, descriptors) = next(fd).unwrap_or_else(|| agent_ended());
        match (frame.kind(), &mut holds) {
            (Some(Kind::Ballot | Kind::Search), Some(holds)) => {
                if let Some(reply) = answer(holds, &frame) {
                    // A failure to send shows in the next receive.
                    let _ = raw::send(fd, reply.bytes());
                }
            }
            (Some(Kind::Winner), holds @ Some(_)) => {
                let (Some(winner), Some(holds)) = (Winner::parse(&frame), holds.take()) else {
                    agent_ended()
                };
                let mapped = holds.map(&winner, descriptors.as_slice());
                descriptors.close();
                let agreement = (winner, Line::new(format_args!("")).and(frame.text()));
                let reply = match mapped {
                    Ok(()) if until == Until::Mapped => return agreement,
                    Ok(()) => Frame::new(Kind::Mapped),
                    Err(Errno(e)) => Frame::new(Kind::Failed)
                        .with_text(Line::new(format_args!("mapping the buffer failed, error {e}")).bytes()),
                };
                let _ = raw::send(fd, reply.bytes());
                agreed = Some(agreement);
            }
            (Some(Kind::Go), None) => match agreed {
                Some(agreement) => return agreement,
                None => agent_ended(),
            },
            (Some(Kind::Fail), _) => {
                if frame.words[1] != 0 {
                    Line::new(format_args!("hostbuf: ")).and(frame.text()).say();
                }
                raw::exit(frame.words[0] as i32)
            }
            _ => descriptors.close(),
        }
    }
}

/// Handles cases 2 and 3. The error is that of connecting, or `None` if the connection closed
/// without an answer, as at the end of a job.
fn come_late(name: &[u8]) -> Result<Winner, Option<Errno>> {
    let fd = raw::connect(name).map_err(Some)?;
    let winner = join(fd);
    raw::close(fd);
    winner.ok_or(None)
}

fn join(fd: i32) -> Option<Winner> {
    // A name can be taken by anybody; another user's socket is no agent of ours.
    if raw::peer_uid(fd) != Ok(raw::euid()) {
        return None;
    }
    let hello = Hello { role: Role::Late, rank: 0, size: 0, local_rank: 0, local_size: 0, request: 0 };
    raw::send(fd, hello.frame().bytes()).ok()?;
    let (frame, descriptors) = next(fd)?;
    let Some(winner) = (frame.kind() == Some(Kind::Winner)).then(|| Winner::parse(&frame)).flatten() else {
        descriptors.close();
        return None;
    };
    let mut holds = Holds::new(territory());
    let result = holds.take(&winner);
    if let Err(refusal) = &result {
        let (start, end) = refusal.mapping;
        let mut line = Line::new(format_args!(
            "hostbuf: process {} cannot have the job's buffer at {:#x} ({} bytes): ",
            raw::pid(),
            winner.address,
            winner.length
        ));
        line = if start == 0 && refusal.errno == Errno::NOMEM {
            line.and(b"the address space is limited (`ulimit -v`)")
        } else if start == 0 {
            line.and(Line::new(format_args!("the range is refused, error {}", refusal.errno.0)).bytes())
        } else {
            let path = if refusal.path().is_empty() { b"an anonymous mapping" } else { refusal.path() };
            line.and(path).and(Line::new(format_args!(" stands at {start:#x}-{end:#x}")).bytes())
        };
        line = line
            .and(b". It is a later image of a rank: run it directly under `hostbuf exec`, so that it votes.");
        line.say();
        let _ = raw::send(fd, Frame::new(Kind::Failed).with_text(line.bytes()).bytes());
        raw::exit(1);
    }
    let mapped = holds.map(&winner, descriptors.as_slice());
    descriptors.close();
    if let Err(Errno(e)) = mapped {
        Line::new(format_args!(
            "hostbuf: process {} cannot map the job's buffer at {:#x}, error {e}",
            raw::pid(),
            winner.address
        ))
        .say();
        raw::exit(1);
    }
    let _ = raw::send(fd, Frame::new(Kind::Mapped).bytes());
    Some(winner)
}

fn agent_ended() -> ! {
    Line::new(format_args!(
        "hostbuf: the agent of this host ended before the buffer was agreed on (process {})",
        raw::pid()
    ))
    .say();
    raw::exit(1)
}

struct Descriptors {
    list: [i32; raw::MAX_DESCRIPTORS],
    count: usize,
}

impl Descriptors {
    fn as_slice(&self) -> &[i32] {
        &self.list[..self.count]
    }

    fn close(&self) {
        for &fd in self.as_slice() {
            raw::close(fd);
        }
    }
}

/// The next frame; `None` when the connection ended or spoke nonsense.
fn next(fd: i32) -> Option<(Frame, Descriptors)> {
    let mut packet = [0u8; Frame::SIZE];
    let mut descriptors = Descriptors { list: [-1; raw::MAX_DESCRIPTORS], count: 0 };
    let (length, count) = raw::receive(fd, &mut packet, &mut descriptors.list).ok()?;
    descriptors.count = count;
    let frame = Frame::parse(&packet[..length]);
    if frame.is_none() {
        descriptors.close();
    }
    Some((frame?, descriptors))
}

/// Ends the process after a panic.
pub fn panicked() -> ! {
    Line::new(format_args!("hostbuf: internal error before main (process {})", raw::pid())).say();
    raw::exit(1)
}
