//! The command line of this process.

use hostbuf_raw::syscall as raw;

use crate::static_buffer::{BufferGuard, StaticBuffer};

/// The largest part of a command line that is examined, in bytes.
const COMMAND_LINE_MAX: usize = 16 << 10;
/// The memory of the command line.
static COMMAND_LINE: [StaticBuffer<COMMAND_LINE_MAX>; 1] = [const { StaticBuffer::new() }; 1];

/// The command line of this process. A long one is truncated, which is enough for the options of a
/// container runtime.
pub(crate) struct CommandLine {
    text: BufferGuard<COMMAND_LINE_MAX>,
    length: usize,
}

impl CommandLine {
    /// Reads the command line.
    pub(crate) fn read() -> CommandLine {
        let mut text = StaticBuffer::one_of(&COMMAND_LINE);
        let mut length = 0;
        if let Ok(fd) = raw::open(b"/proc/self/cmdline\0") {
            length = raw::read(fd, &mut *text).unwrap_or(0);
            raw::close(fd);
        }
        CommandLine { text, length }
    }

    /// Returns the arguments, first the program's own name.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        self.text[..self.length].split(|&b| b == 0)
    }
}
