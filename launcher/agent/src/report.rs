//! The reports of an agent to the launcher (one line of JSON each on standard output, which the
//! engine forwards), and the last line of a command to its user.

use std::fmt::{self, Display};
use std::io::Write;
use std::process::ExitCode;

use hostbuf::{ErrorClass, JobError};
use hostbuf_protocol::failure::{ErrorRecord, MAX_OPERANDS};
use serde_json::{Value, json};

/// A report of an agent to its launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Report {
    /// The agents listen, and there is enough memory: the ranks may start.
    Ready {
        /// The agent's host.
        host: String,
        /// The number of agents of the job.
        agents: usize,
    },
    /// An agent takes the pages of the buffers.
    Progress {
        /// The agent's host.
        host: String,
        /// The number of bytes taken so far.
        done: u64,
        /// The number of bytes to take.
        total: u64,
    },
    /// A buffer is being filled, by a filler or by replication.
    Filling {
        /// The agent's host.
        host: String,
        /// The buffer's name.
        buffer: String,
        /// The number of bytes filled so far.
        done: u64,
        /// True in the last report of the buffer.
        ended: bool,
    },
    /// An agent reads the files of `--load`.
    Loading {
        /// The agent's host.
        host: String,
        /// The number of bytes read so far.
        done: u64,
        /// The number of bytes to read.
        total: u64,
    },
    /// A host has the files of `--load`.
    Loaded {
        /// The agent's host.
        host: String,
        /// A line for the user about the files, and about the pages of their memory.
        message: String,
    },
    /// Some ranks of a host run without the buffer.
    Uncovered {
        /// A line for the user that names the ranks and the reason.
        message: String,
    },
    /// All ranks of all hosts may run.
    Agreed {
        /// The agreed address, 0 for a job without buffers.
        address: u64,
        /// The number of ballots and searches.
        rounds: u32,
        /// The duration of the agreement in microseconds.
        microseconds: u64,
        /// The number of ranks of the job.
        ranks: u64,
        /// The number of ranks that never have the buffer.
        without: u64,
        /// The number of ranks that map the buffer when they attach.
        attaching: u64,
    },
    /// The job cannot have its buffer.
    Failed(JobError),
}

/// Prints the error of a command, in one line on standard error with `program` in front, and
/// returns the exit status of the process.
pub fn end(program: &str, class: ErrorClass, message: impl Display) -> ExitCode {
    complain!("{program}: {message}");
    exit_code(class)
}

/// Returns the exit status of a process whose error another process prints.
pub fn exit_code(class: ErrorClass) -> ExitCode {
    ExitCode::from(class.status())
}

/// Describes how many of a job's ranks have the buffer.
pub fn covered(ranks: u64, without: u64, attaching: u64) -> String {
    match (without, attaching) {
        (0, 0) => "the first program of every rank has the buffer".to_owned(),
        (0, _) => format!("{attaching} of {ranks} ranks map the buffer when they attach"),
        (_, 0) => format!("{without} of {ranks} ranks have no buffer"),
        _ => format!("{without} of {ranks} ranks have no buffer, {attaching} map it when they attach"),
    }
}

impl Report {
    /// Prints the line, whole, in one write.
    pub fn print(&self) {
        // An error means that the launcher has ended, which the server notices.
        let _ = std::io::stdout().lock().write_all(format!("{self}\n").as_bytes());
        let _ = std::io::stdout().lock().flush();
    }

