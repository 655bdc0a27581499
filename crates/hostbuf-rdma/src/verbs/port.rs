//! The port of a device, and the choice of its address.

#![allow(unsafe_code, reason = "libibverbs is called by foreign functions")]

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use ibverbs_sys as ffi;

use crate::verbs::gid::Gid;
use hostbuf::error::{Error, Result};
use hostbuf_register::{Registrar, Verbs};

/// A port of a device, with the address that peers send to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    /// The number of the port, from 1.
    pub(crate) number: u8,
    /// The index of `gid` in the port's GID table.
    pub(crate) gid_index: u8,
    pub(crate) gid: Gid,
    /// The maximum transfer unit, in the encoding of verbs.
    pub(crate) mtu: ffi::ibv_mtu,
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GidEntry {
    index: u8,
    gid: Gid,
    /// The type as in sysfs, for example `RoCE v2`.
    kind: String,
}

impl Port {
    /// Chooses the first port of `verbs` that is up, with the GID at `index`, or with the most
    /// suitable GID if there is no index.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no port is up, or none has a GID for RoCE v2 or InfiniBand.
    pub(crate) fn choose(verbs: &Verbs, index: Option<u8>) -> Result<Port> {
        let device = verbs.name();
        let unsupported = |why: String| Error::Unsupported { what: format!("RDMA by {device}"), why };
        let ports =
            fs::read_dir(folder(&device)).map_err(|e| unsupported(format!("cannot list its ports: {e}")))?;
        let mut numbers: Vec<u8> =
            ports.flatten().filter_map(|port| port.file_name().to_str()?.parse().ok()).collect();
        numbers.sort_unstable();
        let mut why = "the device has no port".to_owned();
        for number in numbers {
            let port = folder(&device).join(number.to_string());
            let state = fs::read_to_string(port.join("state")).unwrap_or_default();
            // The number of the state and its name: `4: ACTIVE`.
            if !state.starts_with("4:") {
                why = format!("port {number} is not active ({}): see `rdma link`", state.trim());
                continue;
            }
            let entries = gid_entries(&port);
            let chosen = match index {
                Some(index) => entries.iter().find(|entry| entry.index == index),
                None => best(&entries),
            };
            match chosen {
                Some(entry) => {
                    let mtu = mtu(verbs, number);
                    return Ok(Port { number, gid_index: entry.index, gid: entry.gid, mtu });
                }
                None => {
                    why = match index {
                        Some(index) => format!("port {number} has no GID with index {index}"),
                        None => format!(
                            "port {number} has no GID for RoCE v2: give its network interface an IP address"
                        ),
                    };
                }
            }
        }
        Err(unsupported(why))
    }

    /// Limits packets to `bytes` bytes, a power of two from 256 on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the port supports only smaller packets.
    pub(crate) fn with_mtu(mut self, bytes: Option<u16>) -> Result<Port> {
        let Some(bytes) = bytes else { return Ok(self) };
        let most = bytes_of(self.mtu);
        if bytes > most {
            return Err(Error::invalid(format!(
                "invalid MTU {bytes}: the port supports at most {most} bytes"
            )));
        }
        self.mtu = bytes.trailing_zeros() - 7;
        Ok(self)
    }
}

fn folder(device: &str) -> PathBuf {
    PathBuf::from(format!("/sys/class/infiniband/{device}/ports"))
}

fn gid_entries(port: &Path) -> Vec<GidEntry> {
    let types = fs::read_dir(port.join("gid_attrs/types")).into_iter().flatten().flatten();
    let entry = |file: fs::DirEntry| {
        let index: u8 = file.file_name().to_str()?.parse().ok()?;
        // Reading an unused entry fails.
        let kind = fs::read_to_string(file.path()).ok()?.trim().to_owned();
        let text = fs::read_to_string(port.join(format!("gids/{index}"))).ok()?;
        let gid = text.trim().parse::<Ipv6Addr>().ok()?.into();
        Some(GidEntry { index, gid, kind })
    };
    let mut entries: Vec<GidEntry> =
        types.filter_map(entry).filter(|entry| entry.gid != Gid::UNSPECIFIED).collect();
    entries.sort_unstable_by_key(|entry| entry.index);
    entries
}

/// Returns the entry with the widest reach: RoCE v2 over IPv4, then over a routable IPv6 address,
/// then over a link-local one. InfiniBand has one type only, and its first GID is always valid.
fn best(entries: &[GidEntry]) -> Option<&GidEntry> {
    let rank = |entry: &&GidEntry| {
        let address = entry.gid.to_ipv6();
        match entry.kind.as_str() {
            "RoCE v2" if address.to_ipv4_mapped().is_some() => Some(0),
            "RoCE v2" if !address.is_unicast_link_local() => Some(1),
            "RoCE v2" => Some(2),
            "IB/RoCE v1" => None,
            _ => Some(3),
        }
    };
    entries.iter().filter(|entry| rank(entry).is_some()).min_by_key(|entry| rank(entry))
}

/// Returns the active MTU of a port, or 1024 bytes, which every device supports, if the query
/// fails.
fn mtu(verbs: &Verbs, port: u8) -> ffi::ibv_mtu {
    let mut attributes = ffi::ibv_port_attr::default();
    // SAFETY: the device is open; the library writes only the leading part of the attributes.
    let code =
        unsafe { ffi::ibv_query_port(verbs.context().as_ptr().cast(), port, (&raw mut attributes).cast()) };
    match code {
        0 => attributes.active_mtu,
        _ => ffi::IBV_MTU_1024,
    }
}

/// Decodes an MTU of verbs: 1 means 256 bytes, and each increment doubles that.
fn bytes_of(mtu: ffi::ibv_mtu) -> u16 {
    1 << (mtu + 7).min(15)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, gid: &str, kind: &str) -> GidEntry {
        GidEntry { index, gid: gid.parse::<Ipv6Addr>().unwrap().into(), kind: kind.into() }
    }

    #[test]
    fn roce_v2_over_ipv4_is_preferred() {
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
        assert_eq!(all[3].gid.to_string(), "10.9.0.1");
        assert_eq!(all[4].gid.to_string(), "2001:db8::1");
    }

    #[test]
    fn an_mtu_above_the_port_limit_is_an_error() {
        let port = Port { number: 1, gid_index: 0, gid: Gid::UNSPECIFIED, mtu: ffi::IBV_MTU_2048 };
        assert_eq!(port.with_mtu(None).unwrap().mtu, ffi::IBV_MTU_2048);
        assert_eq!(port.with_mtu(Some(256)).unwrap().mtu, ffi::IBV_MTU_256);
        assert_eq!(port.with_mtu(Some(2048)).unwrap().mtu, ffi::IBV_MTU_2048);
        assert!(
            port.with_mtu(Some(4096)).unwrap_err().to_string().contains("the port supports at most 2048")
        );
    }
}
