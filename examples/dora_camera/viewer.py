"""A node that reads frames, on the GPU if PyTorch has one, and reports their latency."""

import json
import os
import resource
import sys
import time

import numpy as np
from dora import Node
from frames import SHAPE, check

import hostbuf
import hostbuf.dora

FRAMES = int(os.environ.get("FRAMES", "300"))


def lockable():
    """Returns whether zenoh and hostbuf may lock dora's shared memory of 128 MiB twice."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return os.geteuid() == 0 or soft == resource.RLIM_INFINITY or soft > 300 << 20


class GpuArray:
    """The frame of dora's tensor pool on the GPU, by the description that dora returns."""

    def __init__(self, info):
        self.__cuda_array_interface__ = {"shape": SHAPE, "typestr": "|u1", "data": (info["ptr"], False), "version": 3}


class Viewer:
    """Copies each frame to the GPU, or reads it on the CPU, and records the times."""

    def __init__(self):
        self.in_hand, self.ready, self.used, self.numbers = [], [], [], []
        self.torn = self.gone = 0
        self.cameras = set()
        self.access, self.why = "copy", None
        try:
            import torch
        except ImportError:
            torch = None
        self.torch = torch if torch is not None and torch.cuda.is_available() else None
        if self.torch:
            self.on_gpu = torch.empty(SHAPE, dtype=torch.uint8, device="cuda")

    def show(self, frame, ready_ns, block=None):
        """Uses one frame, which may lie in a block of a pool, or be on the GPU already."""
        self.in_hand.append(time.monotonic_ns() - ready_ns)
        if block is not None:
            # The first call registers all blocks of the camera, so that copies run at full speed.
            path = block.dma()
            self.access = "direct" if path.direct else "copy"
            self.why = path.why
            if not path.direct and self.torch:
                sys.exit(f"viewer.py: the GPU cannot read the block: {path.why}")
        if isinstance(frame, np.ndarray) and self.torch:
            self.on_gpu.copy_(self.torch.as_tensor(frame))
            self.torch.cuda.synchronize()
        # The time at which the frame is where it is used: on the GPU, if there is one.
        self.ready.append(time.monotonic_ns() - ready_ns)
        number, torn = check(frame if isinstance(frame, np.ndarray) else frame.cpu().numpy())
        self.used.append(time.monotonic_ns() - ready_ns)
        self.numbers.append(number)
        self.torn += torn

    def show_adopted(self, array, ready_ns):
        """Uses one frame in the shared memory of dora, which is registered where it is."""
        with hostbuf.dma(array, "cuda" if self.torch else "mlock") as adopted:
            self.access, self.why = "direct" if adopted.direct else "copy", adopted.why
            # The view is one of hostbuf's mapping if the array is direct.
            self.show(np.asarray(adopted).reshape(SHAPE), ready_ns)

    def report(self):
        """Returns the report as a dictionary, with times in milliseconds."""

        def ms(times, part):
            return round(float(np.percentile(times, part)) / 1e6, 3) if times else None

        return {
            "transport": os.environ["TRANSPORT"],
            "device": "GPU" if self.torch else "CPU",
            "access": self.access,
            "why": self.why,
            "lockable": lockable(),
            "frames": len(set(self.numbers)),
            "lost": FRAMES - len(set(self.numbers)),
            "gone": self.gone,
            "torn": self.torn,
            "cameras": len(self.cameras),
            "in_hand_p50": ms(self.in_hand, 50),
            "in_hand_p99": ms(self.in_hand, 99),
            "ready_p50": ms(self.ready, 50),
            "ready_p99": ms(self.ready, 99),
            "used_p50": ms(self.used, 50),
            "used_p99": ms(self.used, 99),
        }


def main():
    node = Node()
    pool = hostbuf.Pool("viewer") if os.environ["TRANSPORT"] == "pool" else None
    viewer = Viewer()
    tensor = None
    for event in node:
        if event["type"] != "INPUT":
            continue
        ready_ns = event["metadata"]["ready_ns"]
        viewer.cameras.add(event["metadata"]["camera"])
        if os.environ["TRANSPORT"] == "tensor-pool":
            if tensor is None:
                tensor = viewer.torch.as_tensor(GpuArray(node.read_tensor_pool(event["value"])), device="cuda")
            viewer.show(tensor, ready_ns)
            continue
        if os.environ["TRANSPORT"] == "adopted":
            viewer.show_adopted(event["value"], ready_ns)
            continue
        if pool is None:
            viewer.show(event["value"].to_numpy().reshape(SHAPE), ready_ns)
            continue
        try:
            block = hostbuf.dora.receive(event, pool)
        except hostbuf.BlockGoneError:
            viewer.gone += 1
            continue
        with block:
            viewer.show(block.numpy(), ready_ns, block)
    print("REPORT", json.dumps(viewer.report()), flush=True)


main()
