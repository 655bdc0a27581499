//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

/// The address of a PCI function: `0000:18:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Exhaustive: the four parts of an address.
pub struct PciAddress {
    /// The domain, also called segment. Domains of Intel's Volume Management Device have more than
    /// 16 bits.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device, up to 31.
    pub device: u8,
    /// The function, up to 7.
    pub function: u8,
}

/// A text that is no address of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciAddressError {
    text: String,
}

impl fmt::Display for PciAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid PCI address {:?}: expected domain:bus:device.function, as in 0000:18:00.0",
            self.text
        )
    }
}

impl std::error::Error for PciAddressError {}

impl PciAddress {
    /// Returns true if both functions belong to one device: a card with several functions.
    #[must_use]
    pub fn same_device(&self, other: &PciAddress) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    /// Parses `domain:bus:device.function` in hexadecimal, also with NVML's domain of 8 digits.
    fn from_str(text: &str) -> Result<PciAddress, PciAddressError> {
        let parse = || {
            let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
                let valid = digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                u32::from_str_radix(text, 16).ok().filter(|_| valid)
            };
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            Some(PciAddress {
                domain: hex(domain, 4..=8)?,
                bus: hex(bus, 2..=2)?.try_into().ok()?,
                device: hex(device, 2..=2)?.try_into().ok().filter(|device| *device < 32)?,
                function: hex(function, 1..=1)?.try_into().ok().filter(|function| *function < 8)?,
            })
        };
        parse().ok_or_else(|| PciAddressError { text: text.into() })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_written() {
        for (text, written) in [
            ("0000:18:00.0", "0000:18:00.0"),
            ("00000000:C1:1F.7", "0000:c1:1f.7"),
            ("10000:01:00.0", "10000:01:00.0"),
        ] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), written);
        }
        for text in [
            "",
            "18:00.0",
            "0000:18:20.0",
            "0000:18:00.8",
            "0000:18:00",
            "0000:18:00.0 ",
            "pci0000:00",
            "0000:+8:00.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }
}
