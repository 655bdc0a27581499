//! The environment of this process, as it lies in memory: read and written in place, before anybody else looks.

use crate::os::raw;

/// The block of `NAME=value` strings that the kernel laid down at exec.
pub(crate) struct Environment {
    block: &'static mut [u8],
}

impl Environment {
    /// Where `/proc/self/stat` says it is. `None` without `/proc`, or when the kernel does not tell.
    pub(crate) fn find() -> Option<Environment> {
        let fd = raw::open(b"/proc/self/stat\0").ok()?;
        let mut text = [0u8; 1024];
        let length = raw::read(fd, &mut text);
        raw::close(fd);
        let text = &text[..length.ok()?];
        // The second field is a name in parentheses that may hold anything; the others are separated by blanks.
        let close = text.iter().rposition(|&b| b == b')')?;
        let mut fields = text[close + 1..].split(|&b| b == b' ').filter(|f| !f.is_empty()).skip(47);
        let start = crate::text::number(fields.next()?)? as usize;
        let end = crate::text::number(fields.next()?.trim_ascii_end())? as usize;
        if start == 0 || end <= start {
            return None;
        }
        // SAFETY: the kernel's own bounds of this process's environment block, which is private, writable stack
        // memory; constructors run one after another, and libc hands out pointers to it, no copies, so a value
        // written here is what getenv() finds.
        let block = unsafe { core::slice::from_raw_parts_mut(start as *mut u8, end - start) };
        Some(Environment { block })
    }

    fn locate(&self, name: &str) -> Option<core::ops::Range<usize>> {
        let mut at = 0;
        for entry in self.block.split(|&b| b == 0) {
            let value = entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
            if let Some(value) = value {
                let start = at + entry.len() - value.len();
                return Some(start..start + value.len());
            }
            at += entry.len() + 1;
        }
        None
    }

    /// The value of a variable.
    pub(crate) fn value(&self, name: &str) -> Option<&[u8]> {
        self.locate(name).map(|range| &self.block[range])
    }

    /// Overwrites a variable's value, if it is there and has room. What is left of the place becomes a word by itself, so that nobody who
    /// reads the block from beginning to end finds an empty one, which means its end to some.
    pub(crate) fn write(&mut self, name: &str, value: &[u8]) {
        let Some(range) = self.locate(name).filter(|range| range.len() >= value.len()) else { return };
        let place = &mut self.block[range];
        place.fill(b'.');
        place[..value.len()].copy_from_slice(value);
        if let Some(end) = place.get_mut(value.len()) {
            *end = 0;
        }
    }
}
