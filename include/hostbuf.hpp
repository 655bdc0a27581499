/* hostbuf for C++17: handles that give themselves back, exceptions, and a std::pmr::memory_resource
 * over the arena, so that std::pmr containers live in the buffer and are read by all ranks.
 *
 *     #include <hostbuf_mpi.h>
 *     #include <hostbuf.hpp>
 *
 *     hostbuf::mpi_group group(MPI_COMM_WORLD);
 *     auto buffer = hostbuf::buffer::launched() ? hostbuf::buffer::attach() : hostbuf::buffer::allocate(group, 64 << 20);
 *     using table = std::pmr::unordered_map<std::pmr::string, int>;
 *     const table &words = buffer.initialize_job<table>(group, [](hostbuf::arena &arena) {
 *         auto words = arena.make<table>();
 *         words->emplace("one", 1);
 *         return words;
 *     });
 *
 * What makes that safe. A container is written in one process, while the buffer is being filled,
 * and only read afterwards, by const members, in all of them: so others get a `const T &`, and no
 * destructor runs. Its memory comes from the arena, at one address everywhere, so all its pointers
 * mean the same, but for one: that to its memory_resource, which is an object of the filling
 * process; reading never follows it. Do not copy such a container with its own allocator, nor ask
 * it for that. All ranks are one program (or are built from one source with one standard library),
 * since they share the layout, and the hash function must give the same in all of them, as
 * std::hash does. What has a vtable, a reference, or a pointer to anything outside (std::function,
 * a file, an ordinary std::string) must not go in; nor may the containers of a debug mode that
 * notes iterators in them (_GLIBCXX_DEBUG).
 */
#ifndef HOSTBUF_HPP
#define HOSTBUF_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "hostbuf.h"

namespace hostbuf {

/// A call that failed; what() is one line for people.
class error : public std::runtime_error {
public:
    explicit error(hostbuf_status status) : std::runtime_error(hostbuf_message()), status_(status) {}

    hostbuf_status status() const noexcept { return status_; }

private:
    hostbuf_status status_;
};

/// Throws an `error` unless a call went well.
inline void check(hostbuf_status status)
{
    if (status != HOSTBUF_OK) throw error(status);
}

/// The arena has no room: what() says how much was asked for and what is left.
class full : public std::bad_alloc {
public:
    full() noexcept
    {
        const char *message = hostbuf_message();
        for (std::size_t at = 0; at + 1 < sizeof what_ && message[at]; ++at) what_[at] = message[at];
    }

    const char *what() const noexcept override { return what_; }

private:
    char what_[256] = {};
};

/// Objects that lie one behind the other in memory that somebody else keeps: std::span's part that C++17 lacks.
template <class T>
class view {
public:
    constexpr view() noexcept = default;
    constexpr view(T *data, std::size_t size) noexcept : data_(data), size_(size) {}

    constexpr T *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return size_; }
    constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](std::size_t at) const { return data_[at]; }

    /// Throws std::out_of_range.
    constexpr T &at(std::size_t at) const
    {
        if (at >= size_) throw std::out_of_range("hostbuf::view");
        return data_[at];
    }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/// The buffer's memory while it is being filled. Nothing comes back to it before the buffer goes.
class arena : public std::pmr::memory_resource {
public:
    explicit arena(hostbuf_arena *own) noexcept : own_(own) {}

    /// A T in the buffer, whose own memory, if it takes an allocator, comes from there too. It is never destroyed.
    template <class T, class... Arguments>
    T *make(Arguments &&...arguments)
    {
        std::pmr::polymorphic_allocator<T> allocator(this);
        T *at = allocator.allocate(1);
        allocator.construct(at, std::forward<Arguments>(arguments)...);
        return at;
    }

    /// `count` of them, each zero: for numbers, and what else may be so.
    template <class T>
    view<T> array(std::size_t count)
    {
        static_assert(std::is_trivially_copyable<T>::value, "zero bytes are no value of such a type");
        if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
        return {static_cast<T *>(allocate(count * sizeof(T), alignof(T))), count};
    }

    /// Bytes that are left.
    std::uint64_t left() const noexcept { return hostbuf_arena_left(own_); }

