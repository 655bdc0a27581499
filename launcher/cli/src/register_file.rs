//! The object for `--register` and for GPU sections as a file.
//!
//! There are two objects: one for the devices that need no library when it is loaded, and one for
//! all devices, which needs the libraries of all of them on every host. scripts/build builds them,
//! and an installation has them in `lib/hostbuf/` next to `bin/`.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use hostbuf::register::{DeviceList, DeviceName, ListedDevice, SystemLibrary};
use hostbuf::{Error, Result};

use crate::elf::Elf;
use crate::installation;
use crate::preload_file::can_be_named;
use crate::program::Program;

/// The name of the object for the devices that need no library when it is loaded.
pub(crate) const PLAIN: &str = "libhostbuf_register.so";
/// The name of the object for all devices.
pub(crate) const ALL_DEVICES: &str = "libhostbuf_register_all.so";

/// The request in errors about registrations.
pub(crate) const REGISTER: &str = "--register";
/// The request in errors about the object for GPU sections.
const ON_GPUS: &str = "a GPU section";

/// The object, and what it does in a rank before `main`.
pub(crate) struct Preregistration {
    pub(crate) object: PathBuf,
    /// The devices with which it registers the buffers, perhaps none.
    pub(crate) devices: DeviceList,
    /// True if it maps the GPU sections.
    pub(crate) uses_gpus: bool,
}

/// Returns the object that registers with `devices` in a rank's `program`, and maps the GPU
/// sections if `uses_gpus`. Returns `None` if there is nothing to do, or if all devices are
/// optional and missing.
///
/// # Errors
/// [`Error::Unsupported`] with the remedy.
pub(crate) fn find(
    devices: Option<&DeviceList>,
    uses_gpus: bool,
    program: &Program,
) -> Result<Option<Preregistration>> {
    let (request, remedy) = match devices {
        Some(devices) => (
            format!("--register {devices}"),
            "let the program register by itself (HostBuffer::register, hostbuf_register)",
        ),
        None if uses_gpus => (
            ON_GPUS.into(),
            "leave out gpu=, or, if this is not the first rank of its host, add --gpu-ranks leader",
        ),
        None => return Ok(None),
    };
    if let Some(why) = &program.not_preloadable {
        let why = format!("{why}, so nothing can be loaded into it before main: {remedy}");
        return Err(Error::Unsupported { what: request, why });
    }
    // musl's own name, and the one that Alpine gives it.
    if let Some(libc) =
        program.needed.iter().find(|name| *name == "libc.so" || name.starts_with("libc.musl-"))
    {
        let why = format!(
            "the program uses another C library ({libc}), so the registering object cannot be loaded: {remedy}"
        );
        return Err(Error::Unsupported { what: request, why });
    }
    let (object, devices) = match devices {
        Some(devices) => choose(devices)?,
        None => (PathBuf::new(), DeviceList(Vec::new())),
    };
    // Without a device that is there, no object was chosen.
    let object = if uses_gpus && devices.0.is_empty() { place(PLAIN, ON_GPUS)? } else { object };
    Ok((uses_gpus || !devices.0.is_empty()).then_some(Preregistration { object, devices, uses_gpus }))
}

/// Checks before any process starts whether the object is installed that registers with `devices`,
/// or only maps GPU sections. An installation is the same on
/// all hosts; other requirements are checked by the ranks.
///
/// # Errors
/// [`Error::Unsupported`] with the remedy.
pub(crate) fn check(devices: Option<&DeviceList>) -> Result<()> {
    let Some(devices) = devices else { return place(PLAIN, ON_GPUS).map(drop) };
    let needed = devices.0.iter().filter(|d| !d.optional);
    let needs_library = needed.filter(|device| needs_library(device)).count() > 0;
    place(if needs_library { ALL_DEVICES } else { PLAIN }, REGISTER).map(drop)
}

/// Returns the object for `devices`, and those of them that are available.
fn choose(devices: &DeviceList) -> Result<(PathBuf, DeviceList)> {
    if !devices.0.iter().any(needs_library) {
        return Ok((place(PLAIN, REGISTER)?, devices.clone()));
    }
    let found = place(ALL_DEVICES, REGISTER).and_then(|object| {
        devices.0.iter().try_for_each(expect_library_of)?;
        Ok(object)
    });
    match found {
        Ok(object) => Ok((object, devices.clone())),
        // A file that exists and cannot be loaded is an error, also for an optional device.
        Err(Error::Unsupported { .. })
            if devices.0.iter().filter(|d| needs_library(d)).all(|d| d.optional) =>
        {
            let rest: Vec<ListedDevice> = devices.0.iter().filter(|d| !needs_library(d)).cloned().collect();
            let object = if rest.is_empty() { PathBuf::new() } else { place(PLAIN, REGISTER)? };
            Ok((object, DeviceList(rest)))
        }
        Err(error) => Err(error),
    }
}

/// Returns whether a device needs a library that only the object for all devices is linked with.
fn needs_library(device: &ListedDevice) -> bool {
    device.name.library().is_some()
}

