//! The copy in libhostbuf, loaded at run time as a program's plugin would load it.

#![allow(unsafe_code, reason = "foreign functions and fork")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;

pub const OK: c_int = 0;
pub const UNSUPPORTED: c_int = 2;
pub const FILL: c_int = 10;
pub const FREEZE: c_int = 12;
pub const NOTHING: c_int = 20;
/// `HOSTBUF_READ` and `HOSTBUF_WRITE`.
pub const READ: c_int = 0;
pub const WRITE: c_int = 1;
/// `HOSTBUF_MONITOR_DEFAULT` and `HOSTBUF_MONITOR_STRICT`.
pub const DEFAULT: c_int = 0;
pub const STRICT: c_int = 1;

/// A loaded library, which stays loaded until [`unload`](LoadedCopy::unload).
pub struct LoadedCopy(*mut c_void);

// SAFETY: the loader's functions may be called by several threads.
unsafe impl Sync for LoadedCopy {}

/// A `hostbuf_lease`, whose first word is its size, with room to spare.
#[derive(Default)]
pub struct LeaseStorage(#[allow(dead_code, reason = "the library uses it")] [u64; 16]);

pub type Filler = extern "C" fn(*mut c_void, *mut c_void) -> *mut c_void;

impl LoadedCopy {
    pub fn load(path: &str) -> LoadedCopy {
        let name = CString::new(path).expect("a path");
        // SAFETY: the library's constructors only prepare its standard library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path} cannot be loaded");
        LoadedCopy(handle)
    }

    pub fn unload(self) {
        // SAFETY: loaded once; nothing of it is called afterwards.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }

    /// Returns a function of include/hostbuf.h.
    ///
    /// # Safety
    /// `F` must be the type of the function.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: it is loaded.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        // SAFETY: by this function's contract.
        unsafe { std::mem::transmute_copy(&found) }
    }

    pub fn message(&self) -> String {
        // SAFETY: as include/hostbuf.h has it; the text stays until the thread's next call.
        unsafe {
            let message = self.function::<extern "C" fn() -> *const c_char>(c"hostbuf_message");
            CStr::from_ptr(message()).to_string_lossy().into_owned()
        }
    }

    /// Returns the launcher's buffer.
    pub fn attach(&self) -> Handle<'_> {
        self.opened(c"hostbuf_release", |to| {
            // SAFETY: as include/hostbuf.h has it, and so below.
            unsafe {
                self.function::<extern "C" fn(*const c_char, *mut *mut c_void) -> c_int>(c"hostbuf_attach")(
                    null_mut(),
                    to,
                )
            }
        })
    }

    pub fn device(&self) -> Handle<'_> {
        self.opened(c"hostbuf_device_close", |to| {
            // SAFETY: as above.
            unsafe {
                self.function::<extern "C" fn(*const c_char, *mut *mut c_void) -> c_int>(
                    c"hostbuf_device_open",
                )(c"mlock".as_ptr(), to)
            }
        })
    }

    /// Opens a cache, or returns the status of the failure.
    pub fn cache(&self, device: &Handle<'_>, monitor: c_int) -> Result<Handle<'_>, c_int> {
        let mut cache = null_mut();
        // SAFETY: as above.
        let status = unsafe {
            type Open = extern "C" fn(*const c_void, usize, usize, c_int, *mut *mut c_void) -> c_int;
            self.function::<Open>(c"hostbuf_cache_open")(device.pointer, 16, 1 << 24, monitor, &raw mut cache)
        };
        let close = c"hostbuf_cache_close";
        if status == OK { Ok(Handle { library: self, pointer: cache, close }) } else { Err(status) }
    }

    fn opened(&self, close: &'static CStr, open: impl FnOnce(*mut *mut c_void) -> c_int) -> Handle<'_> {
        let mut pointer = null_mut();
        assert_eq!(open(&raw mut pointer), OK, "{}", self.message());
        Handle { library: self, pointer, close }
    }
}

/// An object of the library.
pub struct Handle<'l> {
    library: &'l LoadedCopy,
    pointer: *mut c_void,
    close: &'static CStr,
}

// SAFETY: the library's objects may be used by several threads.
unsafe impl Sync for Handle<'_> {}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: as include/hostbuf.h has it.
        unsafe { self.library.function::<extern "C" fn(*mut c_void)>(self.close)(self.pointer) };
    }
}

/// Operations of a cache.
impl Handle<'_> {
    pub fn get(&self, start: usize, length: usize, access: c_int) -> Result<LeaseStorage, c_int> {
        self.lease(c"hostbuf_cache_get", start, length, access)
    }

    /// Returns whether a request hits.
    pub fn hits(&self, start: usize, length: usize, access: c_int) -> bool {
        match self.lease(c"hostbuf_cache_try_get", start, length, access) {
            Ok(lease) => {
                self.put(lease);
                true
            }
            Err(status) => {
                assert_eq!(status, NOTHING, "{}", self.library.message());
                false
            }
        }
    }

    fn lease(&self, name: &CStr, start: usize, length: usize, access: c_int) -> Result<LeaseStorage, c_int> {
        let mut lease = LeaseStorage::default();
        lease.0[0] = size_of::<LeaseStorage>() as u64;
        // SAFETY: as include/hostbuf.h has it; the place is larger than a lease.
        let status = unsafe {
            type Get = extern "C" fn(*mut c_void, usize, usize, c_int, *mut LeaseStorage) -> c_int;
            self.library.function::<Get>(name)(self.pointer, start, length, access, &raw mut lease)
        };
        if status == OK { Ok(lease) } else { Err(status) }
    }

    pub fn put(&self, mut lease: LeaseStorage) {
        // SAFETY: as above; put back once.
        unsafe {
            self.library.function::<extern "C" fn(*mut LeaseStorage)>(c"hostbuf_cache_put")(&raw mut lease);
        };
    }

    pub fn get_and_put(&self, start: usize, length: usize, access: c_int) {
        let lease = self.get(start, length, access).unwrap_or_else(|status| {
            panic!("{status}: {}", self.library.message());
        });
        self.put(lease);
    }
}

/// Operations of a buffer.
impl Handle<'_> {
    pub fn initialize(&self, filler: Filler) -> c_int {
        // SAFETY: as include/hostbuf.h has it.
        unsafe {
            type Initialize = extern "C" fn(*mut c_void, Filler, *mut c_void, *mut *mut c_void) -> c_int;
            let initialize = self.library.function::<Initialize>(c"hostbuf_initialize");
            initialize(self.pointer, filler, null_mut(), null_mut())
        }
    }

    /// Registers the whole buffer.
    pub fn register(&self, device: &Handle<'_>, access: c_int) -> Result<*mut c_void, c_int> {
        let mut registration = null_mut();
        // SAFETY: as above.
        let status = unsafe {
            type Register =
                extern "C" fn(*mut c_void, *const c_void, usize, usize, c_int, *mut *mut c_void) -> c_int;
            let register = self.library.function::<Register>(c"hostbuf_register");
            register(self.pointer, device.pointer, 0, 0, access, &raw mut registration)
        };
        if status == OK { Ok(registration) } else { Err(status) }
    }

    pub fn deregister(&self, registration: *mut c_void) {
        // SAFETY: as above; ended once.
        let status = unsafe {
            self.library.function::<extern "C" fn(*mut c_void) -> c_int>(c"hostbuf_deregister")(registration)
        };
        assert_eq!(status, OK);
    }
}
