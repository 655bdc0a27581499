//! Buffers: attach, allocate, replicate to other hosts, freeze.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use library::sized_struct::SizedInput;
use library::{BufferOptions, FillState, HostBuffer, Pages, Proof};

use crate::arena::hostbuf_arena;
use crate::gpu_section_info::OwnedGpuSection;
use crate::group::{group, hostbuf_collective};
use crate::pointers::{input, output, read, struct_output, text};
use crate::section_info::OwnedSection;
use crate::section_options::{hostbuf_section_options, placement, sections};
use crate::status::{CallResult, agree, argument, call, hostbuf_status, set_message};

/// A host's shared memory, mapped at the agreed address.
pub struct hostbuf_buffer {
    pub(crate) buffer: HostBuffer,
    /// The arena that the fill function gets a pointer to.
    pub(crate) arena: Box<hostbuf_arena>,
    pub(crate) sections: Vec<OwnedSection>,
    pub(crate) gpu_sections: Vec<OwnedGpuSection>,
    name: CString,
}

/// The pages of a buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_pages {
    /// The largest available pages: 1 GiB from the reserved pool, 2 MiB from the pool, transparent
    /// 2 MiB, ordinary.
    HOSTBUF_PAGES_AUTO = 0,
    /// Ordinary pages (4 KiB on x86-64).
    HOSTBUF_PAGES_SMALL = 1,
    /// Transparent huge pages of 2 MiB.
    HOSTBUF_PAGES_TRANSPARENT = 2,
    /// Huge pages of 2 MiB from the reserved pool.
    HOSTBUF_PAGES_2M = 3,
    /// Huge pages of 1 GiB from the reserved pool.
    HOSTBUF_PAGES_1G = 4,
}

/// The options of a new buffer. All options except the size have defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_options {
    /// The size of this structure: initialize it with `HOSTBUF_OPTIONS_INIT`.
    pub struct_size: usize,
    /// The usable size, in bytes. It is rounded up to whole pages. With 0 it is the sum of the
    /// sections.
    pub size: u64,
    /// The name: at most 31 bytes of letters, digits, `_`, `-` and `.`; null for "default".
    pub name: *const c_char,
    /// One of `hostbuf_pages`.
    pub pages: i32,
    /// Not 0 if each page is allocated at its first access. The available memory is not checked
    /// before, and the process gets a signal if a page cannot be allocated.
    pub lazy: u8,
    /// Not 0 if core files include the contents.
    pub dump: u8,
    /// Bytes for later versions, which must be 0.
    pub reserved: [u8; 2],
    /// The NUMA nodes of the pages: one node (`0`); several nodes (`0,2-3`), each of which is used
    /// when the memory of those before it is used up; nodes in turn (`interleave`,
    /// `interleave:0,1`, with weights `interleave:0,1/3,1`); or a copy on the node of each process,
    /// made by `hostbuf_freeze` (`copies`). Null leaves each page on the node of the thread that
    /// allocates it. A lazy buffer has no placement.
    pub numa: *const c_char,
    /// The sections, an array of `section_count`, from the beginning of the buffer on.
    pub sections: *const hostbuf_section_options,
    /// The number of sections, at most 250.
    pub section_count: usize,
}

sized_struct!(hostbuf_options, "HOSTBUF_OPTIONS_INIT", last: section_count: usize);

// SAFETY: numbers and pointers.
unsafe impl SizedInput for hostbuf_options {
    const DEFAULT: hostbuf_options = hostbuf_options {
        struct_size: size_of::<hostbuf_options>(),
        size: 0,
        name: null(),
        pages: 0,
        lazy: 0,
        dump: 0,
        reserved: [0; 2],
        numa: null(),
        sections: null(),
        section_count: 0,
    };
}

/// The fill state of a buffer on this host.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_fill_state {
    HOSTBUF_EMPTY = 0,
    HOSTBUF_FILLING = 1,
    HOSTBUF_FILLED = 2,
    HOSTBUF_FROZEN = 3,
}

/// The proof that no process of this host can write to a frozen buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_proof {
    /// The kernel sealed the memory, which it does only while no writable mapping exists anywhere.
    HOSTBUF_SEALED = 0,
    /// A process may still have a writable mapping from before; `hostbuf_message` names it.
    HOSTBUF_WEAKER = 1,
}

