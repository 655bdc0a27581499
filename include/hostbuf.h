/* hostbuf: one buffer for each host of a job, shared by all its ranks, at one address everywhere.
 *
 *     cc program.c $(pkg-config --cflags --libs hostbuf)
 *
 * Every function that can fail returns a hostbuf_status; hostbuf_message() returns the details. All
 * functions are thread-safe. A handle that is not const is released by the function. Functions with
 * a group are collective: all ranks of the group call them in the same order. hostbuf_mpi.h makes a
 * group from an MPI communicator.
 *
 * Initialize each structure, also one that a function fills, with its HOSTBUF_..._INIT. This sets
 * struct_size, by which the library knows the fields that the program was compiled with. It accepts
 * smaller structures of older programs, and larger ones whose additional fields are 0, and returns
 * HOSTBUF_INVALID for others. It accesses no byte beyond struct_size.
 *
 * Written by cbindgen from bindings/c; a test compares the two.
 */

#ifndef HOSTBUF_H
#define HOSTBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* The initial values of the structures. In an assignment in C:
 * options = (hostbuf_options)HOSTBUF_OPTIONS_INIT; */
#define HOSTBUF_OPTIONS_INIT {sizeof(hostbuf_options), 0, NULL, HOSTBUF_PAGES_AUTO, 0, 0, {0, 0}, NULL, NULL, 0}
#define HOSTBUF_SECTION_OPTIONS_INIT {sizeof(hostbuf_section_options), NULL, 0, NULL}
#define HOSTBUF_INFO_INIT {sizeof(hostbuf_info), NULL, 0, NULL, HOSTBUF_PAGES_AUTO, 0, HOSTBUF_EMPTY, 0, 0, 0, 0, -1, 0}
#define HOSTBUF_SECTION_INFO_INIT {sizeof(hostbuf_section_info), NULL, NULL, 0, 0, NULL, 0, NULL, NULL, NULL}
#define HOSTBUF_GPU_SECTION_INFO_INIT {sizeof(hostbuf_gpu_section_info), NULL, 0, 0, NULL, NULL, 0, 0}
#define HOSTBUF_COLLECTIVE_INIT {sizeof(hostbuf_collective), NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL}
#define HOSTBUF_KEY_INIT {sizeof(hostbuf_key), 0, 0, 0}
#define HOSTBUF_LEASE_INIT {sizeof(hostbuf_lease), {0, 0, 0, 0, 0, 0}, 0, 0, 0}
#define HOSTBUF_CACHE_STATS_INIT {sizeof(hostbuf_cache_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
#define HOSTBUF_POOL_OPTIONS_INIT {sizeof(hostbuf_pool_options), NULL, HOSTBUF_POOL_DEFAULT, 0, NULL, NULL, 0}
#define HOSTBUF_PRODUCER_OPTIONS_INIT {sizeof(hostbuf_producer_options), 0, 0, 0, 0, 0, NULL, 0, NULL}
#define HOSTBUF_CONTENT_INIT {sizeof(hostbuf_content), HOSTBUF_ELEMENT_NONE, 0, NULL, NULL, 0, 0, 0, NULL, 0}
#define HOSTBUF_BLOCK_HEADER_INIT {sizeof(hostbuf_block_header), HOSTBUF_ELEMENT_NONE, 0, {0}, {0}, 0, 0, 0, 0, 0, 0, {0}}
#define HOSTBUF_FILE_OPTIONS_INIT {sizeof(hostbuf_file_options), HOSTBUF_FILE_READ, 0, NULL}
#define HOSTBUF_LOAD_OPTIONS_INIT {sizeof(hostbuf_load_options), NULL, 0, 0, 0}
#define HOSTBUF_TENSOR_INIT {sizeof(hostbuf_tensor), NULL, NULL, 0, NULL, HOSTBUF_ELEMENT_NONE, 0, 0, {0, 0}, 0, NULL}
#define HOSTBUF_SLICE_INFO_INIT {sizeof(hostbuf_slice_info), 0, 0, NULL, 0}
#define HOSTBUF_SLICE_PART_INIT {sizeof(hostbuf_slice_part), NULL, 0, 0, 0, 0, 0}

/* A section of a new buffer, in an array: the name, the size in bytes, and the NUMA nodes or NULL. */
#define HOSTBUF_SECTION(name, size, numa) {sizeof(hostbuf_section_options), name, size, numa}


// The status that a call returns. `hostbuf_message` returns the details.
typedef enum hostbuf_status {
    // The call succeeded.
    HOSTBUF_OK = 0,
    // An argument is invalid: null, out of range, or not text.
    HOSTBUF_INVALID = 1,
    // This host or this build does not support the request.
    HOSTBUF_UNSUPPORTED = 2,
    // The host does not have enough memory. The check precedes every change.
    HOSTBUF_NO_SPACE = 3,
    // The ranks found no common address, or requested different buffers.
    HOSTBUF_DISAGREED = 4,
    // A system call failed.
    HOSTBUF_OS = 5,
    // There is no buffer to attach to.
    HOSTBUF_ATTACH = 6,
    // A rank exited before all ranks had the buffer.
    HOSTBUF_LOST = 7,
    // A word of the control page has an invalid value.
    HOSTBUF_CORRUPT = 8,
    // The arena has no room.
    HOSTBUF_FULL = 9,
    // Filling failed in this process.
    HOSTBUF_FILL = 10,
    // An RDMA operation on another host failed.
    HOSTBUF_PEER = 11,
    // The buffer cannot be frozen.
    HOSTBUF_FREEZE = 12,
    // The received bytes differ from the sent bytes.
    HOSTBUF_REPLICATE = 13,
    // A function of the collective failed.
    HOSTBUF_COLLECTIVE = 14,
    // A device refused to register or deregister memory.
    HOSTBUF_REGISTRATION = 15,
    // A registration cache has no room.
    HOSTBUF_BUDGET = 16,
    // An allocator of registered memory has reached its limit.
    HOSTBUF_LIMIT = 17,
    // A forked child used an object that belongs to its parent.
    HOSTBUF_FORKED = 18,
    // Another rank of the same collective call failed.
    HOSTBUF_ELSEWHERE = 19,
    // No error: the object does not exist, or is not available without waiting.
    HOSTBUF_NOTHING = 20,
    // A defect of hostbuf: please report the message.
    HOSTBUF_DEFECT = 21,
    // The job has failed, so no process can attach. The message is that of the job's error.
    HOSTBUF_JOB_FAILED = 22,
    // The time limit is over: no block became free, or the pool's broker has not answered.
    HOSTBUF_TIMEOUT = 23,
    // There is no broker for the pool, or it has ended.
    HOSTBUF_NO_BROKER = 24,
    // The pool's broker has refused the request.
    HOSTBUF_REFUSED = 25,
    // The content of a token is gone: its producer has reused the block, or has ended.
    HOSTBUF_GONE = 26,
    // The producer has not published the content of a token.
    HOSTBUF_NOT_PUBLISHED = 27,
    // This process holds as many blocks of a producer as it may.
    HOSTBUF_QUOTA = 28,
    // A token names a block or a length that its producer does not have.
    HOSTBUF_OUT_OF_RANGE = 29,
    // The bytes are no token, or a damaged one.
    HOSTBUF_INVALID_TOKEN = 30,
    // The description of a block is damaged.
    HOSTBUF_INVALID_HEADER = 31,
    // The producer that a program waited for is closed.
    HOSTBUF_CLOSED = 32,
    // A file ends before the end of the transfer.
    HOSTBUF_END_OF_FILE = 33,
    // The transfer was cancelled.
    HOSTBUF_CANCELLED = 34,
    // A GPU has failed during a transfer, or its context was lost.
    HOSTBUF_GPU_FAILED = 35,
    // A file, a set of files, or the description of the tensors in a buffer is damaged.
    HOSTBUF_DAMAGED = 36,
    // A file has changed while it was loaded, or differs between the ranks.
    HOSTBUF_CHANGED = 37,
} hostbuf_status;

// The operation of `all_reduce`.
typedef enum hostbuf_reduce {
    // The minimum.
    HOSTBUF_MIN = 0,
    // The maximum.
    HOSTBUF_MAX = 1,
    // The wrapping sum.
    HOSTBUF_SUM = 2,
    // The bitwise and.
    HOSTBUF_AND = 3,
} hostbuf_reduce;

// The pages of a buffer.
typedef enum hostbuf_pages {
    // The largest available pages: 1 GiB from the reserved pool, 2 MiB from the pool, transparent
    // 2 MiB, ordinary.
    HOSTBUF_PAGES_AUTO = 0,
    // Ordinary pages (4 KiB on x86-64).
    HOSTBUF_PAGES_SMALL = 1,
    // Transparent huge pages of 2 MiB.
    HOSTBUF_PAGES_TRANSPARENT = 2,
    // Huge pages of 2 MiB from the reserved pool.
    HOSTBUF_PAGES_2M = 3,
    // Huge pages of 1 GiB from the reserved pool.
    HOSTBUF_PAGES_1G = 4,
} hostbuf_pages;

// The fill state of a buffer on this host.
typedef enum hostbuf_fill_state {
    HOSTBUF_EMPTY = 0,
    HOSTBUF_FILLING = 1,
    HOSTBUF_FILLED = 2,
    HOSTBUF_FROZEN = 3,
} hostbuf_fill_state;

