//! The topology of recorded trees and of this host, compared with hwloc's `lstopo`, and the command
//! that prints it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hostbuf_programs::lstopo;
use hostbuf_tests::{CommandOutput, Scratch, fixture, have, hostbuf, program, root};
use hostbuf_topology::{NodeId, Topology};
use serde_json::Value;

/// Two sockets, InfiniBand, NVMe, persistent memory.
const TWO_SOCKETS: &str = "32em64t-2n8c+dax+nvme+mic+dimms";

/// Returns true if the recorded trees can be unpacked here.
fn can_unpack() -> bool {
    have("tar") && have("bzip2")
}

/// Unpacks a recorded tree, and returns the folder that contains `sys`.
fn unpack(name: &str, scratch: &Scratch) -> PathBuf {
    let archive = root().join(format!("tests/fixtures/topology/{name}.tar.bz2"));
    let folder = scratch.0.join(name);
    fs::create_dir(&folder).expect("a new folder");
    CommandOutput::of(Command::new("tar").arg("xjf").arg(&archive).arg("-C").arg(&folder)).ok();
    let mut entries = fs::read_dir(&folder).expect("readable");
    entries.next().expect("an archive has one folder").expect("readable").path()
}

fn topology_command(arguments: &[&str], folder: Option<(&str, &Path)>) -> CommandOutput {
    let mut command = Command::new(hostbuf());
    command.arg("topology").args(arguments);
    if let Some((option, folder)) = folder {
        command.arg(option).arg(folder);
    }
    CommandOutput::of(&mut command)
}

fn json(output: &CommandOutput) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout))
}

/// Compares the topology of a recorded tree with that of `lstopo`.
fn compare_with_lstopo(name: &str) {
    if !can_unpack() || !have(lstopo::LSTOPO) {
        return;
    }
    let scratch = Scratch::new(&format!("topology-lstopo-{name}"));
    let tree = unpack(name, &scratch);
    let topology = Topology::recorded(&tree).expect("a tree");
    let xml = lstopo::xml(&tree).expect("lstopo reads it");
    assert_eq!(lstopo::compare(&topology, &xml).expect("XML"), Vec::<String>::new());
}

/// Declares a test for each tree, since unpacking a tree makes thousands of files.
macro_rules! recorded_trees {
    ($($test:ident: $name:expr,)*) => {
        const RECORDED_TREES: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $test() {
                compare_with_lstopo($name);
            }
        )*
    };
}

recorded_trees! {
    two_sockets_are_read_as_lstopo_reads_them: TWO_SOCKETS,
    four_nodes_in_two_groups_are_read_as_lstopo_reads_them: "40intel64-2g2n4c+pcilocality",
    made_pci_localities_are_read_as_lstopo_reads_them: "fakepcilocalities",
    sparse_nodes_are_read_as_lstopo_reads_them: "48amd64-4pa2n6c-sparse",
    memory_of_gpus_is_read_as_lstopo_reads_it: "nvidiagpunumanodes",
    memory_without_cpus_is_read_as_lstopo_reads_it: "fakememinitiators-1np2c+1npp+gi",
    offline_cpus_are_read_as_lstopo_reads_them: "offline-cpu0-node0",
    a_virtual_machine_is_read_as_lstopo_reads_it: "2pa-pcidomain32bits",
    a_grace_blackwell_host_is_read_as_lstopo_reads_it: "nvidia-dgx-gb10",
    an_arm_host_is_read_as_lstopo_reads_it: "128arm-2pa2n8cluster4co",
}

#[test]
fn each_recorded_tree_has_a_test() {
    let entries = fs::read_dir(root().join("tests/fixtures/topology")).expect("the folder exists");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"));
    let mut names: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".tar.bz2").map(str::to_owned)).collect();
    let mut tested = RECORDED_TREES.to_vec();
    names.sort_unstable();
    tested.sort_unstable();
    assert_eq!(names, tested);
}

#[test]
fn this_host_is_read_as_lstopo_reads_it() {
    if !have(lstopo::LSTOPO) {
        return;
    }
    let output = CommandOutput::of(&mut Command::new(program("topology_like_lstopo"))).ok();
    assert_eq!(output.stdout, "");
}

