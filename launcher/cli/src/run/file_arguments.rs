//! The files that `hostbuf run` loads.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{self, Path, PathBuf};

use clap::ValueHint;
use hostbuf::{BufferOptions, Error, ErrorClass, JobError};
use hostbuf_agent::files;
use hostbuf_agent::spec::Spec;
use hostbuf_agent::tensors::load_failure;
use hostbuf_load::{FileFormat, LoadOptions, TensorTable, Tensors};
use hostbuf_os::printable::printable_path;
use hostbuf_os::process;

/// The files that a job loads, and the folder in which programs find them.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct FileArguments {
    /// Load files into the memory of each host, before the ranks run: --load model-*.safetensors.
    /// Files of tensors (safetensors, npy, Arrow IPC, folders with an index) go into a buffer that
    /// all ranks share, and other files need --as-files. The next option or -- ends the list; may
    /// be repeated
    #[arg(long, value_name = "FILE", num_args = 1.., value_hint = ValueHint::AnyPath)]
    load: Vec<PathBuf>,
    /// Give each file of --load a path in DIR, for programs that map files. DIR is new or empty,
    /// and the job removes it. %h in its path stands for the name of the host. HOSTBUF_FILES in the
    /// environment of the ranks is its path
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    as_files: Option<PathBuf>,
}

impl FileArguments {
    /// Returns whether files are loaded, in either way.
    pub(super) fn is_requested(&self) -> bool {
        self.as_files.is_some() || !self.load.is_empty()
    }

    /// Reads the headers of files of tensors, and returns the buffer that holds them, made of
    /// `options`. Returns `None` if programs get the files as files, or no files are loaded.
    ///
    /// # Errors
    /// One line about the first file that cannot be loaded, or that is no file of tensors.
    pub(super) fn buffer(&self, options: BufferOptions) -> Result<Option<BufferOptions>, JobError> {
        if self.load.is_empty() || self.as_files.is_some() {
            return Ok(None);
        }
        let read = || {
            self.load.iter().try_for_each(|path| check_kind(path))?;
            let table = TensorTable::read(&self.load).map_err(|error| load_failure(error.into()))?;
            if let Some(file) = table.files().iter().find(|file| file.format == FileFormat::Raw) {
                return Err(refused(&file.path, "neither safetensors nor npy nor Arrow IPC"));
            }
            LoadOptions::new().buffer_bytes(&table).map_err(load_failure)
        };
        let mut options = options.name(Tensors::BUFFER);
        options.size = read()?;
        Ok(Some(options))
    }

    /// Checks the arguments, but not the files, which may exist on other hosts only.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid = |what| Err(Error::Invalid { what });
        match (self.load.as_slice(), &self.as_files) {
            (_, None) => return Ok(()),
            ([], Some(folder)) => {
                return invalid(format!(
                    "--as-files {}: add --load FILE..., the files to load",
                    folder.display()
                ));
            }
            _ => {}
        }
        let mut names: HashMap<&OsStr, &Path> = HashMap::new();
        for file in &self.load {
            let Some(name) = file.file_name() else {
                return invalid(format!("--load {}: a path without a name of a file", file.display()));
            };
            if let Some(first) = names.insert(name, file) {
                return invalid(format!(
                    "--load {} and {} have one name, and the folder of --as-files has one file of each name: rename one",
                    first.display(),
                    file.display()
                ));
            }
        }
        Ok(())
    }

    /// Writes the arguments into the task of the agents, as absolute paths.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty path; [`Error::Os`] if this process has no working
    /// directory.
    pub(super) fn set(&self, spec: &mut Spec) -> Result<(), Error> {
        let absolute = |given: &PathBuf| {
            path::absolute(given).map_err(|source| Error::Os {
                doing: format!("making the path \"{}\" absolute", given.display()),
                source,
            })
        };
        spec.load = self.load.iter().map(absolute).collect::<Result<_, Error>>()?;
        spec.as_files = self.as_files.as_ref().map(absolute).transpose()?;
        // The agents report an error too, but no process is needed for it.
        spec.as_files.as_deref().map(files::on_this_host).transpose()?;
        Ok(())
    }
}

/// Returns the error of a path that is not a file of tensors.
fn refused(path: &Path, kind: &str) -> JobError {
    let message = format!(
        "--load {}: it is {kind}: add --as-files DIR, the folder in which programs find the files",
        printable_path(path)
    );
    JobError::new(ErrorClass::Invalid, message)
}

/// Checks that a path, if it exists, is a file or a folder. An open of a FIFO would wait for ever.
fn check_kind(path: &Path) -> Result<(), JobError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => {
            let message =
                format!("--load {}: it is not a regular file: copy its contents to one", path.display());
            Err(JobError::new(ErrorClass::Invalid, message))
        }
        _ => Ok(()),
    }
}

/// Removes the folder of a job's files on this host, if its agent was killed and could not.
pub(super) fn remove_folder(folder: &Path, job: u128) {
    let Ok(folder) = files::on_this_host(folder) else { return };
    if let Err(error) = files::remove(&folder, job) {
        hostbuf_agent::complain!(
            "hostbuf run: cannot remove {} on {}: {error}",
            folder.display(),
            process::host_name()
        );
    }
}
