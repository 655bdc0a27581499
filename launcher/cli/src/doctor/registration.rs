//! Registration of memory with devices, checked by registering in a child process.

#![allow(unsafe_code, reason = "calls an exported function of the loaded object")]

use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hostbuf::register::{Access, DeviceName, MonitorMode, Probe, Registration, Span, SystemLibrary};

use super::child;
use crate::finding::{Finding, Mark};
use crate::{installation, preload_file, register_file};

/// The number of bytes that are registered for a check.
const TRIED: usize = 64 << 10;

pub fn lines() -> Vec<Finding> {
    let mut lines: Vec<Finding> =
        DeviceName::all().filter(DeviceName::is_built).filter_map(|name| device(&name)).collect();
    lines.extend([object(register_file::PLAIN), object(register_file::ALL_DEVICES), monitor()]);
    lines
}

/// Registers memory with a kind of device. Returns `None` if the device is optional and absent: the
/// lines of the devices then report the missing part.
fn device(name: &DeviceName) -> Option<Finding> {
    let tried = child::ask(Duration::from_secs(120), || {
        let mut limited = false;
        let text = said(&name.probe(), || {
            let device = name.open().map_err(|e| e.to_string())?;
            limited = device.limitation().is_some();
            try_with(&Arc::new(device))
        });
        match text.strip_prefix("ok ") {
            Some(what) if limited => format!("partly {what}"),
            _ => text,
        }
    });
    let check = name.check();
    // Without the device no check is possible.
    if check.optional && tried.as_ref().is_ok_and(|text| text.starts_with("absent")) {
        return None;
    }
    let line = outcome(check.title, tried);
    let remedies = match line.mark {
        Mark::Ok => &[][..],
        Mark::Note => check.limited,
        Mark::Lacks => check.failed,
    };
    Some(remedies.iter().fold(line, |line, remedy| line.mend(*remedy)))
}

/// Returns `ok WHAT` or `failed WHY` if the check can be made, else `absent WHY`.
fn said(probe: &Probe, attempt: impl FnOnce() -> Result<(), String>) -> String {
    match (probe, probe.is_ready().then(attempt)) {
        (Probe::Ready(what), Some(Ok(()))) => format!("ok {what}"),
        (_, Some(Err(why))) => format!("failed {why}"),
        (Probe::Ready(why) | Probe::Missing(why), _) => format!("absent {why}"),
    }
}

/// Registers some memory and deregisters it.
fn try_with<R: hostbuf::register::Registrar>(registrar: &Arc<R>) -> Result<(), String> {
    let memory = vec![1u8; TRIED];
    let span = Span::of(&memory).map_err(|e| e.to_string())?;
    let registration = Registration::new(registrar, span, Access::WRITE).map_err(|e| e.to_string())?;
    registration.deregister().map_err(|e| e.to_string())
}

fn outcome(name: &str, tried: Result<String, String>) -> Finding {
    let text = tried.unwrap_or_else(|why| format!("failed {why}"));
    match text.split_once(' ') {
        Some(("ok", what)) => Finding::ok(name, format!("works: {what}")),
        Some(("partly", what)) => Finding::note(name, format!("works: {what}")),
        Some((_, why)) => Finding::lacks(name, why),
        None => Finding::lacks(name, text),
    }
}

/// Checks that the object for `--register` exists and loads, and reports its probe of each kind of
/// device.
fn object(name: &str) -> Finding {
    let libraries: Vec<SystemLibrary> =
        if name == register_file::ALL_DEVICES { register_file::libraries().collect() } else { Vec::new() };
    let path = match register_file::place(name, register_file::REGISTER) {
        Ok(path) => path,
        Err(error) => {
            if matches!(error, hostbuf::Error::Os { .. }) {
                return Finding::lacks(name, error.to_string());
            }
            let line = Finding::note(name, format!("hostbuf run {error}"));
            return libraries
                .iter()
                .map(|library| library.headers)
                .fold(line, Finding::mend)
                .mend(installation::mend(""));
        }
    };
    let asked = preload_file::path()
        .map_err(|error| error.to_string())
        .and_then(|preload| child::ask(Duration::from_secs(120), || probe(&preload, &path)));
    let answers = match asked {
        Ok(answers) if !answers.starts_with("does not load") => answers,
        Ok(why) | Err(why) => {
            let line = Finding::lacks(name, why);
            if libraries.is_empty() {
                return line.mend(installation::mend(""));
            }
            let packages = libraries.iter().map(|library| format!("install {}", library.packages));
            return packages.fold(line, Finding::mend);
        }
    };
    let kinds: Vec<[&str; 3]> = answers.lines().filter_map(parts).collect();
    let [ready, missing] = ["ready", "missing"].map(|state| {
        let kinds: Vec<&str> = kinds.iter().filter(|k| k[1] == state).map(|k| k[0]).collect();
        kinds.join(", ")
    });
    let mut says = if ready.is_empty() {
        "loads, but no device can be used here".to_owned()
    } else {
        format!("loads; --register can use {ready}")
    };
    if !missing.is_empty() {
        says.push_str(&format!(" (not here: {missing})"));
    }
    let values: serde_json::Map<_, _> = kinds
        .iter()
        .map(|[kind, state, what]| ((*kind).to_owned(), format!("{state}: {what}").into()))
        .collect();
    Finding::ok(name, says).value("devices", values)
}

