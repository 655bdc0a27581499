//! The colours of pictures.

use hostbuf::NodeId;

/// The colours of NUMA nodes, which people with colour blindness can also tell apart (Okabe and
/// Ito, "Color Universal Design", 2008). Nodes beyond them repeat the colours.
const OF_NODES: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d00", "#5b5b9f"];

/// The colour of texts.
pub(crate) const TEXT: &str = "#1a1a1a";
/// The colour of texts that are less important.
pub(crate) const FAINT: &str = "#666666";
/// The colour of outlines.
pub(crate) const LINE: &str = "#8a8a8a";
/// The colour of memory on any node.
pub(crate) const ANY_NODE: &str = "#b8b8b8";
/// The colour of GPU memory, which the CPUs do not reach.
pub(crate) const GPU: &str = "#e3e3e3";
/// The colour of the background.
pub(crate) const PAPER: &str = "#ffffff";

/// Returns the colour of a NUMA node.
pub(crate) fn of_node(node: NodeId) -> &'static str {
    OF_NODES[node.0 as usize % OF_NODES.len()]
}
