//! `hostbuf run`: starts an agent on every host, then the program's ranks, each under `hostbuf
//! exec`.

mod contexts;
mod death;
mod descendants;
mod file_arguments;
mod lines;
mod own_agent;
mod own_command;
mod plan;
mod progress;
mod selection;
mod shortage;
mod signals;
mod spawn;
mod supervise;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueHint;
use hostbuf::{BufferOptions, Error, ErrorClass, JobError};
use hostbuf_os::process;

use crate::arguments::{BufferArguments, RegisterArguments, StartArguments};
use crate::bind_mode::BindArguments;
use crate::engines::Engine;
use crate::gpu_arguments::{GpuArguments, have_gpu_sections};
use crate::hosts::Host;
use crate::program::Program;
use crate::{engines, hosts, register_file};
use file_arguments::FileArguments;
use hostbuf_agent::files::word_of_path;
use hostbuf_agent::report::end;
use hostbuf_agent::spec::Spec;
use plan::{EngineOptions, RequestedSize};
use selection::EngineChoice;

/// Start a program's ranks with a buffer on each host: hostbuf run -n 8 --host h0:4,h1:4 --size 2G
/// -- ./app
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Several programs: hostbuf run -n 2 --size 2G -- ./a : -n 2 -- ./b

The engine gets the hosts as given, or finds them in the allocation. Use --launcher-arg for its own options. \
Standard streams, signals (INT, TERM, HUP, TSTP, CONT, USR1, USR2) and the exit status pass through as with the engine \
itself. Nothing can be preloaded into a statically linked program or one with file capabilities: it gets the buffer if it \
links the library and calls hostbuf_attach or HostBuffer::attach.")]
pub(crate) struct RunArguments {
    /// Start N ranks; by default one for each slot of the hosts
    #[arg(short = 'n', long = "ranks", value_name = "N", visible_short_alias = 'c', value_parser = hosts::ranks)]
    #[arg(value_hint = ValueHint::Other, allow_negative_numbers = true)]
    ranks: Option<usize>,
    /// Run on these hosts, with the number of ranks for each: h0:2,h1:2
    #[arg(long, value_name = "LIST", conflicts_with = "hostfile", value_hint = ValueHint::Other)]
    host: Option<String>,
    /// Read the hosts from a file with lines such as "h0 slots=2" or "h0:2"
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    hostfile: Option<PathBuf>,
    #[command(flatten)]
    buffers: BufferArguments,
    #[command(flatten)]
    files: FileArguments,
    #[command(flatten)]
    register: RegisterArguments,
    #[command(flatten)]
    gpu: GpuArguments,
    #[command(flatten)]
    start: StartArguments,
    #[command(flatten)]
    bind: BindArguments,
    /// Start the processes with this engine
    #[arg(long, value_name = "ENGINE", value_parser = EngineChoice::parser(), default_value = selection::AUTO)]
    launcher: EngineChoice,
    /// Pass one word to the engine; repeat it for each: --launcher-arg --mca --launcher-arg btl
    /// --launcher-arg tcp,self
    #[arg(long = "launcher-arg", value_name = "ARG", allow_hyphen_values = true)]
    launcher_args: Vec<OsString>,
    /// Use this mpirun or mpiexec instead of that of the program's MPI or the first one in PATH
    #[arg(long, value_name = "PATH", value_hint = ValueHint::CommandName)]
    mpirun: Option<PathBuf>,
    /// Use this agent instead of the one installed with `hostbuf`
    #[arg(long, value_name = "PATH", value_hint = ValueHint::ExecutablePath)]
    agent: Option<PathBuf>,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
    /// Print the command lines that are started, and the agreed address
    #[arg(short, long)]
    verbose: bool,
    /// Run this program with these arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: RunArguments) -> ExitCode {
    match start(arguments) {
        Ok(status) => ExitCode::from(status),
        Err(error) => end("hostbuf run", error.class, error),
    }
}

