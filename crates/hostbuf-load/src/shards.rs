//! The files that a path stands for: a file, a folder, or the shards of an index.

use std::fs;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use hostbuf_os::printable::printable_name;
use serde_json::Value;

use crate::error::{FileError, FileProblem};
use crate::format::{FileFormat, problem_of};

/// The end of the names of indexes, as the writers of models have it.
const INDEX_SUFFIX: &str = ".safetensors.index.json";
/// The longest index that is read.
const MAX_INDEX: u64 = 100_000_000;

/// The files of a path.
#[derive(Debug, Default)]
pub(crate) struct ShardFiles {
    pub(crate) files: Vec<PathBuf>,
    /// The index that names the files, if there is one.
    pub(crate) index: Option<ShardIndex>,
}

/// An index of the shards of a model.
#[derive(Debug)]
pub(crate) struct ShardIndex {
    pub(crate) path: PathBuf,
    /// The name of each tensor and the path of its shard, sorted by the latter.
    tensors: Vec<(PathBuf, String)>,
}

impl ShardIndex {
    /// Returns the names of the tensors that a shard has according to the index.
    pub(crate) fn tensors_of(&self, shard: &Path) -> impl Iterator<Item = &String> {
        let start = self.tensors.partition_point(|(path, _)| path.as_path() < shard);
        let shard = shard.to_owned();
        self.tensors[start..].iter().take_while(move |(path, _)| *path == shard).map(|(_, name)| name)
    }

    /// Reads an index.
    fn read(path: &Path) -> Result<ShardIndex, FileError> {
        let problem = |problem: FileProblem| problem.at(path);
        let io = |doing| move |error| FileProblem::io(doing)(error).at(path);
        // The open of a FIFO waits for its other end.
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            let why = "it is not a regular file";
            return Err(io("opening")(std::io::Error::new(std::io::ErrorKind::InvalidInput, why)));
        }
        let file = fs::File::open(path).map_err(io("opening"))?;
        let mut text = Vec::new();
        file.take(MAX_INDEX + 1).read_to_end(&mut text).map_err(io("reading"))?;
        if text.len() as u64 > MAX_INDEX {
            let found = format!("indexes have at most {MAX_INDEX} bytes");
            return Err(problem(FileProblem::header("it is named as an index of safetensors", found)));
        }
        let invalid =
            |found: String| problem(FileProblem::header("it is named as an index of safetensors", found));
        let index: Value = serde_json::from_slice(&text).map_err(|error| {
            problem_of(&text).map_or_else(|| invalid(printable_name(&error.to_string())), problem)
        })?;
        let Some(map) = index.get("weight_map").and_then(Value::as_object) else {
            return Err(invalid("it has no object \"weight_map\"".into()));
        };
        if map.is_empty() {
            return Err(invalid("its object \"weight_map\" names no tensor".into()));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut tensors = Vec::new();
        for (tensor, shard) in map {
            let shard = shard.as_str().map(Path::new).filter(|shard| is_below(shard));
            let Some(shard) = shard else {
                return Err(invalid(format!(
                    "the shard of \"{}\" is not a file in the folder of the index",
                    printable_name(tensor)
                )));
            };
            tensors.push((folder.join(shard), tensor.clone()));
        }
        tensors.sort_unstable();
        Ok(ShardIndex { path: path.to_owned(), tensors })
    }
}

/// Returns whether a path stays below the folder that it is relative to.
fn is_below(path: &Path) -> bool {
    let mut components = path.components().peekable();
    components.peek().is_some() && components.all(|component| matches!(component, Component::Normal(_)))
}

fn is_index(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(INDEX_SUFFIX))
}

/// Returns the files of a path, in groups by their index.
///
/// # Errors
/// The kernel's; [`FileProblem::Header`] for an index that is none;
/// [`FileProblem::EmptyFolder`]; [`FileProblem::TwoForms`].
pub(crate) fn expand(path: &Path) -> Result<Vec<ShardFiles>, FileError> {
    let path = std::path::absolute(path).map_err(|error| FileProblem::io("finding")(error).at(path))?;
    if is_index(&path) {
        return Ok(vec![of_index(&path)?]);
    }
    // A file that does not exist is reported where it is opened.
    if !path.is_dir() {
        return Ok(vec![ShardFiles { files: vec![path], index: None }]);
    }
    let io = |error| FileProblem::io("listing")(error).at(&path);
    let entries = fs::read_dir(&path).map_err(io)?;
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(io)?;
    found.sort_unstable();
    if found.iter().any(|path| is_index(path)) {
        found.retain(|path| is_index(path));
        if !found.iter().all(|path| is_consolidated(path)) {
            found.retain(|path| !is_consolidated(path));
        }
        return found.iter().map(|path| of_index(path)).collect();
    }
    found.retain(|path| FileFormat::of_extension(path).is_some() && path.is_file());
    if found.is_empty() {
        return Err(FileProblem::EmptyFolder.at(path));
    }
    has_one_form(&found)?;
    Ok(vec![ShardFiles { files: found, index: None }])
}

/// Checks that a folder without an index does not have the weights of a model in two forms.
///
/// # Errors
/// [`FileProblem::TwoForms`].
fn has_one_form(found: &[PathBuf]) -> Result<(), FileError> {
    let is_safetensors = |path: &&PathBuf| FileFormat::of_extension(path) == Some(FileFormat::Safetensors);
    let (consolidated, others): (Vec<_>, Vec<_>) =
        found.iter().filter(is_safetensors).partition(|path| is_consolidated(path));
    match (consolidated.first(), others.first()) {
        (Some(first), Some(&other)) => Err(FileProblem::TwoForms { other: other.clone() }.at(first)),
        _ => Ok(()),
    }
}

/// Returns whether a file, or an index, has the weights of a model in the form of Mistral. Its
/// folder usually has them in the form of Hugging Face too, with other names of tensors.
fn is_consolidated(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"consolidated"))
}

fn of_index(path: &Path) -> Result<ShardFiles, FileError> {
    let index = ShardIndex::read(path)?;
    let mut files: Vec<PathBuf> = index.tensors.iter().map(|(path, _)| path.clone()).collect();
    files.dedup();
    Ok(ShardFiles { files, index: Some(index) })
}
