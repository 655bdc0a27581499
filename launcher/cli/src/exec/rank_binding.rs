//! `--bind`: the CPUs on which a rank runs, and the node whose memory it prefers.

use hostbuf::{Error, ErrorClass, JobError};
use hostbuf_os::cores::Cores;
use hostbuf_os::mempolicy::{self, MemoryPolicy, NodeMask};
use hostbuf_os::process;
use hostbuf_topology::{CpuSet, CudaVariables, NodeId, NumaNode, Topology, VisibleGpu};

use crate::bind_mode::BindMode;
use crate::engines::{Engine, Place};
use crate::printable::printable;

/// The CPUs that isolcpus= keeps free of processes that do not ask for them.
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

/// The CPUs of a process before it is bound.
pub(super) struct RankCpus {
    /// The CPUs on which it may run.
    pub(super) own: CpuSet,
    /// The CPUs on which it could run: those of its cpuset.
    allowed: CpuSet,
}

impl RankCpus {
    /// Returns the CPUs of the calling thread.
    pub(super) fn of_this_thread(topology: &Topology) -> RankCpus {
        let own = CpuSet::of_this_thread();
        let online = topology.cpus();
        // Only a process that may run on all CPUs needs no closer look.
        let allowed = if online.is_subset(&own) { own.clone() } else { cpuset().unwrap_or(online) };
        RankCpus { own, allowed }
    }

    /// Returns true if the affinity leaves out CPUs of the cpuset. It may contain isolated CPUs.
    fn is_bound(&self) -> bool {
        !self.allowed.is_subset(&self.own)
    }
}

/// Returns the CPUs of this process's cpuset that are not isolated, or `None` if the kernel does
/// not state it. The affinity of another thread is extended for that, so none of this one changes.
fn cpuset() -> Option<CpuSet> {
    let extend = || {
        Cores::from_numbers(0..8 * Cores::BYTES).apply().ok()?;
        Some(CpuSet::of_this_thread()).filter(|cpus| !cpus.is_empty())
    };
    let cpus = std::thread::Builder::new().spawn(extend).ok()?.join().ok()??;
    let isolated = std::fs::read_to_string(ISOLATED).unwrap_or_default();
    let isolated: CpuSet = isolated.parse().unwrap_or_default();
    Some(cpus.iter().filter(|&cpu| !isolated.contains(cpu)).collect())
}

/// The CPUs and the node of a rank.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RankBinding {
    pub(super) cpus: CpuSet,
    /// The node whose memory the rank prefers; `None` if it has no memory.
    memory: Option<NodeId>,
    /// The number of the rank among those that share its devices.
    pub(super) device_rank: u64,
    /// The GPU that has decided.
    pub(super) gpu: Option<VisibleGpu>,
}

impl RankBinding {
    /// Chooses the CPUs of a rank. The result is `None` if it is bound already.
    ///
    /// # Errors
    /// An error of the class `Unsupported` if there is no GPU, or no CPU of its node.
    pub(super) fn choose(
        mode: BindMode,
        topology: &Topology,
        cpus: &RankCpus,
        place: Place,
        variables: &CudaVariables,
    ) -> Result<Option<RankBinding>, JobError> {
        if cpus.is_bound() {
            return Ok(None);
        }
        let (node, device_rank, gpu) = match mode {
            BindMode::Node => {
                let (node, device_rank) = node_of_block(topology, &cpus.own, place)?;
                (node, device_rank, None)
            }
            BindMode::NearGpu => {
                let (node, gpu) = node_of_gpu(topology, variables, place)?;
                (node, place.local_rank, Some(gpu))
            }
        };
        let of_node = node.cpus().intersection(&cpus.own);
        if let Some(gpu) = gpu.as_ref().filter(|_| of_node.is_empty()) {
            return Err(unsupported(&format!(
                "--bind near-gpu: {} is next to node {} of {}, which has none of the CPUs that this process may use ({}). Extend \
                 the cpuset, or use --bind node",
                printable(topology.device(gpu.device).name()),
                node.id(),
                process::host_name(),
                cpus.own
            )));
        }
        let memory = node.has_memory().then(|| node.id());
        Ok(Some(RankBinding { cpus: of_node, memory, device_rank, gpu }))
    }

