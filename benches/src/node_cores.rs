//! The rate at which the cores of a NUMA node allocate the pages of a buffer, against one core, and
//! against processes that share nothing.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use hostbuf::{NodeId, Pages, Placement};
use hostbuf_memory::placement::HostNodes;
use hostbuf_memory::populate::{PageRequest, Workers, populate};
use hostbuf_memory::{CreatedFile, Demand, create_all};
use hostbuf_os::cores::Cores;
use hostbuf_os::node_memory;
use hostbuf_topology::Topology;

use crate::fixture::BenchResult;
use crate::sample::{note, sample, timed, turns, unmeasured};
use crate::separate_processes::SeparateProcesses;

/// Measures node 0 of this host with the cores that node 0 has in the recorded tree at `root`: a
/// host with one node is so divided into two.
pub(crate) fn compare(root: &str, bytes: usize, repeats: usize) -> BenchResult {
    let nodes = HostNodes::from(Topology::recorded(Path::new(root))?.nodes());
    let all = nodes.cores(NodeId(0), &Cores::own());
    let one = all.spread(1).into_iter().next().ok_or("node 0 has no cores")?;
    for (pages, name) in [(Pages::Small, "4k"), (Pages::Transparent, "thp"), (Pages::Huge2M, "2m")] {
        let key = format!("node-cores-{name}");
        if pages == Pages::Huge2M && node_memory::free_in_pool(NodeId(0), 2 << 20) < bytes as u64 {
            unmeasured(&key, "the pool of node 0 has too few pages of 2 MiB");
            continue;
        }
        note(&key, &format!("{} cores of the node, {bytes} bytes", all.count()));
        for repeat in 0..=repeats {
            let [allocated, written] = separately(all, bytes, pages)?;
            let [_, written_by_one] = separately(one, bytes, pages)?;
            let mut took = [Duration::ZERO; 2];
            for turn in turns(repeat) {
                took[turn] = allocate(&nodes, [all, one][turn], bytes, pages)?;
            }
            // The first round fills the page lists of the cores.
            if repeat > 0 {
                let rate = |took: Duration| bytes as f64 / took.as_secs_f64();
                sample(&key, "ours", rate(took[0]));
                sample(&key, "theirs", rate(took[1]) * all.count() as f64);
                let private = format!("{key}-private");
                sample(&private, "ours", rate(took[0]));
                sample(&private, "theirs", rate(allocated));
                let writes = format!("{key}-writes");
                sample(&writes, "ours", rate(written));
                sample(&writes, "theirs", rate(written_by_one) * all.count() as f64);
            }
        }
    }
    Ok(())
}

/// Returns how long as many processes as there are cores take to allocate `bytes` bytes of private
/// memory, each a part of its own, and then to write to it.
fn separately(cores: Cores, bytes: usize, pages: Pages) -> Result<[Duration; 2], Box<dyn std::error::Error>> {
    let mut processes = SeparateProcesses::start(cores, bytes, pages)?;
    let took = [processes.step()?, processes.step()?];
    processes.end()?;
    Ok(took)
}

/// Allocates `bytes` bytes on node 0 with `cores`.
fn allocate(
    nodes: &HostNodes,
    cores: Cores,
    bytes: usize,
    pages: Pages,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let demand = Demand::new(bytes as u64, pages).placement(Placement::Node(NodeId(0)));
    let files = create_all(&[demand], &["bench".to_owned()], Some(nodes))?;
    let CreatedFile { file, pages, plan } = files.into_iter().next().ok_or("no file")?;
    let request = PageRequest::new(&plan, pages).strict(true);
    let node_cores = |_| cores;
    let (took, obtained) =
        timed(|| populate(file.as_fd(), request, Workers::Children(cores), &node_cores, &mut |_| {}));
    match obtained?.on_nodes[0][..] {
        [(NodeId(0), on_node)] if on_node == bytes as u64 => Ok(took),
        ref other => Err(format!("the pages are on {other:?}").into()),
    }
}
