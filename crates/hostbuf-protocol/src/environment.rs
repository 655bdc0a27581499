//! The environment variables by which the launcher, the preloaded object and the library of a rank
//! communicate.
//!
//! `hostbuf exec` writes the variables before it becomes the rank's program. The preloaded object
//! runs where there is no allocator and no libc, so it changes values and names in place: a
//! variable whose value is not known yet gets room, and one that must not be found yet gets another
//! name of the same length.

/// The environment variable with the name of the agent's socket.
pub const ENV_JOB: &str = "HOSTBUF_JOB";
/// The environment variable with the path of the `hostbuf` command that the launcher inserts before
/// the ranks' programs.
pub const ENV_PREFIX: &str = "HOSTBUF_PREFIX";
/// The environment variable with the number of the connection that `hostbuf exec` opened, a colon,
/// and the process; [`CONNECTION_SILENT`] may follow.
pub const ENV_CONNECTION: &str = "HOSTBUF_CONNECTION";
/// The end of [`ENV_CONNECTION`] in a rank that does not report the end of its agent, since the
/// launcher or another rank of the host does.
pub const CONNECTION_SILENT: &str = ":silent";

/// The environment variable with the first buffer's address: `0x` and 16 hexadecimal digits. Only a
/// process that has mapped the buffer has it; see [`ENV_ADDRESS_PADDING`]. With an underscore and
/// the name of a buffer behind it, it is that buffer's address: see [`is_variable_of`].
pub const ENV_ADDRESS: &str = "HOSTBUF_ADDRESS";
/// The environment variable with the first buffer's size in bytes, in decimal: the requested size,
/// rounded up to whole pages. With an underscore and the name of a buffer behind it, it is that
/// buffer's size.
pub const ENV_SIZE: &str = "HOSTBUF_SIZE";
/// The name under which `hostbuf exec` reserves room for [`ENV_ADDRESS`]. The preloaded object
/// renames the entry in place once the buffer is mapped, so a program without a buffer finds no
/// address. Both names have the same length.
pub const ENV_ADDRESS_PADDING: &str = "HOSTBUF_PADDING";
/// The name under which `hostbuf exec` reserves room for [`ENV_SIZE`].
pub const ENV_SIZE_PADDING: &str = "HOSTBUF_PAD2";
/// The value of [`ENV_ADDRESS_PADDING`] and [`ENV_SIZE_PADDING`]: as long as the longest address
/// and the longest size.
pub const PADDING: &str = "....................";
const _: () =
    assert!(ENV_ADDRESS.len() == ENV_ADDRESS_PADDING.len() && ENV_SIZE.len() == ENV_SIZE_PADDING.len());

/// The environment variable with the inode number of the network namespace in which the host's
/// agent listens.
pub const ENV_NETWORK: &str = "HOSTBUF_NETWORK";
/// The environment variable with the names of its ranks for a message of a later program of a rank
/// ("ranks 0-3 on h0"). A leading `-` means that another rank with the same command line prints the
/// message.
pub const ENV_REPORT: &str = "HOSTBUF_REPORT";
/// The environment variable with the path of the preloaded object, for programs whose `LD_PRELOAD`
/// names a descriptor.
pub const ENV_OBJECT: &str = "HOSTBUF_OBJECT";
/// The environment variable that makes a missing buffer an error for later programs (`--require`).
pub const ENV_REQUIRE: &str = "HOSTBUF_REQUIRE";

/// The environment variable with the path of the folder that has the loaded files of a job
/// (`--as-files`) on the host of the rank.
pub const ENV_FILES: &str = "HOSTBUF_FILES";

/// The environment variable with the number of a rank that the launcher itself starts.
/// `hostbuf exec` reads it and removes it, so neither the program nor a job inside it has it.
pub const ENV_LAUNCHED_RANK: &str = "HOSTBUF_LAUNCHED_RANK";
/// The environment variable with the number of ranks that the launcher itself starts; see
/// [`ENV_LAUNCHED_RANK`].
pub const ENV_LAUNCHED_RANKS: &str = "HOSTBUF_LAUNCHED_RANKS";

/// The environment variable with the number of the rank in its job, for the program.
pub const ENV_RANK: &str = "HOSTBUF_RANK";
/// The environment variable with the number of ranks of the job, for the program. It is not set if
/// the engine does not state the number.
pub const ENV_RANKS: &str = "HOSTBUF_RANKS";
/// The environment variable with the rank on this host, for [`Role::Member`](crate::message::Role).
pub const ENV_LOCAL_RANK: &str = "HOSTBUF_LOCAL_RANK";
/// The environment variable with the number of ranks of this host.
pub const ENV_LOCAL_SIZE: &str = "HOSTBUF_LOCAL_SIZE";

/// The environment variable with the process that registers the buffers before `main`, a colon, and
/// the devices. In that process the registering object completes the start: it sends
/// [`Message::Mapped`](crate::message::Message::Mapped) when all buffers are registered, and waits
/// for [`Message::Go`](crate::message::Message::Go).
pub const ENV_REGISTER: &str = "HOSTBUF_REGISTER";

/// The environment variable with the process that maps the GPU sections before `main`. The
/// registering object does so; [`ENV_REGISTER`] names the same process, perhaps without devices.
pub const ENV_GPU: &str = "HOSTBUF_GPU";

/// Returns the byte that stands for `byte` of a buffer's name in the name of a variable: shells
/// accept letters, digits and underscores only, so `-` and `.` become `_`.
#[must_use]
pub fn variable_byte(byte: u8) -> u8 {
    if matches!(byte, b'-' | b'.') { b'_' } else { byte }
}

/// Returns whether `name` is `variable`, an underscore, and the name of a buffer, as
/// [`variable_byte`] converts it.
#[must_use]
pub fn is_variable_of(name: &[u8], variable: &str, buffer: &[u8]) -> bool {
    name.strip_prefix(variable.as_bytes())
        .and_then(|rest| rest.strip_prefix(b"_"))
        .is_some_and(|rest| rest.iter().copied().eq(buffer.iter().copied().map(variable_byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_of_a_buffer_has_its_name_with_underscores() {
        assert!(is_variable_of(b"HOSTBUF_ADDRESS_a_b_7", ENV_ADDRESS, b"a-b.7"));
        for other in [&b"HOSTBUF_ADDRESS"[..], b"HOSTBUF_ADDRESS_", b"HOSTBUF_ADDRESS_a", b"HOSTBUF_SIZE_a_b"]
        {
            assert!(!is_variable_of(other, ENV_ADDRESS, b"a-b"), "{}", other.escape_ascii());
        }
    }
}
