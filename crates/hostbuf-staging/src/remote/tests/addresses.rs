//! Addresses and options that are invalid, and those of S3.

use super::test_server::{AfterAnswer, TestAnswer, TestServer};
use super::*;

#[test]
fn an_invalid_address_is_an_error_before_any_request() {
    let client = options().client().expect("valid options");
    let schemes = "expected http://, https://, s3://, webhdfs:// or swebhdfs://";
    for (url, expected) in [
        ("file.bin", schemes),
        ("ftp://host/f", schemes),
        ("http://", schemes),
        ("s3://bucket", "expected s3://BUCKET/KEY: it has no key"),
        ("s3:///key", "expected s3://BUCKET/KEY: it has no bucket"),
        ("s3://bucket/folder/", "its key ends with /"),
        ("s3://bucket/a#1", "Write ? of a key as %3F"),
        ("s3://user@bucket/a", "it has a user, a port"),
        ("webhdfs://host:1", "expected webhdfs://HOST:PORT/PATH"),
    ] {
        let error = client.open(url).expect_err("it is invalid");
        assert!(
            matches!(&error.problem, RemoteProblem::Address { why } if why.contains(expected)),
            "{error}"
        );
        assert!(error.to_string().starts_with(&error.url), "{error}");
    }
    let error = client.open_s3("http://user:word@host/f?X-Amz-Signature=1").expect_err("it is none of S3");
    assert_eq!(
        error.to_string(),
        "http://host/f: the address is invalid: its scheme is http: expected s3://"
    );
}

#[test]
fn an_invalid_option_is_an_error_of_the_client() {
    let invalid = [
        (RemoteOptions::new().attempts(0), "attempts: 0"),
        (RemoteOptions::new().mode(reactors(0, 1)), "expected at least 1 thread"),
        (RemoteOptions::new().mode(reactors(1, 0)), "expected at least 1 thread"),
        (RemoteOptions::new().mode(reactors(1, usize::MAX)), "expected at most 4096 threads"),
        (RemoteOptions::new().header("a b", "c"), "invalid header \"a b\""),
        (RemoteOptions::new().header("a", "secret\n"), "invalid header \"a\""),
        (RemoteOptions::new().certificates("none"), "expected at least one certificate in PEM"),
    ];
    for (options, expected) in invalid {
        let error = options.client().expect_err("it is invalid");
        assert!(matches!(&error.problem, RemoteProblem::Option { why } if why.contains(expected)), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let client = RemoteOptions::new().s3("aws_zone", "x").client().expect("settings are looked at later");
    let error = client.open("s3://bucket/key").expect_err("there is no such setting");
    assert!(matches!(&error.problem, RemoteProblem::Option { why } if why.contains("aws_zone")), "{error}");
    let client = RemoteOptions::new().s3("aws_skip_signature", "true").s3("aws_region", "x").client();
    let error = client.expect("settings are looked at later").open("s3://bucket/key").expect_err("it signs");
    assert!(matches!(&error.problem, RemoteProblem::Option { why } if why.contains("https://")), "{error}");
    let shown = format!("{:?}", RemoteOptions::new().header("x", "secret").s3("aws_token", "secret"));
    assert!(shown.contains("aws_token") && !shown.contains("secret"), "{shown}");
}

#[test]
fn requests_of_s3_are_signed_in_their_addresses() {
    let content = content(2 * PIECE);
    let server = TestServer::of_content(content.clone());
    let client = options()
        .s3("aws_endpoint", server.url(""))
        .s3("aws_region", "eu-central-1")
        .s3("aws_access_key_id", "id")
        .s3("aws_secret_access_key", "secret")
        .client()
        .expect("valid options");
    let file = client.open_s3("s3://bucket/folder/a%20key").expect("it is there");
    assert_eq!(file.url(), "s3://bucket/folder/a%20key");
    assert!(read_by_ring(&file, 2).expect("nothing fails") == content);
    for request in server.requests() {
        assert!(request.target.starts_with("/bucket/folder/a%20key?X-Amz-Algorithm=AWS4-HMAC-SHA256&"));
        assert!(request.target.contains("&X-Amz-Credential=id%2F"), "{}", request.target);
        assert!(!request.target.contains("secret") && request.range().is_some());
    }
    // An address that somebody else has signed is read as it is.
    let signed = server.url(&server.requests()[0].target);
    let file = client.open_s3_presigned(&signed).expect("it is there");
    assert_eq!(file.url(), server.url("/bucket/folder/a%20key"));
    assert_eq!(server.requests().last().map(|request| server.url(&request.target)), Some(signed));
}

#[test]
fn the_credentials_of_a_machine_are_asked_for() {
    // The service that gives roles to containers.
    let role = TestServer::new(|_| {
        let body = br#"{"AccessKeyId":"role","SecretAccessKey":"s","Token":"t","Expiration":"2099-01-01T00:00:00Z"}"#;
        TestAnswer::new("200 OK", &[], body)
    });
    let server = TestServer::of_content(content(10));
    let client = options()
        .s3("aws_endpoint", server.url(""))
        .s3("aws_region", "x")
        .s3("aws_container_credentials_full_uri", role.url("/role"))
        .s3("aws_container_authorization_token_file", "/dev/null")
        .s3("aws_allow_http", "true")
        .client()
        .expect("valid options");
    let file = client.open("s3://bucket/key").expect("it is there");
    file.read(&mut [0; 10], 0).expect("nothing fails");
    assert_eq!(role.requests().len(), 1);
    assert!(server.requests().iter().all(|request| request.target.contains("X-Amz-Credential=role%2F")));
    assert!(server.requests().iter().all(|request| request.target.contains("X-Amz-Security-Token=t")));
}

#[test]
fn a_service_of_credentials_that_is_silent_is_an_error() {
    let role = TestServer::new(|_| TestAnswer::new("200 OK", &[], b"").cut(1, AfterAnswer::Stall));
    let client = options()
        .timeout(Duration::from_secs(1))
        .header("x-secret", "of the object")
        .s3("aws_endpoint", "http://127.0.0.1:1")
        .s3("aws_region", "x")
        .s3("aws_container_credentials_full_uri", role.url("/role"))
        .s3("aws_container_authorization_token_file", "/dev/null")
        .s3("aws_allow_http", "true")
        .client()
        .expect("valid options");
    let error = client.open("s3://bucket/key").expect_err("there are no credentials");
    assert!(matches!(error.problem, RemoteProblem::Credentials { .. }) && error.attempts == 1, "{error}");
    assert!(role.requests().iter().all(|request| request.header("x-secret").is_none()));
}
