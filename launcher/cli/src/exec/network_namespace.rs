//! Evidence that this process has a network namespace of its own, in which the other ranks of its
//! host cannot reach an agent.

use std::fs;

/// Returns whether the network namespace of this process seems to differ from that of the engine's
/// process `daemon`. `socket` is the abstract name on which this process listens.
///
/// Every process may read the list of another's sockets, but not its `/proc/PID/ns/net`. If a
/// container hides the daemon, a network namespace without a device besides the loopback device is
/// the only sign.
pub(super) fn is_isolated(daemon: Option<i32>, socket: &str) -> bool {
    let is_listed = |process: &str| {
        let list = fs::read_to_string(format!("/proc/{process}/net/unix")).ok()?;
        Some(lists_socket(&list, socket))
    };
    match daemon {
        Some(pid) => is_listed("self") == Some(true) && is_listed(&pid.to_string()) == Some(false),
        None => fs::read_to_string("/proc/self/net/dev").is_ok_and(|list| has_only_loopback(&list)),
    }
}

/// Returns whether `list`, the text of `/proc/net/unix`, contains the abstract name `socket`.
fn lists_socket(list: &str, socket: &str) -> bool {
    let names = list.lines().filter_map(|line| line.split_whitespace().next_back()?.strip_prefix('@'));
    names.into_iter().any(|name| name == socket)
}

/// Returns whether `list`, the text of `/proc/net/dev`, has no device besides the loopback device.
fn has_only_loopback(list: &str) -> bool {
    let mut devices =
        list.lines().skip(2).filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
    devices.all(|name| name == "lo")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_found_by_its_whole_name() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000000000000000: 00000002 00000000 00010000 0005 01 115136 @hostbuf/0/12\n\
                    0000000000000000: 00000003 00000000 00000000 0001 03 115137\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 115138 hostbuf/0/34\n";
        assert!(lists_socket(list, "hostbuf/0/12"));
        assert!(!lists_socket(list, "hostbuf/0/1"));
        assert!(!lists_socket(list, "hostbuf/0/34"));
    }

    #[test]
    fn the_network_namespace_of_the_daemon_contains_the_socket() {
        let name = format!("hostbuf-test-isolated-{}", std::process::id());
        let listener = hostbuf_os::socket::listen_on(&name).unwrap();
        let own = std::process::id() as i32;
        assert!(!is_isolated(Some(own), &name));
        drop(listener);
        // The evidence is incomplete without the own socket, and without the daemon.
        assert!(!is_isolated(Some(own), &name));
        assert!(!is_isolated(Some(i32::MAX), &name));
    }

    #[test]
    fn only_the_loopback_device_counts_as_isolated() {
        let heads = "Inter-|   Receive                                                |  Transmit\n \
                     face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n";
        let lo = "    lo: 1234 5 0 0 0 0 0 0 1234 5 0 0 0 0 0 0\n";
        assert!(has_only_loopback(&format!("{heads}{lo}")));
        assert!(!has_only_loopback(&format!("{heads}{lo}  eth0: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n")));
    }
}
