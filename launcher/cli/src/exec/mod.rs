//! `hostbuf exec`: the prefix in front of a rank's program. It brings the rank to its host's agent
//! and becomes the program; the preloaded object does the rest inside it, before its `main`.

mod agent;
mod rank;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use hostbuf::{AttachError, Error};
use hostbuf_agent::exit_class::ExitClass;
use hostbuf_agent::job_error::JobError;
use hostbuf_os::{FrameSocket, Message};
use hostbuf_protocol::ballot;
use hostbuf_protocol::ballot::Holds;
use hostbuf_protocol::candidates::Ballot;
use hostbuf_protocol::wire::{
    Coverage, ENV_ADDRESS, ENV_ADDRESS_ROOM, ENV_CONNECTION, ENV_JOB, ENV_LOCAL_RANK, ENV_LOCAL_SIZE,
    ENV_NETWORK, ENV_OBJECT, ENV_REGISTER, ENV_REPORT, ENV_REQUIRE, ENV_SIZE, ENV_SIZE_ROOM, Frame, Hello,
    Kind, REPORT_MAX, ROOM, Role, Territory, Winner,
};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::arguments::{BufferArguments, RegisterArguments, StartArguments};
use crate::engines::Place;
use crate::preload_file;
use crate::program::Program;
use crate::register_file;
use register_file::Preregistration;

/// Run a rank of an existing job script with a buffer: `mpirun <anything> hostbuf exec --size 2G --
/// ./app`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The first rank on a host starts the host's agent; the ranks of the host agree on one address. \
Hosts are compared at the first collective call (replicate). Nothing can be preloaded into a statically linked program or \
one with file capabilities: it gets the buffer if it links the library and calls hostbuf_attach or HostBuffer::attach."
)]
pub(crate) struct ExecArguments {
    #[command(flatten)]
    buffers: BufferArguments,
    #[command(flatten)]
    register: RegisterArguments,
    #[command(flatten)]
    start: StartArguments,
    /// The socket of the agents that `hostbuf run` has started
    #[arg(long, hide = true)]
    socket: Option<String>,
    /// Run this program with these arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: ExecArguments) -> ExitCode {
    let place = rank::place();
    let program = match Program::find(&arguments.command[0]) {
        Ok(program) => required(&arguments, program),
        Err(error) => Err(error),
    };
    let registering = match (&program, arguments.register.of(place.local_rank)) {
        (Ok(program), Some(devices)) => register_file::find(devices, program).map_err(JobError::from),
        _ => Ok(None),
    };
    let program = program.and_then(|program| Ok((program, registering?)));
    let connection = connect(&arguments, place);
    match (program, connection) {
        (Ok((program, registering)), Ok((channel, name))) => {
            match become_program(&arguments, &program, registering, place, channel, &name) {
                Ok(never) => match never {},
                Err(error) => end(place, &error),
            }
        }
        (Err(error), connection) => {
            // The other ranks must not wait for this one. A launcher gets the error from the agent
            // and prints it once.
            match connection {
                Ok((channel, _)) if give_up(&channel, &error) && arguments.socket.is_some() => {
                    error.class.into()
                }
                _ => end(place, &error),
            }
        }
        (Ok(_), Err(error)) => end(place, &error.into()),
    }
}

/// Returns the program, or an error if it gets no buffer and `--require` demands one.
fn required(arguments: &ExecArguments, program: Program) -> Result<Program, JobError> {
    match &program.not_preloadable {
        Some(why) if arguments.buffers.require && !program.can_attach => {
            let why = format!(
                "no buffer (--require): {why}. Nothing can be loaded into it before main: link it dynamically, or link libhostbuf \
                 and call hostbuf_attach"
            );
            Err(JobError::new(ExitClass::Unsupported, why))
        }
        _ => Ok(program),
    }
}

/// Prints an error and returns the exit status.
fn end(place: Place, error: &JobError) -> ExitCode {
    // A missing program is missing for every rank of the host: one line is enough.
    if error.class.is_of_program() && place.local_rank > 0 {
        return error.class.into();
    }
    error.class.end("hostbuf exec", error)
}

/// Sends the error of this rank to the agent. Returns whether the agent could be reached.
fn give_up(channel: &FrameSocket, error: &JobError) -> bool {
    let frame = Frame::new(Kind::Failed).with_words(&[u64::from(error.class.status())]);
    channel.send(&frame.with_text(error.message.as_bytes()), &[]).is_ok()
}

