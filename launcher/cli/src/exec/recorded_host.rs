//! A recorded host with two nodes, four GPUs and three network cards, for tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use hostbuf_topology::Topology;

/// A folder that is removed at the end.
struct Tree(PathBuf);

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Tree {
    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn link(&self, path: &str, to: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        symlink(Path::new("/").join(to), path).expect("a link");
    }

    /// Adds a PCI function on a root bus, at a node.
    fn function(&self, bus: &str, class: &str, node: i32) -> String {
        let below = format!("sys/devices/pci0000:{bus}/0000:{bus}:00.0");
        self.file(&format!("{below}/class"), class);
        self.file(&format!("{below}/vendor"), "0x10de\n");
        self.file(&format!("{below}/numa_node"), &node.to_string());
        self.link(&format!("sys/bus/pci/devices/0000:{bus}:00.0"), &below);
        below
    }

    fn card(&self, bus: &str, interface: &str, rdma: Option<&str>, state: &str, node: i32) {
        let below = self.function(bus, "0x020000", node);
        self.file(&format!("{below}/net/{interface}/operstate"), state);
        self.link(&format!("sys/class/net/{interface}"), &format!("{below}/net/{interface}"));
        if let Some(rdma) = rdma {
            self.file(&format!("{below}/infiniband/{rdma}/ports/1/state"), "4: ACTIVE\n");
            self.link(&format!("sys/class/infiniband/{rdma}"), &format!("{below}/infiniband/{rdma}"));
            self.file(&format!("sys/class/infiniband_verbs/uverbs_{rdma}/ibdev"), rdma);
        }
    }
}

/// Returns the topology. Node 0 has the CPUs 0 to 3, the GPUs 0 and 1 and two cards, of which one
/// has RDMA; node 1 has the CPUs 4 to 7, the GPUs 2 and 3 and a card; node 2 has memory only. The
/// node of `stray`, a fifth GPU, is that number.
pub(super) fn topology(name: &str, stray: Option<i32>) -> Topology {
    let folder = format!("hostbuf-near-{name}-{}", std::process::id());
    let tree = Tree(std::env::temp_dir().join(folder));
    tree.file("sys/devices/system/cpu/online", "0-7\n");
    for (node, cpus) in ["0-3", "4-7", ""].into_iter().enumerate() {
        let folder = format!("sys/devices/system/node/node{node}");
        tree.file(&format!("{folder}/cpulist"), cpus);
        tree.file(&format!("{folder}/distance"), ["10 21 17", "21 10 28", "17 28 10"][node]);
        tree.file(&format!("{folder}/meminfo"), &format!("Node {node} MemTotal: 1024 kB\n"));
    }
    let mut report = String::new();
    for (index, node) in [0, 0, 1, 1].into_iter().chain(stray).enumerate() {
        tree.function(&format!("{index}0"), "0x030200", node);
        report += &format!("gpu\t{index}\t0000:{index}0:00.0\tGPU-{index}\tH200\t\n");
    }
    tree.file("hostbuf/nvml", &report);
    tree.card("a0", "eth0", None, "up", 0);
    tree.card("a1", "ib0", Some("mlx5_0"), "up", 0);
    tree.card("b0", "eth1", None, "up", 1);
    Topology::recorded(&tree.0).expect("it has a folder sys")
}
