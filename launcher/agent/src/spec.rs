//! The command line of an agent.

use std::path::PathBuf;
use std::time::Duration;

use hostbuf::segment::{SectionArgument, add_sections, check_all};
use hostbuf::{BufferOptions, Error, Result};

use super::files::{path_of_word, word_of_path};

/// The task of an agent: its job, its buffers, and its launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Spec {
    /// The job's random number.
    pub job: u128,
    /// The abstract name of the agent's socket.
    pub socket: String,
    /// The buffers.
    pub buffers: Vec<BufferOptions>,
    /// The listening socket, if the process that starts this agent has opened it.
    pub listener: Option<i32>,
    /// The process with which the agent ends, if it is not its parent.
    pub watched_process: Option<WatchedProcess>,
    /// True if the watched process may be the engine's, hidden by a container: it is the first of
    /// its PID namespace, and no engine's process is above the rank.
    pub hidden_engine: bool,
    /// True if a launcher reads reports. Without one, the ranks print errors.
    pub reports: bool,
    /// True if the agent ends the processes that have the job's buffers when the watched process
    /// ends.
    pub ends_processes: bool,
    /// The absolute paths of the files that each host loads.
    pub load: Vec<PathBuf>,
    /// The folder in which programs find the loaded files, as the command line gives it.
    pub as_files: Option<PathBuf>,
    /// The program of every rank, if each host with an agent has ranks. The agents then look for it
    /// before the ranks start.
    pub program: Option<String>,
    /// The time without progress after which the start fails; `None` waits for ever.
    pub timeout: Option<Duration>,
    /// The limit on the time without a further rank, in place of `timeout`, if the network
    /// namespace of the agent seems to hide it from the other ranks of its host.
    pub isolated: Option<Duration>,
}

/// The pid and the start time of a process: a later process with the same pid starts later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchedProcess {
    /// The process ID.
    pub pid: i32,
    /// The start time in clock ticks after boot.
    pub start: u64,
}

impl WatchedProcess {
    /// Makes the identity of the process with this ID and this start time.
    #[must_use]
    pub fn new(pid: i32, start: u64) -> WatchedProcess {
        WatchedProcess { pid, start }
    }
}

impl Spec {
    /// Makes the task of an agent of this job that creates these buffers, without a launcher.
    #[must_use]
    pub fn new(job: u128, socket: String, buffers: Vec<BufferOptions>) -> Spec {
        Spec {
            job,
            socket,
            buffers,
            listener: None,
            watched_process: None,
            hidden_engine: false,
            reports: false,
            ends_processes: false,
            load: Vec::new(),
            as_files: None,
            program: None,
            timeout: None,
            isolated: None,
        }
    }

    /// Returns the arguments of an agent's command line.
    pub fn arguments(&self) -> Vec<String> {
        let mut list = vec![format!("--job={:032x}", self.job), format!("--socket={}", self.socket)];
        for options in &self.buffers {
            list.push(format!("--buffer={options}"));
            for section in &options.sections {
                let (buffer, section) = (options.name.clone(), section.clone());
                list.push(format!("--section={}", SectionArgument { buffer, section }));
            }
        }
        list.extend(self.listener.map(|fd| format!("--listener={fd}")));
        list.extend(self.watched_process.map(|l| format!("--watched-process={}:{}", l.pid, l.start)));
        list.extend(self.hidden_engine.then(|| "--hidden-engine".to_owned()));
        list.extend(self.reports.then(|| "--reports".to_owned()));
        list.extend(self.ends_processes.then(|| "--ends-processes".to_owned()));
        list.extend(self.load.iter().map(|path| format!("--load={}", word_of_path(path))));
        list.extend(self.as_files.iter().map(|path| format!("--as-files={}", word_of_path(path))));
        list.extend(self.program.as_ref().map(|name| format!("--program={name}")));
        list.extend(self.timeout.map(|limit| format!("--timeout={}", limit.as_secs())));
        list.extend(self.isolated.map(|limit| format!("--isolated={}", limit.as_secs())));
        list
    }