    /// Binds the calling thread, and with it the program that replaces this process.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(super) fn apply(&self) -> hostbuf::Result<()> {
        Cores::from_numbers(self.cpus.iter()).apply().map_err(|source| Error::Os {
            doing: format!(
                "binding a rank on {} to the CPUs {} (leave out --bind)",
                process::host_name(),
                self.cpus
            ),
            source,
        })?;
        let may_use = |node: &NodeId| mempolicy::allowed_nodes().is_none_or(|nodes| nodes.contains(node));
        let Some(node) = self.memory.filter(may_use) else { return Ok(()) };
        let preferred = NodeMask::new([node]).and_then(|mask| MemoryPolicy::Preferred(mask).apply());
        match preferred {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                // Without a policy the kernel prefers the node of the CPU, too.
                tracing::info!(%error, "the memory policy of this rank stays as it is");
                Ok(())
            }
            other => other.map_err(|source| Error::Os {
                doing: format!(
                    "setting the memory policy of a rank on {} to prefer node {node} (leave out --bind)",
                    process::host_name()
                ),
                source,
            }),
        }
    }
}

/// Returns the line that the first rank of a host prints if it is bound already, with the option of
/// the engine that has started it.
pub(super) fn bound_already(mode: BindMode, cpus: &RankCpus, engine: Option<&dyn Engine>) -> String {
    let option = engine.and_then(|engine| Some((engine.name(), engine.option_to_bind_none()?)));
    let remedy = match option {
        Some((name, option)) => format!("Let {name} bind none ({option}), or leave out --bind"),
        None => "Start the job on all CPUs, or leave out --bind".into(),
    };
    format!(
        "--bind {}: the first rank on {} is bound already (to the CPUs {} of {}), and bound ranks stay as they are. {remedy}",
        mode.name(),
        process::host_name(),
        cpus.own,
        cpus.allowed
    )
}

fn unsupported(why: &str) -> JobError {
    JobError::new(ErrorClass::Unsupported, why)
}

/// Returns the node of a rank, and its number among the ranks of this node. Each node with CPUs
/// gets a block of consecutive ranks, and the blocks differ by one rank at most.
fn node_of_block<'a>(
    topology: &'a Topology,
    cpus: &CpuSet,
    place: Place,
) -> Result<(&'a NumaNode, u64), JobError> {
    let has_cpus = |node: &&NumaNode| !node.cpus().intersection(cpus).is_empty();
    let nodes: Vec<&NumaNode> = topology.nodes().iter().filter(has_cpus).collect();
    let (count, ranks) = (nodes.len() as u64, place.local_size.max(place.local_rank + 1));
    if count == 0 {
        return Err(unsupported(&format!(
            "--bind node: no NUMA node on {} has one of the CPUs that this process may use ({cpus}). Mount /sys in the container, \
             or leave out --bind",
            process::host_name()
        )));
    }
    let index = place.local_rank * count / ranks;
    let first = (index * ranks).div_ceil(count);
    Ok((nodes[index as usize], place.local_rank - first))
}

