/* hostbuf: one buffer for each host of a job, shared by all its ranks, at one address everywhere.
 *
 *     cc program.c $(pkg-config --cflags --libs hostbuf)
 *
 * Every function that can fail answers with a hostbuf_status; hostbuf_message() says more. All may be called by any thread, but
 * those that take a group are collective: all its ranks call them in the same order. hostbuf_mpi.h makes a group of an MPI
 * communicator. Structures that are given in are set to zero first.
 *
 * Written by cbindgen from bindings/c; a test compares the two.
 */

#ifndef HOSTBUF_H
#define HOSTBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// How a call ended. The message of the calling thread says more: `hostbuf_message`.
typedef enum hostbuf_status {
    // As it should.
    HOSTBUF_OK = 0,
    // An argument makes no sense: null, out of range, or not text.
    HOSTBUF_INVALID = 1,
    // This host, or this build, cannot do it.
    HOSTBUF_UNSUPPORTED = 2,
    // Not enough memory, found out before anything was touched.
    HOSTBUF_NO_SPACE = 3,
    // The ranks found no common address, or asked for different things.
    HOSTBUF_DISAGREED = 4,
    // The kernel refused.
    HOSTBUF_OS = 5,
    // There is nothing to attach to.
    HOSTBUF_ATTACH = 6,
    // A rank ended before all had the buffer.
    HOSTBUF_LOST = 7,
    // A word of the control page makes no sense.
    HOSTBUF_CORRUPT = 8,
    // The arena has no room.
    HOSTBUF_FULL = 9,
    // Filling did not end well in this process.
    HOSTBUF_FILL = 10,
    // An operation on another host by RDMA has failed.
    HOSTBUF_PEER = 11,
    // The buffer could not be frozen.
    HOSTBUF_FREEZE = 12,
    // What arrived is not what was sent.
    HOSTBUF_REPLICATE = 13,
    // A function of the collective failed.
    HOSTBUF_COLLECTIVE = 14,
    // A device refused to register memory, or to end that.
    HOSTBUF_REGISTRATION = 15,
    // A registration cache has no room.
    HOSTBUF_BUDGET = 16,
    // An allocator of registered memory is at its limit.
    HOSTBUF_LIMIT = 17,
    // A forked child asked for what is its parent's.
    HOSTBUF_FORKED = 18,
    // Another rank of the same collective call failed.
    HOSTBUF_ELSEWHERE = 19,
    // Nothing is wrong: it is not there, or cannot be had without waiting.
    HOSTBUF_NOTHING = 20,
    // A defect of hostbuf: please report the message.
    HOSTBUF_DEFECT = 21,
} hostbuf_status;

// How `all_reduce` combines words.
typedef enum hostbuf_reduce {
    // The least.
    HOSTBUF_MIN = 0,
    // The greatest.
    HOSTBUF_MAX = 1,
    // The sum, wrapping.
    HOSTBUF_SUM = 2,
    // Bit by bit.
    HOSTBUF_AND = 3,
} hostbuf_reduce;

