//! The formats of files, and what their headers state.

mod arrow;
mod file_format;
mod file_header;
mod header_reader;
mod header_source;
mod json_keys;
mod npy;
mod npy_text;
mod other_contents;
mod safetensors;
#[cfg(test)]
mod tests;

pub use file_format::FileFormat;
pub(crate) use file_header::FileHeader;
pub(crate) use other_contents::problem_of;
