//! Tests of topologies of made trees.

use crate::discovery::{lacks_nodes_of_gpus, recorded_tree};
use crate::memory_tree::MemoryTree;
use crate::tree::TreeReader;
use crate::{CpuSet, CudaVariables, DeviceIndex, DeviceKind, NodeId, PathType, Topology};

const SWITCH: &str = "pci0000:00/0000:00:01.0/0000:01:00.0";

/// Adds a PCI function with its entry in the list of functions.
fn function(tree: MemoryTree, below: &str, class: &str, vendor: &str, node: i32) -> MemoryTree {
    let name = below.rsplit('/').next().unwrap();
    tree.file(&format!("sys/devices/{below}/class"), &format!("{class}\n"))
        .file(&format!("sys/devices/{below}/vendor"), &format!("{vendor}\n"))
        .file(&format!("sys/devices/{below}/numa_node"), &format!("{node}\n"))
        .link(&format!("sys/bus/pci/devices/{name}"), &format!("../../../devices/{below}"))
}

fn gpu(tree: MemoryTree, below: &str, node: i32) -> MemoryTree {
    function(tree, below, "0x030200", "0x10de", node)
}

fn nic(tree: MemoryTree, below: &str, name: &str, state: &str, node: i32) -> MemoryTree {
    function(tree, below, "0x020000", "0x15b3", node)
        .file(&format!("sys/devices/{below}/net/{name}/operstate"), state)
        .link(&format!("sys/class/net/{name}"), &format!("../../devices/{below}/net/{name}"))
}

/// Adds an RDMA device to a function that is already there.
fn rdma(tree: MemoryTree, below: &str, name: &str, state: &str, verbs: &str) -> MemoryTree {
    tree.file(&format!("sys/devices/{below}/infiniband/{name}/ports/1/state"), state)
        .link(&format!("sys/class/infiniband/{name}"), &format!("../../devices/{below}/infiniband/{name}"))
        .file(&format!("sys/class/infiniband_verbs/{verbs}/ibdev"), &format!("{name}\n"))
}

fn drive(tree: MemoryTree, below: &str, name: &str) -> MemoryTree {
    tree.file(&format!("sys/devices/{below}/{name}/size"), "2048\n")
        .link(&format!("sys/class/block/{name}"), &format!("../../devices/{below}/{name}"))
}

fn two_nodes() -> MemoryTree {
    let mut tree = MemoryTree::new().file("sys/devices/system/cpu/online", "0-7\n");
    for (node, cpus, distance) in [(0, "0-3", "10 21"), (1, "4-7", "21 10")] {
        let folder = format!("sys/devices/system/node/node{node}");
        tree = tree
            .file(&format!("{folder}/cpulist"), cpus)
            .file(&format!("{folder}/distance"), distance)
            .file(&format!("{folder}/meminfo"), &format!("Node {node} MemTotal: 1024 kB\n"));
    }
    tree
}

/// Returns a host with a device at each type of path from the first GPU.
fn host() -> MemoryTree {
    let tree = gpu(two_nodes(), &format!("{SWITCH}/0000:02:00.0/0000:03:00.0"), 0);
    let tree = nic(tree, &format!("{SWITCH}/0000:02:01.0/0000:04:00.0"), "eth0", "up", 0);
    let below = format!("{SWITCH}/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0");
    let tree = nic(tree, &below, "eth1", "up", 0);
    let tree = nic(tree, "pci0000:00/0000:00:02.0/0000:08:00.0", "eth2", "up", 0);
    let tree = nic(tree, "pci0000:40/0000:40:00.0/0000:41:00.0", "eth3", "up", 0);
    let tree = nic(tree, "pci0000:80/0000:80:00.0/0000:81:00.0", "eth4", "up", 1);
    let tree = nic(tree, "pci0000:c0/0000:c0:00.0/0000:c1:00.0", "eth5", "up", -1);
    gpu(tree, "pci0000:80/0000:80:01.0/0000:82:00.0", 1).file(
        "hostbuf/nvml",
        "gpu\t0\t00000000:03:00.0\tGPU-a\tH100\t\ngpu\t1\t0000:82:00.0\tGPU-b\tH100\t1\n",
    )
}

