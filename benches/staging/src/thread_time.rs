//! The CPU time of the threads of a ring.

use std::{fs, io};

/// The name of the threads of a ring.
const RING: &str = "hostbuf-ring";

/// Returns the CPU time that the threads of all rings of this process have used, in nanoseconds.
///
/// # Errors
/// The kernel's, also one without the statistics of its scheduler.
pub(crate) fn nanoseconds_of_rings() -> io::Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir("/proc/self/task")? {
        let folder = thread?.path();
        if fs::read_to_string(folder.join("comm"))?.trim_end() == RING {
            let text = fs::read_to_string(folder.join("schedstat"))?;
            let first = text.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
            sum += first.ok_or_else(|| io::Error::other(format!("unexpected schedstat: {text}")))?;
        }
    }
    Ok(sum)
}
