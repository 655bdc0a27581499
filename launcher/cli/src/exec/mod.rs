//! `hostbuf exec`: the prefix in front of a rank's program. It brings the rank to its host's agent
//! and becomes the program; the preloaded object does the rest inside it, before its `main`.

mod agent;
mod device_rank;
mod near_devices;
mod network_namespace;
mod proxy;
mod rank;
mod rank_binding;
#[cfg(test)]
mod recorded_host;
mod surroundings;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use hostbuf::{AttachError, Error, ErrorClass, JobError};
use hostbuf_agent::buffer_request;
use hostbuf_agent::files;
use hostbuf_agent::report::{self, exit_code};
use hostbuf_os::session::{Session, SessionError};
use hostbuf_os::{FrameSocket, Received};
use hostbuf_protocol::environment::{
    CONNECTION_SILENT, ENV_CONNECTION, ENV_FILES, ENV_GPU, ENV_JOB, ENV_NETWORK, ENV_OBJECT, ENV_REGISTER,
    ENV_REPORT, ENV_REQUIRE,
};
use hostbuf_protocol::limits::REPORT_MAX;
use hostbuf_protocol::message::{Coverage, Hello, Message, Role};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::arguments::{BufferArguments, RegisterArguments, StartArguments};
use crate::bind_mode::BindArguments;
use crate::engines::Place;
use crate::gpu_arguments::{GpuArguments, have_gpu_sections};
use crate::padding;
use crate::preload_file;
use crate::program::Program;
use crate::register_file;
use register_file::Preregistration;
use surroundings::Surroundings;

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
    gpu: GpuArguments,
    #[command(flatten)]
    start: StartArguments,
    #[command(flatten)]
    bind: BindArguments,
    /// Do not report that a rank is bound already
    #[arg(long, hide = true)]
    quiet: bool,
    /// The socket of the agents that `hostbuf run` has started
    #[arg(long, hide = true)]
    socket: Option<String>,
    /// The names of the buffers of `hostbuf run`
    #[arg(long, hide = true, requires = "socket", value_delimiter = ',')]
    names: Vec<String>,
    /// Leave it to `hostbuf run` to report the end of the agent, which is its child
    #[arg(long, hide = true, requires = "socket")]
    agent_watched: bool,
    /// The folder of the files that `hostbuf run` loads, as its agents get it
    #[arg(long, hide = true, requires = "socket")]
    files_folder: Option<String>,
    /// Run this program with these arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

impl ExecArguments {
    /// Returns the names of the buffers.
    fn names(&self) -> Result<Vec<String>, JobError> {
        if self.socket.is_some() {
            return Ok(self.names.clone());
        }
        Ok(self.buffers.options()?.into_iter().map(|buffer| buffer.name).collect())
    }

    /// Returns whether the rank with number `local_rank` on its host maps the GPU sections.
    fn uses_gpus(&self, local_rank: u64) -> bool {
        // Under `hostbuf run` the argument states that there are such sections. The connection
        // reports invalid options.
        let has_sections = match self.socket {
            Some(_) => self.gpu.is_given(),
            None => self.buffers.options().is_ok_and(|buffers| have_gpu_sections(&buffers)),
        };
        has_sections && self.gpu.includes(local_rank)
    }

    /// Returns the folder of the loaded files on this host.
    fn files_folder(&self) -> Result<Option<PathBuf>, Error> {
        let Some(word) = &self.files_folder else { return Ok(None) };
        let folder = files::path_of_word(word).ok_or_else(|| Error::Invalid {
            what: format!("invalid --files-folder {word}: expected a path"),
        })?;
        files::on_this_host(&folder).map(Some)
    }

    /// Returns whether another process reports the end of this host's agent. A launcher that is the
    /// agent's parent does. Under another launcher, the first rank of the host is enough. Without a
    /// launcher, the first rank may run already, or may not have started.
    fn is_silent(&self, place: Place) -> bool {
        self.agent_watched || (self.socket.is_some() && place.local_rank > 0)
    }
}

