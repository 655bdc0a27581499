//! Ranks on a host with four GPUs, which a fake management library reports: the GPU that each rank
//! learns, and a driver that is never loaded for that.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, fixture, have, hostbuf};

/// A host with GPUs, in a container whose libraries of GPUs are fakes.
struct GpuHost {
    libraries: Scratch,
}

impl GpuHost {
    /// Returns the host, or `None` if it cannot be simulated here.
    fn new(name: &str) -> Option<GpuHost> {
        if !have("bwrap") {
            return None;
        }
        let libraries = Scratch::new(name);
        let build =
            |source| fixture("cc", source, &["-shared", "-fPIC"]).expect("a C compiler built this test");
        let driver = build("loaded.c");
        // On a machine with a GPU the name without a number takes precedence.
        for (library, file) in
            [("libnvidia-ml.so.1", &build("fake_nvml.c")), ("libcuda.so.1", &driver), ("libcuda.so", &driver)]
        {
            symlink(file, libraries.path(library)).expect("a new link");
        }
        Some(GpuHost { libraries })
    }

    /// Returns a command of `hostbuf` on the host. Ranks ask the management library only if the
    /// driver has its device.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("bwrap");
        command.args(["--dev-bind", "/", "/", "--dev", "/dev", "--dev-bind", "/dev/null", "/dev/nvidiactl"]);
        // The nodes of this machine's GPUs are not those of the fakes.
        let driver = "/proc/driver/nvidia";
        command.args(Path::new(driver).exists().then_some(["--tmpfs", driver]).into_iter().flatten());
        command.arg(hostbuf()).args(arguments);
        command.env("LD_LIBRARY_PATH", &self.libraries.0).env("LOADED_FILE", self.loaded_file());
        command.env_remove("CUDA_VISIBLE_DEVICES").env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        command
    }

    /// Returns the GPUs of the ranks of a job on this host, in the order of the ranks.
    fn gpus(&self, ranks: usize, visible: Option<&str>) -> Vec<String> {
        let show = "echo rank $HOSTBUF_LOCAL_RANK ${HOSTBUF_NEAR_GPU-none}";
        let count = ranks.to_string();
        let job = ["run", "--launcher", "local", "-n", &count, "--size", "1M", "--", "sh", "-c", show];
        let mut command = self.command(&job);
        command.envs(visible.map(|list| ("CUDA_VISIBLE_DEVICES", list)));
        let mut lines = CommandOutput::of(&mut command).ok().lines("rank ");
        lines.sort_unstable();
        lines.iter().map(|line| line.split(' ').next_back().expect("a word").to_owned()).collect()
    }

    /// Returns the file that exists once the driver was loaded.
    fn loaded_file(&self) -> PathBuf {
        self.libraries.0.join("loaded")
    }
}

#[test]
fn ranks_of_a_host_get_different_gpus() {
    let Some(host) = GpuHost::new("near-gpus-different") else { return };
    assert_eq!(host.gpus(4, None), ["GPU-fake-0", "GPU-fake-1", "GPU-fake-2", "GPU-fake-3"]);
    // With more ranks than GPUs each GPU has two ranks or one.
    let mut gpus = host.gpus(6, None);
    gpus.sort_unstable();
    let count = |gpu: usize| gpus.iter().filter(|name| **name == format!("GPU-fake-{gpu}")).count();
    assert_eq!([0, 1, 2, 3].map(count), [2, 2, 1, 1], "{gpus:?}");
}

#[test]
fn ranks_get_only_gpus_that_they_see() {
    let Some(host) = GpuHost::new("near-gpus-visible") else { return };
    for (visible, expected) in [
        ("GPU-fake-2,GPU-fake-1", ["GPU-fake-2", "GPU-fake-1", "GPU-fake-2"]),
        ("3,0", ["GPU-fake-3", "GPU-fake-0", "GPU-fake-3"]),
        ("1", ["GPU-fake-1"; 3]),
        // The list ends at the first entry that names no GPU.
        ("2,7,1", ["GPU-fake-2"; 3]),
        ("MIG-fake-1,GPU-fake-3", ["MIG-fake-1", "GPU-fake-3", "MIG-fake-1"]),
        ("", ["none"; 3]),
        ("-1", ["none"; 3]),
    ] {
        assert_eq!(host.gpus(3, Some(visible)), expected, "{visible:?}");
    }
}

#[test]
fn ranks_of_bind_run_near_the_gpus_that_they_see() {
    let Some(host) = GpuHost::new("near-gpus-bind") else { return };
    let show = "echo rank $HOSTBUF_NEAR_GPU $HOSTBUF_NUMA_NODE";
    let job = ["exec", "--size", "1M", "--bind", "near-gpu", "--", "sh", "-c", show];
    let run = |visible: &str| CommandOutput::of(host.command(&job).env("CUDA_VISIBLE_DEVICES", visible));
    let outcome = run("");
    assert_eq!((outcome.status, outcome.stderr.lines().count()), (82, 1), "{outcome:?}");
    assert!(outcome.stderr.contains("this rank sees no GPU on "), "{outcome:?}");
    // On a host with several nodes, the fake GPUs have none.
    let outcome = run("GPU-fake-2");
    match outcome.status {
        0 => assert_eq!(outcome.lines("rank "), ["GPU-fake-2 0"], "{outcome:?}"),
        _ => assert!(outcome.stderr.contains("the node of GPU2 is not known on "), "{outcome:?}"),
    }
}

#[test]
fn discovery_does_not_load_the_driver() {
    let Some(host) = GpuHost::new("near-gpus-driver") else { return };
    let tree = host.libraries.path("tree");
    let exec = ["exec", "--size", "1M"];
    let program = ["--", "sh", "-c", "echo near $HOSTBUF_NEAR_GPU"];
    for (arguments, expected) in [
        (&["topology"][..], "GPU-fake-3"),
        (&["topology", "--json"], "GPU-fake-3"),
        (&["topology", "--record", &tree], "GPU-fake-3"),
        (&["topology", "--root", &tree], "GPU-fake-3"),
        (&[&exec[..], &program].concat(), "near GPU-fake-0"),
        (
            &["run", "--launcher", "local", "-n", "2", "--size", "1M", program[0], "sh", "-c", program[3]],
            "near GPU-fake-1",
        ),
    ] {
        let outcome = CommandOutput::of(&mut host.command(arguments)).ok();
        assert!(outcome.stdout.contains(expected), "{arguments:?}: {outcome:?}");
        assert!(!host.loaded_file().exists(), "{arguments:?}");
    }
    // The doctor does, so the file shows it.
    CommandOutput::of(&mut host.command(&["doctor"]));
    assert!(host.loaded_file().exists());
}
