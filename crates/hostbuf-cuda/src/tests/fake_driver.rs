//! A fake driver: its functions record their calls and check the order of what begins and ends, and
//! any of them can fail. Each thread has a driver of its own, and so has each test.

#![allow(unsafe_code, reason = "the functions have the types of the driver's, which take pointers")]

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::slice;

use cudarc::driver::sys;

use super::call_lists::{ENDING, WITHOUT_CONTEXT};
use super::deferred_work::DeferredWork;
use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;
use crate::driver::Driver;
use crate::functions::Functions;

pub(super) const SUCCESS: c_uint = 0;
pub(super) const INVALID_VALUE: c_uint = 1;
pub(super) const OUT_OF_MEMORY: c_uint = 2;
pub(super) const DEINITIALIZED: c_uint = 4;
pub(super) const INVALID_CONTEXT: c_uint = 201;
pub(super) const NOT_READY: c_uint = 600;
pub(super) const ILLEGAL_ADDRESS: c_uint = 700;
pub(super) const CONTEXT_IS_DESTROYED: c_uint = 709;

/// The granularity of memory and addresses.
pub(super) const GRANULARITY: usize = 2 << 20;
/// The address of the first reserved range.
const FIRST_RANGE: u64 = 0x7000_0000_0000;

/// The state of a fake driver, and what happens to it.
#[derive(Default)]
pub(super) struct FakeDriver {
    /// The names of the called functions, without those that push and pop contexts.
    pub(super) calls: Vec<&'static str>,
    /// All that was made and has not ended.
    pub(super) live: BTreeSet<String>,
    /// The number of ranges for which the driver ignores a wished address.
    pub(super) holes: usize,
    /// The address and the length of each range.
    ranges: Vec<(u64, usize)>,
    /// The number of ranges at addresses that the driver has chosen.
    offered: u64,
    /// The violations of the driver's rules.
    pub(super) faults: Vec<String>,
    /// The functions that fail, with their codes.
    pub(super) failing: Vec<(&'static str, c_uint)>,
    /// The number of further calls after which one fails, of the functions that end nothing.
    pub(super) failing_call: Option<usize>,
    /// The functions that the driver lacks.
    pub(super) missing: Vec<&'static str>,
    /// The UUIDs of the GPUs.
    pub(super) uuids: Vec<[u8; 16]>,
    /// The attributes of the GPUs that this driver knows.
    pub(super) attributes: Vec<(c_uint, c_int)>,
    /// The GPU on which imported memory lies.
    pub(super) imported_device: c_int,
    /// The code of a context that is gone.
    pub(super) gone: Option<c_uint>,
    /// The number of the context.
    pub(super) context_number: u64,
    /// True if the context ends its streams.
    pub(super) ends_streams: bool,
    /// True if the driver finds the context of a stream by its handle.
    pub(super) finds_contexts: bool,
    /// True if all memory needs a current context.
    pub(super) wants_contexts: bool,
    /// The contexts that were pushed, the current one last.
    pub(super) current: Vec<usize>,
    /// The flags of the last call that had some.
    pub(super) flags: c_uint,
    /// True if the work of each stream becomes a graph.
    pub(super) is_capturing: bool,
    /// The mode of this thread for calls beside a capture.
    pub(super) capture_mode: c_uint,
    /// The error that the callbacks of streams get.
    pub(super) stream_error: c_uint,
    /// The deferred copies of all streams, in their order, with what comes before and after them.
    pub(super) deferred: VecDeque<DeferredWork>,
    /// The operands of the last copy, or the access to the last mapping.
    pub(super) operands: Vec<u64>,
    handles: usize,
}

thread_local! {
    static FAKE: RefCell<FakeDriver> = RefCell::default();
}

/// Calls `use_it` with the driver of this thread.
pub(super) fn fake<R>(use_it: impl FnOnce(&mut FakeDriver) -> R) -> R {
    FAKE.with_borrow_mut(use_it)
}

/// Makes a new driver for this thread, after `change`.
pub(super) fn new_driver(change: impl FnOnce(&mut FakeDriver)) -> Result<Driver, CudaError> {
    fake(|fake| {
        *fake = FakeDriver { uuids: vec![[7; 16], [9; 16]], ..FakeDriver::default() };
        change(fake);
    });
    // Every driver of a process lives until its end.
    let driver = Driver::with_functions(Box::leak(Box::new(Functions::find(symbol)?)));
    driver.initialize()?;
    Ok(driver)
}

/// Makes a new driver for this thread, and a context of its first GPU.
pub(super) fn new_context() -> CudaContext {
    let driver = new_driver(|_| {}).expect("it has all functions");
    CudaContext::retain(&driver.gpu(0).expect("it has two GPUs")).expect("nothing fails")
}

/// Checks that everything has ended in a right order.
#[track_caller]
pub(super) fn assert_nothing_remains() {
    fake(|fake| {
        assert_eq!(
            (&fake.live, &fake.faults, &fake.current),
            (&BTreeSet::new(), &vec![], &vec![]),
            "{:?}",
            fake.calls
        );
    });
}

/// Returns the calls since this was called last.
pub(super) fn take_calls() -> Vec<&'static str> {
    fake(|fake| std::mem::take(&mut fake.calls))
}

