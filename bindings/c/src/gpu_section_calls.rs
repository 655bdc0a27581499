//! The library's calls for GPU sections, which a build without CUDA lacks.

pub use implementation::{freeze, pieces, state};

#[cfg(feature = "cuda")]
mod implementation {
    use library::job::Collective;
    use library::segment::GpuPiece;
    use library::{HostBuffer, Proof};

    use crate::status::{CallResult, agree};

    /// Returns the pieces of each section.
    pub fn pieces(buffer: &HostBuffer) -> Vec<Vec<GpuPiece>> {
        buffer.gpu_section_pieces().map(<[GpuPiece]>::to_vec).collect()
    }

    /// Returns the address of a section, and whether it is frozen.
    pub fn state(buffer: &HostBuffer, name: &str) -> CallResult<(u64, bool)> {
        let section = buffer.gpu_section(name)?;
        Ok((section.address(), section.is_frozen()?))
    }

    /// Freezes a section of a buffer. If the arguments of one rank are invalid, no rank freezes.
    pub fn freeze(group: &dyn Collective, given: CallResult<(&HostBuffer, &str)>) -> CallResult<Proof> {
        let section = given.and_then(|(buffer, name)| Ok(buffer.gpu_section(name)?));
        Ok(agree(group, section)?.freeze(group)?)
    }
}

#[cfg(not(feature = "cuda"))]
mod implementation {
    use library::job::Collective;
    use library::segment::GpuPiece;
    use library::{Error, HostBuffer, Proof};

    use crate::status::{CallError, CallResult, agree};

    fn without_cuda(name: &str) -> CallError {
        CallError::Failed(Error::Unsupported {
            what: format!("GPU section \"{name}\""),
            why: "this libhostbuf was built without the feature cuda: build it with that feature".into(),
        })
    }

    pub fn pieces(_: &HostBuffer) -> Vec<Vec<GpuPiece>> {
        Vec::new()
    }

    pub fn state(_: &HostBuffer, name: &str) -> CallResult<(u64, bool)> {
        Err(without_cuda(name))
    }

    pub fn freeze(group: &dyn Collective, given: CallResult<(&HostBuffer, &str)>) -> CallResult<Proof> {
        agree(group, given.and_then(|(_, name)| Err(without_cuda(name))))
    }
}
