//! The exchange of endpoint records, before any connection exists.

use crate::connect::bootstrap_error::{BootstrapError, RecordContent};
use crate::peer::PeerId;
use hostbuf::JobError;
use hostbuf::error::{Error, Result};
use hostbuf::job::Collective;
use hostbuf_os::process;

/// A means of exchanging small records between the processes that are to be connected.
///
/// Connections need it only while they are set up: each process publishes the address of its
/// endpoint and the key of its memory. Every [`Collective`] is a bootstrap, and
/// [`TcpBootstrap`](crate::TcpBootstrap) needs nothing but a TCP port. A program that has
/// another channel (a key-value store, PMIx, its own sockets) implements the trait on it:
///
/// ```
/// use std::sync::mpsc::{Receiver, Sender};
/// use hostbuf::{Error, Result};
/// use hostbuf_rdma::{Bootstrap, BootstrapError, PeerId};
///
/// /// Two processes, joined by a pair of queues.
/// struct Queues {
///     index: PeerId,
///     to: Sender<Vec<u8>>,
///     from: Receiver<Vec<u8>>,
/// }
///
/// impl Bootstrap for Queues {
///     fn index(&self) -> PeerId {
///         self.index
///     }
///
///     fn count(&self) -> usize {
///         2
///     }
///
///     fn exchange(&self, record: &[u8]) -> Result<Vec<Vec<u8>>> {
///         let peer = PeerId(1 - self.index.0);
///         let lost = BootstrapError::Lost { peer, count: 2, address: None };
///         self.to.send(record.to_vec()).map_err(|_| lost.clone())?;
///         let other = self.from.recv().map_err(|_| lost)?;
///         let mut records = vec![record.to_vec(), other];
///         if self.index == PeerId(1) {
///             records.swap(0, 1);
///         }
///         Ok(records)
///     }
/// }
/// # let (to_1, from_0) = std::sync::mpsc::channel();
/// # let (to_0, from_1) = std::sync::mpsc::channel();
/// # let one = std::thread::spawn(move || {
/// #     let one = Queues { index: PeerId(1), to: to_0, from: from_0 };
/// #     one.exchange(b"one").map_err(|e| e.to_string())
/// # });
/// # let zero = Queues { index: PeerId(0), to: to_1, from: from_1 }.exchange(b"zero")?;
/// # assert_eq!(zero, [&b"zero"[..], b"one"]);
/// # assert_eq!(one.join().unwrap().unwrap(), zero);
/// # Ok::<(), Error>(())
/// ```
pub trait Bootstrap {
    /// Returns the index of this process, counted from 0.
    fn index(&self) -> PeerId;

    /// Returns the number of processes.
    fn count(&self) -> usize;

    /// Sends `record` to all processes, and returns the records of all, in the order of their
    /// indices. All processes call it in the same order. Records have different lengths, typically
    /// of less than 1 KiB.
    ///
    /// # Errors
    /// [`Error::Bootstrap`](hostbuf::Error::Bootstrap) with a [`BootstrapError`] or an error type
    /// of the implementation if a process is lost, or does not respond in time. A collective
    /// returns [`Error::Collective`](hostbuf::Error::Collective).
    fn exchange(&self, record: &[u8]) -> Result<Vec<Vec<u8>>>;
}

impl<C: Collective + ?Sized> Bootstrap for C {
    fn index(&self) -> PeerId {
        PeerId(self.rank())
    }

    fn count(&self) -> usize {
        self.size()
    }

    fn exchange(&self, record: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut lengths = vec![0; size_of::<u64>() * self.size()];
        self.all_gather(&(record.len() as u64).to_le_bytes(), &mut lengths)?;
        let (lengths, _) = lengths.as_chunks::<{ size_of::<u64>() }>();
        let lengths: Vec<usize> = lengths.iter().map(|&bytes| u64::from_le_bytes(bytes) as usize).collect();
        // A collective gathers operands of one length.
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest == 0 {
            return Ok(vec![Vec::new(); self.size()]);
        }
        let mut padded = record.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0; longest * self.size()];
        self.all_gather(&padded, &mut all)?;
        Ok(all.chunks_exact(longest).zip(lengths).map(|(bytes, length)| bytes[..length].to_vec()).collect())
    }
}

/// A bootstrap by reference, which makes a trait object of any one.
pub(crate) struct ByRef<'b, B: ?Sized>(pub(crate) &'b B);

impl<B: Bootstrap + ?Sized> Bootstrap for ByRef<'_, B> {
    fn index(&self) -> PeerId {
        self.0.index()
    }

    fn count(&self) -> usize {
        self.0.count()
    }

    fn exchange(&self, record: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.0.exchange(record)
    }
}

/// Exchanges records, and checks the result of an implementation that may be the caller's.
///
/// # Errors
/// As [`Bootstrap::exchange`].
pub(crate) fn exchange(bootstrap: &dyn Bootstrap, record: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (index, count) = (bootstrap.index(), bootstrap.count());
    let records = bootstrap.exchange(record)?;
    if records.len() == count && records.get(index.0).is_some_and(|own| own == record) {
        return Ok(records);
    }
    Err(BootstrapError::Misordered { returned: records.len(), index, count }.into())
}