// The proof that no process of this host can write to a frozen buffer.
typedef enum hostbuf_proof {
    // The kernel sealed the memory, which it does only while no writable mapping exists anywhere.
    HOSTBUF_SEALED = 0,
    // A process may still have a writable mapping from before; `hostbuf_message` names it.
    HOSTBUF_WEAKER = 1,
} hostbuf_proof;

// The access of a device to registered memory, a sum of these values. Reading on behalf of this
// process is always allowed.
typedef enum hostbuf_access {
    // The device reads on behalf of this process: the source of sends, and of copies to a GPU.
    HOSTBUF_READ = 0,
    // The device writes on behalf of this process.
    HOSTBUF_WRITE = 1,
    // A peer may read.
    HOSTBUF_REMOTE_READ = 2,
    // A peer may write.
    HOSTBUF_REMOTE_WRITE = 5,
    // A peer may use atomic operations.
    HOSTBUF_REMOTE_ATOMIC = 9,
} hostbuf_access;

// The type of the elements of an array in a block. A number is 256 times the type code of DLPack
// plus the number of bits. Elements have the byte order of the host.
typedef enum hostbuf_element_type {
    // Bytes without a type: for publishing, all of the block's.
    HOSTBUF_ELEMENT_NONE = 0,
    HOSTBUF_ELEMENT_INT8 = 8,
    HOSTBUF_ELEMENT_INT16 = 16,
    HOSTBUF_ELEMENT_INT32 = 32,
    HOSTBUF_ELEMENT_INT64 = 64,
    HOSTBUF_ELEMENT_UINT8 = 264,
    HOSTBUF_ELEMENT_UINT16 = 272,
    HOSTBUF_ELEMENT_UINT32 = 288,
    HOSTBUF_ELEMENT_UINT64 = 320,
    HOSTBUF_ELEMENT_FLOAT16 = 528,
    HOSTBUF_ELEMENT_FLOAT32 = 544,
    HOSTBUF_ELEMENT_FLOAT64 = 576,
    // A byte without a meaning for others.
    HOSTBUF_ELEMENT_OPAQUE = 776,
    HOSTBUF_ELEMENT_BFLOAT16 = 1040,
    HOSTBUF_ELEMENT_COMPLEX64 = 1344,
    HOSTBUF_ELEMENT_COMPLEX128 = 1408,
    // A byte, 0 or 1.
    HOSTBUF_ELEMENT_BOOL = 1544,
    HOSTBUF_ELEMENT_FLOAT8_E4M3FN = 2568,
    HOSTBUF_ELEMENT_FLOAT8_E5M2 = 3080,
} hostbuf_element_type;

// The source of a cache's reports of changed mappings.
typedef enum hostbuf_monitor_mode {
    // The mode in `HOSTBUF_CACHE_MONITOR`, or strict if the variable is not set.
    HOSTBUF_MONITOR_DEFAULT = 0,
    // The kernel reports changes.
    HOSTBUF_MONITOR_STRICT = 1,
    // The program calls `hostbuf_cache_invalidate` before it changes a mapping.
    HOSTBUF_MONITOR_EXPLICIT = 2,
    // The kernel reports changes. Without the monitor no cache is made.
    HOSTBUF_MONITOR_REQUIRED = 3,
} hostbuf_monitor_mode;

// The behaviour of a pool without a broker.
typedef enum hostbuf_pool_mode {
    // The behaviour that the variable `HOSTBUF_POOL` states; without it as
    // `HOSTBUF_POOL_OPTIONAL`.
    HOSTBUF_POOL_DEFAULT = 0,
    // Without a broker the pool is one of this process alone.
    HOSTBUF_POOL_OPTIONAL = 1,
    // Without a broker connecting fails.
    HOSTBUF_POOL_REQUIRED = 2,
    // Without a broker one is started, which ends when it is unused.
    HOSTBUF_POOL_START = 3,
    // The pool is one of this process alone.
    HOSTBUF_POOL_PRIVATE = 4,
} hostbuf_pool_mode;

// The use of a file.
typedef enum hostbuf_file_mode {
    // A file that exists is read.
    HOSTBUF_FILE_READ = 0,
    // A file that exists is read and written.
    HOSTBUF_FILE_UPDATE = 1,
    // The file is made, without the bytes that it has, and is read and written.
    HOSTBUF_FILE_CREATE = 2,
} hostbuf_file_mode;

// The allocator of the memory of a buffer while it is being filled. Its address is constant as
// long as the `hostbuf_buffer` lives. After the fill function has returned, it allocates nothing.
typedef struct hostbuf_arena hostbuf_arena;

// A block that its producer writes. No reader has it before it is published.
typedef struct hostbuf_block hostbuf_block;

// A reader's hold on a published block. The producer does not reuse the block while it exists.
typedef struct hostbuf_block_ref hostbuf_block_ref;

// A host's shared memory, mapped at the agreed address.
typedef struct hostbuf_buffer hostbuf_buffer;

// A registration cache, which registers memory once for many transfers.
typedef struct hostbuf_cache hostbuf_cache;

// A device for the registration of memory.
typedef struct hostbuf_device hostbuf_device;

// A file for transfers. Threads may share it.
typedef struct hostbuf_file hostbuf_file;

// A block on a GPU that its producer writes. No reader has it before it is published.
typedef struct hostbuf_gpu_block hostbuf_gpu_block;

// A reader's hold on a published block on a GPU. The producer does not reuse the block while it
// exists.
typedef struct hostbuf_gpu_block_ref hostbuf_gpu_block_ref;

// A producer of blocks on a GPU. Threads may share it.
typedef struct hostbuf_gpu_producer hostbuf_gpu_producer;

// A block that a program waits for without blocking a thread.
typedef struct hostbuf_pending_block hostbuf_pending_block;

// A block on a GPU that a program waits for without blocking a thread.
typedef struct hostbuf_pending_gpu_block hostbuf_pending_gpu_block;

// A connection of this process to a pool of blocks.
typedef struct hostbuf_pool hostbuf_pool;

// A producer of blocks, with memory of its own. Threads may share it.
typedef struct hostbuf_producer hostbuf_producer;

// A registration of a part of a buffer with a device.
typedef struct hostbuf_registration hostbuf_registration;

// A slice of a tensor, which keeps the buffer mapped. Threads may share it.
typedef struct hostbuf_slice hostbuf_slice;

// The places on a GPU of the tensors of a load, or of slices of them.
typedef struct hostbuf_slice_targets hostbuf_slice_targets;

// The tensors that were loaded into a buffer, which stays mapped as long as they exist. Threads
// may share them.
typedef struct hostbuf_tensors hostbuf_tensors;

// A transfer between a file and memory of the host or of a GPU.
typedef struct hostbuf_transfer hostbuf_transfer;

// A group of ranks, as a table of collective functions of the program. hostbuf_mpi.h makes one
// from an MPI communicator.
//
// The functions return 0 on success. hostbuf calls them in the thread that calls hostbuf, and all
// ranks of the group call them in the same order. They must not throw exceptions or call
// `longjmp`.
typedef struct hostbuf_collective {
    // The size of this structure: initialize it with `HOSTBUF_COLLECTIVE_INIT`.
    size_t struct_size;
    // The first argument of each function.
    void *context;
    // The rank of this process.
    size_t rank;
    // The number of ranks.
    size_t size;
    // Gathers the `bytes` bytes at `mine` of all ranks into `all`, in the order of the ranks.
    int (*all_gather)(void *context,
                      const void *mine,
                      size_t bytes,
                      void *all);
    // Sends the `bytes` bytes at `data` of rank `root` to all ranks.
    int (*broadcast)(void *context,
                     void *data,
                     size_t bytes,
                     size_t root);
    // Writes the group of the ranks with the same `color`, in the order of their ranks, to `part`.
    // The new group has a context of its own.
    int (*split)(void *context,
                 size_t color,
                 struct hostbuf_collective *part);
    // Combines `count` words of all ranks in place. If it is null, hostbuf uses `all_gather`.
    int (*all_reduce)(void *context,
                      uint64_t *words,
                      size_t count,
                      enum hostbuf_reduce how);
    // Drives the progress of messages while this rank waits. Null if that is not needed.
    void (*progress)(void *context);
    // Releases a group that `split` made. Null if that is not needed.
    void (*release)(void *context);
    // Writes the meaning of a returned code to `text`, at most `size` bytes with the NUL. Null if
    // the codes have no description.
    void (*describe)(void *context,
                     int code,
                     char *text,
                     size_t size);
} hostbuf_collective;

// A section of a new buffer: a named part whose pages may have a placement of their own. The
// sections are contiguous from the beginning of the buffer, each on whole pages.
typedef struct hostbuf_section_options {
    // The size of this structure: initialize it with `HOSTBUF_SECTION_OPTIONS_INIT` or
    // `HOSTBUF_SECTION`.
    size_t struct_size;
    // The name: at most 31 bytes of letters, digits, `_`, `-` and `.`.
    const char *name;
    // The usable size, in bytes. It is rounded up to whole pages.
    uint64_t size;
    // The NUMA nodes of the pages, as in `hostbuf_options`; null for those of the buffer.
    const char *numa;
} hostbuf_section_options;

