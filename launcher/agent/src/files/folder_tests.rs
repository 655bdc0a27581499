//! Folders that are claimed, abandoned and removed.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::PathBuf;

use super::files_folder::{FilesFolder, MADE, OWNER_NAME, names, owner_of, remove};
use super::folder_owner::FolderOwner;

/// A path in the folder for temporary files, which is removed at the end.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new(name: &str) -> TemporaryFolder {
        TemporaryFolder(std::env::temp_dir().join(format!("hostbuf-{name}-{}", std::process::id())))
    }

    /// Gives the folder to an agent that has ended, with links to its descriptors.
    fn abandon(&self, names: &[&str]) -> FolderOwner {
        let owner = FolderOwner::ended(3);
        symlink(owner.text(), self.0.join(OWNER_NAME)).unwrap();
        for (number, name) in names.iter().enumerate() {
            symlink(owner.descriptor(number as i32), self.0.join(name)).unwrap();
        }
        owner
    }

    fn names(&self) -> Vec<OsString> {
        names(&self.0).unwrap()
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_folder_that_hostbuf_has_made_is_removed_and_another_stays() {
    let folder = TemporaryFolder::new("folder-made");
    FilesFolder::claim(&folder.0, 1).unwrap().remove();
    assert!(!folder.0.exists());
    DirBuilder::new().mode(0o700).create(&folder.0).unwrap();
    FilesFolder::claim(&folder.0, 1).unwrap().remove();
    assert_eq!(folder.names(), [""; 0]);
    // The owner was killed before it could make the link, or after it has removed it.
    fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o700 | MADE)).unwrap();
    FilesFolder::claim(&folder.0, 1).unwrap().remove();
    assert!(!folder.0.exists());
}

#[test]
fn a_folder_of_an_agent_that_was_killed_before_it_stated_its_job_is_removed() {
    let folder = TemporaryFolder::new("folder-unstated");
    DirBuilder::new().mode(0o700 | MADE).create(&folder.0).unwrap();
    let other = folder.0.join("other");
    fs::write(&other, "").unwrap();
    remove(&folder.0, 1).unwrap();
    assert_eq!(folder.names(), ["other"]);
    fs::remove_file(other).unwrap();
    remove(&folder.0, 1).unwrap();
    assert!(!folder.0.exists());
    // One that hostbuf has not made stays.
    DirBuilder::new().mode(0o700).create(&folder.0).unwrap();
    remove(&folder.0, 1).unwrap();
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn links_of_an_agent_that_has_ended_are_replaced() {
    let folder = TemporaryFolder::new("folder-ended");
    DirBuilder::new().mode(0o700 | MADE).create(&folder.0).unwrap();
    folder.abandon(&["x", "y"]);
    let owned = FilesFolder::claim(&folder.0, 1).unwrap();
    assert_eq!(folder.names(), [OWNER_NAME]);
    // Another job does not remove it.
    remove(&folder.0, 2).unwrap();
    let owner = owner_of(&folder.0).unwrap();
    assert_eq!(owner.map(|owner| owner.job), Some(1));
    owned.remove();
    assert!(!folder.0.exists());
}

#[test]
fn nothing_is_removed_if_there_is_something_else() {
    let folder = TemporaryFolder::new("folder-other");
    DirBuilder::new().mode(0o700 | MADE).create(&folder.0).unwrap();
    let owner = folder.abandon(&["x"]);
    for target in ["/proc/1/fd/0", "x"] {
        symlink(target, folder.0.join("y")).unwrap();
        let error = FilesFolder::claim(&folder.0, 1).unwrap_err();
        assert!(error.message.contains("has y besides the links of a job that has ended"), "{error:?}");
        assert_eq!(folder.names(), [OWNER_NAME, "x", "y"]);
        fs::remove_file(folder.0.join("y")).unwrap();
    }
    // A file of a program stays, and so does the folder.
    fs::write(folder.0.join("y"), "").unwrap();
    remove(&folder.0, owner.job).unwrap();
    assert_eq!(folder.names(), ["y"]);
}

#[test]
fn one_of_many_agents_gets_the_folder() {
    let folder = TemporaryFolder::new("folder-race");
    for round in 0..50 {
        if round % 2 == 1 {
            DirBuilder::new().mode(0o700 | MADE).create(&folder.0).unwrap();
            folder.abandon(&["x", "y", "z"]);
        }
        let path = &folder.0;
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let claim = |job| scope.spawn(move || FilesFolder::claim(path, job));
            let threads: Vec<_> = (0..8).map(claim).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let (owners, refused): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
        assert_eq!((owners.len(), folder.names()), (1, vec![OWNER_NAME.into()]), "{refused:?}");
        owners.into_iter().flatten().for_each(FilesFolder::remove);
        assert!(!folder.0.exists(), "whichever agent has made it");
    }
}