    hostbuf_arena *get() const noexcept { return own_; }

private:
    void *do_allocate(std::size_t size, std::size_t alignment) override
    {
        if (void *at = hostbuf_arena_take(own_, size, alignment)) return at;
        throw full();
    }

    void do_deallocate(void *, std::size_t, std::size_t) override {}

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

    hostbuf_arena *own_;
};

/// A host's shared memory, mapped at the agreed address.
class buffer {
public:
    /// The one that the launcher gave this process before main; without a name the first.
    static buffer attach(const char *name = nullptr)
    {
        hostbuf_buffer *made;
        check(hostbuf_attach(name, &made));
        return buffer(made);
    }

    /// Whether a launcher has started this process: all ranks of a job have the same answer.
    static bool launched() noexcept { return hostbuf_launched(); }

    /// Makes one without a launcher, on all hosts of a group; without one, for this process alone. Collective.
    static buffer allocate(const hostbuf_collective *group, const hostbuf_options &options)
    {
        hostbuf_buffer *made;
        check(hostbuf_allocate(group, &options, &made));
        return buffer(made);
    }

    static buffer allocate(const hostbuf_collective *group, std::uint64_t size)
    {
        hostbuf_options options{};
        options.size = size;
        return allocate(group, options);
    }

    buffer(buffer &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    buffer &operator=(buffer &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~buffer() { hostbuf_release(own_); }

    void *data() const noexcept { return hostbuf_data(own_); }
    std::size_t size() const noexcept { return hostbuf_size(own_); }
    hostbuf_buffer *get() const noexcept { return own_; }

    /// All of it as objects of one type. Const once it is frozen.
    template <class T>
    view<T> as() const
    {
        static_assert(std::is_trivially_copyable<typename std::remove_cv<T>::type>::value, "bytes are no value of such a type");
        return {static_cast<T *>(data()), size() / sizeof(T)};
    }

    hostbuf_info stat() const
    {
        hostbuf_info info;
        check(hostbuf_stat(own_, &info));
        return info;
    }

    /// Fills it by `fill(arena &)`, which answers a T that it made there, in one rank of this host; all get that one. What `fill`
    /// throws is thrown again in the rank that ran it.
    template <class T, class Fill>
    const T &initialize(Fill &&fill)
    {
        return filled<T>(fill, [this](hostbuf_filler filler, void *argument, void **root) {
            return hostbuf_initialize(own_, filler, argument, root);
        });
    }

    /// The same in rank 0 of a group, and then to all its hosts; an error where it is filled already. Collective.
    template <class T, class Fill>
    const T &initialize_job(const hostbuf_collective *group, Fill &&fill)
    {
        return filled<T>(fill, [this, group](hostbuf_filler filler, void *argument, void **root) {
            return hostbuf_initialize_job(own_, group, filler, argument, root);
        });
    }

    /// What filled it; null while nothing has.
    template <class T>
    const T *root() const
    {
        void *root;
        hostbuf_status status = hostbuf_root(own_, &root);
        if (status == HOSTBUF_NOTHING) return nullptr;
        check(status);
        return static_cast<const T *>(root);
    }

    void replicate(const hostbuf_collective *group, std::size_t root) { check(hostbuf_replicate(own_, group, root)); }

    /// Read-only for good, in all ranks. Collective.
    hostbuf_proof freeze(const hostbuf_collective *group)
    {
        hostbuf_proof proof;
        check(hostbuf_freeze(own_, group, &proof));
        return proof;
    }

private:
    explicit buffer(hostbuf_buffer *own) noexcept : own_(own) {}

    template <class Fill>
    struct call {
        Fill &fill;
        std::exception_ptr thrown;
    };

    /// Nothing is thrown through hostbuf.
    template <class T, class Fill>
    static void *run(hostbuf_arena *own, void *argument) noexcept
    {
        auto &made = *static_cast<call<Fill> *>(argument);
        try {
            arena memory(own);
            const T *root = made.fill(memory);
            return const_cast<T *>(root);
        } catch (const std::exception &error) {
            made.thrown = std::current_exception();
            hostbuf_arena_fail(own, error.what());
        } catch (...) {
            made.thrown = std::current_exception();
            hostbuf_arena_fail(own, "the function that fills it has thrown what is no std::exception");
        }
        return nullptr;
    }

    template <class T, class Fill, class Initialize>
    const T &filled(Fill &fill, Initialize initialize)
    {
        call<Fill> made{fill, nullptr};
        void *root = nullptr;
        hostbuf_status status = initialize(&buffer::run<T, Fill>, &made, &root);
        if (made.thrown) std::rethrow_exception(made.thrown);
        check(status);
        return *static_cast<const T *>(root);
    }

    hostbuf_buffer *own_;
};

/// A device that memory is registered with: "mlock", "cuda", "cuda:1", "rdma", "rdma:mlx5_0".
class device {
public:
    explicit device(const char *which) { check(hostbuf_device_open(which, &own_)); }
    device(device &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    device &operator=(device &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~device() { hostbuf_device_close(own_); }

    /// Whether it can be used here.
    static bool probe(const char *which) noexcept { return hostbuf_device_probe(which) == HOSTBUF_OK; }

    std::string name() const
    {
        char name[128];
        check(hostbuf_device_name(own_, name, sizeof name));
        return name;
    }

    hostbuf_device *get() const noexcept { return own_; }

private:
    hostbuf_device *own_ = nullptr;
};

/// Proof that a device knows a part of a buffer; it ends with this.
class region {
public:
    region(const buffer &of, const device &with, int access = HOSTBUF_READ, std::size_t offset = 0, std::size_t length = 0)
    {
        check(hostbuf_register(of.get(), with.get(), offset, length, access, &own_));
    }
    region(region &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    region &operator=(region &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~region()
    {
        if (own_) (void)hostbuf_deregister(own_);
    }

    hostbuf_key key() const noexcept { return hostbuf_region_key(own_); }

private:
    hostbuf_region *own_ = nullptr;
};

/// A hold on a registration of a cache, put back with this.
class lease {
public:
    explicit lease(const hostbuf_lease &own) noexcept : own_(own) {}
    lease(lease &&other) noexcept : own_(std::exchange(other.own_, hostbuf_lease{})) {}
    lease &operator=(lease &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~lease() { hostbuf_cache_put(&own_); }

    hostbuf_key key() const noexcept { return own_.key; }

private:
    hostbuf_lease own_;
};

/// A registration cache. All its leases go before it.
class cache {
public:
    /// At most so many registrations of so many bytes; 0: as the environment says.
    explicit cache(const device &of, std::size_t regions = 0, std::size_t bytes = 0,
                   hostbuf_monitor monitor = HOSTBUF_MONITOR_DEFAULT)
    {
        check(hostbuf_cache_open(of.get(), regions, bytes, monitor, &own_));
    }
    cache(cache &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    cache &operator=(cache &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~cache() { hostbuf_cache_close(own_); }

    lease get(const void *start, std::size_t length, int access = HOSTBUF_READ)
    {
        hostbuf_lease held;
        check(hostbuf_cache_get(own_, start, length, access, &held));
        return lease(held);
    }

    void invalidate(const void *start, std::size_t length) { check(hostbuf_cache_invalidate(own_, start, length)); }
    void flush() { check(hostbuf_cache_flush(own_)); }

    hostbuf_cache_stats stat() const
    {
        hostbuf_cache_stats stats;
        check(hostbuf_cache_stat(own_, &stats));
        return stats;
    }

private:
    hostbuf_cache *own_ = nullptr;
};

#ifdef HOSTBUF_MPI_H
/// The ranks of an MPI communicator, of which it holds a duplicate. Made and ended by all of them, before MPI_Finalize.
class mpi_group {
public:
    explicit mpi_group(MPI_Comm comm)
    {
        int code = hostbuf_mpi_collective(comm, &own_);
        if (code == MPI_SUCCESS) return;
        char text[MPI_MAX_ERROR_STRING + 1] = "";
        hostbuf_mpi_describe(nullptr, code, text, sizeof text);
        throw std::runtime_error(std::string("no group of this communicator (an intracommunicator is meant): ") + text);
    }
    mpi_group(const mpi_group &) = delete;
    mpi_group &operator=(const mpi_group &) = delete;
    ~mpi_group() { hostbuf_mpi_release(&own_); }

    std::size_t rank() const noexcept { return own_.rank; }
    std::size_t size() const noexcept { return own_.size; }
    operator const hostbuf_collective *() const noexcept { return &own_; }

private:
    hostbuf_collective own_;
};
#endif

} // namespace hostbuf

#endif
