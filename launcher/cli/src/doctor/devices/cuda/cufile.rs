//! NVIDIA's cuFile, on hosts with a GPU driver.

use std::path::Path;
use std::time::Duration;

use crate::doctor::child;
use crate::doctor::devices::library::Library;
use crate::finding::Finding;

/// States whether this host has cuFile, and what it needs.
pub(super) fn line() -> Finding {
    let load = || if Library::open(c"libcufile.so.0").is_some() { "loads" } else { "absent" }.to_owned();
    let loaded = child::ask(Duration::from_secs(60), load);
    let exists = |path: &str| Path::new(path).exists();
    finding(loaded, exists("/proc/driver/nvidia-fs"), exists("/run/udev/data"))
}

fn finding(loaded: Result<String, String>, has_nvidia_fs: bool, has_udev: bool) -> Finding {
    const NAME: &str = "cuFile";
    let line = match loaded.as_deref() {
        Ok("loads") if !has_udev => {
            let says = "cuFile refuses every file here, since it finds no database of udev; hostbuf's own backends need none";
            Finding::note(NAME, says).mend("mount the host's /run/udev into the container")
        }
        Ok("loads") if has_nvidia_fs => Finding::ok(NAME, "nvidia-fs is loaded: GPUDirect Storage may work"),
        Ok("loads") => Finding::ok(
            NAME,
            "nvidia-fs is not loaded: cuFile copies through the host (its compatibility mode)",
        ),
        Ok(_) => Finding::ok(NAME, "libcufile.so.0 is not found, and only CuFile (Rust) needs it"),
        Err(why) => Finding::note(NAME, format!("cannot load libcufile.so.0: {why}")),
    };
    line.value("nvidia_fs", has_nvidia_fs).value("udev", has_udev)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Mark;

    #[test]
    fn each_state_of_cufile_becomes_a_finding() {
        let loads = || Ok("loads".to_owned());
        let refuses = finding(loads(), true, false);
        assert!(refuses.mark == Mark::Note && refuses.mends[0].contains("/run/udev"));
        assert!(finding(loads(), true, true).says.contains("GPUDirect Storage may work"));
        assert!(finding(loads(), false, true).says.contains("compatibility mode"));
        assert_eq!(finding(Ok("absent".into()), false, false).mark, Mark::Ok);
        assert_eq!(finding(Err("it crashed".into()), false, true).mark, Mark::Note);
    }
}
