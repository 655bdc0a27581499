//! Files of tensors, loaded once per host into the memory that all ranks share.
//!
//! [`load`] reads files into an empty [`HostBuffer`](hostbuf::HostBuffer). The hosts of the job
//! share the reading, so each byte is read once per job, and on each host all ranks read. After it
//! every rank has all tensors, at the same address:
//!
//! ```
//! use hostbuf::{BufferOptions, job::Solo};
//! use hostbuf_load::{Dtype, LoadOptions, Tensors};
//!
//! # let folder = std::env::temp_dir().join(format!("hostbuf-load-doc-{}", std::process::id()));
//! # std::fs::create_dir(&folder)?;
//! # let path = folder.join("model.safetensors");
//! # let text = r#"{"w":{"dtype":"F32","shape":[4,2],"data_offsets":[0,32]}}       "#;
//! # let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
//! # bytes.extend_from_slice(text.as_bytes());
//! # bytes.extend([7; 32]);
//! # std::fs::write(&path, bytes)?;
//! // A launcher has made the buffer, or this does. All ranks of the group call it.
//! let tensors = LoadOptions::new().allocate_and_load(&Solo, BufferOptions::new(0), &[&path])?;
//! let weights = tensors.get("w")?;
//! assert_eq!((weights.entry.dtype, weights.bytes.len()), (Dtype::F32, 32));
//! // The second of two ranks takes the last rows.
//! let slice = tensors.slice("w", 0, 1, 2)?;
//! assert_eq!((slice.parts[0].offset, slice.parts[0].width), (16, 16));
//! // Another program of the job finds the tensors in the buffer.
//! assert!(Tensors::open(tensors.buffer())?.get("w").is_ok());
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "arrow")]
mod arrow_batches;
mod clock;
mod copy_times;
mod counters;
mod device_copy;
mod error;
mod format;
#[cfg(feature = "cuda")]
mod gpu_copy;
mod load;
mod opened_file;
mod progress;
mod ring_load;
mod shards;
mod shared;
mod slice;
mod slice_target;
mod table;
mod tensors;
#[cfg(test)]
mod test_folder;

pub use counters::{LoadBound, LoadCounters};
pub use error::{FileError, FileProblem, LoadError, LoadErrorKind};
pub use format::FileFormat;
#[cfg(feature = "cuda")]
pub use gpu_copy::GpuCopy;
pub use load::{EarlyLoad, LoadOptions, load};
pub use progress::LoadProgress;
pub use ring_load::{TensorTransfer, load_through};
pub use slice::{FusedPart, SliceError, StridedPart, TensorSlice};
pub use slice_target::SliceTarget;
pub use table::{
    ArrayOrder, ByteOrder, Dtype, FileVersion, InvalidTable, SourceFile, TensorEntry, TensorTable,
};
pub use tensors::{Tensor, Tensors};