impl FakeDriver {
    /// Records a call, and returns the code of a failure or of `run`.
    fn call(&mut self, name: &'static str, run: impl FnOnce(&mut FakeDriver) -> c_uint) -> c_uint {
        if !name.starts_with("cuCtxP") && name != "cuGetErrorName" {
            self.calls.push(name);
        }
        if let Some(&(_, code)) = self.failing.iter().find(|(failing, _)| *failing == name) {
            return code;
        }
        let by_handle = ["cuEventRecord", "cuStreamWaitEvent"].contains(&name);
        if self.current.is_empty() && by_handle && !self.finds_contexts {
            return INVALID_CONTEXT;
        }
        if self.current.is_empty() && self.wants_contexts && name.starts_with("cuMem") {
            return INVALID_CONTEXT;
        }
        if self.current.is_empty() && !by_handle && !WITHOUT_CONTEXT.contains(&name) {
            self.faults.push(format!("{name} without a context"));
            return INVALID_CONTEXT;
        }
        if !ENDING.contains(&name) {
            match &mut self.failing_call {
                Some(0) => {
                    self.failing_call = None;
                    return OUT_OF_MEMORY;
                }
                Some(left) => *left -= 1,
                None => {}
            }
        }
        run(self)
    }

    /// Makes something, and returns its handle.
    fn begin(&mut self, kind: &str) -> usize {
        self.handles += 0x10;
        self.live.insert(format!("{kind} {:#x}", self.handles));
        self.handles
    }

    /// Ends something.
    fn end(&mut self, kind: &str, handle: usize) -> c_uint {
        if self.live.remove(&format!("{kind} {handle:#x}")) {
            return SUCCESS;
        }
        self.faults.push(format!("{kind} {handle:#x} ended, and was not there"));
        INVALID_VALUE
    }

    fn require(&mut self, kind: &str, handle: usize) {
        if !self.live.contains(&format!("{kind} {handle:#x}")) {
            self.faults.push(format!("{kind} {handle:#x} used, and was not there"));
        }
    }

    /// Adds the operands of a batch of copies to those of the batches before.
    fn batch(
        &mut self,
        (to, from, bytes, count): (*const u64, *const u64, *const usize, usize),
        (attributes, first, kinds): (*mut sys::CUmemcpyAttributes, *mut usize, usize),
    ) -> c_uint {
        // SAFETY: the caller passes arrays of `count` elements, and of `kinds` elements.
        let (to, from, bytes, attributes, first) = unsafe {
            let (to, from) = (slice::from_raw_parts(to, count), slice::from_raw_parts(from, count));
            let (attributes, first) =
                (slice::from_raw_parts(attributes, kinds), slice::from_raw_parts(first, kinds));
            (to, from, slice::from_raw_parts(bytes, count), attributes, first)
        };
        let in_stream_order = sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        if bytes.contains(&0) || first != [0] || attributes[0].srcAccessOrder != in_stream_order {
            return INVALID_VALUE;
        }
        let copies = to.iter().zip(from).zip(bytes);
        self.operands.extend(copies.flat_map(|((&to, &from), &bytes)| [to, from, bytes as u64]));
        SUCCESS
    }

