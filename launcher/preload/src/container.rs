//! Container runtimes: programs that start others with another root directory.
//!
//! A runtime maps the buffer itself and has no use for it, and the program that it starts may not
//! find the preloaded object by its path. So the object removes the address from the runtime's
//! environment; an image that loads the object sets it again. If the runtime keeps descriptors open
//! and mounts `/proc` inside, `LD_PRELOAD` names a descriptor instead of the path.

use crate::argument_list::ArgumentList;
use crate::chroot::{self, ObjectAccess};
use crate::environment::Environment;
use crate::path::Path;
use crate::text::{ShortText, number};
use crate::unreachable;
use hostbuf_protocol::environment::{
    ENV_ADDRESS, ENV_ADDRESS_PADDING, ENV_OBJECT, ENV_SIZE, ENV_SIZE_PADDING,
};
use hostbuf_raw::syscall as raw;

const LD_PRELOAD: &str = "LD_PRELOAD";
const BY_DESCRIPTOR: &[u8] = b"/proc/self/fd/";
/// The lowest descriptor to use: above the numbers that scripts and shells use.
const LOWEST: usize = 500;

/// The runtimes into whose containers the object is not handed: only the address is hidden.
const RUNTIMES: [&[u8]; 12] = [
    b"apptainer",
    b"singularity",
    b"starter",
    b"starter-suid",
    b"enroot",
    b"sarus",
    b"shifter",
    b"podman",
    b"docker",
    b"crun",
    b"runc",
    b"chroot",
];

/// Prepares the environment of a container runtime for the program that it starts.
pub(crate) fn prepare(environment: &mut Environment) {
    let program = Path::of_link(b"/proc/self/exe\0");
    let name = program.bytes().rsplit(|&b| b == b'/').next().unwrap_or(&[]);
    // Charliecloud keeps descriptors open and always mounts the host's /proc; bubblewrap mounts one
    // with --proc.
    let passes = name == b"ch-run" || (name == b"bwrap" && has_argument(b"--proc"));
    if !passes && name != b"bwrap" && !RUNTIMES.contains(&name) {
        return;
    }
    environment.rename_all(ENV_ADDRESS, ENV_ADDRESS_PADDING);
    environment.rename_all(ENV_SIZE, ENV_SIZE_PADDING);
    if passes {
        return hand_over(environment);
    }
    if name != b"chroot" {
        return;
    }
    let Some(object) = object(environment) else { return };
    match chroot::object_access(&object) {
        Some(ObjectAccess::Object) | None => {}
        Some(ObjectAccess::Proc) => hand_over(environment),
        Some(ObjectAccess::Unavailable) => {
            environment.replace(LD_PRELOAD, object.bytes(), object.bytes().len(), b"");
            unreachable::report(environment, b"the program that it starts cannot load hostbuf's object, since the new root \
                directory has neither /proc nor this object. Mount /proc there, or bind hostbuf's directory to the same path");
        }
    }
}

/// Changes `LD_PRELOAD` so that it names the object by a descriptor that stays open through exec.
fn hand_over(environment: &mut Environment) {
    let Some(object) = object(environment) else { return };
    let Ok(opened) = object.open() else { return };
    let kept = raw::duplicate(opened, LOWEST).or_else(|_| raw::duplicate(opened, 3));
    raw::close(opened);
    let Ok(kept) = kept else { return };
    let name = ShortText::new(format_args!("/proc/self/fd/{kept}"));
    if !environment.replace(LD_PRELOAD, object.bytes(), object.bytes().len(), name.bytes()) {
        raw::close(kept);
    }
}

/// Replaces the descriptor that [`hand_over`] has put into `LD_PRELOAD`: by the object's path if it
/// exists here, else by this process's `/proc/PID/fd`, since children may close the descriptors
/// that they inherit.
pub(crate) fn enter(environment: &mut Environment) {
    let Some(list) = environment.value(LD_PRELOAD) else { return };
    let Some(at) = list.windows(BY_DESCRIPTOR.len()).position(|part| part == BY_DESCRIPTOR) else { return };
    let digits = list[at + BY_DESCRIPTOR.len()..].split(|b| !b.is_ascii_digit()).next();
    let Some(fd) = digits.and_then(number) else { return };
    let Some(object) = object(environment) else { return };
    let length = object.bytes().len();
    if object.exists() {
        if environment.replace(LD_PRELOAD, BY_DESCRIPTOR, length, object.bytes()) {
            raw::close(fd as i32);
        }
        return;
    }
    // The process number in /proc, which differs from getpid() if /proc belongs to another PID
    // namespace.
    let Some(own) = number(Path::of_link(b"/proc/self\0").bytes()) else { return };
    let name = ShortText::new(format_args!("/proc/{own}/fd/{fd}"));
    environment.replace(LD_PRELOAD, BY_DESCRIPTOR, length, name.bytes());
}

/// Returns the object's path on the host.
fn object(environment: &Environment) -> Option<Path> {
    Path::join(&[environment.value(ENV_OBJECT)?])
}

/// Returns whether the command line contains the argument `wanted`.
fn has_argument(wanted: &[u8]) -> bool {
    ArgumentList::read().arguments().any(|argument| argument == wanted)
}
