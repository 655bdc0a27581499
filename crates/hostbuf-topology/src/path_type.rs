//! Types of paths between devices.

use std::cmp::{Ordering, Reverse};
use std::fmt;

/// The type of the path between two devices, or between a device and a NUMA node, in the terms of
/// `nvidia-smi topo -m`. The order is that of closeness: the closest type is the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathType {
    /// One device, or two functions of the driver on one PCI function.
    Same,
    /// A number of NVLinks, direct or through NVSwitches.
    NvLink(u32),
    /// At most one PCIe switch, or one root port, or two functions of one card.
    Pix,
    /// Several PCIe switches below one root port.
    Pxb,
    /// The host bridge of both devices, usually the CPU.
    Phb,
    /// Two host bridges of one NUMA node.
    Node,
    /// The connection between NUMA nodes.
    Sys,
}

impl PathType {
    /// Returns the name in the matrix of `nvidia-smi topo -m`, without the number of NVLinks.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PathType::Same => "X",
            PathType::NvLink(_) => "NV",
            PathType::Pix => "PIX",
            PathType::Pxb => "PXB",
            PathType::Phb => "PHB",
            PathType::Node => "NODE",
            PathType::Sys => "SYS",
        }
    }

    /// Returns a key that sorts by closeness: more NVLinks are closer than fewer.
    fn key(self) -> (u8, Reverse<u32>) {
        match self {
            PathType::Same => (0, Reverse(0)),
            PathType::NvLink(count) => (1, Reverse(count)),
            PathType::Pix => (2, Reverse(0)),
            PathType::Pxb => (3, Reverse(0)),
            PathType::Phb => (4, Reverse(0)),
            PathType::Node => (5, Reverse(0)),
            PathType::Sys => (6, Reverse(0)),
        }
    }
}

impl Ord for PathType {
    fn cmp(&self, other: &PathType) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for PathType {
    fn partial_cmp(&self, other: &PathType) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for PathType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathType::NvLink(count) => f.pad(&format!("NV{count}")),
            other => f.pad(other.name()),
        }
    }
}

/// The path between two devices, or between a device and a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DevicePath {
    /// The type of the path.
    pub path_type: PathType,
    /// True if the type follows from an assumption, since the kernel does not show the PCI parents
    /// or the node of a device.
    pub assumed: bool,
}

impl fmt::Display for DevicePath {
    /// Writes the name of the type, with a question mark if it is assumed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}{}", self.path_type, if self.assumed { "?" } else { "" }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closer_types_are_smaller() {
        use PathType::{Node, NvLink, Phb, Pix, Pxb, Same, Sys};
        let ascending = [Same, NvLink(18), NvLink(2), Pix, Pxb, Phb, Node, Sys];
        assert!(ascending.is_sorted_by(|a, b| a < b));
        assert_eq!(ascending.map(|path| path.to_string()).join(" "), "X NV18 NV2 PIX PXB PHB NODE SYS");
        let path = DevicePath { path_type: Sys, assumed: true };
        assert_eq!(format!("{path:>6}"), "  SYS?");
    }
}
