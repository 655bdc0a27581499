/* The lookups of benches/src/lookups.rs in C, through libhostbuf's view of a buffer. The
 * argument is the number of lookups of a turn. Each line of standard input ("START", the index
 * of a word) starts a turn. The answer is the seconds of one lookup of a chain, of one of
 * sixteen chains at once, and the word at which the next turn begins. Built by scripts/bench. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "hostbuf.h"

enum { LANES = 16 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static __attribute__((noinline)) uint64_t chain(const uint64_t *table, uint64_t start, uint64_t steps)
{
    uint64_t at = start;
    for (uint64_t i = 0; i < steps; i++) at = table[at];
    return at;
}

static __attribute__((noinline)) uint64_t lanes(const uint64_t *table, uint64_t start, uint64_t words, uint64_t steps)
{
    uint64_t at[LANES], sum = 0;
    for (unsigned i = 0; i < LANES; i++) at[i] = (start + i * (words / LANES)) % words;
    for (uint64_t i = 0; i < steps / LANES; i++)
        for (int lane = 0; lane < LANES; lane++) at[lane] = table[at[lane]];
    for (int lane = 0; lane < LANES; lane++) sum = (sum + at[lane]) % words;
    return sum;
}

int main(int argc, char **argv)
{
    hostbuf_buffer *buffer;
    uint64_t start, steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    if (steps < LANES) {
        fputs("usage: lookups-c LOOKUPS\n", stderr);
        return 2;
    }
    if (hostbuf_attach(NULL, &buffer) != HOSTBUF_OK) {
        fprintf(stderr, "%s\n", hostbuf_message());
        return 1;
    }
    const uint64_t *table = hostbuf_data(buffer);
    uint64_t words = hostbuf_size(buffer) / sizeof *table;
    /* Touches each page once, as the process that filled the buffer has done. */
    volatile uint64_t touched = 0;
    for (uint64_t i = 0; i < words; i += 512) touched += table[i];
    (void)touched;
    while (scanf("%" SCNu64, &start) == 1) {
        double begun = now();
        uint64_t end = chain(table, start, steps);
        double each = (now() - begun) / (double)steps;
        begun = now();
        uint64_t sum = lanes(table, end, words, steps);
        double each_lane = (now() - begun) / (double)steps;
        printf("%.12e %.12e %" PRIu64 "\n", each, each_lane, (end + sum) % words);
        fflush(stdout);
    }
    hostbuf_release(buffer);
    return 0;
}