#[test]
fn the_comparison_finds_differences() {
    if !can_unpack() || !have(lstopo::LSTOPO) {
        return;
    }
    let scratch = Scratch::new("topology-differences");
    let tree = unpack(TWO_SOCKETS, &scratch);
    let topology = Topology::recorded(&tree).expect("a tree");
    let xml = lstopo::xml(&tree).expect("lstopo reads it");
    for (text, other, expected) in [
        ("os_index=\"1\" cpuset=\"0x0000ff00\"", "os_index=\"1\" cpuset=\"0x00007f00\"", "node 1: CPUs"),
        ("local_memory=\"17179869184\"", "local_memory=\"17179869185\"", "node 1: memory"),
        (">10 21 21 10 ", ">10 21 22 10 ", "node 1: distances"),
        ("name=\"mlx4_0\"", "name=\"mlx4_1\"", "devices"),
        ("pci_busid=\"0000:00:01.1\"", "pci_busid=\"0000:00:01.0\"", "eth0: PCI parents"),
        ("pci_busid=\"0000:82:00.0\"", "pci_busid=\"0000:82:00.1\"", "ib0: PCI address"),
        ("pci_type=\"0300 ", "pci_type=\"0200 ", "number of display controllers"),
    ] {
        assert!(xml.contains(text), "{text}");
        let differences = lstopo::compare(&topology, &xml.replace(text, other)).expect("XML");
        assert!(
            differences.iter().any(|difference| difference.starts_with(expected)),
            "{expected}: {differences:?}"
        );
    }
}

#[test]
fn the_command_prints_a_recorded_tree() {
    if !can_unpack() {
        return;
    }
    let scratch = Scratch::new("topology-command");
    let tree = unpack(TWO_SOCKETS, &scratch);
    let text = topology_command(&[], Some(("--root", &tree))).ok().stdout;
    let lines: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "1 8-15 16 GiB 13.1 GiB - 21 10",
        "0 0-7 16 GiB 15.1 GiB - 10 21",
        "mlx4_0 nic 0000:82:00.0 1 down ib0",
        "eth0 eth1 mlx4_0",
        "eth0 X PIX SYS",
        "nvme0n1 PHB PHB SYS",
        "pmem1 SYS SYS NODE",
        "Paths between drives: hostbuf topology --json",
    ] {
        assert!(lines.iter().any(|found| found == line), "{line}: {text}");
    }
    let json = json(&topology_command(&["--json"], Some(("--root", &tree))).ok());
    assert_eq!(json["nodes"][1]["cpus"], "8-15");
    assert_eq!(json["nodes"][0]["distances"][1]["distance"], 21);
    let devices = json["devices"].as_array().expect("a list");
    let nvme = devices.iter().find(|device| device["name"] == "nvme0n1").expect("the drive");
    assert_eq!(
        (&nvme["kind"], &nvme["node"], &nvme["node_assumed"]),
        (&"storage".into(), &0.into(), &false.into())
    );
    assert_eq!(json["paths"].as_array().expect("a list").len(), devices.len() * (devices.len() - 1) / 2);
    let is_pair = |path: &&Value| path["from"] == "eth0" && path["to"] == "nvme0n1";
    let path = json["paths"].as_array().expect("a list").iter().find(is_pair).expect("the pair");
    assert_eq!((&path["type"], &path["assumed"]), (&"PHB".into(), &false.into()));
    // The drives have no columns in the text.
    let is_pair = |path: &&Value| path["from"] == "pmem1" && path["to"] == "nvme0n1";
    let path = json["paths"].as_array().expect("a list").iter().find(is_pair).expect("the drives");
    assert_eq!(path["type"], "SYS");
}

#[test]
fn a_recorded_host_is_the_host() {
    let scratch = Scratch::new("topology-record");
    let folder = scratch.0.join("tree");
    let without_host = |output: CommandOutput| {
        let mut json = json(&output);
        for key in ["host", "allowed_cpus", "allowed_nodes"] {
            json[key].take();
        }
        // A recorded tree has no remedies.
        for assumption in json["assumptions"].as_array_mut().expect("a list") {
            assumption["remedy"].take();
        }
        json
    };
    let output = topology_command(&["--json"], Some(("--record", &folder))).ok();
    let said = format!("recorded the files of this topology in {}: ", folder.display());
    assert!(output.stderr.lines().count() == 1 && output.stderr.contains(&said), "{output:?}");
    let recorded = without_host(output);
    assert_eq!(without_host(topology_command(&["--json"], Some(("--root", &folder))).ok()), recorded);
    let again = topology_command(&[], Some(("--record", &folder)));
    assert_eq!(again.status, 2);
    assert!(
        again.stderr.contains("already contains a folder sys: name a new or empty folder"),
        "{}",
        again.stderr
    );
    let none = topology_command(&[], Some(("--root", &scratch.0)));
    assert_eq!((none.status, none.stderr.lines().count()), (2, 1));
    assert!(
        none.stderr.contains("contains no recorded topology, since it has no folder sys"),
        "{}",
        none.stderr
    );
}