/// The properties and the state of a buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_info {
    /// The size of this structure: initialize it with `HOSTBUF_INFO_INIT`.
    pub struct_size: usize,
    /// The address of the first byte, the same in every rank of every host.
    pub address: *mut c_void,
    /// The usable size, in bytes.
    pub size: usize,
    /// The name, valid as long as the buffer.
    pub name: *const c_char,
    /// The pages of the buffer on this host.
    pub pages: hostbuf_pages,
    /// The number of bytes on huge pages.
    pub huge_bytes: u64,
    /// The fill state on this host.
    pub state: hostbuf_fill_state,
    /// The number of times that filling has begun on this host.
    pub generation: u64,
    /// The number of bytes from the beginning that the arena has allocated.
    pub used: u64,
    /// The number of this host in the job, from 0.
    pub host: u32,
    /// The number of hosts of the job; 0 if the hosts do not know each other.
    pub hosts: u32,
    /// The NUMA node from whose memory this process reads the sections with the placement `copies`;
    /// -1 if the buffer has no such section, or if this process has not frozen it.
    pub read_node: i32,
    /// 1 if `read_node` had all cores on which this process could run when it froze the buffer,
    /// otherwise 0.
    pub read_is_local: i32,
}

sized_struct!(hostbuf_info, "HOSTBUF_INFO_INIT", last: read_is_local: i32);

pub(crate) fn give(buffer: HostBuffer, to: &mut *mut hostbuf_buffer) {
    let name = CString::new(buffer.name()).unwrap_or_default();
    let arena = Box::new(hostbuf_arena::of(&buffer));
    let (sections, gpu_sections) = (OwnedSection::all(&buffer), OwnedGpuSection::all(&buffer));
    *to = Box::into_raw(Box::new(hostbuf_buffer { buffer, arena, sections, gpu_sections, name }));
}

impl hostbuf_buffer {
    pub(crate) fn start(&self) -> *mut c_void {
        self.buffer.as_ptr().as_ptr().cast()
    }
}

/// Returns whether a launcher has started this process, so that there is a buffer to attach to. The
/// result is the same in all ranks of a job. Use it to decide between `hostbuf_attach` and
/// `hostbuf_allocate`, since `hostbuf_attach` may fail in one rank only.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_launched() -> bool {
    HostBuffer::is_launched()
}

/// Attaches to the buffer `name` that the launcher mapped in this process before `main`, or to the
/// first buffer if `name` is null.
// Safety: `name` is null or a C string, `to` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_attach(
    name: *const c_char,
    to: Option<&mut MaybeUninit<*mut hostbuf_buffer>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let buffer = match name.is_null() {
            true => HostBuffer::attach()?,
            // SAFETY: by the contract of this function.
            false => HostBuffer::attach_named(unsafe { text(name, "name") }?)?,
        };
        give(buffer, to);
        Ok(())
    })
}

/// Allocates a buffer without a launcher, at one address on all hosts of `group`. A null `group` is
/// this process alone. Collective.
// Safety: `options` and `to` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_allocate(
    group: *const hostbuf_collective,
    options: *const hostbuf_options,
    to: Option<&mut MaybeUninit<*mut hostbuf_buffer>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut());
        // SAFETY: by the contract of this function.
        let (group, options) = unsafe { (self::group(group)?, buffer_options(options)) };
        let ready = to.and_then(|to| Ok((options?, to)));
        let (options, to) = agree(&*group, ready)?;
        give(HostBuffer::allocate(&*group, options)?, to);
        Ok(())
    })
}

/// Converts the options of the caller.
///
/// # Safety
/// `options` is null or valid.
pub(crate) unsafe fn buffer_options(options: *const hostbuf_options) -> CallResult<BufferOptions> {
    // SAFETY: by the contract of this function.
    let requested = unsafe { read(options, "options") }?;
    if requested.reserved != [0; 2] {
        return Err(argument(
            "options.reserved is not 0: initialize hostbuf_options with HOSTBUF_OPTIONS_INIT",
        ));
    }
    let mut options = BufferOptions::new(requested.size).pages(match requested.pages {
        0 => Pages::Auto,
        1 => Pages::Small,
        2 => Pages::Transparent,
        3 => Pages::Huge2M,
        4 => Pages::Huge1G,
        other => return Err(argument(format!("invalid pages {other}: expected a value of hostbuf_pages"))),
    });
    if !requested.name.is_null() {
        // SAFETY: as above.
        options = options.name(unsafe { text(requested.name, "name") }?);
    }
    (options.lazy, options.dump) = (requested.lazy != 0, requested.dump != 0);
    // SAFETY: as above.
    (options.numa, options.sections) = unsafe {
        (placement(requested.numa, "options.numa")?, sections(requested.sections, requested.section_count)?)
    };
    Ok(options)
}

/// Releases a buffer. Its memory stays mapped until the registrations of its regions have ended. A
/// null buffer is ignored.
// Safety: `buffer` is a live handle. Neither it nor its contents are used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_release(buffer: Option<Box<hostbuf_buffer>>) {
    call(|| {
        drop(buffer);
        Ok(())
    });
}

