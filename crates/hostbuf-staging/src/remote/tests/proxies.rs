//! Proxies of the environment.

use std::process::Command;

use super::test_server::{TestAnswer, TestServer};
use super::*;

const BYTES: usize = 1000;
/// The variable with the address of an object that is read without the proxy.
const NOT_PROXIED: &str = "HOSTBUF_TEST_NOT_PROXIED";

fn read(url: &str) -> Result<Vec<u8>, RemoteError> {
    let file = options().attempts(1).client()?.open(url)?;
    let mut bytes = vec![0; BYTES];
    file.read(&mut bytes, 0).map(|_| bytes)
}

/// Reads an object of a server that only the proxy knows, and one that needs no proxy. The process
/// is a child, since the variables of this one are shared with other tests.
#[test]
fn a_proxy_gets_all_requests_except_those_of_no_proxy() {
    if let Ok(url) = std::env::var(NOT_PROXIED) {
        assert!(read("http://server.invalid/f").expect("the proxy has it") == content(BYTES));
        assert!(read(&url).expect("the server has it") == content(BYTES));
        return;
    }
    let serve = |request: &super::test_server::TestRequest| TestAnswer::partial(&content(BYTES), request);
    let (proxy, server) = (TestServer::new(serve), TestServer::new(serve));
    let name = "remote::tests::proxies::a_proxy_gets_all_requests_except_those_of_no_proxy";
    let mut child = Command::new(std::env::current_exe().expect("the path of the test"));
    for variable in ["ALL_PROXY", "all_proxy", "http_proxy", "no_proxy", "REQUEST_METHOD"] {
        child.env_remove(variable);
    }
    child.env("HTTP_PROXY", proxy.url("")).env("NO_PROXY", "127.0.0.1").env(NOT_PROXIED, server.url("/f"));
    let output = child.args([name, "--exact"]).output().expect("the test starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let targets = |server: &TestServer| server.requests().into_iter().map(|request| request.target);
    assert_eq!(targets(&proxy).collect::<Vec<_>>(), ["http://server.invalid/f"; 2]);
    assert_eq!(targets(&server).collect::<Vec<_>>(), ["/f"; 2]);
}
