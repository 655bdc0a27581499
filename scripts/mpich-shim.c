/*
 * Works around two defects of MPICH. Only the test harness preloads it, into MPICH's ranks.
 *
 * 1. Debian's MPICH 4.0.x hangs. At the end of MPI_Finalize it closes its UCX endpoints and then
 *    waits in PMI's barrier, in a plain read(2) on the socket to its proxy (PMI_FD). During that
 *    read UCX makes no progress, so a peer that waits for this side's part of a close over TCP
 *    never gets it and never reaches the barrier: all hang (pmodels/mpich issue 6596; two hosts or
 *    more). Here a read of that socket drives the UCX worker until there is something to read.
 *    Later versions do not need this and fail with it.
 *
 * 2. Tests run more ranks than there are cores, and MPICH polls without yielding. UCX polls its
 *    sockets with a timeout of zero in every iteration. Yielding the core there makes a job of 8
 *    ranks on 2 cores take a fraction of the time.
 *
 * Built by scripts/install-deps: cc -shared -fPIC -O2 -o target/mpich-shim.so scripts/mpich-shim.c
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

/* MPICH creates one worker and drives it from one thread; the tests do not request more. */
static void *worker;
static unsigned (*progress)(void *);
static int pmi_fd = -1;

/* Returns the next definition of a name. If the program loads MPI with dlopen (Python), only the
 * scope of the calling library, which contains the address caller, has the definition. */
static void *next(const char *name, void *caller)
{
    void *found = dlsym(RTLD_NEXT, name);
    Dl_info library;
    if (!found && dladdr(caller, &library) && library.dli_fname) {
        void *handle = dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
        if (handle) {
            found = dlsym(handle, name);
            dlclose(handle);
        }
    }
    return found;
}

/* Assigns the next definition of a name to a pointer of any type. */
#define NEXT(pointer, name, caller) (*(void **)&(pointer) = next(name, caller))
#define CALLER __builtin_return_address(0)

/* Returns true for MPICH 4.0.x. */
static int has_the_hang(void *caller)
{
    char text[8192]; /* MPI_MAX_LIBRARY_VERSION_STRING */
    int length, (*version)(char *, int *);
    NEXT(version, "MPI_Get_library_version", caller);
    if (!version || version(text, &length) != 0)
        return 0;
    const char *number = strstr(text, "MPICH Version:");
    if (!number)
        return 0;
    number += strcspn(number, "0123456789");
    return strncmp(number, "4.0", 3) == 0;
}

int ucp_worker_create(void *context, const void *params, void **out)
{
    int (*create)(void *, const void *, void **);
    const char *fd = getenv("PMI_FD");
    NEXT(create, "ucp_worker_create", CALLER);
    NEXT(progress, "ucp_worker_progress", CALLER);
    int status = create(context, params, out);
    if (status == 0 && progress && fd && has_the_hang(CALLER)) {
        worker = *out;
        pmi_fd = atoi(fd);
    }
    return status;
}

void ucp_worker_destroy(void *which)
{
    void (*destroy)(void *);
    NEXT(destroy, "ucp_worker_destroy", CALLER);
    if (which == worker)
        worker = NULL;
    destroy(which);
}

/* System calls and not the next definition, since a preloaded allocator or sanitizer may read
 * before dlsym works. */
ssize_t read(int fd, void *buffer, size_t size)
{
    while (worker && fd == pmi_fd) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        /* The timeout is a millisecond at most, because the peer waits for the progress in
         * between. */
        if (syscall(SYS_poll, &wait, 1, 1) != 0)
            break;
        progress(worker);
    }
    return syscall(SYS_read, fd, buffer, size);
}

/* Yields the core, see above. */
int epoll_wait(int fd, struct epoll_event *events, int count, int timeout)
{
    if (timeout == 0)
        syscall(SYS_sched_yield);
    return syscall(SYS_epoll_wait, fd, events, count, timeout);
}
