//! The topology's GPUs and paths, compared with the matrix of the driver's own program.

use std::collections::BTreeMap;
use std::process::Command;

use hostbuf_topology::{IoDevice, Topology};

/// Returns the cells of a line of the matrix.
fn cells(line: &str) -> Vec<&str> {
    line.split('\t').map(str::trim).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn paths_are_those_of_nvidia_smi() {
    let output = Command::new("nvidia-smi").args(["topo", "-m"]).output().expect("the driver has nvidia-smi");
    let matrix = String::from_utf8_lossy(&output.stdout).replace("\u{1b}[4m", "").replace("\u{1b}[0m", "");
    println!("{matrix}");
    let topology = Topology::discover();
    // The legend has the names of the network cards: `NIC0: mlx5_0`.
    let cards: BTreeMap<&str, &str> = matrix
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .filter(|(number, _)| number.starts_with("NIC"))
        .collect();
    let device = |name: &str| -> &IoDevice {
        let name = cards.get(name).copied().unwrap_or(name);
        topology.find(name).unwrap_or_else(|| panic!("no {name} in {topology:#?}"))
    };
    let head = cells(matrix.lines().find(|line| line.contains("GPU0")).expect("a line of names"));
    let is_device = |name: &str| (name.starts_with("GPU") || name.starts_with("NIC")) && !name.contains(' ');
    let mut compared = 0;
    for line in matrix.lines().map(cells).filter(|line| line.len() > 1 && is_device(line[0])) {
        let from = device(line[0]);
        for (name, path) in head.iter().zip(&line).filter(|(name, _)| is_device(name)) {
            let found = topology.path(from.index(), device(name).index()).path_type.to_string();
            assert_eq!(found, *path, "{} {name}\n{matrix}", from.name());
            compared += 1;
        }
    }
    assert!(compared > 0, "{matrix}");
    let gpus = topology.devices_of(hostbuf_topology::DeviceKind::Gpu).filter(|gpu| gpu.is_usable());
    assert!(
        gpus.inspect(|gpu| println!("{gpu:?}"))
            .all(|gpu| gpu.uuid().is_some_and(|uuid| uuid.starts_with("GPU-")))
    );
}
