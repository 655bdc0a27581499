//! Buffers: attaching, allocating, sending to other hosts, freezing.

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;

use library::{BufferOptions, FillState, HostBuffer, Pages, Proof};

use crate::arena::hostbuf_arena;
use crate::group::{group, hostbuf_collective};
use crate::status::{Outcome, argument, call, given, hostbuf_status, place, say, text, together};

/// A host's shared memory, mapped at the agreed address.
pub struct hostbuf_buffer {
    pub(crate) buffer: HostBuffer,
    /// For whoever fills it, by a pointer.
    pub(crate) arena: Box<hostbuf_arena>,
    name: CString,
}

/// Which pages stand behind a buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_pages {
    /// The best that is there: 1 GiB from the reserved pool, 2 MiB from the pool, transparent 2
    /// MiB, ordinary.
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

/// What a buffer is asked for with. Set everything to zero first: then all but the size is as by
/// default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_options {
    /// Bytes that can be used; rounded up to whole pages of what is obtained.
    pub size: u64,
    /// 31 bytes at most of letters, digits, `_`, `-` and `.`; null for "default".
    pub name: *const c_char,
    /// One of `hostbuf_pages`.
    pub pages: i32,
    /// Not 0: leave pages to be taken at the first touch, with no check that they are there, and a
    /// signal when they are not.
    pub lazy: u8,
    /// Not 0: let the contents go into core files.
    pub dump: u8,
}

/// How far the filling of a buffer is on this host.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_fill_state {
    HOSTBUF_EMPTY = 0,
    HOSTBUF_FILLING = 1,
    HOSTBUF_FILLED = 2,
    HOSTBUF_FROZEN = 3,
}

/// How sure it is that nobody on this host can write into a frozen buffer.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_proof {
    /// The kernel sealed the memory, which it does only while no writable mapping exists anywhere.
    HOSTBUF_SEALED = 0,
    /// Somebody may still hold a writable mapping from before; `hostbuf_message` says who.
    HOSTBUF_WEAKER = 1,
}

/// What is known of a buffer.
#[repr(C)]
pub struct hostbuf_info {
    /// The first byte, at the same address in every rank of every host.
    pub address: *mut c_void,
    /// Bytes that can be used.
    pub size: usize,
    /// Stays as long as the buffer.
    pub name: *const c_char,
    /// The pages that were obtained on this host, and how many bytes stand on huge ones.
    pub pages: hostbuf_pages,
    pub huge_bytes: u64,
    pub state: hostbuf_fill_state,
    /// How many times filling has begun on this host.
    pub generation: u64,
    /// Bytes from the beginning that the arena has given out.
    pub used: u64,
    /// Which host of the job this is, and how many there are; 0 of 0 where the hosts do not know
    /// each other.
    pub host: u32,
    pub hosts: u32,
}

fn give(buffer: HostBuffer, to: &mut *mut hostbuf_buffer) {
    let name = CString::new(buffer.name()).unwrap_or_default();
    let arena = Box::new(hostbuf_arena::of(&buffer));
    *to = Box::into_raw(Box::new(hostbuf_buffer { buffer, arena, name }));
}

impl hostbuf_buffer {
    pub(crate) fn start(&self) -> *mut c_void {
        self.buffer.as_ptr().as_ptr().cast()
    }
}

/// A caller's buffer.
///
/// # Safety
/// Null, or one that was given out and not released.
pub unsafe fn buffer<'a>(pointer: *const hostbuf_buffer) -> Outcome<&'a hostbuf_buffer> {
    // SAFETY: by the contract of this.
    unsafe { given(pointer, "buffer") }
}

/// Whether a launcher has started this process, so that there is something to attach to. All ranks
/// of a job have the same answer: who attaches or else allocates decides by this, and not by a
/// failure of `hostbuf_attach`, which may be one rank's alone.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_launched() -> bool {
    HostBuffer::is_launched()
}

/// The buffer that the launcher gave this process before its main; `name` null: the first one.
// Safety: `name` is null or text, `to` null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_attach(name: *const c_char, to: *mut *mut hostbuf_buffer) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let to = unsafe { place(to, "to") }?;
        *to = null_mut();
        let buffer = match name.is_null() {
            true => HostBuffer::attach()?,
            // SAFETY: as above.
            false => HostBuffer::attach_named(unsafe { text(name, "name") }?)?,
        };
        give(buffer, to);
        Ok(())
    })
}

/// Makes a buffer without a launcher, on all hosts of `group` at one address; `group` null: for
/// this process alone. Collective.
// Safety: `options` and `to` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_allocate(
    group: *const hostbuf_collective,
    options: *const hostbuf_options,
    to: *mut *mut hostbuf_buffer,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let to = unsafe { place(to, "to") }.map(|to| {
            *to = null_mut();
            to
        });
        // SAFETY: as above.
        let group = unsafe { self::group(group) }?;
        // SAFETY: as above.
        let ready = to.and_then(|to| Ok((unsafe { wanted(options) }?, to)));
        let (wanted, to) = together(&*group, ready)?;
        give(HostBuffer::allocate(&*group, wanted)?, to);
        Ok(())
    })
}

