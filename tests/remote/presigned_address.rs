//! Signed addresses: Signature Version 4 of S3, in the query.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::s3_server::{NAME, REGION, S3Server, SECRET};

/// The signature of an address.
pub struct PresignedAddress<'s> {
    pub server: &'s S3Server,
    /// The method of the requests: GET or PUT.
    pub method: &'s str,
    /// The bucket and the key, with a slash at the beginning, as they are in an address.
    pub path: &'s str,
    /// The time since the signature was made.
    pub age: Duration,
    /// The time for which it is valid.
    pub valid: Duration,
}

impl PresignedAddress<'_> {
    /// Returns the address with its signature.
    pub fn sign(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
        let time = date(now - self.age);
        let scope = format!("{}/{REGION}/s3/aws4_request", &time[..8]);
        let (credential, seconds) = (format!("{NAME}/{scope}").replace('/', "%2F"), self.valid.as_secs());
        let query = format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={time}\
             &X-Amz-Expires={seconds}&X-Amz-SignedHeaders=host"
        );
        let (host, method, path) = (self.server.host(), self.method, self.path);
        let request = format!("{method}\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD");
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", sha256(None, &request));
        let first = hex(format!("AWS4{SECRET}").as_bytes());
        let key = scope.split('/').fold(first, |key, part| sha256(Some(&key), part));
        format!("http://{host}{path}?{query}&X-Amz-Signature={}", sha256(Some(&key), &text))
    }
}

/// Returns a time in the form of S3.
fn date(since_1970: Duration) -> String {
    let mut command = Command::new("date");
    command.arg("-u").arg(format!("-d@{}", since_1970.as_secs())).arg("+%Y%m%dT%H%M%SZ");
    let output = command.output().expect("date starts");
    String::from_utf8(output.stdout).expect("a date").trim().to_owned()
}

/// Returns the SHA-256 of a text, or its HMAC with a key, in hexadecimal digits.
fn sha256(key: Option<&str>, text: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(["dgst", "-sha256", "-r"]);
    if let Some(key) = key {
        command.args(["-mac", "HMAC", "-macopt", &format!("hexkey:{key}")]);
    }
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("openssl starts");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("openssl reads");
    let output = child.wait_with_output().expect("openssl ends");
    assert!(output.status.success(), "openssl dgst has failed");
    String::from_utf8_lossy(&output.stdout).chars().take(64).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
