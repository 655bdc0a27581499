//! The path of a folder that differs from host to host.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use hostbuf::{Error, Result};
use hostbuf_os::process;

use super::input_file::shown;

/// Returns the folder on this host for the folder of a command line, in which `%h` stands for the
/// name of the host and `%%` for one `%`.
///
/// # Errors
/// [`Error::Invalid`] for another character behind `%`.
pub fn on_this_host(folder: &Path) -> Result<PathBuf> {
    let mut bytes = Vec::new();
    let mut rest = folder.as_os_str().as_bytes().iter();
    while let Some(&byte) = rest.next() {
        match (byte, if byte == b'%' { rest.next() } else { None }) {
            (b'%', Some(b'h')) => bytes.extend_from_slice(process::host_name().as_bytes()),
            (b'%', Some(b'%')) => bytes.push(b'%'),
            (b'%', _) => {
                return Err(Error::Invalid {
                    what: format!(
                        "invalid --as-files {}: expected h or % behind each %, as in /scratch/%h/db",
                        shown(folder)
                    ),
                });
            }
            (byte, _) => bytes.push(byte),
        }
    }
    Ok(OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn the_name_of_the_host_is_inserted() {
        let host = process::host_name();
        let on = |path: &str| on_this_host(Path::new(path)).map(|path| path.display().to_string());
        assert_eq!(on("/tmp/db").unwrap(), "/tmp/db");
        assert_eq!(on("/tmp/%h/%%h-%h").unwrap(), format!("/tmp/{host}/%h-{host}"));
        for wrong in ["/tmp/%", "/tmp/%x", "/tmp/%H/db"] {
            assert!(on(wrong).unwrap_err().to_string().contains("expected h or % behind each %"), "{wrong}");
        }
        let bytes = Path::new(OsStr::from_bytes(b"/\xff"));
        assert_eq!(on_this_host(bytes).unwrap(), bytes);
    }
}
