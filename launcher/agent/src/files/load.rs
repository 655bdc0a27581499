//! Loads the files of a job on one host.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hostbuf::job::{Collective, Reduce};
use hostbuf::{BufferOptions, ErrorClass, JobError};
use hostbuf_memory::populate::Workers;
use hostbuf_memory::{Demand, Pages, resolve_all, space};
use hostbuf_os::memory::page_size;

use super::file_load::FileLoad;
use super::files_folder::OWNER_NAME;
use super::folder_path::on_this_host;
use super::folder_slot::FolderSlot;
use super::input_file::{InputFile, failure, refusal};
use super::loaded_file::{HUGE_PAGE, LoadedFile};
use super::mapped_page::mapped_page;
use super::window_share::WindowShare;
use crate::buffer_request::hash;
use crate::load_status::ReportedFile;

/// The longest name of a host that Linux has.
const HOST_NAME_MAX: usize = 64;

/// The result of a step, or the error of the job.
type Result<T> = std::result::Result<T, JobError>;

/// The files of a job on this host, until they are links in their folder.
#[derive(Debug)]
pub(crate) struct HostFiles {
    job: u128,
    folder: PathBuf,
    inputs: Vec<InputFile>,
    files: Vec<LoadedFile>,
    /// The size of the pages of each file.
    pages: Vec<u64>,
    outcome: LoadOutcome,
}

/// The result of loading the files of a job on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoadOutcome {
    /// The number of files.
    pub(crate) files: u64,
    /// The number of bytes of all files.
    pub(crate) bytes: u64,
    /// The number of bytes that this host has read. It has received the others.
    pub(crate) own: u64,
    /// The number of bytes on huge pages.
    pub(crate) huge: u64,
    /// The time in which the files were read.
    pub(crate) reading: Duration,
    /// The ways in which they were read, each with the number of files.
    pub(crate) backends: BTreeMap<String, u64>,
    /// The size of the pages of a mapping of the largest file that the agent has made as a program
    /// does, in bytes. It is unknown if all files are empty.
    pub(crate) mapped_page: Option<u64>,
}

impl HostFiles {
    /// Finds the files at `paths`, checks that this host has the memory for them and for `buffers`,
    /// and makes this process the owner of `folder`, a folder of a command line.
    ///
    /// # Errors
    /// One line for the first file or the folder that cannot be used, or about the memory. No byte
    /// has been read.
    pub(crate) fn find(
        job: u128,
        paths: &[PathBuf],
        folder: &Path,
        buffers: &[BufferOptions],
        slot: &FolderSlot,
    ) -> Result<HostFiles> {
        let folder = on_this_host(folder)?;
        let inputs = paths.iter().map(|path| InputFile::find(path)).collect::<Result<Vec<_>>>()?;
        check_names(&inputs)?;
        // Files have small pages in their last extent, so they need no more than that.
        let demand = |input: &InputFile| Demand::new(input.bytes(), Pages::Small);
        let own = inputs.iter().filter(|input| input.bytes() > 0).map(demand);
        let demands: Vec<Demand> = buffers.iter().map(BufferOptions::demand).chain(own).collect();
        space::check(&demands, &resolve_all(&demands, None)).map_err(hostbuf::Error::from)?;
        slot.claim(&folder, job)?;
        let outcome = LoadOutcome {
            files: inputs.len() as u64,
            bytes: inputs.iter().map(InputFile::bytes).sum(),
            ..LoadOutcome::default()
        };
        Ok(HostFiles { job, folder, inputs, files: Vec::new(), pages: Vec::new(), outcome })
    }

