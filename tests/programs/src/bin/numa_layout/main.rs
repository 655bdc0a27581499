//! Checks that a machine of `scripts/numa-vm` has the nodes, the memory and the devices of its
//! layout. It prints one line for each check.
//!
//!   numa_layout [PAGES...]     the number of huge pages of each node, by default 0

mod layouts;

use std::collections::BTreeMap;
use std::fs;

use hostbuf_programs::checks::{Outcome, expect, report, text};
use hostbuf_programs::numa::sys_node;

use layouts::MachineLayout;

fn main() {
    let name = std::env::var("NUMA_VM_LAYOUT").unwrap_or_default();
    let layout = layouts::ALL.iter().find(|layout| layout.name == name);
    let layout = layout.unwrap_or_else(|| panic!("NUMA_VM_LAYOUT={name} is no layout"));
    let pages: Vec<usize> = std::env::args().skip(1).map(|pages| pages.parse().expect("a number")).collect();
    let checks = [
        ("nodes", nodes(layout)),
        ("cpus", cpus(layout)),
        ("memory", memory(layout, &pages)),
        ("distances", distances(layout)),
        ("bandwidth", bandwidth(layout)),
        ("pools", pools(layout, &pages)),
        ("devices", devices(layout)),
    ];
    let failed = checks.into_iter().filter(|(name, outcome)| !report(name, outcome)).count();
    std::process::exit(i32::from(failed > 0));
}

fn nodes(layout: &MachineLayout) -> Outcome {
    let online = sys_node::online()?;
    expect(online.iter().copied().eq(0..layout.nodes.len() as u32), format!("{online:?}"))?;
    Ok(format!("{online:?}"))
}

fn cpus(layout: &MachineLayout) -> Outcome {
    each_node(layout, |node, wanted| {
        let cpus = sys_node::read(node, "cpulist")?;
        expect(cpus == wanted.cpus, format!("node {node} has the CPUs \"{cpus}\""))?;
        Ok(cpus)
    })
}

/// The most that the kernel keeps for itself and its image, which MemTotal lacks.
const KERNEL_MIB: usize = 96;

fn memory(layout: &MachineLayout, pages: &[usize]) -> Outcome {
    each_node(layout, |node, wanted| {
        let mib = sys_node::memory(node, "MemTotal")? >> 20;
        let all = wanted.mib + 2 * pages.get(node as usize).unwrap_or(&0);
        let well = mib <= all + KERNEL_MIB / 4 && mib + KERNEL_MIB >= all && (wanted.mib > 0 || mib == 0);
        expect(well, format!("node {node} has {mib} MiB instead of {all}"))?;
        Ok(format!("{mib} MiB"))
    })
}

fn distances(layout: &MachineLayout) -> Outcome {
    each_node(layout, |node, wanted| {
        let distances = sys_node::read(node, "distance")?;
        expect(distances == wanted.distances, format!("node {node} has the distances \"{distances}\""))?;
        Ok(distances)
    })
}

/// Checks what the kernel tells of the fastest initiator, which is the node itself.
fn bandwidth(layout: &MachineLayout) -> Outcome {
    each_node(layout, |node, wanted| {
        let read = |file: &str| sys_node::read(node, &format!("access0/initiators/{file}")).ok();
        let found = (read("read_bandwidth"), read("read_latency"));
        let expected =
            wanted.bandwidth.map(|(bandwidth, latency)| (bandwidth.to_string(), latency.to_string()));
        let well =
            found == expected.map_or((None, None), |(bandwidth, latency)| (Some(bandwidth), Some(latency)));
        expect(well, format!("node {node} has the bandwidth and latency {found:?}"))?;
        Ok(found.0.unwrap_or("unknown".into()))
    })
}

fn pools(layout: &MachineLayout, pages: &[usize]) -> Outcome {
    each_node(layout, |node, _| {
        let wanted = *pages.get(node as usize).unwrap_or(&0);
        let found = (sys_node::pool_pages(node)?, sys_node::free_pool_pages(node)?);
        expect(found == (wanted, wanted), format!("the pool of node {node} has {found:?} pages"))?;
        Ok(wanted.to_string())
    })
}

/// Checks each node, and joins the descriptions.
fn each_node(layout: &MachineLayout, check: impl Fn(u32, &layouts::NodeFacts) -> Outcome) -> Outcome {
    let seen = layout.nodes.iter().enumerate().map(|(node, wanted)| check(node as u32, wanted));
    Ok(seen.collect::<Result<Vec<_>, _>>()?.join("; "))
}

/// Checks the paths, classes and nodes of all devices except those of the machine itself, which are
/// on the root bus.
fn devices(layout: &MachineLayout) -> Outcome {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/sys/bus/pci/devices").map_err(text)? {
        let link = entry.map_err(text)?.path();
        let read = |file: &str| fs::read_to_string(link.join(file)).map_err(text);
        let (class, node) =
            (read("class")?.trim_end()[..6].to_owned(), read("numa_node")?.trim_end().to_owned());
        let path = fs::canonicalize(&link).map_err(text)?;
        let path = path.strip_prefix("/sys/devices").map_err(text)?.to_string_lossy().into_owned();
        let own = path.starts_with("pci0000:00/") && !(class == layouts::SCSI && layout.name == "bridges");
        if !own {
            found.insert(path, (class, node));
        }
    }
    let wanted: BTreeMap<_, _> = layout
        .devices
        .iter()
        .map(|(path, class, node)| ((*path).into(), ((*class).into(), node.to_string())))
        .collect();
    expect(found == wanted, format!("found {found:?} instead of {wanted:?}"))?;
    Ok(format!("{} at their places", wanted.len()))
}
