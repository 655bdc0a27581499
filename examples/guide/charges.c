/* Atoms with charges and pointers to their neighbours: each rank builds the whole table for itself,
 * and reads it. */
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

enum { ATOMS = 100000, NEAR = 8 };

struct atom {
    double charge;
    const struct atom *near[NEAR];
};

struct table {
    size_t count;
    struct atom *atoms;
};

static void *build(void)
{
    struct table *table = malloc(sizeof *table);
    if (!table) return NULL;
    table->count = ATOMS;
    table->atoms = malloc(ATOMS * sizeof *table->atoms);
    if (!table->atoms) return NULL;
    for (size_t i = 0; i < ATOMS; i++) {
        struct atom *atom = &table->atoms[i];
        atom->charge = (double)(i % 7) - 3;
        for (size_t k = 0; k < NEAR; k++) atom->near[k] = &table->atoms[(i * 31 + k * 977) % ATOMS];
    }
    return table;
}

int main(int count, char **arguments)
{
    int rank, size;
    double mine = 0, all = 0;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const struct table *table = build();
    if (!table) MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t i = (size_t)rank; i < table->count; i += (size_t)size) {
        const struct atom *atom = &table->atoms[i];
        for (size_t k = 0; k < NEAR; k++) mine += atom->charge * atom->near[k]->charge;
    }
    MPI_Reduce(&mine, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%zu atoms, energy %.0f, in %d ranks\n", table->count, all, size);
    MPI_Finalize();
    return 0;
}
