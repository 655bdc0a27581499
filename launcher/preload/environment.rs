//! The environment of this process, read and changed in place, before anybody else looks.

use core::arch::global_asm;

use crate::os::raw;

// A weak reference: null in a program without a libc.
global_asm!(
    ".weak environ",
    ".pushsection .data.rel.ro,\"aw\"",
    ".balign 8",
    ".hidden hostbuf_environ",
    "hostbuf_environ: .quad environ",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "hostbuf_environ"]
    static ENVIRON: *const *const *mut u8;
}

/// The `NAME=value` strings of this process.
pub(crate) enum Environment {
    /// libc's `environ`, ended by null. It is what `getenv` reads, also under valgrind, which gives its client an
    /// environment elsewhere than where the kernel put it; and it needs no `/proc`.
    List(*const *mut u8),
    /// The block that the kernel laid down at exec, for a program without a libc.
    Block { start: *mut u8, length: usize },
}

impl Environment {
    /// Finds the environment. `None` in a program without a libc where `/proc` does not tell.
    pub(crate) fn find() -> Option<Environment> {
        // SAFETY: a word written by the dynamic linker: null, or the address of libc's variable. libc's constructor has
        // run, since this object comes before all libraries and constructors run from the last to the first.
        let list = unsafe { if ENVIRON.is_null() { core::ptr::null() } else { *ENVIRON } };
        if list.is_null() { Environment::block() } else { Some(Environment::List(list)) }
    }

    /// Finds the kernel's block by `/proc/self/stat`.
    fn block() -> Option<Environment> {
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
        (start != 0 && end > start).then(|| Environment::Block { start: start as *mut u8, length: end - start })
    }

    /// Calls `each` with the strings, without their NUL, until it answers something.
    fn search<T>(&self, mut each: impl FnMut(*mut u8, usize) -> Option<T>) -> Option<T> {
        match *self {
            Environment::List(mut place) => {
                // SAFETY: `environ` is an array of NUL-terminated strings that a null pointer ends; constructors run one
                // after another, so nobody changes it meanwhile.
                unsafe {
                    while !(*place).is_null() {
                        let text = *place;
                        let mut length = 0;
                        while *text.add(length) != 0 {
                            length += 1;
                        }
                        if let Some(found) = each(text, length) {
                            return Some(found);
                        }
                        place = place.add(1);
                    }
                }
                None
            }
            Environment::Block { start, length } => {
                // SAFETY: the kernel's own bounds of this process's environment block, which is private stack memory.
                let block = unsafe { core::slice::from_raw_parts(start, length) };
                let mut at = 0;
                block.split(|&b| b == 0).find_map(|entry| {
                    // SAFETY: inside the block.
                    let found = each(unsafe { start.add(at) }, entry.len());
                    at += entry.len() + 1;
                    found
                })
            }
        }
    }

    /// The string that begins with `name` and `=`.
    fn entry(&self, name: &str) -> Option<(*mut u8, usize)> {
        self.search(|text, length| {
            // SAFETY: `search` gives strings of this length, and the slice ends here.
            let entry = unsafe { core::slice::from_raw_parts(text, length) };
            let rest = entry.strip_prefix(name.as_bytes())?;
            rest.starts_with(b"=").then_some((text, length))
        })
    }

    /// The value of a variable.
    pub(crate) fn value(&self, name: &str) -> Option<&[u8]> {
        let (text, length) = self.entry(name)?;
        let head = name.len() + 1;
        // SAFETY: inside the string; `&self` keeps `write` and `rename` away while it is borrowed.
        Some(unsafe { core::slice::from_raw_parts(text.add(head), length - head) })
    }

    /// Overwrites a variable's value and returns true, if it is there and has room. What is left of the place becomes a
    /// string by itself, so that nobody who reads the kernel's block finds an empty one, which means its end to some.
    pub(crate) fn write(&mut self, name: &str, value: &[u8]) -> bool {
        let head = name.len() + 1;
        let Some((text, length)) = self.entry(name).filter(|(_, length)| length - head >= value.len()) else {
            return false;
        };
        // SAFETY: inside the string, which is this process's private memory; libc hands out pointers to it, no copies, so
        // a value written here is what getenv() finds.
        let place = unsafe { core::slice::from_raw_parts_mut(text.add(head), length - head) };
        place.fill(b'.');
        place[..value.len()].copy_from_slice(value);
        if let Some(end) = place.get_mut(value.len()) {
            *end = 0;
        }
        true
    }

    /// Overwrites `length` bytes of a variable that holds a list, from where `from` begins, with `to` and with colons behind
    /// it, which separate nothing. Returns false where they are not there or have no room.
    pub(crate) fn replace(&mut self, name: &str, from: &[u8], length: usize, to: &[u8]) -> bool {
        let Some(value) = self.value(name) else { return false };
        let Some(at) = value.windows(from.len()).position(|part| part == from) else { return false };
        if to.len() > length || value.len() - at < length {
            return false;
        }
        let head = value.as_ptr().wrapping_add(at).cast_mut();
        // SAFETY: inside the string; as in `write`.
        let place = unsafe { core::slice::from_raw_parts_mut(head, length) };
        place.fill(b':');
        place[..to.len()].copy_from_slice(to);
        true
    }

    /// Renames a variable, if it is there, to a name of the same length.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        let Some((text, _)) = self.entry(from).filter(|_| from.len() == to.len()) else { return };
        // SAFETY: as in `write`; the string begins with a name of this length.
        unsafe { core::slice::from_raw_parts_mut(text, to.len()) }.copy_from_slice(to.as_bytes());
    }
}