/// Brings all processes to one result: `result` if all succeeded, else the error of the process
/// with the lowest index. All processes call it.
///
/// # Errors
/// The own error if this process has the lowest index of those that failed. On the others:
/// [`Error::NoSpace`], [`Error::Disagreed`] or [`Error::Elsewhere`] with the class and the message
/// of that process. The error of a host's agent, which has no rank, stays
/// [`AttachError::JobFailed`](hostbuf::AttachError::JobFailed). Otherwise as
/// [`Bootstrap::exchange`].
pub(crate) fn agree<T>(bootstrap: &dyn Bootstrap, result: Result<T>) -> Result<T> {
    let record = result.as_ref().err().map_or(Vec::new(), |error| {
        let mut own = JobError::from(error);
        // The agent of a host has no rank, and this process may be on another host.
        if own.host.is_none() || !matches!(error, Error::Attach(_)) {
            own.rank.get_or_insert(bootstrap.index().0);
        }
        own.host.get_or_insert_with(process::host_name);
        own.encode().to_vec()
    });
    let records = exchange(bootstrap, &record)?;
    let Some(first) = records.iter().position(|record| !record.is_empty()) else { return result };
    match result {
        Err(own) if first == bootstrap.index().0 => Err(own),
        _ => {
            let error = JobError::decode(&records[first]).ok_or(BootstrapError::InvalidRecord {
                peer: PeerId(first),
                expected: RecordContent::Error,
            })?;
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostbuf::job::Solo;
    use hostbuf::{AttachError, ErrorClass};

    /// A bootstrap that returns these records, whatever is exchanged.
    struct Fixed(Vec<Vec<u8>>);

    impl Bootstrap for Fixed {
        fn index(&self) -> PeerId {
            PeerId(1)
        }

        fn count(&self) -> usize {
            2
        }

        fn exchange(&self, _: &[u8]) -> Result<Vec<Vec<u8>>> {
            Ok(self.0.clone())
        }
    }

    fn records(records: &[&str]) -> Fixed {
        Fixed(records.iter().map(|record| record.as_bytes().to_vec()).collect())
    }

    #[test]
    fn a_collective_is_a_bootstrap() {
        let group: &dyn Collective = &Solo;
        assert_eq!(exchange(&ByRef(group), b"record").unwrap(), [b"record"]);
        assert_eq!(exchange(&ByRef(group), b"").unwrap(), [b""]);
    }

    #[test]
    fn records_in_the_wrong_order_or_number_are_an_error() {
        assert!(exchange(&records(&["other", "own"]), b"own").is_ok());
        for wrong in [&["own", "other"][..], &["own"], &["other", "own", "third"], &[]] {
            let error = exchange(&records(wrong), b"own").unwrap_err();
            let reason = BootstrapError::downcast_ref(&error);
            assert!(
                matches!(reason, Some(BootstrapError::Misordered { returned, index: PeerId(1), count: 2 }) if *returned == wrong.len()),
                "{error:?}"
            );
            assert!(error.to_string().contains("to process 1 of 2"), "{error}");
        }
    }

    #[test]
    fn all_processes_get_the_error_of_the_lowest_index() {
        assert_eq!(agree(&records(&["", ""]), Ok(7)).unwrap(), 7);
        let mut no_device = JobError::new(ErrorClass::Unsupported, "no device");
        (no_device.host, no_device.rank) = (Some("h0".into()), Some(0));
        let no_device = no_device.encode().to_vec();
        let error = agree(&Fixed(vec![no_device.clone(), Vec::new()]), Ok(())).unwrap_err();
        assert!(matches!(&error, Error::Elsewhere { rank: 0, .. }), "{error:?}");
        assert_eq!(error.class(), ErrorClass::Unsupported);
        assert_eq!(error.to_string(), "rank 0 on h0: no device");
        let error = agree(&records(&["no error", ""]), Ok(())).unwrap_err();
        let reason = BootstrapError::downcast_ref(&error);
        let expected = RecordContent::Error;
        assert!(
            matches!(reason, Some(BootstrapError::InvalidRecord { peer: PeerId(0), expected: content }) if *content == expected),
            "{error:?}"
        );
        let own = || Error::invalid("depth 0");
        let mut record = JobError::from(own());
        (record.host, record.rank) = (Some(process::host_name()), Some(1));
        let record = record.encode().to_vec();
        let error = agree(&Fixed(vec![Vec::new(), record.clone()]), Err::<(), _>(own())).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        let error = agree(&Fixed(vec![no_device, record]), Err::<(), _>(own())).unwrap_err();
        assert!(matches!(error, Error::Elsewhere { rank: 0, .. }), "{error:?}");
    }

    #[test]
    fn the_error_of_an_agent_has_no_rank_in_any_process() {
        let of_agent = JobError::new(ErrorClass::Os, "no thread").with_host("h0");
        let record = of_agent.encode().to_vec();
        let failed = || Error::from(AttachError::JobFailed(of_agent.clone()));
        for (records, result) in [
            (vec![record.clone(), Vec::new()], Ok(())),
            // This process sends the error.
            (vec![Vec::new(), record.clone()], Err(failed())),
            (vec![record.clone(), record.clone()], Err(failed())),
        ] {
            let error = agree(&Fixed(records), result).unwrap_err();
            assert!(matches!(&error, Error::Attach(AttachError::JobFailed(_))), "{error:?}");
            assert_eq!(JobError::from(&error), of_agent);
        }
    }
}
