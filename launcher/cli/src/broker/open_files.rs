//! The limit on the descriptors of this process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one: the broker holds three descriptors for each segment, one
/// for each of its readers, and two for each client.
pub(super) fn raise_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // A lower limit shows in the error of the request that needs one more.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