// The options of a new buffer. All options except the size have defaults.
typedef struct hostbuf_options {
    // The size of this structure: initialize it with `HOSTBUF_OPTIONS_INIT`.
    size_t struct_size;
    // The usable size, in bytes. It is rounded up to whole pages. With 0 it is the sum of the
    // sections.
    uint64_t size;
    // The name: at most 31 bytes of letters, digits, `_`, `-` and `.`; null for "default".
    const char *name;
    // One of `hostbuf_pages`.
    int32_t pages;
    // Not 0 if each page is allocated at its first access. The available memory is not checked
    // before, and the process gets a signal if a page cannot be allocated.
    uint8_t lazy;
    // Not 0 if core files include the contents.
    uint8_t dump;
    // Bytes for later versions, which must be 0.
    uint8_t reserved[2];
    // The NUMA nodes of the pages: one node (`0`); several nodes (`0,2-3`), each of which is used
    // when the memory of those before it is used up; nodes in turn (`interleave`,
    // `interleave:0,1`, with weights `interleave:0,1/3,1`); or a copy on the node of each process,
    // made by `hostbuf_freeze` (`copies`). Null leaves each page on the node of the thread that
    // allocates it. A lazy buffer has no placement.
    const char *numa;
    // The sections, an array of `section_count`, from the beginning of the buffer on.
    const struct hostbuf_section_options *sections;
    // The number of sections, at most 250.
    size_t section_count;
} hostbuf_options;

// The properties and the state of a buffer.
typedef struct hostbuf_info {
    // The size of this structure: initialize it with `HOSTBUF_INFO_INIT`.
    size_t struct_size;
    // The address of the first byte, the same in every rank of every host.
    void *address;
    // The usable size, in bytes.
    size_t size;
    // The name, valid as long as the buffer.
    const char *name;
    // The pages of the buffer on this host.
    enum hostbuf_pages pages;
    // The number of bytes on huge pages.
    uint64_t huge_bytes;
    // The fill state on this host.
    enum hostbuf_fill_state state;
    // The number of times that filling has begun on this host.
    uint64_t generation;
    // The number of bytes from the beginning that the arena has allocated.
    uint64_t used;
    // The number of this host in the job, from 0.
    uint32_t host;
    // The number of hosts of the job; 0 if the hosts do not know each other.
    uint32_t hosts;
    // The NUMA node from whose memory this process reads the sections with the placement `copies`;
    // -1 if the buffer has no such section, or if this process has not frozen it.
    int32_t read_node;
    // 1 if `read_node` had all cores on which this process could run when it froze the buffer,
    // otherwise 0.
    int32_t read_is_local;
} hostbuf_info;

// A section of a buffer on one or several GPUs. Its text and arrays are valid as long as the
// buffer.
typedef struct hostbuf_gpu_section_info {
    // The size of this structure: initialize it with `HOSTBUF_GPU_SECTION_INFO_INIT`.
    size_t struct_size;
    // The name.
    const char *name;
    // The address of the first byte on the GPUs, a device pointer: the same in every rank of every
    // host that uses GPUs.
    uint64_t address;
    // The number of bytes: the requested size, rounded up to a multiple of 2 MiB, and at least 2
    // MiB for each entry of `gpu=`.
    size_t bytes;
    // The number of the GPU of each piece on its host, in the order of the PCI addresses.
    const uint32_t *piece_gpus;
    // The number of bytes of each piece. The pieces are contiguous from `address` on.
    const uint64_t *piece_bytes;
    // The number of pieces in the arrays, at least 1.
    uint32_t piece_count;
    // 1 if the section has been frozen on this host, otherwise 0.
    int32_t frozen;
} hostbuf_gpu_section_info;

// A section of a buffer. Its texts and arrays are valid as long as the buffer.
typedef struct hostbuf_section_info {
    // The size of this structure: initialize it with `HOSTBUF_SECTION_INFO_INIT`.
    size_t struct_size;
    // The name, empty for the part of a buffer that is in no section.
    const char *name;
    // The address of the first byte, the same in every rank of every host.
    void *address;
    // The offset from the beginning of the buffer, in bytes.
    size_t offset;
    // The usable size, in bytes: the requested one, rounded up to whole pages.
    size_t size;
    // The requested placement, or null if there is none.
    const char *numa;
    // The number of NUMA nodes in the arrays below; 0 without a placement.
    size_t node_count;
    // The nodes.
    const uint32_t *nodes;
    // The number of bytes that the placement requests on each node.
    const uint64_t *requested;
    // The number of bytes that were verified to be on each node.
    const uint64_t *obtained;
} hostbuf_section_info;

// A function that fills a buffer. It returns a pointer into the buffer, the root object that all
// ranks get, or null if it failed. It must not throw exceptions or call `longjmp`.
typedef void *(*hostbuf_fill_function)(struct hostbuf_arena *arena,
                                       void *argument);

// The key of registered memory, for requests to the device.
typedef struct hostbuf_key {
    // The size of this structure: initialize it with `HOSTBUF_KEY_INIT`.
    size_t struct_size;
    // The GPU's address of the first byte of the registered range (CUDA); otherwise 0.
    uint64_t device_address;
    // The `lkey`, for requests of this process (RDMA); otherwise 0.
    uint32_t local_key;
    // The `rkey`, for requests of peers (RDMA); otherwise 0.
    uint32_t remote_key;
} hostbuf_key;

// A lease, which keeps a registration alive until `hostbuf_cache_put`. Another thread may put it
// back. Do not copy it: it must be put back once only.
typedef struct hostbuf_lease {
    // The size of this structure: initialize it with `HOSTBUF_LEASE_INIT`.
    size_t struct_size;
    // Private to hostbuf; all 0 if there is no registration.
    uint64_t held[6];
    // The GPU's address of the first byte of the requested range (CUDA); otherwise 0.
    uint64_t device_address;
    // The `lkey`, for requests of this process (RDMA); otherwise 0.
    uint32_t local_key;
    // The `rkey`, for requests of peers (RDMA); otherwise 0.
    uint32_t remote_key;
} hostbuf_lease;

// The statistics of a cache.
typedef struct hostbuf_cache_stats {
    // The size of this structure: initialize it with `HOSTBUF_CACHE_STATS_INIT`.
    size_t struct_size;
    // Leases of existing registrations.
    uint64_t hits;
    // Leases that waited for another thread's registration.
    uint64_t coalesced;
    // Leases that needed a new registration.
    uint64_t misses;
    // Registrations that ended to make room.
    uint64_t evictions;
    // Registrations that `invalidate` or `flush` ended.
    uint64_t invalidated;
    // Registrations that ended because the monitor reported a change of their memory.
    uint64_t changed;
    // Registrations for their leases only, of memory whose changes are not reported.
    uint64_t not_kept;
    // Registrations that the device refused.
    uint64_t failures;
    // Deregistrations that failed.
    uint64_t leaked;
    // Requests that found the budget exhausted.
    uint64_t over_budget;
    // The current number of registrations.
    size_t registrations;
    // The current number of registered bytes.
    size_t bytes;
    // The maximum number of simultaneous registrations.
    size_t peak_registrations;
    // The maximum number of registered bytes.
    size_t peak_bytes;
} hostbuf_cache_stats;

// The description of the content that a producer publishes. Without an element type the content
// is bytes.
typedef struct hostbuf_content {
    // The size of this structure: initialize it with `HOSTBUF_CONTENT_INIT`.
    size_t struct_size;
    // One of `hostbuf_element_type`.
    uint32_t element;
    // The number of dimensions, at most 8.
    uint32_t ndim;
    // The extents of the dimensions in elements; may be null if there is no dimension.
    const uint64_t *shape;
    // The strides of the dimensions in bytes. Null means an array in C order without gaps.
    const int64_t *strides;
    // The length of the content in bytes. 0 means the end of the array, or of the block if there
    // is no element type. The content may continue behind the array.
    uint64_t length;
    // The number that the producer gives the frame.
    uint64_t frame;
    // The time of capture in nanoseconds, by a clock that producer and consumers agree on. 0 means
    // none.
    uint64_t captured_ns;
    // Bytes that are passed to the readers, or null.
    const void *user_data;
    // The number of these bytes, at most 48.
    size_t user_data_size;
} hostbuf_content;

// The name of a published block, which a producer sends to its consumers by any transport. Its
// bytes can be copied.
typedef struct hostbuf_token {
    // The bytes, in a format that is the same for all languages.
    uint8_t bytes[48];
} hostbuf_token;

// The description of the content of a published block. All numbers were checked: the array lies
// within the content.
typedef struct hostbuf_block_header {
    // The size of this structure: initialize it with `HOSTBUF_BLOCK_HEADER_INIT`.
    size_t struct_size;
    // One of `hostbuf_element_type`.
    uint32_t element;
    // The number of dimensions.
    uint32_t ndim;
    // The extents of the dimensions in elements; 0 behind the last dimension.
    uint64_t shape[8];
    // The strides of the dimensions in bytes; 0 behind the last dimension.
    int64_t strides[8];
    // The length of the content in bytes.
    uint64_t length;
    // The number of times that the block was taken before.
    uint64_t generation;
    // The number of blocks that the producer published before this one. A gap is the number of
    // blocks that the reader has missed.
    uint64_t sequence;
    // The time of publication in nanoseconds, by `CLOCK_MONOTONIC`.
    uint64_t published_ns;
    // The time of capture in nanoseconds, or 0 if there is none.
    uint64_t captured_ns;
    // The number that the producer gave the frame.
    uint64_t frame;
    // The bytes that the producer added.
    uint8_t user_data[48];
} hostbuf_block_header;

