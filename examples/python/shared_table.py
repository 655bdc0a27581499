"""A table of cross sections that one rank computes and all ranks read: numpy arrays in one copy a
host.

    hostbuf run -n 4 --host h0:2,h1:2 --size 64M -- python shared_table.py
    mpirun -n 4 python shared_table.py
"""

from typing import Any

import hostbuf
import numpy as np
from mpi4py import MPI

NUCLIDES, ENERGIES = 60, 2000


def table(arena: hostbuf.Arena) -> dict[str, Any]:
    """Runs in one rank of the job."""
    energy = arena.array(ENERGIES)
    section = arena.array((NUCLIDES, ENERGIES))
    energy[:] = 1e-5 * np.exp(0.0138 * np.arange(ENERGIES))
    section[:] = np.arange(1, NUCLIDES + 1)[:, None] / np.sqrt(energy)
    # An array that was made elsewhere is copied into the buffer, once.
    return {"energy": energy, "section": section, "charge": np.arange(1, NUCLIDES + 1), "unit": "barn"}


def main() -> None:
    comm = MPI.COMM_WORLD
    with hostbuf.attach() if hostbuf.launched() else hostbuf.allocate(comm, 16 << 20) as buffer:
        shared = buffer.initialize_job(table, comm)
        proof = buffer.freeze(comm)

        # Each rank looks at its own part of the whole.
        mine = slice(comm.rank, None, comm.size)
        wanted = shared["charge"][mine, None] / np.sqrt(shared["energy"])
        wrong = comm.allreduce(int(np.count_nonzero(shared["section"][mine] != wanted)))
        address = shared["section"].__array_interface__["data"][0]
        places = comm.allgather((address, shared["section"].flags.writeable))
        if comm.rank == 0:
            print(
                f"{shared['section'].shape} values in {shared['unit']}, in {comm.size} ranks at",
                f"{len(set(places))} address; {wrong} are wrong; {'sealed' if proof.sealed else proof.why}",
            )
        assert wrong == 0 and set(places) == {(address, False)}


if __name__ == "__main__":
    main()
