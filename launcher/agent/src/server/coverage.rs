//! Messages about the ranks of the host that have no buffer before `main`.

use std::collections::BTreeMap;

use hostbuf_os::process;
use hostbuf_protocol::limits::REPORT_MAX;
use hostbuf_protocol::message::{Coverage, Role};

use super::super::orders::Uncovered;
use super::state::Server;

impl Server {
    /// Counts the ranks into which nothing can be preloaded, and describes those that never have
    /// the buffer.
    pub(super) fn uncovered(&self) -> Uncovered {
        let mut uncovered = Uncovered::default();
        let mut reasons: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for (id, hello) in self.ranks() {
            let (coverage, why) = &self.peers[id].coverage;
            match coverage {
                Coverage::Preloaded => {}
                Coverage::Attaches => uncovered.attaching += 1,
                Coverage::None => {
                    uncovered.without += 1;
                    reasons.entry(why).or_default().push(hello.rank);
                }
            }
        }
        if !reasons.is_empty() {
            let parts: Vec<String> =
                reasons.into_iter().map(|(why, ranks)| format!("{}: {why}", named(ranks))).collect();
            uncovered.notice = Some(format!(
                "no buffer on {} in {}. Nothing can be loaded into such a program before main: link it dynamically, or link \
                 libhostbuf and call hostbuf_attach (--require makes this an error)",
                process::host_name(),
                parts.join("; in ")
            ));
        }
        uncovered
    }

    /// Returns the first rank without a buffer and the line that it prints for its host, or `None`
    /// if the launcher prints it.
    pub(super) fn notice(&self) -> Option<(u64, String)> {
        let without = self.ranks().filter(|(id, _)| self.peers[id].coverage.0 == Coverage::None);
        let (&first, _) = without.min_by_key(|(_, hello)| hello.local_rank)?;
        Some((first, self.uncovered().notice?)).filter(|_| self.print_failures)
    }

    /// Returns the value of [`ENV_REPORT`](hostbuf_protocol::environment::ENV_REPORT) for a rank:
    /// the text with which a later image of the rank names the ranks that have the same command
    /// line.
    pub(super) fn report_of(&self, id: u64) -> String {
        let peer = &self.peers[&id];
        let hello = peer.hello;
        if hello.role != Role::Rank || !peer.counted {
            return String::new();
        }
        let same: Vec<u64> = self
            .ranks()
            .filter(|(id, _)| self.peers[id].command == peer.command)
            .map(|(_, h)| h.rank)
            .collect();
        let host = process::host_name();
        let mut report = if same.iter().min() == Some(&hello.rank) {
            format!("{} on {host}", named(same))
        } else {
            format!("-rank {} on {host}", hello.rank)
        };
        while report.len() > REPORT_MAX {
            report.pop();
        }
        report
    }
}

/// Formats ranks as `rank 3` or `ranks 0-3, 7`.
fn named(mut ranks: Vec<u64>) -> String {
    ranks.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let many = runs.len() > 1 || runs.iter().any(|(first, last)| first != last);
    let text: Vec<String> = runs
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    format!("{} {}", if many { "ranks" } else { "rank" }, text.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ranks_are_written_as_a_range() {
        assert_eq!(named(vec![3]), "rank 3");
        assert_eq!(named(vec![2, 0, 1]), "ranks 0-2");
        assert_eq!(named(vec![0, 2, 3, 7]), "ranks 0, 2-3, 7");
    }
}