// A function of the program that returns 0 while an operation of a device is in progress, and
// another number once it has completed or failed. It does not wait. A thread of hostbuf calls it.
typedef int (*hostbuf_completion_function)(void *argument);

// A function of the program that is called once a request for a block has a result. It must return
// soon: other tasks wait for the thread that calls it. It may get the block, and close the pending
// block.
typedef void (*hostbuf_ready_function)(void *argument);

// The options of a connection to a pool. All have defaults.
typedef struct hostbuf_pool_options {
    // The size of this structure: initialize it with `HOSTBUF_POOL_OPTIONS_INIT`.
    size_t struct_size;
    // The name of this client, for people and for producers that wait for it.
    const char *name;
    // One of `hostbuf_pool_mode`.
    uint32_t mode;
    // 0.
    uint32_t reserved;
    // The abstract name of the broker's socket, without the leading zero byte. Null means this
    // user's.
    const char *socket;
    // The path of the broker's socket, instead of the abstract name, or null.
    const char *path;
    // The time in nanoseconds for which a request waits for the broker. 0 means 10 seconds.
    uint64_t timeout_ns;
} hostbuf_pool_options;

// The options of a producer. All except the length of a block have defaults.
typedef struct hostbuf_producer_options {
    // The size of this structure: initialize it with `HOSTBUF_PRODUCER_OPTIONS_INIT`.
    size_t struct_size;
    // The length of a block in bytes; it is rounded up to whole pages of 4 KiB.
    uint64_t block_bytes;
    // The number of blocks. 0 means 8.
    uint32_t blocks;
    // The number of processes that may read at the same time. 0 means 8.
    uint32_t readers;
    // The number of published blocks that late readers may still acquire. 0 means half of the
    // blocks.
    uint32_t retain;
    // The number of blocks that one reader may hold. 0 means half of the blocks.
    uint32_t quota;
    // The names of the readers that the producer waits for: no block is reused before all of them
    // have read it. Null if there are none.
    const char *const *wait_for;
    // The number of these names.
    size_t wait_for_count;
    // The name of the stream, for people, or null.
    const char *stream;
} hostbuf_producer_options;

// The options with which a file is opened. All have defaults.
typedef struct hostbuf_file_options {
    // The size of this structure: initialize it with `HOSTBUF_FILE_OPTIONS_INIT`.
    size_t struct_size;
    // One of `hostbuf_file_mode`.
    uint32_t mode;
    // 0.
    uint32_t reserved;
    // The name of the backend: `"auto"`, `"posix"` through the page cache, `"direct"` bypassing
    // it, `"uring"`, or `"mmap"`. Null means `"auto"`.
    const char *backend;
} hostbuf_file_options;

// The options of a load. All have defaults, and all ranks pass the same.
typedef struct hostbuf_load_options {
    // The size of this structure: initialize it with `HOSTBUF_LOAD_OPTIONS_INIT`.
    size_t struct_size;
    // The name of the backend, as in `hostbuf_file_options`. Null means `"auto"`.
    const char *backend;
    // The number of bytes that a rank claims at a time, a power of two of at least 4096; 0 for 16
    // MiB.
    uint64_t window_bytes;
    // The largest number of bytes of one read, a multiple of 4096; 0 for 4 MiB.
    uint64_t piece_bytes;
    // The number of threads of each rank that read, at most 1024; 0 for as many as the rank has
    // cores, if the ranks of its host share them equally, and at most 16.
    size_t workers;
} hostbuf_load_options;

// A function that chooses what a load copies to the GPU of its rank. The tensors are described,
// but have no bytes yet: `hostbuf_tensor.address` is null. The function makes slices of them,
// calls `hostbuf_slice_targets_add` for each, and frees them. It returns 0, or another number if
// it has failed. It runs once, in a thread of the library, in which the GPU is current. Both
// handles are valid until it returns. It must not throw exceptions or call `longjmp`.
typedef int (*hostbuf_targets_function)(const struct hostbuf_tensors *tensors,
                                        struct hostbuf_slice_targets *targets,
                                        void *argument);

// The shape of a slice. Its array is valid as long as the slice.
typedef struct hostbuf_slice_info {
    // The size of this structure: initialize it with `HOSTBUF_SLICE_INFO_INIT`.
    size_t struct_size;
    // The number of bytes, packed without gaps.
    uint64_t bytes;
    // The number of dimensions.
    size_t ndim;
    // The number of elements in each dimension.
    const uint64_t *shape;
    // The number of parts; 0 if the slice is empty.
    size_t part_count;
} hostbuf_slice_info;

// A part of a slice: rows of bytes at equal distances, the operands of `cuMemcpy2D`. A slice has
// one part, and a fused slice has up to one for each fused tensor.
typedef struct hostbuf_slice_part {
    // The size of this structure: initialize it with `HOSTBUF_SLICE_PART_INIT`.
    size_t struct_size;
    // The address of the first row in the buffer.
    const void *address;
    // The distance in bytes from a row to the next in the buffer.
    uint64_t pitch;
    // The length of a row in bytes.
    uint64_t width;
    // The number of rows. One row is contiguous in the buffer, so it needs no copy.
    uint64_t height;
    // The offset in bytes of the first row in the packed slice.
    uint64_t target_offset;
    // The distance in bytes from a row to the next in the packed slice.
    uint64_t target_pitch;
} hostbuf_slice_part;

// A tensor in a buffer. Its texts and arrays are valid as long as the tensors.
typedef struct hostbuf_tensor {
    // The size of this structure: initialize it with `HOSTBUF_TENSOR_INIT`.
    size_t struct_size;
    // The name.
    const char *name;
    // The address of the first byte, the same in every rank of every host. Null in a
    // `hostbuf_targets_function`, before the tensor is loaded.
    const void *address;
    // The number of bytes.
    uint64_t bytes;
    // The name of the element type, as safetensors has it: `"F32"`, `"BF16"`, `"F8_E4M3"`; also
    // `"C128"`.
    const char *dtype;
    // 256 times the type code of DLPack plus the number of bits, as in `hostbuf_element_type`,
    // which does not name the types with less than 8 bits and some with 8.
    uint32_t element;
    // Not 0 if the first dimension is contiguous (Fortran order); else the last one is.
    uint8_t is_fortran;
    // Not 0 if the most significant byte of an element is its first.
    uint8_t is_big_endian;
    // Bytes for later versions.
    uint8_t reserved[2];
    // The number of dimensions, 0 for a scalar.
    size_t ndim;
    // The number of elements in each dimension.
    const uint64_t *shape;
} hostbuf_tensor;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the message of the calling thread's last call that did not return `HOSTBUF_OK`: one line
// with the request, the available resources and the remedy. `hostbuf_device_probe`,
// `hostbuf_freeze` and `hostbuf_gpu_section_freeze` also set it when they return `HOSTBUF_OK`. It
// is empty before the first such call, valid until the thread's next one, and never null.
const char *hostbuf_message(void);

// Returns the name of a status, such as `"HOSTBUF_OK"`, or `"?"` for an invalid number. The result
// is never null.
const char *hostbuf_status_name(int32_t status);

// Tests a group: calls each function and compares its results with the expected ones. Use it to
// test a table of your own. Collective: all ranks run all tests, and each rank reports the first
// error that it found.
enum hostbuf_status hostbuf_try_collective(const struct hostbuf_collective *group);

// Sets `leads` to whether this process is the leader of its host, the lowest rank of `group`
// there. Collective.
enum hostbuf_status hostbuf_leads(const struct hostbuf_collective *group,
                                  bool *leads);

// Allocates `size` zero bytes of the buffer at a multiple of `alignment`, a power of two. Returns
// null if there is no room or filling has ended; `hostbuf_message` gives the reason. The threads
// of the process that fills the buffer may call it concurrently.
void *hostbuf_arena_take(const struct hostbuf_arena *arena,
                         size_t size,
                         size_t alignment);

// Sets the message for a failure of the fill function. If the function then returns null, the
// calls of all ranks return this message. A failure of `hostbuf_arena_take` needs no message.
void hostbuf_arena_fail(const struct hostbuf_arena *arena,
                        const char *why);

// Returns the number of free bytes of the arena, without the space that the root needs. Returns 0
// for a null arena and after filling has ended.
uint64_t hostbuf_arena_left(const struct hostbuf_arena *arena);

// Returns whether `bytes` bytes from `pointer` lie in the buffer that is being filled.
bool hostbuf_arena_contains(const struct hostbuf_arena *arena,
                            const void *pointer,
                            size_t bytes);

// Returns whether a launcher has started this process, so that there is a buffer to attach to. The
// result is the same in all ranks of a job. Use it to decide between `hostbuf_attach` and
// `hostbuf_allocate`, since `hostbuf_attach` may fail in one rank only.
bool hostbuf_launched(void);

// Attaches to the buffer `name` that the launcher mapped in this process before `main`, or to the
// first buffer if `name` is null.
enum hostbuf_status hostbuf_attach(const char *name,
                                   struct hostbuf_buffer **to);

// Allocates a buffer without a launcher, at one address on all hosts of `group`. A null `group` is
// this process alone. Collective.
enum hostbuf_status hostbuf_allocate(const struct hostbuf_collective *group,
                                     const struct hostbuf_options *options,
                                     struct hostbuf_buffer **to);

// Releases a buffer. Its memory stays mapped until the registrations of its regions have ended. A
// null buffer is ignored.
void hostbuf_release(struct hostbuf_buffer *buffer);