// Which pages stand behind a buffer.
typedef enum hostbuf_pages {
    // The best that is there: 1 GiB from the reserved pool, 2 MiB from the pool, transparent 2
    // MiB, ordinary.
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

// How far the filling of a buffer is on this host.
typedef enum hostbuf_fill_state {
    HOSTBUF_EMPTY = 0,
    HOSTBUF_FILLING = 1,
    HOSTBUF_FILLED = 2,
    HOSTBUF_FROZEN = 3,
} hostbuf_fill_state;

// How sure it is that nobody on this host can write into a frozen buffer.
typedef enum hostbuf_proof {
    // The kernel sealed the memory, which it does only while no writable mapping exists anywhere.
    HOSTBUF_SEALED = 0,
    // Somebody may still hold a writable mapping from before; `hostbuf_message` says who.
    HOSTBUF_WEAKER = 1,
} hostbuf_proof;

// What a device may do with memory: a sum of these. Reading on behalf of this process is always
// allowed.
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

// How a cache hears of memory that changes.
typedef enum hostbuf_monitor {
    // As `HOSTBUF_CACHE_MONITOR` says; strict without it.
    HOSTBUF_MONITOR_DEFAULT = 0,
    // The kernel tells.
    HOSTBUF_MONITOR_STRICT = 1,
    // The program tells, by `hostbuf_cache_invalidate`, before the memory changes.
    HOSTBUF_MONITOR_EXPLICIT = 2,
} hostbuf_monitor;

// Gives out the buffer's memory while it is being filled. It stays where it is for as long as the
// `hostbuf_buffer`, and gives nothing when the function that fills has returned.
typedef struct hostbuf_arena hostbuf_arena;

// A host's shared memory, mapped at the agreed address.
typedef struct hostbuf_buffer hostbuf_buffer;

// A registration cache: memory that is sent again and again is registered once.
typedef struct hostbuf_cache hostbuf_cache;

// A device that memory is registered with.
typedef struct hostbuf_device hostbuf_device;

// Proof that a device knows a part of a buffer.
typedef struct hostbuf_region hostbuf_region;

// A group of ranks that can act together, in functions of the program's own. hostbuf_mpi.h makes
// one of an MPI communicator.
//
// The functions answer 0 when they went well. They are called in the thread that calls hostbuf, by
// all ranks of the group in the same order. They must neither throw nor jump out.
typedef struct hostbuf_collective {
    // Handed to each function.
    void *context;
    // This process's rank, and how many there are.
    size_t rank;
    size_t size;
    // Everybody's `bytes` bytes at `mine`, in the order of the ranks, into `all`.
    int (*all_gather)(void *context,
                      const void *mine,
                      size_t bytes,
                      void *all);
    // The `bytes` bytes at `data` of rank `root` to everybody.
    int (*broadcast)(void *context,
                     void *data,
                     size_t bytes,
                     size_t root);
    // The ranks that name the same `color`, in the order of their ranks, into `part`, which has a
    // context of its own.
    int (*split)(void *context,
                 size_t color,
                 struct hostbuf_collective *part);
    // `count` words combined over all ranks, in place. Null: made of `all_gather`.
    int (*all_reduce)(void *context,
                      uint64_t *words,
                      size_t count,
                      enum hostbuf_reduce how);
    // Lets messages of others go on while this rank waits. Null: nothing has to be done for that.
    void (*progress)(void *context);
    // Ends a part that `split` made. Null: nothing to do.
    void (*release)(void *context);
    // What the number that a function answered means, as text of at most `size` bytes with the
    // NUL. Null: nobody knows.
    void (*describe)(void *context,
                     int code,
                     char *text,
                     size_t size);
} hostbuf_collective;

// What a buffer is asked for with. Set everything to zero first: then all but the size is as by
// default.
typedef struct hostbuf_options {
    // Bytes that can be used; rounded up to whole pages of what is obtained.
    uint64_t size;
    // 31 bytes at most of letters, digits, `_`, `-` and `.`; null for "default".
    const char *name;
    // One of `hostbuf_pages`.
    int32_t pages;
    // Not 0: leave pages to be taken at the first touch, with no check that they are there, and a
    // signal when they are not.
    uint8_t lazy;
    // Not 0: let the contents go into core files.
    uint8_t dump;
} hostbuf_options;

// What is known of a buffer.
typedef struct hostbuf_info {
    // The first byte, at the same address in every rank of every host.
    void *address;
    // Bytes that can be used.
    size_t size;
    // Stays as long as the buffer.
    const char *name;
    // The pages that were obtained on this host, and how many bytes stand on huge ones.
    enum hostbuf_pages pages;
    uint64_t huge_bytes;
    enum hostbuf_fill_state state;
    // How many times filling has begun on this host.
    uint64_t generation;
    // Bytes from the beginning that the arena has given out.
    uint64_t used;
    // Which host of the job this is, and how many there are; 0 of 0 where the hosts do not know
    // each other.
    uint32_t host;
    uint32_t hosts;
} hostbuf_info;

// Fills a buffer: answers a pointer into it, the object that all others will find, or null when
// that failed. It must neither throw nor jump out.
typedef void *(*hostbuf_filler)(struct hostbuf_arena *arena,
                                void *argument);

// What requests about registered memory are made with.
typedef struct hostbuf_key {
    // CUDA: where the GPU sees the first byte of the registered range. Else 0.
    uint64_t device_address;
    // RDMA: `lkey` and `rkey`. Else 0.
    uint32_t local_key;
    uint32_t remote_key;
} hostbuf_key;

// A hold on a registration, until it is put back. It may be moved and put back by another thread,
// but only once: do not copy it.
typedef struct hostbuf_lease {
    // What requests are made with.
    struct hostbuf_key key;
    // hostbuf's own; all 0 where nothing is held.
    uint64_t held[6];
} hostbuf_lease;

// What a cache has done.
typedef struct hostbuf_cache_stats {
    // Leases that needed no registering, that waited for another thread's, and that were
    // registered for.
    uint64_t hits;
    uint64_t coalesced;
    uint64_t misses;
    // Ended to make room; since `invalidate` or `flush` said so; since the monitor saw their
    // memory change.
    uint64_t evictions;
    uint64_t invalidated;
    uint64_t changed;
    // Registered for their leases only, since nobody could say when that memory changes.
    uint64_t not_kept;
    // What the device refused, and deregistrations that failed.
    uint64_t failures;
    uint64_t leaked;
    // Requests that found the budget full.
    uint64_t over_budget;
    // Registrations and bytes now, and the most at a time.
    size_t regions;
    size_t bytes;
    size_t peak_regions;
    size_t peak_bytes;
} hostbuf_cache_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The message of the calling thread's last call that did not end with `HOSTBUF_OK`, or that says
// something although it did (as `hostbuf_device_probe` and `hostbuf_freeze` tell): one line for
// people, with what was asked, what was there, and what to do. Empty before the first. It stays
// until the thread's next such call; never null.
const char *hostbuf_message(void);

// The name of a status, as it is written here; `"?"` for a number that is none. Never null.
const char *hostbuf_status_name(int32_t status);

// Tries a group: each function is called, and what it answers is compared with what it should.
// Collective: all ranks go through all of it, whatever they find, and each reports what it found
// first. For whoever writes a table of his own.
enum hostbuf_status hostbuf_try_collective(const struct hostbuf_collective *group);

// Whether this process leads its host in `group`: it is the first of the ranks there. Collective.
enum hostbuf_status hostbuf_leads(const struct hostbuf_collective *group,
                                  bool *leads);

// Memory of the buffer: `size` bytes, zero, at a multiple of `alignment`, a power of two. Null
// when there is no room or filling has ended: `hostbuf_message` says which. Threads of the process
// that fills may call it at the same time.
void *hostbuf_arena_take(struct hostbuf_arena *arena,
                         size_t size,
                         size_t alignment);

// Says why filling fails, in words for people: when the function then answers null, all ranks hear
// them. (What `hostbuf_arena_take` could not give need not be said.)
void hostbuf_arena_fail(struct hostbuf_arena *arena,
                        const char *why);

// Bytes that the arena has left, but for what the root takes; 0 for a null one, and when filling
// has ended.
uint64_t hostbuf_arena_left(const struct hostbuf_arena *arena);

// Whether `bytes` bytes from `pointer` lie in the buffer that is being filled.
bool hostbuf_arena_contains(const struct hostbuf_arena *arena,
                            const void *pointer,
                            size_t bytes);

// Whether a launcher has started this process, so that there is something to attach to. All ranks
// of a job have the same answer: who attaches or else allocates decides by this, and not by a
// failure of `hostbuf_attach`, which may be one rank's alone.
bool hostbuf_launched(void);

// The buffer that the launcher gave this process before its main; `name` null: the first one.
enum hostbuf_status hostbuf_attach(const char *name,
                                   struct hostbuf_buffer **to);

// Makes a buffer without a launcher, on all hosts of `group` at one address; `group` null: for
// this process alone. Collective.
enum hostbuf_status hostbuf_allocate(const struct hostbuf_collective *group,
                                     const struct hostbuf_options *options,
                                     struct hostbuf_buffer **to);

// Gives a buffer back. Its memory is unmapped when nothing uses it any more: regions that are
// registered keep it. Null: nothing.
void hostbuf_release(struct hostbuf_buffer *buffer);

// The first byte, the same address in every rank of every host; null for a null buffer.
void *hostbuf_data(const struct hostbuf_buffer *buffer);

// Bytes that can be used; 0 for a null buffer.
size_t hostbuf_size(const struct hostbuf_buffer *buffer);

// What is known of a buffer.
enum hostbuf_status hostbuf_stat(const struct hostbuf_buffer *buffer,
                                 struct hostbuf_info *to);

// Sends the filled buffer of rank `root`'s host to all other hosts of `group`, where it must be
// empty: the bytes that the arena gave out, checksummed. Pointers inside stay valid, since the
// address is the same. Collective.
enum hostbuf_status hostbuf_replicate(struct hostbuf_buffer *buffer,
                                      const struct hostbuf_collective *group,
                                      size_t root);

// Makes a filled buffer read-only for good, in all ranks of `group`; a stray write faults from
// then on. Collective over all ranks that have it mapped. `proof` may be null; for
// `HOSTBUF_WEAKER`, `hostbuf_message` says why.
enum hostbuf_status hostbuf_freeze(struct hostbuf_buffer *buffer,
                                   const struct hostbuf_collective *group,
                                   enum hostbuf_proof *proof);

// Fills the buffer by `filler(arena, argument)` in one rank of this host, whichever comes first;
// the others wait. All get the object that it answered, in `root`, which may be null. When the
// filler's process dies, one of those who wait takes over, with a zeroed arena: so the function
// may run in several processes one after another, never in two at a time.
enum hostbuf_status hostbuf_initialize(struct hostbuf_buffer *buffer,
                                       hostbuf_filler filler,
                                       void *argument,
                                       void **root);

// Fills the buffer in rank 0 of `group` and sends it to the other hosts: one build for the whole
// job. Collective. A buffer is filled once: `HOSTBUF_FILL` where it is already.
enum hostbuf_status hostbuf_initialize_job(struct hostbuf_buffer *buffer,
                                           const struct hostbuf_collective *group,
                                           hostbuf_filler filler,
                                           void *argument,
                                           void **root);

// The object that filled the buffer; `HOSTBUF_NOTHING` while it is not filled.
enum hostbuf_status hostbuf_root(const struct hostbuf_buffer *buffer,
                                 void **root);

// Whether a device can be used in this process, without opening it: `HOSTBUF_OK`, or
// `HOSTBUF_UNSUPPORTED`; `hostbuf_message` says with what, or why not. `device` as for
// `hostbuf_device_open`.
enum hostbuf_status hostbuf_device_probe(const char *device);

// Opens a device: `mlock` (page-locking), `cuda` or `cuda:1` (a GPU), `rdma` or `rdma:mlx5_0` (the
// first network card, or the one of that name).
enum hostbuf_status hostbuf_device_open(const char *device,
                                        struct hostbuf_device **to);

// Gives a device back; what is registered with it keeps it. Null: nothing.
void hostbuf_device_close(struct hostbuf_device *device);

// Copies the device's name, for messages, with a NUL at the end; cut where there is no room.
enum hostbuf_status hostbuf_device_name(const struct hostbuf_device *device,
                                        char *name,
                                        size_t size);

// Registers `length` bytes of a buffer from `offset` with a device; `length` 0: up to the end.
enum hostbuf_status hostbuf_register(struct hostbuf_buffer *buffer,
                                     const struct hostbuf_device *device,
                                     size_t offset,
                                     size_t length,
                                     int access,
                                     struct hostbuf_region **to);

// What requests about a region are made with; all 0 for a null one.
struct hostbuf_key hostbuf_region_key(const struct hostbuf_region *region);

// Ends a registration, and gives it back in any case: when that fails, what was pinned may stay so
// until the process ends.
enum hostbuf_status hostbuf_deregister(struct hostbuf_region *region);

// Makes a cache of at most `regions` registrations of at most `bytes` bytes together: a hard
// limit. 0 for either: what `HOSTBUF_CACHE_REGIONS` and `HOSTBUF_CACHE_BYTES` say, or their
// defaults. `monitor`: one of `hostbuf_monitor`.
enum hostbuf_status hostbuf_cache_open(const struct hostbuf_device *device,
                                       size_t regions,
                                       size_t bytes,
                                       int monitor,
                                       struct hostbuf_cache **to);

// Ends a cache and what it has registered. All its leases have been put back before. Null:
// nothing.
void hostbuf_cache_close(struct hostbuf_cache *cache);

// A hold on a registration of `length` bytes from `start`, made now if there is none. It has to be
// put back by `hostbuf_cache_put`, before the cache is closed; what `lease` held before is not put
// back by this.
enum hostbuf_status hostbuf_cache_get(struct hostbuf_cache *cache,
                                      const void *start,
                                      size_t length,
                                      int access,
                                      struct hostbuf_lease *lease);

// The same if nothing has to be registered and nobody waited for; else `HOSTBUF_NOTHING`.
enum hostbuf_status hostbuf_cache_try_get(struct hostbuf_cache *cache,
                                          const void *start,
                                          size_t length,
                                          int access,
                                          struct hostbuf_lease *lease);

// Puts a lease back; one that holds nothing is left as it is.
void hostbuf_cache_put(struct hostbuf_lease *lease);

// Registers `length` bytes from `start`, and keeps the registration: it is not ended to make room.
enum hostbuf_status hostbuf_cache_keep(struct hostbuf_cache *cache,
                                       const void *start,
                                       size_t length,
                                       int access);

// The memory has changed or is about to: no lease taken afterwards is of a registration made
// before.
enum hostbuf_status hostbuf_cache_invalidate(struct hostbuf_cache *cache,
                                             const void *start,
                                             size_t length);

// Invalidates everything.
enum hostbuf_status hostbuf_cache_flush(struct hostbuf_cache *cache);

// What a cache has done so far.
enum hostbuf_status hostbuf_cache_stat(const struct hostbuf_cache *cache,
                                       struct hostbuf_cache_stats *to);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HOSTBUF_H */