/// Connects to the agent and introduces this rank.
fn connect(arguments: &ExecArguments, place: Place) -> hostbuf::Result<(FrameSocket, String)> {
    let Place { rank, size, local_rank, local_size } = place;
    let mut hello = Hello { role: Role::Rank, rank, size, local_rank, local_size, request: 0 };
    let (channel, name) = match &arguments.socket {
        Some(name) => (agent_of_run(name)?, name.clone()),
        None => {
            let buffers = arguments.buffers.options()?;
            arguments.register.check(&buffers)?;
            hello.request = agent::request(&buffers);
            agent::find_or_start(&buffers, arguments.start.timeout()?, place)?
        }
    };
    let command = arguments.command.join(std::ffi::OsStr::new(" "));
    channel.send(&hello.frame().with_text(command.as_bytes()), &[]).map_err(|e| match e.kind() {
        // The agent was killed after this rank had connected.
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => AttachError::AgentGone {
            why: "the agent of this host ended before the buffer was agreed on".into(),
        },
        _ => AttachError::AgentGone { why: format!("the agent of this host: {e}") },
    })?;
    Ok((channel, name))
}

/// Connects to the agent that `hostbuf run` has started here before any rank.
fn agent_of_run(name: &str) -> hostbuf::Result<FrameSocket> {
    FrameSocket::connect(name).map_err(|e| {
        let why = format!(
            "no agent of the job answers on {} at @{name}: {e}. The engine has put a rank where `hostbuf run` has no \
             agent (name all hosts with --host), or this rank is in a network namespace of its own, or the job is over",
            hostbuf_os::process::host_name()
        );
        AttachError::AgentGone { why }.into()
    })
}

/// A type without values: a process that becomes another program does not return.
enum Never {}

/// Replaces this process by the program.
fn become_program(
    arguments: &ExecArguments,
    program: &Program,
    registering: Option<Preregistration>,
    place: Place,
    channel: FrameSocket,
    name: &str,
) -> Result<Never, JobError> {
    let mut command = Command::new(&program.path);
    command.arg0(&arguments.command[0]).args(&arguments.command[1..]);
    command.env(ENV_JOB, name);
    // An enclosing job may have set it, in which this process is a rank that registers.
    command.env_remove(ENV_REGISTER);
    command
        .env(ENV_LOCAL_RANK, place.local_rank.to_string())
        .env(ENV_LOCAL_SIZE, place.local_size.to_string());
    // The preloaded object writes in place, so the entries are made with enough room. An enclosing
    // job may have set its own.
    command.env_remove(ENV_ADDRESS).env_remove(ENV_SIZE);
    command.env(ENV_ADDRESS_ROOM, ROOM).env(ENV_SIZE_ROOM, ROOM);
    command.env(ENV_REPORT, format!("{:-<REPORT_MAX$}", ""));
    command.env_remove(ENV_REQUIRE).envs(arguments.buffers.require.then_some((ENV_REQUIRE, "1")));
    command.env_remove(ENV_NETWORK).envs(network().map(|inode| (ENV_NETWORK, inode.to_string())));
    let preload = preload_file::path()?;
    let mut list = OsString::new();
    if let Some(asan) = program.asan() {
        list.push(asan);
        list.push(":");
    }
    list.push(&preload);
    if let Some(Preregistration { object, devices }) = &registering {
        // Its constructor runs after that of the preloaded object, which it requires.
        list.push(":");
        list.push(object);
        command.env(ENV_REGISTER, format!("{}:{devices}", std::process::id()));
    }
    // The list may contain the object already, since the engine hands it to all processes of the
    // job.
    let theirs = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    for other in theirs
        .as_bytes()
        .split(|b| b": ".contains(b))
        .filter(|o| !o.is_empty() && *o != preload.as_os_str().as_bytes())
    {
        list.push(":");
        list.push(std::ffi::OsStr::from_bytes(other));
    }
    command.env("LD_PRELOAD", list).env(ENV_OBJECT, &preload);
    if program.asan().is_none() {
        // A later image may be one of gcc's AddressSanitizer, which refuses anything preloaded
        // before its runtime.
        let theirs = std::env::var("ASAN_OPTIONS").map(|o| o + ":").unwrap_or_default();
        command.env("ASAN_OPTIONS", theirs + "verify_asan_link_order=0");
    }
    if let Some(why) = &program.not_preloadable {
        tracing::info!(why, "voting in the program's place");
        let report = vote_for(program, why, &channel)?;
        drop(channel);
        command.env(ENV_REPORT, report);
        command.env(ENV_CONNECTION, "-");
        let error = command.exec();
        let message = format!("starting {}: {error}", program.path.display());
        return Err(JobError::new(ExitClass::NotExecutable, message));
    }
    // Scripts and shells use lower numbers themselves.
    let high = fcntl(channel.as_fd(), FcntlArg::F_DUPFD_CLOEXEC(500))
        .or_else(|_| fcntl(channel.as_fd(), FcntlArg::F_DUPFD_CLOEXEC(3)));
    let kept = high.map_err(|e| Error::Os { doing: "moving the connection".into(), source: e.into() })?;
    command.env(ENV_CONNECTION, format!("{kept}:{}", std::process::id()));
    let through = |flag| {
        // Only the flag of the new descriptor changes.
        fcntl(borrow(kept), FcntlArg::F_SETFD(flag))
    };
    through(FdFlag::empty())
        .map_err(|e| Error::Os { doing: "handing the connection on".into(), source: e.into() })?;
    let source = command.exec();
    let mut doing = format!("starting {}", program.path.display());
    if source.kind() == std::io::ErrorKind::NotFound {
        // The program itself exists.
        doing += ", or the interpreter that it names";
    }
    let error = JobError::new(ExitClass::NotExecutable, format!("{doing}: {source}"));
    give_up(&channel, &error);
    Err(error)
}

