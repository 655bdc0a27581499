/* A table full of pointers, built once in the job and followed by all ranks: words of a text, in a
 * search tree.
 *
 *     mpicc pointer_table.c -o pointer_table $(pkg-config --cflags --libs hostbuf)
 *     hostbuf run -n 4 --host h0:2,h1:2 --size 16M -- ./pointer_table
 *     mpirun -n 4 ./pointer_table
 *
 * Under hostbuf run the buffer exists before main. Under mpirun the program allocates one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hostbuf.h>
#include <hostbuf_mpi.h>

#define WORDS 20000

/* Ordinary pointers. They are valid on all hosts, because the buffer has one address on all of
 * them. */
struct node {
    struct node *less, *more;
    const char *word;
    unsigned count;
};

struct table {
    struct node *root;
    unsigned different, all;
};

static void must(hostbuf_status status)
{
    if (status == HOSTBUF_OK) return;
    fprintf(stderr, "pointer_table: %s: %s\n", hostbuf_status_name(status), hostbuf_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Produces the same words in every rank, as if read from a file. */
static void word_number(unsigned number, char word[16])
{
    unsigned mixed = (number * 2654435761u) >> 18;
    (void)snprintf(word, 16, "w%u", mixed);
}

static void *fill(hostbuf_arena *arena, void *unused)
{
    struct table *table = hostbuf_arena_take(arena, sizeof *table, _Alignof(struct table));
    (void)unused;
    for (unsigned i = 0; table && i < WORDS; i++) {
        char word[16];
        struct node **at = &table->root;
        word_number(i, word);
        while (*at) {
            int order = strcmp(word, (*at)->word);
            if (order == 0) break;
            at = order < 0 ? &(*at)->less : &(*at)->more;
        }
        if (!*at) {
            char *kept = hostbuf_arena_take(arena, strlen(word) + 1, 1);
            struct node *node = hostbuf_arena_take(arena, sizeof *node, _Alignof(struct node));
            if (!kept || !node) return NULL;
            strcpy(kept, word);
            node->word = kept;
            *at = node;
            table->different++;
        }
        (*at)->count++;
        table->all++;
    }
    return table;
}

static unsigned count_of(const struct table *table, const char *word)
{
    const struct node *node = table->root;
    while (node) {
        int order = strcmp(word, node->word);
        if (order == 0) return node->count;
        node = order < 0 ? node->less : node->more;
    }
    return 0;
}

int main(int count, char **arguments)
{
    hostbuf_collective group;
    hostbuf_buffer *buffer;
    hostbuf_info info = HOSTBUF_INFO_INIT;
    hostbuf_proof proof;
    hostbuf_options options = HOSTBUF_OPTIONS_INIT;
    void *root;
    options.size = 16u << 20;
    MPI_Init(&count, &arguments);
    if (hostbuf_mpi_collective(MPI_COMM_WORLD, &group) != MPI_SUCCESS) MPI_Abort(MPI_COMM_WORLD, 1);
    must(hostbuf_launched() ? hostbuf_attach(NULL, &buffer) : hostbuf_allocate(&group, &options, &buffer));
    must(hostbuf_initialize_job(buffer, &group, fill, NULL, &root));
    must(hostbuf_freeze(buffer, &group, &proof));
    must(hostbuf_stat(buffer, &info));

    /* Every rank counts again and compares. */
    const struct table *table = root;
    unsigned *counts = calloc(1u << 14, sizeof *counts), different = 0, wrong = 0;
    for (unsigned i = 0; i < WORDS; i++) counts[(i * 2654435761u) >> 18]++;
    for (unsigned i = 0; i < 1u << 14; i++) {
        char word[16];
        (void)snprintf(word, sizeof word, "w%u", i);
        different += counts[i] > 0;
        wrong += count_of(table, word) != counts[i];
    }
    free(counts);
    wrong += table->different != different || table->all != WORDS;
    uint64_t sums[2] = {wrong, proof == HOSTBUF_SEALED};
    if (group.all_reduce(group.context, sums, 2, HOSTBUF_SUM) != 0) MPI_Abort(MPI_COMM_WORLD, 1);
    if (group.rank == 0) {
        printf("%u words, %u of them different, at %p in %zu ranks; %llu wrong; sealed in %llu\n", table->all, different,
               info.address, group.size, (unsigned long long)sums[0], (unsigned long long)sums[1]);
    }
    hostbuf_release(buffer);
    hostbuf_mpi_release(&group);
    MPI_Finalize();
    return sums[0] != 0;
}
