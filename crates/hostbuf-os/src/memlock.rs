//! The limit on the memory that this process may lock.

use std::fs;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

const CAP_IPC_LOCK: u32 = 14;

/// Returns whether this process is exempt from the limit, as root usually is.
#[must_use]
pub fn is_exempt() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| has_capability(&status, CAP_IPC_LOCK))
}

/// Returns the limit for this process (`ulimit -l`) in bytes, or `None` if there is none.
#[must_use]
pub fn limit() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (soft != RLIM_INFINITY && !is_exempt()).then_some(soft)
}

/// Returns the number of bytes that this process has locked.
#[must_use]
pub fn locked() -> u64 {
    fs::read_to_string("/proc/self/status").ok().and_then(|status| locked_bytes(&status)).unwrap_or(0)
}

fn locked_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmLck:"))?;
    Some(line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()? * 1024)
}

fn has_capability(status: &str, capability: u32) -> bool {
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    effective
        .and_then(|t| u64::from_str_radix(t.trim(), 16).ok())
        .is_some_and(|set| set >> capability & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_bytes_are_read_from_the_status() {
        assert_eq!(locked_bytes("VmPeak:\t 9 kB\nVmLck:\t      72 kB\nVmPin:\t 8 kB\n"), Some(72 << 10));
        assert_eq!(locked_bytes("Name:\tkernel thread\n"), None);
    }

    #[test]
    fn capabilities_are_read_from_the_status() {
        let status = |set: &str| format!("Name:\thostbuf\nCapPrm:\tffffffffffffffff\nCapEff:\t{set}\n");
        assert!(has_capability(&status("0000000000004000"), CAP_IPC_LOCK));
        assert!(has_capability(&status("000001ffffffffff"), CAP_IPC_LOCK));
        assert!(!has_capability(&status("0000000000003fff"), CAP_IPC_LOCK));
        assert!(!has_capability("", CAP_IPC_LOCK));
    }
}
