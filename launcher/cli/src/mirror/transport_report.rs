//! The report of the transport that has carried the bytes of frames.

use std::fmt;

/// The counts of published frames by transport, as a mirror with an RDMA device reports them at its
/// end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TransportReport {
    /// The number of frames whose bytes were read by RDMA.
    pub(super) by_rdma: u64,
    /// The number of those that the sender copied for this into registered memory.
    pub(super) copied: u64,
    /// The number of frames whose bytes went by TCP.
    pub(super) by_tcp: u64,
    /// The last reason for TCP.
    pub(super) tcp_reason: Option<String>,
}

impl fmt::Display for TransportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TransportReport { by_rdma, copied, by_tcp, tcp_reason } = self;
        write!(f, "frames by RDMA: {by_rdma}")?;
        if *copied > 0 {
            write!(f, " ({copied} of them from a copy)")?;
        }
        write!(f, ", by TCP: {by_tcp}")?;
        match tcp_reason {
            Some(why) => write!(f, " (the last reason for TCP: {why})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TransportReport;

    #[test]
    fn a_report_has_the_counts_and_the_reason_for_tcp() {
        let report = TransportReport { by_rdma: 3, copied: 0, by_tcp: 0, tcp_reason: None };
        assert_eq!(report.to_string(), "frames by RDMA: 3, by TCP: 0");
        let why =
            Some("the receiver offers no RDMA: it uses no device, or its device has refused".to_owned());
        let report = TransportReport { copied: 2, by_tcp: 5, tcp_reason: why, ..report };
        let expected = "frames by RDMA: 3 (2 of them from a copy), by TCP: 5 (the last reason for TCP: the receiver offers no RDMA: it uses no device, or its device has refused)";
        assert_eq!(report.to_string(), expected);
    }
}
