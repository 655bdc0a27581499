//! The program that is to run: whether it is there, and whether an object can be preloaded into it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What is known of a program before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// Why nothing can be preloaded into it; `None` when it can.
    pub(super) not_preloadable: Option<String>,
    /// The address ranges where it will lie, for one that cannot vote by itself.
    pub(super) segments: Vec<(usize, usize)>,
    /// The runtime of gcc's AddressSanitizer that it needs, which must come first in the preload list.
    pub(super) asan: Option<String>,
}

/// Why a program cannot run, and the exit status that a shell gives for that.
pub(super) type Refusal = (String, u8);

impl Program {
    /// Finds `name` as a shell does: by `PATH` unless it has a slash.
    pub(super) fn find(name: &OsStr) -> Result<Program, Refusal> {
        let shown = name.to_string_lossy();
        let path = if name.as_bytes().contains(&b'/') {
            PathBuf::from(name)
        } else {
            let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
            let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
            places
                .find(|p| is_executable(p))
                .ok_or_else(|| (format!("program \"{shown}\" is not in PATH"), 127))?
        };
        match fs::metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err((format!("program \"{shown}\" does not exist"), 127));
            }
            Err(e) => return Err((format!("program \"{shown}\" cannot be read: {e}"), 126)),
            Ok(m) if m.is_dir() => return Err((format!("program \"{shown}\" is a folder"), 126)),
            Ok(_) if !is_executable(&path) => {
                return Err((format!("program \"{shown}\" is not executable"), 126));
            }
            Ok(_) => {}
        }
        Ok(Program::inspect(path))
    }

    fn inspect(path: PathBuf) -> Program {
        let image = interpreter(&path);
        let mut program =
            Program { path, not_preloadable: privileged(&image), segments: Vec::new(), asan: None };
        // An image that cannot be read is the kernel's business; it can be preloaded for all that is known.
        let Some(elf) = fs::read(&image).ok().as_deref().and_then(Elf::parse) else { return program };
        program.segments = elf.fixed_segments;
        program.asan = elf.asan;
        if !elf.dynamic {
            program.not_preloadable = Some(format!("{} is statically linked", image.display()));
        }
        program
    }
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file())
        && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

/// The image that the kernel will load for `path`: the interpreter of a script, through as many scripts as the
/// kernel follows.
fn interpreter(path: &Path) -> PathBuf {
    let mut image = path.to_owned();
    for _ in 0..4 {
        let mut head = [0u8; 256];
        let Ok(n) = fs::File::open(&image).and_then(|mut f| std::io::Read::read(&mut f, &mut head)) else {
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

/// The dynamic linker ignores `LD_PRELOAD` in a program that gains rights at exec.
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

#[allow(unsafe_code)]
fn has_capabilities(image: &Path) -> bool {
    let Ok(path) = std::ffi::CString::new(image.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings are NUL-terminated; with size 0 nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// What matters of a 64-bit ELF image.
struct Elf {
    /// It asks for a dynamic linker.
    dynamic: bool,
    /// Where it is loaded, when it is not position-independent.
    fixed_segments: Vec<(usize, usize)>,
    asan: Option<String>,
}

impl Elf {
    fn parse(bytes: &[u8]) -> Option<Elf> {
        let at = |offset: usize, n: usize| bytes.get(offset..offset.checked_add(n)?);
        let half = |offset| Some(u16::from_le_bytes(at(offset, 2)?.try_into().ok()?));
        let word = |offset| Some(u32::from_le_bytes(at(offset, 4)?.try_into().ok()?));
        let long = |offset| Some(u64::from_le_bytes(at(offset, 8)?.try_into().ok()?) as usize);
        if at(0, 6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        const ET_EXEC: u16 = 2;
        let fixed = half(16)? == ET_EXEC;
        let (table, size, count) = (long(32)?, half(54)?, half(56)?);
        // Nothing lies behind the end of the file, so no sum of places inside it overflows.
        if table > bytes.len() {
            return None;
        }
        let headers = (0..usize::from(count)).map(|i| table + i * usize::from(size));
        let mut elf = Elf { dynamic: false, fixed_segments: Vec::new(), asan: None };
        let mut loads = Vec::new();
        let mut dynamic = None;
        const PT_LOAD: u32 = 1;
        const PT_DYNAMIC: u32 = 2;
        const PT_INTERP: u32 = 3;
        for header in headers {
            let (offset, address, in_file, in_memory) =
                (long(header + 8)?, long(header + 16)?, long(header + 32)?, long(header + 40)?);
            match word(header)? {
                PT_LOAD => loads.push((address, offset, in_file, in_memory)),
                PT_DYNAMIC => dynamic = Some((offset, in_file)),
                PT_INTERP => elf.dynamic = true,
                _ => {}
            }
        }
        if fixed {
            elf.fixed_segments = loads.iter().map(|&(a, _, _, n)| (a, a.saturating_add(n))).collect();
        }
        let needed = dynamic.and_then(|(offset, length)| {
            let entries = (offset..offset.checked_add(length)?).step_by(16);
            let entries: Vec<(usize, usize)> =
                entries.map_while(|at| Some((long(at)?, long(at + 8)?))).collect();
            const DT_NEEDED: usize = 1;
            const DT_STRTAB: usize = 5;
            let strings = entries.iter().find(|e| e.0 == DT_STRTAB)?.1;
            let (address, offset, ..) = *loads.iter().find(|l| l.0 <= strings && strings - l.0 < l.2)?;
            let strings = (strings - address).checked_add(offset)?;
            let name = |at: usize| {
                let text = bytes.get(strings.checked_add(at)?..)?;
                let end = text.iter().position(|&b| b == 0)?;
                Some(String::from_utf8_lossy(&text[..end]).into_owned())
            };
            Some(entries.iter().filter(|e| e.0 == DT_NEEDED).filter_map(|e| name(e.1)).collect::<Vec<_>>())
        });
        elf.asan = needed.unwrap_or_default().into_iter().find(|n| n.starts_with("libasan.so"));
        Some(elf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_dynamic_and_a_missing_program_says_so() {
        let program = Program::find(std::env::current_exe().unwrap().as_os_str()).unwrap();
        assert_eq!((program.not_preloadable, program.asan), (None, None));
        assert_eq!(Program::find("/no/such/program".as_ref()).unwrap_err().1, 127);
        assert_eq!(Program::find("no-such-program-in-path".as_ref()).unwrap_err().1, 127);
        assert_eq!(Program::find("/".as_ref()).unwrap_err().1, 126);
        assert_eq!(Program::find("/etc/passwd".as_ref()).unwrap_err().1, 126);
    }

    #[test]
    fn damaged_images_are_no_images() {
        let image = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(Elf::parse(&image).unwrap().dynamic);
        for cut in [0, 5, 16, 40, 63, 64, 100, 500] {
            let _ = Elf::parse(&image[..cut]);
        }
        let mut wild = image[..4096].to_vec();
        for at in 16..64 {
            wild[at] = 0xff;
            let _ = Elf::parse(&wild);
        }
    }
}
