//! GPUs and their driver. Its library is loaded at run time, so a missing one is only reported.

#![allow(unsafe_code, reason = "calls the functions of the GPU driver")]

mod cufile;
mod gpu_sections;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::time::Duration;

use super::host_devices::HostDevices;
use super::library::Library;
use crate::doctor::child;
use crate::doctor::kernel_text::knob;
use crate::finding::Finding;

/// Queries the CUDA driver. Returns `absent`, `unloadable TEXT`, `error WHERE NUMBER TEXT`, or `ok
/// VERSION DEVICES`.
fn ask_driver() -> String {
    const NAME: &CStr = c"libcuda.so.1";
    let Some(library) = Library::open(NAME) else {
        return Library::unloadable(NAME).map_or_else(|| "absent".into(), |why| format!("unloadable {why}"));
    };
    let (Some(init), Some(version), Some(count)) = (
        library.symbol(c"cuInit"),
        library.symbol(c"cuDriverGetVersion"),
        library.symbol(c"cuDeviceGetCount"),
    ) else {
        return "error dlsym 0 it lacks the functions of a CUDA driver".into();
    };
    // SAFETY: the driver's interface: CUresult cuInit(unsigned int).
    let init = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_uint) -> c_int>(init) };
    type Ask = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: CUresult cuDriverGetVersion(int *) and cuDeviceGetCount(int *).
    let (version, count) = unsafe {
        (std::mem::transmute::<*mut c_void, Ask>(version), std::mem::transmute::<*mut c_void, Ask>(count))
    };
    let (mut number, mut devices) = (0, 0);
    // SAFETY: the pointers are valid for the calls; the driver is initialised before it is asked
    // for devices.
    let (started, _, counted) = unsafe { (init(0), version(&raw mut number), count(&raw mut devices)) };
    match (started, counted) {
        (0, 0) => format!("ok {number} {devices}"),
        (0, error) => format!("error cuDeviceGetCount {error} {}", describe(&library, error)),
        (error, _) => format!("error cuInit {error} {}", describe(&library, error)),
    }
}

/// Returns the CUDA driver's description of an error.
fn describe(library: &Library, error: c_int) -> String {
    type Name = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
    let Some(symbol) = library.symbol(c"cuGetErrorString") else { return String::new() };
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: CUresult cuGetErrorString(CUresult, const char **); the pointer is valid for the
    // call.
    let known = unsafe { std::mem::transmute::<*mut c_void, Name>(symbol)(error, &raw mut text) } == 0;
    if !known || text.is_null() {
        return String::new();
    }
    // SAFETY: by the driver's interface the text is constant and terminated by NUL.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The GPUs.
pub(super) struct Gpus;

impl HostDevices for Gpus {
    fn findings(&self) -> Vec<Finding> {
        let asked = child::ask(Duration::from_secs(60), ask_driver);
        let driver = knob("/proc/driver/nvidia/version").and_then(|t| driver_version(&t));
        let has_gpu = asked.as_ref().is_ok_and(|answer| answer.starts_with("ok ") && !answer.ends_with(" 0"));
        let mut findings = vec![cuda_line(asked, driver.as_deref())];
        findings.extend(has_gpu.then(gpu_sections::line));
        // Without a driver nobody asks for it.
        findings.extend(driver.map(|_| cufile::line()));
        findings
    }
}

fn cuda_line(asked: Result<String, String>, driver: Option<&str>) -> Finding {
    const NAME: &str = "CUDA";
    let answer = match asked {
        Ok(answer) => answer,
        Err(why) => {
            return Finding::lacks(NAME, format!("cannot query the driver: {why}"))
                .mend("see nvidia-smi and dmesg");
        }
    };
    if let Some(why) = answer.strip_prefix("unloadable ") {
        return Finding::lacks(NAME, format!("libcuda.so.1 cannot be loaded: {why}"))
            .mend("install NVIDIA's driver again, or correct LD_LIBRARY_PATH")
            .value("driver_version", driver);
    }
    let words: Vec<&str> = answer.splitn(4, ' ').collect();
    let line = match words.as_slice() {
        ["absent"] if driver.is_some() => Finding::lacks(
            NAME,
            "a GPU driver is loaded, but libcuda.so.1 is not found",
        )
        .mend("put libcuda.so.1 on LD_LIBRARY_PATH; containers: run with the GPU runtime (--gpus all, --nv)"),
        ["absent"] => Finding::ok(NAME, "no CUDA driver here, and none is needed"),
        ["ok", version, devices] => {
            let (version, devices) = (version.parse().unwrap_or(0), devices.parse().unwrap_or(0u32));
            let kernel = driver.map_or(String::new(), |d| format!(", driver {d}"));
            let gpus = if devices == 1 { "GPU" } else { "GPUs" };
            let says = format!("{devices} {gpus}, CUDA {}{kernel}", cuda_version(version));
            Finding::ok(NAME, says).value("devices", devices).value("cuda_version", cuda_version(version))
        }
        ["error", place, number, rest @ ..] => {
            let line = Finding::note(
                NAME,
                format!("libcuda.so.1 loads, but {place} returns {number}: {}", rest.join(" ")),
            );
            // Error 100 means that the driver works and has no device, so there is no remedy.
            if *number == "100" {
                line
            } else {
                line.mend("see nvidia-smi; the driver and its library must match")
            }
        }
        _ => Finding::note(NAME, "the driver returned an unexpected answer"),
    };
    line.value("driver_version", driver)
}

/// Formats a CUDA version number: 12080 is CUDA 12.8.
fn cuda_version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Returns the version from a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module
/// 550.54.14  Thu ...`.
fn driver_version(text: &str) -> Option<String> {
    let is_version = |w: &&str| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Mark;

    #[test]
    fn each_answer_of_the_driver_becomes_a_finding() {
        let line = |answer: &str, driver| cuda_line(Ok(answer.into()), driver);
        assert_eq!(line("absent", None).mark, Mark::Ok);
        assert_eq!(line("absent", Some("580.1")).mark, Mark::Lacks);
        let corrupt = line("unloadable libcuda.so.1: file too short", None);
        assert!(
            corrupt.mark == Mark::Lacks && corrupt.says.ends_with(": file too short"),
            "{}",
            corrupt.says
        );
        let good = line("ok 13000 2", Some("580.65.06"));
        assert_eq!((good.mark, good.says.as_str()), (Mark::Ok, "2 GPUs, CUDA 13.0, driver 580.65.06"));
        let none = line("error cuInit 100 no CUDA-capable device is detected", None);
        assert!(
            none.says.ends_with("cuInit returns 100: no CUDA-capable device is detected")
                && none.mends.is_empty()
        );
        assert_eq!(cuda_line(Err("it crashed".into()), None).mark, Mark::Lacks);
    }

    #[test]
    fn driver_and_cuda_versions_are_parsed() {
        assert_eq!(cuda_version(12080), "12.8");
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC version: 12.2.0\n";
        assert_eq!(driver_version(text).as_deref(), Some("550.54.14"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n";
        assert_eq!(driver_version(open).as_deref(), Some("580.65.06"));
    }
}