#[test]
fn the_performance_that_the_firmware_states_is_printed() {
    if !can_unpack() {
        return;
    }
    let scratch = Scratch::new("topology-performance");
    let tree = unpack("fakememinitiators-1np2c+1npp+gi", &scratch);
    let text = topology_command(&[], Some(("--root", &tree))).ok().stdout;
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("  memory of node ")).collect();
    assert_eq!(lines.len(), 6, "{text}");
    let two = "  memory of node 10 from nodes 1 and 3: read 78644 MiB/s, 77 ns; write 78644 MiB/s, 77 ns";
    assert_eq!(lines[5], two);
}

#[test]
fn a_recorded_tree_has_no_remedies_of_this_host() {
    if !can_unpack() {
        return;
    }
    let scratch = Scratch::new("topology-remedies");
    // Its devices have no nodes although it has four.
    let tree = unpack("40intel64-2g2n4c+pcilocality", &scratch);
    let text = topology_command(&[], Some(("--root", &tree))).ok().stdout;
    assert!(text.contains("assumed to be far from all nodes") && !text.contains("->"), "{text}");
    let json = json(&topology_command(&["--json"], Some(("--root", &tree))).ok());
    let assumptions = json["assumptions"].as_array().expect("a list");
    assert!(!assumptions.is_empty() && assumptions.iter().all(|found| found["remedy"].is_null()), "{json}");
}

#[test]
fn a_container_without_sys_has_one_assumed_node() {
    if !have("bwrap") {
        return;
    }
    let mut command = Command::new("bwrap");
    command.args(["--dev-bind", "/", "/", "--tmpfs", "/sys"]).arg(hostbuf()).args(["topology", "--json"]);
    let inside = json(&CommandOutput::of(&mut command).ok());
    let host = Topology::discover_without_nvml();
    assert_eq!((&inside["nodes"][0]["assumed"], &inside["nodes"][1]), (&true.into(), &Value::Null));
    assert_eq!(inside["nodes"][0]["cpus"], host.cpus().to_string());
    assert!(inside["nodes"][0]["memory_bytes"].as_u64() > Some(0));
    let remedy = inside["assumptions"][0]["remedy"].as_str().expect("a remedy");
    assert!(remedy.starts_with("mount /sys in the container"), "{remedy}");
}

