//! nginx: ranges of files, and TLS.

use std::fs;
use std::path::Path;
use std::process::Command;

use hostbuf_staging::{RemoteError, RemoteOptions, RemoteProblem};
use hostbuf_tests::{Scratch, skip};

use super::local_server::LocalServer;
use super::{both_modes, certificates, compare, content};

const NGINX: &str = "/usr/sbin/nginx";

/// Starts nginx for the files in the folder `files`, without and with TLS. Returns it with the
/// ports, or `None` if it is not installed.
fn start(folder: &Scratch) -> Option<(LocalServer, [u16; 2])> {
    if !Path::new(NGINX).exists() {
        skip("remote objects of nginx: it is not installed (scripts/install-deps servers)");
        return None;
    }
    certificates::make(folder);
    let base = folder.path("");
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|name| format!("{name}_temp_path {base}/{name};")).concat();
    Some(LocalServer::start(|[plain, tls]| {
        let configuration = format!(
            "daemon off; master_process off; pid {base}/pid; error_log {base}/errors;
            events {{}}
            http {{
                access_log off; {temporary} root {base}/files;
                server {{ listen 127.0.0.1:{plain}; }}
                server {{
                    listen 127.0.0.1:{tls} ssl;
                    ssl_certificate {base}/server.pem; ssl_certificate_key {base}/server.key;
                    ssl_protocols TLSv1.2 TLSv1.3;
                }}
            }}"
        );
        let file = folder.path("nginx.conf");
        fs::write(&file, configuration).expect("the folder is writable");
        let mut command = Command::new(NGINX);
        command.arg("-e").arg(folder.path("errors")).arg("-c").arg(file);
        command
    }))
}

/// Makes the served files: `data`, and `empty`.
fn files(folder: &Scratch) -> Vec<u8> {
    let content = content((5 << 20) + 77);
    fs::create_dir(folder.path("files")).expect("the folder is writable");
    fs::write(folder.path("files/data"), &content).expect("the folder is writable");
    fs::write(folder.path("files/empty"), b"").expect("the folder is writable");
    content
}

#[test]
fn files_are_read_by_ranges() {
    let folder = Scratch::new("nginx-ranges");
    let content = files(&folder);
    let Some((_server, [port, _])) = start(&folder) else { return };
    for options in both_modes() {
        let client = options.client().expect("valid options");
        let file = client.open(&format!("http://127.0.0.1:{port}/data")).expect("it is there");
        compare(&file, &content);
        let empty = client.open(&format!("http://127.0.0.1:{port}/empty")).expect("it is there");
        assert_eq!((empty.bytes(), empty.read(&mut [0; 5], 0)), (0, Ok(0)));
        let missing = client.open(&format!("http://127.0.0.1:{port}/none")).expect_err("there is none");
        assert!(matches!(missing.problem, RemoteProblem::NotFound { .. }), "{missing}");
        let denied = client.open(&format!("http://127.0.0.1:{port}/")).expect_err("it is a folder");
        assert!(matches!(denied.problem, RemoteProblem::Denied { .. }), "{denied}");
        // A file that was replaced is another version.
        fs::write(folder.path("files/new"), &content[1..]).expect("the folder is writable");
        fs::rename(folder.path("files/new"), folder.path("files/data")).expect("the folder is writable");
        let changed = file.read(&mut [0; 5], 0).expect_err("it has changed");
        assert!(matches!(changed.problem, RemoteProblem::Changed { .. }), "{changed}");
        fs::write(folder.path("files/data"), &content).expect("the folder is writable");
    }
}

#[test]
fn a_server_with_tls_is_read_if_its_authority_is_known() {
    let folder = Scratch::new("nginx-tls");
    let content = files(&folder);
    let Some((_server, [plain, tls])) = start(&folder) else { return };
    let authority = fs::read(folder.path("ca.pem")).expect("it was made");
    for options in both_modes() {
        let client = options.certificates(authority.clone()).client().expect("valid options");
        let file = client.open(&format!("https://localhost:{tls}/data")).expect("it is there");
        compare(&file, &content);
        let refused = |url: String| -> RemoteError { client.open(&url).expect_err("it is not trusted") };
        // The certificate has another name.
        let other_name = refused(format!("https://127.0.0.1:{tls}/data"));
        assert!(matches!(other_name.problem, RemoteProblem::Tls { .. }), "{other_name}");
        assert_eq!(other_name.attempts, 1);
    }
    let unknown = RemoteOptions::new().client().expect("valid options");
    let unknown =
        unknown.open(&format!("https://localhost:{tls}/data")).expect_err("its authority is not known");
    assert!(matches!(unknown.problem, RemoteProblem::Tls { .. }) && unknown.attempts == 1, "{unknown}");
    assert!(unknown.to_string().contains("option certificates"), "{unknown}");
    // A server without TLS.
    let client = RemoteOptions::new().attempts(1).client().expect("valid options");
    let plain = client.open(&format!("https://localhost:{plain}/data")).expect_err("it has no TLS");
    assert!(matches!(plain.problem, RemoteProblem::Connect { .. } | RemoteProblem::Cut { .. }), "{plain}");
}