// Returns the address of the first byte, which is the same in every rank of every host. Returns
// null for a null buffer.
void *hostbuf_data(const struct hostbuf_buffer *buffer);

// Returns the usable size in bytes, or 0 for a null buffer.
size_t hostbuf_size(const struct hostbuf_buffer *buffer);

// Writes the properties and the state of a buffer to `to`.
enum hostbuf_status hostbuf_stat(const struct hostbuf_buffer *buffer,
                                 struct hostbuf_info *to);

// Sends the filled buffer of the host of rank `root` to all other hosts of `group`, where it must
// be empty. It sends the bytes that the arena has allocated, and checks their checksum. Pointers
// in the buffer stay valid, since its address is the same on all hosts. Collective.
enum hostbuf_status hostbuf_replicate(const struct hostbuf_buffer *buffer,
                                      const struct hostbuf_collective *group,
                                      size_t root);

// Makes a filled buffer permanently read-only in all ranks of `group`. A later write to it faults.
// Collective over all ranks that have mapped the buffer. `proof` may be null. For
// `HOSTBUF_WEAKER`, `hostbuf_message` returns the reason.
enum hostbuf_status hostbuf_freeze(const struct hostbuf_buffer *buffer,
                                   const struct hostbuf_collective *group,
                                   enum hostbuf_proof *proof);

// Writes the GPU section `name` of a buffer to `to`. All GPUs that the process sees have
// access to it; the CPU has none. Its contents are undefined at first.
//
// `HOSTBUF_INVALID`: the buffer has no such section. `HOSTBUF_UNSUPPORTED`: this process has not
// mapped it before `main`.
enum hostbuf_status hostbuf_gpu_section(const struct hostbuf_buffer *buffer,
                                        const char *name,
                                        struct hostbuf_gpu_section_info *to);

// Makes the GPU section `name` of a buffer permanently read-only, for all GPUs of all ranks of
// `group`. A kernel that writes to it afterwards ends with `cudaErrorIllegalAddress`, which breaks
// the context of its process. Finish all work that writes to it first. Collective over all ranks
// that use GPUs. `proof` may be null. It is always `HOSTBUF_WEAKER`, since GPU memory
// cannot be sealed; `hostbuf_message` returns the reason.
//
// `HOSTBUF_UNSUPPORTED`: a driver has refused it, or a rank has not mapped the section. A
// section that was writable stays writable.
enum hostbuf_status hostbuf_gpu_section_freeze(const struct hostbuf_buffer *buffer,
                                               const char *name,
                                               const struct hostbuf_collective *group,
                                               enum hostbuf_proof *proof);

// Returns the number of sections of a buffer, or 0 for a null buffer. If a buffer has sections or
// a placement, the rest of its memory, if any, is a last section with an empty name.
size_t hostbuf_section_count(const struct hostbuf_buffer *buffer);

// Writes the section number `index` of a buffer to `to`. The sections are numbered from 0, in the
// order of their addresses.
enum hostbuf_status hostbuf_section_at(const struct hostbuf_buffer *buffer,
                                       size_t index,
                                       struct hostbuf_section_info *to);

// Writes the section `name` of a buffer to `to`.
enum hostbuf_status hostbuf_section(const struct hostbuf_buffer *buffer,
                                    const char *name,
                                    struct hostbuf_section_info *to);

// Fills the buffer by `fill(arena, argument)` in the first rank of this host that calls; the
// other ranks wait. All ranks get the returned object in `root`, which may be null. If the process
// that fills dies, a waiting rank calls the function with a zeroed arena. So the function may run
// in several processes one after another, but never in two at the same time.
enum hostbuf_status hostbuf_initialize(const struct hostbuf_buffer *buffer,
                                       hostbuf_fill_function fill,
                                       void *argument,
                                       void **root);

// Fills the buffer in rank 0 of `group` and sends it to the other hosts, so that the job builds it
// once. Collective. Returns `HOSTBUF_FILL` if the buffer is filled already.
enum hostbuf_status hostbuf_initialize_job(const struct hostbuf_buffer *buffer,
                                           const struct hostbuf_collective *group,
                                           hostbuf_fill_function fill,
                                           void *argument,
                                           void **root);

// Writes the root object of the buffer to `root`. Returns `HOSTBUF_NOTHING` while the buffer is
// not filled.
enum hostbuf_status hostbuf_root(const struct hostbuf_buffer *buffer,
                                 void **root);

// Checks whether this process can use a device, without opening it. Returns `HOSTBUF_OK`, and
// `hostbuf_message` describes the device, or `HOSTBUF_UNSUPPORTED`, and `hostbuf_message` gives
// the reason. `device` is a name as for `hostbuf_device_open`.
enum hostbuf_status hostbuf_device_probe(const char *device);

// Opens a device: `mlock` (page-locking), `cuda` or `cuda:1` (a GPU), `rdma` or `rdma:mlx5_0` (the
// first RDMA device, or the one with that name).
enum hostbuf_status hostbuf_device_open(const char *device,
                                        struct hostbuf_device **to);

// Closes a device. It stays open until its registrations have ended. A null device is ignored.
void hostbuf_device_close(struct hostbuf_device *device);

// Copies the device's name, for messages, to `name` with a NUL at the end. A name that does not
// fit into `size` bytes is truncated.
enum hostbuf_status hostbuf_device_name(const struct hostbuf_device *device,
                                        char *name,
                                        size_t size);

// Registers `length` bytes of a buffer from `offset` with a device, or all bytes from `offset` if
// `length` is 0.
enum hostbuf_status hostbuf_register(const struct hostbuf_buffer *buffer,
                                     const struct hostbuf_device *device,
                                     size_t offset,
                                     size_t length,
                                     int access,
                                     struct hostbuf_registration **to);

// Writes the key of a registration to `to`.
enum hostbuf_status hostbuf_registration_key(const struct hostbuf_registration *registration,
                                             struct hostbuf_key *to);

// Ends a registration and releases `registration` in any case. If the device refuses, the pages
// may stay pinned until the process exits.
enum hostbuf_status hostbuf_deregister(struct hostbuf_registration *registration);

// Makes a cache with hard limits: `registrations` at a time, and `bytes` registered bytes. If a
// limit is 0, the value of `HOSTBUF_CACHE_REGISTRATIONS` or `HOSTBUF_CACHE_BYTES` applies, or its
// default. `monitor` is one of `hostbuf_monitor_mode`.
enum hostbuf_status hostbuf_cache_open(const struct hostbuf_device *device,
                                       size_t registrations,
                                       size_t bytes,
                                       int monitor,
                                       struct hostbuf_cache **to);

// Closes a cache and ends its registrations. Put all its leases back before. A null cache is
// ignored.
void hostbuf_cache_close(struct hostbuf_cache *cache);

// Writes a lease of a registration of `length` bytes from `start` to `lease`. It registers the
// memory if the cache has no such registration. Put the lease back with `hostbuf_cache_put` before
// the cache is closed. This function does not put a lease back that `lease` already contains.
enum hostbuf_status hostbuf_cache_get(const struct hostbuf_cache *cache,
                                      const void *start,
                                      size_t length,
                                      int access,
                                      struct hostbuf_lease *lease);

// Writes a lease of an existing registration to `lease`, as `hostbuf_cache_get`, but neither
// registers memory nor waits. Returns `HOSTBUF_NOTHING` if there is no such registration.
enum hostbuf_status hostbuf_cache_try_get(const struct hostbuf_cache *cache,
                                          const void *start,
                                          size_t length,
                                          int access,
                                          struct hostbuf_lease *lease);

// Puts a lease back. An empty lease is ignored.
void hostbuf_cache_put(struct hostbuf_lease *lease);

// Registers `length` bytes from `start` and exempts the registration from eviction.
enum hostbuf_status hostbuf_cache_keep(const struct hostbuf_cache *cache,
                                       const void *start,
                                       size_t length,
                                       int access);

// Ends the registrations of a range whose mapping has changed or will change. A later lease never
// uses a registration from before.
enum hostbuf_status hostbuf_cache_invalidate(const struct hostbuf_cache *cache,
                                             const void *start,
                                             size_t length);

// Ends all registrations of a cache.
enum hostbuf_status hostbuf_cache_flush(const struct hostbuf_cache *cache);

// Writes the statistics of a cache to `to`.
enum hostbuf_status hostbuf_cache_stat(const struct hostbuf_cache *cache,
                                       struct hostbuf_cache_stats *to);

// Returns the address of the block's first byte, a multiple of 4096. The bytes are those of an
// earlier content, or zeros. Returns null if the block is null, or in a forked child.
void *hostbuf_block_data(const struct hostbuf_block *block);

// Returns the number of bytes of the block, or 0 if it is null.
size_t hostbuf_block_size(const struct hostbuf_block *block);

// Publishes a block, writes its token to `token`, and sets `*block` to null: the producer must not
// write to it any more. Null `content` is the whole block as bytes. After an error the block is
// still the producer's.
enum hostbuf_status hostbuf_block_publish(struct hostbuf_block **block,
                                          const struct hostbuf_content *content,
                                          struct hostbuf_token *token);

// Frees a block that is not published, and sets `*block` to null. A null block is ignored.
void hostbuf_block_free(struct hostbuf_block **block);

// Returns the address of the first byte of the content, a multiple of 4096. Returns null if
// `block` is null, or in a forked child.
const void *hostbuf_block_ref_data(const struct hostbuf_block_ref *block);

