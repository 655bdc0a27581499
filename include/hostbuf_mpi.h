/* A hostbuf_collective over an MPI communicator. All functions are inline and call the MPI of the
 * program, so libhostbuf links no MPI.
 *
 *     hostbuf_collective group;
 *     if (hostbuf_mpi_collective(MPI_COMM_WORLD, &group) != MPI_SUCCESS) ...
 *     hostbuf_allocate(&group, &options, &buffer);
 *     hostbuf_mpi_release(&group);
 *
 * It needs C11 or C++11. Call the functions after MPI_Init.
 */
#ifndef HOSTBUF_MPI_H
#define HOSTBUF_MPI_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

#include "hostbuf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The maximum number of bytes of one call, since MPI counts in int. */
#define HOSTBUF_MPI_MOST ((size_t)1 << 30)

static inline MPI_Comm hostbuf_mpi_communicator(void *context)
{
    return *(MPI_Comm *)context;
}

static inline int hostbuf_mpi_all_gather(void *context, const void *mine, size_t bytes, void *all)
{
    if (bytes > HOSTBUF_MPI_MOST) return MPI_ERR_COUNT;
    return MPI_Allgather((void *)(uintptr_t)mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE,
                         hostbuf_mpi_communicator(context));
}

static inline int hostbuf_mpi_broadcast(void *context, void *data, size_t bytes, size_t root)
{
    size_t done = 0;
    while (done < bytes) {
        size_t part = bytes - done < HOSTBUF_MPI_MOST ? bytes - done : HOSTBUF_MPI_MOST;
        int code = MPI_Bcast((char *)data + done, (int)part, MPI_BYTE, (int)root, hostbuf_mpi_communicator(context));
        if (code != MPI_SUCCESS) return code;
        done += part;
    }
    return MPI_SUCCESS;
}

/* Reduces unsigned words. For MIN and MAX it flips the top bit and compares signed words, since
 * some MPI libraries do not compare unsigned words correctly. */
static inline int hostbuf_mpi_all_reduce(void *context, uint64_t *words, size_t count, enum hostbuf_reduce how)
{
    const uint64_t top = (uint64_t)1 << 63;
    int ordered = how == HOSTBUF_MIN || how == HOSTBUF_MAX;
    MPI_Op operation = how == HOSTBUF_MIN ? MPI_MIN : how == HOSTBUF_MAX ? MPI_MAX : how == HOSTBUF_SUM ? MPI_SUM : MPI_BAND;
    int code;
    size_t i;
    if (count > (size_t)INT_MAX) return MPI_ERR_COUNT;
    for (i = 0; ordered && i < count; i++) words[i] ^= top;
    code = MPI_Allreduce(MPI_IN_PLACE, words, (int)count, ordered ? MPI_INT64_T : MPI_UINT64_T, operation,
                         hostbuf_mpi_communicator(context));
    for (i = 0; ordered && i < count; i++) words[i] ^= top;
    return code;
}

/* Drives MPI progress. MPI_Iprobe does so, although no rank sends such a message. */
static inline void hostbuf_mpi_progress(void *context)
{
    int there;
    (void)MPI_Iprobe(MPI_ANY_SOURCE, 0, hostbuf_mpi_communicator(context), &there, MPI_STATUS_IGNORE);
}

static inline void hostbuf_mpi_describe(void *context, int code, char *text, size_t size)
{
    char message[MPI_MAX_ERROR_STRING + 1] = "";
    int length;
    (void)context;
    if (MPI_Error_string(code, message, &length) == MPI_SUCCESS) (void)snprintf(text, size, "%s", message);
}

static inline void hostbuf_mpi_end(void *context)
{
    (void)MPI_Comm_free((MPI_Comm *)context);
    free(context);
}

static inline int hostbuf_mpi_split(void *context, size_t color, hostbuf_collective *part);

/* Makes *group from `comm` and takes ownership of it. Sets the error handler MPI_ERRORS_RETURN, so
 * that an error does not abort the program. */
static inline int hostbuf_mpi_of(MPI_Comm comm, hostbuf_collective *group)
{
    const hostbuf_collective initial = HOSTBUF_COLLECTIVE_INIT;
    int rank = 0, size = 0, inter = 0, code;
    MPI_Comm *kept = (MPI_Comm *)malloc(sizeof *kept);
    if (!kept) {
        (void)MPI_Comm_free(&comm);
        return MPI_ERR_NO_MEM;
    }
    *kept = comm;
    (void)MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    code = MPI_Comm_test_inter(comm, &inter);
    /* The two groups of an intercommunicator see only the ranks of each other. */
    if (code == MPI_SUCCESS && inter) code = MPI_ERR_COMM;
    if (code != MPI_SUCCESS || (code = MPI_Comm_rank(comm, &rank)) != MPI_SUCCESS ||
        (code = MPI_Comm_size(comm, &size)) != MPI_SUCCESS) {
        hostbuf_mpi_end(kept);
        return code;
    }
    *group = initial;
    group->context = kept;
    group->rank = (size_t)rank;
    group->size = (size_t)size;
    group->all_gather = hostbuf_mpi_all_gather;
    group->broadcast = hostbuf_mpi_broadcast;
    group->split = hostbuf_mpi_split;
    group->all_reduce = hostbuf_mpi_all_reduce;
    group->progress = hostbuf_mpi_progress;
    group->release = hostbuf_mpi_end;
    group->describe = hostbuf_mpi_describe;
    return MPI_SUCCESS;
}

static inline int hostbuf_mpi_split(void *context, size_t color, hostbuf_collective *part)
{
    MPI_Comm comm = MPI_COMM_NULL, whole = hostbuf_mpi_communicator(context);
    int rank, code = MPI_Comm_rank(whole, &rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_split(whole, (int)color, rank, &comm);
    return code == MPI_SUCCESS ? hostbuf_mpi_of(comm, part) : code;
}

/* Makes *group from a duplicate of `comm`, an intracommunicator, so that messages of hostbuf and of
 * the program cannot match each other. Collective over `comm`. Returns MPI_SUCCESS, or MPI's error
 * and leaves *group unchanged. */
static inline int hostbuf_mpi_collective(MPI_Comm comm, hostbuf_collective *group)
{
    MPI_Comm own = MPI_COMM_NULL;
    int code = MPI_Comm_dup(comm, &own);
    return code == MPI_SUCCESS ? hostbuf_mpi_of(own, group) : code;
}

/* Frees the duplicate. Collective. Call it before MPI_Finalize. */
static inline void hostbuf_mpi_release(hostbuf_collective *group)
{
    const hostbuf_collective initial = HOSTBUF_COLLECTIVE_INIT;
    if (group->context) hostbuf_mpi_end(group->context);
    *group = initial;
}

#ifdef __cplusplus
}
#endif

#endif
