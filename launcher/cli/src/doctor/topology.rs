//! The NUMA nodes and devices, and the facts about them that are assumed.

use hostbuf::Bytes;
use hostbuf_topology::{DeviceKind, IoDevice, NumaNode, Topology};

use crate::finding::Finding;
use crate::topology::Restriction;

pub fn lines() -> Vec<Finding> {
    let topology = Topology::discover();
    let restriction = Restriction::of_this_process(&topology);
    let mut lines = findings(&topology);
    if !restriction.is_none {
        lines.insert(1, Finding::note("cpuset", restriction.text()));
    }
    lines
}

fn findings(topology: &Topology) -> Vec<Finding> {
    let mut lines = vec![nodes(topology), gpus(topology), nics(topology)];
    // An assumption without a remedy is right on this host.
    for assumption in topology.assumptions() {
        if let Some(remedy) = assumption.remedy() {
            let says = format!("{}: {}", assumption.subject(), assumption.text());
            lines.push(Finding::note("assumed", says).mend(remedy));
        }
    }
    lines
}

fn nodes(topology: &Topology) -> Finding {
    let one = |node: &NumaNode| {
        let memory = node.memory().map_or("unknown memory".into(), |bytes| Bytes(bytes).to_string());
        match (node.has_cpus(), node.is_gpu_memory()) {
            (true, _) => format!("{} (CPUs {}, {memory})", node.id(), node.cpus()),
            (false, true) => format!("{} ({memory} of a GPU)", node.id()),
            (false, false) => format!("{} ({memory})", node.id()),
        }
    };
    let list: Vec<String> = topology.nodes().iter().map(one).collect();
    Finding::ok("NUMA nodes", list.join(", ")).value("count", list.len())
}

fn gpus(topology: &Topology) -> Finding {
    let gpus: Vec<&IoDevice> = topology.devices_of(DeviceKind::Gpu).collect();
    let says = match gpus.is_empty() {
        true => "none".into(),
        false => listed(&gpus),
    };
    Finding::ok("GPUs", says).value("count", gpus.len())
}

fn nics(topology: &Topology) -> Finding {
    let (active, down): (Vec<&IoDevice>, Vec<&IoDevice>) =
        topology.devices_of(DeviceKind::Nic).partition(|nic| nic.is_usable());
    let says = match (active.is_empty(), down.is_empty()) {
        (true, true) => "none".to_owned(),
        (true, false) => format!("none active; down: {}", listed(&down)),
        (false, true) => listed(&active),
        (false, false) => format!("{}; down: {}", listed(&active), listed(&down)),
    };
    Finding::ok("network cards", says).value("active", active.len()).value("down", down.len())
}

/// Returns the names of devices with their nodes.
fn listed(devices: &[&IoDevice]) -> String {
    let one = |device: &&IoDevice| {
        let node = device.node().map_or("unknown".to_owned(), |node| node.to_string());
        let assumed = if device.node_is_assumed() { "?" } else { "" };
        format!("{} (node {node}{assumed})", device.name())
    };
    devices.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_the_memory_of_a_gpu_are_marked() {
        let root = std::env::temp_dir().join(format!("hostbuf-doctor-topology-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        for (node, cpus) in ["0-3", "", ""].into_iter().enumerate() {
            write(&format!("sys/devices/system/node/node{node}/cpulist"), cpus);
            let meminfo = format!("Node {node} MemTotal: 1024 kB\n");
            write(&format!("sys/devices/system/node/node{node}/meminfo"), &meminfo);
        }
        write("proc/driver/nvidia/gpus/0009:01:00.0/numa_status", "Node: 2\n");
        let topology = Topology::recorded(&root).expect("it has a folder sys");
        std::fs::remove_dir_all(&root).expect("it was made above");
        assert_eq!(nodes(&topology).says, "0 (CPUs 0-3, 1 MiB), 1 (1 MiB), 2 (1 MiB of a GPU)");
    }
}
