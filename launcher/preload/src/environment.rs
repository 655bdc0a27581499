//! The environment of this process, read and changed in place before other code reads it.

#![allow(unsafe_code, reason = "reads and changes the environment of the process by address")]

use core::arch::global_asm;

use hostbuf_raw::syscall as raw;

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
    /// libc's `environ`, a null-terminated array. `getenv` reads it, also under valgrind, which
    /// moves its client's environment away from where the kernel put it. It needs no `/proc`.
    List(*const *mut u8),
    /// The block that the kernel wrote at exec, for a program without a libc.
    Block { start: *mut u8, length: usize },
}

impl Environment {
    /// Finds the environment. Returns `None` in a program without a libc if `/proc` cannot be read.
    pub(crate) fn find() -> Option<Environment> {
        // SAFETY: the dynamic linker has written null or the address of libc's variable here.
        // libc's constructor has run, since this object precedes all libraries, and constructors
        // run from the last object to the first.
        let list = unsafe { if ENVIRON.is_null() { core::ptr::null() } else { *ENVIRON } };
        if list.is_null() { Environment::block() } else { Some(Environment::List(list)) }
    }

    /// Finds the kernel's block with `/proc/self/stat`.
    fn block() -> Option<Environment> {
        let fd = raw::open(b"/proc/self/stat\0").ok()?;
        let mut text = [0u8; 1024];
        let length = raw::read(fd, &mut text);
        raw::close(fd);
        let text = &text[..length.ok()?];
        // The second field is a name in parentheses that may hold anything; the others are
        // separated by blanks.
        let close = text.iter().rposition(|&b| b == b')')?;
        let mut fields = text[close + 1..].split(|&b| b == b' ').filter(|f| !f.is_empty()).skip(47);
        let start = crate::text::number(fields.next()?)? as usize;
        let end = crate::text::number(fields.next()?.trim_ascii_end())? as usize;
        (start != 0 && end > start)
            .then(|| Environment::Block { start: start as *mut u8, length: end - start })
    }

    /// Calls `each` with the strings, without their NUL, until it returns a value, and returns that
    /// value.
    fn search<T>(&self, mut each: impl FnMut(*mut u8, usize) -> Option<T>) -> Option<T> {
        match *self {
            Environment::List(mut place) => {
                // SAFETY: `environ` is a null-terminated array of NUL-terminated strings;
                // constructors run one after another, so no other code changes it meanwhile.
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
                // SAFETY: the kernel's own bounds of this process's environment block, which is
                // private stack memory.
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

    /// Returns the string whose name, the part before `=`, is as `matches` demands, and the length
    /// of the name.
    fn find_entry(&self, matches: impl Fn(&[u8]) -> bool) -> Option<(*mut u8, usize, usize)> {
        self.search(|text, length| {
            // SAFETY: `search` gives strings of this length, and the slice ends here.
            let entry = unsafe { core::slice::from_raw_parts(text, length) };
            let name = entry.iter().position(|&b| b == b'=')?;
            matches(&entry[..name]).then_some((text, length, name))
        })
    }

    /// Returns the string that begins with `name` and `=`.
    fn entry(&self, name: &str) -> Option<(*mut u8, usize)> {
        self.find_entry(|found| found == name.as_bytes()).map(|(text, length, _)| (text, length))
    }

    /// Returns the value of a variable.
    pub(crate) fn value(&self, name: &str) -> Option<&[u8]> {
        let (text, length) = self.entry(name)?;
        let head = name.len() + 1;
        // SAFETY: inside the string; `&self` keeps `write` and `rename` away while it is borrowed.
        Some(unsafe { core::slice::from_raw_parts(text.add(head), length - head) })
    }

    /// Overwrites a variable's value and returns true if the variable exists and has room. The
    /// unused rest becomes a string of its own, since some readers of the kernel's block take an
    /// empty string for its end.
    pub(crate) fn write(&mut self, name: &str, value: &[u8]) -> bool {
        self.write_matching(|found| found == name.as_bytes(), value)
    }

    /// Writes a value as [`write`](Environment::write) does, to the first variable whose name is as
    /// `matches` demands.
    pub(crate) fn write_matching(&mut self, matches: impl Fn(&[u8]) -> bool, value: &[u8]) -> bool {
        let found = self.find_entry(matches);
        let Some((text, length, name)) = found.filter(|(_, length, name)| length - name > value.len()) else {
            return false;
        };
        let head = name + 1;
        // SAFETY: inside the string, which is private memory of this process. getenv() returns
        // pointers into it, so it finds the value that is written here.
        let place = unsafe { core::slice::from_raw_parts_mut(text.add(head), length - head) };
        place.fill(b'.');
        place[..value.len()].copy_from_slice(value);
        if let Some(end) = place.get_mut(value.len()) {
            *end = 0;
        }
        true
    }

    /// Overwrites `length` bytes of a list variable, from the first occurrence of `from`, with `to`
    /// and a padding of colons, which are empty list elements. Returns false if `from` is missing
    /// or there is no room.
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

    /// Renames `from` and all variables whose names begin with `from` and an underscore: `to`,
    /// which has the same length, takes the place of `from`.
    pub(crate) fn rename_all(&mut self, from: &str, to: &str) {
        self.rename_matching(from, to, |name| {
            let rest = name.strip_prefix(from.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'_')
        });
    }

    /// Renames all variables whose names begin with `from` and are as `matches` demands: `to`,
    /// which has the same length, takes the place of `from`.
    pub(crate) fn rename_matching(&mut self, from: &str, to: &str, matches: impl Fn(&[u8]) -> bool) {
        if from.len() != to.len() || from == to {
            return;
        }
        let is_one = |name: &[u8]| name.starts_with(from.as_bytes()) && matches(name);
        while let Some((text, ..)) = self.find_entry(is_one) {
            // SAFETY: as in `write`; the string begins with a name that is at least this long.
            unsafe { core::slice::from_raw_parts_mut(text, to.len()) }.copy_from_slice(to.as_bytes());
        }
    }
}