/// Returns the GPU of a rank and its node.
fn node_of_gpu<'a>(
    topology: &'a Topology,
    variables: &CudaVariables,
    place: Place,
) -> Result<(&'a NumaNode, VisibleGpu), JobError> {
    let host = process::host_name();
    let gpus = topology.visible(variables).gpus;
    let Some(gpu) = round_robin(&gpus, place.local_rank) else {
        let list = variables.visible_devices.as_ref();
        let by =
            list.map_or(String::new(), |list| format!(" (CUDA_VISIBLE_DEVICES=\"{}\")", printable(list)));
        return Err(unsupported(&format!(
            "--bind near-gpu: this rank sees no GPU on {host}{by}. `hostbuf topology` lists the GPUs of a host. Without a GPU, \
             use --bind node"
        )));
    };
    let device = topology.device(gpu.device);
    let node = device.node().and_then(|node| topology.node(node)).ok_or_else(|| {
        unsupported(&format!(
            "--bind near-gpu: the node of {} is not known on {host}, which has {} nodes. Update the firmware, or let the virtual machine state \
             it (ACPI _PXM), or use --bind node",
            printable(device.name()),
            topology.nodes().len()
        ))
    })?;
    Ok((node, gpu.clone()))
}

/// Returns the device of the rank with the number `device_rank` among those that share `devices`.
pub(super) fn round_robin<T>(devices: &[T], device_rank: u64) -> Option<&T> {
    devices.get((device_rank % devices.len().max(1) as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::super::recorded_host;
    use super::*;
    use crate::engines;

    fn cpus(own: &str, allowed: &str) -> RankCpus {
        RankCpus { own: own.parse().unwrap(), allowed: allowed.parse().unwrap() }
    }

    fn place(local_rank: u64, local_size: u64) -> Place {
        Place { rank: local_rank, size: local_size, local_rank, local_size }
    }

    /// Returns the CPUs, the preferred node, the device rank and the GPU of a rank as text.
    fn choice(mode: BindMode, topology: &Topology, cpus: &RankCpus, place: Place) -> Result<String, String> {
        let found = RankBinding::choose(mode, topology, cpus, place, &CudaVariables::new());
        let text = |binding: RankBinding| {
            let node = binding.memory.map_or("-".to_owned(), |node| node.to_string());
            let gpu = binding.gpu.map_or(String::new(), |gpu| topology.device(gpu.device).name().to_owned());
            format!("{} {node} {} {gpu}", binding.cpus, binding.device_rank).trim_end().to_owned()
        };
        found.map(|found| found.map_or("bound".into(), text)).map_err(|error| error.to_string())
    }

    #[test]
    fn nodes_get_blocks_of_ranks() {
        let topology = recorded_host::topology("blocks", None);
        let all = cpus("0-7", "0-7");
        let choices = |size: u64, cpus: &RankCpus| {
            let of = |rank| choice(BindMode::Node, &topology, cpus, place(rank, size)).unwrap();
            (0..size).map(of).collect::<Vec<_>>()
        };
        assert_eq!(choices(4, &all), ["0-3 0 0", "0-3 0 1", "4-7 1 0", "4-7 1 1"]);
        assert_eq!(choices(3, &all), ["0-3 0 0", "0-3 0 1", "4-7 1 0"]);
        assert_eq!(choices(2, &all), ["0-3 0 0", "4-7 1 0"]);
        assert_eq!(choices(1, &all), ["0-3 0 0"]);
        // The ranks stay inside their cpuset.
        assert_eq!(choices(2, &cpus("3-4", "3-4")), ["3 0 0", "4 1 0"]);
        assert_eq!(choices(2, &cpus("5-6", "5-6")), ["5-6 1 0", "5-6 1 1"]);
        // An engine that does not state the number of ranks.
        assert_eq!(choice(BindMode::Node, &topology, &all, place(5, 1)).unwrap(), "4-7 1 2");
    }

    #[test]
    fn ranks_take_gpus_round_robin() {
        let topology = recorded_host::topology("gpus", None);
        let all = cpus("0-7", "0-7");
        let of = |rank| choice(BindMode::NearGpu, &topology, &all, place(rank, 6)).unwrap();
        assert_eq!(
            (0..6).map(of).collect::<Vec<_>>(),
            ["0-3 0 0 GPU0", "0-3 0 1 GPU1", "4-7 1 2 GPU2", "4-7 1 3 GPU3", "0-3 0 4 GPU0", "0-3 0 5 GPU1"]
        );
    }

    #[test]
    fn ranks_that_are_bound_stay_as_they_are() {
        let topology = recorded_host::topology("bound", None);
        // The last is bound to an isolated CPU.
        for (own, allowed) in [("0", "0-7"), ("0-3", "0-7"), ("4", "4-5"), ("7", "0-6")] {
            for mode in [BindMode::Node, BindMode::NearGpu] {
                assert_eq!(choice(mode, &topology, &cpus(own, allowed), place(0, 2)).unwrap(), "bound");
            }
        }
        // The affinity may contain all isolated CPUs.
        assert_ne!(choice(BindMode::Node, &topology, &cpus("0-7", "0-6"), place(0, 2)).unwrap(), "bound");
        let line = bound_already(BindMode::Node, &cpus("4", "4-5"), None);
        assert!(line.contains("--bind node: ") && line.contains("to the CPUs 4 of 4-5"), "{line}");
        assert!(line.ends_with("Start the job on all CPUs, or leave out --bind"), "{line}");
        let mut options = Vec::new();
        for engine in engines::ALL {
            let line = bound_already(BindMode::Node, &cpus("4", "4-5"), Some(*engine));
            let Some(option) = engine.option_to_bind_none() else { continue };
            assert!(line.contains(&format!("Let {} bind none ({option}), or ", engine.name())), "{line}");
            options.push(option);
        }
        for option in ["--bind-to none", "-bind-to none", "--cpu-bind=none"] {
            assert!(options.iter().any(|known| known == option), "{option}: {options:?}");
        }
    }

    #[test]
    fn errors_name_the_gpu_the_host_and_the_remedy() {
        let host = process::host_name();
        let all = cpus("0-7", "0-7");
        // GPU 4 comes after the four others.
        let gpu_4 = |topology: &Topology, cpus: &RankCpus| {
            choice(BindMode::NearGpu, topology, cpus, place(4, 8)).unwrap_err()
        };
        let without_cpus = gpu_4(&recorded_host::topology("memory", Some(2)), &all);
        assert!(without_cpus.contains("GPU4 is next to node 2 of "), "{without_cpus}");
        let unknown = gpu_4(&recorded_host::topology("unknown", Some(-1)), &all);
        assert!(unknown.contains(&format!("the node of GPU4 is not known on {host}")), "{unknown}");
        let topology = recorded_host::topology("none", None);
        let excluded = choice(BindMode::NearGpu, &topology, &cpus("4-7", "4-7"), place(0, 1)).unwrap_err();
        assert!(excluded.contains("(4-7)") && excluded.contains("Extend the cpuset"), "{excluded}");
        let nowhere = choice(BindMode::Node, &topology, &cpus("9", "9"), place(0, 1)).unwrap_err();
        assert!(nowhere.contains(&host) && nowhere.contains("Mount /sys"), "{nowhere}");
        let hidden = CudaVariables::new().visible_devices("-1");
        let error =
            RankBinding::choose(BindMode::NearGpu, &topology, &all, place(0, 1), &hidden).unwrap_err();
        assert_eq!(error.class, ErrorClass::Unsupported);
        assert!(error.to_string().contains("(CUDA_VISIBLE_DEVICES=\"-1\")"), "{error}");
    }

    #[test]
    fn the_cpuset_is_found_by_a_thread_that_is_bound() {
        let bound = std::thread::spawn(|| {
            let before = CpuSet::of_this_thread();
            let first = before.iter().next().expect("it runs on a CPU");
            Cores::from_numbers([first]).apply().unwrap();
            let cpuset = cpuset().expect("the kernel states it");
            assert!(before.iter().any(|cpu| cpuset.contains(cpu)), "{before} {cpuset}");
            (CpuSet::of_this_thread().to_string(), first.to_string())
        });
        // Only another thread has more CPUs meanwhile.
        let (after, first) = bound.join().unwrap();
        assert_eq!(after, first);
    }
}