/// Checks that this host has the library that a device needs.
///
/// # Errors
/// The errors of [`expect_library`].
fn expect_library_of(device: &ListedDevice) -> Result<()> {
    let Some(library) = device.name.library() else { return Ok(()) };
    expect_library(&format!("--register {}", device.name), &library)
}

/// Checks that this host has a library that the option `request` needs.
///
/// # Errors
/// [`Error::Unsupported`] with the packages if the library is missing, and [`Error::Os`] with the
/// dynamic linker's reason if it exists and cannot be loaded.
pub(crate) fn expect_library(request: &str, library: &SystemLibrary) -> Result<()> {
    let Err(reason) = load(library.soname) else { return Ok(()) };
    let (soname, packages) = (library.soname.to_string_lossy(), library.packages);
    if is_missing(&soname, &reason) {
        let why = format!("{soname} is not found: install {packages}");
        return Err(Error::Unsupported { what: request.into(), why });
    }
    Err(Error::Os { doing: format!("{request}: loading {soname}"), source: io::Error::other(reason) })
}

/// Returns whether the dynamic linker's `reason` is that there is no library `soname`. If another
/// library is missing that this one needs, the reason names only the other one.
fn is_missing(soname: &str, reason: &str) -> bool {
    reason.contains(soname) && reason.contains("No such file or directory")
}

/// Returns the libraries that the object for all devices needs.
pub(crate) fn libraries() -> impl Iterator<Item = SystemLibrary> {
    DeviceName::all().filter_map(|device| device.library())
}

/// Returns the path of the object for `request`: `lib/hostbuf/` next to the `bin/` of this command.
///
/// # Errors
/// [`Error::Unsupported`] if it is missing, or if another user could change it. [`Error::Os`] if it
/// exists and cannot be read.
pub(crate) fn place(name: &str, request: &str) -> Result<PathBuf> {
    let refused = |why| Error::Unsupported { what: request.into(), why };
    let command = std::env::current_exe()
        .map_err(|source| Error::Os { doing: "looking for this program's own path".into(), source })?;
    let folder = command.parent().and_then(|bin| bin.parent()).map(|prefix| prefix.join("lib/hostbuf"));
    let path = folder.unwrap_or_default().join(name);
    let command = installation::mend("");
    let mend = if name == ALL_DEVICES {
        let headers = libraries().map(|library| library.headers).collect::<Vec<_>>().join(" and ");
        format!(
            "`{command}` in hostbuf's sources builds it where the headers of its libraries are ({headers})"
        )
    } else {
        format!("`{command}` in hostbuf's sources builds it")
    };
    if !can_be_named(&path) {
        return Err(refused(format!(
            "nothing can be preloaded from {}: the path contains a space or a colon",
            path.display()
        )));
    }
    let failed = |doing: &str| {
        let doing = format!("{request}: {doing} {}", path.display());
        move |source| Error::Os { doing, source }
    };
    let file = fs::File::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => refused(format!(
            "the registering object, which also maps GPU sections, is not at {}: {mend}",
            path.display()
        )),
        _ => failed("opening")(error),
    })?;
    let own = nix::unistd::geteuid().as_raw();
    // The object is loaded into other programs, so no other user may be able to change it.
    let trusted = |m: &fs::Metadata| m.is_file() && (m.uid() == own || m.uid() == 0) && m.mode() & 0o022 == 0;
    if !trusted(&file.metadata().map_err(failed("reading"))?) {
        return Err(refused(format!(
            "{} could be changed by other users: it must belong to this user or to root, and only its owner may write it",
            path.display()
        )));
    }
    if Elf::read(&file).map_err(failed("reading"))?.is_none() {
        return Err(refused(format!("{} is not a 64-bit library: {mend}", path.display())));
    }
    Ok(path)
}

/// Loads a library. It may stay loaded, since this process only starts others or is replaced.
///
/// # Errors
/// The dynamic linker's reason.
#[allow(unsafe_code, reason = "loads a library to see whether the linker finds it")]
fn load(name: &CStr) -> std::result::Result<(), String> {
    // SAFETY: loading a system library by its name runs only its own constructors. The text of an
    // error is valid until the next call of the dynamic linker by this thread, and is copied.
    unsafe {
        if !libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL).is_null() {
            return Ok(());
        }
        let text = libc::dlerror();
        let text = (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
        Err(text.unwrap_or_else(|| "the dynamic linker gives no reason".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_differs_from_one_that_cannot_be_loaded() {
        let missing = load(c"libhostbuf_nowhere.so.7").unwrap_err();
        assert!(is_missing("libhostbuf_nowhere.so.7", &missing), "{missing}");
        // A file that is no library.
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/register_file.rs");
        let damaged = load(&std::ffi::CString::new(source).unwrap()).unwrap_err();
        assert!(damaged.contains("register_file.rs") && !is_missing(source, &damaged), "{damaged}");
        assert!(!is_missing("libibverbs.so.1", "libibverbs.so.1: failed to map segment from shared object"));
        let other = "libnl-3.so.200: cannot open shared object file: No such file or directory";
        assert!(!is_missing("libibverbs.so.1", other));
        load(c"libc.so.6").unwrap();
    }
}