    /// Does deferred work up to the first wait that has not ended. Returns whether all was done.
    pub(super) fn run_deferred(&mut self) -> bool {
        while let Some(&work) = self.deferred.front() {
            if !work.run(self.stream_error) {
                return false;
            }
            self.deferred.pop_front();
        }
        true
    }

    /// Ends the context and all that was made in it, as somebody else's reset or the exit does.
    pub(super) fn lose_context(&mut self, code: c_uint) {
        self.gone = Some(code);
        self.live.clear();
    }
}

/// Writes a result of a call.
fn give<T>(to: *mut T, value: T) -> c_uint {
    // SAFETY: the callers pass pointers to variables.
    unsafe { to.write(value) };
    SUCCESS
}

/// Declares functions with the names of their symbols, and the function that finds them.
macro_rules! fake_functions {
    ($($name:literal: $function:ident($($argument:ident: $type:ty),*) = $run:expr;)*) => {
        $(
            unsafe extern "C" fn $function($($argument: $type),*) -> c_uint {
                fake(|fake| fake.call($name, $run))
            }
        )*

        /// Finds a function by the name of its symbol.
        fn symbol(name: &'static str) -> Option<*const c_void> {
            if fake(|fake| fake.missing.contains(&name)) {
                return None;
            }
            match name {
                $($name => Some($function as *const c_void),)*
                _ => None,
            }
        }
    };
}

