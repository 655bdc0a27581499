//! The topology for programs.

use hostbuf_topology::{Assumption, IoDevice, NodeHugePages, NumaNode, PathType, Topology};
use serde_json::{Value, json};

use super::Restriction;

/// Returns the topology as JSON. Sizes are in bytes; `null` stands for an unknown value.
/// `restriction` is that of this process, or `None` for a recorded tree.
pub fn json(host: &str, topology: &Topology, restriction: Option<&Restriction>) -> Value {
    let devices = topology.devices();
    let pairs = devices.iter().flat_map(|a| devices[a.index().0 + 1..].iter().map(move |b| (a, b)));
    json!({
        "host": host,
        "allowed_cpus": restriction.map(|allowed| allowed.cpus.to_string()),
        "allowed_nodes": restriction.map(|allowed| allowed.nodes.iter().map(|node| node.0).collect::<Vec<_>>()),
        "nodes": topology.nodes().iter().map(node).collect::<Vec<_>>(),
        "devices": devices.iter().map(device).collect::<Vec<_>>(),
        "paths": pairs.map(|(a, b)| path(topology, a, b)).collect::<Vec<_>>(),
        "assumptions": topology.assumptions().iter().map(|found| assumption(found, restriction.is_some())).collect::<Vec<_>>(),
    })
}

fn node(node: &NumaNode) -> Value {
    let pool =
        |pool: &NodeHugePages| json!({ "page_bytes": pool.size, "total": pool.total, "free": pool.free });
    let performance = node.performance().map(|figures| {
        json!({
            "initiators": figures.initiators.iter().map(|node| node.0).collect::<Vec<_>>(),
            "read_bandwidth_mib_per_s": figures.read_bandwidth,
            "write_bandwidth_mib_per_s": figures.write_bandwidth,
            "read_latency_ns": figures.read_latency,
            "write_latency_ns": figures.write_latency,
        })
    });
    json!({
        "node": node.id().0,
        "cpus": node.cpus().to_string(),
        "cpu_count": node.cpus().count(),
        "memory_bytes": node.memory(),
        "free_bytes": node.free(),
        "available_bytes": node.available(),
        "distances": node.distances().iter().map(|(to, distance)| json!({ "node": to.0, "distance": distance })).collect::<Vec<_>>(),
        "huge_pages": node.huge_pages().iter().map(pool).collect::<Vec<_>>(),
        "performance": performance,
        "gpu": node.gpu().map(|gpu| gpu.to_string()),
        "gpu_memory_assumed": node.is_gpu_memory_assumed(),
        "assumed": node.is_assumed(),
    })
}

fn device(device: &IoDevice) -> Value {
    json!({
        "name": device.name(),
        "kind": device.kind().name(),
        "os_names": device.os_names(),
        "pci_address": device.pci_address().map(|address| address.to_string()),
        "pci_parents": device.pci_parents().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "node": device.node().map(|node| node.0),
        "node_assumed": device.node_is_assumed(),
        "usable": device.is_usable(),
        "model": device.model(),
        "uuid": device.uuid(),
        "nvml_index": device.nvml_index(),
        "mig_uuids": device.mig_uuids(),
        "interfaces": device.interfaces(),
        "rdma_devices": device.rdma_devices(),
        "verbs_nodes": device.verbs_nodes(),
    })
}

fn path(topology: &Topology, a: &IoDevice, b: &IoDevice) -> Value {
    let path = topology.path(a.index(), b.index());
    let links = match path.path_type {
        PathType::NvLink(count) => Some(count),
        _ => None,
    };
    json!({
        "from": a.name(),
        "to": b.name(),
        "type": path.path_type.name(),
        "nvlinks": links,
        "pci_type": topology.pci_path(a.index(), b.index()).path_type.name(),
        "assumed": path.assumed,
    })
}

/// Returns an assumption, with its remedy if the topology is that of this host.
fn assumption(assumption: &Assumption, of_this_host: bool) -> Value {
    let remedy = assumption.remedy().filter(|_| of_this_host);
    json!({ "subject": assumption.subject(), "says": assumption.text(), "remedy": remedy })
}
