//! An entry for fuzzing: a tree in memory that is made of random bytes.

use crate::discovery::recorded_tree;
use crate::memory_tree::MemoryTree;
use crate::nvml_report::NVML_FILE;
use crate::topology::Topology;

/// The folder of a real device, so that random links lead somewhere.
const DEVICES: &str = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";

/// The paths of files that a topology is read from.
const FILES: [&str; 24] = [
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu1/online",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node1/cpumap",
    "sys/devices/system/node/node0/meminfo",
    "sys/devices/system/node/node0/distance",
    "sys/devices/system/node/node1/distance",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages",
    "sys/devices/system/node/node1/access0/initiators/read_bandwidth",
    "proc/meminfo",
    "proc/driver/nvidia/gpus/0000:01:00.0/numa_status",
    "sys/devices/pci0000:00/0000:00:01.0/numa_node",
    "sys/devices/pci0000:00/0000:00:01.0/local_cpulist",
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/class",
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/vendor",
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/numa_node",
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/net/eth0/operstate",
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/infiniband/mlx5_0/ports/1/state",
    "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/block/sda/size",
    "sys/class/infiniband_verbs/uverbs0/ibdev",
    "sys/devices/virtual/block/md0/slaves/sda/x",
    "sys/class/block/dm-0/dm/name",
    NVML_FILE,
];

/// The paths of links of classes.
const LINKS: [&str; 8] = [
    "sys/bus/pci/devices/0000:01:00.0",
    "sys/bus/pci/devices/0000:00:01.0",
    "sys/class/net/eth0",
    "sys/class/infiniband/mlx5_0",
    "sys/class/block/sda",
    "sys/class/block/md0",
    "sys/class/block/nvme0n1",
    "sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0",
];

/// Returns the topology of a tree of random entries. Entries end with a zero byte. The first byte
/// of an entry selects a path of a file with the text that follows, a link to a path below a
/// device, or a link with the target that follows; other entries are `path=text` or `path>target`.
#[must_use]
pub fn topology(bytes: &[u8]) -> Topology {
    let mut tree = MemoryTree::new();
    for entry in bytes.split(|byte| *byte == 0).take(256) {
        let Some((&first, rest)) = entry.split_first() else { continue };
        let text = String::from_utf8_lossy(rest);
        let first = usize::from(first - 1);
        tree = match first {
            0..24 => tree.file(FILES[first], &text),
            24..32 => tree.link(LINKS[first - 24], &format!("/{DEVICES}/{text}")),
            32..40 => tree.link(LINKS[first - 32], &text),
            _ => match (text.split_once('='), text.split_once('>')) {
                (Some((path, text)), _) => tree.file(path, text),
                (None, Some((path, target))) => tree.link(path, target),
                (None, None) => continue,
            },
        };
    }
    recorded_tree(&tree)
}
