"""Kills, restarts and stops nodes of a dataflow, and checks that frames go on and nothing remains.

faults.py FOLDER

FOLDER gets the dataflows and their logs. run.sh sets the environment. Exit status: 0 if all checks
pass.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import hostbuf

HERE = Path(__file__).resolve().parent
# A dataflow that takes longer hangs.
LIMIT = 60

# A node that connects to the pool before dora has started all nodes.
EAGER_NODE = """
  - id: eager
    path: eager.py
    inputs:
      frame: camera/frame
    restart_policy: on-failure
    restart_delay: 0.2
    max_restart_delay: 0.2
"""
EAGER = """import sys
import hostbuf
try:
    pool = hostbuf.Pool("eager")
except hostbuf.NoBrokerError as error:
    sys.exit(f"REFUSED {error}")
from dora import Node
for event in Node():
    pass
print("CONNECTED", flush=True)
"""
# A broker that starts when the file `start` exists.
LATE_BROKER = """#!/bin/sh
for attempt in $(seq 600); do
    [ -e start ] && exec hostbuf "$@"
    sleep 0.05
done
exit 1
"""


def eventually(what, condition, limit=30):
    """Waits until the condition is true, and returns its value."""
    end = time.monotonic() + limit
    while True:
        # The broker may be the one that has just been killed.
        with contextlib.suppress(hostbuf.PoolError):
            found = condition()
            if found:
                return found
        if time.monotonic() > end:
            sys.exit(f"faults.py: after {limit} s still not: {what}")
        time.sleep(0.02)


def parent(pid):
    """Returns the parent of a process."""
    return int(re.search(r"^PPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])


class Dataflow:
    """A dataflow with a pool of its own, in a folder."""

    def __init__(self, folder, further_nodes="", frames=30, **environment):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("camera.py", "viewer.py", "frames.py"):
            shutil.copy(HERE / name, folder)
        (folder / "dataflow.yml").write_text((HERE / "broker-node.yml").read_text() + further_nodes)
        self.folder = folder
        self.name = f"hostbuf-dora-{folder.name}-{os.getpid()}"
        self.pool_variable = f"HOSTBUF_POOL=@{self.name}"
        variables = {**os.environ, "HOSTBUF_POOL": f"@{self.name}", "FRAMES": str(frames), **environment}
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.dora = subprocess.Popen(
                ["dora", "run", "--log-format", "compact", "dataflow.yml"],
                cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is not None:
            print(f"faults.py: see {self.log}", file=sys.stderr)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.dora.kill()
        self.dora.wait()

    def processes(self):
        """Returns the processes of the nodes and of the broker."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if self.pool_variable.encode() in variables:
                found.append(int(folder.name))
        return found

    def text(self):
        """Returns the log."""
        return self.log.read_text(errors="replace")

    def says(self, pattern):
        """Returns whether the log has a line that matches."""
        return re.search(pattern, self.text()) is not None

    def connect(self):
        """Connects to the pool of the dataflow."""
        return eventually("the broker listens", lambda: hostbuf.Pool("faults", mode="required", socket=self.name))

    def end(self):
        """Waits for the end of the dataflow, checks that nothing remains, and returns the report of
        the viewer."""
        try:
            self.dora.wait(LIMIT)
        except subprocess.TimeoutExpired:
            sys.exit("faults.py: the dataflow does not end")
        eventually(f"no process of {self.name} remains: {self.processes()}", lambda: not self.processes(), 10)
        sockets = [line for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(f"@{self.name}")]
        if sockets:
            sys.exit(f"faults.py: the socket of the broker remains: {sockets}")
        reports = re.findall(r"REPORT (\{.*?\})", self.text())
        if len(reports) != 1:
            sys.exit(f"faults.py: the viewer has reported {len(reports)} times")
        report = json.loads(reports[0])
        if report["torn"] or not report["frames"]:
            sys.exit(f"faults.py: {report['torn']} of {report['frames']} frames were torn")
        return report


