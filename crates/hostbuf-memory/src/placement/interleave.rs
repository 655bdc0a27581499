//! The request to distribute pages over nodes in turn.

use std::fmt;
use std::str::FromStr;

use hostbuf_os::NodeId;

use super::{MAX_NODES, node_list};

/// The largest weight of a node, as of `MPOL_WEIGHTED_INTERLEAVE`.
const MAX_WEIGHT: u32 = 255;

/// A distribution of the pages of a range over nodes in turn: with weights, that many consecutive
/// pages on each node. A page is one of the size that was obtained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interleave {
    nodes: Vec<NodeId>,
    weights: Vec<u32>,
}

impl Interleave {
    /// Makes a distribution over all nodes from which the process may take memory.
    #[must_use]
    pub fn over_all() -> Interleave {
        Interleave::default()
    }

    /// Makes a distribution over `nodes`, in this order.
    ///
    /// # Panics
    /// If a node occurs twice, or if there are none or more than 64.
    #[must_use]
    pub fn over(nodes: impl IntoIterator<Item = NodeId>) -> Interleave {
        let nodes: Vec<NodeId> = nodes.into_iter().collect();
        assert!((1..=MAX_NODES).contains(&nodes.len()), "{} nodes: expected 1 to {MAX_NODES}", nodes.len());
        let twice = nodes.iter().enumerate().find(|(i, node)| nodes[..*i].contains(node));
        assert!(twice.is_none(), "a node occurs twice: {nodes:?}");
        Interleave { nodes, weights: Vec::new() }
    }

    /// Makes a distribution over nodes with weights of 1 to 255, in this order.
    ///
    /// # Panics
    /// As [`over`](Interleave::over), and for a weight outside that range.
    #[must_use]
    pub fn weighted(nodes: impl IntoIterator<Item = (NodeId, u32)>) -> Interleave {
        let (nodes, weights): (Vec<NodeId>, Vec<u32>) = nodes.into_iter().unzip();
        assert!(weights.iter().all(|w| (1..=MAX_WEIGHT).contains(w)), "a weight is not in 1 to {MAX_WEIGHT}");
        Interleave { weights, ..Interleave::over(nodes) }
    }

    /// Returns the nodes in their order, empty for all nodes.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// Returns the nodes of one turn with their weights. `all` are the nodes to use if none are
    /// named.
    pub(super) fn turn(&self, all: &[NodeId]) -> Vec<(NodeId, u64)> {
        let nodes = if self.nodes.is_empty() { all } else { &self.nodes };
        let weights = self.weights.iter().copied().map(u64::from).chain(std::iter::repeat(1));
        nodes.iter().copied().zip(weights).collect()
    }
}

/// Parses the text after `interleave`: nothing, `:0,1` or `:0,1/3,1`. The error is the end of a
/// message to the user.
impl FromStr for Interleave {
    type Err = String;

    fn from_str(text: &str) -> Result<Interleave, String> {
        if text.is_empty() {
            return Ok(Interleave::over_all());
        }
        let text =
            text.strip_prefix(':').ok_or("expected interleave, interleave:0,1 or interleave:0,1/3,1")?;
        let (nodes, weights) = text.split_once('/').map_or((text, None), |(n, w)| (n, Some(w)));
        let nodes = node_list::parse(nodes)?;
        let Some(weights) = weights else { return Ok(Interleave { nodes, weights: Vec::new() }) };
        let weight = |text: &str| {
            let weight = node_list::number(text).filter(|w| (1..=MAX_WEIGHT).contains(w));
            weight.ok_or_else(|| format!("invalid weight \"{text}\": expected 1 to {MAX_WEIGHT}"))
        };
        let weights = weights.split(',').map(weight).collect::<Result<Vec<u32>, String>>()?;
        if weights.len() != nodes.len() {
            return Err(format!(
                "expected a weight for each of the nodes, {} in all, found {}",
                nodes.len(),
                weights.len()
            ));
        }
        Ok(Interleave { nodes, weights })
    }
}

/// Formats the distribution in the syntax that `from_str` parses.
impl fmt::Display for Interleave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes.is_empty() {
            return Ok(());
        }
        f.write_str(":")?;
        node_list::format(&self.nodes, f)?;
        for (i, weight) in self.weights.iter().enumerate() {
            write!(f, "{}{weight}", if i == 0 { '/' } else { ',' })?;
        }
        Ok(())
    }
}
