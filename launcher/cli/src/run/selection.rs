//! The selection of the engine that starts a job.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use hostbuf::{Error, Result};

use crate::command_output::output_of;
use crate::engines::{self, AgentKind, Engine, LaunchCommand};
use crate::program::Program;
use crate::run::own_command;
use crate::search_path;

/// The value of `--launcher`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum EngineChoice {
    /// The engine that suits the program and this host.
    Auto,
    /// This engine.
    Named(&'static dyn Engine),
}

/// The value of `--launcher` for [`EngineChoice::Auto`].
pub(super) const AUTO: &str = "auto";

impl EngineChoice {
    /// Returns the parser of `--launcher`.
    pub(super) fn parser() -> impl TypedValueParser<Value = EngineChoice> {
        let others = engines::without_mpirun_commands().collect::<Vec<_>>().join(" or ");
        let auto = format!(
            "Use the mpirun of the MPI to which the program is linked, else the first mpirun in PATH, else {others} in an \
             allocation, else local"
        );
        let named = engines::ALL.iter().map(|engine| PossibleValue::new(engine.option()).help(engine.help()));
        let values = [PossibleValue::new(AUTO).help(auto)].into_iter().chain(named);
        PossibleValuesParser::new(values).map(|text| {
            engines::ALL
                .iter()
                .find(|engine| engine.option() == text)
                .map_or(EngineChoice::Auto, |engine| EngineChoice::Named(*engine))
        })
    }

    fn option(self) -> &'static str {
        match self {
            EngineChoice::Auto => AUTO,
            EngineChoice::Named(engine) => engine.option(),
        }
    }
}

/// Finds the launch command for `choice` on this host. `mpirun` is the one that the user names.
/// Without one, the command that is installed beside the MPI's library of a program comes before
/// those in PATH.
///
/// # Errors
/// [`Error::Unsupported`] with the remedy if there is none, or if the MPI of a program has no
/// engine; [`Error::Invalid`] if the user names an mpirun for an engine that uses none.
pub(super) fn find(
    choice: EngineChoice,
    mpirun: Option<&Path>,
    programs: &[Program],
) -> Result<LaunchCommand> {
    let unsupported =
        |why: String| Error::Unsupported { what: format!("--launcher {}", choice.option()), why };
    if let EngineChoice::Named(engine) = choice
        && let Some(found) = engine.without_mpirun()
    {
        if let Some(path) = mpirun {
            let (option, path) = (engine.option(), path.display());
            return Err(Error::Invalid {
                what: format!(
                    "--launcher {option} cannot be used with --mpirun {path}: this engine uses no mpirun. Leave out one of \
                     the two"
                ),
            });
        }
        return found.map_err(unsupported);
    }
    let own = if mpirun.is_none() { own_command(choice, programs)? } else { None };
    if let Some(command) = own {
        return Ok(command);
    }
    let candidates: Vec<PathBuf> = match (mpirun, choice) {
        (Some(path), _) if path.is_absolute() || path.components().count() > 1 => vec![path.to_owned()],
        (Some(name), _) => search_path::find(&name.to_string_lossy()).into_iter().collect(),
        (None, EngineChoice::Auto) => in_path(engines::ALL),
        (None, EngineChoice::Named(engine)) => in_path(&[engine]),
    };
    // Each is asked for its version only once, since one that hangs costs seconds.
    let mut first = None;
    let mut commands = candidates.iter().filter_map(|path| {
        let found = examine(path);
        first.get_or_insert_with(|| found.clone());
        found.ok().flatten()
    });
    let needed: Vec<String> = programs.iter().flat_map(|p| &p.needed).cloned().collect();
    let owners = if mpirun.is_none() { mpis_of(&needed) } else { Vec::new() };
    let found = match choice {
        // The mpirun of another MPI would start every rank as a job of its own.
        EngineChoice::Auto => commands.find(|c| owners.is_empty() || owners.contains(&c.engine)),
        EngineChoice::Named(engine) => commands.find(|c| c.engine == engine),
    };
    if let Some(command) = found {
        return Ok(command);
    }
    if let (EngineChoice::Auto, None) = (choice, mpirun) {
        let mut others = engines::ALL.iter().rev().filter_map(|engine| engine.without_mpirun()?.ok());
        let suits = |c: &LaunchCommand| owners.is_empty() || c.engine.agent() == AgentKind::AnyMpi;
        return others.find(suits).ok_or_else(|| missing_mpirun(&owners));
    }
    let why = match mpirun {
        None => "no mpirun of this MPI is in PATH".into(),
        Some(path) => unsuitable(path, first.filter(|_| candidates.iter().any(|path| path.exists()))),
    };
    Err(unsupported(why))
}

