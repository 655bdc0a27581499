//! The reasons why a process cannot attach.

use std::fmt;

use crate::job::job_error::JobError;
use hostbuf_os::OpenDescriptors;
use hostbuf_os::session::SessionError;
use hostbuf_protocol::message::Message;

/// The reason why a process cannot attach to the buffers of a launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// No launcher has started this process.
    NotLaunched {
        /// The reason, and the remedy.
        why: String,
    },
    /// The agent of this host does not answer, has ended, or sent no buffer.
    AgentGone {
        /// The reason, and the remedy.
        why: String,
    },
    /// The job has failed, so its agent gives no buffer to any process.
    JobFailed(JobError),
    /// The agent does not serve this process, for a reason that does not concern the job, such as a
    /// shortage of descriptors. The job goes on.
    Refused {
        /// The reason, and the remedy.
        why: String,
    },
    /// The agent's socket belongs to another user.
    OtherUser {
        /// The socket and both users.
        why: String,
    },
    /// The job has no buffer of this name.
    UnknownBuffer {
        /// The requested name.
        name: String,
        /// The names of the job's buffers.
        known: Vec<String>,
    },
    /// Another version of hostbuf made the buffers.
    OtherVersion {
        /// The versions, and the remedy.
        why: String,
    },
    /// The agreed address range is occupied in this process.
    Occupied {
        /// The mapping in the range.
        why: String,
    },
}

impl AttachError {
    /// Returns the error of a process whose agent speaks version `theirs` of the protocol.
    pub(crate) fn other_protocol(theirs: u16) -> AttachError {
        let own = hostbuf_protocol::frame::VERSION;
        let why = format!(
            "the agent of this host has another version of hostbuf (protocol {theirs}, this program has {own}): use one \
             version for launcher and program"
        );
        AttachError::OtherVersion { why }
    }
}

impl From<SessionError> for AttachError {
    /// Converts the error of a session with the agent of this host.
    fn from(error: SessionError) -> AttachError {
        let does_not_answer = |why: &dyn fmt::Display| AttachError::AgentGone {
            why: format!("the agent of this host does not answer: {why}"),
        };
        match error {
            SessionError::NoServer => does_not_answer(
                &"the job has ended, or this process is not in the network namespace of the launcher",
            ),
            SessionError::OtherUser { .. } => {
                AttachError::OtherUser { why: format!("the agent of this host does not answer: {error}") }
            }
            SessionError::Refused(packet) => match packet.message() {
                Ok(Message::Fail { error, .. }) => AttachError::JobFailed(JobError::from(&error)),
                Ok(Message::Refused { error }) => AttachError::Refused {
                    why: format!("the agent of this host has refused this process: {}", error.line),
                },
                _ => AttachError::AgentGone { why: "the agent of this host has refused this process".into() },
            },
            SessionError::OtherVersion(theirs) => AttachError::other_protocol(theirs),
            SessionError::Gone => AttachError::AgentGone { why: "the agent of this host has ended".into() },
            SessionError::Malformed => {
                AttachError::AgentGone { why: "the agent of this host sent an invalid message".into() }
            }
            SessionError::Timeout(limit) => AttachError::AgentGone {
                why: format!("the agent of this host did not answer within {} s", limit.as_secs()),
            },
            SessionError::Io(error) if error.raw_os_error() == Some(libc::EMFILE) => AttachError::AgentGone {
                why: format!(
                    "receiving the descriptors of the agent of this host failed: {error}; {} and needs more: raise `ulimit -n`",
                    OpenDescriptors::count()
                ),
            },
            SessionError::Io(error) => AttachError::AgentGone {
                why: format!("exchanging messages with the agent of this host failed: {error}"),
            },
            other => does_not_answer(&other),
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::NotLaunched { why }
            | AttachError::AgentGone { why }
            | AttachError::Refused { why }
            | AttachError::OtherUser { why }
            | AttachError::OtherVersion { why }
            | AttachError::Occupied { why } => f.write_str(why),
            AttachError::JobFailed(error) => error.fmt(f),
            AttachError::UnknownBuffer { name, known } if known.is_empty() => {
                write!(
                    f,
                    "no buffer is named \"{name}\"; the job has no buffers: add --size 2G to `hostbuf run`"
                )
            }
            AttachError::UnknownBuffer { name, known } => {
                write!(f, "no buffer is named \"{name}\"; the buffers are {}", known.join(", "))
            }
        }
    }
}

impl std::error::Error for AttachError {}
