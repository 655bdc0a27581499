/*
 * Preloaded into the ranks of Debian's MPICH 4.0.x by the test harness, and by nothing else.
 *
 * At the end of MPI_Finalize that MPICH closes its UCX endpoints and then waits in PMI's barrier, in a plain read(2) on
 * the socket to its proxy (PMI_FD). While it blocks there nobody drives UCX, so a peer that still waits for this side's
 * part of a close over TCP never gets it and never reaches the barrier: all hang (pmodels/mpich issue 6596; two hosts
 * or more). Here a read of that socket drives the UCX worker until there is something to read.
 *
 * Built by scripts/install-deps: cc -shared -fPIC -O2 -o target/mpich-shim.so scripts/mpich-shim.c
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* MPICH makes one worker and drives it from one thread; the tests do not ask for more. */
static void *worker;
static unsigned (*progress)(void *);
static int pmi_fd = -1;

/* The next definition of NAME, with the type of the pointer that it is assigned to. */
#define NEXT(pointer, name) (*(void **)&(pointer) = dlsym(RTLD_NEXT, name))

int ucp_worker_create(void *context, const void *params, void **out)
{
    int (*create)(void *, const void *, void **);
    const char *fd = getenv("PMI_FD");
    NEXT(create, "ucp_worker_create");
    NEXT(progress, "ucp_worker_progress");
    int status = create(context, params, out);
    if (status == 0 && progress && fd) {
        worker = *out;
        pmi_fd = atoi(fd);
    }
    return status;
}

void ucp_worker_destroy(void *which)
{
    void (*destroy)(void *);
    NEXT(destroy, "ucp_worker_destroy");
    if (which == worker)
        worker = NULL;
    destroy(which);
}

/* System calls and not the next definition, since a preloaded allocator or sanitizer may read before dlsym works. */
ssize_t read(int fd, void *buffer, size_t size)
{
    while (worker && fd == pmi_fd) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        /* No longer than a millisecond: the peer waits for the progress in between. */
        if (syscall(SYS_poll, &wait, 1, 1) != 0)
            break;
        progress(worker);
    }
    return syscall(SYS_read, fd, buffer, size);
}

/*
 * More ranks than cores: MPICH polls without ever yielding, and UCX looks at its sockets with a timeout of zero on
 * every turn. Giving the core away there makes a barrier of 8 ranks on 2 cores take a fraction of the time.
 */
int epoll_wait(int fd, struct epoll_event *events, int count, int timeout)
{
    if (timeout == 0)
        syscall(SYS_sched_yield);
    return syscall(SYS_epoll_wait, fd, events, count, timeout);
}
