//! The command line of this process.

use hostbuf_raw::syscall as raw;

/// Returns the arguments, first the program's own name. A long command line is truncated, which is
/// enough for the options of a container runtime.
pub(crate) fn read(text: &mut [u8; 16384]) -> impl Iterator<Item = &[u8]> {
    let mut length = 0;
    if let Ok(fd) = raw::open(b"/proc/self/cmdline\0") {
        length = raw::read(fd, text).unwrap_or(0);
        raw::close(fd);
    }
    text[..length].split(|&b| b == 0)
}
