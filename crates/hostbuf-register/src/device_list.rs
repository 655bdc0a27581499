//! What `--register` names: the devices with which a host's buffers are registered before `main`.

use std::fmt;
use std::str::FromStr;

use hostbuf::register::DeviceName;

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) name: DeviceName,
    /// Where it is not there, the job goes on without it.
    pub(crate) optional: bool,
}

/// Several devices, as `--register` and the variable of the registering object have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices(pub(crate) Vec<Device>);

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        let (name, optional) = text.strip_suffix('?').map_or((text, false), |name| (name, true));
        let name = name.parse().map_err(|e| format!("{e}, each also with a ? behind it"))?;
        Ok(Device { name, optional })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, if self.optional { "?" } else { "" })
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Devices, String> {
        let devices: Vec<Device> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        for (i, device) in devices.iter().enumerate() {
            if devices[..i].iter().any(|d| d.name == device.name) {
                return Err(format!("{} is named twice", device.name));
            }
        }
        if devices.iter().filter(|d| matches!(d.name, DeviceName::Cuda(_))).count() > 1 {
            return Err("several GPUs are named: one registration serves them all, so one is enough".into());
        }
        Ok(Devices(devices))
    }
}

impl fmt::Display for Devices {
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
    fn devices_read_and_print() {
        for text in
            ["cuda", "cuda:1", "rdma", "rdma:mlx5_0", "mlock", "cuda?,rdma:rxe0?,mlock", "rdma:a,rdma:b"]
        {
            assert_eq!(text.parse::<Devices>().unwrap().to_string(), text);
        }
        assert_eq!("cuda:0".parse::<Devices>().unwrap().to_string(), "cuda");
        let optional = "rdma:mlx5_0?".parse::<Device>().unwrap();
        assert_eq!((optional.name, optional.optional), (DeviceName::Rdma(Some("mlx5_0".into())), true));
    }

    #[test]
    fn what_is_no_device_is_named() {
        for (text, words) in [
            ("", "is no device"),
            ("gpu", "\"gpu\" is no device; cuda"),
            ("cuda??", "is no device"),
            ("cuda,,rdma", "is no device"),
            ("cuda,", "is no device"),
            ("rdma,rdma?", "rdma is named twice"),
            ("cuda,cuda:0", "cuda is named twice"),
            ("cuda,cuda:1", "one is enough"),
        ] {
            let error = text.parse::<Devices>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
