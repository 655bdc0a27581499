//! The address of a port.

use std::fmt;
use std::net::Ipv6Addr;

/// A global identifier (GID), by which peers address a port. With RoCE v2 it is an IPv6 address, or
/// an IPv4 address that is mapped to IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gid([u8; Gid::SIZE]);

impl Gid {
    /// The number of bytes.
    pub(crate) const SIZE: usize = 16;
    /// The value of an unused entry of a port's GID table.
    pub(crate) const UNSPECIFIED: Gid = Gid([0; Gid::SIZE]);

    pub(crate) const fn from_bytes(bytes: [u8; Gid::SIZE]) -> Gid {
        Gid(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; Gid::SIZE] {
        &self.0
    }

    pub(crate) fn to_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Gid {
        Gid(address.octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.to_ipv6();
        match address.to_ipv4_mapped() {
            Some(v4) => v4.fmt(f),
            None => address.fmt(f),
        }
    }
}