fake_functions! {
    "cuInit": init(_flags: c_uint) = |_| SUCCESS;
    "cuDriverGetVersion": version(version: *mut c_int) = |_| give(version, 12080);
    "cuDeviceGetCount": count(count: *mut c_int) = |fake| give(count, fake.uuids.len() as c_int);
    "cuDeviceGet": device(device: *mut c_int, ordinal: c_int) = |_| give(device, ordinal);
    "cuDeviceGetAttribute": attribute(value: *mut c_int, attribute: c_uint, _device: c_int) = |fake| {
        let found = fake.attributes.iter().find(|(known, _)| *known == attribute);
        found.map_or(INVALID_VALUE, |&(_, known)| give(value, known))
    };
    "cuDeviceGetName": device_name(name: *mut c_char, _room: c_int, _device: c_int) = |_| {
        for (at, byte) in b"Fake GPU\0".iter().enumerate() {
            give(name.wrapping_add(at), *byte as c_char);
        }
        SUCCESS
    };
    "cuDeviceGetPCIBusId": pci_address(address: *mut c_char, _room: c_int, device: c_int) = |_| {
        let text = format!("0000:{device:X}B:00.0\0");
        text.bytes().enumerate().for_each(|(at, byte)| _ = give(address.wrapping_add(at), byte as c_char));
        SUCCESS
    };
    "cuDeviceGetUuid": old_uuid(uuid: *mut sys::CUuuid, _device: c_int) = |_| {
        give(uuid, sys::CUuuid { bytes: [5; 16] })
    };
    "cuDeviceGetUuid_v2": uuid(uuid: *mut sys::CUuuid, device: c_int) = |fake| {
        give(uuid, sys::CUuuid { bytes: fake.uuids[device as usize].map(|byte| byte as c_char) })
    };
    "cuDevicePrimaryCtxRetain": retain(context: *mut sys::CUcontext, _device: c_int) = |fake| {
        let handle = fake.begin("context");
        give(context, handle as sys::CUcontext)
    };
    "cuDevicePrimaryCtxRelease_v2": release(_device: c_int) = |fake| {
        if let Some(gone) = fake.gone {
            return gone;
        }
        if fake.ends_streams {
            fake.live.retain(|one| !one.starts_with("stream"));
        }
        fake.live.retain(|one| !one.starts_with("context module"));
        let left = fake.live.iter().find(|one| !one.starts_with("context"));
        if let Some(left) = left.filter(|_| !fake.wants_contexts) {
            fake.faults.push(format!("the context ended before {left}"));
        }
        let context = fake.live.iter().find(|one| one.starts_with("context")).cloned();
        context.map_or(INVALID_CONTEXT, |context| c_uint::from(!fake.live.remove(&context)))
    };
    "cuCtxPushCurrent_v2": push(context: sys::CUcontext) = |fake| match fake.gone {
        Some(gone) => gone,
        None => {
            fake.current.push(context as usize);
            SUCCESS
        }
    };
    "cuCtxPopCurrent_v2": pop(_context: *mut sys::CUcontext) = |fake| {
        c_uint::from(fake.current.pop().is_none())
    };
    "cuCtxGetId": context_number(_context: sys::CUcontext, number: *mut c_ulonglong) =
        |fake| give(number, fake.context_number);
    "cuGetErrorName": error_name(code: c_uint, name: *mut *const c_char) = |_| match code {
        OUT_OF_MEMORY => give(name, c"CUDA_ERROR_OUT_OF_MEMORY".as_ptr()),
        _ => INVALID_VALUE,
    };
    "cuMemHostRegister_v2": register(start: *mut c_void, _bytes: usize, flags: c_uint) = |fake| {
        fake.flags = flags;
        fake.live.insert(format!("registration {:#x}", start as usize));
        SUCCESS
    };
    "cuMemHostUnregister": unregister(start: *mut c_void) = |fake| fake.end("registration", start as usize);
    "cuMemHostGetDevicePointer_v2": device_pointer(device: *mut u64, host: *mut c_void, _flags: c_uint) =
        |_| give(device, host as u64 + 1);

    "cuStreamCreate": stream_create(stream: *mut sys::CUstream, flags: c_uint) = |fake| {
        fake.flags = flags;
        let handle = fake.begin("stream");
        give(stream, handle as sys::CUstream)
    };
    "cuStreamDestroy_v2": stream_destroy(stream: sys::CUstream) = |fake| fake.end("stream", stream as usize);
    "cuStreamSynchronize": stream_synchronize(_stream: sys::CUstream) = |_| SUCCESS;
    "cuStreamQuery": stream_query(_stream: sys::CUstream) = |_| SUCCESS;
    "cuStreamIsCapturing": is_capturing(_stream: sys::CUstream, status: *mut c_uint) =
        |fake| give(status, c_uint::from(fake.is_capturing));
    "cuThreadExchangeStreamCaptureMode": exchange_mode(mode: *mut c_uint) = |fake| {
        // SAFETY: the caller passes a variable.
        unsafe { std::ptr::swap(mode, &raw mut fake.capture_mode) };
        SUCCESS
    };
    "cuStreamAddCallback": add_callback(
        stream: sys::CUstream,
        callback: unsafe extern "C" fn(sys::CUstream, c_uint, *mut c_void),
        data: *mut c_void,
        _flags: c_uint
    ) = |fake| {
        if !fake.deferred.is_empty() {
            fake.deferred.push_back(DeferredWork::Call(callback, data as usize));
            return SUCCESS;
        }
        // SAFETY: the caller passes a function with its data.
        unsafe { callback(stream, fake.stream_error, data) };
        SUCCESS
    };
    "cuStreamWaitValue32_v2": wait_value(_stream: sys::CUstream, address: u64, value: u32, flags: c_uint) =
        |fake| {
            fake.deferred.push_back(DeferredWork::Wait(address, value));
            fake.flags = flags;
            SUCCESS
        };
    "cuStreamWriteValue32_v2": write_value(_stream: sys::CUstream, address: u64, value: u32, _flags: c_uint) =
        |fake| {
            fake.deferred.push_back(DeferredWork::Write(address, value));
            SUCCESS
        };
    "cuModuleLoadData": load_module(module: *mut sys::CUmodule, text: *const c_void) = |fake| {
        // SAFETY: the caller passes a text that ends with NUL.
        let text = unsafe { CStr::from_ptr(text.cast()) }.to_string_lossy();
        if !text.contains(".visible .entry hostbuf_copy(") {
            return INVALID_VALUE;
        }
        let handle = fake.begin("context module");
        give(module, handle as sys::CUmodule)
    };
    "cuModuleGetFunction": find_kernel(kernel: *mut sys::CUfunction, module: sys::CUmodule, name: *const c_char) =
        |fake| {
            fake.require("context module", module as usize);
            // SAFETY: the caller passes a text that ends with NUL.
            match unsafe { CStr::from_ptr(name) }.to_bytes() {
                b"hostbuf_copy" => give(kernel, module.cast()),
                _ => INVALID_VALUE,
            }
        };
    "cuLaunchKernel": launch(
        kernel: sys::CUfunction,
        _x: c_uint,
        _y: c_uint,
        _z: c_uint,
        _threads_x: c_uint,
        _threads_y: c_uint,
        _threads_z: c_uint,
        _shared: c_uint,
        _stream: sys::CUstream,
        parameters: *mut *mut c_void,
        _more: *mut *mut c_void
    ) = |fake| {
        fake.require("context module", kernel as usize);
        // SAFETY: the caller passes an array with the parameter of the kernel, an address.
        let request = unsafe { (*parameters).cast::<u64>().read() };
        fake.deferred.push_back(DeferredWork::Copy(request));
        SUCCESS
    };
    "cuStreamWaitEvent": stream_wait(_stream: sys::CUstream, event: sys::CUevent, _flags: c_uint) = |fake| {
        fake.require("event", event as usize);
        SUCCESS
    };
    "cuMemcpyHtoDAsync_v2": copy_to_device(to: u64, from: *const c_void, bytes: usize, stream: sys::CUstream) =
        |fake| {
            fake.operands = vec![to, from as u64, bytes as u64, stream as u64];
            SUCCESS
        };
    "cuMemcpyDtoHAsync_v2": copy_to_host(to: *mut c_void, from: u64, bytes: usize, stream: sys::CUstream) =
        |fake| {
            fake.operands = vec![to as u64, from, bytes as u64, stream as u64];
            SUCCESS
        };
    "cuMemcpyDtoDAsync_v2": copy_on_device(to: u64, from: u64, bytes: usize, stream: sys::CUstream) = |fake| {
        fake.operands = vec![to, from, bytes as u64, stream as u64];
        SUCCESS
    };
    "cuMemcpy2DAsync_v2": copy_rows(copy: *const sys::CUDA_MEMCPY2D, stream: sys::CUstream) = |fake| {
        // SAFETY: the caller passes a pointer to a variable.
        let copy = unsafe { copy.read() };
        let types = (copy.srcMemoryType, copy.dstMemoryType);
        let (host, gpu) = (sys::CUmemorytype::CU_MEMORYTYPE_HOST, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE);
        if types != (host, gpu) || [copy.srcXInBytes, copy.srcY, copy.dstXInBytes, copy.dstY] != [0; 4] {
            return INVALID_VALUE;
        }
        let (to, from) = (copy.dstDevice, copy.srcHost as u64);
        let sizes = [copy.srcPitch, copy.dstPitch, copy.WidthInBytes, copy.Height].map(|size| size as u64);
        fake.operands = [&[to, from][..], &sizes, &[stream as u64]].concat();
        SUCCESS
    };
    "cuMemcpyBatchAsync_v2": batch(
        to: *const u64,
        from: *const u64,
        bytes: *const usize,
        count: usize,
        attributes: *mut sys::CUmemcpyAttributes,
        first: *mut usize,
        kinds: usize,
        _stream: sys::CUstream
    ) = |fake| fake.batch((to, from, bytes, count), (attributes, first, kinds));
    "cuMemcpyBatchAsync": index_batch(
        to: *const u64,
        from: *const u64,
        bytes: *const usize,
        count: usize,
        attributes: *mut sys::CUmemcpyAttributes,
        first: *mut usize,
        kinds: usize,
        _wrong: *mut usize,
        _stream: sys::CUstream
    ) = |fake| fake.batch((to, from, bytes, count), (attributes, first, kinds));

    "cuEventCreate": event_create(event: *mut sys::CUevent, flags: c_uint) = |fake| {
        fake.flags = flags;
        let handle = fake.begin("event");
        give(event, handle as sys::CUevent)
    };
    "cuEventDestroy_v2": event_destroy(event: sys::CUevent) = |fake| fake.end("event", event as usize);
    "cuEventRecord": event_record(event: sys::CUevent, stream: sys::CUstream) = |fake| {
        fake.require("event", event as usize);
        fake.operands = vec![stream as u64, fake.current.first().copied().unwrap_or(0) as u64];
        SUCCESS
    };
    "cuEventQuery": event_query(_event: sys::CUevent) = |_| SUCCESS;
    "cuEventSynchronize": event_synchronize(_event: sys::CUevent) = |_| SUCCESS;
    "cuEventElapsedTime": elapsed(milliseconds: *mut f32, start: sys::CUevent, end: sys::CUevent) =
        |_| give(milliseconds, (end as isize - start as isize) as f32);
    "cuIpcGetEventHandle": ipc_event(handle: *mut sys::CUipcEventHandle, event: sys::CUevent) =
        |_| give(handle, sys::CUipcEventHandle { reserved: [event as usize as c_char; 64] });
    "cuIpcOpenEventHandle": ipc_event_open(event: *mut sys::CUevent, handle: sys::CUipcEventHandle) = |fake| {
        if handle.reserved[63] == 0 {
            return INVALID_VALUE;
        }
        let handle = fake.begin("event");
        give(event, handle as sys::CUevent)
    };

    "cuMemAlloc_v2": allocate(address: *mut u64, bytes: usize) = |fake| {
        if bytes > 1 << 30 {
            return OUT_OF_MEMORY;
        }
        let handle = fake.begin("memory");
        give(address, handle as u64)
    };
    "cuMemFree_v2": free(address: u64) = |fake| fake.end("memory", address as usize);
    "cuMemGetInfo_v2": info(free: *mut usize, total: *mut usize) = |_| {
        give(free, 3 << 20);
        give(total, 1 << 30)
    };
    "cuMemHostAlloc": allocate_host(start: *mut *mut c_void, _bytes: usize, flags: c_uint) = |fake| {
        fake.flags = flags;
        let handle = fake.begin("host memory");
        give(start, handle as *mut c_void)
    };
    "cuMemFreeHost": free_host(start: *mut c_void) = |fake| fake.end("host memory", start as usize);

    "cuMemGetAllocationGranularity":
        granularity(granularity: *mut usize, _properties: *const sys::CUmemAllocationProp, _option: c_uint) =
        |_| give(granularity, GRANULARITY);
    "cuMemCreate": create(
        handle: *mut c_ulonglong,
        bytes: usize,
        _properties: *const sys::CUmemAllocationProp,
        _flags: c_ulonglong
    ) = |fake| {
        if bytes > 1 << 30 {
            return OUT_OF_MEMORY;
        }
        let memory = fake.begin("physical memory");
        give(handle, memory as c_ulonglong)
    };
    "cuMemRelease": memory_release(handle: c_ulonglong) = |fake| fake.end("physical memory", handle as usize);
    "cuMemExportToShareableHandle":
        memory_export(descriptor: *mut c_void, handle: c_ulonglong, _type: c_uint, _flags: c_ulonglong) = |fake| {
        fake.require("physical memory", handle as usize);
        File::open("/dev/null").map_or(INVALID_VALUE, |file| give(descriptor.cast(), file.into_raw_fd()))
    };
    "cuMemImportFromShareableHandle": import(handle: *mut c_ulonglong, descriptor: *mut c_void, _type: c_uint) =
        |fake| {
            fake.operands = vec![descriptor as u64];
            let memory = fake.begin("physical memory");
            give(handle, memory as c_ulonglong)
        };
    "cuMemGetAllocationPropertiesFromHandle":
        properties(properties: *mut sys::CUmemAllocationProp, _handle: c_ulonglong) = |fake| {
        // SAFETY: the caller passes a pointer to a variable.
        unsafe { (*properties).location.id = fake.imported_device };
        SUCCESS
    };
    "cuMemAddressReserve":
        reserve(address: *mut u64, bytes: usize, _alignment: usize, hint: u64, _flags: c_ulonglong) = |fake| {
        // Below this address everything is taken. The driver fills its own holes first.
        let is_granted = hint >= FIRST_RANGE && fake.holes == 0;
        let at = if is_granted { hint } else { FIRST_RANGE + fake.offered * GRANULARITY as u64 };
        fake.offered += u64::from(!is_granted);
        fake.holes = fake.holes.saturating_sub(1);
        fake.live.insert(format!("range {at:#x}"));
        fake.ranges.push((at, bytes));
        give(address, at)
    };
    "cuMemAddressFree": address_free(address: u64, bytes: usize) = |fake| {
        let pieces = (address..address + bytes as u64).step_by(GRANULARITY);
        if let Some(left) = pieces.map(|at| format!("mapping {at:#x}")).find(|one| fake.live.contains(one)) {
            fake.faults.push(format!("the range {address:#x} ended before the {left}"));
        }
        fake.ranges.retain(|range| *range != (address, bytes));
        fake.end("range", address as usize)
    };
    "cuMemMap": map(address: u64, bytes: usize, offset: usize, memory: c_ulonglong, _flags: c_ulonglong) =
        |fake| {
            let end = address + bytes as u64;
            if !fake.ranges.iter().any(|&(start, length)| start <= address && end <= start + length as u64) {
                fake.faults.push(format!("{address:#x} is mapped, and in no range"));
            }
            if offset > 0 {
                return INVALID_VALUE;
            }
            fake.require("physical memory", memory as usize);
            fake.live.insert(format!("mapping {address:#x}"));
            SUCCESS
        };
    "cuMemUnmap": unmap(address: u64, _bytes: usize) = |fake| fake.end("mapping", address as usize);
    "cuMemSetAccess": set_access(
        address: u64,
        _bytes: usize,
        descriptors: *const sys::CUmemAccessDesc,
        descriptor_count: usize
    ) = |fake| {
        fake.require("mapping", address as usize);
        // SAFETY: the caller passes as many.
        let descriptors = unsafe { std::slice::from_raw_parts(descriptors, descriptor_count) };
        fake.operands = descriptors.iter().flat_map(|one| [one.location.id as u64, one.flags as u64]).collect();
        SUCCESS
    };

    "cuIpcOpenMemHandle_v2": ipc_open(address: *mut u64, handle: sys::CUipcMemHandle, flags: c_uint) = |fake| {
        if handle.reserved[63] == 0 {
            return INVALID_CONTEXT;
        }
        fake.flags = flags;
        let opened = fake.begin("opened memory");
        give(address, opened as u64)
    };
    "cuIpcCloseMemHandle": ipc_close(address: u64) = |fake| fake.end("opened memory", address as usize);
    "cuMemGetAddressRange_v2": address_range(base: *mut u64, bytes: *mut usize, address: u64) = |_| {
        give(bytes, 4096);
        give(base, address)
    };
}
