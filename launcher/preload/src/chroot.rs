//! The new root directory of `chroot`, as the program that it starts will see it.

use crate::command_line;
use hostbuf_raw::syscall as raw;

/// The way by which a program in the new root can load the preloaded object.
pub(crate) enum Inside {
    /// The object has the same path there.
    Object,
    /// `/proc` is mounted there, so a descriptor that stays open through exec has a path.
    Proc,
    /// None.
    Neither,
}

/// Looks into the new root directory of this process, which is `chroot`, for `object`, a path
/// terminated by NUL. Returns `None` if the command line names no directory.
pub(crate) fn inside(object: &[u8]) -> Option<Inside> {
    let mut text = [0u8; 16384];
    let mut arguments = command_line::read(&mut text).skip(1);
    let root = loop {
        match arguments.next()? {
            b"--" => break arguments.next()?,
            // Their value may be the next argument.
            b"--userspec" | b"--groups" => _ = arguments.next()?,
            option if option.starts_with(b"-") => {}
            operand => break operand,
        }
    };
    let exists = |path: &[u8]| {
        let mut whole = [0u8; 8192];
        let length = root.len() + path.len();
        let Some(room) = whole.get_mut(..length) else { return false };
        room[..root.len()].copy_from_slice(root);
        room[root.len()..].copy_from_slice(path);
        raw::open(&whole[..length]).map(raw::close).is_ok()
    };
    Some(if exists(object) {
        Inside::Object
    } else if exists(b"/proc/self/environ\0") {
        Inside::Proc
    } else {
        Inside::Neither
    })
}
