//! The free memory of a GPU.

#![allow(unsafe_code, reason = "the driver is called by foreign functions")]

use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;

/// Returns the numbers of free and of all bytes of the GPU.
pub(crate) fn free_and_total(context: &CudaContext) -> Result<(usize, usize), CudaError> {
    let functions = context.driver().functions().allocations()?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are local variables.
    context.call("cuMemGetInfo", || unsafe { (functions.info)(&raw mut free, &raw mut total) })?;
    Ok((free, total))
}
