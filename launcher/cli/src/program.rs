//! The program of a rank, inspected before it runs.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hostbuf::JobError;
use hostbuf_protocol::environment::ENV_JOB;

use crate::elf::Elf;
use hostbuf_agent::lookup;

/// The properties of a program that are known before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// The image that the kernel loads: the program, or the interpreter of a script.
    pub(crate) image: PathBuf,
    /// The reason why no object can be preloaded into it, if there is one.
    pub(crate) not_preloadable: Option<String>,
    /// The address ranges of its segments, for a program that cannot vote by itself.
    pub(crate) segments: Vec<(usize, usize)>,
    /// The names of the required libraries.
    pub(crate) needed: Vec<String>,
    /// True if the image contains the library, or is linked to it, so that the program can attach.
    /// It is determined only for programs into which nothing can be preloaded.
    pub(crate) can_attach: bool,
}

impl Program {
    /// Finds `name` as a shell does: in `PATH`, unless it contains a slash.
    pub(crate) fn find(name: &OsStr) -> Result<Program, JobError> {
        Ok(Program::inspect(lookup::find(name)?))
    }

    fn inspect(path: PathBuf) -> Program {
        let image = interpreter(&path);
        let mut program = Program {
            path,
            not_preloadable: privileged(&image),
            image: image.clone(),
            segments: Vec::new(),
            needed: Vec::new(),
            can_attach: false,
        };
        // The kernel reports an image that cannot be read. An object may be preloadable into it.
        let Ok(file) = fs::File::open(&image) else { return program };
        if is_foreign(&file) {
            program.not_preloadable =
                Some(format!("{} is built for another architecture or for 32 bits", image.display()));
        }
        let Ok(Some(elf)) = Elf::read(&file) else { return program };
        program.segments = elf.fixed_segments;
        program.needed = elf.needed;
        if !elf.dynamic {
            program.not_preloadable = Some(format!("{} is statically linked", image.display()));
        }
        if program.not_preloadable.is_some() {
            program.can_attach = program.needed.iter().any(|name| name.starts_with("libhostbuf.so"))
                // Only the library reads this variable, so only a program that contains the library
                // has its name.
                || contains(file, ENV_JOB.as_bytes()).unwrap_or(false);
        }
        program
    }

    /// Returns the runtime of gcc's AddressSanitizer if the program requires it. It must be first
    /// in the preload list.
    pub(crate) fn asan(&self) -> Option<&str> {
        self.needed.iter().map(String::as_str).find(|n| n.starts_with("libasan.so"))
    }
}

/// Returns whether an ELF image has another class or machine than this command, so that the object
/// cannot be loaded into it.
fn is_foreign(image: &fs::File) -> bool {
    let head = |file: &fs::File| {
        let mut head = [0u8; 20];
        file.read_exact_at(&mut head, 0).ok().map(|()| head)
    };
    let own = fs::File::open("/proc/self/exe").ok().and_then(|file| head(&file));
    match (head(image), own) {
        (Some(theirs), Some(own)) if theirs.starts_with(b"\x7fELF") => {
            theirs[4..6] != own[4..6] || theirs[18..] != own[18..]
        }
        _ => false,
    }
}

/// Returns whether the file contains the bytes `wanted`.
#[allow(unsafe_code, reason = "calls the C library by its foreign functions")]
fn contains(mut file: fs::File, wanted: &[u8]) -> std::io::Result<bool> {
    let mut part = vec![0; 1 << 20];
    let mut kept = 0;
    file.rewind()?;
    loop {
        let read = file.read(&mut part[kept..])?;
        if read == 0 {
            return Ok(false);
        }
        let filled = kept + read;
        let (haystack, needle) = (part.as_ptr().cast(), wanted.as_ptr().cast());
        // SAFETY: memmem reads `filled` bytes of `part` and `wanted.len()` bytes of `wanted`, which
        // both have.
        if !unsafe { libc::memmem(haystack, filled, needle, wanted.len()) }.is_null() {
            return Ok(true);
        }
        // A match may lie across two parts.
        let tail = filled.min(wanted.len() - 1);
        part.copy_within(filled - tail..filled, 0);
        kept = tail;
    }
}

