/*
 * Measures the cost of a hit in UCX's registration cache, as the peer of benches/src/cache.rs,
 * which starts this program, begins its turns, and walks the same chain.
 *
 *   ucx_rcache BASE ENTRIES PAGES STRIDE SEED
 *   ucx_rcache --version
 *
 * It makes ENTRIES registrations of PAGES pages, one in every STRIDE pages from BASE. Each line on
 * standard input has the number of hits of each thread, and the number of threads. The answer is
 * the nanoseconds of one get and put: of one thread by its CPU time, of several threads by the
 * clock, from one hit to the next of all threads together. Registering does nothing, and no memory
 * events are requested, so only the cache is measured.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <ucp/api/ucp_version.h>
#include <ucs/memory/rcache.h>

/* From 1.17 on the alignment is an argument of each request. */
#if UCP_API_VERSION >= UCP_VERSION(1, 17)
#define ALIGNED(alignment) alignment,
#else
#define ALIGNED(alignment)
#endif

/* From 1.21 on a cache locks its list of least recently used regions only on request. The lock
 * costs nothing in a single thread. */
#if UCP_API_VERSION >= UCP_VERSION(1, 21)
#define FOR_THREADS UCS_RCACHE_FLAG_NEED_LRU_LOCK
#else
#define FOR_THREADS 0
#endif

#define PAGE 4096ul
#define HUGE (2ul << 20)
#define ASKED 64ul

struct mapping {
    ucs_rcache_region_t super;
    uint64_t key;
};

struct cell {
    uintptr_t address;
    uint64_t next;
};

static uint64_t made;

static ucs_status_t begin(void *context, ucs_rcache_t *cache, void *argument, ucs_rcache_region_t *region, uint16_t flags)
{
    (void)context, (void)cache, (void)argument, (void)flags;
    ((struct mapping *)region)->key = ++made;
    return UCS_OK;
}

static void end(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *region)
{
    (void)context, (void)cache, (void)region;
}

static void describe(void *context, ucs_rcache_t *cache, ucs_rcache_region_t *region, char *text, size_t most)
{
    (void)context, (void)cache, (void)region;
    snprintf(text, most, "nothing");
}

static const ucs_rcache_ops_t operations = {.mem_reg = begin, .mem_dereg = end, .dump_region = describe};

