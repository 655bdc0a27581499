"""Stores an object in an S3 server by a signed request (Signature Version 4, in the address)."""

import hashlib
import hmac
import http.client
import time
from pathlib import Path

REGION = "eu-central-1"


def signed_target(host: str, path: str, key: str, secret: str) -> str:
    """Returns the path and the query of a PUT request, which is valid for an hour."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{moment[:8]}/{REGION}/s3/aws4_request"
    query = (
        f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={key}/{scope}".replace("/", "%2F")
        + f"&X-Amz-Date={moment}&X-Amz-Expires=3600&X-Amz-SignedHeaders=host"
    )
    request = f"PUT\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    signing = f"AWS4{secret}".encode()
    for part in [*scope.split("/"), text]:
        signing = hmac.digest(signing, part.encode(), "sha256")
    return f"{path}?{query}&X-Amz-Signature={signing.hex()}"


def store(port: int, path: str, content: Path, key: str, secret: str) -> None:
    host = f"127.0.0.1:{port}"
    connection = http.client.HTTPConnection(host)
    with content.open("rb") as body:
        length = {"Content-Length": str(content.stat().st_size)}
        connection.request("PUT", signed_target(host, path, key, secret), body, length)
        answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"PUT {path}: status {answer.status}: {answer.read()!r}")
    connection.close()