/// Returns the image that the kernel loads for `path`: the interpreter of a script, through as many
/// scripts as the kernel follows.
fn interpreter(path: &Path) -> PathBuf {
    let mut image = path.to_owned();
    for _ in 0..4 {
        let mut head = [0u8; 256];
        let Ok(n) = fs::File::open(&image).and_then(|mut f| f.read(&mut head)) else {
            break;
        };
        let Some(line) = head[..n].strip_prefix(b"#!") else { break };
        let line = line.split(|&b| b == b'\n').next().unwrap_or(&[]).trim_ascii();
        let name = line.split(u8::is_ascii_whitespace).next().unwrap_or(&[]);
        if name.is_empty() {
            break;
        }
        image = PathBuf::from(OsStr::from_bytes(name));
    }
    image
}

/// Returns the reason why the dynamic linker ignores `LD_PRELOAD` in a program that gains rights at
/// exec.
fn privileged(image: &Path) -> Option<String> {
    let metadata = fs::metadata(image).ok()?;
    let mode = metadata.permissions().mode();
    let gains = (mode & 0o4000 != 0 && metadata.uid() != nix::unistd::getuid().as_raw())
        || (mode & 0o2000 != 0 && metadata.gid() != nix::unistd::getgid().as_raw());
    if gains {
        return Some(format!("{} runs as another user or group (setuid, setgid)", image.display()));
    }
    if !nix::unistd::getuid().is_root() && has_capabilities(image) {
        return Some(format!("{} has file capabilities", image.display()));
    }
    None
}

/// Returns whether a program has file capabilities.
#[allow(unsafe_code, reason = "calls the C library by its foreign functions")]
fn has_capabilities(image: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(image.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings are NUL-terminated; with size 0 nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_image_for_another_machine_cannot_be_preloaded() {
        let path = std::env::temp_dir().join(format!("hostbuf-foreign-{}", std::process::id()));
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        for (at, value, foreign) in [(0, 0x7f, false), (4, 1, true), (18, 8, true)] {
            let mut image = own[..4096].to_vec();
            image[at] = value;
            fs::write(&path, image).unwrap();
            assert_eq!(Program::inspect(path.clone()).not_preloadable.is_some(), foreign, "byte {at}");
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn bytes_are_found_at_any_offset_of_a_file() {
        let path = std::env::temp_dir().join(format!("hostbuf-contains-{}", std::process::id()));
        let file =
            || fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        for at in [0, 1, (1 << 20) - 5, 1 << 20, (2 << 20) - 10] {
            let mut file = file();
            file.write_all(&vec![b'H'; at]).unwrap();
            file.write_all(b"NEEDLE_X").unwrap();
            assert!(contains(file.try_clone().unwrap(), b"NEEDLE_X").unwrap(), "at {at}");
            assert!(!contains(file, b"NEEDLE_Y").unwrap());
        }
        assert!(!contains(file(), b"NEEDLE_X").unwrap());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_dynamic_program_is_recognized_and_a_missing_one_is_reported() {
        let program = Program::find(std::env::current_exe().unwrap().as_os_str()).unwrap();
        assert_eq!((program.not_preloadable.as_deref(), program.asan()), (None, None));
        assert!(program.needed.iter().any(|n| n.starts_with("libc.so")), "{:?}", program.needed);
        let status = |name: &str| Program::find(name.as_ref()).unwrap_err().class.status();
        assert_eq!(status("/no/such/program"), 127);
        assert_eq!(status("no-such-program-in-path"), 127);
        assert_eq!(status("/"), 126);
        assert_eq!(status("/etc/passwd"), 126);
    }
}