#[test]
fn gpus_and_their_links_are_those_of_the_management_library() {
    let library = fixture("cc", "fake_nvml.c", &["-shared", "-fPIC"]).expect("a C compiler built this crate");
    let scratch = Scratch::new("topology-nvml");
    std::os::unix::fs::symlink(&library, scratch.0.join("libnvidia-ml.so.1")).expect("a new link");
    let tree = scratch.0.join("tree");
    let mut command = Command::new(hostbuf());
    command.args(["topology", "--json", "--record"]).arg(&tree).env("LD_LIBRARY_PATH", &scratch.0);
    let found = json(&CommandOutput::of(&mut command).ok());
    let is_fake = |device: &&Value| device["model"] == "Fake GPU";
    let gpus: Vec<&Value> = found["devices"].as_array().expect("a list").iter().filter(is_fake).collect();
    let list = |key: &str| gpus.iter().map(|gpu| gpu[key].to_string()).collect::<Vec<_>>().join(" ");
    assert_eq!(list("name"), r#""GPU0" "GPU1" "GPU2" "GPU3""#);
    assert_eq!(list("uuid"), r#""GPU-fake-0" "GPU-fake-1" "GPU-fake-2" "GPU-fake-3""#);
    assert_eq!(list("pci_address"), r#""0000:f0:00.0" "0000:f1:00.0" "0000:f2:00.0" "0000:f3:00.0""#);
    assert_eq!(list("mig_uuids"), r#"["MIG-fake-0","MIG-fake-1"] [] [] []"#);
    assert_eq!((&gpus[2]["node"], &gpus[2]["node_assumed"]), (&0.into(), &false.into()));
    // Two nodes do not state which one is near.
    assert_eq!(gpus[3]["node_assumed"], true);
    let links = |path: &Value| match path["nvlinks"].as_u64() {
        Some(count) => format!("{}-{} {}{count}", path["from"], path["to"], path["type"]).replace('"', ""),
        None => String::new(),
    };
    let mut links: Vec<String> = found["paths"].as_array().expect("a list").iter().map(links).collect();
    links.retain(|link| !link.is_empty());
    assert_eq!(links, ["GPU0-GPU1 NV4", "GPU2-GPU3 NV2"]);
    // The record has the library's answers.
    let recorded = json(&topology_command(&["--json"], Some(("--root", &tree))).ok());
    assert_eq!((&recorded["devices"], &recorded["paths"]), (&found["devices"], &found["paths"]));
}

#[test]
fn a_host_in_a_tree_without_links_or_numbers_answers() {
    let scratch = Scratch::new("topology-hostile");
    let tree = scratch.0.join("tree");
    let nodes = tree.join("sys/devices/system/node/node0");
    fs::create_dir_all(&nodes).expect("a new folder");
    fs::create_dir_all(tree.join("sys/class/net")).expect("a new folder");
    // A link out of the tree leads nowhere, a FIFO is not opened, and a device without an end is
    // no file.
    std::os::unix::fs::symlink("/proc/cpuinfo", nodes.join("meminfo")).expect("a new link");
    std::os::unix::fs::symlink("../../../../../../../../../etc/passwd", nodes.join("distance"))
        .expect("a new link");
    std::os::unix::fs::symlink("/dev/zero", nodes.join("cpumap")).expect("a new link");
    std::os::unix::fs::symlink(".", tree.join("sys/class/net/eth0")).expect("a new link");
    nix::unistd::mkfifo(&nodes.join("cpulist"), nix::sys::stat::Mode::S_IRWXU).expect("a new FIFO");
    fs::write(tree.join("sys/devices/system/node/online"), vec![0xff; 1 << 20]).expect("a new file");
    let topology = Topology::recorded(&tree).expect("a tree");
    let node = topology.node(NodeId(0)).expect("its folder is there");
    assert_eq!((node.memory(), node.distances(), node.has_cpus()), (None, &[][..], false));
    topology_command(&[], Some(("--root", &tree))).ok();
}

#[test]
fn names_of_a_recorded_tree_do_not_control_the_terminal() {
    // ESC, BEL, a line end, CSI of C1 and a directional override.
    const NAME: &str = "e\u{1b}[31m\u{7}\n\u{9b}2J\u{202e}z";
    const ESCAPED: &str = r"e\u{1b}[31m\u{7}\n\u{9b}2J\u{202e}z";
    let scratch = Scratch::new("topology-controls");
    let tree = scratch.0.join("tree");
    let below = format!("devices/pci0000:00/0000:00:05.0/net/{NAME}");
    fs::create_dir_all(tree.join("sys").join(&below)).expect("a new folder");
    fs::create_dir_all(tree.join("sys/class/net")).expect("a new folder");
    fs::create_dir_all(tree.join("hostbuf")).expect("a new folder");
    std::os::unix::fs::symlink(format!("../../{below}"), tree.join("sys/class/net").join(NAME))
        .expect("a new link");
    let report = "gpu\t0\t0000:99:00.0\tGPU-\u{1b}]0;title\u{7}\tH\u{202e}\t\n";
    fs::write(tree.join("hostbuf/nvml"), report).expect("a new file");
    let is_plain = |text: &str| text.chars().all(|c| c == '\n' || !(c.is_control() || c == '\u{202e}'));

    let text = topology_command(&[], Some(("--root", &tree))).ok().stdout;
    assert!(is_plain(&text), "{text:?}");
    // The name is in the table, above and beside the matrix, and among the assumptions.
    assert_eq!(text.matches(ESCAPED).count(), 4, "{text}");
    let lines = text.lines().filter(|line| line.contains(ESCAPED) && line.contains(" nic "));
    assert_eq!(lines.count(), 1, "{text}");

    let output = topology_command(&["--json"], Some(("--root", &tree))).ok();
    assert!(is_plain(&output.stdout), "{:?}", output.stdout);
    let devices = json(&output)["devices"].as_array().expect("a list").clone();
    assert!(devices.iter().any(|device| device["name"] == NAME), "{devices:?}");

    let none = topology_command(&[], Some(("--root", Path::new("\u{1b}[31m\n"))));
    assert_eq!((none.status, none.stderr.lines().count(), is_plain(&none.stderr)), (2, 1, true), "{none:?}");
}
