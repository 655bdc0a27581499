//! The layouts of `scripts/numa-vm` as the kernel in the machine shows them.

/// The layout of a machine.
pub struct MachineLayout {
    pub name: &'static str,
    pub nodes: &'static [NodeFacts],
    /// The path below /sys/devices, the class and subclass, and the node of each device.
    pub devices: &'static [(&'static str, &'static str, i32)],
}

/// The facts about a node.
pub struct NodeFacts {
    pub cpus: &'static str,
    /// MiB of memory without huge pages.
    pub mib: usize,
    pub distances: &'static str,
    /// The bandwidth in MB/s, and the latency in ns.
    pub bandwidth: Option<(u32, u32)>,
}

const fn node(cpus: &'static str, mib: usize, distances: &'static str) -> NodeFacts {
    NodeFacts { cpus, mib, distances, bandwidth: None }
}

const fn measured(cpus: &'static str, mib: usize, distances: &'static str) -> NodeFacts {
    NodeFacts { bandwidth: Some((102_400, 80)), ..node(cpus, mib, distances) }
}

const NETWORK: &str = "0x0200";
const DISPLAY: &str = "0x0380";
const NVME: &str = "0x0108";
/// The class of virtio's drives.
pub const SCSI: &str = "0x0100";
const BRIDGE: &str = "0x0604";

pub const ALL: [MachineLayout; 5] = [
    MachineLayout {
        name: "two",
        nodes: &[node("0-1", 768, "10 20"), node("2-3", 640, "20 10")],
        devices: &[
            ("pci0000:40/0000:40:00.0", BRIDGE, 0),
            ("pci0000:40/0000:40:00.0/0000:41:00.0", NETWORK, 0),
            ("pci0000:80/0000:80:00.0", BRIDGE, 1),
            ("pci0000:80/0000:80:00.0/0000:81:00.0", NETWORK, 1),
        ],
    },
    MachineLayout {
        name: "four",
        nodes: &[
            measured("0", 640, "10 21 31 31"),
            measured("1", 384, "21 10 31 31"),
            measured("2", 384, "31 31 10 21"),
            measured("3", 256, "31 31 21 10"),
        ],
        devices: &[],
    },
    MachineLayout {
        name: "switches",
        nodes: &[node("0", 640, "10 20"), node("1", 384, "20 10")],
        devices: SWITCHES,
    },
    MachineLayout {
        name: "bridges",
        nodes: &[node("0", 640, "10 20"), node("1", 384, "20 10")],
        devices: BRIDGES,
    },
    MachineLayout {
        name: "uneven",
        nodes: &[node("0", 640, "10 20 20"), node("1", 0, "20 10 20"), node("", 384, "20 20 10")],
        devices: &[],
    },
];

const SWITCHES: &[(&str, &str, i32)] = &[
    ("pci0000:20/0000:20:00.0", BRIDGE, 0),
    // The first switch: an upstream port, and three downstream ports.
    ("pci0000:20/0000:20:00.0/0000:21:00.0", BRIDGE, 0),
    ("pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:00.0", BRIDGE, 0),
    ("pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:00.0/0000:23:00.0", NETWORK, 0),
    ("pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:01.0", BRIDGE, 0),
    ("pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:01.0/0000:24:00.0", DISPLAY, 0),
    ("pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:02.0", BRIDGE, 0),
    // The second one, below the first.
    ("pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:02.0/0000:25:00.0", BRIDGE, 0),
    ("pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:02.0/0000:25:00.0/0000:26:00.0", BRIDGE, 0),
    ("pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:02.0/0000:25:00.0/0000:26:00.0/0000:27:00.0", NETWORK, 0),
    ("pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:02.0/0000:25:00.0/0000:26:01.0", BRIDGE, 0),
    ("pci0000:20/0000:20:00.0/0000:21:00.0/0000:22:02.0/0000:25:00.0/0000:26:01.0/0000:28:00.0", NVME, 0),
    ("pci0000:20/0000:20:01.0", BRIDGE, 0),
    ("pci0000:20/0000:20:01.0/0000:29:00.0", NETWORK, 0),
    ("pci0000:40/0000:40:00.0", BRIDGE, 0),
    ("pci0000:40/0000:40:00.0/0000:41:00.0", NETWORK, 0),
    ("pci0000:80/0000:80:00.0", BRIDGE, 1),
    ("pci0000:80/0000:80:00.0/0000:81:00.0", BRIDGE, 1),
    ("pci0000:80/0000:80:00.0/0000:81:00.0/0000:82:00.0", BRIDGE, 1),
    ("pci0000:80/0000:80:00.0/0000:81:00.0/0000:82:00.0/0000:83:00.0", NETWORK, 1),
    ("pci0000:80/0000:80:00.0/0000:81:00.0/0000:82:01.0", BRIDGE, 1),
    ("pci0000:80/0000:80:00.0/0000:81:00.0/0000:82:01.0/0000:84:00.0", DISPLAY, 1),
];

const BRIDGES: &[(&str, &str, i32)] = &[
    ("pci0000:00/0000:00:07.0", SCSI, -1),
    ("pci0000:20/0000:20:00.0", BRIDGE, 0),
    ("pci0000:20/0000:20:00.0/0000:21:00.0", NVME, 0),
    ("pci0000:20/0000:20:01.0", BRIDGE, 0),
    ("pci0000:20/0000:20:01.0/0000:22:00.0", NETWORK, 0),
    ("pci0000:20/0000:20:01.0/0000:22:00.1", NETWORK, 0),
    ("pci0000:40/0000:40:00.0", BRIDGE, 0),
    ("pci0000:40/0000:40:00.0/0000:41:00.0", SCSI, 0),
    ("pci0000:60/0000:60:00.0", BRIDGE, 1),
    ("pci0000:60/0000:60:00.0/0000:61:00.0", NVME, 1),
    ("pci0000:80/0000:80:00.0", BRIDGE, 1),
    ("pci0000:80/0000:80:00.0/0000:81:00.0", NETWORK, 1),
    ("pci0000:80/0000:80:01.0", BRIDGE, 1),
    ("pci0000:80/0000:80:01.0/0000:82:00.0", SCSI, 1),
    ("pci0000:a0/0000:a0:00.0", BRIDGE, -1),
    ("pci0000:a0/0000:a0:00.0/0000:a1:00.0", NETWORK, -1),
];