// Returns the number of bytes of the content, or 0 if `block` is null.
size_t hostbuf_block_ref_size(const struct hostbuf_block_ref *block);

// Writes the description of the content to `header`.
enum hostbuf_status hostbuf_block_ref_header(const struct hostbuf_block_ref *block,
                                             struct hostbuf_block_header *header);

// Adds a hold on the same block, for another thread or another part of the program.
enum hostbuf_status hostbuf_block_ref_clone(const struct hostbuf_block_ref *block,
                                            struct hostbuf_block_ref **to);

// Releases a hold, and sets `*block` to null. A null block is ignored.
void hostbuf_block_ref_release(struct hostbuf_block_ref **block);

// Writes the address at which a device reads the content while the block is held. `device` is
// `"cuda"`, `"cuda:1"` or another name as for `hostbuf_device_open`; null means `"cuda"`. The
// first call for a producer registers all of its blocks; no driver is loaded before.
//
// `HOSTBUF_UNSUPPORTED`: the device cannot read the block, for the reason in the message, and the
// program copies the content.
enum hostbuf_status hostbuf_block_ref_dma(const struct hostbuf_block_ref *block,
                                          const char *device,
                                          uint64_t *address);

// Releases a hold when an operation of a device has completed, such as a copy of the content, and
// sets `*block` to null. It does not wait: a thread calls `is_complete(argument)` about every
// millisecond until the result is not 0, for example `cuEventQuery(event) !=
// CUDA_ERROR_NOT_READY`.
enum hostbuf_status hostbuf_block_ref_release_after(struct hostbuf_block_ref **block,
                                                    hostbuf_completion_function is_complete,
                                                    void *argument);

// Takes a free block without waiting for it. Once `hostbuf_pending_block_get` returns something
// other than `HOSTBUF_NOTHING`, `ready(argument)` is called once: by a thread of hostbuf, by
// `hostbuf_producer_close`, or before this function returns. Requests get their blocks in the
// order in which they were made; threads in `hostbuf_producer_take` and
// `hostbuf_producer_try_take` are not in that queue.
enum hostbuf_status hostbuf_producer_take_async(const struct hostbuf_producer *producer,
                                                hostbuf_ready_function ready,
                                                void *argument,
                                                struct hostbuf_pending_block **to);

// Sets `to` to the block, or returns `HOSTBUF_NOTHING` if it is not there yet, or `HOSTBUF_CLOSED`
// if its producer was closed before. A second call after the block was returned is invalid.
enum hostbuf_status hostbuf_pending_block_get(const struct hostbuf_pending_block *pending,
                                              struct hostbuf_block **to);

// Ends a pending block. The function is not called afterwards; a call in another thread has
// returned. A block that nobody has got is free. A null pointer is ignored.
void hostbuf_pending_block_close(struct hostbuf_pending_block *pending);

// Connects to a pool of this user. Null `options` are the defaults.
enum hostbuf_status hostbuf_pool_connect(const struct hostbuf_pool_options *options,
                                         struct hostbuf_pool **to);

// Closes a connection. It ends with its last producer and its last block. A null pool is ignored.
void hostbuf_pool_close(struct hostbuf_pool *pool);

// Returns true if a broker makes the memory of the pool and its clients share it. The tokens of
// another pool are valid in this process only.
bool hostbuf_pool_is_shared(const struct hostbuf_pool *pool);

// Writes the state of the pool as a JSON text to `to`: clients, producers, and who holds which
// blocks. Free it with `hostbuf_text_free`.
enum hostbuf_status hostbuf_pool_status_text(const struct hostbuf_pool *pool,
                                             char **to);

// Frees a text of `hostbuf_pool_status_text`. A null text is ignored.
void hostbuf_text_free(char *text);

// Acquires the block of a token, for reading. Its producer does not reuse the block before
// `hostbuf_block_ref_release`. After the first token of a producer this makes no system call.
//
// `HOSTBUF_GONE`: the producer has published too many others meanwhile, or has ended.
// `HOSTBUF_QUOTA`: this process holds as many blocks as it may.
enum hostbuf_status hostbuf_pool_acquire(const struct hostbuf_pool *pool,
                                         const struct hostbuf_token *token,
                                         struct hostbuf_block_ref **to);

// States that this process does not need the block of a token, for a producer that waits for this
// reader.
enum hostbuf_status hostbuf_pool_skip(const struct hostbuf_pool *pool,
                                      const struct hostbuf_token *token);

// Makes a producer with its blocks. `HOSTBUF_NO_SPACE`: they would exceed a limit of the broker.
enum hostbuf_status hostbuf_pool_producer(const struct hostbuf_pool *pool,
                                          const struct hostbuf_producer_options *options,
                                          struct hostbuf_producer **to);

// Closes a producer. Readers may read what it has published for some seconds, and until the last
// of them has released it. Its unpublished blocks stay valid. Its pending blocks end with
// `HOSTBUF_CLOSED`: this calls their functions. A null producer is ignored.
void hostbuf_producer_close(struct hostbuf_producer *producer);

// Returns the length of a block in bytes, or 0 if the producer is null.
uint64_t hostbuf_producer_block_bytes(const struct hostbuf_producer *producer);

// Returns the number of blocks, or 0 if the producer is null.
uint32_t hostbuf_producer_blocks(const struct hostbuf_producer *producer);

// Takes a free block, for which it waits.
enum hostbuf_status hostbuf_producer_take(const struct hostbuf_producer *producer,
                                          struct hostbuf_block **to);

// Takes a free block without waiting. Returns `HOSTBUF_NOTHING` if there is none.
enum hostbuf_status hostbuf_producer_try_take(const struct hostbuf_producer *producer,
                                              struct hostbuf_block **to);

// Takes a free block, for which it waits at most `timeout_ns` nanoseconds. Returns
// `HOSTBUF_TIMEOUT` if none became free; the message states who holds the blocks.
enum hostbuf_status hostbuf_producer_take_timeout(const struct hostbuf_producer *producer,
                                                  uint64_t timeout_ns,
                                                  struct hostbuf_block **to);

// Returns the GPU's address of the block's first byte, a multiple of 4096, for this process.
// Returns 0 if the block is null, or in a forked child.
uint64_t hostbuf_gpu_block_address(const struct hostbuf_gpu_block *block);

// Returns the number of bytes of the block, or 0 if it is null.
size_t hostbuf_gpu_block_size(const struct hostbuf_gpu_block *block);

// Publishes a block as `hostbuf_block_publish`. All work that writes it has ended.
enum hostbuf_status hostbuf_gpu_block_publish(struct hostbuf_gpu_block **block,
                                              const struct hostbuf_content *content,
                                              struct hostbuf_token *token);

// Publishes a block that `stream` writes, a `CUstream` or `cudaStream_t` of the block's GPU; null
// is the default stream. It does not wait: readers get the block at once, and their streams wait
// for the work that `stream` has now (`hostbuf_gpu_block_ref_wait_ready`). The rest is as for
// `hostbuf_block_publish`.
//
// `HOSTBUF_UNSUPPORTED`: the driver has refused the stream. The block is still the producer's.
enum hostbuf_status hostbuf_gpu_block_publish_after(struct hostbuf_gpu_block **block,
                                                    const struct hostbuf_content *content,
                                                    void *stream,
                                                    struct hostbuf_token *token);

// Frees a block that is not published, and sets `*block` to null. All work that writes it has
// ended. A null block is ignored.
void hostbuf_gpu_block_free(struct hostbuf_gpu_block **block);

// Acquires the block of a token that lies on a GPU, for reading. Its producer does not reuse the
// block before `hostbuf_gpu_block_ref_release`. The first token of a producer finds the GPU by its
// UUID and maps the memory of all blocks in the primary context of the GPU; no driver is loaded
// before.
//
// `HOSTBUF_GONE` and `HOSTBUF_QUOTA` are as for `hostbuf_pool_acquire`. `HOSTBUF_UNSUPPORTED`:
// there is no driver, this process does not see the GPU, or the driver has refused the memory.
// `HOSTBUF_INVALID`: the block lies on the host, and `hostbuf_pool_acquire` acquires it.
enum hostbuf_status hostbuf_pool_acquire_gpu(const struct hostbuf_pool *pool,
                                             const struct hostbuf_token *token,
                                             struct hostbuf_gpu_block_ref **to);

// Returns the GPU's address of the first byte of the content, a multiple of 4096, for this
// process. Returns 0 if `block` is null, or in a forked child.
uint64_t hostbuf_gpu_block_ref_address(const struct hostbuf_gpu_block_ref *block);

// Returns the number of bytes of the content, or 0 if `block` is null.
size_t hostbuf_gpu_block_ref_size(const struct hostbuf_gpu_block_ref *block);

// Writes the description of the content to `header`.
enum hostbuf_status hostbuf_gpu_block_ref_header(const struct hostbuf_gpu_block_ref *block,
                                                 struct hostbuf_block_header *header);

// Makes all later work on `stream` wait until the GPU has written the content. `stream` is a
// `CUstream` or `cudaStream_t` of the block's GPU; null is the default stream. The call itself
// does not wait.
//
// `HOSTBUF_GONE`: the producer has ended before the content was complete, and the stream waits for
// nothing. `HOSTBUF_UNSUPPORTED`: the driver has refused the stream or the producer's event.
enum hostbuf_status hostbuf_gpu_block_ref_wait_ready(const struct hostbuf_gpu_block_ref *block,
                                                     void *stream);

