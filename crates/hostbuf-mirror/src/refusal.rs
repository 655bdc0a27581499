//! The reasons why a receiver does not publish a frame.

use std::fmt;
use std::time::Duration;

use hostbuf_pool::Token;

/// The reason why a receiver has not published a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MirrorRefusal {
    /// The receiver had no free block in time: readers on its host hold all blocks.
    Full {
        /// The time for which the receiver waited.
        waited: Duration,
        /// The use of the receiver's blocks.
        details: String,
    },
    /// The receiver has published this frame or a later one of the same segment before.
    NotNewer {
        /// The sequence number of the frame that the receiver has published last.
        published: u64,
        /// The token of the copy, if the refused frame is the one that was published last. A
        /// sender that was restarted goes on with it.
        copy: Option<Box<Token>>,
    },
    /// The pool of the receiver's host has refused the memory.
    Pool {
        /// The error of the pool.
        why: String,
    },
}

impl fmt::Display for MirrorRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MirrorRefusal::Full { waited, details } => write!(
                f,
                "no block became free within {} s: {details}; release blocks on that host sooner, or give its receiver more of them",
                waited.as_secs_f32()
            ),
            MirrorRefusal::NotNewer { published, .. } => write!(
                f,
                "the frame is not newer than frame {published} of its segment, which was published there: send the frames of a segment in the order in which they were published"
            ),
            MirrorRefusal::Pool { why } => f.write_str(why),
        }
    }
}

impl std::error::Error for MirrorRefusal {}
