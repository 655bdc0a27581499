//! Memory of the GPU with a stream, and host memory of the driver's own for comparison.

use std::ptr::null_mut;

use cudarc::driver::sys::{self, CUresult};

/// # Panics
/// When the driver refuses.
#[track_caller]
pub fn ok(code: CUresult) {
    assert_eq!(code, CUresult::CUDA_SUCCESS);
}

/// Memory of the GPU; its context is current in the thread that made it.
pub struct GpuMemory {
    at: sys::CUdeviceptr,
    stream: sys::CUstream,
}

impl GpuMemory {
    pub fn new(bytes: usize) -> GpuMemory {
        let (mut context, mut at, mut stream) = (null_mut(), 0, null_mut());
        // SAFETY: the driver is initialised by the registrar; the answers go to this function's
        // variables. The context stays retained until the process ends.
        unsafe {
            ok(sys::cuDevicePrimaryCtxRetain(&raw mut context, 0));
            ok(sys::cuCtxSetCurrent(context));
            ok(sys::cuMemAlloc_v2(&raw mut at, bytes));
            ok(sys::cuStreamCreate(&raw mut stream, 1));
        }
        GpuMemory { at, stream }
    }

    pub fn at(&self) -> sys::CUdeviceptr {
        self.at
    }

    /// Starts a copy from host memory.
    #[track_caller]
    pub fn copy_in(&self, from: usize, bytes: usize) {
        // SAFETY: the callers copy from memory of theirs, no more than was allocated here.
        ok(unsafe { sys::cuMemcpyHtoDAsync_v2(self.at, from as *const _, bytes, self.stream) });
    }

    #[track_caller]
    pub fn finish(&self) {
        // SAFETY: the stream is this one's.
        ok(unsafe { sys::cuStreamSynchronize(self.stream) });
    }

    /// Returns the first `bytes` bytes of the GPU's memory.
    pub fn read(&self, bytes: usize) -> Vec<u8> {
        let mut content = vec![0u8; bytes];
        // SAFETY: as long as is said.
        ok(unsafe { sys::cuMemcpyDtoH_v2(content.as_mut_ptr().cast(), self.at, bytes) });
        content
    }

    /// Loads a kernel that writes a word to an address.
    pub fn writing_kernel(&self) -> WritingKernel<'_> {
        let source = c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry f(.param .u64 p) {\n\
            .reg .u64 %a;\n.reg .u32 %v;\nld.param.u64 %a, [p];\nmov.u32 %v, 1;\n\
            st.global.u32 [%a], %v;\nret;\n}\n";
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: the text ends with 0, and the answers go to this function's variables.
        unsafe {
            ok(sys::cuModuleLoadData(&raw mut module, source.as_ptr().cast()));
            ok(sys::cuModuleGetFunction(&raw mut function, module, c"f".as_ptr()));
        }
        let kernel = WritingKernel { function, memory: self };
        // The driver loads a kernel when it first runs, and may wait for other streams then.
        ok(kernel.write(self.at));
        kernel
    }

    /// Runs a kernel that writes to the null page, and returns the result of waiting for it.
    pub fn break_context(&self) -> CUresult {
        self.writing_kernel().write(NULL_PAGE)
    }
}

/// An address that no kernel may write to.
pub const NULL_PAGE: sys::CUdeviceptr = 16;

/// A kernel that writes a word to an address. It has run before, so starting it loads nothing.
pub struct WritingKernel<'m> {
    function: sys::CUfunction,
    memory: &'m GpuMemory,
}

impl WritingKernel<'_> {
    /// Writes to an address, and returns the result of waiting for it.
    pub fn write(&self, mut address: sys::CUdeviceptr) -> CUresult {
        let (stream, mut parameters) = (self.memory.stream, [(&raw mut address).cast()]);
        // SAFETY: the kernel takes one address. A wrong one breaks the context, and nothing else.
        unsafe {
            ok(sys::cuLaunchKernel(
                self.function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                null_mut(),
            ));
            sys::cuStreamSynchronize(stream)
        }
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        // SAFETY: made by `new`; in a broken context both fail, and nothing is left to do.
        unsafe {
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuMemFree_v2(self.at);
        }
    }
}

/// Host memory that the driver allocated itself; filled.
pub struct DriverHostMemory {
    at: usize,
}

impl DriverHostMemory {
    pub fn new(bytes: usize) -> DriverHostMemory {
        let mut at = null_mut();
        // SAFETY: the answer goes to this function's variable; the memory is as long as is said.
        unsafe {
            ok(sys::cuMemHostAlloc(&raw mut at, bytes, 0));
            at.cast::<u8>().write_bytes(1, bytes);
        }
        DriverHostMemory { at: at as usize }
    }

    pub fn at(&self) -> usize {
        self.at
    }
}

impl Drop for DriverHostMemory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`.
        ok(unsafe { sys::cuMemFreeHost(self.at as *mut _) });
    }
}
