//! The addresses of a mirror in the command line.

use std::net::SocketAddr;

/// The address of a receiver: a host name or an IP address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerAddress(pub(super) String);

/// Parses the address at which a receiver listens. Port 0 means any free port.
///
/// # Errors
/// The end of the message to the user.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(
        |_| "expected an IP address of this host and a port, for example 10.0.0.2:7400 or [fd00::2]:7400",
    )
}

/// Parses the address of a receiver.
///
/// # Errors
/// The end of the message to the user.
pub(super) fn peer_address(text: &str) -> Result<PeerAddress, &'static str> {
    let expected = "expected a host name or IP address, and a port from 1 to 65535, for example host2:7400 or [fd00::2]:7400";
    let (host, port) = text.rsplit_once(':').ok_or(expected)?;
    // The last group of an IPv6 address without brackets looks like a port.
    let is_host = match host.strip_prefix('[') {
        Some(_) => text.parse::<SocketAddr>().is_ok(),
        None => !host.is_empty() && !host.contains(':'),
    };
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    if is_host && is_port { Ok(PeerAddress(text.to_owned())) } else { Err(expected) }
}

#[cfg(test)]
mod tests {
    use super::{listen_address, peer_address};

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for text in ["host2:7400", "10.0.0.2:1", "[fd00::2]:65535"] {
            assert_eq!(peer_address(text).map(|address| address.0), Ok(text.to_owned()));
        }
        for text in [
            "",
            "host2",
            ":7400",
            "host2:",
            "host2:0",
            "host2:65536",
            "fd00::2:7400",
            "[fd00::2]",
            "[x]:7400",
        ] {
            assert!(peer_address(text).is_err(), "{text}");
        }
        assert!(listen_address("10.0.0.2:0").is_ok() && listen_address("[::]:7400").is_ok());
        for text in ["", "7400", "10.0.0.2", ":7400", "host2:7400", "fd00::2"] {
            assert!(listen_address(text).is_err(), "{text}");
        }
    }
}