    /// Returns the number of bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.outcome.bytes
    }

    /// Describes the files, once they have pages.
    pub(crate) fn reported(&self) -> Vec<ReportedFile> {
        let files = self.inputs.iter().zip(&self.pages);
        files.map(|(input, page)| ReportedFile::new(input.path(), input.bytes(), *page)).collect()
    }

    /// Makes the memory files and allocates their pages. `progress` is called with the number of
    /// bytes allocated so far.
    ///
    /// # Errors
    /// As [`LoadedFile::create`] and [`LoadedFile::populate`].
    pub(crate) fn populate(&mut self, workers: Workers, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let mut before = 0;
        for input in &self.inputs {
            let file = LoadedFile::create(self.job, input.name(), input.bytes())?;
            let huge = file.populate(workers, &mut |done| progress(before + done))?;
            self.outcome.huge += huge;
            self.pages.push(if huge > 0 { HUGE_PAGE } else { page_size() });
            before += input.bytes();
            self.files.push(file);
        }
        Ok(())
    }

    /// Reads all files, seals their memory files, and makes the links. If the hosts have the same
    /// files, they share the reading, and send each other what they have read. `progress` is called
    /// with the number of bytes so far. Collective.
    ///
    /// # Errors
    /// On all hosts: one line for the first file that cannot be read, has changed, or has arrived
    /// damaged, or about the folder.
    pub(crate) fn load(
        mut self,
        group: &dyn Collective,
        slot: &FolderSlot,
        progress: &mut dyn FnMut(u64),
    ) -> Result<LoadOutcome> {
        let begun = Instant::now();
        let mut before = 0;
        let mut sealed = Vec::with_capacity(self.files.len());
        let is_shared = self.are_the_same(group)?;
        let hosts = host_names(group)?;
        let files = std::mem::take(&mut self.files);
        for (number, (input, file)) in self.inputs.iter().zip(files).enumerate() {
            let share = match is_shared {
                true => WindowShare::new(group.rank(), group.size(), number),
                false => WindowShare::ALL,
            };
            let load = FileLoad { group, hosts: &hosts, input, file: &file, share };
            let (backend, own) = load.run(&mut |done| progress(before + done))?;
            *self.outcome.backends.entry(backend).or_default() += 1;
            self.outcome.own += own;
            before += input.bytes();
            let file = JobError::all_or_first(group, file.seal().map_err(JobError::from))?;
            sealed.push((input.name().to_owned(), file));
        }
        self.outcome.reading = begun.elapsed();
        let published = self.publish(slot, sealed);
        JobError::all_or_first(group, published)?;
        Ok(self.outcome)
    }

    /// Returns whether all hosts have the same files: of the same lengths, changed at the same
    /// times, and with the same bytes at both ends. Collective.
    fn are_the_same(&self, group: &dyn Collective) -> Result<bool> {
        let versions: Vec<u8> = self.inputs.iter().flat_map(InputFile::version_bytes).collect();
        let digest = hash(&versions) as u64;
        let mut words = [digest, !digest];
        group.all_reduce(&mut words, Reduce::Min)?;
        Ok(group.size() > 1 && words[0] == !words[1])
    }

    /// Makes the links, and measures the page of a mapping of the largest file.
    fn publish(&mut self, slot: &FolderSlot, files: Vec<(OsString, OwnedFd)>) -> Result<()> {
        check_dumpable()?;
        slot.publish(files)?;
        let largest = self.inputs.iter().max_by_key(|input| input.bytes()).filter(|input| input.bytes() > 0);
        if let Some(input) = largest {
            let link = self.folder.join(input.name());
            let page = mapped_page(&link, input.bytes()).map_err(|error| failure(&link, &error))?;
            self.outcome.mapped_page = Some(page);
        }
        Ok(())
    }
}

/// Returns the names of the hosts in the order of their agents. Collective.
fn host_names(group: &dyn Collective) -> Result<Vec<String>> {
    let mut own = [0; HOST_NAME_MAX];
    let name = hostbuf_os::process::host_name();
    let length = name.len().min(own.len());
    own[..length].copy_from_slice(&name.as_bytes()[..length]);
    let mut all = vec![0; own.len() * group.size()];
    group.all_gather(&own, &mut all)?;
    let text = |name: &[u8]| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
    Ok(all.chunks_exact(HOST_NAME_MAX).map(text).collect())
}

/// Checks that no file has the name of hostbuf's own link. The launcher has checked that all names
/// differ.
fn check_names(inputs: &[InputFile]) -> Result<()> {
    let Some(input) = inputs.iter().find(|input| input.name() == OWNER_NAME) else { return Ok(()) };
    let why =
        format!("the folder of --as-files has a link of hostbuf with the name {OWNER_NAME}: rename the file");
    Err(refusal(ErrorClass::Invalid, input.path(), &why))
}

/// Checks that other processes of this user may open the descriptors of this process.
fn check_dumpable() -> Result<()> {
    if nix::sys::prctl::get_dumpable().unwrap_or(true) {
        return Ok(());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let message = format!(
        "the ranks cannot open the descriptors of the agent on {}, since its program cannot be read: run chmod a+r on {}",
        hostbuf_os::process::host_name(),
        program.display()
    );
    Err(JobError::new(ErrorClass::Unsupported, message))
}
