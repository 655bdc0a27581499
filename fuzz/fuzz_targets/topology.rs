//! Recorded trees: each has a topology, whose questions have answers.

#![no_main]

use hostbuf_topology::{CudaVariables, DeviceKind, fuzzing};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &str)| {
    let (tree, visible) = input;
    let topology = fuzzing::topology(tree);
    assert!(!topology.nodes().is_empty());
    let cpus = topology.cpus();
    assert!(topology.nodes().iter().all(|node| node.cpus().is_subset(&cpus)));
    assert_eq!(cpus.to_string().parse(), Ok(cpus.clone()));
    for (a, index) in topology.devices().iter().zip(0..) {
        assert_eq!(a.index().0, index);
        assert!(a.node().is_none_or(|node| topology.node(node).is_some()));
        for b in topology.devices() {
            assert_eq!(topology.path(a.index(), b.index()), topology.path(b.index(), a.index()));
            assert!(
                topology.path(a.index(), b.index()).path_type
                    <= topology.pci_path(a.index(), b.index()).path_type
            );
        }
        for kind in [DeviceKind::Gpu, DeviceKind::Nic, DeviceKind::Storage] {
            assert!(!topology.nearest(a.index(), kind).contains(&a.index()));
        }
        a.os_names().iter().for_each(|name| assert!(topology.find(name).is_some()));
    }
    topology.drives_of("dm-0").iter().for_each(|&drive| {
        assert_eq!(topology.device(drive).kind(), DeviceKind::Storage);
    });
    let seen = topology.visible(&CudaVariables::new().visible_devices(visible));
    assert!(seen.gpus.iter().all(|gpu| topology.device(gpu.device).is_usable()));
});