/// What a caller asks for.
///
/// # Safety
/// Null, or valid.
unsafe fn wanted(options: *const hostbuf_options) -> Outcome<BufferOptions> {
    // SAFETY: by the contract of this.
    let asked = unsafe { given(options, "options") }?;
    let mut wanted = BufferOptions::new(asked.size).pages(match asked.pages {
        0 => Pages::Auto,
        1 => Pages::Small,
        2 => Pages::Transparent,
        3 => Pages::Huge2M,
        4 => Pages::Huge1G,
        other => return Err(argument(format!("pages = {other}: one of hostbuf_pages is meant"))),
    });
    if !asked.name.is_null() {
        // SAFETY: as above.
        wanted = wanted.name(unsafe { text(asked.name, "name") }?);
    }
    (wanted.lazy, wanted.dump) = (asked.lazy != 0, asked.dump != 0);
    Ok(wanted)
}

/// Gives a buffer back. Its memory is unmapped when nothing uses it any more: regions that are
/// registered keep it. Null: nothing.
// Safety: `buffer` was given out, and is not used again; neither is what lies in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_release(buffer: *mut hostbuf_buffer) {
    if !buffer.is_null() {
        // SAFETY: from give(), by the contract of this.
        let buffer = unsafe { Box::from_raw(buffer) };
        call(|| {
            drop(buffer);
            Ok(())
        });
    }
}

/// The first byte, the same address in every rank of every host; null for a null buffer.
// Safety: `buffer` is null or was given out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_data(buffer: *const hostbuf_buffer) -> *mut c_void {
    // SAFETY: by the contract of this.
    unsafe { buffer.as_ref() }.map_or(null_mut(), hostbuf_buffer::start)
}

/// Bytes that can be used; 0 for a null buffer.
// Safety: `buffer` is null or was given out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_size(buffer: *const hostbuf_buffer) -> usize {
    // SAFETY: by the contract of this.
    unsafe { buffer.as_ref() }.map_or(0, |buffer| buffer.buffer.len())
}

/// What is known of a buffer.
// Safety: `buffer` and `to` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_stat(
    buffer: *const hostbuf_buffer,
    to: *mut hostbuf_info,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let (own, to) = unsafe { (self::buffer(buffer)?, place(to, "to")?) };
        let buffer = &own.buffer;
        let (host, hosts) = buffer.host();
        *to = hostbuf_info {
            address: own.start(),
            size: buffer.len(),
            name: own.name.as_ptr(),
            pages: match buffer.pages() {
                Pages::Auto => hostbuf_pages::HOSTBUF_PAGES_AUTO,
                Pages::Small => hostbuf_pages::HOSTBUF_PAGES_SMALL,
                Pages::Transparent => hostbuf_pages::HOSTBUF_PAGES_TRANSPARENT,
                Pages::Huge2M => hostbuf_pages::HOSTBUF_PAGES_2M,
                Pages::Huge1G => hostbuf_pages::HOSTBUF_PAGES_1G,
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
            host,
            hosts,
        };
        Ok(())
    })
}

/// Sends the filled buffer of rank `root`'s host to all other hosts of `group`, where it must be
/// empty: the bytes that the arena gave out, checksummed. Pointers inside stay valid, since the
/// address is the same. Collective.
// Safety: `buffer` and `group` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_replicate(
    buffer: *mut hostbuf_buffer,
    group: *const hostbuf_collective,
    root: usize,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let (own, group) = unsafe { (self::buffer(buffer), self::group(group)?) };
        let ready = own.and_then(|own| match root < group.size() {
            true => Ok(own),
            false => Err(argument(format!("root = {root} of {} ranks", group.size()))),
        });
        Ok(together(&*group, ready)?.buffer.replicate(&*group, root)?)
    })
}

/// Makes a filled buffer read-only for good, in all ranks of `group`; a stray write faults from
/// then on. Collective over all ranks that have it mapped. `proof` may be null; for
/// `HOSTBUF_WEAKER`, `hostbuf_message` says why.
// Safety: `buffer`, `group` and `proof` are null or valid; nobody writes into it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_freeze(
    buffer: *mut hostbuf_buffer,
    group: *const hostbuf_collective,
    proof: *mut hostbuf_proof,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this.
        let (own, group) = unsafe { (self::buffer(buffer), self::group(group)?) };
        let frozen = together(&*group, own)?.buffer.freeze(&*group)?;
        let sure = match frozen.proof() {
            Proof::Sealed => hostbuf_proof::HOSTBUF_SEALED,
            Proof::Weaker { why } => {
                say(why.clone());
                hostbuf_proof::HOSTBUF_WEAKER
            }
            other => {
                say(format!("{other:?}"));
                hostbuf_proof::HOSTBUF_WEAKER
            }
        };
        // SAFETY: as above.
        if let Some(place) = unsafe { proof.as_mut() } {
            *place = sure;
        }
        Ok(())
    })
}