    fn to_json(&self) -> Value {
        match self {
            Report::Ready { host, agents } => json!({"hostbuf": "ready", "host": host, "agents": agents}),
            Report::Progress { host, done, total } => {
                json!({"hostbuf": "progress", "host": host, "done": done, "total": total})
            }
            Report::Filling { host, buffer, done, ended } => {
                json!({"hostbuf": "filling", "host": host, "buffer": buffer, "done": done, "ended": ended})
            }
            Report::Loading { host, done, total } => {
                json!({"hostbuf": "loading", "host": host, "done": done, "total": total})
            }
            Report::Loaded { host, message } => {
                json!({"hostbuf": "loaded", "host": host, "message": message})
            }
            Report::Uncovered { message } => json!({"hostbuf": "uncovered", "message": message}),
            Report::Agreed { address, rounds, microseconds, ranks, without, attaching } => json!({
                "hostbuf": "agreed",
                "address": address,
                "rounds": rounds,
                "microseconds": microseconds,
                "ranks": ranks,
                "without": without,
                "attaching": attaching,
            }),
            Report::Failed(error) => {
                let ErrorRecord { class, rank, host, line, operands } = error.record();
                json!({
                    "hostbuf": "failed",
                    "status": class.status(),
                    "host": host,
                    "rank": rank,
                    "message": line,
                    "operands": operands,
                })
            }
        }
    }

    /// Parses a line. The result is `None` for other output, such as an engine's own.
    pub fn parse(line: &str) -> Option<Report> {
        let value: Value = serde_json::from_str(line.trim()).ok()?;
        let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
        let number = |key: &str| value.get(key)?.as_u64();
        Some(match text("hostbuf")?.as_str() {
            "ready" => {
                Report::Ready { host: text("host")?, agents: usize::try_from(number("agents")?).ok()? }
            }
            "progress" => {
                Report::Progress { host: text("host")?, done: number("done")?, total: number("total")? }
            }
            "filling" => Report::Filling {
                host: text("host")?,
                buffer: text("buffer")?,
                done: number("done")?,
                ended: value.get("ended")?.as_bool()?,
            },
            "loading" => {
                Report::Loading { host: text("host")?, done: number("done")?, total: number("total")? }
            }
            "loaded" => Report::Loaded { host: text("host")?, message: text("message")? },
            "uncovered" => Report::Uncovered { message: text("message")? },
            "agreed" => Report::Agreed {
                address: number("address")?,
                rounds: u32::try_from(number("rounds")?).ok()?,
                microseconds: number("microseconds")?,
                ranks: number("ranks")?,
                without: number("without")?,
                attaching: number("attaching")?,
            },
            "failed" => {
                let status = u8::try_from(number("status")?).ok()?;
                let given = value.get("operands")?.as_array()?;
                let mut operands = [""; MAX_OPERANDS];
                for (operand, given) in operands.iter_mut().zip(given) {
                    *operand = given.as_str()?;
                }
                Report::Failed(JobError::from(&ErrorRecord {
                    // Only a later build knows the class.
                    class: ErrorClass::from_status(status).unwrap_or(ErrorClass::General),
                    rank: number("rank"),
                    host: value.get("host")?.as_str()?,
                    line: value.get("message")?.as_str()?,
                    operands,
                }))
            }
            _ => return None,
        })
    }
}

impl Display for Report {
    /// Writes the line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_json().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf::{Error, NoSpace};

    #[test]
    fn the_report_of_a_failure_has_all_fields_of_the_error() {
        let space = NoSpace {
            host: "h1".into(),
            requested: 2,
            available: 1,
            limit: "the pool".into(),
            remedy: "request less".into(),
        };
        let mut error = JobError::from(Error::NoSpace(space));
        error.rank = Some(3);
        let report = Report::Failed(error.clone());
        let json = report.to_json();
        assert_eq!(Report::parse(&json.to_string()), Some(report));
        assert_eq!(
            json,
            json!({
                "hostbuf": "failed",
                "status": 83,
                "host": "h1",
                "rank": 3,
                "message": error.message,
                "operands": ["2", "1", "the pool", "request less"],
            })
        );
        // A rank may be unknown.
        let lost = Report::Failed(JobError::new(ErrorClass::Lost, "a rank has ended"));
        assert_eq!(Report::parse(&lost.to_json().to_string()), Some(lost));
    }

    #[test]
    fn the_report_of_a_failure_with_an_unknown_class_is_general() {
        let mut error = JobError::new(ErrorClass::General, "the cause").with_host("h1");
        error.rank = Some(3);
        let mut json = Report::Failed(error.clone()).to_json();
        json["status"] = json!(99);
        assert_eq!(Report::parse(&json.to_string()), Some(Report::Failed(error)));
    }
}
