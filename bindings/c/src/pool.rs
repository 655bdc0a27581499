//! Connections to pools.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::time::Duration;

use ::hostbuf_pool::{Pool, PoolKind, PoolMode, PoolOptions, Token};
use library::sized_struct::SizedInput;

use crate::block_ref::hostbuf_block_ref;
use crate::pointers::{input, output, read, text};
use crate::pool_status::{acquire_error, pool_error};
use crate::status::{CallResult, argument, call, hostbuf_status};

/// A connection of this process to a pool of blocks.
pub struct hostbuf_pool {
    pub(crate) pool: Pool,
}

/// The behaviour of a pool without a broker.
#[allow(dead_code, reason = "the options have an integer, since the caller's may be invalid")]
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_pool_mode {
    /// The behaviour that the variable `HOSTBUF_POOL` states; without it as
    /// `HOSTBUF_POOL_OPTIONAL`.
    HOSTBUF_POOL_DEFAULT = 0,
    /// Without a broker the pool is one of this process alone.
    HOSTBUF_POOL_OPTIONAL = 1,
    /// Without a broker connecting fails.
    HOSTBUF_POOL_REQUIRED = 2,
    /// Without a broker one is started, which ends when it is unused.
    HOSTBUF_POOL_START = 3,
    /// The pool is one of this process alone.
    HOSTBUF_POOL_PRIVATE = 4,
}

/// The options of a connection to a pool. All have defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_pool_options {
    /// The size of this structure: initialize it with `HOSTBUF_POOL_OPTIONS_INIT`.
    pub struct_size: usize,
    /// The name of this client, for people and for producers that wait for it.
    pub name: *const c_char,
    /// One of `hostbuf_pool_mode`.
    pub mode: u32,
    /// 0.
    pub reserved: u32,
    /// The abstract name of the broker's socket, without the leading zero byte. Null means this
    /// user's.
    pub socket: *const c_char,
    /// The path of the broker's socket, instead of the abstract name, or null.
    pub path: *const c_char,
    /// The time in nanoseconds for which a request waits for the broker. 0 means 10 seconds.
    pub timeout_ns: u64,
}

sized_struct!(hostbuf_pool_options, "HOSTBUF_POOL_OPTIONS_INIT", last: timeout_ns: u64);

// SAFETY: numbers and raw pointers.
unsafe impl SizedInput for hostbuf_pool_options {
    const DEFAULT: hostbuf_pool_options = hostbuf_pool_options {
        struct_size: size_of::<hostbuf_pool_options>(),
        name: null(),
        mode: 0,
        reserved: 0,
        socket: null(),
        path: null(),
        timeout_ns: 0,
    };
}

/// The name of a published block, which a producer sends to its consumers by any transport. Its
/// bytes can be copied.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_token {
    /// The bytes, in a format that is the same for all languages.
    pub bytes: [u8; 48],
}

/// Returns a text of the caller, or `None` for null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(pointer: *const c_char, name: &str) -> CallResult<Option<&'a str>> {
    match pointer.is_null() {
        true => Ok(None),
        // SAFETY: by the contract of this function.
        false => unsafe { text(pointer, name) }.map(Some),
    }
}

/// Returns the options of the caller, or the defaults for null.
///
/// # Safety
/// `options` is null, or valid with valid texts.
unsafe fn pool_options(options: *const hostbuf_pool_options) -> CallResult<PoolOptions> {
    let given = match options.is_null() {
        true => hostbuf_pool_options::DEFAULT,
        // SAFETY: by the contract of this function.
        false => unsafe { read(options, "options") }?,
    };
    // SAFETY: as above.
    let (name, socket, path) = unsafe {
        (
            optional_text(given.name, "options.name")?.unwrap_or_default(),
            optional_text(given.socket, "options.socket")?,
            optional_text(given.path, "options.path")?,
        )
    };
    let of = |mode| PoolOptions::new(name).mode(mode);
    let mut made = match given.mode {
        0 => PoolOptions::from_environment(name).map_err(pool_error)?,
        1 => of(PoolMode::Optional),
        2 => of(PoolMode::Required),
        3 => of(PoolMode::Start),
        4 => of(PoolMode::Private),
        other => {
            return Err(argument(format!("invalid mode {other}: expected a value of hostbuf_pool_mode")));
        }
    };
    if let Some(socket) = socket {
        made = made.socket(socket);
        // The variable may state a path.
        made.path = None;
    }
    if let Some(path) = path {
        made = made.path(path);
    }
    if given.timeout_ns > 0 {
        made = made.timeout(Duration::from_nanos(given.timeout_ns));
    }
    Ok(made)
}

/// Connects to a pool of this user. Null `options` are the defaults.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_pool_connect(
    options: *const hostbuf_pool_options,
    to: Option<&mut MaybeUninit<*mut hostbuf_pool>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        // SAFETY: by the contract of this function.
        let options = unsafe { pool_options(options) }?;
        let pool = Pool::connect(options).map_err(pool_error)?;
        *to = Box::into_raw(Box::new(hostbuf_pool { pool }));
        Ok(())
    })
}

/// Closes a connection. It ends with its last producer and its last block. A null pool is ignored.
// Safety: `pool` is a live handle. It is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pool_close(pool: Option<Box<hostbuf_pool>>) {
    call(|| {
        drop(pool);
        Ok(())
    });
}

/// Returns true if a broker makes the memory of the pool and its clients share it. The tokens of
/// another pool are valid in this process only.
// Safety: `pool` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pool_is_shared(pool: Option<&hostbuf_pool>) -> bool {
    pool.is_some_and(|pool| pool.pool.kind() == PoolKind::Shared)
}

/// Writes the state of the pool as a JSON text to `to`: clients, producers, and who holds which
/// blocks. Free it with `hostbuf_text_free`.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pool_status_text(
    pool: Option<&hostbuf_pool>,
    to: Option<&mut MaybeUninit<*mut c_char>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let status = input(pool, "pool")?.pool.status().map_err(pool_error)?;
        *to = CString::new(status).map_err(|_| argument("the state contains a NUL"))?.into_raw();
        Ok(())
    })
}

/// Frees a text of `hostbuf_pool_status_text`. A null text is ignored.
// Safety: `text` is null, or the function above has made it and it was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: by the contract of this function.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Acquires the block of a token, for reading. Its producer does not reuse the block before
/// `hostbuf_block_ref_release`. After the first token of a producer this makes no system call.
///
/// `HOSTBUF_GONE`: the producer has published too many others meanwhile, or has ended.
/// `HOSTBUF_QUOTA`: this process holds as many blocks as it may.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pool_acquire(
    pool: Option<&hostbuf_pool>,
    token: Option<&hostbuf_token>,
    to: Option<&mut MaybeUninit<*mut hostbuf_block_ref>>,
) -> hostbuf_status {
    call(|| {
        let to = output(to, "to", null_mut())?;
        let pool = &input(pool, "pool")?.pool;
        let held = pool.acquire_bytes(&input(token, "token")?.bytes).map_err(acquire_error)?;
        *to = Box::into_raw(Box::new(hostbuf_block_ref::new(held, pool)));
        Ok(())
    })
}

/// States that this process does not need the block of a token, for a producer that waits for this
/// reader.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_pool_skip(
    pool: Option<&hostbuf_pool>,
    token: Option<&hostbuf_token>,
) -> hostbuf_status {
    call(|| {
        let pool = &input(pool, "pool")?.pool;
        let token = Token::from_bytes(&input(token, "token")?.bytes);
        let token = token.map_err(|error| acquire_error(error.into()))?;
        pool.skip(&token).map_err(acquire_error)
    })
}