#[allow(unsafe_code)]
fn borrow(fd: i32) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: the descriptor was made by this process and stays open until it execs or ends.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

/// Returns the inode number of this process's network namespace.
fn network() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/net").ok().map(|metadata| metadata.ino())
}

/// Votes for a program that cannot vote by itself, for the reason `why`, with the segments that it
/// will map at fixed addresses and the addresses that are free in this process. Returns the value
/// of [`ENV_REPORT`] when all ranks may run.
fn vote_for(program: &Program, why: &str, channel: &FrameSocket) -> Result<String, JobError> {
    let gone =
        || JobError::new(ExitClass::Agent, "the agent of this host ended before the buffer was agreed on");
    let send = |frame: &Frame| channel.send(frame, &[]).map_err(|_| gone());
    let coverage = if program.can_attach { Coverage::Attaches } else { Coverage::None };
    send(
        &Frame::new(Kind::Ready)
            .with_words(&[Territory::Anywhere as u64, coverage as u64])
            .with_text(why.as_bytes()),
    )?;
    let mut report = String::new();
    let mut holds = Holds::new(Territory::Anywhere);
    loop {
        let Ok(Message::Frame(frame, _)) = channel.receive() else { return Err(gone()) };
        match frame.kind() {
            Some(Kind::Ballot) => {
                let length = frame.words[0] as usize;
                let mut reply = ballot::answer(&mut holds, &frame).ok_or_else(gone)?;
                let candidates = ballot::candidates_of(&frame);
                strike(program, &candidates, length, &mut reply);
                send(&reply)?;
            }
            Some(Kind::Search) => {
                let hole = search(program, &mut holds, &frame);
                send(&Frame::new(Kind::Hole).with_words(&[hole.map_or(u64::MAX, |h| h as u64)]))?;
            }
            Some(Kind::Winner) => {
                Winner::parse(&frame).ok_or_else(gone)?;
                report = String::from_utf8_lossy(frame.text()).into_owned();
                send(&Frame::new(Kind::Mapped))?;
            }
            Some(Kind::Go) => {
                if !frame.text().is_empty() {
                    hostbuf_agent::complain!("hostbuf exec: {}", String::from_utf8_lossy(frame.text()));
                }
                return Ok(report);
            }
            Some(Kind::Fail) => {
                if frame.words[1] != 0 {
                    hostbuf_agent::complain!("hostbuf: {}", String::from_utf8_lossy(frame.text()));
                }
                std::process::exit(frame.words[0] as i32);
            }
            _ => {}
        }
    }
}

/// Withdraws the votes for candidates that the program's own segments will cover.
fn strike(program: &Program, candidates: &Ballot, length: usize, reply: &mut Frame) {
    for (i, &address) in candidates.as_slice().iter().enumerate() {
        let covered =
            program.segments.iter().find(|&&(start, end)| start < address + length && address < end);
        if let (Some(&(start, end)), true) = (covered, reply.words[0] & 1 << i != 0) {
            reply.words[0] &= !(1 << i);
            if reply.words[1] == 0 {
                let path = program.path.as_os_str().as_encoded_bytes();
                *reply = reply.clone().with_text(path);
                let refusal = [address as u64, libc::EEXIST as u64, start as u64, end as u64];
                reply.words[1..5].copy_from_slice(&refusal);
            }
        }
    }
}

/// Returns the lowest hole that also avoids the program's segments.
fn search(program: &Program, holds: &mut Holds, frame: &Frame) -> Option<usize> {
    let [length, mut from, align] = [0, 1, 2].map(|i| frame.words[i] as usize);
    let align = align.next_power_of_two();
    loop {
        let hole = holds.hole(from, length, align)?;
        match program.segments.iter().find(|&&(start, end)| start < hole + length && hole < end) {
            Some(&(_, end)) => from = end.next_multiple_of(align),
            None => return Some(hole),
        }
    }
}
