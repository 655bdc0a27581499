//! The socket by which clients find the broker of their user.

/// Returns the abstract name of the socket of this user's broker.
pub(crate) fn default_socket() -> String {
    format!("hostbuf-pool-{}", nix::unistd::geteuid())
}