fn index(topology: &Topology, name: &str) -> DeviceIndex {
    topology.find(name).unwrap_or_else(|| panic!("no {name} in {topology:#?}")).index()
}

fn path(topology: &Topology, a: &str, b: &str) -> String {
    let (a, b) = (index(topology, a), index(topology, b));
    assert_eq!(topology.path(a, b), topology.path(b, a));
    topology.path(a, b).to_string()
}

fn names(topology: &Topology, indices: &[DeviceIndex]) -> String {
    indices.iter().map(|&index| topology.device(index).name()).collect::<Vec<_>>().join(" ")
}

#[test]
fn paths_follow_from_the_pci_tree_and_the_nodes() {
    let topology = recorded_tree(&host());
    let names = ["GPU0", "eth0", "eth1", "eth2", "eth3", "eth4", "eth5"];
    let paths = names.map(|name| path(&topology, "GPU0", name));
    assert_eq!(paths, ["X", "PIX", "PXB", "PHB", "NODE", "SYS", "SYS?"]);
    assert_eq!(path(&topology, "GPU0", "GPU1"), "SYS");
    let linked = recorded_tree(&host().file(
        "hostbuf/nvml",
        "gpu\t0\t0000:03:00.0\tGPU-a\tH100\t\ngpu\t1\t0000:82:00.0\tGPU-b\tH100\t\nnvlink\t1\t0\t18\n",
    ));
    assert_eq!(path(&linked, "GPU-a", "GPU-b"), "NV18");
    let (a, b) = (index(&linked, "GPU0"), index(&linked, "GPU1"));
    assert_eq!(linked.pci_path(a, b).path_type, PathType::Sys);
    assert_eq!(linked.path_to_node(b, NodeId(1)).path_type, PathType::Node);
    assert_eq!(linked.path_to_node(b, NodeId(0)).path_type, PathType::Sys);
}

#[test]
fn devices_have_their_addresses_parents_and_nodes() {
    let topology = recorded_tree(&host());
    let gpu = topology.device(index(&topology, "0000:03:00.0"));
    assert_eq!((gpu.name(), gpu.uuid(), gpu.model()), ("GPU0", Some("GPU-a"), Some("H100")));
    assert_eq!((gpu.kind(), gpu.node(), gpu.node_is_assumed()), (DeviceKind::Gpu, Some(NodeId(0)), false));
    let parents: Vec<String> = gpu.pci_parents().iter().map(ToString::to_string).collect();
    assert_eq!(parents, ["0000:00:01.0", "0000:01:00.0", "0000:02:00.0"]);
    let unknown = topology.device(index(&topology, "eth5"));
    assert_eq!((unknown.node(), unknown.node_is_assumed()), (None, true));
    let [assumption] = topology.assumptions() else { panic!("{:?}", topology.assumptions()) };
    assert_eq!(assumption.subject(), "eth5");
    assert!(assumption.to_string().contains("far from all nodes: update the firmware"), "{assumption}");
}

#[test]
fn a_node_of_minus_one_is_that_of_nvml_or_of_the_local_cpus() {
    let tree = gpu(two_nodes(), "pci0000:00/0000:00:05.0", -1)
        .file("hostbuf/nvml", "gpu\t0\t0000:00:05.0\tGPU-a\tH100\t1\n");
    let tree = nic(tree, "pci0000:00/0000:00:06.0", "eth0", "up", -1)
        .file("sys/devices/pci0000:00/0000:00:06.0/local_cpulist", "4-7\n");
    let tree = nic(tree, "pci0000:00/0000:00:07.0", "eth1", "up", -1)
        .file("sys/devices/pci0000:00/0000:00:07.0/local_cpulist", "0-7\n");
    let topology = recorded_tree(&tree);
    let node = |name: &str| topology.device(index(&topology, name)).node().map(|node| node.0);
    assert_eq!(["GPU0", "eth0", "eth1"].map(node), [Some(1), Some(1), None]);
    // The path within a root bus needs no node.
    assert_eq!(path(&topology, "eth0", "eth1"), "PHB");
}

