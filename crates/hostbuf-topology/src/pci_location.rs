//! Locations of devices in the PCI tree.

use crate::path_type::PathType;
use crate::pci_address::PciAddress;

/// A folder of a device's real path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PciFolder {
    /// A root bus, such as `pci0000:00`: a host bridge.
    Root(String),
    /// A function: a bridge above the device, or the device.
    Function(PciAddress),
}

/// The folders of a device's real path from its root bus down to its function. They are empty for a
/// device outside PCI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PciLocation {
    folders: Vec<PciFolder>,
}

impl PciLocation {
    /// Returns the location of a device by its real path, such as
    /// `sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0/net/eth0`.
    pub(crate) fn from_path(path: &str) -> PciLocation {
        let folder = |name: &str| match name.parse() {
            Ok(address) => Some(PciFolder::Function(address)),
            Err(_) => is_root(name).then(|| PciFolder::Root(name.to_owned())),
        };
        let folders = path.split('/').skip_while(|name| !is_root(name)).map_while(folder).collect();
        PciLocation { folders }
    }

    /// Returns the device's function.
    pub(crate) fn function(&self) -> Option<PciAddress> {
        match self.folders.last() {
            Some(PciFolder::Function(address)) => Some(*address),
            _ => None,
        }
    }

    /// Returns the bridges above the function, the nearest last, below the nearest root bus.
    pub(crate) fn parents(&self) -> Vec<PciAddress> {
        let below_root = self.folders.iter().rposition(|folder| matches!(folder, PciFolder::Root(_)));
        let functions = self.folders.iter().skip(below_root.map_or(0, |root| root + 1));
        let mut parents: Vec<PciAddress> = functions
            .filter_map(|folder| match folder {
                PciFolder::Function(address) => Some(*address),
                PciFolder::Root(_) => None,
            })
            .collect();
        parents.pop();
        parents
    }

    /// Returns the type of the path to a device with the same root bus, or `None` for devices of
    /// different root buses and for devices outside PCI.
    ///
    /// The last common folder decides. If it is a port, and at most one further port is between it
    /// and each device, then one switch or one root port connects them. Bus numbers say nothing:
    /// they are given in the order of discovery.
    pub(crate) fn path_type(&self, other: &PciLocation) -> Option<PathType> {
        let (a, b) = (self.function()?, other.function()?);
        let common = self.folders.iter().zip(&other.folders).take_while(|(a, b)| a == b).count();
        let last = self.folders.get(common.checked_sub(1)?)?;
        let ports_below = |location: &PciLocation| location.folders.len().saturating_sub(common + 1);
        Some(match last {
            _ if self == other => PathType::Same,
            PciFolder::Root(_) if a.same_device(&b) => PathType::Pix,
            PciFolder::Root(_) => PathType::Phb,
            PciFolder::Function(_) if ports_below(self).max(ports_below(other)) <= 1 => PathType::Pix,
            PciFolder::Function(_) => PathType::Pxb,
        })
    }
}

/// Returns true for the name of a root bus: `pci` with the domain and the bus.
fn is_root(name: &str) -> bool {
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = name.strip_prefix("pci").and_then(|name| name.split_once(':'));
    parts.is_some_and(|(domain, bus)| hex(domain) && hex(bus) && bus.len() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "sys/devices/pci0000:00";

    fn location(below: &str) -> PciLocation {
        PciLocation::from_path(&format!("{ROOT}/{below}"))
    }

    #[test]
    fn parents_end_at_the_nearest_root_bus() {
        let parents = |path: &str| {
            let parents = PciLocation::from_path(path).parents();
            parents.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(parents("sys/devices/pci0000:00/0000:00:01.1/0000:02:00.0/net/eth0"), "0000:00:01.1");
        assert_eq!(parents("sys/devices/pci0000:00/0000:00:03.0/virtio0/net/eth0"), "");
        // A root bus inside of a function: Intel's Volume Management Device.
        let vmd =
            "sys/devices/pci0000:64/0000:64:00.5/pci10000:00/10000:00:02.0/10000:01:00.0/nvme/nvme0/nvme0n1";
        assert_eq!(parents(vmd), "10000:00:02.0");
        assert_eq!(PciLocation::from_path("sys/devices/virtual/net/lo"), PciLocation::default());
        assert_eq!(PciLocation::from_path("sys/devices/pci0000:00").function(), None);
    }

    #[test]
    fn the_last_common_folder_decides() {
        let switch = "0000:00:01.0/0000:01:00.0";
        let table = [
            // One function.
            ("0000:00:01.0/0000:01:00.0", "0000:00:01.0/0000:01:00.0/net/eth1", Some(PathType::Same)),
            // A card with two functions, below a root port and on the root bus.
            ("0000:00:01.0/0000:01:00.0", "0000:00:01.0/0000:01:00.1", Some(PathType::Pix)),
            ("0000:00:04.0", "0000:00:04.1", Some(PathType::Pix)),
            // Devices on the root bus, as in virtual machines.
            ("0000:00:04.0", "0000:00:05.0", Some(PathType::Phb)),
            // Two root ports, whose buses have neighbouring numbers.
            ("0000:00:01.0/0000:01:00.0", "0000:00:01.1/0000:02:00.0", Some(PathType::Phb)),
            // Two downstream ports of one switch.
            (
                &format!("{switch}/0000:02:00.0/0000:03:00.0"),
                &format!("{switch}/0000:02:01.0/0000:04:00.0"),
                Some(PathType::Pix),
            ),
            // A device of the switch itself, and one behind a downstream port.
            (
                &format!("{switch}/0000:02:04.0"),
                &format!("{switch}/0000:02:01.0/0000:04:00.0"),
                Some(PathType::Pix),
            ),
            // A second switch below the first.
            (
                &format!("{switch}/0000:02:00.0/0000:03:00.0"),
                &format!("{switch}/0000:02:01.0/0000:04:00.0/0000:05:00.0/0000:06:00.0"),
                Some(PathType::Pxb),
            ),
        ];
        for (a, b, expected) in table {
            assert_eq!(location(a).path_type(&location(b)), expected, "{a} {b}");
            assert_eq!(location(b).path_type(&location(a)), expected, "{b} {a}");
        }
        let other = PciLocation::from_path("sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0");
        assert_eq!(location("0000:00:01.0/0000:01:00.0").path_type(&other), None);
        assert_eq!(location("0000:00:04.0").path_type(&PciLocation::default()), None);
    }
}
