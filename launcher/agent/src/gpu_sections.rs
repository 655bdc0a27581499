//! The GPU sections of a job: their address, and the wait until the ranks have mapped them.

use hostbuf::agree::RangeRequest;
use hostbuf::job::Collective;
use hostbuf::segment::{ControlPage, GPU_ADDRESS_ALIGNMENT, gpu_pieces, gpu_range_length};
use hostbuf::{ErrorClass, JobError};

use super::job_electorate::JobElectorate;
use super::orders::{Event, Order, ServerHandle};
use super::spec::Spec;
use super::stop::{Stop, event, together};

/// Finds an address for the GPU sections of the job that all ranks hold, and waits until the ranks
/// that use GPUs have created and mapped them. Does nothing for a job without such sections. `page`
/// is the control page of this host, which has `ranks` ranks, and `own` the range of the buffers.
/// Collective.
///
/// # Errors
/// The place where the phases stop.
pub(super) fn map_gpu_sections(
    spec: &Spec,
    group: &dyn Collective,
    server: &ServerHandle,
    ranks: usize,
    page: &ControlPage,
    own: (usize, usize),
) -> Result<(), Stop> {
    let pieces = gpu_pieces(&spec.buffers);
    if pieces.is_empty() {
        return Ok(());
    }
    let length = gpu_range_length(&pieces) as usize;
    let request = RangeRequest { length, align: GPU_ADDRESS_ALIGNMENT as usize, own };
    let elected = JobElectorate::new(group, server, ranks).elect(request).map_err(|stop| match stop {
        Stop::Everywhere(error) => {
            Stop::Everywhere(error.map_message(|why| format!("the address of the GPU sections: {why}")))
        }
        other => other,
    });
    let address = elected?.address;
    // Before a rank can ask for it.
    (0..spec.buffers.len()).for_each(|index| page.control().set_gpu_range(index, address));
    let mapped = if ranks == 0 {
        Ok(())
    } else {
        server.order(Order::MapGpu { address, pieces: pieces.len() });
        event(server).and_then(|event| match event {
            Event::GpuMapped => Ok(()),
            _ => Err(JobError::new(ErrorClass::Lost, "the ranks sent an unexpected answer").into()),
        })
    };
    together(group, mapped)
}