#[test]
fn a_node_that_does_not_exist_is_unknown() {
    let gpu_9 = || gpu(two_nodes(), "pci0000:00/0000:00:05.0", 9);
    let report = |nodes: &str| format!("gpu\t0\t0000:00:05.0\tGPU-a\tH100\t{nodes}\n");
    let found = |tree: &MemoryTree| {
        let topology = recorded_tree(tree);
        let device = topology.device(index(&topology, "0000:00:05.0"));
        let lines = topology.assumptions().iter().map(ToString::to_string);
        let said: Vec<String> = lines.filter(|line| !line.starts_with("NVML")).collect();
        (device.node().map(|node| node.0), device.node_is_assumed(), said.join("; "))
    };
    let (node, assumed, said) = found(&gpu_9());
    assert_eq!((node, assumed), (None, true));
    assert!(said.starts_with("0000:00:05.0: its NUMA node 9 does not exist, so the device"), "{said}");
    // The other sources are the same as for -1, and NVML may be wrong, too.
    assert_eq!(found(&gpu_9().file("hostbuf/nvml", &report("1"))), (Some(1), false, String::new()));
    assert_eq!(found(&gpu_9().file("hostbuf/nvml", &report("7"))).0, None);
    let local = gpu_9().file("sys/devices/pci0000:00/0000:00:05.0/local_cpulist", "4-7\n");
    assert_eq!(found(&local), (Some(1), false, String::new()));
    let below_bridge = gpu(two_nodes(), "pci0000:00/0000:00:04.0/0000:00:05.0", 9)
        .file("sys/devices/pci0000:00/0000:00:04.0/numa_node", "1\n");
    assert_eq!(found(&below_bridge), (Some(1), false, String::new()));
    // A container may show the device and no nodes.
    let without_nodes = MemoryTree::new().file("sys/devices/system/cpu/online", "0-3\n");
    let (node, assumed, said) = found(&gpu(without_nodes, "pci0000:00/0000:00:05.0", 1));
    assert_eq!((node, assumed), (Some(0), true));
    assert!(said.contains("its NUMA node 1 does not exist, so the only node is assumed, node 0"), "{said}");
    // On a host with other nodes, NVML is asked.
    let driven = gpu_9().file("proc/driver/nvidia/gpus/0000:00:05.0/information", "");
    assert!(lacks_nodes_of_gpus(&TreeReader::new(&driven)));
}

#[test]
fn nvml_is_asked_for_the_nodes_of_gpus_that_the_kernel_does_not_state() {
    let lacks = |tree: MemoryTree| lacks_nodes_of_gpus(&TreeReader::new(&tree));
    let driven = |tree: MemoryTree| tree.file("proc/driver/nvidia/gpus/0000:00:05.0/information", "");
    let below = "pci0000:00/0000:00:05.0";
    assert!(lacks(driven(gpu(two_nodes(), below, -1))));
    // A container may hide the function.
    assert!(lacks(driven(two_nodes())));
    assert!(!lacks(driven(gpu(two_nodes(), below, 1))));
    assert!(!lacks(gpu(two_nodes(), below, -1)));
    let one_node = MemoryTree::new().file("sys/devices/system/node/node0/cpulist", "0-3\n");
    assert!(!lacks(driven(gpu(one_node, below, -1))));
}

#[test]
fn on_a_host_with_one_node_it_is_assumed() {
    let tree = MemoryTree::new().file("sys/devices/system/cpu/online", "0-3\n");
    let tree = nic(tree, "pci0000:00/0000:00:05.0/virtio0", "eth0", "up", -1);
    let tree = nic(tree, "pci0000:80/0000:80:05.0", "eth1", "up", -1);
    let topology = recorded_tree(&tree);
    assert_eq!(path(&topology, "eth0", "eth1"), "NODE?");
    let eth0 = topology.device(index(&topology, "eth0"));
    assert_eq!((eth0.node(), eth0.node_is_assumed()), (Some(NodeId(0)), true));
    assert_eq!(eth0.pci_address().unwrap().to_string(), "0000:00:05.0");
    let subjects: Vec<&str> = topology.assumptions().iter().map(crate::Assumption::subject).collect();
    assert_eq!(subjects, ["nodes", "eth0, eth1"]);
}

