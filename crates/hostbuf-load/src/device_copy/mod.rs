//! Copies of loaded tensors to a device.

mod buffer_copy;
#[cfg(test)]
mod tests;
mod window_copies;