// Writes to `is_ready` whether the GPU has written the content. It does not wait. The errors are
// those of `hostbuf_gpu_block_ref_wait_ready`.
enum hostbuf_status hostbuf_gpu_block_ref_is_ready(const struct hostbuf_gpu_block_ref *block,
                                                   bool *is_ready);

// Adds a hold on the same block, for another thread or another part of the program.
enum hostbuf_status hostbuf_gpu_block_ref_clone(const struct hostbuf_gpu_block_ref *block,
                                                struct hostbuf_gpu_block_ref **to);

// Releases a hold when the GPU has completed all work that `stream` has now, such as a kernel that
// reads the content, and sets `*block` to null. It does not wait. The stream is as for
// `hostbuf_gpu_block_ref_wait_ready`. After an error the block is still held.
enum hostbuf_status hostbuf_gpu_block_ref_release_after(struct hostbuf_gpu_block_ref **block,
                                                        void *stream);

// Releases a hold at once, and sets `*block` to null. A null block is ignored.
void hostbuf_gpu_block_ref_release(struct hostbuf_gpu_block_ref **block);

// Makes a producer with its blocks on the GPU that has the number `gpu` in this process. The first
// call loads the driver, and uses the primary context of the GPU.
//
// `HOSTBUF_NO_SPACE`: the blocks would exceed a limit of the broker for GPUs.
// `HOSTBUF_UNSUPPORTED`: there is no driver or no such GPU, or the driver has refused the memory.
enum hostbuf_status hostbuf_pool_gpu_producer(const struct hostbuf_pool *pool,
                                              const struct hostbuf_producer_options *options,
                                              uint32_t gpu,
                                              struct hostbuf_gpu_producer **to);

// Closes a producer. Once its blocks are published or freed too, it waits for the work that writes
// published blocks. Readers may read them for some seconds, and until the last of them has
// released them. Its pending blocks end with `HOSTBUF_CLOSED`: this calls their functions. A null
// producer is ignored.
void hostbuf_gpu_producer_close(struct hostbuf_gpu_producer *producer);

// Returns the length of a block in bytes, or 0 if the producer is null.
uint64_t hostbuf_gpu_producer_block_bytes(const struct hostbuf_gpu_producer *producer);

// Returns the number of blocks, or 0 if the producer is null.
uint32_t hostbuf_gpu_producer_blocks(const struct hostbuf_gpu_producer *producer);

// Takes a free block, for which it waits.
enum hostbuf_status hostbuf_gpu_producer_take(const struct hostbuf_gpu_producer *producer,
                                              struct hostbuf_gpu_block **to);

// Takes a free block without waiting. Returns `HOSTBUF_NOTHING` if there is none.
enum hostbuf_status hostbuf_gpu_producer_try_take(const struct hostbuf_gpu_producer *producer,
                                                  struct hostbuf_gpu_block **to);

// Takes a free block, for which it waits at most `timeout_ns` nanoseconds. Returns
// `HOSTBUF_TIMEOUT` if none became free; the message states who holds the blocks.
enum hostbuf_status hostbuf_gpu_producer_take_timeout(const struct hostbuf_gpu_producer *producer,
                                                      uint64_t timeout_ns,
                                                      struct hostbuf_gpu_block **to);

// Takes a free block without waiting for it, as `hostbuf_producer_take_async`:
// `hostbuf_pending_gpu_block_get` returns the block.
enum hostbuf_status hostbuf_gpu_producer_take_async(const struct hostbuf_gpu_producer *producer,
                                                    hostbuf_ready_function ready,
                                                    void *argument,
                                                    struct hostbuf_pending_gpu_block **to);

// Sets `to` to the block, or returns `HOSTBUF_NOTHING` if it is not there yet, or `HOSTBUF_CLOSED`
// if its producer was closed before. A second call after the block was returned is invalid.
enum hostbuf_status hostbuf_pending_gpu_block_get(const struct hostbuf_pending_gpu_block *pending,
                                                  struct hostbuf_gpu_block **to);

// Ends a pending block as `hostbuf_pending_block_close`.
void hostbuf_pending_gpu_block_close(struct hostbuf_pending_gpu_block *pending);

// Opens a file for transfers. Null `options` are the defaults.
//
// `HOSTBUF_OS`: the file cannot be opened, or the backend cannot read it; the message has the
// reason.
enum hostbuf_status hostbuf_file_open(const char *path,
                                      const struct hostbuf_file_options *options,
                                      struct hostbuf_file **to);

// Closes a file. Transfers that have not ended go on. A null file is ignored.
void hostbuf_file_close(struct hostbuf_file *file);

// Sets `to` to the number of bytes of a file.
enum hostbuf_status hostbuf_file_size(const struct hostbuf_file *file,
                                      uint64_t *to);

// Writes what the page cache has of a file to the disk, and waits for it.
enum hostbuf_status hostbuf_file_sync(const struct hostbuf_file *file);

// Returns the name of the backend of a file, such as `"posix"`, or an empty text if the file is
// null. The text is valid until the file is closed.
const char *hostbuf_file_backend(const struct hostbuf_file *file);

// Returns the reason for the backend of a file, one clause, or an empty text if the file is null.
// The text is valid until the file is closed.
const char *hostbuf_file_backend_reason(const struct hostbuf_file *file);

// Starts to read `size` bytes of a file from `offset` on into memory of the host. The memory stays
// allocated, and the program leaves it alone, until `hostbuf_transfer_wait` or
// `hostbuf_transfer_free` has returned.
enum hostbuf_status hostbuf_file_pread(const struct hostbuf_file *file,
                                       void *memory,
                                       size_t size,
                                       uint64_t offset,
                                       struct hostbuf_transfer **to);

// Starts to write `size` bytes of the host's memory to a file from `offset` on. Nothing changes
// the memory until the transfer has ended. The bytes are written in any order, and
// `hostbuf_file_sync` makes them durable.
enum hostbuf_status hostbuf_file_pwrite(const struct hostbuf_file *file,
                                        const void *memory,
                                        size_t size,
                                        uint64_t offset,
                                        struct hostbuf_transfer **to);

// Starts to read `size` bytes of a file from `offset` on into memory at `address` of the GPU that
// has the number `gpu` in this process, after the work that `stream` has now, a `CUstream` or
// `cudaStream_t` of that GPU; null is the default stream. The first call for a GPU loads the
// driver, uses the primary context, and registers 48 MiB of memory.
//
// `HOSTBUF_UNSUPPORTED`: there is no driver or no such GPU, or the driver has refused the stream
// or the memory.
enum hostbuf_status hostbuf_file_pread_gpu(const struct hostbuf_file *file,
                                           uint32_t gpu,
                                           uint64_t address,
                                           size_t size,
                                           uint64_t offset,
                                           void *stream,
                                           struct hostbuf_transfer **to);

// Starts to write `size` bytes at `address` of a GPU to a file from `offset` on, after the work
// that `stream` has now. The rest is as for `hostbuf_file_pread_gpu` and `hostbuf_file_pwrite`.
enum hostbuf_status hostbuf_file_pwrite_gpu(const struct hostbuf_file *file,
                                            uint32_t gpu,
                                            uint64_t address,
                                            size_t size,
                                            uint64_t offset,
                                            void *stream,
                                            struct hostbuf_transfer **to);

// Starts to read as `hostbuf_file_pread_gpu` does, in the order of `stream`: all work that
// is enqueued on the stream later waits until the transfer has ended, even if it fails or is
// cancelled. The call does not wait for the transfer. The first such call for a GPU waits until a
// slot is free, and a transfer of more than about 200 slots (1.6 GiB) runs mostly within the call.
// Freeing the transfer before it has ended cancels it.
//
// `HOSTBUF_UNSUPPORTED`: as for `hostbuf_file_pread_gpu`; or the stream is being captured. If the
// driver is older than CUDA 11.7, `hostbuf_transfer_wait` says so.
enum hostbuf_status hostbuf_file_pread_on(const struct hostbuf_file *file,
                                          uint32_t gpu,
                                          uint64_t address,
                                          size_t size,
                                          uint64_t offset,
                                          void *stream,
                                          struct hostbuf_transfer **to);

// Starts to write as `hostbuf_file_pwrite_gpu` does, in the order of `stream`. The rest is as for
// `hostbuf_file_pread_on`.
enum hostbuf_status hostbuf_file_pwrite_on(const struct hostbuf_file *file,
                                           uint32_t gpu,
                                           uint64_t address,
                                           size_t size,
                                           uint64_t offset,
                                           void *stream,
                                           struct hostbuf_transfer **to);

// Waits until a transfer has ended, and sets `bytes`, unless it is null, to the number of bytes at
// its beginning that have landed. If it has failed, the rest of the memory, or of the range of the
// file, has indeterminate contents. The result is the same each time.
//
// `HOSTBUF_END_OF_FILE`: the file ends before the end of the transfer. `HOSTBUF_CANCELLED`: the
// transfer was cancelled. `HOSTBUF_OS`: the file could not be read or written.
// `HOSTBUF_GPU_FAILED`: the GPU could not copy.
enum hostbuf_status hostbuf_transfer_wait(const struct hostbuf_transfer *transfer,
                                          uint64_t *bytes);

// Returns the result of a transfer as `hostbuf_transfer_wait`, or `HOSTBUF_NOTHING` if it has not
// ended yet. It does not wait.
enum hostbuf_status hostbuf_transfer_test(const struct hostbuf_transfer *transfer,
                                          uint64_t *bytes);

