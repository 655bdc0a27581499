//! Filling a buffer: an arena, containers that live in it, and the types that they may contain.

pub(crate) mod arena;
pub(crate) mod arena_id;
pub(crate) mod containers;
mod early_fill;
pub mod ffi;
pub(crate) mod initialize;
pub(crate) mod portable;
pub(crate) mod turn;
mod type_number;
