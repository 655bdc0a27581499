/* What `hostbuf run --register` has registered in this process before main.
 *
 * The functions are in the object that the launcher loads into the ranks that register, and nowhere
 * else: find them by name.
 *
 *     hostbuf_registered_function *registered =
 *         (hostbuf_registered_function *)dlsym(RTLD_DEFAULT, "hostbuf_registered");
 *     struct hostbuf_registration r;
 *     for (size_t i = 0; registered && registered(i, &r); i++)
 *         printf("%s has %zu bytes at %p, by rkey %#x\n", r.device, r.length, r.address, r.remote_key);
 *
 * The registrations stay until the process ends. Do not end them, nor the context and the
 * protection domain. Freezing a buffer (HostBuffer::freeze) ends them and registers it again for
 * reading: the keys are others then, so ask again. They belong to the process: a forked child must
 * not use its parent's.
 */
#ifndef HOSTBUF_REGISTERED_H
#define HOSTBUF_REGISTERED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A part of a buffer that a device takes as one: the whole buffer, but for GPUs at most 64 GiB of
 * it. */
struct hostbuf_registration {
    const char *device;      /* "cuda 0", "mlx5_0", "mlock"; stays until the process ends */
    void *address;           /* its first byte in this process */
    size_t length;           /* bytes */
    int writable;            /* whether the device may write there, and with RDMA a peer too */
    uint32_t local_key;      /* RDMA: lkey; else 0, as the four below it */
    uint32_t remote_key;     /* RDMA: rkey */
    void *context;           /* RDMA: struct ibv_context * */
    void *protection_domain; /* RDMA: struct ibv_pd *, for the queue pairs that use the keys */
    void *region;            /* RDMA: struct ibv_mr * */
    uint64_t device_address; /* CUDA: the CUdeviceptr of the first byte; else 0 */
};

/* Describes registration number `index`, counted from 0, in *to. 1; 0 when there are not so many.
 * */
typedef int hostbuf_registered_function(size_t index, struct hostbuf_registration *to);

/* hostbuf_registered_end: ends what is registered of the buffers in a range; 0 when all has ended.
 * hostbuf_registered_again: registers it again, for reading alone; 0 when all is registered.
 * For whoever makes a buffer read-only without HostBuffer::freeze, which calls both. */
typedef int hostbuf_registered_range_function(uintptr_t address, size_t length);

#ifdef __cplusplus
}
#endif

#endif
