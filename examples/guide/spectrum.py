"""Lines of a spectrum: each rank computes the whole table for itself, and reads it."""

import numpy as np
from mpi4py import MPI

LINES, SAMPLES = 500, 2000


def build():
    place = np.linspace(0, 1, SAMPLES)
    line = np.arange(LINES)
    profile = np.outer(line % 7 + 1, np.round(place * 100))
    return {"profile": profile, "names": [f"line {n}" for n in line]}


def main():
    comm = MPI.COMM_WORLD
    table = build()
    mine = table["profile"][comm.rank :: comm.size].sum()
    total = comm.reduce(mine)
    if comm.rank == 0:
        print(f"{len(table['names'])} lines, sum {total:.0f}, in {comm.size} ranks")


if __name__ == "__main__":
    main()