// Returns the number of bytes at the beginning of a transfer that have landed, which only grows,
// or 0 if it is null.
uint64_t hostbuf_transfer_landed(const struct hostbuf_transfer *transfer);

// Cancels a transfer, unless it has ended. It does not wait: the memory is in use until
// `hostbuf_transfer_wait` has returned. A null transfer is ignored.
void hostbuf_transfer_cancel(const struct hostbuf_transfer *transfer);

// Frees a transfer. One that has not ended is cancelled first, and this waits until nothing
// accesses its memory. A null transfer is ignored.
void hostbuf_transfer_free(struct hostbuf_transfer *transfer);

// Adds a slice of the tensors of the same `hostbuf_targets_function`. The load copies it, packed,
// to the address of the GPU, where memory of its size lies until `hostbuf_load_to_gpu` has
// returned. The slice may be freed afterwards.
enum hostbuf_status hostbuf_slice_targets_add(struct hostbuf_slice_targets *targets,
                                              const struct hostbuf_slice *slice,
                                              uint64_t address);

// Loads files as `hostbuf_load` does, and copies the slices that `targets(tensors, .., argument)`
// chooses in this rank to the GPU that has the number `gpu` in this process, each part as soon as
// it has been read: the time is the longer one of reading and copying, not their sum. The copies
// begin after the work that `stream` has when `targets` returns, a `CUstream` or `cudaStream_t` of
// that GPU; null is the default stream. All have ended when the call returns. The GPU copies at
// full speed if the buffer is registered with it (`hostbuf_register`). Collective; each rank may
// choose other slices, and has a GPU of its own.
//
// The results are those of `hostbuf_load`, in all ranks. If the load succeeds but the copies of
// this rank fail, only this rank gets an error, and `hostbuf_tensors_open` finds the tensors:
// `HOSTBUF_CANCELLED`: `targets` has failed. `HOSTBUF_GPU_FAILED`: the GPU could not copy.
// `HOSTBUF_UNSUPPORTED`: there is no driver or no such GPU; nothing is loaded then.
enum hostbuf_status hostbuf_load_to_gpu(const struct hostbuf_buffer *buffer,
                                        const struct hostbuf_collective *group,
                                        const char *const *paths,
                                        size_t count,
                                        const struct hostbuf_load_options *options,
                                        uint32_t gpu,
                                        void *stream,
                                        hostbuf_targets_function targets,
                                        void *argument,
                                        struct hostbuf_tensors **to);

// Loads files of tensors into an empty buffer, by all ranks of `group`: safetensors, `.npy` and
// Arrow IPC, and any other file as one tensor of bytes. A path may also be a folder of such files,
// or an index `*.safetensors.index.json`. The `count` paths of rank 0 count. Each byte is read by
// one rank of the job, and all ranks of all hosts then see the tensors at the same addresses. Null
// `options` are the defaults. Collective.
//
// A buffer into which loading has failed is empty, but this process keeps the memory that was used
// there: load again into a new buffer.
//
// `HOSTBUF_OS`: a file cannot be read. `HOSTBUF_DAMAGED`: a file is damaged or missing in its
// index. `HOSTBUF_UNSUPPORTED`: hostbuf does not load the contents. `HOSTBUF_CHANGED`: a file has
// changed. `HOSTBUF_FULL`: the buffer is too small. `HOSTBUF_FILL`: it is filled already. Ranks
// other than the one that has failed get `HOSTBUF_ELSEWHERE` with its message.
enum hostbuf_status hostbuf_load(const struct hostbuf_buffer *buffer,
                                 const struct hostbuf_collective *group,
                                 const char *const *paths,
                                 size_t count,
                                 const struct hostbuf_load_options *options,
                                 struct hostbuf_tensors **to);

// Allocates a buffer of the size that the files need, on all hosts of `group`, and loads them as
// `hostbuf_load` does. Null `buffer_options` are the defaults; `buffer_options.size` is 0. Sets
// `buffer` and `to`. Collective.
enum hostbuf_status hostbuf_allocate_and_load(const struct hostbuf_collective *group,
                                              const struct hostbuf_options *buffer_options,
                                              const char *const *paths,
                                              size_t count,
                                              const struct hostbuf_load_options *options,
                                              struct hostbuf_buffer **buffer,
                                              struct hostbuf_tensors **to);

// Sets `to` to the tensors of a buffer into which files were loaded, by any program of the job.
// Local, not collective.
//
// `HOSTBUF_NOTHING`: no files were loaded into the buffer. `HOSTBUF_DAMAGED`: a process has
// overwritten the description of the tensors.
enum hostbuf_status hostbuf_tensors_open(const struct hostbuf_buffer *buffer,
                                         struct hostbuf_tensors **to);

// Sets `to` to the tensors that `hostbuf run --load` has loaded before `main`, and `buffer`,
// unless it is null, to their buffer. Local, not collective.
//
// `HOSTBUF_NOTHING`: the launcher has loaded none, or no launcher has started this process.
// `HOSTBUF_DAMAGED`: a process has overwritten the description of the tensors.
enum hostbuf_status hostbuf_tensors_loaded(struct hostbuf_buffer **buffer,
                                           struct hostbuf_tensors **to);

// Sets `to` to the slice of all elements of the tensor `name`.
//
// `HOSTBUF_NOTHING`: there is no such tensor.
enum hostbuf_status hostbuf_tensors_whole(const struct hostbuf_tensors *tensors,
                                          const char *name,
                                          struct hostbuf_slice **to);

// Sets `to` to the part of rank `rank` of `ranks` along dimension `dim` of the tensor `name`. All
// ranks get as many elements as the first, except the last ones, which get fewer or none if the
// number of ranks does not divide the dimension (`torch.chunk`).
//
// `HOSTBUF_NOTHING`: there is no such tensor. `HOSTBUF_INVALID`: it has no such slice.
enum hostbuf_status hostbuf_tensors_slice(const struct hostbuf_tensors *tensors,
                                          const char *name,
                                          size_t dim,
                                          size_t rank,
                                          size_t ranks,
                                          struct hostbuf_slice **to);

// Sets `to` to the shares of rank `rank` of `ranks` of `count` parts that are adjacent along
// dimension `dim` of the tensor `name`, such as Q, K and V. `sizes` has the number of elements of
// each part along the dimension. `shares` has the number of shares of each part: the
// number of KV heads, if several ranks use the same one; 0, or a null array, is one share for each
// rank. A part that cannot be divided into equal shares is refused.
//
// The results are those of `hostbuf_tensors_slice`.
enum hostbuf_status hostbuf_tensors_fused_slice(const struct hostbuf_tensors *tensors,
                                                const char *name,
                                                size_t dim,
                                                const uint64_t *sizes,
                                                const size_t *shares,
                                                size_t count,
                                                size_t rank,
                                                size_t ranks,
                                                struct hostbuf_slice **to);

// Writes the shape of a slice to `to`.
enum hostbuf_status hostbuf_slice_stat(const struct hostbuf_slice *slice,
                                       struct hostbuf_slice_info *to);

// Writes the part number `index` of a slice to `to`. The parts are numbered from 0.
enum hostbuf_status hostbuf_slice_part_at(const struct hostbuf_slice *slice,
                                          size_t index,
                                          struct hostbuf_slice_part *to);

// Copies a slice, packed, to memory of the host, which has exactly `size` bytes, those of the
// slice.
enum hostbuf_status hostbuf_slice_copy(const struct hostbuf_slice *slice,
                                       void *memory,
                                       size_t size);

// Frees a slice. Null is ignored.
void hostbuf_slice_free(struct hostbuf_slice *slice);

// Copies `count` slices of the same tensors, packed, to the addresses of the GPU that has the
// number `gpu` in this process, and waits for the end. The copies begin after the work that
// `stream` has now, a `CUstream` or `cudaStream_t` of that GPU; null is the default stream. Sets
// `bytes`, unless it is null, to the number of bytes. One call for many slices is faster than many
// calls. The GPU copies at full speed if the buffer is registered with it (`hostbuf_register`).
//
// `HOSTBUF_UNSUPPORTED`: there is no driver or no such GPU, or the driver has refused the stream.
// `HOSTBUF_GPU_FAILED`: the GPU could not copy.
enum hostbuf_status hostbuf_slices_copy_gpu(const struct hostbuf_slice *const *slices,
                                            const uint64_t *addresses,
                                            size_t count,
                                            uint32_t gpu,
                                            void *stream,
                                            uint64_t *bytes);

// Returns the number of tensors, or 0 if `tensors` is null.
size_t hostbuf_tensors_count(const struct hostbuf_tensors *tensors);

// Writes the description of a tensor to `to`. The tensors are numbered from 0, in the order of
// their names.
enum hostbuf_status hostbuf_tensors_at(const struct hostbuf_tensors *tensors,
                                       size_t index,
                                       struct hostbuf_tensor *to);

// Writes the description of the tensor `name` to `to`.
//
// `HOSTBUF_NOTHING`: there is no such tensor.
enum hostbuf_status hostbuf_tensors_find(const struct hostbuf_tensors *tensors,
                                         const char *name,
                                         struct hostbuf_tensor *to);

// Frees the handle of tensors. Their memory stays mapped until the buffer and all slices of them
// are released too. Null is ignored.
void hostbuf_tensors_free(struct hostbuf_tensors *tensors);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HOSTBUF_H */
