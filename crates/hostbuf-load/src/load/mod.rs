//! Loading files into a buffer, by all ranks of a group.

mod collective_load;
mod early_load;
mod exchange;
mod load_files;
mod load_options;
mod load_rounds;
mod open_files;
mod sent_table;
#[cfg(test)]
mod span_tests;
#[cfg(test)]
mod tests;
mod window_pieces;
mod window_reader;
#[cfg(test)]
mod window_tests;

pub use early_load::EarlyLoad;
pub use load_files::load;
pub use load_options::LoadOptions;
