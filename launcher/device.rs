//! What `--register` names: the devices with which a host's buffers are registered before `main`.

use std::fmt;
use std::str::FromStr;

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) kind: Kind,
    /// Where it is not there, the job goes on without it.
    pub(crate) optional: bool,
}

/// What kind of device, and which of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No device: pages are locked into memory.
    Mlock,
    /// All GPUs, by the context of the one with this number.
    Cuda(u32),
    /// The RDMA device of this name; the first one without.
    Rdma(Option<String>),
}

/// Several devices, as `--register` and the variable of the registering object have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Devices(pub(crate) Vec<Device>);

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        let (name, optional) = text.strip_suffix('?').map_or((text, false), |name| (name, true));
        let wrong = |why: &str| {
            format!(
                "\"{text}\" {why}; cuda, cuda:NUMBER, rdma, rdma:NAME and mlock are known, each also with a ? behind it"
            )
        };
        let (name, which) = name.split_once(':').map_or((name, None), |(name, which)| (name, Some(which)));
        let kind = match (name, which) {
            ("mlock", None) => Kind::Mlock,
            ("mlock", Some(_)) => return Err(wrong("has no parts to choose from")),
            ("cuda", None) => Kind::Cuda(0),
            ("cuda", Some(number)) => {
                let digits = number.bytes().all(|b| b.is_ascii_digit());
                let number = number.parse().ok().filter(|_| digits);
                Kind::Cuda(number.ok_or_else(|| wrong("wants the number of a GPU"))?)
            }
            ("rdma", None) => Kind::Rdma(None),
            ("rdma", Some(name)) => {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
                if name.is_empty() || !name.bytes().all(plain) {
                    return Err(wrong("wants the name of a device, like mlx5_0"));
                }
                Kind::Rdma(Some(name.into()))
            }
            _ => return Err(wrong("is no device")),
        };
        Ok(Device { kind, optional })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Mlock => f.write_str("mlock"),
            Kind::Cuda(0) => f.write_str("cuda"),
            Kind::Cuda(number) => write!(f, "cuda:{number}"),
            Kind::Rdma(None) => f.write_str("rdma"),
            Kind::Rdma(Some(name)) => write!(f, "rdma:{name}"),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind, if self.optional { "?" } else { "" })
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Devices, String> {
        let devices: Vec<Device> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        for (i, device) in devices.iter().enumerate() {
            if devices[..i].iter().any(|d| d.kind == device.kind) {
                return Err(format!("{} is named twice", device.kind));
            }
        }
        if devices.iter().filter(|d| matches!(d.kind, Kind::Cuda(_))).count() > 1 {
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
        assert_eq!((optional.kind, optional.optional), (Kind::Rdma(Some("mlx5_0".into())), true));
    }

    #[test]
    fn what_is_no_device_is_named() {
        for (text, words) in [
            ("", "is no device"),
            ("gpu", "\"gpu\" is no device; cuda"),
            ("CUDA", "is no device"),
            ("cuda:", "number of a GPU"),
            ("cuda:x", "number of a GPU"),
            ("cuda:+1", "number of a GPU"),
            ("cuda:-1", "number of a GPU"),
            ("cuda:99999999999", "number of a GPU"),
            ("rdma:", "like mlx5_0"),
            ("rdma:a b", "like mlx5_0"),
            ("rdma:a:b", "like mlx5_0"),
            ("mlock:1", "no parts"),
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
