//! The error of a process that has too few descriptors for the GPU sections.

use std::io;

use hostbuf::Error;
use hostbuf_os::OpenDescriptors;

/// The number of descriptors that a process may need for a piece: one that it receives, and one of
/// the driver.
const EACH: u64 = 2;

/// Returns the error of a process that cannot receive the descriptors of `pieces` pieces. `source`
/// is the error of the kernel, which the message follows with the remedy.
pub(crate) fn descriptor_shortage(pieces: usize, source: io::Error) -> Error {
    let needs = OpenDescriptors::count().needs(EACH * pieces as u64);
    Error::Os { doing: format!("receiving the {pieces} descriptors of the GPU sections ({needs})"), source }
}
