//! The command line of this process.

use hostbuf_raw::syscall as raw;

use crate::static_buffer::{BufferGuard, StaticBuffer};

/// The largest part of a command line that is examined, in bytes.
const ARGUMENTS_MAX: usize = 16 << 10;
/// The memory of the command line.
static ARGUMENTS: [StaticBuffer<ARGUMENTS_MAX>; 1] = [const { StaticBuffer::new() }; 1];

/// The command line of this process. A long one is truncated, which is enough for the options of a
/// container runtime.
pub(crate) struct ArgumentList {
    text: BufferGuard<ARGUMENTS_MAX>,
    length: usize,
}

impl ArgumentList {
    /// Reads the command line.
    pub(crate) fn read() -> ArgumentList {
        let mut text = StaticBuffer::one_of(&ARGUMENTS);
        let mut length = 0;
        if let Ok(fd) = raw::open(b"/proc/self/cmdline\0") {
            length = raw::read(fd, &mut *text).unwrap_or(0);
            raw::close(fd);
        }
        ArgumentList { text, length }
    }

    /// Returns the arguments, first the program's own name.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        self.text[..self.length].split(|&b| b == 0)
    }
}
