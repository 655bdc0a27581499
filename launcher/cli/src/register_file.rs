//! The registering object as a file, for `--register`: which one, and whether it can serve here.
//!
//! There are two: one for page-locking and GPUs, and one that knows RDMA verbs too, and so needs libibverbs on every host where it is
//! loaded. They are built by scripts/build, and an installation has them at `lib/hostbuf/` beside `bin/`.

use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use hostbuf::register::DeviceName;
use hostbuf::{Error, Result};

use crate::elf::Elf;
use crate::installation;
use crate::preload_file::can_be_named;
use crate::program::Program;
use hostbuf::register::{DeviceList, ListedDevice};

/// The objects' names.
pub(crate) const PLAIN: &str = "libhostbuf_register.so";
pub(crate) const WITH_RDMA: &str = "libhostbuf_register_rdma.so";

/// What a rank registers with.
pub(crate) struct Registering {
    pub(crate) object: PathBuf,
    pub(crate) devices: DeviceList,
}

/// The object, and the devices that it shall register with in a rank's `program`. `None` when nothing is left of them: those
/// that may be missing, and are.
///
/// # Errors
/// [`Error::Unsupported`] with what to do.
pub(crate) fn find(devices: &DeviceList, program: &Program) -> Result<Option<Registering>> {
    if let Some(why) = &program.not_preloadable {
        let why = format!(
            "{why}, so nothing can be loaded into it before main: let it register by itself (HostBuffer::register, hostbuf_register)"
        );
        return Err(Error::Unsupported { what: format!("--register {devices}"), why });
    }
    // musl's own name, and the one that Alpine gives it.
    if let Some(libc) =
        program.needed.iter().find(|name| *name == "libc.so" || name.starts_with("libc.musl-"))
    {
        let why = format!(
            "the program is made for another C library ({libc}) than the object that registers: let it register by itself (HostBuffer::register, hostbuf_register)"
        );
        return Err(Error::Unsupported { what: format!("--register {devices}"), why });
    }
    let (object, devices) = choose(devices)?;
    Ok((!devices.0.is_empty()).then_some(Registering { object, devices }))
}

/// Finds out before anything is started whether the object is there: an installation is the same on all hosts. What else a
/// host needs only its ranks can tell.
///
/// # Errors
/// As [`find`].
pub(crate) fn check(devices: &DeviceList) -> Result<()> {
    let needed = devices.0.iter().filter(|d| !d.optional);
    let rdma = needed.filter(|d| matches!(d.name, DeviceName::Rdma(_))).count() > 0;
    place(if rdma { WITH_RDMA } else { PLAIN }).map(drop)
}

fn choose(devices: &DeviceList) -> Result<(PathBuf, DeviceList)> {
    let is_rdma = |device: &ListedDevice| matches!(device.name, DeviceName::Rdma(_));
    let Some(rdma) = devices.0.iter().find(|d| is_rdma(d)) else {
        return Ok((place(PLAIN)?, devices.clone()));
    };
    let found = place(WITH_RDMA).and_then(|object| {
        let verbs = has_library(c"libibverbs.so.1");
        verbs.then_some(object).ok_or_else(|| Error::Unsupported {
            what: format!("--register {}", rdma.name),
            why: "libibverbs.so.1 is not found: install libibverbs1 and ibverbs-providers (or rdma-core)"
                .into(),
        })
    });
    match found {
        Ok(object) => Ok((object, devices.clone())),
        Err(_) if devices.0.iter().filter(|d| is_rdma(d)).all(|d| d.optional) => {
            let rest: Vec<ListedDevice> = devices.0.iter().filter(|d| !is_rdma(d)).cloned().collect();
            let object = if rest.is_empty() { PathBuf::new() } else { place(PLAIN)? };
            Ok((object, DeviceList(rest)))
        }
        Err(error) => Err(error),
    }
}

/// Where an object is: `lib/hostbuf/` beside the folder that this command is in.
///
/// # Errors
/// [`Error::Unsupported`] when it is not there, or could be another user's.
pub(crate) fn place(name: &str) -> Result<PathBuf> {
    let refused = |why| Error::Unsupported { what: "--register".into(), why };
    let command = std::env::current_exe()
        .map_err(|source| Error::Os { doing: "looking for this program's own path".into(), source })?;
    let folder = command.parent().and_then(|bin| bin.parent()).map(|prefix| prefix.join("lib/hostbuf"));
    let path = folder.unwrap_or_default().join(name);
    let command = installation::mend("");
    let mend = if name == WITH_RDMA {
        format!(
            "`{command}` in hostbuf's sources builds it where libibverbs' headers are (scripts/install-deps rdma)"
        )
    } else {
        format!("`{command}` in hostbuf's sources builds it")
    };
    if !can_be_named(&path) {
        return Err(refused(format!(
            "nothing can be preloaded from {}: a space or a colon is in the way",
            path.display()
        )));
    }
    let Ok(file) = fs::File::open(&path) else {
        return Err(refused(format!("the object that registers is not at {}: {mend}", path.display())));
    };
    let own = nix::unistd::geteuid().as_raw();
    // It is loaded into other programs.
    let trusted = |m: &fs::Metadata| m.is_file() && (m.uid() == own || m.uid() == 0) && m.mode() & 0o022 == 0;
    if !file.metadata().is_ok_and(|m| trusted(&m)) {
        return Err(refused(format!(
            "{} could be changed by other users: it must belong to this one or to root, and be writable for its owner only",
            path.display()
        )));
    }
    if Elf::read(&file).is_none() {
        return Err(refused(format!("{} is no 64-bit library: {mend}", path.display())));
    }
    Ok(path)
}

/// Whether the dynamic linker finds a library. This process is about to become another, or to start others, so that it
/// stays loaded is no matter.
#[allow(unsafe_code)]
fn has_library(name: &CStr) -> bool {
    // SAFETY: loads a library by its name; what its constructors do is what every user of it gets.
    !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) }.is_null()
}
