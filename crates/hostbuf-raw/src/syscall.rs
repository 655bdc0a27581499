//! System calls by inline assembly, without libc, so that no interceptor sees them.
//!
//! ThreadSanitizer and MemorySanitizer replace libc's `mmap`: they clear the address hint, and may
//! end the process if a mapping is outside the ranges that they know. The preloaded object must not
//! reference any libc symbol either, since it could then not be loaded with an older libc. This
//! module therefore depends only on `core`. It is compiled into the library and into the preloaded
//! object.

#![allow(unsafe_code, reason = "system calls are instructions with addresses as operands")]

use core::arch::asm;

/// The error number of a failed system call, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: the number of the kernel, and nothing else.
pub struct Errno(pub i32);

/// The error numbers that callers distinguish.
impl Errno {
    /// Operation not permitted: a writable mapping of a sealed file.
    pub const PERM: Errno = Errno(1);
    /// Interrupted by a signal. The call can be repeated.
    pub const INTR: Errno = Errno(4);
    /// Bad file descriptor.
    pub const BADF: Errno = Errno(9);
    /// Try again. userfaultfd returns it while a change of the address space is in progress.
    pub const AGAIN: Errno = Errno(11);
    /// The address range is occupied (`MAP_FIXED_NOREPLACE`).
    pub const EXIST: Errno = Errno(17);
    /// Not enough address space, memory or mappings.
    pub const NOMEM: Errno = Errno(12);
    /// The peer has closed the connection.
    pub const PIPE: Errno = Errno(32);
    /// The peer has closed the connection before it had read everything.
    pub const CONNRESET: Errno = Errno(104);
    /// Connection refused: no socket of this network namespace listens on the name.
    pub const CONNREFUSED: Errno = Errno(111);
    /// Invalid argument.
    pub const INVAL: Errno = Errno(22);
}

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const READ: usize = 0;
    pub(super) const CLOSE: usize = 3;
    pub(super) const MMAP: usize = 9;
    pub(super) const MUNMAP: usize = 11;
    pub(super) const IOCTL: usize = 16;
    pub(super) const MADVISE: usize = 28;
    pub(super) const FCNTL: usize = 72;
    pub(super) const SOCKET: usize = 41;
    pub(super) const CONNECT: usize = 42;
    pub(super) const SENDMSG: usize = 46;
    pub(super) const RECVMSG: usize = 47;
    pub(super) const GETSOCKOPT: usize = 55;
    pub(super) const WRITE: usize = 1;
    pub(super) const GETPID: usize = 39;
    pub(super) const GETEUID: usize = 107;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const OPENAT: usize = 257;
    pub(super) const READLINKAT: usize = 267;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const READ: usize = 63;
    pub(super) const CLOSE: usize = 57;
    pub(super) const MMAP: usize = 222;
    pub(super) const MUNMAP: usize = 215;
    pub(super) const IOCTL: usize = 29;
    pub(super) const FCNTL: usize = 25;
    pub(super) const MADVISE: usize = 233;
    pub(super) const SOCKET: usize = 198;
    pub(super) const CONNECT: usize = 203;
    pub(super) const SENDMSG: usize = 211;
    pub(super) const RECVMSG: usize = 212;
    pub(super) const GETSOCKOPT: usize = 209;
    pub(super) const WRITE: usize = 64;
    pub(super) const GETPID: usize = 172;
    pub(super) const GETEUID: usize = 175;
    pub(super) const EXIT_GROUP: usize = 94;
    pub(super) const OPENAT: usize = 56;
    pub(super) const READLINKAT: usize = 78;
}

