//! The number of a rank among those that share its devices.

use hostbuf_topology::{CpuSet, NodeId, NumaNode, Topology};

use crate::engines::Place;

/// Returns the number of a rank on `cpus` among the ranks of the host that are near the same
/// devices. A rank does not know where the others run. Its number is therefore such that the ranks
/// of each node have different ones under each common mapping of an engine: blocks of ranks on each
/// node, ranks round-robin over the nodes, and ranks that fill one node before the next.
pub(super) fn device_rank(topology: &Topology, cpus: &CpuSet, place: Place) -> u64 {
    let nodes: Vec<NodeId> =
        topology.nodes().iter().filter(|node| node.has_cpus()).map(NumaNode::id).collect();
    let own = topology.nodes_of(cpus);
    // An engine may bind to sockets of several nodes.
    let groups = nodes.len() / own.len().max(1);
    let first = nodes.iter().position(|node| Some(node) == own.first()).unwrap_or(0);
    let group = first / own.len().max(1);
    let size = place.local_size.max(place.local_rank + 1);
    if groups < 2 {
        place.local_rank
    } else {
        device_rank_in_group(group as u64, groups as u64, place.local_rank, size)
    }
}

/// Returns the number of rank `rank` in a group of nodes, of `groups` groups and `size` ranks.
///
/// The ranks are divided into blocks, one for each group. The numbers are different in each block,
/// and among the ranks that the group gets round-robin. The group's own block is in the order of
/// the ranks.
fn device_rank_in_group(group: u64, groups: u64, rank: u64, size: u64) -> u64 {
    let length = size.div_ceil(groups);
    let own = group * length..(group + 1) * length;
    if own.contains(&rank) {
        return rank - own.start;
    }
    let is_round_robin = |rank: &u64| rank % groups == group;
    let round_robin = (0..size).filter(is_round_robin);
    let (inside, outside): (Vec<u64>, Vec<u64>) = round_robin.partition(|rank| own.contains(rank));
    let mut free = (0..length).filter(|number| !inside.contains(&(own.start + number)));
    let numbers: Vec<(u64, u64)> = outside.into_iter().zip(&mut free).collect();
    let number = |rank: u64| numbers.iter().find(|(known, _)| *known == rank).map(|(_, number)| *number);
    number(rank).unwrap_or_else(|| {
        // The other ranks of a block take the numbers that are left there, in their order.
        let block = rank / length * length..(rank / length + 1) * length;
        let taken: Vec<u64> = block.clone().filter_map(number).collect();
        let before = (block.start..rank).filter(|rank| !is_round_robin(rank)).count();
        (0..length).filter(|number| !taken.contains(number)).nth(before).unwrap_or(rank)
    })
}

#[cfg(test)]
mod tests {
    use super::super::recorded_host;
    use super::*;

    /// Requires that `devices` devices are used by numbers of ranks that differ by one at most.
    fn share_evenly(group: u64, groups: u64, size: u64, ranks: &[u64], devices: u64, mapping: &str) {
        let mut users = vec![0; devices as usize];
        for &rank in ranks {
            users[(device_rank_in_group(group, groups, rank, size) % devices) as usize] += 1;
        }
        let (least, most) = (users.iter().min().unwrap(), users.iter().max().unwrap());
        assert!(most - least <= 1, "{mapping}: {ranks:?} of {size} in group {group} of {groups}: {users:?}");
    }

    #[test]
    fn ranks_share_devices_evenly_however_the_engine_places_them() {
        for groups in 2..=8 {
            for each in 1..=12 {
                let size = groups * each;
                for (group, devices) in (0..groups).flat_map(|group| [1, 2, 4, 8].map(|n| (group, n))) {
                    let share = |ranks: Vec<u64>, mapping| {
                        share_evenly(group, groups, size, &ranks, devices, mapping);
                    };
                    share((group * each..(group + 1) * each).collect(), "blocks");
                    share((0..size).filter(|rank| rank % groups == group).collect(), "round-robin");
                }
                // All ranks fill the first node.
                if each % 4 == 0 {
                    share_evenly(0, groups, size, &(0..size).collect::<Vec<_>>(), 4, "filled");
                }
            }
        }
    }

    #[test]
    fn ranks_on_all_nodes_take_devices_by_their_numbers() {
        let topology = recorded_host::topology("device-ranks", None);
        let number = |cpus: &str, local_rank, local_size| {
            let place = Place { rank: local_rank, size: local_size, local_rank, local_size };
            device_rank(&topology, &cpus.parse().unwrap(), place)
        };
        assert_eq!([0, 1, 2, 3].map(|rank| number("0-7", rank, 4)), [0, 1, 2, 3]);
        // In blocks, and round-robin.
        assert_eq!(
            [number("0-3", 0, 4), number("0-3", 1, 4), number("4-7", 2, 4), number("4-7", 3, 4)],
            [0, 1, 0, 1]
        );
        assert_eq!(
            [number("0-3", 0, 4), number("4-7", 1, 4), number("0-3", 2, 4), number("4-7", 3, 4)],
            [0, 0, 1, 1]
        );
        // An engine that does not state the number of ranks, and CPUs of no node.
        assert_eq!((number("0", 5, 1), number("900", 3, 4)), (number("1", 5, 6), number("0", 3, 4)));
    }

    #[test]
    fn ranks_that_the_groups_do_not_divide_have_numbers() {
        for size in 1..30 {
            for rank in 0..size {
                for group in 0..4 {
                    assert!(device_rank_in_group(group, 4, rank, size) < size.div_ceil(4).max(1));
                }
            }
        }
    }
}
