//! Blocks on GPUs: what a connection to a pool makes and acquires.

use hostbuf_cuda::CudaContext;

use super::acquire_error::AcquireError;
use super::gpu_block_ref::GpuBlockRef;
use super::gpu_producer::GpuProducer;
use super::pool::Pool;
use super::produced_gpu::ProducedGpu;
use super::producer_data::ProducerData;
use super::producer_options::ProducerOptions;
use crate::error::PoolError;
use crate::token::Token;
use crate::wire::{SegmentKey, SegmentTerms};

impl Pool {
    /// Makes a segment of blocks on the GPU of `context`, and returns its producer. The memory is
    /// counted by the broker before it is made, and exists until the last process that reads it has
    /// left it, also after the end of this process.
    ///
    /// # Errors
    /// As [`producer`](Pool::producer), and [`PoolError::Gpu`].
    pub fn gpu_producer(
        &self,
        options: &ProducerOptions,
        context: &CudaContext,
    ) -> Result<GpuProducer, PoolError> {
        self.connection().link.check_process()?;
        let (terms, retain) = options.terms()?;
        let gpu = ProducedGpu::terms(context, terms.geometry)?;
        let terms = SegmentTerms { gpu: Some(gpu), ..terms };
        let segment = self.make_segment(options, (terms, retain), |key, _| {
            Ok(ProducerData::Gpu(ProducedGpu::make(context, key, gpu, terms.geometry)?))
        })?;
        Ok(GpuProducer::new(segment, self.client().clone()))
    }

    /// Acquires the block of a token that lies on a GPU. The first token of a segment attaches it,
    /// finds the GPU by its UUID, and maps the memory in the primary context of the GPU. After
    /// that it makes no system call.
    ///
    /// # Errors
    /// [`AcquireError`]: [`AcquireError::Gpu`] if this process has no driver or does not see the
    /// GPU, [`AcquireError::OnHost`] for a block on the host. Nothing is held then.
    pub fn acquire_gpu(&self, token: &Token) -> Result<GpuBlockRef, AcquireError> {
        self.connection().link.check_process()?;
        let segment = self.segment(SegmentKey { pool: token.pool, number: token.segment })?;
        segment.gpu()?;
        let header = segment.hold(token)?;
        Ok(GpuBlockRef::new(segment, token.block, header, self.client().clone()))
    }
}
