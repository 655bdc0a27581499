"""A node that plays 1080p frames at 30 Hz, by one of several transports."""

import os
import time

import numpy as np
import pyarrow as pa
from dora import Node
from frames import SHAPE, stamp

import hostbuf
import hostbuf.dora

FRAMES = int(os.environ.get("FRAMES", "300"))
# The ticks before the first frame and after the last one: dora loses outputs of a node that ends.
PAUSE = 30


def write(array, number):
    """Writes a picture with a moving bar, and returns the time of its last byte and this
    process."""
    array[...] = WIDE[:, number % SHAPE[1] : number % SHAPE[1] + SHAPE[1]]
    stamp(array, number)
    return {"ready_ns": time.monotonic_ns(), "camera": os.getpid()}


WIDE = np.zeros((SHAPE[0], 2 * SHAPE[1], SHAPE[2]), np.uint8)
WIDE[:, ::64] = 255


class PoolOutput:
    """Writes frames into blocks of a pool, and sends their tokens."""

    def __init__(self):
        # Readers may be 12 frames late.
        self.producer = hostbuf.Pool("camera").producer(
            shape=SHAPE, dtype="uint8", blocks=16, retain=12, stream="camera"
        )

    def send(self, node, number):
        with self.producer.block(timeout=1) as block:
            # The view must end first: a block with a writable array is not published.
            metadata = write(block.numpy(), number)
            hostbuf.dora.send(node, "frame", block, metadata)


class DoraOutput:
    """Sends frames as outputs of dora."""

    def __init__(self):
        self.frame = np.empty(SHAPE, np.uint8)

    def send(self, node, number):
        metadata = write(self.frame, number)
        node.send_output("frame", pa.array(self.frame.reshape(-1)), metadata)


class TensorPoolOutput:
    """Copies frames to the GPU by dora's tensor pool, which wheels from PyPI lack."""

    def __init__(self):
        self.frame = np.empty(SHAPE, np.uint8)
        address = self.frame.ctypes.data
        self.info = {
            "ptr": address, "size": self.frame.nbytes, "dtype": "torch.uint8", "shape": list(SHAPE), "device": "cpu"
        }  # fmt: skip
        self.pool = None

    def send(self, node, number):
        metadata = write(self.frame, number)
        if self.pool is None:
            self.pool = node.register_tensor_pool(self.info, "cuda:0")
        else:
            node.write_tensor_pool(self.pool, self.info)
        node.send_output("frame", self.pool, metadata)


OUTPUTS = {"pool": PoolOutput, "tensor-pool": TensorPoolOutput}


def main():
    node = Node()
    output = OUTPUTS.get(os.environ["TRANSPORT"], DoraOutput)()
    ticks = (event for event in node if event["type"] == "INPUT")
    for tick, _ in enumerate(ticks):
        number = tick - PAUSE
        if number >= FRAMES + PAUSE:
            break
        if 0 <= number < FRAMES:
            output.send(node, number)


main()
