//! The reasons why a process cannot attach.

use std::fmt;

use hostbuf_protocol::failure::ErrorClass;

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
    JobFailed {
        /// The class of the job's error.
        class: ErrorClass,
        /// The line of the job's error.
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

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::NotLaunched { why }
            | AttachError::AgentGone { why }
            | AttachError::JobFailed { why, .. }
            | AttachError::OtherUser { why }
            | AttachError::OtherVersion { why }
            | AttachError::Occupied { why } => f.write_str(why),
            AttachError::UnknownBuffer { name, known } => {
                write!(f, "no buffer is named \"{name}\"; the buffers are {}", known.join(", "))
            }
        }
    }
}

impl std::error::Error for AttachError {}