/// Returns the address of the first byte, which is the same in every rank of every host. Returns
/// null for a null buffer.
// Safety: `buffer` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_data(buffer: Option<&hostbuf_buffer>) -> *mut c_void {
    buffer.map_or(null_mut(), hostbuf_buffer::start)
}

/// Returns the usable size in bytes, or 0 for a null buffer.
// Safety: `buffer` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_size(buffer: Option<&hostbuf_buffer>) -> usize {
    buffer.map_or(0, |buffer| buffer.buffer.len())
}

/// Writes the properties and the state of a buffer to `to`.
// Safety: `buffer` and `to` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_stat(
    buffer: Option<&hostbuf_buffer>,
    to: *mut hostbuf_info,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { struct_output(to, "to") }?;
        let own = input(buffer, "buffer")?;
        let buffer = &own.buffer;
        let read = buffer.read_node();
        to.write(&hostbuf_info {
            struct_size: size_of::<hostbuf_info>(),
            address: own.start(),
            size: buffer.len(),
            name: own.name.as_ptr(),
            pages: match buffer.pages() {
                Pages::Auto => hostbuf_pages::HOSTBUF_PAGES_AUTO,
                Pages::Small => hostbuf_pages::HOSTBUF_PAGES_SMALL,
                Pages::Transparent => hostbuf_pages::HOSTBUF_PAGES_TRANSPARENT,
                Pages::Huge2M => hostbuf_pages::HOSTBUF_PAGES_2M,
                Pages::Huge1G => hostbuf_pages::HOSTBUF_PAGES_1G,
                other => return Err(argument(format!("the pages {other:?} have no number in C"))),
            },
            huge_bytes: buffer.huge_bytes(),
            state: match buffer.fill_state()? {
                FillState::Empty => hostbuf_fill_state::HOSTBUF_EMPTY,
                FillState::Filling => hostbuf_fill_state::HOSTBUF_FILLING,
                FillState::Filled => hostbuf_fill_state::HOSTBUF_FILLED,
                FillState::Frozen => hostbuf_fill_state::HOSTBUF_FROZEN,
                other => return Err(argument(format!("the fill state {other:?} has no number in C"))),
            },
            generation: buffer.generation()?,
            used: buffer.high_water()?,
            host: buffer.host().map_or(0, |host| host.0 as u32),
            hosts: buffer.hosts() as u32,
            read_node: read.map_or(-1, |read| read.node.0.cast_signed()),
            read_is_local: i32::from(read.is_some_and(|read| read.is_local)),
        });
        Ok(())
    })
}

/// Sends the filled buffer of the host of rank `root` to all other hosts of `group`, where it must
/// be empty. It sends the bytes that the arena has allocated, and checks their checksum. Pointers
/// in the buffer stay valid, since its address is the same on all hosts. Collective.
// Safety: `buffer` and `group` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_replicate(
    buffer: Option<&hostbuf_buffer>,
    group: *const hostbuf_collective,
    root: usize,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let group = unsafe { self::group(group) }?;
        let ready = input(buffer, "buffer").and_then(|own| match root < group.size() {
            true => Ok(own),
            false => Err(argument(format!(
                "invalid root {root}: expected a rank of the group, 0 to {}",
                group.size() - 1
            ))),
        });
        Ok(agree(&*group, ready)?.buffer.replicate(&*group, root)?)
    })
}

/// Makes a filled buffer permanently read-only in all ranks of `group`. A later write to it faults.
/// Collective over all ranks that have mapped the buffer. `proof` may be null. For
/// `HOSTBUF_WEAKER`, `hostbuf_message` returns the reason.
// Safety: `buffer`, `group` and `proof` are null or valid; no thread writes to the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_freeze(
    buffer: Option<&hostbuf_buffer>,
    group: *const hostbuf_collective,
    proof: Option<&mut MaybeUninit<hostbuf_proof>>,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let group = unsafe { self::group(group) }?;
        let frozen = agree(&*group, input(buffer, "buffer"))?.buffer.freeze(&*group)?;
        write_proof(frozen.proof(), proof);
        Ok(())
    })
}

/// Writes a proof to `to`, unless that is null, and stores the reason of a weaker one.
pub(crate) fn write_proof(proof: &Proof, to: Option<&mut MaybeUninit<hostbuf_proof>>) {
    let found = match proof {
        Proof::Sealed => hostbuf_proof::HOSTBUF_SEALED,
        Proof::Weaker { why } => {
            set_message(why.clone());
            hostbuf_proof::HOSTBUF_WEAKER
        }
        other => {
            set_message(format!("{other:?}"));
            hostbuf_proof::HOSTBUF_WEAKER
        }
    };
    if let Some(to) = to {
        to.write(found);
    }
}
