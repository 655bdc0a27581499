"""Servers of one object on the loopback interface: nginx without and with TLS, and one of S3."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from s3_store import store

ROOT = Path(__file__).resolve().parents[2]
NGINX = "/usr/sbin/nginx"
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
# Two processes, so that the server is no bound of one core.
CONFIGURATION = """
daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/errors;
events {{}}
http {{
    access_log off; sendfile on; keepalive_requests 1000000; root {folder}/files; {temporary}
    server {{
        listen 127.0.0.1:{plain};
        # The path of the object for clients of S3. No signature is checked.
        location /files/ {{ alias {folder}/files/; }}
    }}
    server {{
        listen 127.0.0.1:{tls} ssl;
        ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key;
    }}
}}
"""
KEYS = {"AWS_ACCESS_KEY_ID": "name", "AWS_SECRET_ACCESS_KEY": "secret"}


class Server:
    """A process that serves the object `files/data` of a folder."""

    def __init__(self, name: str, command: list[str], ports: list[int]) -> None:
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        limit = time.monotonic() + 30
        while not all(accepts(port) for port in ports):
            if self.process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"{name} does not start: {' '.join(command)}")
            time.sleep(0.01)

    def processor_seconds(self) -> float:
        """Returns the time of the process and of its children in the program and in the kernel."""
        pids = [self.process.pid]
        tasks = Path(f"/proc/{self.process.pid}/task")
        for task in tasks.iterdir():
            pids += [int(pid) for pid in (task / "children").read_text().split()]
        ticks = 0
        for pid in pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


def accepts(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for listener in sockets:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def make_certificates(folder: Path) -> None:
    """Makes an authority and a certificate for `localhost`: ca.pem, server.pem and server.key."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=folder, stderr=subprocess.DEVNULL)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    openssl("req", *key, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=of a benchmark", "-days", "2")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=localhost")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    openssl("x509", "-req", "-in", "server.csr", *signed, "-out", "server.pem")


def start_nginx(folder: Path) -> tuple[Server, int, int]:
    """Returns nginx with its ports without and with TLS."""
    make_certificates(folder)
    plain, tls = free_ports(2)
    temporary = " ".join(f"{name}_temp_path {folder}/{name};" for name in TEMPORARY)
    configuration = folder / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, plain=plain, tls=tls, temporary=temporary))
    # Its workers are those of another user, who cannot enter the folder otherwise.
    if os.geteuid() == 0:
        configuration.write_text("user root;" + configuration.read_text())
    server = Server("nginx", [NGINX, "-e", str(folder / "errors"), "-c", str(configuration)], [plain, tls])
    return server, plain, tls


def start_s3(folder: Path) -> tuple[Server, int] | None:
    """Returns s3s-fs, or rclone if that is not installed, with the bucket `files`."""
    [port] = free_ports(1)
    key, secret = KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"]
    s3s = shutil.which("s3s-fs", path=f"{ROOT}/target/tools/bin:{os.environ['PATH']}")
    rclone = ROOT / "target/servers/bin/rclone"
    address = ["--host", "127.0.0.1", "--port", str(port)]
    if s3s:
        stored = folder / "s3"
        (stored / "files").mkdir(parents=True)
        command = [s3s, "--access-key", key, "--secret-key", secret, *address, str(stored)]
        server = Server("s3s-fs", command, [port])
        # It keeps the ETag of an object that was stored by a request. Of a file that was placed in
        # its folder, it would read all bytes for the ETag of each answer.
        store(port, "/files/data", folder / "files/data", key, secret)
        return server, port
    if rclone.exists():
        command = [str(rclone), "serve", "s3", "--auth-key", f"{key},{secret}", "--addr", f"127.0.0.1:{port}", "-q"]
        return Server("rclone", [*command, "--config", str(folder / "none"), str(folder)], [port]), port
    return None