/// Returns the launch command that is installed beside the MPI's library of the first program that
/// loads one.
///
/// # Errors
/// [`Error::Unsupported`] if that MPI has no engine, unless the user names one.
fn own_command(choice: EngineChoice, programs: &[Program]) -> Result<Option<LaunchCommand>> {
    let mpi_of = |program: &Program| {
        let library = program.needed.iter().find(|name| mpis().any(|mpi| mpi.provides_library(name)))?;
        Some((program.image.clone(), library.clone()))
    };
    let Some((image, library)) = programs.iter().find_map(mpi_of) else { return Ok(None) };
    let beside = own_command::beside(&image, &library);
    let examined: Vec<Examined> = beside.iter().map(|path| examine(path)).collect();
    let commands: Vec<LaunchCommand> =
        examined.iter().cloned().filter_map(|found| found.ok().flatten()).collect();
    let (Some((path, first)), [], EngineChoice::Auto) =
        (beside.iter().zip(&examined).next(), &commands[..], choice)
    else {
        return Ok(commands.into_iter().find(|command| match choice {
            EngineChoice::Auto => command.engine.provides_library(&library),
            EngineChoice::Named(engine) => command.engine == engine,
        }));
    };
    let path_text = path.display();
    let why = match first {
        Err(why) => format!(
            "it is linked to {library}, whose launch command {path_text} does not work: {why}. Load the environment of that MPI, \
             or name another mpirun with --mpirun"
        ),
        Ok(_) => format!(
            "it is linked to {library} of an MPI that hostbuf does not support, whose launch command is {path_text}. Run \
             `{path_text} ... hostbuf exec ...` instead, or name the mpirun of an MPI with the same ABI with --mpirun"
        ),
    };
    Err(Error::Unsupported { what: "a job of this program".into(), why })
}

/// Returns the reason why the mpirun that the user names is not used. `found` is the result of its
/// examination if it exists.
fn unsuitable(named: &Path, found: Option<Examined>) -> String {
    let shown = named.display();
    match found {
        None => format!("{shown} does not exist, or is not in PATH"),
        Some(Ok(Some(command))) => {
            let (name, option) = (command.engine.name(), command.engine.option());
            format!("{shown} belongs to {name}: use --launcher {option}, or leave out --launcher")
        }
        Some(Err(why)) => format!("{shown} does not work: {why}"),
        Some(Ok(None)) => format!("{shown} is not an mpirun of {}", names(&mpis().collect::<Vec<_>>())),
    }
}

/// Returns the launch commands of `engines` in PATH, those of all MPIs first.
fn in_path(engines: &[&dyn Engine]) -> Vec<PathBuf> {
    let own = engines.iter().filter(|engine| engine.without_mpirun().is_none()).flat_map(|e| e.commands());
    engines::COMMON_COMMANDS.iter().chain(own).filter_map(|name| search_path::find(name)).collect()
}

/// Returns the engines that have an mpirun.
fn mpis() -> impl Iterator<Item = &'static dyn Engine> {
    engines::ALL.iter().copied().filter(|engine| engine.without_mpirun().is_none())
}

/// Returns the MPIs to which a program is linked that needs these libraries: several if they share
/// a binary interface.
fn mpis_of(needed: &[String]) -> Vec<&'static dyn Engine> {
    let owners = |library: &String| -> Vec<_> { mpis().filter(|e| e.provides_library(library)).collect() };
    needed.iter().map(owners).find(|owners| !owners.is_empty()).unwrap_or_default()
}

/// Returns whether a program that needs these libraries is linked to an MPI.
pub(super) fn needs_mpi(needed: &[String]) -> bool {
    !mpis_of(needed).is_empty()
}