pub(crate) fn run(arguments: ExecArguments) -> ExitCode {
    let place = rank::place();
    if let Some(warning) = rank::unknown_launcher().filter(|_| !arguments.quiet) {
        hostbuf_agent::complain!("hostbuf exec: {warning}");
    }
    if let Err(why) = place.check() {
        let message = format!(
            "the variables of the engine state {why}, which is impossible: start the ranks by their launcher, and do not set its \
             variables by hand"
        );
        return end(&arguments, place, &JobError::new(ErrorClass::Invalid, message));
    }
    let program = match Program::find(&arguments.command[0]) {
        Ok(program) => required(&arguments, program),
        Err(error) => Err(error),
    };
    let registering = match &program {
        Ok(program) => {
            let devices = arguments.register.of(place.local_rank);
            let found = register_file::find(devices, arguments.uses_gpus(place.local_rank), program);
            found.map_err(JobError::from)
        }
        Err(_) => Ok(None),
    };
    let program = program.and_then(|program| Ok((program, registering?)));
    let connection = connect(&arguments, place);
    // The agent, which the first rank starts, must be neither bound nor late.
    let rank = program.and_then(|(program, registering)| {
        let surroundings = Surroundings::find(arguments.bind.bind, place, arguments.quiet)?;
        Ok(RankStart { place, program, registering, surroundings })
    });
    match (rank, connection) {
        (Ok(rank), Ok((channel, name))) => {
            match become_program(&arguments, rank, channel, &name) {
                Ok(never) => match never {},
                // The agent has accepted this rank, and ends for all ranks of the host.
                Err(error) if error.class == ErrorClass::Attach => agent_ended(&arguments, place, &error),
                Err(error) => end(&arguments, place, &error),
            }
        }
        (Err(error), connection) => {
            // The other ranks must not wait for this one. A launcher gets the error from the agent
            // and prints it once.
            match connection {
                Ok((channel, _)) if give_up(&channel, &error) => match arguments.socket {
                    Some(_) => exit_code(error.class),
                    None => await_failure(&channel).unwrap_or_else(|| end(&arguments, place, &error)),
                },
                _ => end(&arguments, place, &error),
            }
        }
        // Without a launcher that watches the agent, this rank may be the only one that has none.
        (Ok(_), Err(Unconnected { error, no_agent: true })) if !arguments.agent_watched => {
            end(&arguments, place, &error.into())
        }
        (Ok(_), Err(Unconnected { error: error @ Error::Attach(AttachError::AgentGone { .. }), .. })) => {
            agent_ended(&arguments, place, &error.into())
        }
        (Ok(_), Err(Unconnected { error, .. })) => end(&arguments, place, &error.into()),
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
            Err(JobError::new(ErrorClass::Unsupported, why))
        }
        _ => Ok(program),
    }
}

/// Prints an error and returns the exit status.
fn end(arguments: &ExecArguments, place: Place, error: &JobError) -> ExitCode {
    // A missing program is missing for every rank of the host. A launcher reports the end of its
    // ranks, so one rank of the host is enough.
    if error.class.is_of_program() && arguments.socket.is_some() && place.local_rank > 0 {
        return exit_code(error.class);
    }
    report::end("hostbuf exec", error.class, error)
}

/// Prints the end of the agent unless another process does, and returns the exit status.
fn agent_ended(arguments: &ExecArguments, place: Place, error: &JobError) -> ExitCode {
    if arguments.is_silent(place) {
        return exit_code(error.class);
    }
    report::end("hostbuf exec", error.class, error)
}

/// Sends the error of this rank to the agent. Returns whether the agent could be reached.
fn give_up(channel: &FrameSocket, error: &JobError) -> bool {
    let failed = Message::Failed { error: error.record() };
    channel.send(&failed, &[]).is_ok()
}

/// Waits until the agent has told this rank that the job has failed. The agent chooses the rank of
/// the host that prints the error: usually all ranks have the same one. Returns the exit status, or
/// `None` if the job continues without this rank or the agent has ended.
fn await_failure(channel: &FrameSocket) -> Option<ExitCode> {
    let Ok(Received::Packet(packet)) = channel.receive() else { return None };
    let (prints, error) = match packet.message() {
        Ok(Message::Fail { prints, error }) => (prints, error),
        Ok(Message::Refused { error }) => (true, error),
        _ => return None,
    };
    if prints {
        hostbuf_agent::complain!("hostbuf: {}", error.line);
    }
    Some(exit_code(error.class))
}

/// The reason why a rank has no connection to its agent.
struct Unconnected {
    error: Error,
    /// True if no process listens on the agent's socket.
    no_agent: bool,
}

impl From<Error> for Unconnected {
    fn from(error: Error) -> Unconnected {
        Unconnected { error, no_agent: false }
    }
}

/// Connects to the agent and introduces this rank.
fn connect(arguments: &ExecArguments, place: Place) -> Result<(FrameSocket, String), Unconnected> {
    let Place { rank, size, local_rank, local_size } = place;
    let mut hello = Hello { role: Role::Rank, rank, size, local_rank, local_size, request: 0 };
    let command = arguments.command.join(std::ffi::OsStr::new(" "));
    let command = command.as_bytes();
    let (session, name) = match &arguments.socket {
        Some(name) => (agent_of_run(name, &Message::Hello { hello, command })?, name.clone()),
        None => {
            let buffers = arguments.buffers.options()?;
            arguments.register.check(&buffers)?;
            arguments.gpu.check(&buffers)?;
            hello.request = buffer_request::number(&buffers);
            let timeout = arguments.start.timeout()?;
            agent::find_or_start(&buffers, timeout, place, &Message::Hello { hello, command })?
        }
    };
    Ok((session.into_connection(), name))
}

