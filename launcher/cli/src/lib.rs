//! `hostbuf`: one buffer per host, at one address on every host of an MPI job.

mod agent_program;
mod arguments;
mod bench;
mod bind_mode;
mod broker;
mod columns;
mod command_output;
mod doctor;
pub mod elf;
mod engine_option;
mod engines;
mod exec;
mod finding;
mod gpu_arguments;
pub mod hosts;
mod ignored_signal;
mod installation;
mod load;
mod manual;
mod mirror;
mod mpi_prefix;
mod padding;
mod picture;
mod preload_file;
mod printable;
mod process_tree;
mod program;
mod register_file;
mod result_output;
mod run;
mod search_path;
mod stat;
mod topology;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use engine_option::EngineOption;
use hostbuf::ErrorClass;
use hostbuf_agent::report::end;
use result_output::print_result;

/// One buffer per host, at one address on every host of an MPI job, shared by all its ranks.
#[derive(Debug, Parser)]
#[command(name = "hostbuf", version, propagate_version = true)]
#[command(after_help = "\
`hostbuf manual PREFIX` writes the manual pages and the completions for shells to PREFIX/share, for an installation by \
`cargo install`.")]
struct CommandLine {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Run(Box<run::RunArguments>),
    Exec(exec::ExecArguments),
    Load(load::LoadArguments),
    Bench(bench::BenchArguments),
    Broker(broker::BrokerArguments),
    Mirror(mirror::MirrorArguments),
    Stat(stat::StatArguments),
    Doctor(doctor::DoctorArguments),
    Topology(topology::TopologyArguments),
    /// Print the version
    #[command(hide = true)]
    Version,
    /// Write the preloaded object, for an installation
    #[command(hide = true)]
    Object {
        /// The file
        path: std::path::PathBuf,
    },
    /// Write the manual pages and the completions for shells to share/ below a prefix
    #[command(hide = true)]
    Manual {
        /// The prefix
        prefix: std::path::PathBuf,
        /// The date that the pages bear
        #[arg(long, default_value = "")]
        date: String,
    },
}

/// Runs the command with the arguments of this process, and returns its exit status.
pub fn main() -> ExitCode {
    // Only `hostbuf run` and `hostbuf exec` use this command.
    if std::env::args_os().nth(1).is_some_and(|a| a == "agent") {
        return hostbuf_agent::main(std::env::args().skip(2), hostbuf_agent::group::alone);
    }
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) => return reject(&error),
    };
    match &line.command {
        Verb::Broker(arguments) => hostbuf_agent::log::start_with(arguments.log_filter()),
        _ => hostbuf_agent::log::start(),
    }
    match line.command {
        Verb::Run(arguments) => run::run(*arguments),
        Verb::Exec(arguments) => exec::run(arguments),
        Verb::Load(arguments) => load::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
        Verb::Broker(arguments) => broker::run(arguments),
        Verb::Mirror(arguments) => mirror::run(&arguments),
        Verb::Stat(arguments) => stat::run(&arguments),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Topology(arguments) => topology::run(&arguments),
        Verb::Version => {
            print_result("hostbuf", concat!("hostbuf ", env!("CARGO_PKG_VERSION"), "\n"), ExitCode::SUCCESS)
        }
        Verb::Object { path } => written(preload_file::install(&path)),
        Verb::Manual { prefix, date } => {
            written(manual::write(&<CommandLine as clap::CommandFactory>::command(), &prefix, &date))
        }
    }
}

/// Formats a list of alternatives: `a, b or c`.
fn one_of(values: &[String]) -> String {
    match values {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => values.concat(),
    }
}

/// Returns the exit status of a command that only writes.
fn written(result: hostbuf::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => end("hostbuf", error.class(), error),
    }
}

/// Returns the engine's option in the command line of `hostbuf run` that the parser has refused.
fn engine_option(error: &clap::Error) -> Option<EngineOption> {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let (verb, words) = words.split_first()?;
    EngineOption::find(words, error).filter(|_| verb == "run")
}

/// Returns the command that prints the help for the subcommand of this command line, or for all
/// subcommands if it names none.
fn help_command() -> String {
    let word = std::env::args_os().nth(1);
    let command = <CommandLine as clap::CommandFactory>::command();
    match word.as_ref().and_then(|word| command.find_subcommand(word)) {
        Some(found) => format!("hostbuf {} --help", found.get_name()),
        None => "hostbuf --help".into(),
    }
}

/// Prints one line about an invalid command line. For help and version, prints these.
fn reject(error: &clap::Error) -> ExitCode {
    let option = engine_option(error);
    if let Some(EngineOption { word, instead: Some(instead) }) = &option {
        let help = help_command();
        let message = format!("unexpected argument '{word}' found (did you mean {instead}? see {help})");
        return end("hostbuf", ErrorClass::Invalid, message);
    }
    if !error.use_stderr() {
        return written(result_output::written(error.print()));
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit();
    }
    if let Some(message) = bind_mode::explain_none(error) {
        return end("hostbuf", ErrorClass::Invalid, format!("{message} (see {})", help_command()));
    }
    let text = error.to_string();
    // The hints and the usage come after the first empty line.
    let said = text.lines().take_while(|l| !l.trim().is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
    let said = match (error.get(ContextKind::ValidValue), said.split_once(" [possible values: ")) {
        (Some(ContextValue::Strings(values)), Some((head, _))) => {
            format!("{head}: expected {}", one_of(values))
        }
        _ => said,
    };
    // For `-mca` the parser reports the letter `-m`.
    let said = match (&option, error.get(ContextKind::InvalidArg)) {
        (Some(EngineOption { word, .. }), Some(ContextValue::String(letter))) => {
            said.replacen(&format!("'{letter}'"), &format!("'{word}'"), 1)
        }
        _ => said,
    };
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedValue, ContextKind::SuggestedSubcommand]
            .into_iter()
            .find_map(|kind| error.get(kind));
    let instead = match suggested {
        // No hidden option is suggested.
        Some(ContextValue::String(like)) if like != "--socket" => format!("did you mean {like}? "),
        Some(ContextValue::Strings(like)) if !like.is_empty() => {
            format!("did you mean {}? ", like.join(" or "))
        }
        // All words up to the next option are files.
        _ if error.kind() == ErrorKind::MissingRequiredArgument
            && std::env::args_os().any(|word| word == "--load") =>
        {
            "write -- between the files of --load and the program, ".into()
        }
        _ if error.kind() == ErrorKind::UnknownArgument => {
            match std::env::args_os().nth(1).as_ref().and_then(|word| word.to_str()) {
                Some("run") => {
                    "write the program's options after the program, the engine's after --launcher-arg, "
                        .into()
                }
                Some("exec") => "write the program's options after the program, ".into(),
                _ => String::new(),
            }
        }
        _ => String::new(),
    };
    let message = format!("{} ({instead}see {})", said.trim_start_matches("error: "), help_command());
    end("hostbuf", ErrorClass::Invalid, message)
}