    /// Parses the arguments of an agent's command line.
    ///
    /// # Errors
    /// [`Error::Invalid`] for anything that [`arguments`](Spec::arguments) does not return.
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Spec> {
        let mut spec = Spec::new(0, String::new(), Vec::new());
        let wrong = |argument: &str| Error::Invalid { what: format!("argument \"{argument}\" is unknown") };
        let seconds =
            |value: &str, argument: &str| value.parse().map(Duration::from_secs).map_err(|_| wrong(argument));
        for argument in arguments {
            let (name, value) = argument.split_once('=').unwrap_or((&argument, ""));
            match name {
                "--job" => spec.job = u128::from_str_radix(value, 16).map_err(|_| wrong(&argument))?,
                "--socket" => spec.socket = value.into(),
                "--buffer" => spec.buffers.push(value.parse()?),
                "--section" => add_sections(&mut spec.buffers, [value.parse()?])?,
                "--listener" => spec.listener = Some(value.parse().map_err(|_| wrong(&argument))?),
                "--watched-process" => {
                    let parts =
                        value.split_once(':').and_then(|(p, s)| Some((p.parse().ok()?, s.parse().ok()?)));
                    let (pid, start) = parts.ok_or_else(|| wrong(&argument))?;
                    spec.watched_process = Some(WatchedProcess { pid, start });
                }
                "--hidden-engine" => spec.hidden_engine = true,
                "--reports" => spec.reports = true,
                "--ends-processes" => spec.ends_processes = true,
                "--load" => spec.load.push(path_of_word(value).ok_or_else(|| wrong(&argument))?),
                "--as-files" => {
                    spec.as_files = Some(path_of_word(value).ok_or_else(|| wrong(&argument))?);
                }
                "--program" => spec.program = Some(value.into()),
                "--timeout" => spec.timeout = Some(seconds(value, &argument)?),
                "--isolated" => spec.isolated = Some(seconds(value, &argument)?),
                _ => return Err(wrong(&argument)),
            }
        }
        // A job that loads files needs no buffer.
        if !spec.buffers.is_empty() || spec.as_files.is_none() {
            check_all(&spec.buffers)?;
        }
        if spec.socket.is_empty() || !hostbuf_os::socket::is_name(&spec.socket) {
            return Err(Error::Invalid {
                what: format!("invalid socket \"{}\": expected a name", spec.socket),
            });
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf::Section;

    #[test]
    fn a_written_spec_reads_back_unchanged() {
        let spec = Spec {
            job: 0x1234_5678_9abc,
            socket: "hostbuf/0/x".into(),
            buffers: vec![
                BufferOptions::new(5).name("a").numa("interleave:0,1/3,1".parse().unwrap()),
                BufferOptions::new(7).name("b").lazy(),
                BufferOptions::new(0)
                    .name("c")
                    .section(Section::new("grid", 9).numa("0,1".parse().unwrap()))
                    .section(Section::new("halo", 3)),
            ],
            listener: Some(4),
            watched_process: Some(WatchedProcess { pid: 12, start: 99 }),
            hidden_engine: true,
            reports: true,
            ends_processes: true,
            load: vec!["/db/a b.k2d".into(), "/db/c".into()],
            as_files: Some("/tmp/%h/db".into()),
            program: Some("./app".into()),
            timeout: Some(Duration::from_secs(300)),
            isolated: Some(Duration::from_secs(10)),
        };
        assert_eq!(Spec::parse(spec.arguments().into_iter()).unwrap(), spec);
        assert!(Spec::parse(["--what".to_owned()].into_iter()).is_err());
        assert!(Spec::parse(std::iter::empty()).is_err());
        let files_only = Spec { buffers: Vec::new(), ..spec };
        assert_eq!(Spec::parse(files_only.arguments().into_iter()).unwrap(), files_only);
        let nothing = Spec { as_files: None, ..files_only };
        assert!(Spec::parse(nothing.arguments().into_iter()).is_err());
    }
}
