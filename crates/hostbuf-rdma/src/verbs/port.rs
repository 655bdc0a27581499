//! Which port of a device is used, and the address that peers know it by.

#![allow(unsafe_code)]

use std::fs;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use ibverbs_sys as ffi;

use crate::error::{Error, Result};
use crate::register::{Registrar, Verbs};

/// A port of a device, and its address for peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    /// Counted from 1.
    pub(crate) number: u8,
    /// Which of the port's addresses is used.
    pub(crate) index: u8,
    /// The address: what a peer sends to.
    pub(crate) address: [u8; 16],
    /// The most bytes in one packet, as verbs count them.
    pub(crate) mtu: ffi::ibv_mtu,
}

/// One line of a port's table of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    index: u8,
    address: [u8; 16],
    kind: String,
}

impl Port {
    /// The first port of `verbs` that is up, by the address `index`, or by the one that suits best.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when no port is up, or none has an address that RoCE v2 can use.
    pub(crate) fn choose(verbs: &Verbs, index: Option<u8>) -> Result<Port> {
        let device = verbs.name();
        let unsupported = |why: String| Error::Unsupported { what: format!("RDMA by {device}"), why };
        let ports = fs::read_dir(folder(&device)).map_err(|e| unsupported(format!("its ports: {e}")))?;
        let mut numbers: Vec<u8> =
            ports.flatten().filter_map(|port| port.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        let mut why = "it has no port".to_owned();
        for number in numbers {
            let port = folder(&device).join(number.to_string());
            let state = fs::read_to_string(port.join("state")).unwrap_or_default();
            // `4: ACTIVE`
            if !state.starts_with("4:") {
                why = format!("port {number} is not up ({}): see `rdma link`", state.trim());
                continue;
            }
            let entries = entries(&port);
            let chosen = match index {
                Some(index) => entries.iter().find(|entry| entry.index == index),
                None => best(&entries),
            };
            match chosen {
                Some(entry) => {
                    let mtu = mtu(verbs, number);
                    return Ok(Port { number, index: entry.index, address: entry.address, mtu });
                }
                None => {
                    why = format!(
                        "port {number} has no address that RoCE v2 can use: give its network interface an IP address"
                    );
                }
            }
        }
        Err(unsupported(why))
    }

    /// The same with packets of at most so many bytes, a power of two from 256 on.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the port takes only smaller ones.
    pub(crate) fn with_mtu(mut self, bytes: Option<u16>) -> Result<Port> {
        let Some(bytes) = bytes else { return Ok(self) };
        let most = bytes_of(self.mtu);
        if bytes > most {
            return Err(Error::invalid(format!(
                "the fabric's option mtu is {bytes}, and the port takes {most}"
            )));
        }
        self.mtu = bytes.trailing_zeros() - 7;
        Ok(self)
    }

    /// For people.
    pub(crate) fn show(address: [u8; 16]) -> String {
        let address = Ipv6Addr::from(address);
        address.to_ipv4_mapped().map_or_else(|| address.to_string(), |v4| v4.to_string())
    }
}

fn folder(device: &str) -> PathBuf {
    PathBuf::from(format!("/sys/class/infiniband/{device}/ports"))
}

fn entries(port: &std::path::Path) -> Vec<Entry> {
    let types = fs::read_dir(port.join("gid_attrs/types")).into_iter().flatten().flatten();
    let entry = |file: fs::DirEntry| {
        let index: u8 = file.file_name().to_str()?.parse().ok()?;
        // An empty place of the table cannot be read.
        let kind = fs::read_to_string(file.path()).ok()?.trim().to_owned();
        let text = fs::read_to_string(port.join(format!("gids/{index}"))).ok()?;
        let address = text.trim().parse::<Ipv6Addr>().ok()?.octets();
        Some(Entry { index, address, kind })
    };
    let mut entries: Vec<Entry> = types.filter_map(entry).filter(|entry| entry.address != [0; 16]).collect();
    entries.sort_unstable_by_key(|entry| entry.index);
    entries
}

/// RoCE v2 over IPv4, else over an IPv6 address that goes beyond the link, else over the link's own. InfiniBand has but one
/// kind, and its first address is always there.
fn best(entries: &[Entry]) -> Option<&Entry> {
    let worth = |entry: &&Entry| {
        let address = Ipv6Addr::from(entry.address);
        match entry.kind.as_str() {
            "RoCE v2" if address.to_ipv4_mapped().is_some() => Some(0),
            "RoCE v2" if !address.is_unicast_link_local() => Some(1),
            "RoCE v2" => Some(2),
            "IB/RoCE v1" => None,
            _ => Some(3),
        }
    };
    entries.iter().filter(|entry| worth(entry).is_some()).min_by_key(|entry| worth(entry))
}

/// The most bytes of a packet that a port takes now; 1024 bytes where it cannot say, which every device takes.
fn mtu(verbs: &Verbs, port: u8) -> ffi::ibv_mtu {
    let mut attributes = ffi::ibv_port_attr::default();
    // SAFETY: a device that is open; the library writes no more than the first part of the attributes.
    let code = unsafe { ffi::ibv_query_port(verbs.context().as_ptr(), port, (&raw mut attributes).cast()) };
    match code {
        0 => attributes.active_mtu,
        _ => ffi::IBV_MTU_1024,
    }
}

/// As verbs count them: 1 for 256 bytes, one more for each doubling.
fn bytes_of(mtu: ffi::ibv_mtu) -> u16 {
    1 << (mtu + 7).min(15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, address: &str, kind: &str) -> Entry {
        Entry { index, address: address.parse::<Ipv6Addr>().unwrap().octets(), kind: kind.into() }
    }

    #[test]
    fn the_address_is_roce_v2_over_ipv4_where_there_is_one() {
        let all = [
            entry(0, "fe80::1", "IB/RoCE v1"),
            entry(1, "fe80::1", "RoCE v2"),
            entry(2, "::ffff:10.9.0.1", "IB/RoCE v1"),
            entry(3, "::ffff:10.9.0.1", "RoCE v2"),
            entry(4, "2001:db8::1", "RoCE v2"),
        ];
        assert_eq!(best(&all).unwrap().index, 3);
        assert_eq!(best(&all[..3]).unwrap().index, 1);
        assert_eq!(best(&[all[1].clone(), all[4].clone()]).unwrap().index, 4);
        assert_eq!(best(&all[..1]), None);
        assert_eq!(Port::show(all[3].address), "10.9.0.1");
    }

    #[test]
    fn packets_are_no_larger_than_the_port_takes() {
        let port = Port { number: 1, index: 0, address: [0; 16], mtu: ffi::IBV_MTU_2048 };
        assert_eq!(port.with_mtu(None).unwrap().mtu, ffi::IBV_MTU_2048);
        assert_eq!(port.with_mtu(Some(256)).unwrap().mtu, ffi::IBV_MTU_256);
        assert_eq!(port.with_mtu(Some(2048)).unwrap().mtu, ffi::IBV_MTU_2048);
        assert!(port.with_mtu(Some(4096)).unwrap_err().to_string().contains("the port takes 2048"));
    }
}
