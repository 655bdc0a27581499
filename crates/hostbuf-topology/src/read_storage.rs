//! Reads the drives of a tree, and the block devices that are made of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::io_device::{DeviceKind, IoDevice};
use crate::pci_location::PciLocation;
use crate::tree::TreeReader;

const BLOCKS: &str = "sys/class/block";
const OLD_BLOCKS: &str = "sys/block";

/// The drives of a tree, and the block devices that are made of them.
#[derive(Default)]
pub(crate) struct BlockDevices {
    /// The drives with the real paths of their devices.
    pub(crate) drives: Vec<(IoDevice, Option<String>)>,
    /// The block devices below each partition, volume or array, by name.
    pub(crate) below: BTreeMap<String, Vec<String>>,
}

/// Returns the block devices.
pub(crate) fn block_devices(reader: &TreeReader) -> BlockDevices {
    let mut found = BlockDevices::default();
    let class = if reader.exists(BLOCKS) { BLOCKS } else { OLD_BLOCKS };
    for name in reader.names(class) {
        let path = format!("{class}/{name}");
        let Some(real) = reader.resolve(&path) else { continue };
        if reader.exists(&format!("{path}/partition")) {
            let mut folders = real.rsplit('/').skip(1);
            found.below.insert(name, folders.next().into_iter().map(str::to_owned).collect());
            continue;
        }
        let slaves = reader.names(&format!("{path}/slaves"));
        if !slaves.is_empty() {
            // A volume of the device mapper has a name of its own besides that of its device.
            if let Some(volume) = reader.text(&format!("{path}/dm/name")).filter(|volume| !volume.is_empty())
            {
                found.below.insert(volume, vec![name.clone()]);
            }
            found.below.insert(name, slaves);
            continue;
        }
        // The paths of a drive with several are hidden behind one block device.
        if reader.text(&format!("{path}/hidden")).as_deref() == Some("1") {
            continue;
        }
        let Some(real) = device_path(reader, &path, real) else { continue };
        let mut drive = IoDevice::new(DeviceKind::Storage, name.clone(), PciLocation::from_path(&real));
        drive.usable = reader.value::<u64>(&format!("{path}/size")).is_some_and(|sectors| sectors > 0);
        drive.os_names.push(name);
        found.drives.push((drive, Some(real)));
    }
    found
}

/// Returns the real path of a drive, or `None` for a virtual device.
fn device_path(reader: &TreeReader, path: &str, real: String) -> Option<String> {
    let Some(below) = real.strip_prefix("sys/devices/virtual/") else {
        // Kernels before 2.6.20 had a folder in the class, with a link to the device.
        return if real.starts_with("sys/devices/") {
            Some(real)
        } else {
            reader.resolve(&format!("{path}/device"))
        };
    };
    // An NVMe drive that may have several controllers is below its subsystem, which has links to
    // them.
    let subsystem = below.strip_prefix("nvme-subsystem/")?.split('/').next()?;
    let subsystem = format!("sys/devices/virtual/nvme-subsystem/{subsystem}");
    let is_controller = |name: &String| {
        let digits = name.strip_prefix("nvme").unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let controllers = reader.names(&subsystem).into_iter().filter(is_controller);
    let mut paths = controllers.filter_map(|name| reader.resolve(&format!("{subsystem}/{name}")));
    paths.find(|path| PciLocation::from_path(path).function().is_some())
}

/// Returns the names of the drives that the block device `name` consists of, by following `below`.
pub(crate) fn drives_below(below: &BTreeMap<String, Vec<String>>, name: &str) -> BTreeSet<String> {
    let (mut drives, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut remaining = vec![name.to_owned()];
    while let Some(name) = remaining.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        match below.get(&name) {
            Some(names) => remaining.extend(names.iter().cloned()),
            None => {
                drives.insert(name);
            }
        }
    }
    drives
}
