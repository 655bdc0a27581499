"""A node that plays 1080p frames at 30 Hz: into blocks of a pool, or as outputs of dora."""

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


def picture(number):
    """Returns a picture with a moving bar, as a view of one that is prepared."""
    return WIDE[:, number % SHAPE[1] : number % SHAPE[1] + SHAPE[1]]


WIDE = np.zeros((SHAPE[0], 2 * SHAPE[1], SHAPE[2]), np.uint8)
WIDE[:, ::64] = 255


def main():
    node = Node()
    producer = None
    if os.environ["TRANSPORT"] == "pool":
        # Readers may be 12 frames late.
        producer = hostbuf.Pool("camera").producer(shape=SHAPE, dtype="uint8", blocks=16, retain=12, stream="camera")
    own = np.empty(SHAPE, np.uint8)
    ticks = (event for event in node if event["type"] == "INPUT")
    for tick, _ in enumerate(ticks):
        number = tick - PAUSE
        if number >= FRAMES + PAUSE:
            break
        if not 0 <= number < FRAMES:
            continue
        if producer is None:
            own[...] = picture(number)
            stamp(own, number)
            metadata = {"ready_ns": time.monotonic_ns()}
            node.send_output("frame", pa.array(own.reshape(-1)), metadata)
        else:
            with producer.block(timeout=1) as block:
                array = block.numpy()
                array[...] = picture(number)
                stamp(array, number)
                # A block with a writable array is not published.
                del array
                metadata = {"ready_ns": time.monotonic_ns()}
                hostbuf.dora.send(node, "frame", block, metadata)


main()