/// Says `hello` to the agent that `hostbuf run` has started here before any rank.
fn agent_of_run(name: &str, hello: &Message<'_>) -> Result<Session, Unconnected> {
    Session::open(name, None, hello).map_err(|error| match error {
        SessionError::Gone => Error::from(agent::gone()).into(),
        SessionError::NoServer => {
            let why = format!(
                "no agent of the job answers on {} at @{name}: {error}. The engine has put a rank where `hostbuf run` has no \
                 agent (name all hosts with --host), or this rank is in a network namespace of its own, or the job is over",
                hostbuf_os::process::host_name()
            );
            Unconnected { error: AttachError::AgentGone { why }.into(), no_agent: true }
        }
        SessionError::Connect(source) | SessionError::Io(source) => {
            Error::Os { doing: format!("connecting to the agent of this host at @{name}"), source }.into()
        }
        error => Error::from(AttachError::from(error)).into(),
    })
}

/// A type without values: a process that becomes another program does not return.
enum Never {}

/// The start of the rank that this process becomes.
struct RankStart {
    place: Place,
    program: Program,
    registering: Option<Preregistration>,
    surroundings: Surroundings,
}

/// Replaces this process by the program of `rank`.
fn become_program(
    arguments: &ExecArguments,
    rank: RankStart,
    channel: FrameSocket,
    name: &str,
) -> Result<Never, JobError> {
    let RankStart { place, program, registering, surroundings } = rank;
    let mut command = Command::new(&program.path);
    command.arg0(&arguments.command[0]).args(&arguments.command[1..]);
    command.env(ENV_JOB, name);
    // An enclosing job may have set it, in which this process is a rank that registers.
    command.env_remove(ENV_REGISTER).env_remove(ENV_GPU);
    rank::set(place, &mut command);
    surroundings.set(&mut command);
    command.env_remove(ENV_FILES).envs(arguments.files_folder()?.map(|folder| (ENV_FILES, folder)));
    // The preloaded object writes in place, so the entries are made with enough room. An enclosing
    // job may have set its own.
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(padding::is_address_or_size))
    {
        command.env_remove(name);
    }
    let names = arguments.names()?;
    if names.is_empty() {
        // The program needs nothing but the files.
        command.env_remove(ENV_REQUIRE);
        return become_voter(command, &program, Coverage::Preloaded, "", channel);
    }
    command.envs(padding::variables(names.iter().map(String::as_str)));
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
    if let Some(Preregistration { object, devices, uses_gpus }) = &registering {
        // Its constructor runs after that of the preloaded object, which it requires.
        list.push(":");
        list.push(object);
        command.env(ENV_REGISTER, format!("{}:{devices}", std::process::id()));
        command.envs(uses_gpus.then(|| (ENV_GPU, std::process::id().to_string())));
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
        let coverage = if program.can_attach { Coverage::Attaches } else { Coverage::None };
        return become_voter(command, &program, coverage, why, channel);
    }
    // Scripts and shells use lower numbers themselves.
    let high = fcntl(channel.as_fd(), FcntlArg::F_DUPFD_CLOEXEC(500))
        .or_else(|_| fcntl(channel.as_fd(), FcntlArg::F_DUPFD_CLOEXEC(3)));
    let kept = high.map_err(|e| Error::Os { doing: "moving the connection".into(), source: e.into() })?;
    let silent = if arguments.is_silent(place) { CONNECTION_SILENT } else { "" };
    command.env(ENV_CONNECTION, format!("{kept}:{}{silent}", std::process::id()));
    let through = |flag| {
        // Only the flag of the new descriptor changes.
        fcntl(borrow(kept), FcntlArg::F_SETFD(flag))
    };
    through(FdFlag::empty())
        .map_err(|e| Error::Os { doing: "passing the connection on".into(), source: e.into() })?;
    let source = command.exec();
    let mut doing = format!("starting {}", program.path.display());
    if source.kind() == std::io::ErrorKind::NotFound {
        // The program itself exists.
        doing += ", or the interpreter that it names";
    }
    let error = JobError::new(ErrorClass::NotExecutable, format!("{doing}: {source}"));
    give_up(&channel, &error);
    Err(error)
}

/// Votes in the place of `program`, and then replaces this process by it.
fn become_voter(
    mut command: Command,
    program: &Program,
    coverage: Coverage,
    why: &str,
    channel: FrameSocket,
) -> Result<Never, JobError> {
    tracing::info!(why, "voting in the program's place");
    let report = proxy::vote_for(program, coverage, why, &channel)?;
    drop(channel);
    command.env(ENV_REPORT, report);
    command.env(ENV_CONNECTION, "-");
    let error = command.exec();
    let message = format!("starting {}: {error}", program.path.display());
    Err(JobError::new(ErrorClass::NotExecutable, message))
}

#[allow(unsafe_code, reason = "borrows a descriptor by its number")]
fn borrow(fd: i32) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: the descriptor was made by this process and stays open until it execs or ends.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

/// Returns the inode number of this process's network namespace.
fn network() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/net").ok().map(|metadata| metadata.ino())
}
