//! The requested placement of a range of memory.

use std::fmt;
use std::str::FromStr;

use hostbuf_os::NodeId;

use super::interleave::Interleave;
use super::node_list;
use crate::error::Error;

/// The NUMA nodes on which the pages of a range are allocated. Without a placement, each page is on
/// the node of the thread that allocates it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// All pages on one node.
    Node(NodeId),
    /// Pages on these nodes only: on the first until its free memory is used up, then on the next.
    Nodes(Vec<NodeId>),
    /// Pages on nodes in turn.
    Interleave(Interleave),
    /// A copy of the pages on the node of each rank, made when the buffer is frozen. The original
    /// pages are on the first node with cores, whose ranks keep using them.
    Copies,
}

impl Placement {
    /// Returns the nodes that the placement names, none if it means all nodes, or all with cores.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        match self {
            Placement::Node(node) => std::slice::from_ref(node),
            Placement::Nodes(nodes) => nodes,
            Placement::Interleave(interleave) => interleave.nodes(),
            Placement::Copies => &[],
        }
    }

    /// Parses a placement as [`from_str`](str::parse).
    ///
    /// # Errors
    /// The reason alone: the caller states the text and the option that it belongs to.
    pub fn from_text(text: &str) -> Result<Placement, String> {
        if let Some(rest) = text.strip_prefix("copies") {
            let why = "expected copies without a list of nodes: hostbuf selects the nodes of the ranks";
            return if rest.is_empty() { Ok(Placement::Copies) } else { Err(why.to_owned()) };
        }
        match text.strip_prefix("interleave") {
            Some(rest) => rest.parse().map(Placement::Interleave),
            None => node_list::parse(text).map(|nodes| match nodes[..] {
                [node] => Placement::Node(node),
                _ => Placement::Nodes(nodes),
            }),
        }
    }
}

/// Parses `0`, `0,1`, `interleave`, `interleave:0,1`, `interleave:0,1/3,1` or `copies`.
impl FromStr for Placement {
    type Err = Error;

    fn from_str(text: &str) -> Result<Placement, Error> {
        Placement::from_text(text)
            .map_err(|why| Error::Invalid { what: format!("invalid placement \"{text}\": {why}") })
    }
}

/// Formats the placement in the syntax that `from_str` parses.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Node(node) => node.fmt(f),
            Placement::Nodes(nodes) => node_list::format(nodes, f),
            Placement::Interleave(interleave) => write!(f, "interleave{interleave}"),
            Placement::Copies => f.write_str("copies"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_parse_from_their_own_output() {
        for text in ["0", "0,1", "3,0-2", "interleave", "interleave:1", "interleave:0,1/3,1", "63", "copies"]
        {
            assert_eq!(text.parse::<Placement>().unwrap().to_string(), text);
        }
        assert_eq!("0-1".parse::<Placement>().unwrap().to_string(), "0,1");
    }

    #[test]
    fn invalid_placements_are_rejected_with_the_reason() {
        for (text, words) in [
            ("", "expected NUMA nodes"),
            ("near", "expected NUMA nodes"),
            ("0,,1", "expected NUMA nodes"),
            ("+1", "expected NUMA nodes"),
            ("1-0", "invalid range 1-0: expected the lower node first"),
            ("0,0", "node 0 occurs twice"),
            ("0-64", "at most 64"),
            ("99999999999", "at most 4294967295"),
            ("1-99999999999", "at most 4294967295"),
            ("0, 1", "found \" 1\" (without spaces)"),
            ("Interleave:0", "interleave or copies (did you mean interleave?)"),
            ("intrleave", "(did you mean interleave?)"),
            ("all", "interleave or copies"),
            ("copies:0", "expected copies without a list of nodes"),
            ("copy", "(did you mean copies?)"),
            ("0/2", "weights belong to interleave"),
            ("interleaved", "expected interleave"),
            ("interleave:", "expected NUMA nodes"),
            ("interleave:0,1/1", "expected a weight for each of the nodes, 2 in all, found 1"),
            ("interleave:0,1/0,1", "invalid weight \"0\""),
            ("interleave:0,1/256,1", "invalid weight \"256\""),
        ] {
            let error = text.parse::<Placement>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
            assert_eq!(error.matches(&format!("\"{text}\"")).count(), 1, "{text}: {error}");
        }
    }
}
