//! Files that programs find by path, backed by the memory of the host (`--load` with `--as-files`).
//!
//! Each file becomes a memory file of its exact length, which is filled and then sealed, so that no
//! process can change it. A folder has a symbolic link for each, under the name of the file, to the
//! descriptor of the agent. The ranks open the links and map the memory of the agent.

mod cached_windows;
mod exchange;
#[cfg(test)]
mod exchange_tests;
mod file_load;
mod files_folder;
mod folder_lock;
mod folder_owner;
mod folder_path;
mod folder_slot;
#[cfg(test)]
mod folder_tests;
mod input_file;
mod load;
mod loaded_file;
mod mapped_page;
mod path_word;
mod read;
mod window_share;

pub use files_folder::remove;
pub use folder_path::on_this_host;
pub(crate) use folder_slot::FolderSlot;
pub(crate) use load::{HostFiles, LoadOutcome};
pub use path_word::{path_of_word, word_of_path};
