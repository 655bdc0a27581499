//! The text of a list of nodes: `0,2-3`.

use std::fmt::{self, Write as _};

use hostbuf_os::NodeId;

use super::MAX_NODES;

/// Parses a list such as `0,2-3`, in which no node occurs twice and whose order is kept. The error
/// is the end of a message to the user.
pub(super) fn parse(text: &str) -> Result<Vec<NodeId>, String> {
    let mut nodes = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Some(first), Some(last)) = (number(first), number(last)) else {
            return Err(not_nodes(text, part));
        };
        if first > last {
            return Err(format!("invalid range {part}: expected the lower node first"));
        }
        for node in (first..=last).map(NodeId) {
            if nodes.contains(&node) {
                return Err(format!("node {node} occurs twice"));
            }
            if nodes.len() == MAX_NODES {
                return Err(format!("expected at most {MAX_NODES} nodes"));
            }
            nodes.push(node);
        }
    }
    Ok(nodes)
}

/// Returns the end of a message about `part` of `text`, which is no node and no range. The caller
/// states the whole text.
fn not_nodes(text: &str, part: &str) -> String {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if part.split('-').all(digits) {
        return format!("a node has a number of at most {}", u32::MAX);
    }
    let found = if part == text { String::new() } else { format!(", found \"{part}\"") };
    let hint = if part.contains(char::is_whitespace) {
        " (without spaces)"
    } else if part.contains('/') {
        " (weights belong to interleave:0,1/3,1)"
    } else if part.to_ascii_lowercase().starts_with("int") {
        " (did you mean interleave?)"
    } else if part.to_ascii_lowercase().starts_with("cop") {
        " (did you mean copies?)"
    } else {
        ""
    };
    format!("expected NUMA nodes such as 0 or 0,2-3, interleave or copies{found}{hint}")
}

/// Parses a number of digits alone: `from_str` of the standard library also takes a sign.
pub(super) fn number(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Names nodes in a message: `no node`, `node 0`, `nodes 0 and 1` or `nodes 0, 1 and 2`.
#[must_use]
pub fn name_nodes(nodes: impl IntoIterator<Item = NodeId>) -> String {
    let list: Vec<String> = nodes.into_iter().map(|node| node.to_string()).collect();
    match &list[..] {
        [] => "no node".into(),
        [one] => format!("node {one}"),
        [others @ .., last] => format!("nodes {} and {last}", others.join(", ")),
    }
}

/// Formats a list with ranges for runs of consecutive nodes, so that [`parse`] returns it.
pub(super) fn format(nodes: &[NodeId], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut rest = nodes;
    while let Some(&first) = rest.first() {
        let run = rest.iter().zip(first.0..).take_while(|(node, expected)| node.0 == *expected).count();
        match run {
            1 => write!(f, "{first}")?,
            2 => write!(f, "{first},{}", first.0 + 1)?,
            _ => write!(f, "{first}-{}", first.0 + run as u32 - 1)?,
        }
        rest = &rest[run..];
        if !rest.is_empty() {
            f.write_char(',')?;
        }
    }
    Ok(())
}
