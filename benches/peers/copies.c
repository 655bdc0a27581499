/*
 * Measures the rate at which all GPUs of a host copy at the same time, each in a process of its
 * own, from host memory of different kinds: the cost of a shared buffer against cuMemHostAlloc, and
 * the property that causes it.
 *
 *   copies REPEATS
 *
 * Each variant is a row: the median of the repeats, of the mean over all GPUs and of the slowest.
 * All GPUs begin a copy together. CUDA's driver is loaded at run time, so this builds without CUDA.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_GPUS = 16, MOST_REPEATS = 64, HUGE = 2 << 20, MADV_COLLAPSE_ = 25, MADV_POPULATE_WRITE_ = 23 };
enum { PORTABLE = 1, DEVICEMAP = 2, READ_ONLY = 8 };
#define BYTES ((size_t)512 << 20)

enum memory { ALLOC, PRIVATE, MEMFD, PAGEABLE };
enum pages { SMALL, TRANSPARENT, POOL };

struct variant {
    const char *name;
    enum memory memory;
    enum pages pages;
    /* All processes map one file; each copies all of it, or a part of its own. */
    int shared, parts;
    unsigned flags;
    /* Only the first process registers, and it copies for all GPUs. */
    int one_process;
};

static const struct variant VARIANTS[] = {
    {"cuMemHostAlloc, each its own", ALLOC, SMALL, 0, 0, PORTABLE, 0},
    {"cuMemHostAlloc, each its own, DEVICEMAP", ALLOC, SMALL, 0, 0, PORTABLE | DEVICEMAP, 0},
    {"cuMemHostAlloc, one process for all GPUs, one allocation", ALLOC, SMALL, 0, 0, PORTABLE, 1},
    {"private 4k, each its own", PRIVATE, SMALL, 0, 0, PORTABLE | DEVICEMAP, 0},
    {"private THP, each its own", PRIVATE, TRANSPARENT, 0, 0, PORTABLE | DEVICEMAP, 0},
    {"memfd 4k, each its own", MEMFD, SMALL, 0, 0, PORTABLE | DEVICEMAP, 0},
    {"memfd THP, each its own", MEMFD, TRANSPARENT, 0, 0, PORTABLE | DEVICEMAP, 0},
    {"memfd 4k, one for all (as a buffer is)", MEMFD, SMALL, 1, 0, PORTABLE | DEVICEMAP, 0},
    {"memfd THP, one for all (as a buffer is)", MEMFD, TRANSPARENT, 1, 0, PORTABLE | DEVICEMAP, 0},
    {"memfd 2m of the pool, one for all", MEMFD, POOL, 1, 0, PORTABLE | DEVICEMAP, 0},
    {"memfd 4k, one for all, each copies a part of its own", MEMFD, SMALL, 1, 1, PORTABLE | DEVICEMAP, 0},
    {"memfd THP, one for all, each copies a part of its own", MEMFD, TRANSPARENT, 1, 1, PORTABLE | DEVICEMAP, 0},
    {"memfd THP, one for all, flags 0", MEMFD, TRANSPARENT, 1, 0, 0, 0},
    {"memfd THP, one for all, PORTABLE", MEMFD, TRANSPARENT, 1, 0, PORTABLE, 0},
    {"memfd THP, one for all, READ_ONLY", MEMFD, TRANSPARENT, 1, 0, PORTABLE | DEVICEMAP | READ_ONLY, 0},
    {"memfd THP, one process for all GPUs, one registration", MEMFD, TRANSPARENT, 1, 0, PORTABLE | DEVICEMAP, 1},
    {"memfd 4k, one process for all GPUs, one registration", MEMFD, SMALL, 1, 0, PORTABLE | DEVICEMAP, 1},
    {"memfd THP, one for all, not registered", PAGEABLE, TRANSPARENT, 1, 0, 0, 0},
};

/* Shared state of the processes of a variant. */
struct board {
    atomic_int arrived, failed;
    double seconds[MOST_REPEATS][MOST_GPUS];
    char why[256];
};

static int gpus, repeats;
static struct board *board;

static int (*init)(unsigned), (*count_of)(int *), (*device_of)(int *, int), (*retain)(void **, int), (*set_current)(void *);
static int (*device_alloc)(uint64_t *, size_t), (*host_alloc)(void **, size_t, unsigned), (*reg)(void *, size_t, unsigned);
static int (*unreg)(void *), (*stream_of)(void **, unsigned), (*copy)(uint64_t, const void *, size_t, void *), (*await)(void *);