/// Starts the job and returns its exit status.
fn start(mut arguments: RunArguments) -> Result<u8, JobError> {
    arguments.files.check()?;
    let buffers = buffers(&arguments.files, &arguments.buffers)?;
    arguments.register.check(&buffers)?;
    arguments.gpu.check(&buffers)?;
    if arguments.register.register.is_some() || have_gpu_sections(&buffers) {
        register_file::check(arguments.register.register.as_ref())?;
    }
    if arguments.ranks == Some(0) {
        return Err(JobError::new(ErrorClass::Invalid, "-n 0: a job has at least one rank"));
    }
    let hosts = match (&arguments.host, &arguments.hostfile) {
        (Some(list), _) => hosts::parse(list)?,
        (None, Some(file)) => hosts::from_file(file)?,
        (None, None) => Vec::new(),
    };
    let contexts = contexts::split(arguments.ranks, std::mem::take(&mut arguments.command))?;
    // A program that is missing on this host may exist on the others, which report it themselves.
    let programs: Vec<Program> = contexts.iter().filter_map(|c| Program::find(&c.command[0]).ok()).collect();
    let needed: Vec<String> = programs.iter().flat_map(|p| &p.needed).cloned().collect();
    let command = selection::find(arguments.launcher, arguments.mpirun.as_deref(), &programs)?;
    check_hosts(command.engine, arguments.launcher, &hosts)?;
    let mpirun = arguments.mpirun.as_deref();
    if let Some(warning) = selection::foreign_mpi(&command, &needed, arguments.launcher, mpirun)
        && !arguments.quiet
    {
        hostbuf_agent::complain!("hostbuf run: {warning}");
    }
    let (command, agent) = own_agent::find(command, &arguments, &hosts, &needed)?;
    let engine = command.engine;
    let options = EngineOptions::new(engine, &arguments.launcher_args, arguments.bind.bind.is_some());
    let job = process::random()
        .map_err(|source| Error::Os { doing: "asking for a random number".into(), source })?;
    let timeout = arguments.start.timeout()?;
    // The name is random, so no other process can bind it first.
    let socket = format!("hostbuf/{}/{job:032x}", nix::unistd::geteuid());
    let mut spec = Spec::new(job, socket, buffers);
    spec.reports = true;
    // An engine ends its ranks by itself, and its daemons may be lost without the job.
    spec.ends_processes = engine.spawns_ranks();
    spec.program = options.common_program(&contexts);
    spec.timeout = timeout;
    arguments.files.set(&mut spec)?;
    let mut for_exec = arguments.register.words();
    for_exec.extend(arguments.gpu.words(&spec.buffers));
    for_exec.extend(arguments.buffers.require.then(|| "--require".to_owned()));
    for_exec.extend(arguments.bind.words());
    for_exec.extend(spec.as_files.iter().map(|folder| format!("--files-folder={}", word_of_path(folder))));
    for_exec.extend(arguments.quiet.then(|| "--quiet".to_owned()));
    // The agent is a child of this process, which therefore learns of its end.
    for_exec.extend(engine.spawns_ranks().then(|| "--agent-watched".to_owned()));
    let plan = plan::plan(&command, &agent, &hosts, &contexts, &options, &spec, &for_exec)?;
    let size = RequestedSize::new(&contexts, &hosts);
    let verbosity = supervise::Verbosity { quiet: arguments.quiet, verbose: arguments.verbose };
    let status = supervise::supervise(&command, plan, size, timeout, verbosity);
    if let Some(folder) = &spec.as_files {
        file_arguments::remove_folder(folder, job);
    }
    status
}

/// Returns the buffers of a job, the one for loaded files last.
///
/// # Errors
/// As [`BufferArguments::options`] and [`FileArguments::buffer`].
fn buffers(files: &FileArguments, arguments: &BufferArguments) -> Result<Vec<BufferOptions>, JobError> {
    let loaded = files.buffer(arguments.settings())?;
    let is_none = match &loaded {
        Some(_) => arguments.have_no_buffer(),
        None => files.is_requested() && arguments.are_none(),
    };
    let mut buffers = if is_none { Vec::new() } else { arguments.options()? };
    if let Some(loaded) = loaded {
        if buffers.iter().any(|buffer| buffer.name == loaded.name) {
            let message =
                format!("--buffer name={}: --load makes a buffer of this name: use another one", loaded.name);
            return Err(JobError::new(ErrorClass::Invalid, message));
        }
        buffers.push(loaded);
    }
    Ok(buffers)
}

/// Checks that the engine can start ranks on `hosts`.
///
/// # Errors
/// An error of the class `Unsupported` that names the other hosts, if the engine starts ranks on
/// this host only.
fn check_hosts(engine: &dyn Engine, choice: EngineChoice, hosts: &[Host]) -> Result<(), JobError> {
    let missing = (choice == EngineChoice::Auto).then(engines::missing_for_other_hosts);
    let Some(why) = engine.limited_to_one_host(missing.as_deref()) else { return Ok(()) };
    let others: Vec<Host> = hosts.iter().filter(|host| !is_here(&host.name)).cloned().collect();
    if others.is_empty() {
        return Ok(());
    }
    let (others, here) = (hosts::names(&others), process::host_name());
    let message = format!("cannot start ranks on {others} (this host is {here}): {why}");
    Err(JobError::new(ErrorClass::Unsupported, message))
}

fn is_here(name: &str) -> bool {
    name == "localhost" || name == process::host_name()
}
