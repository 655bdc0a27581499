//! Copies to a GPU.

#![allow(unsafe_code, reason = "the GPU driver is called by foreign functions")]

use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};
use hostbuf::register::{CudaHandle, CudaHost, Span};

use crate::sender::{Outcome, Sender};

pub struct Gpu {
    registrar: Arc<CudaHost>,
    memory: sys::CUdeviceptr,
    stream: sys::CUstream,
    length: usize,
}

fn done(doing: &str, code: CUresult) -> Outcome<()> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{doing}: {code:?}").into()) }
}

impl Gpu {
    pub fn new(length: usize) -> Outcome<Gpu> {
        let registrar = Arc::new(CudaHost::new(0)?);
        let (mut context, mut memory, mut stream) = (null_mut(), 0, null_mut());
        // SAFETY: the registrar has initialised the driver; the answers go to this function's
        // variables. The context stays retained until the process ends.
        unsafe {
            done("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&raw mut context, 0))?;
            done("cuCtxSetCurrent", sys::cuCtxSetCurrent(context))?;
            done("cuMemAlloc", sys::cuMemAlloc_v2(&raw mut memory, length))?;
            done("cuStreamCreate", sys::cuStreamCreate(&raw mut stream, 1))?;
        }
        Ok(Gpu { registrar, memory, stream, length })
    }

    /// Returns the address of slot `index`, with slots of `bytes` each.
    fn place(&self, index: usize, bytes: usize) -> Outcome<sys::CUdeviceptr> {
        if (index + 1) * bytes > self.length {
            return Err(format!("the GPU's memory has no place {index} of {bytes} bytes").into());
        }
        Ok(self.memory + (index * bytes) as u64)
    }
}

impl Sender for Gpu {
    type Registrar = CudaHost;

    fn registrar(&self) -> Arc<CudaHost> {
        self.registrar.clone()
    }

    fn send(&mut self, index: usize, from: &[u8], handle: &CudaHandle) -> Outcome<()> {
        let to = self.place(index, from.len())?;
        // A copy must stay within one chunk of a registration.
        for piece in handle.pieces(Span::of(from)?) {
            let offset = (piece.host.start() - from.as_ptr() as usize) as u64;
            let (start, length) = (piece.host.start() as *const _, piece.host.len());
            // SAFETY: both ranges have the same length, and stay valid until finish().
            done("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(to + offset, start, length, self.stream)
            })?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Outcome<()> {
        // SAFETY: the stream belongs to this sender.
        done("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }

    fn arrived(&mut self, index: usize, bytes: usize) -> Outcome<Vec<u8>> {
        let mut content = vec![0u8; bytes];
        let from = self.place(index, bytes)?;
        // SAFETY: both ranges have so many bytes.
        done("cuMemcpyDtoH", unsafe { sys::cuMemcpyDtoH_v2(content.as_mut_ptr().cast(), from, bytes) })?;
        Ok(content)
    }
}