static uint64_t chance(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void *room(uint64_t entries, size_t each)
{
    size_t bytes = (entries * each + HUGE - 1) / HUGE * HUGE;
    void *at = aligned_alloc(HUGE, bytes);
    if (!at) {
        perror("ucx_rcache");
        exit(1);
    }
    (void)madvise(at, bytes, MADV_HUGEPAGE);
    return at;
}

/* Makes one cycle through all entries, as Chain::new does: every second one is requested from
 * its middle. */
static struct cell *chain(uintptr_t base, uint64_t entries, uint64_t pages, uint64_t stride, uint64_t state, uintptr_t *starts)
{
    struct cell *cells = room(entries, sizeof *cells);
    uint64_t *order = room(entries, sizeof *order);
    for (uint64_t i = 0; i < entries; i++) order[i] = i;
    for (uint64_t i = entries - 1; i >= 1; i--) {
        uint64_t other = chance(&state) % (i + 1), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (uint64_t i = 0; i < entries; i++) {
        uint64_t apart = chance(&state) % (stride - pages);
        starts[i] = base + (i * stride + apart) * PAGE;
        cells[i].address = starts[i] + (i % 2 ? pages / 2 * PAGE + 512 : 0);
        cells[order[i]].next = order[(i + 1) % entries];
    }
    free(order);
    return cells;
}

static double now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static uint64_t get(ucs_rcache_t *cache, uintptr_t address, size_t length)
{
    ucs_rcache_region_t *region;
    if (ucs_rcache_get(cache, (void *)address, length, ALIGNED(PAGE) PROT_READ, NULL, &region) != UCS_OK) {
        fprintf(stderr, "ucx_rcache: no region for %#" PRIxPTR "\n", address);
        exit(1);
    }
    uint64_t key = ((volatile struct mapping *)region)->key;
    ucs_rcache_region_put(cache, region);
    return key;
}

static ucs_rcache_t *cache;
static struct cell *cells;
static uint64_t entries;
static pthread_barrier_t ready;

struct walker {
    pthread_t thread;
    uint64_t first, hits;
    int core;
    double begun, ended;
};

static void walk(uint64_t at, uint64_t hits)
{
    for (uint64_t i = 0; i < hits; i++) at = cells[at].next + (get(cache, cells[at].address, ASKED) & (1ull << 63));
}

static void *walk_together(void *argument)
{
    struct walker *walker = argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(walker->core, &set);
    (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    walk(walker->first, entries);
    pthread_barrier_wait(&ready);
    walker->begun = now(CLOCK_MONOTONIC);
    walk(walker->first, walker->hits);
    walker->ended = now(CLOCK_MONOTONIC);
    return NULL;
}

/* Returns the nanoseconds from one hit to the next of all threads together, from the sum of
 * their rates. */
static double together(uint64_t hits, unsigned threads)
{
    struct walker *walkers = calloc(threads, sizeof *walkers);
    cpu_set_t mine;
    int core = -1;
    double rate = 0;
    sched_getaffinity(0, sizeof mine, &mine);
    pthread_barrier_init(&ready, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        do core = (core + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(core, &mine));
        walkers[i] = (struct walker){.first = i * entries / threads, .hits = hits, .core = core};
        if (pthread_create(&walkers[i].thread, NULL, walk_together, &walkers[i])) {
            perror("ucx_rcache: pthread_create");
            exit(1);
        }
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(walkers[i].thread, NULL);
        rate += hits / (walkers[i].ended - walkers[i].begun);
    }
    pthread_barrier_destroy(&ready);
    free(walkers);
    return 1 / rate;
}

int main(int count, char **arguments)
{
    if (count == 2 && !strcmp(arguments[1], "--version")) {
        printf("UCX %d.%d\n", UCP_API_MAJOR, UCP_API_MINOR);
        return 0;
    }
    if (count != 6) {
        fprintf(stderr, "usage: ucx_rcache BASE ENTRIES PAGES STRIDE SEED\n");
        return 2;
    }
    uint64_t numbers[5];
    for (int i = 0; i < 5; i++) numbers[i] = strtoull(arguments[i + 1], NULL, 0);
    uintptr_t base = numbers[0];
    uint64_t pages = numbers[2], stride = numbers[3];
    entries = numbers[1];
    ucs_rcache_params_t parameters = {
        .region_struct_size = sizeof(struct mapping),
#if UCP_API_VERSION < UCP_VERSION(1, 17)
        .alignment = PAGE,
        .max_alignment = PAGE,
#endif
        .ops = &operations,
        .flags = FOR_THREADS,
        .max_regions = ~0ul,
        .max_size = ~0ul,
        .max_unreleased = ~0ul,
    };
    ucs_status_t status = ucs_rcache_create(&parameters, "peer", NULL, &cache);
    if (status != UCS_OK) {
        fprintf(stderr, "ucx_rcache: ucs_rcache_create: status %d\n", (int)status);
        return 1;
    }
    uintptr_t *starts = room(entries, sizeof *starts);
    cells = chain(base, entries, pages, stride, numbers[4], starts);
    for (uint64_t i = 0; i < entries; i++) (void)get(cache, starts[i], pages * PAGE);
    uint64_t hits;
    unsigned threads;
    while (scanf("%" SCNu64 " %u", &hits, &threads) == 2) {
        if (threads > 1) {
            printf("%.4f\n", together(hits, threads));
        } else {
            /* Walks the cycle once, which warms up the caches. */
            walk(0, entries);
            double begun = now(CLOCK_THREAD_CPUTIME_ID);
            walk(0, hits);
            printf("%.4f\n", (now(CLOCK_THREAD_CPUTIME_ID) - begun) / hits);
        }
        fflush(stdout);
    }
    if (made != entries) {
        fprintf(stderr, "ucx_rcache: %" PRIu64 " registrations, and not %" PRIu64 ": a hit was a miss\n", made, entries);
        return 1;
    }
    free(starts);
    free(cells);
    ucs_rcache_destroy(cache);
    return 0;
}
