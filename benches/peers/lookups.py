"""Compares a vectorised expression on the buffer with one on a private array. Each line of standard
input starts a turn, whose answer is the seconds of one lookup in each. Run by scripts/bench."""

import sys
import time

import hostbuf
import numpy as np

LOOKUPS = 1 << 19

buffer = hostbuf.attach()
shared = buffer.array(dtype="u8")
private = shared.copy()
random = np.random.default_rng(7)
into = np.empty(LOOKUPS, "u8")


def seconds(table: np.ndarray) -> float:
    # Each turn looks up other words, because the processor's cache still contains the previous
    # ones.
    index = random.integers(0, len(table), LOOKUPS)
    begun = time.perf_counter()
    np.take(table, index, out=into, mode="clip").sum()
    return (time.perf_counter() - begun) / LOOKUPS


for turn, _ in enumerate(sys.stdin):
    # The order alternates.
    order = [shared, private] if turn % 2 else [private, shared]
    # The first turn after a pause is slower and is not counted.
    seconds(order[1])
    taken = {id(table): seconds(table) for table in order}
    print(taken[id(shared)], taken[id(private)], flush=True)