class Observer:
    """The state of a dataflow's pool, as its broker sees it."""

    def __init__(self, pool):
        self.pool = pool

    def broker(self):
        """Returns the process of the broker."""
        return self.pool.status()["pid"]

    def camera(self, but=None, frames=30):
        """Returns the process of the camera and the bytes of the pool, once the viewer has read
        some frames of a camera that is not `but` and the pool has no other segment."""
        status = self.pool.status()
        pids = {client["client"]: client["pid"] for client in status["clients"]}
        if len(status["segments"]) != 1:
            return None
        segment = status["segments"][0]
        pid = pids.get(segment["producer"])
        read = sum(reader["acquired"] for reader in segment["readers"] if reader["name"] == "viewer")
        return (pid, status["bytes"]) if pid not in (None, but) and read >= frames else None

    def frames_read(self):
        """Returns the number of frames that the viewer has read of the camera."""
        return sum(reader["acquired"] for segment in self.pool.status()["segments"] for reader in segment["readers"])


def ends_with_its_broker(folder):
    """Checks that a dataflow whose broker is a node ends, and its broker with it."""
    with Dataflow(folder / "node") as dataflow:
        report = dataflow.end()
        if dataflow.dora.returncode != 0:
            sys.exit(f"faults.py: the dataflow has failed: see {dataflow.log}")
    print(f"a broker as a node: {report['frames']} frames, nothing remains")


def starts_its_broker_last(folder):
    """Checks that nodes wait for the broker in `dora.Node()`, or fail with one line and are
    restarted."""
    late = folder / "late-broker.sh"
    late.write_text(LATE_BROKER)
    late.chmod(0o755)
    with Dataflow(folder / "late", EAGER_NODE, HOSTBUF_COMMAND=str(late)) as dataflow:
        (dataflow.folder / "eager.py").write_text(EAGER)
        refusal = rf"REFUSED there is no broker at @{dataflow.name} on .*: start one"
        for pattern in (refusal, "camera: node is ready", "viewer: node is ready"):
            eventually(f"the log has: {pattern}", lambda pattern=pattern: dataflow.says(pattern))
        (dataflow.folder / "start").touch()
        report = dataflow.end()
        if not dataflow.says("CONNECTED"):
            sys.exit(f"faults.py: the node that found no broker was not restarted: see {dataflow.log}")
    print(f"the broker as the last node to start: {report['frames']} frames, nothing remains")


def survives_kills_and_stops(folder):
    """Checks that the viewer goes on when cameras and brokers are killed, and that SIGINT ends
    everything."""
    with Dataflow(folder / "kills", frames=1_000_000) as dataflow:
        observer = Observer(dataflow.connect())
        camera, used = eventually("the viewer reads frames", observer.camera)
        for _ in range(2):
            os.kill(camera, signal.SIGKILL)
            killed = camera
            camera, used_now = eventually(
                "the viewer reads frames of the next camera alone", lambda killed=killed: observer.camera(killed)
            )
            if used_now != used:
                sys.exit(f"faults.py: the pool had {used} bytes before the camera was killed, and {used_now} after")
        for victim in ("broker", "node"):
            broker = observer.broker()
            os.kill(broker if victim == "broker" else parent(broker), signal.SIGKILL)
            eventually("dora starts the next broker", lambda broker=broker: observer.broker() != broker)
            read = eventually("the next broker knows the viewer", observer.frames_read)
            eventually("the viewer reads more frames", lambda read=read: observer.frames_read() >= read + 30)
            found = eventually("the next broker knows the camera's memory", observer.camera)
            if found != (camera, used):
                sys.exit(f"faults.py: the pool had {used} bytes of process {camera}, the next broker knows {found}")
        dataflow.dora.send_signal(signal.SIGINT)
        report = dataflow.end()
        if report["cameras"] != 3:
            sys.exit(f"faults.py: the viewer has read frames of {report['cameras']} cameras instead of 3")
    print("two killed cameras, a killed broker and its killed node: frames go on; after SIGINT nothing remains")


def main(folder):
    ends_with_its_broker(folder)
    starts_its_broker_last(folder)
    survives_kills_and_stops(folder)


main(Path(sys.argv[1]))
