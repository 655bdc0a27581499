//! Lists of devices as text, for the launcher's `--register`.

use std::fmt;
use std::str::FromStr;

use super::name::DeviceName;

/// The suffix of an optional device.
const OPTIONAL: &str = ":optional";

/// A device of a [`DeviceList`]: the name of a device, followed by `:optional` if the job runs
/// without it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedDevice {
    /// The name of the device.
    pub name: DeviceName,
    /// True if the job runs without the device when it is missing.
    pub optional: bool,
}

/// Devices, separated by commas: `cuda:optional,rdma:mlx5_0`. No device is named twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
// Exhaustive: a list, and nothing else.
pub struct DeviceList(pub Vec<ListedDevice>);

impl FromStr for ListedDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<ListedDevice, String> {
        let (name, optional) = text.strip_suffix(OPTIONAL).map_or((text, false), |name| (name, true));
        let name = name.parse().map_err(|e| format!("{e}, each also with {OPTIONAL}"))?;
        Ok(ListedDevice { name, optional })
    }
}

impl fmt::Display for ListedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, if self.optional { OPTIONAL } else { "" })
    }
}

impl FromStr for DeviceList {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceList, String> {
        let devices: Vec<ListedDevice> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        for (i, device) in devices.iter().enumerate() {
            if devices[..i].iter().any(|d| d.name == device.name) {
                return Err(format!("{} is named twice", device.name));
            }
        }
        for (i, device) in devices.iter().enumerate() {
            let is_second = devices[..i].iter().any(|d| d.name.kind() == device.name.kind());
            if let Some(why) = device.name.only_one().filter(|_| is_second) {
                return Err(why.into());
            }
        }
        Ok(DeviceList(devices))
    }
}

impl fmt::Display for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, device) in self.0.iter().enumerate() {
            write!(f, "{}{device}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_parse_and_print() {
        for text in [
            "cuda",
            "cuda:1",
            "rdma",
            "rdma:mlx5_0",
            "mlock",
            "cuda:optional,rdma:rxe0:optional,mlock",
            "rdma:a,rdma:b",
        ] {
            assert_eq!(text.parse::<DeviceList>().unwrap().to_string(), text);
        }
        assert_eq!("cuda:0".parse::<DeviceList>().unwrap().to_string(), "cuda");
        let optional = "rdma:mlx5_0:optional".parse::<ListedDevice>().unwrap();
        assert_eq!((optional.name, optional.optional), ("rdma:mlx5_0".parse().unwrap(), true));
    }

    #[test]
    fn an_error_names_the_invalid_device() {
        for (text, words) in [
            ("", "is not a device"),
            ("gpu", "\"gpu\" is not a device: expected cuda"),
            ("cuda?", "is not a device"),
            ("cuda,,rdma", "is not a device"),
            ("cuda,", "is not a device"),
            ("rdma,rdma:optional", "rdma is named twice"),
            ("cuda,cuda:0", "cuda is named twice"),
            ("cuda,cuda:1", "one is enough"),
        ] {
            let error = text.parse::<DeviceList>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