#[test]
fn nodes_without_cpus_and_memory_are_not_near_a_device() {
    // Grace has such nodes for MIG devices.
    let node = |tree: MemoryTree, id: u32, cpus: &str, size: u64| {
        let folder = format!("sys/devices/system/node/node{id}");
        tree.file(&format!("{folder}/cpulist"), cpus)
            .file(&format!("{folder}/meminfo"), &format!("Node {id} MemTotal: {size} kB\n"))
    };
    let one = || nic(node(MemoryTree::new(), 0, "0-3", 8), "pci0000:00/0000:00:05.0", "eth0", "up", -1);
    let near = |tree: MemoryTree| {
        let topology = recorded_tree(&tree);
        topology.device(index(&topology, "eth0")).node().map(|node| node.0)
    };
    assert_eq!(near(node(node(one(), 1, "", 0), 2, "", 0)), Some(0));
    assert_eq!(near(node(one(), 1, "", 8)), None);
    assert_eq!(near(node(one(), 1, "4-5", 0)), None);
}

#[test]
fn virtual_devices_are_none() {
    let tree = two_nodes()
        .file("sys/devices/virtual/net/lo/operstate", "unknown")
        .link("sys/class/net/lo", "../../devices/virtual/net/lo")
        .file("sys/class/net/bonding_masters", "");
    let tree = drive(tree, "virtual/block", "loop0");
    assert_eq!(recorded_tree(&tree).devices(), []);
}

#[test]
fn the_nearest_card_is_one_that_works() {
    let near = format!("{SWITCH}/0000:02:01.0/0000:04:00.0");
    let tree = rdma(host(), &near, "mlx5_0", "1: DOWN\n", "uverbs0");
    let topology = recorded_tree(&tree);
    let nearest = topology.nearest(index(&topology, "GPU0"), DeviceKind::Nic);
    assert_eq!(names(&topology, &nearest), "eth1");
    let card = topology.device(index(&topology, "eth0"));
    assert_eq!((card.name(), card.is_usable()), ("mlx5_0", false));
    assert_eq!(
        (card.interfaces(), card.verbs_nodes()),
        (&["eth0".to_owned()][..], &["uverbs0".to_owned()][..])
    );
    let topology = recorded_tree(&rdma(host(), &near, "mlx5_0", "4: ACTIVE\n", "uverbs0"));
    let nearest = topology.nearest(index(&topology, "GPU0"), DeviceKind::Nic);
    assert_eq!(names(&topology, &nearest), "mlx5_0");
    // Without its verbs node no program can open an RDMA device.
    let topology = recorded_tree(&rdma(host(), &near, "mlx5_0", "4: ACTIVE\n", "other/x"));
    assert!(!topology.device(index(&topology, "mlx5_0")).is_usable());
    // Equally close cards come in their order, and cards that are down only if none is up.
    let tree = nic(two_nodes(), "pci0000:00/0000:00:05.0", "eth1", "down", 0);
    let tree = nic(tree, "pci0000:00/0000:00:06.0", "eth0", "down", 0);
    let topology = recorded_tree(&gpu(tree, "pci0000:00/0000:00:07.0", 0));
    let nearest = topology.nearest(index(&topology, "0000:00:07.0"), DeviceKind::Nic);
    assert_eq!(names(&topology, &nearest), "eth1 eth0");
    assert_eq!(topology.nearest(index(&topology, "eth0"), DeviceKind::Storage), []);
}

#[test]
fn cpus_have_a_node_and_near_devices() {
    let topology = recorded_tree(&host());
    let set = |list: &str| list.parse::<CpuSet>().unwrap();
    assert_eq!(topology.cpus(), set("0-7"));
    assert_eq!(topology.node_of(&set("1,3")), Some(NodeId(0)));
    assert_eq!((topology.node_of(&set("3-4")), topology.node_of(&set(""))), (None, None));
    assert_eq!(topology.node_of(&set("900")), None);
    assert_eq!(topology.nodes_of(&set("3-4")), [NodeId(0), NodeId(1)]);
    let nearest = |list: &str, kind| names(&topology, &topology.nearest_to_cpus(&set(list), kind));
    assert_eq!(nearest("0", DeviceKind::Gpu), "GPU0");
    assert_eq!(nearest("5-6", DeviceKind::Gpu), "GPU1");
    assert_eq!(nearest("3-4", DeviceKind::Gpu), "GPU0 GPU1");
    assert_eq!(nearest("4", DeviceKind::Nic), "eth4");
    assert_eq!(nearest("0", DeviceKind::Storage), "");
    // CPUs of no node are equally far from all devices.
    assert_eq!(nearest("900", DeviceKind::Gpu), "GPU0 GPU1");
    let visible = |list: &str, variables: CudaVariables| {
        let gpus = topology.nearest_visible_to_cpus(&set(list), &variables);
        names(&topology, &gpus.iter().map(|gpu| gpu.device).collect::<Vec<_>>())
    };
    let shows = |list: &str| CudaVariables::new().visible_devices(list);
    assert_eq!(visible("0", CudaVariables::new()), "GPU0");
    assert_eq!(visible("0", shows("GPU-b")), "GPU1");
    assert_eq!(visible("0,5", shows("GPU-b,GPU-a")), "GPU1 GPU0");
    assert_eq!(visible("0", shows("")), "");
}

