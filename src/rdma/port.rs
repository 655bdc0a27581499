//! Which port of a device is used, and the address that peers know it by.

use std::fs;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use ibverbs_sys as ffi;

use crate::error::{Error, Result};
use crate::register::{Registrar, Verbs};

/// A port of a device, and its address for peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    /// Counted from 1.
    pub(super) number: u8,
    /// Which of the port's addresses is used.
    pub(super) index: u8,
    /// The address: what a peer sends to.
    pub(super) address: [u8; 16],
    /// The most bytes in one packet, as verbs count them.
    pub(super) mtu: ffi::ibv_mtu,
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
    pub(super) fn choose(verbs: &Verbs, index: Option<u8>) -> Result<Port> {
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
                    let mtu = mtu(&device, number);
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

    /// For people.
    pub(super) fn show(address: [u8; 16]) -> String {
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

/// `active_mtu` of a port; 1024 bytes where that cannot be asked, which every device takes.
fn mtu(device: &str, port: u8) -> ffi::ibv_mtu {
    // SoftRoCE and RoCE devices take what fits the network interface's own.
    let interface = folder(device).join(format!("{port}/gid_attrs/ndevs/0"));
    let name = fs::read_to_string(interface).unwrap_or_default();
    let bytes = fs::read_to_string(format!("/sys/class/net/{}/mtu", name.trim())).unwrap_or_default();
    of_interface(bytes.trim().parse().unwrap_or(0))
}

/// What fits into an interface's packets beside the headers of RoCE v2.
fn of_interface(bytes: u32) -> ffi::ibv_mtu {
    const HEADERS: u32 = 128;
    match bytes.saturating_sub(HEADERS) {
        4096.. => ffi::IBV_MTU_4096,
        2048.. => ffi::IBV_MTU_2048,
        _ => ffi::IBV_MTU_1024,
    }
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
    fn packets_fit_the_interface() {
        assert_eq!(of_interface(9000), ffi::IBV_MTU_4096);
        assert_eq!(of_interface(4200), ffi::IBV_MTU_2048);
        assert_eq!(of_interface(1500), ffi::IBV_MTU_1024);
        assert_eq!(of_interface(0), ffi::IBV_MTU_1024);
    }
}
