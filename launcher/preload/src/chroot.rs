//! The new root directory of `chroot`, as the program that it starts will see it.

use crate::argument_list::ArgumentList;
use crate::path::Path;

/// The way by which a program in the new root can load the preloaded object.
pub(crate) enum ObjectAccess {
    /// The object has the same path there.
    Object,
    /// `/proc` is mounted there, so a descriptor that stays open through exec has a path.
    Proc,
    /// There is no way.
    Unavailable,
}

/// Looks into the new root directory of this process, which is `chroot`, for `object`. Returns
/// `None` if the command line names no directory.
pub(crate) fn object_access(object: &Path) -> Option<ObjectAccess> {
    let list = ArgumentList::read();
    let mut arguments = list.arguments().skip(1);
    let root = loop {
        match arguments.next()? {
            b"--" => break arguments.next()?,
            // Their value may be the next argument.
            b"--userspec" | b"--groups" => _ = arguments.next()?,
            option if option.starts_with(b"-") => {}
            operand => break operand,
        }
    };
    let exists = |path: &[u8]| Path::join(&[root, path]).is_some_and(|path| path.exists());
    Some(if exists(object.bytes()) {
        ObjectAccess::Object
    } else if exists(b"/proc/self/environ") {
        ObjectAccess::Proc
    } else {
        ObjectAccess::Unavailable
    })
}
