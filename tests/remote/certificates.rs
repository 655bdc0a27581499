//! Certificates of an authority that exists for one test.

use std::path::Path;
use std::process::Command;

use hostbuf_tests::Scratch;

/// Makes an authority and a certificate for `localhost`: ca.pem, server.pem and server.key.
pub fn make(folder: &Scratch) {
    let names = folder.path("names");
    std::fs::write(&names, "subjectAltName=DNS:localhost\n").expect("the folder is writable");
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let at = |name: &str| folder.path(name);
    let openssl = |first: &str, key: &[&str], rest: &[&str]| {
        let output =
            Command::new("openssl").arg(first).args(key).args(rest).output().expect("openssl starts");
        assert!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
    };
    let (ca, ca_key) = (at("ca.pem"), at("ca.key"));
    let subject = "/CN=an authority for a test";
    openssl("req", &key, &["-x509", "-keyout", &ca_key, "-out", &ca, "-subj", subject, "-days", "2"]);
    let request = at("server.csr");
    openssl("req", &key, &["-keyout", &at("server.key"), "-out", &request, "-subj", "/CN=localhost"]);
    let signed = ["-req", "-in", &request, "-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial", "-days", "2"];
    openssl("x509", &signed, &["-extfile", &names, "-out", &at("server.pem")]);
    assert!(Path::new(&at("server.pem")).exists());
}
