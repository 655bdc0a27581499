//! Programs that start others in another root folder: container runtimes.
//!
//! Such a program has the buffer in its own image and no use for it; the program that it starts may not find the preloaded
//! object by its path. So its environment names no address, which only an image with the object puts back; and where the
//! runtime keeps descriptors open and shows `/proc` inside, `LD_PRELOAD` names a descriptor instead of the path.

use crate::environment::Environment;
use crate::os::raw;
use crate::text::{Line, number};
use crate::wire::{ENV_ADDRESS, ENV_ADDRESS_ROOM, ENV_OBJECT, ENV_SIZE, ENV_SIZE_ROOM};

const LD_PRELOAD: &str = "LD_PRELOAD";
const BY_DESCRIPTOR: &[u8] = b"/proc/self/fd/";
/// Above the numbers that scripts and shells use by themselves.
const LOWEST: usize = 500;

/// Those whose inside is not known to have the object or a way to it: only the address is hidden.
const RUNTIMES: [&[u8]; 12] = [
    b"apptainer", b"singularity", b"starter", b"starter-suid", b"enroot", b"sarus", b"shifter", b"podman", b"docker",
    b"crun", b"runc", b"chroot",
];

/// Prepares the environment of a container runtime for what it starts.
pub(crate) fn leave(environment: &mut Environment) {
    let mut path = [0u8; 4096];
    let length = raw::read_link(b"/proc/self/exe\0", &mut path).unwrap_or(0);
    let name = path[..length].rsplit(|&b| b == b'/').next().unwrap_or(&[]);
    // Charliecloud keeps descriptors and always shows the host's /proc; bubblewrap shows one where it is told to.
    let passes = name == b"ch-run" || (name == b"bwrap" && has_argument(b"--proc"));
    if !passes && name != b"bwrap" && !RUNTIMES.contains(&name) {
        return;
    }
    environment.rename(ENV_ADDRESS, ENV_ADDRESS_ROOM);
    environment.rename(ENV_SIZE, ENV_SIZE_ROOM);
    if passes {
        hand_over(environment);
    }
}

/// Lets `LD_PRELOAD` name the object by a descriptor that goes through exec.
fn hand_over(environment: &mut Environment) {
    let mut path = [0u8; 4096];
    let Some(object) = object(environment, &mut path) else { return };
    let length = object.len() - 1;
    let Ok(opened) = raw::open(object) else { return };
    let kept = raw::duplicate(opened, LOWEST).or_else(|_| raw::duplicate(opened, 3));
    raw::close(opened);
    let Ok(kept) = kept else { return };
    let name = Line::new(format_args!("/proc/self/fd/{kept}"));
    if !environment.replace(LD_PRELOAD, &object[..length], length, name.bytes()) {
        raw::close(kept);
    }
}

/// Takes over what [`hand_over`] left: names the object by its path again where that leads to it, else by this process, since
/// children may close the descriptors that they inherit.
pub(crate) fn enter(environment: &mut Environment) {
    let Some(list) = environment.value(LD_PRELOAD) else { return };
    let Some(at) = list.windows(BY_DESCRIPTOR.len()).position(|part| part == BY_DESCRIPTOR) else { return };
    let digits = list[at + BY_DESCRIPTOR.len()..].split(|b| !b.is_ascii_digit()).next();
    let Some(fd) = digits.and_then(number) else { return };
    let mut path = [0u8; 4096];
    let Some(object) = object(environment, &mut path) else { return };
    let length = object.len() - 1;
    if let Ok(opened) = raw::open(object) {
        raw::close(opened);
        if environment.replace(LD_PRELOAD, BY_DESCRIPTOR, length, &object[..length]) {
            raw::close(fd as i32);
        }
        return;
    }
    // The number that /proc shows, which is another one than getpid() tells where the two belong to different PID namespaces.
    let mut own = [0u8; 16];
    let Some(own) = raw::read_link(b"/proc/self\0", &mut own).ok().and_then(|length| number(&own[..length])) else {
        return;
    };
    let name = Line::new(format_args!("/proc/{own}/fd/{fd}"));
    environment.replace(LD_PRELOAD, BY_DESCRIPTOR, length, name.bytes());
}

/// The object's path on the host, with a NUL behind it.
fn object<'a>(environment: &Environment, path: &'a mut [u8; 4096]) -> Option<&'a [u8]> {
    let value = environment.value(ENV_OBJECT)?;
    path.get_mut(..value.len())?.copy_from_slice(value);
    *path.get_mut(value.len())? = 0;
    path.get(..=value.len())
}

/// Returns whether the command line has this argument.
fn has_argument(wanted: &[u8]) -> bool {
    let Ok(fd) = raw::open(b"/proc/self/cmdline\0") else { return false };
    // A long command line is cut: its first options are what counts.
    let mut text = [0u8; 16384];
    let length = raw::read(fd, &mut text).unwrap_or(0);
    raw::close(fd);
    text[..length].split(|&b| b == 0).any(|argument| argument == wanted)
}