static void fail(const char *what, int code)
{
    snprintf(board->why, sizeof board->why, "%s: %d", what, code);
    board->failed = 1;
    _exit(1);
}

static void must(const char *what, int code)
{
    if (code) fail(what, code);
}

static int load(void)
{
    static const struct { const char *name; void *to; } names[] = {
        {"cuInit", &init}, {"cuDeviceGetCount", &count_of}, {"cuDeviceGet", &device_of},
        {"cuDevicePrimaryCtxRetain", &retain}, {"cuCtxSetCurrent", &set_current}, {"cuMemAlloc_v2", &device_alloc},
        {"cuMemHostAlloc", &host_alloc}, {"cuMemHostRegister_v2", &reg}, {"cuMemHostUnregister", &unreg},
        {"cuStreamCreate", &stream_of}, {"cuMemcpyHtoDAsync_v2", &copy}, {"cuStreamSynchronize", &await},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(library, names[i].name);
        if (!found) return 0;
        memcpy(names[i].to, &found, sizeof found);
    }
    return init(0) == 0;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Waits for the other processes; `round` counts from 1. A process that fails releases all. */
static void meet(int processes, int round)
{
    atomic_fetch_add(&board->arrived, 1);
    while (atomic_load(&board->arrived) < processes * round) {
        if (board->failed) _exit(1);
        sched_yield();
    }
}

/* Allocates the pages of new memory, huge ones if requested. */
static void take(char *at, size_t length, enum pages pages)
{
    if (pages == TRANSPARENT) {
        (void)madvise(at, length, MADV_HUGEPAGE);
        for (size_t i = 0; i < length; i += HUGE) at[i] = 1;
        if (madvise(at, length, MADV_COLLAPSE_)) perror("copies: not all of it is on huge pages: MADV_COLLAPSE");
    }
    if (madvise(at, length, MADV_POPULATE_WRITE_)) memset(at, 1, length);
    memset(at, 7, length);
}

static int new_file(size_t length, enum pages pages)
{
    int fd = memfd_create("copies", pages == POOL ? MFD_HUGETLB : 0);
    return fd >= 0 && ftruncate(fd, (off_t)length) == 0 ? fd : -1;
}

static char *map_file(int fd, size_t length)
{
    /* The address is a multiple of 2 MiB, so that huge pages can be mapped. */
    char *room = mmap(NULL, length + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *at = (char *)(((uintptr_t)room + HUGE - 1) / HUGE * HUGE);
    int where = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    at = mmap(at, length, PROT_READ | PROT_WRITE, where | MAP_FIXED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Runs one process with the GPU `gpu`, or with all of them. */
static void work(const struct variant *variant, int fd, size_t length, int gpu, int processes)
{
    int first = variant->one_process ? 0 : gpu, behind = variant->one_process ? gpus : gpu + 1, device;
    void *context[MOST_GPUS], *stream[MOST_GPUS];
    uint64_t there[MOST_GPUS];
    char *at = NULL;
    for (int i = first; i < behind; i++) {
        must("cuDeviceGet", device_of(&device, i));
        must("cuDevicePrimaryCtxRetain", retain(&context[i], device));
        must("cuCtxSetCurrent", set_current(context[i]));
        must("cuMemAlloc", device_alloc(&there[i], BYTES));
        must("cuStreamCreate", stream_of(&stream[i], 1));
    }
    if (variant->memory == ALLOC) {
        must("cuMemHostAlloc", host_alloc((void **)&at, BYTES, variant->flags));
        memset(at, 7, BYTES);
    } else {
        at = map_file(fd, length);
        if (!at) fail("mmap", 0);
        if (!variant->shared) take(at, length, variant->pages);
        if (variant->flags & READ_ONLY) mprotect(at, length, PROT_READ);
    }
    /* The processes do this one after another, because it is not measured. */
    for (int turn = 0; turn < processes; turn++) {
        if (turn == gpu && variant->memory != ALLOC && variant->memory != PAGEABLE) {
            must("cuMemHostRegister", reg(at, length, variant->flags));
        }
        meet(processes, turn + 1);
    }
    char *from = at + (variant->parts ? (size_t)gpu * BYTES : 0);
    for (int repeat = -1; repeat < repeats; repeat++) {
        meet(processes, processes + repeat + 2);
        double begun = now();
        for (int i = first; i < behind; i++) {
            must("cuCtxSetCurrent", set_current(context[i]));
            must("cuMemcpyHtoDAsync", copy(there[i], from, BYTES, stream[i]));
        }
        for (int i = first; i < behind; i++) {
            must("cuCtxSetCurrent", set_current(context[i]));
            must("cuStreamSynchronize", await(stream[i]));
            if (repeat >= 0) board->seconds[repeat][i] = now() - begun;
        }
    }
    _exit(0);
}

static int ascending(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void measure(const struct variant *variant)
{
    int processes = variant->one_process ? 1 : gpus, fd = -1, status;
    size_t length = variant->parts ? BYTES * (size_t)gpus : BYTES;
    memset(board, 0, sizeof *board);
    if (variant->memory == MEMFD || variant->memory == PAGEABLE) {
        char *at;
        if (variant->shared) {
            fd = new_file(length, variant->pages);
            at = fd < 0 ? NULL : map_file(fd, length);
            if (!at || (variant->pages == POOL && madvise(at, length, MADV_POPULATE_WRITE_))) {
                printf("| %s | not here | | |\n", variant->name);
                if (fd >= 0) close(fd);
                return;
            }
            take(at, length, variant->pages);
            munmap(at, length);
        }
    }
    for (int gpu = 0; gpu < processes; gpu++) {
        if (fork() == 0) {
            int own = fd;
            if (variant->memory == MEMFD && !variant->shared) own = new_file(length, variant->pages);
            if (!load()) fail("cuInit", 0);
            work(variant, own, length, gpu, processes);
        }
    }
    while (wait(&status) > 0) {
        if (status && !board->failed) {
            board->failed = 1;
            snprintf(board->why, sizeof board->why, "a process ended with status %#x", status);
        }
    }
    if (fd >= 0) close(fd);
    if (board->failed) {
        printf("| %s | failed: %s | | |\n", variant->name, board->why);
        return;
    }
    double mean[MOST_REPEATS], slowest[MOST_REPEATS];
    for (int i = 0; i < repeats; i++) {
        mean[i] = 0;
        slowest[i] = 1e9;
        for (int gpu = 0; gpu < gpus; gpu++) {
            double rate = BYTES / board->seconds[i][gpu] * 1e-9;
            mean[i] += rate / gpus;
            if (rate < slowest[i]) slowest[i] = rate;
        }
    }
    qsort(mean, (size_t)repeats, sizeof *mean, ascending);
    qsort(slowest, (size_t)repeats, sizeof *slowest, ascending);
    static double base;
    if (base == 0) base = mean[repeats / 2];
    printf("| %s | %.1f | %.1f | %.3f |\n", variant->name, mean[repeats / 2], slowest[repeats / 2], mean[repeats / 2] / base);
    fflush(stdout);
}

/* Counts the GPUs in a child: a process that has used CUDA cannot fork others that use it. */
static int gpus_here(void)
{
    int status, count = 0;
    pid_t child = fork();
    if (child == 0) _exit(load() && count_of(&count) == 0 ? count : 0);
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/* Reserves huge pages for the variant that needs them. Returns the number before, or -1 without
 * the permission. */
static long pool(long more)
{
    long before = -1;
    FILE *file = fopen("/proc/sys/vm/nr_hugepages", "r+");
    if (file && fscanf(file, "%ld", &before) == 1) {
        rewind(file);
        fprintf(file, "%ld", before + more);
    }
    if (file) fclose(file);
    return before;
}

int main(int argc, char **argv)
{
    repeats = argc > 1 ? atoi(argv[1]) : 0;
    if (repeats < 1 || repeats > MOST_REPEATS) {
        fprintf(stderr, "usage: copies REPEATS, 1 to %d\n", MOST_REPEATS);
        return 2;
    }
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    gpus = gpus_here();
    if (!gpus) {
        fprintf(stderr, "copies: no GPU, or no libcuda.so.1 that starts\n");
        return 1;
    }
    if (gpus > MOST_GPUS) gpus = MOST_GPUS;
    long more = (long)(BYTES / HUGE) + 8, before = pool(more);
    printf("\n| 512 MiB to each of %d GPUs at the same time, from | GB/s each | slowest | ratio |\n| --- | --- | --- | --- |\n", gpus);
    fflush(stdout);
    /* The first variant runs again at the end, and shows the drift of the machine. */
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++) measure(&VARIANTS[i]);
    measure(&VARIANTS[0]);
    if (before >= 0) pool(-more);
    return 0;
}
