//! Memory of a test on a node of its choice, and a node whose memory is taken.

#![allow(unsafe_code, reason = "maps memory and binds it by mbind, for which no crate has a function")]

use std::ffi::c_void;
use std::fs;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::numa::sys_node;

/// From Linux 6.1 on; libc lacks it.
const MADV_COLLAPSE: i32 = 25;

/// A mapping that this process can read and write.
pub struct BoundMemory {
    base: NonNull<c_void>,
    length: NonZeroUsize,
}

impl BoundMemory {
    /// Maps new private memory without pages. `length` must not be 0.
    pub fn private(length: usize) -> Result<BoundMemory, String> {
        let length = NonZeroUsize::new(length).ok_or("no bytes")?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, to which nothing refers.
        let base = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) };
        Ok(BoundMemory { base: base.map_err(|error| format!("mmap: {error}"))?, length })
    }

    /// Maps the first `length` bytes of a file, at an address that is aligned for huge pages.
    /// `length` must not be 0.
    pub fn shared(file: &impl AsFd, length: usize) -> Result<BoundMemory, String> {
        let reserved = BoundMemory::private(length + sys_node::HUGE_PAGE)?;
        let begin = reserved.address().next_multiple_of(sys_node::HUGE_PAGE);
        let (address, length) = (NonZeroUsize::new(begin), NonZeroUsize::new(length).ok_or("no bytes")?);
        // Another thread may map something there before the next call, which then fails.
        drop(reserved);
        let (access, flags) = (
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_SHARED | MapFlags::MAP_FIXED_NOREPLACE,
        );
        // SAFETY: a new mapping, to which nothing refers.
        let base = unsafe { mmap(address, length, access, flags, file, 0) };
        Ok(BoundMemory { base: base.map_err(|error| format!("mmap: {error}"))?, length })
    }

    /// Makes huge pages of the memory, by MADV_COLLAPSE. The first page of each must exist.
    pub fn collapse(&self) -> Result<(), String> {
        for offset in (0..self.length.get()).step_by(sys_node::HUGE_PAGE) {
            // Linux 6.1 returns EINVAL if the mapping has no page table there.
            // SAFETY: inside the own mapping.
            unsafe { self.base.byte_add(offset).cast::<u8>().read_volatile() };
        }
        // SAFETY: the own mapping, whose contents stay.
        let result = unsafe { libc::madvise(self.base.as_ptr(), self.length.get(), MADV_COLLAPSE) };
        Errno::result(result).map(drop).map_err(|error| format!("MADV_COLLAPSE: {error}"))
    }

    pub fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    #[allow(clippy::len_without_is_empty, reason = "a mapping has at least one byte")]
    pub fn len(&self) -> usize {
        self.length.get()
    }

    /// Binds the range at `offset` to the node, and allocates its pages there.
    pub fn take(&self, offset: usize, length: usize, node: u32) -> Result<(), String> {
        assert!(node < u64::BITS, "node {node}");
        assert!(offset + length <= self.length.get(), "{offset} + {length}");
        let failed = |call, error| format!("{call} of {length} bytes on node {node}: {error}");
        let (mask, bits) = (1u64 << node, u64::BITS as usize + 1);
        // SAFETY: inside the own mapping, and the kernel reads one bit of the mask less than the
        // call says.
        unsafe {
            let at = self.base.byte_add(offset);
            let result =
                libc::syscall(libc::SYS_mbind, at, length, libc::MPOL_BIND, &raw const mask, bits, 0);
            Errno::result(result).map_err(|error| failed("mbind", error))?;
            madvise(at, length, MmapAdvise::MADV_POPULATE_WRITE).map_err(|error| failed("populating", error))
        }
    }
}

impl Drop for BoundMemory {
    fn drop(&mut self) {
        // SAFETY: the own mapping.
        unsafe { munmap(self.base, self.length.get()).expect("the mapping exists") };
    }
}

/// Memory that leaves others only so many bytes of a node, until it is dropped.
pub struct FullNode {
    _taken: Vec<BoundMemory>,
}

/// The number of bytes that are taken at a time: a huge page.
const STEP: usize = sys_node::HUGE_PAGE;

impl FullNode {
    /// Takes memory of a node until at most `leave` bytes are available ([`sys_node::available`]).
    /// The cache of files is dropped first, since the kernel would free it instead of failing.
    ///
    /// From here on the kernel's OOM killer spares this process, but not its children if
    /// [`killable`] runs in them. If there is nobody else to kill, the kernel panics.
    pub fn new(node: u32, leave: usize) -> Result<FullNode, String> {
        write("/proc/self/oom_score_adj", "-1000")?;
        write("/proc/sys/vm/drop_caches", "3")?;
        let mut taken = Vec::new();
        while sys_node::available(node)? > leave {
            let memory = BoundMemory::private(STEP)?;
            memory.take(0, STEP, node)?;
            taken.push(memory);
        }
        Ok(FullNode { _taken: taken })
    }
}

/// Makes this process one that the OOM killer may kill, for children of one that it spares.
pub fn killable() -> Result<(), String> {
    write("/proc/self/oom_score_adj", "0")
}

fn write(path: &str, value: &str) -> Result<(), String> {
    fs::write(path, value).map_err(|error| format!("{path}: {error}"))
}
