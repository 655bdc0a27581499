/* The registrations that `hostbuf run --register` made in this process before main.
 *
 * Only the object that the launcher loads into the ranks that register has the functions, so look
 * them up by name with dlsym.
 *
 *     hostbuf_registered_function *registered =
 *         (hostbuf_registered_function *)dlsym(RTLD_DEFAULT, "hostbuf_registered");
 *     struct hostbuf_registered_buffer r = HOSTBUF_REGISTERED_BUFFER_INIT;
 *     for (size_t i = 0; registered && registered(i, &r) > 0; i++)
 *         printf("%s: %zu bytes at %p, rkey %#x\n", r.device, r.length, r.address, r.remote_key);
 *
 * The registrations last until the process exits. Do not destroy the memory regions, the context
 * or the protection domain. Freezing a buffer (HostBuffer::freeze) ends its registrations and
 * registers it again for reading, with new keys; call the function again to get them. The
 * registrations belong to the process: a forked child must not use those of its parent.
 */
#ifndef HOSTBUF_REGISTERED_H
#define HOSTBUF_REGISTERED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A registration of a buffer with a device. It covers the whole buffer; for GPUs, at most 64 GiB of
 * it. */
struct hostbuf_registered_buffer {
    size_t struct_size;      /* the size of this structure: initialize it with HOSTBUF_REGISTERED_BUFFER_INIT */
    const char *device;      /* "cuda 0", "mlx5_0", "mlock"; valid until the process exits */
    void *address;           /* the first byte */
    size_t length;           /* the number of bytes */
    int writable;            /* not 0 if the device may write, and with RDMA also a peer */
    uint32_t local_key;      /* RDMA: lkey; otherwise 0, also the next four fields */
    uint32_t remote_key;     /* RDMA: rkey */
    void *context;           /* RDMA: struct ibv_context * */
    void *protection_domain; /* RDMA: struct ibv_pd *, for the queue pairs that use the keys */
    void *memory_region;     /* RDMA: struct ibv_mr * */
    uint64_t device_address; /* CUDA: the CUdeviceptr of the first byte; otherwise 0 */
};

/* The initial value of a hostbuf_registered_buffer. hostbuf.h states the rule for struct_size. */
#define HOSTBUF_REGISTERED_BUFFER_INIT {sizeof(struct hostbuf_registered_buffer), NULL, NULL, 0, 0, 0, 0, NULL, NULL, NULL, 0}

/* Writes registration number `index`, counted from 0, to *to. Returns 1, or 0 if there are fewer
 * registrations, or -1 and prints a line to standard error if to->struct_size is invalid. */
typedef int hostbuf_registered_function(size_t index, struct hostbuf_registered_buffer *to);

/* hostbuf_registered_end ends the registrations of the buffers in a range and returns 0 if all have
 * ended. hostbuf_registered_again registers the buffers again for reading only and returns 0 if all
 * are registered. Both are for programs that make a buffer read-only without HostBuffer::freeze,
 * which calls them. */
typedef int hostbuf_registered_range_function(uintptr_t address, size_t length);

/* hostbuf_maps_gpu_sections returns 1 if this process has mapped the GPU sections of the job before
 * main, and 0 if it has not, for example in a child process. */
typedef int hostbuf_maps_gpu_sections_function(void);

#ifdef __cplusplus
}
#endif

#endif
