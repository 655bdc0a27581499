//! Root directories of containers, and the preloaded object, which they can contain.

use std::fs;
use std::path::Path;
use std::process::Command;

use hostbuf_tests::{CommandOutput, Scratch, local};

/// Returns the path of the preloaded object on this host.
pub fn object() -> String {
    let outcome = local(1, "4K", &[], &["sh", "-c", "echo $LD_PRELOAD"]).ok();
    outcome.stdout.trim().split(':').next().unwrap().to_owned()
}

/// Makes a root directory for `programs`, with their libraries and the files of `more` at the same
/// paths as on the host. Its /proc is empty.
pub fn image(programs: &[&str], more: &[&str]) -> Scratch {
    let dir = Scratch::new("image");
    let mut files: Vec<String> = more.iter().map(ToString::to_string).collect();
    for program in programs {
        let libraries = CommandOutput::of(Command::new("ldd").arg(program)).stdout;
        files.extend(libraries.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned));
        files.push((*program).to_owned());
    }
    for file in files {
        let to = dir.path(file.trim_start_matches('/'));
        fs::create_dir_all(Path::new(&to).parent().unwrap()).unwrap();
        fs::copy(file, to).unwrap();
    }
    // Charliecloud mounts folders and files of the host over these.
    for folder in ["dev", "etc", "home", "mnt", "proc", "sys", "tmp"] {
        fs::create_dir_all(dir.path(folder)).unwrap();
    }
    for file in ["passwd", "group", "hosts", "resolv.conf"] {
        fs::write(dir.path(&format!("etc/{file}")), "").unwrap();
    }
    dir
}