#[test]
fn gpus_are_told_from_display_controllers() {
    let tree = function(two_nodes(), "pci0000:00/0000:00:01.0", "0x030000", "0x1a03", 0)
        .file("sys/devices/pci0000:00/0000:00:01.0/drm/card0/dev", "226:0");
    let tree = function(tree, "pci0000:00/0000:00:02.0", "0x120000", "0x1002", 0)
        .file("sys/devices/pci0000:00/0000:00:02.0/drm/renderD128/dev", "226:128")
        .file("sys/devices/pci0000:00/0000:00:02.0/drm/card1/dev", "226:1");
    let tree = function(tree, "pci0000:00/0000:00:03.0", "0x120000", "0x8086", 0);
    let topology = recorded_tree(&gpu(tree, "pci0000:00/0000:00:04.0", 0));
    let kinds: Vec<_> = topology.devices().iter().map(|device| (device.name(), device.kind())).collect();
    assert_eq!(
        kinds,
        [("card1", DeviceKind::Gpu), ("0000:00:04.0", DeviceKind::Gpu), ("card0", DeviceKind::Display)]
    );
    let reason = topology.assumptions()[0].to_string();
    assert!(reason.starts_with("NVML: the tree has no record of it"), "{reason}");
    // NVML reports the GPUs that a container may use, also if its /sys is hidden.
    let tree = gpu(two_nodes(), "pci0000:00/0000:00:04.0", 0)
        .file("hostbuf/nvml", "gpu\t0\t0000:99:00.0\tGPU-a\tH100\t\n");
    let topology = recorded_tree(&tree);
    let (hidden, unreported) = (topology.find("GPU-a").unwrap(), topology.find("0000:00:04.0").unwrap());
    assert!(hidden.is_usable() && hidden.node().is_none() && !unreported.is_usable());
    assert_eq!(path(&topology, "GPU-a", "0000:00:04.0"), "SYS?");
}