/// Parses a line `kind state text`.
fn parts(line: &str) -> Option<[&str; 3]> {
    let mut words = line.splitn(3, ' ');
    Some([words.next()?, words.next()?, words.next()?])
}

/// Loads both objects as a rank does, and queries the second one.
fn probe(preload: &Path, object: &Path) -> String {
    let load = |path: &Path| {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: our own objects, whose constructors do nothing outside of a job. This is a child
        // that is thrown away.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if handle.is_null() { Err(linker_message()) } else { Ok(handle) }
    };
    let handle = match load(preload).and_then(|_| load(object)) {
        Ok(handle) => handle,
        Err(why) => return format!("does not load: {why}"),
    };
    // SAFETY: searches for a symbol in the library that was just loaded.
    let found = unsafe { libc::dlsym(handle, c"hostbuf_registered_probe".as_ptr()) };
    if found.is_null() {
        return "does not load: it belongs to another version of hostbuf".into();
    }
    type Ask = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    let mut text = [0u8; 4096];
    // SAFETY: the object's function of that name has this type, and writes at most as many entries
    // as the array has.
    let length =
        unsafe { std::mem::transmute::<*mut c_void, Ask>(found)(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8_lossy(&text[..length.min(text.len())]).into_owned()
}

/// Returns the reason why the dynamic linker did not load a library.
fn linker_message() -> String {
    // SAFETY: the linker returns a text that is valid until the next call, or null.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| std::ffi::CStr::from_ptr(text))
    };
    text.map_or("the linker gives no reason".into(), |text| text.to_string_lossy().into_owned())
}

/// Checks whether registrations of memory that hostbuf has not allocated can be cached.
fn monitor() -> Finding {
    const NAME: &str = "strict monitor";
    let tried = child::ask(Duration::from_secs(30), || match MonitorMode::probe() {
        Probe::Ready(what) => format!("ok {what}"),
        Probe::Missing(why) => format!("missing {why}"),
    });
    match tried.as_deref().map(|text| text.split_once(' ').unwrap_or((text, ""))) {
        Ok(("ok", what)) => Finding::ok(NAME, format!("works: {what}")),
        Ok((_, why)) => unproven(NAME, why),
        Err(why) => unproven(NAME, why),
    }
}

fn unproven(name: &str, why: &str) -> Finding {
    let says = format!(
        "does not work: {why}. A registration cache keeps no registration of memory that hostbuf has not allocated"
    );
    Finding::note(name, says)
        .mend("see userfaultfd under kernel above; or set HOSTBUF_CACHE_MONITOR=explicit in a program that calls invalidate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_becomes_a_finding() {
        let line = outcome("x", Ok("ok with this".into()));
        assert_eq!((line.mark, line.says.as_str()), (Mark::Ok, "works: with this"));
        for (answer, says) in [
            (Ok("failed no room".into()), "no room"),
            (Ok("absent the limit is 0".into()), "the limit is 0"),
            (Err("it crashed".into()), "it crashed"),
        ] {
            let line = outcome("x", answer);
            assert_eq!((line.mark, line.says.as_str()), (Mark::Lacks, says));
        }
        assert_eq!(parts("cuda ready CUDA 13.0, a GPU"), Some(["cuda", "ready", "CUDA 13.0, a GPU"]));
        assert_eq!(parts("rubbish"), None);
    }

    #[test]
    fn an_object_that_does_not_load_gives_the_reason() {
        let why = probe(Path::new("/no/such/object.so"), Path::new("/no/such/other.so"));
        assert!(why.starts_with("does not load: /no/such/object.so"), "{why}");
    }
}
