//! RDMA devices and their ports. Their library is loaded at run time, so a missing one is only
//! reported.

use std::fs;
use std::time::Duration;

use super::host_devices::HostDevices;
use super::library::Library;
use crate::doctor::child;
use crate::doctor::kernel_text::knob;
use crate::finding::Finding;

const SYSFS_DEVICES: &str = "/sys/class/infiniband";

fn devices() -> Vec<String> {
    let entries = fs::read_dir(SYSFS_DEVICES).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The RDMA devices.
pub(super) struct RdmaDevices;

impl HostDevices for RdmaDevices {
    fn findings(&self) -> Vec<Finding> {
        const LIBRARY: &str = "libibverbs";
        let devices = devices();
        if devices.is_empty() {
            return vec![Finding::ok("RDMA", "no device here, and none is needed")];
        }
        let mut findings: Vec<Finding> = devices.iter().map(|name| device(name)).collect();
        let loaded = child::ask(Duration::from_secs(20), || match Library::open(c"libibverbs.so.1") {
            Some(_) => "yes".into(),
            None => "no".into(),
        });
        findings.push(match loaded.as_deref() {
            Ok("yes") => Finding::ok(LIBRARY, "libibverbs.so.1 loads"),
            Ok(_) => Finding::lacks(LIBRARY, "libibverbs.so.1 is not found: the devices cannot be used")
                .mend("apt-get install libibverbs1 ibverbs-providers"),
            Err(why) => Finding::lacks(LIBRARY, format!("loading libibverbs.so.1: {why}")),
        });
        findings
    }

    fn lock_memory(&self) -> bool {
        !devices().is_empty()
    }
}

/// Reports an RDMA device and its ports from the files in sysfs.
fn device(name: &str) -> Finding {
    let folder = format!("{SYSFS_DEVICES}/{name}/ports");
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut ports: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    ports.sort();
    let read =
        |port: &str, what: &str| knob(&format!("{folder}/{port}/{what}")).unwrap_or_else(|| "?".into());
    let active = ports.iter().any(|p| read(p, "state").contains("ACTIVE"));
    let each: Vec<String> = ports
        .iter()
        .map(|p| {
            let state = read(p, "state");
            let state = state.split_once(": ").map_or(&*state, |(_, name)| name).to_lowercase();
            format!("port {p} {state}, {}, {}", read(p, "link_layer"), read(p, "rate"))
        })
        .collect();
    let name = format!("RDMA {name}");
    let line = if active {
        Finding::ok(name, each.join("; "))
    } else {
        let line = Finding::note(name, format!("no active port ({})", each.join("; ")));
        line.mend("rdma link, and ip link set DEVICE up (RoCE) or a subnet manager (InfiniBand)")
    };
    line.value("ports", each)
}