#[test]
fn block_devices_lead_to_their_drives() {
    let tree = function(two_nodes(), "pci0000:00/0000:00:05.0", "0x010802", "0x144d", 1);
    let tree = drive(tree, "pci0000:00/0000:00:05.0/nvme/nvme0", "nvme0n1");
    let tree = drive(tree, "pci0000:00/0000:00:06.0/ata1/host0/target0:0:0/0:0:0:0/block", "sda")
        .file("sys/devices/pci0000:00/0000:00:05.0/nvme/nvme0/nvme0n1/nvme0n1p1/partition", "1\n")
        .link(
            "sys/class/block/nvme0n1p1",
            "../../devices/pci0000:00/0000:00:05.0/nvme/nvme0/nvme0n1/nvme0n1p1",
        )
        .file("sys/devices/virtual/block/md0/slaves/nvme0n1p1/x", "")
        .file("sys/devices/virtual/block/md0/slaves/sda/x", "")
        .link("sys/class/block/md0", "../../devices/virtual/block/md0")
        .file("sys/devices/virtual/block/dm-0/slaves/md0/x", "")
        .file("sys/devices/virtual/block/dm-0/dm/name", "vg-scratch\n")
        .link("sys/class/block/dm-0", "../../devices/virtual/block/dm-0")
        // A loop, which no kernel has.
        .file("sys/devices/virtual/block/md1/slaves/md1/x", "")
        .link("sys/class/block/md1", "../../devices/virtual/block/md1");
    // A drive that could have several controllers.
    let subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys1";
    let tree = drive(tree, "virtual/nvme-subsystem/nvme-subsys1", "nvme1n1")
        .link(&format!("{subsystem}/nvme1"), "../../../pci0000:00/0000:00:07.0/nvme/nvme1")
        .file("sys/devices/pci0000:00/0000:00:07.0/nvme/nvme1/nvme1c1n1/hidden", "1\n")
        .link("sys/class/block/nvme1c1n1", "../../devices/pci0000:00/0000:00:07.0/nvme/nvme1/nvme1c1n1");
    let topology = recorded_tree(&tree);
    let found: Vec<_> = topology
        .devices()
        .iter()
        .map(|drive| (drive.name(), drive.pci_address().unwrap().to_string()))
        .collect();
    let address = |device: u32| format!("0000:00:0{device}.0");
    assert_eq!(found, [("nvme0n1", address(5)), ("sda", address(6)), ("nvme1n1", address(7))]);
    assert!(topology.devices().iter().all(crate::IoDevice::is_usable));
    for (name, drives) in [
        ("nvme0n1", "nvme0n1"),
        ("nvme0n1p1", "nvme0n1"),
        ("dm-0", "nvme0n1 sda"),
        ("vg-scratch", "nvme0n1 sda"),
        ("md1", ""),
        ("absent", ""),
    ] {
        assert_eq!(names(&topology, &topology.drives_of(name)), drives, "{name}");
    }
}

#[test]
fn garbage_gives_a_topology() {
    let tree = MemoryTree::new()
        .file("sys/bus/pci/devices/0000:00:00.0", "a file")
        .link("sys/bus/pci/devices/0000:00:01.0", "0000:00:01.0")
        .file("sys/bus/pci/devices/0000:00:02.0/class", "0x03")
        .file("sys/bus/pci/devices/0000:00:03.0/class", "0x030000")
        .file("sys/bus/pci/devices/0000:00:03.0/vendor", "0xfffff10de")
        .file("sys/bus/pci/devices/nonsense/class", "0x030000")
        .link("sys/class/net/eth0", "/")
        .link("sys/class/infiniband/mlx5_0", "../../..")
        .file("sys/class/block", "no folder")
        .file("proc/meminfo", "\u{0}\u{1}")
        .file("hostbuf/nvml", "gpu\t0\tno address\nnvlink\t0\t1\t2\n");
    let topology = recorded_tree(&tree);
    assert_eq!(topology.nodes().len(), 1);
    for a in topology.devices() {
        for b in topology.devices() {
            assert!(topology.path(a.index(), b.index()) == topology.path(b.index(), a.index()));
        }
    }
    assert!(topology.find("0000:00:03.0").is_some_and(|device| device.kind() == DeviceKind::Display));
}

#[test]
fn this_host_answers() {
    let topology = Topology::discover();
    assert!(topology.nodes().iter().any(|node| node.has_cpus() && node.has_memory()));
    assert!(CpuSet::of_this_thread().is_subset(&topology.cpus()));
    let allowed = hostbuf_os::mempolicy::allowed_nodes().unwrap_or_default();
    assert!(topology.nodes().iter().any(|node| node.has_memory() && allowed.contains(&node.id())));
    assert_eq!(Topology::discover_without_nvml().nodes().len(), topology.nodes().len());
    let for_rank = Topology::discover_for_rank(&CudaVariables::new());
    let names = |topology: &Topology| {
        let cards = topology.devices_of(DeviceKind::Nic);
        cards.map(|card| card.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((for_rank.nodes().len(), names(&for_rank)), (topology.nodes().len(), names(&topology)));
    assert_eq!(for_rank.visible(&CudaVariables::new()).gpus.len(), {
        let reported = topology.devices_of(DeviceKind::Gpu).filter(|gpu| gpu.nvml_index().is_some());
        reported.count()
    });
    assert_eq!(for_rank.devices_of(DeviceKind::Storage).count(), 0);
    let without_gpus = Topology::discover_for_rank(&CudaVariables::new().visible_devices(""));
    assert_eq!(without_gpus.devices_of(DeviceKind::Gpu).count(), 0);
}
