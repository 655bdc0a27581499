//! The C interface of hostbuf, declared in include/hostbuf.h.
//!
//! Functions return a status and never panic. The message of an error is stored for the calling
//! thread. Handles are pointers to boxed Rust values, which the caller releases.

#![allow(non_camel_case_types, reason = "the types have the names of the C interface")]

#[macro_use]
mod pointers;

// In the order of the header.
mod status;

mod group;

mod arena;
mod buffer;
mod gpu_section;
mod gpu_section_calls;
mod gpu_section_info;
mod section;
mod section_info;
mod section_options;

mod fill;

mod register;

mod cache;

mod block;
mod block_ref;
mod block_wait;
mod dma;
mod element_type;
mod pending_block;
mod pool;
mod pool_status;
mod producer;
mod ready_call;

mod gpu_block;
mod gpu_block_ref;
mod gpu_producer;
mod gpu_stream;
mod pending_gpu_block;

mod file;
mod file_rings;
mod transfer;

mod gpu_load;
mod load;
mod load_error;
mod load_options;
mod slice;
mod slice_copy;
mod stream_ordered_device;
mod tensor;
mod tensor_source;
mod tensors;