/// Returns the names of the engines: "A, B or C".
fn names(engines: &[&dyn Engine]) -> String {
    let names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
    match names.split_last() {
        Some((last, first @ [_, ..])) => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

fn missing_mpirun(owners: &[&dyn Engine]) -> Error {
    let name = names(owners);
    let options = owners.iter().map(|engine| engine.option()).collect::<Vec<_>>().join(" or ");
    Error::Unsupported {
        what: "a job of this program".into(),
        why: format!(
            "the program is linked to {name}, but no mpirun of {name} is in PATH. Load the environment of that MPI, or \
             name its mpirun with --mpirun and --launcher {options}"
        ),
    }
}

/// Returns a warning if the program is linked to an MPI and `command`, which the user has chosen by
/// the options `choice` and `mpirun`, starts its ranks without that MPI.
pub(super) fn foreign_mpi(
    command: &LaunchCommand,
    needed: &[String],
    choice: EngineChoice,
    mpirun: Option<&Path>,
) -> Option<String> {
    let (engine, owners) = (command.engine, mpis_of(needed));
    if owners.is_empty() || owners.contains(&engine) || engine.agent() == AgentKind::AnyMpi {
        return None;
    }
    let title = command.release.title();
    let (start, build) = match engine.agent() {
        AgentKind::Command => {
            (format!("--launcher {} starts it without an MPI", engine.option()), String::new())
        }
        _ => (format!("{title} starts it"), format!(", or build the program with {title}")),
    };
    let given = match (choice, mpirun) {
        (EngineChoice::Auto, _) => "--mpirun",
        (EngineChoice::Named(_), None) => "--launcher",
        (EngineChoice::Named(_), Some(_)) => "--launcher and --mpirun",
    };
    Some(format!(
        "the program is linked to {}, but {start}, so each rank may be alone in a job of its own (rank 0 of 1). Leave out \
         {given}{build}",
        names(&owners)
    ))
}

/// The launch command at a path, or `None` if it is of no MPI with an engine; the reason, as a
/// clause, if it does not state its version.
type Examined = std::result::Result<Option<LaunchCommand>, String>;

/// Examines the file at `path`.
fn examine(path: &Path) -> Examined {
    // Debian's alternatives and most installations are links to a program whose name tells.
    let target = path.canonicalize().map_err(|error| error.to_string())?;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let command = |engine, release| LaunchCommand { engine, path: path.to_owned(), release };
    if let Some(found) = mpis().find_map(|e| Some(command(e, e.recognize_file(&name)?))) {
        return Ok(Some(found));
    }
    let text = output_of(path, &["--version"])?;
    let found = mpis().find_map(|e| Some(command(e, e.recognize(&text)?)));
    Ok(found.filter(|command| command.release.major().is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::Release;

    fn engine(option: &str) -> &'static dyn Engine {
        engines::ALL.iter().copied().find(|engine| engine.option() == option).unwrap()
    }

    #[test]
    fn the_libraries_of_a_program_determine_its_mpi() {
        let of = |names: &[&str]| mpis_of(&names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["libm.so.6", "libmpi.so.40", "libc.so.6"]), [engine("openmpi")]);
        assert_eq!(of(&["libmpi_mpifh.so.40", "libmpi.so.40"]), [engine("openmpi")]);
        // Several MPIs have the binary interface of MPICH, and the standard one.
        for library in ["libmpichfort.so.12", "libmpich.so.12", "libmpi.so.12", "libmpi_abi.so.1"] {
            let owners = of(&[library]);
            assert!(owners.contains(&engine("mpich")) && !owners.contains(&engine("openmpi")), "{library}");
        }
        assert!(of(&["libc.so.6", "libmpdec.so.3"]).is_empty());
    }

    #[test]
    fn an_engine_of_another_mpi_is_reported() {
        let foreign = |choice: Option<&str>, mpirun: Option<&str>, starts: &str, library: &str| {
            let engine = engine(starts);
            let release = Release::new(engine.name(), "4".into(), None);
            let command = LaunchCommand { engine, path: PathBuf::new(), release };
            let choice = choice.map_or(EngineChoice::Auto, |_| EngineChoice::Named(engine));
            foreign_mpi(&command, &[library.to_owned()], choice, mpirun.map(Path::new))
        };
        let auto = foreign(None, Some("mpirun"), "mpich", "libmpi.so.40").unwrap();
        assert_eq!(
            auto,
            "the program is linked to Open MPI, but MPICH 4 starts it, so each rank may be alone in a job of its own (rank \
             0 of 1). Leave out --mpirun, or build the program with MPICH 4"
        );
        let both = foreign(Some("mpich"), Some("mpirun"), "mpich", "libmpi.so.40").unwrap();
        assert!(both.contains("Leave out --launcher and --mpirun, or build"), "{both}");
        let local = foreign(Some("local"), None, "local", "libmpi.so.40").unwrap();
        assert!(local.contains("but --launcher local starts it without an MPI, so"), "{local}");
        assert!(local.ends_with("(rank 0 of 1). Leave out --launcher"), "{local}");
        assert_eq!(foreign(None, Some("mpirun"), "mpich", "libmpi.so.12"), None);
        assert_eq!(foreign(Some("slurm"), None, "slurm", "libmpi.so.40"), None);
        assert_eq!(foreign(Some("local"), None, "local", "libc.so.6"), None);
    }
}
