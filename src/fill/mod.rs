//! Filling a buffer: an arena, containers that live in it, and types that may.

pub(crate) mod arena;
pub(crate) mod arena_id;
pub(crate) mod containers;
pub mod ffi;
pub(crate) mod initialize;
pub(crate) mod portable;
pub(crate) mod turn;
mod type_number;