/// Makes the system call `n` with the operands `a`.
///
/// # Safety
/// As the system call `n` with these operands.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
unsafe fn syscall(n: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; it clobbers only rcx and r11. The caller guarantees
    // that the memory accesses of the call are valid.
    unsafe {
        asm!("syscall", inlateout("rax") n as isize => result, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
             in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Makes the system call `n` with the operands `a`.
///
/// # Safety
/// As the system call `n` with these operands.
#[inline(always)]
#[cfg(target_arch = "aarch64")]
unsafe fn syscall(n: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; x0 contains the result. The caller guarantees that
    // the memory accesses of the call are valid.
    unsafe {
        asm!("svc 0", in("x8") n, inlateout("x0") a[0] as isize => result, in("x1") a[1], in("x2") a[2],
             in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    result
}

#[inline]
fn checked(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// No access: a reserved range.
pub const PROT_NONE: usize = 0;
/// Readable.
pub const PROT_READ: usize = 1;
/// Writable.
pub const PROT_WRITE: usize = 2;
/// Changes of the memory are visible to all processes that map it.
pub const MAP_SHARED: usize = 0x01;
/// Changes of the memory are visible to the process that makes them only.
pub const MAP_PRIVATE: usize = 0x02;
const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_NORESERVE: usize = 0x4000;
const MAP_FIXED_NOREPLACE: usize = 0x10_0000;

/// Reserves the `length` bytes at `address`, without access and without memory, if all of them are
/// free.
///
/// # Errors
/// [`Errno::EXIST`] if the range contains a mapping; others as `mmap(2)`. A kernel before 4.17
/// ignores `MAP_FIXED_NOREPLACE` and maps elsewhere: that mapping is removed, and the error is
/// [`Errno::EXIST`].
pub fn hold(address: usize, length: usize) -> Result<(), Errno> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    // SAFETY: with NOREPLACE no existing mapping changes.
    let got = checked(unsafe { syscall(number::MMAP, [address, length, PROT_NONE, flags, usize::MAX, 0]) })?;
    if got == address {
        return Ok(());
    }
    // SAFETY: the call above made this mapping, and nothing else uses it.
    unsafe { syscall(number::MUNMAP, [got, length, 0, 0, 0, 0]) };
    Err(Errno::EXIST)
}

/// Unmaps a range, for example one that [`hold`] has reserved.
///
/// # Safety
/// Every mapping in `[address, address + length)` must belong to the caller and be unused.
pub unsafe fn unmap(address: usize, length: usize) {
    // SAFETY: by the contract of this function. The call fails only for operands that no reserved
    // range has.
    unsafe { syscall(number::MUNMAP, [address, length, 0, 0, 0, 0]) };
}

/// Maps `length` bytes of the file `fd` over a range that the caller has reserved. `flags` contains
/// [`MAP_SHARED`] or [`MAP_PRIVATE`], and additional flags.
///
/// # Safety
/// Every mapping in `[address, address + length)` must belong to the caller, and no reference may
/// point into it, unless the same bytes are mapped there already, which nothing changes any more or
/// which belong to the same file.
///
/// # Errors
/// As `mmap(2)`; [`Errno::EXIST`] if the kernel maps elsewhere, which it must not.
pub unsafe fn map_over(
    address: usize,
    length: usize,
    protection: usize,
    fd: i32,
    offset: u64,
    flags: usize,
) -> Result<(), Errno> {
    let flags = flags | MAP_FIXED;
    // SAFETY: by the contract of this function, MAP_FIXED replaces only mappings of the caller.
    let got = checked(unsafe {
        syscall(number::MMAP, [address, length, protection, flags, fd as usize, offset as usize])
    })?;
    if got == address { Ok(()) } else { Err(Errno::EXIST) }
}

/// Replaces the mappings in `[address, address + length)` by private, zeroed, read-only memory.
///
/// # Safety
/// As [`map_over`], and any remaining reader must accept zeroes.
///
/// # Errors
/// As `mmap(2)`.
pub unsafe fn map_zeroes(address: usize, length: usize) -> Result<(), Errno> {
    let flags = MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: by the contract of this function, MAP_FIXED replaces only mappings of the caller.
    checked(unsafe { syscall(number::MMAP, [address, length, PROT_READ, flags, usize::MAX, 0]) }).map(drop)
}

/// Calls `madvise(2)` with an advice that does not change the contents (such as `MADV_DONTDUMP`).
///
/// # Errors
/// As `madvise(2)`.
///
/// # Safety
/// The advice must not discard or replace pages.
pub unsafe fn advise(address: usize, length: usize, advice: usize) -> Result<(), Errno> {
    // SAFETY: by this function's contract.
    checked(unsafe { syscall(number::MADVISE, [address, length, advice, 0, 0, 0]) }).map(drop)
}

/// The advice that excludes a range from core files.
pub const MADV_DONTDUMP: usize = 16;
/// The advice that excludes a range from transparent huge pages.
pub const MADV_NOHUGEPAGE: usize = 15;

/// Calls `ioctl(2)`. It is inlined into the caller: after a system call the processor's return
/// prediction is often lost, so that a call of libc's function takes one and a half times as long.
///
/// # Errors
/// As `ioctl(2)`.
///
/// # Safety
/// As the request of the driver with this operand.
#[inline(always)]
pub unsafe fn ioctl(fd: i32, request: usize, operand: usize) -> Result<usize, Errno> {
    // SAFETY: by this function's contract.
    checked(unsafe { syscall(number::IOCTL, [fd as usize, request, operand, 0, 0, 0]) })
}

/// Opens `path`, which must end in a NUL byte, for reading, close-on-exec.
///
/// # Errors
/// As `open(2)`.
pub fn open(path: &[u8]) -> Result<i32, Errno> {
    assert!(path.last() == Some(&0));
    const AT_FDCWD: usize = -100isize as usize;
    const O_CLOEXEC: usize = 0o2_000_000;
    // SAFETY: path is NUL-terminated and outlives the call.
    let fd =
        checked(unsafe { syscall(number::OPENAT, [AT_FDCWD, path.as_ptr() as usize, O_CLOEXEC, 0, 0, 0]) })?;
    Ok(fd as i32)
}

/// Reads the target of the symbolic link `path`, which must end in a NUL byte, into `buffer`.
/// Returns its length.
///
/// # Errors
/// As `readlink(2)`.
pub fn read_link(path: &[u8], buffer: &mut [u8]) -> Result<usize, Errno> {
    assert!(path.last() == Some(&0));
    const AT_FDCWD: usize = -100isize as usize;
    let (path, to) = (path.as_ptr() as usize, buffer.as_mut_ptr() as usize);
    // SAFETY: path is NUL-terminated; the kernel writes at most buffer.len() bytes.
    checked(unsafe { syscall(number::READLINKAT, [AT_FDCWD, path, to, buffer.len(), 0, 0]) })
}

/// Reads into `buffer`. Repeats the call after a signal. Returns 0 at the end of the file.
///
/// # Errors
/// As `read(2)`.
pub fn read(fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    loop {
        // SAFETY: the kernel writes at most buffer.len() bytes into it.
        let n = unsafe {
            syscall(number::READ, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0])
        };
        match checked(n) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Writes `bytes`, or a part of them. Errors are ignored: it only writes final messages to standard
/// error.
pub fn write(fd: i32, bytes: &[u8]) {
    // SAFETY: the kernel only reads the slice.
    unsafe { syscall(number::WRITE, [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) };
}

/// Closes a descriptor that the caller owns.
pub fn close(fd: i32) {
    // SAFETY: the call accesses no memory. The caller guarantees that it owns the descriptor.
    unsafe { syscall(number::CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Duplicates a descriptor to the lowest free number not below `lowest`. The duplicate stays open
/// through exec.
///
/// # Errors
/// As `fcntl(2)` with `F_DUPFD`.
pub fn duplicate(fd: i32, lowest: usize) -> Result<i32, Errno> {
    const F_DUPFD: usize = 0;
    // SAFETY: the call accesses no memory.
    let fd = checked(unsafe { syscall(number::FCNTL, [fd as usize, F_DUPFD, lowest, 0, 0, 0]) })?;
    Ok(fd as i32)
}

/// Returns the process id from the kernel, without a cache that a raw fork would invalidate.
#[must_use]
pub fn pid() -> u32 {
    // SAFETY: the call has no operands.
    (unsafe { syscall(number::GETPID, [0; 6]) }) as u32
}

/// Returns the effective user id.
#[must_use]
pub fn euid() -> u32 {
    // SAFETY: the call has no operands.
    (unsafe { syscall(number::GETEUID, [0; 6]) }) as u32
}

/// Ends the process with all of its threads immediately.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: the call does not return.
        unsafe { syscall(number::EXIT_GROUP, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

const AF_UNIX: u16 = 1;
const SOCK_SEQPACKET_CLOEXEC: usize = 5 | 0o2_000_000;

/// Connects to the abstract unix socket `name` (without the leading NUL), of type SOCK_SEQPACKET,
/// close-on-exec.
///
/// # Errors
/// As `socket(2)` and `connect(2)`; `EINVAL` for a name of more than 107 bytes.
pub fn connect(name: &[u8]) -> Result<i32, Errno> {
    #[repr(C)]
    struct SocketAddress {
        family: u16,
        path: [u8; 108],
    }
    let mut address = SocketAddress { family: AF_UNIX, path: [0; 108] };
    if name.len() > 107 {
        return Err(Errno(22));
    }
    address.path[1..=name.len()].copy_from_slice(name);
    let length = 2 + 1 + name.len();
    // SAFETY: the call accesses no memory.
    let fd = checked(unsafe {
        syscall(number::SOCKET, [usize::from(AF_UNIX), SOCK_SEQPACKET_CLOEXEC, 0, 0, 0, 0])
    })?;
    loop {
        // SAFETY: the address outlives the call, and `length` is inside it.
        let n = unsafe {
            syscall(number::CONNECT, [fd, core::ptr::from_ref(&address) as usize, length, 0, 0, 0])
        };
        match checked(n) {
            Ok(_) => return Ok(fd as i32),
            Err(Errno::INTR) => {}
            Err(e) => {
                close(fd as i32);
                return Err(e);
            }
        }
    }
}

/// Returns the user id of the process at the other end of a unix socket at the time when it
/// connected or listened.
///
/// # Errors
/// As `getsockopt(2)`, for example for a descriptor that is not a socket.
pub fn peer_uid(fd: i32) -> Result<u32, Errno> {
    let mut credentials = [0u32; 3];
    let mut length = 12u32;
    const SOL_SOCKET: usize = 1;
    const SO_PEERCRED: usize = 17;
    // SAFETY: both pointers are valid for their lengths.
    checked(unsafe {
        let value = credentials.as_mut_ptr() as usize;
        let size = core::ptr::from_mut(&mut length) as usize;
        syscall(number::GETSOCKOPT, [fd as usize, SOL_SOCKET, SO_PEERCRED, value, size, 0])
    })?;
    Ok(credentials[1])
}

#[repr(C)]
struct IoVec {
    base: usize,
    length: usize,
}

#[repr(C)]
struct MsgHdr {
    name: usize,
    name_length: u32,
    iov: usize,
    iov_count: usize,
    control: usize,
    control_length: usize,
    flags: i32,
}

/// Sends one packet. Repeats the call after a signal, and never raises SIGPIPE.
///
/// # Errors
/// As `sendmsg(2)`.
pub fn send(fd: i32, packet: &[u8]) -> Result<(), Errno> {
    let iov = IoVec { base: packet.as_ptr() as usize, length: packet.len() };
    let header = MsgHdr {
        name: 0,
        name_length: 0,
        iov: core::ptr::from_ref(&iov) as usize,
        iov_count: 1,
        control: 0,
        control_length: 0,
        flags: 0,
    };
    const MSG_NOSIGNAL: usize = 0x4000;
    loop {
        // SAFETY: the header and its targets outlive the call; the kernel only reads them.
        let n = unsafe {
            syscall(
                number::SENDMSG,
                [fd as usize, core::ptr::from_ref(&header) as usize, MSG_NOSIGNAL, 0, 0, 0],
            )
        };
        match checked(n) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

/// The maximum number of descriptors with one packet: the kernel's own limit (`SCM_MAX_FD`).
pub const MAX_DESCRIPTORS: usize = 253;

/// The result of [`receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedLengths {
    /// The length of the packet, 0 at the end of the connection.
    pub packet: usize,
    /// The number of descriptors.
    pub descriptors: usize,
    /// True if the kernel dropped descriptors, for which this process has no room.
    pub truncated: bool,
}

/// Receives one packet and its descriptors (close-on-exec). Packets of a peer that has reset the
/// connection are received before the error.
///
/// # Errors
/// As `recvmsg(2)`.
pub fn receive(
    fd: i32,
    packet: &mut [u8],
    descriptors: &mut [i32; MAX_DESCRIPTORS],
) -> Result<ReceivedLengths, Errno> {
    const MSG_CTRUNC: i32 = 8;
    const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
    const HEADER: usize = 16;
    #[repr(C, align(8))]
    struct ControlBuffer([u8; HEADER + 4 * MAX_DESCRIPTORS]);
    let mut control = ControlBuffer([0; HEADER + 4 * MAX_DESCRIPTORS]);
    let iov = IoVec { base: packet.as_mut_ptr() as usize, length: packet.len() };
    let mut header = MsgHdr {
        name: 0,
        name_length: 0,
        iov: core::ptr::from_ref(&iov) as usize,
        iov_count: 1,
        control: control.0.as_mut_ptr() as usize,
        control_length: control.0.len(),
        flags: 0,
    };
    let mut was_reset = false;
    let received = loop {
        // SAFETY: every pointer in the header is valid for its length.
        let n = unsafe {
            let header = core::ptr::from_mut(&mut header) as usize;
            syscall(number::RECVMSG, [fd as usize, header, MSG_CMSG_CLOEXEC, 0, 0, 0])
        };
        match checked(n) {
            Err(Errno::INTR) => {}
            // The kernel reports the reset once, and then the packets from before it.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            other => break other?,
        }
    };
    let word = |at: usize| {
        u32::from_ne_bytes([control.0[at], control.0[at + 1], control.0[at + 2], control.0[at + 3]])
    };
    let mut count = 0;
    const SCM_RIGHTS: u32 = 1;
    // A control message consists of a length (8 bytes), a level, a type, and the descriptors. The
    // kernel sends one such message.
    if header.control_length >= HEADER && word(8) == 1 && word(12) == SCM_RIGHTS {
        let length = (word(0) as usize).min(header.control_length);
        while count < MAX_DESCRIPTORS && HEADER + 4 * (count + 1) <= length {
            descriptors[count] = word(HEADER + 4 * count) as i32;
            count += 1;
        }
    }
    let truncated = header.flags & MSG_CTRUNC != 0;
    Ok(ReceivedLengths { packet: received, descriptors: count, truncated })
}
