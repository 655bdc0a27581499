/* hostbuf for C++17: handles that release themselves, exceptions, and a std::pmr::memory_resource
 * over the arena, so that all ranks read std::pmr containers in the buffer.
 *
 *     #include <hostbuf_mpi.h>
 *     #include <hostbuf.hpp>
 *
 *     hostbuf::mpi_group group(MPI_COMM_WORLD);
 *     auto buffer = hostbuf::buffer::launched() ? hostbuf::buffer::attach()
 *                                               : hostbuf::buffer::allocate(group, 64 << 20);
 *     using table = std::pmr::unordered_map<std::pmr::string, int>;
 *     const table &words = buffer.initialize_job<table>(group, [](hostbuf::arena &arena) {
 *         auto words = arena.make<table>();
 *         words->emplace("one", 1);
 *         return words;
 *     });
 *
 * Safety rules. One process writes a container while it fills the buffer. Afterwards all processes
 * only read it through const members: they get a `const T &`, and no destructor runs. The memory of
 * the container comes from the arena, at one address in all ranks, so its pointers are valid in all
 * ranks. The only exception is the pointer to its memory_resource, an object of the process that
 * fills; reading never follows it. Do not copy such a container with its own allocator, and do not
 * call get_allocator() on it. All ranks run one program, or programs built from one source with one
 * standard library, since they share the layout of the container. The hash function returns the
 * same values in all ranks, as std::hash does. Do not place objects in the buffer that have a
 * vtable, a reference or a pointer to an object outside (std::function, a file, an ordinary
 * std::string), nor containers of a debug mode that stores iterators in them (_GLIBCXX_DEBUG).
 */
#ifndef HOSTBUF_HPP
#define HOSTBUF_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory_resource>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hostbuf.h"
#include "hostbuf_error.hpp"
#include "hostbuf_gpu_section.hpp"

namespace hostbuf {

/// The error of an arena without room; what() states the requested and the free bytes.
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

/// Contiguous objects in memory that the view does not own: a part of std::span, which C++17 lacks.
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

    /// Returns an element. Throws std::out_of_range if there is no such element.
    constexpr T &at(std::size_t at) const
    {
        if (at >= size_) throw std::out_of_range("hostbuf::view");
        return data_[at];
    }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

/// The memory of a buffer while it is being filled. Deallocation does nothing; the memory is
/// released with the buffer.
class arena : public std::pmr::memory_resource {
public:
    explicit arena(hostbuf_arena *own) noexcept : own_(own) {}

    /// Makes a T in the buffer. If T takes an allocator, its memory comes from the buffer too. The
    /// object is never destroyed.
    template <class T, class... Arguments>
    T *make(Arguments &&...arguments)
    {
        std::pmr::polymorphic_allocator<T> allocator(this);
        T *at = allocator.allocate(1);
        allocator.construct(at, std::forward<Arguments>(arguments)...);
        return at;
    }

    /// Allocates `count` zeroed objects, for numbers and other types with a valid all-zero value.
    template <class T>
    view<T> array(std::size_t count)
    {
        static_assert(std::is_trivially_copyable<T>::value, "zero bytes are no value of such a type");
        if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
        return {static_cast<T *>(allocate(count * sizeof(T), alignof(T))), count};
    }

    /// Returns the number of free bytes.
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

/// The options of a new buffer, which hostbuf_options describes:
///
///     hostbuf::options().section("grid", 4ull << 30, "0").section("halo", 1 << 30, "interleave")
class options {
public:
    /// Makes the options of a buffer of `size` bytes. With 0 it has the size of its sections.
    explicit options(std::uint64_t size = 0) noexcept : size_(size) {}

    options &name(const char *name)
    {
        name_ = kept(name);
        return *this;
    }

    options &pages(hostbuf_pages pages) noexcept
    {
        pages_ = pages;
        return *this;
    }

    /// Leaves the allocation of the pages to the first access.
    options &lazy() noexcept
    {
        lazy_ = true;
        return *this;
    }

    /// Includes the contents in core files.
    options &dump() noexcept
    {
        dump_ = true;
        return *this;
    }

    /// Sets the NUMA nodes of the pages, such as "0", "0,1" or "interleave".
    options &numa(const char *numa)
    {
        numa_ = kept(numa);
        return *this;
    }

    /// Adds a section behind the others. Without `numa` it has the NUMA nodes of the buffer.
    options &section(const char *name, std::uint64_t size, const char *numa = nullptr)
    {
        sections_.push_back({kept(name), size, kept(numa)});
        return *this;
    }

private:
    friend class buffer;

    using text = std::optional<std::string>;

    struct part {
        text name;
        std::uint64_t size;
        text numa;
    };

    static text kept(const char *words) { return words ? text(words) : text(); }
    static const char *c_str(const text &words) noexcept { return words ? words->c_str() : nullptr; }

    /// Calls `use` with the options in C, which are valid during the call.
    template <class Use>
    void in_c(Use use) const
    {
        std::vector<hostbuf_section_options> parts;
        for (const part &from : sections_) parts.push_back(HOSTBUF_SECTION(c_str(from.name), from.size, c_str(from.numa)));
        hostbuf_options own = HOSTBUF_OPTIONS_INIT;
        own.size = size_;
        own.name = c_str(name_);
        own.pages = pages_;
        own.lazy = lazy_;
        own.dump = dump_;
        own.numa = c_str(numa_);
        own.sections = parts.data();
        own.section_count = parts.size();
        use(own);
    }

    std::uint64_t size_;
    text name_, numa_;
    hostbuf_pages pages_ = HOSTBUF_PAGES_AUTO;
    bool lazy_ = false, dump_ = false;
    std::vector<part> sections_;
};

/// A host's shared memory, mapped at the agreed address.
class buffer {
public:
    /// Attaches to the buffer `name` that the launcher mapped in this process before main, or to
    /// the first buffer.
    static buffer attach(const char *name = nullptr)
    {
        hostbuf_buffer *made;
        check(hostbuf_attach(name, &made));
        return buffer(made);
    }

    /// Returns whether a launcher has started this process. The result is the same in all ranks of
    /// a job.
    static bool launched() noexcept { return hostbuf_launched(); }

    /// Allocates a buffer without a launcher, on all hosts of `group`. A null `group` is this
    /// process alone. Collective.
    static buffer allocate(const hostbuf_collective *group, const hostbuf_options &options)
    {
        hostbuf_buffer *made;
        check(hostbuf_allocate(group, &options, &made));
        return buffer(made);
    }

    static buffer allocate(const hostbuf_collective *group, const options &with)
    {
        hostbuf_buffer *made = nullptr;
        with.in_c([&](const hostbuf_options &own) { check(hostbuf_allocate(group, &own, &made)); });
        return buffer(made);
    }

    static buffer allocate(const hostbuf_collective *group, std::uint64_t size)
    {
        hostbuf_options options = HOSTBUF_OPTIONS_INIT;
        options.size = size;
        return allocate(group, options);
    }

    explicit buffer(hostbuf_buffer *own) noexcept : own_(own) {}
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

    /// Returns the whole buffer as objects of one type. Use a const type after the buffer is
    /// frozen.
    template <class T>
    view<T> as() const
    {
        static_assert(std::is_trivially_copyable<typename std::remove_cv<T>::type>::value, "bytes are no value of such a type");
        return {static_cast<T *>(data()), size() / sizeof(T)};
    }

    /// Returns a section as objects of one type, at one address in all ranks of all hosts.
    template <class T = std::byte>
    view<T> section(const char *name) const
    {
        static_assert(std::is_trivially_copyable<typename std::remove_cv<T>::type>::value, "bytes are no value of such a type");
        const hostbuf_section_info info = section_info(name);
        return {static_cast<T *>(info.address), info.size / sizeof(T)};
    }

    /// Returns the address and the placement of a section. Its pointers are valid as long as the
    /// buffer.
    hostbuf_section_info section_info(const char *name) const
    {
        hostbuf_section_info info = HOSTBUF_SECTION_INFO_INIT;
        check(hostbuf_section(own_, name, &info));
        return info;
    }

    /// Returns all sections, from the beginning of the buffer on. If the buffer has sections or a
    /// placement, the rest of its memory, if any, is a last section with an empty name.
    std::vector<hostbuf_section_info> sections() const
    {
        std::vector<hostbuf_section_info> all(hostbuf_section_count(own_), hostbuf_section_info HOSTBUF_SECTION_INFO_INIT);
        for (std::size_t at = 0; at < all.size(); ++at) check(hostbuf_section_at(own_, at, &all[at]));
        return all;
    }

    /// Returns a GPU section.
    hostbuf::gpu_section gpu_section(const char *name) const { return {own_, name}; }

    hostbuf_info stat() const
    {
        hostbuf_info info = HOSTBUF_INFO_INIT;
        check(hostbuf_stat(own_, &info));
        return info;
    }

    /// Fills the buffer by `fill(arena &)` in one rank of this host. `fill` returns a T that it
    /// made in the buffer, and all ranks get it. An exception of `fill` is rethrown in the rank
    /// that ran it.
    template <class T, class Fill>
    const T &initialize(Fill &&fill)
    {
        return filled<T>(fill, [this](hostbuf_fill_function function, void *argument, void **root) {
            return hostbuf_initialize(own_, function, argument, root);
        });
    }

    /// Fills the buffer in rank 0 of `group` and sends it to all hosts of the group. It is an error
    /// if the buffer is filled already. Collective.
    template <class T, class Fill>
    const T &initialize_job(const hostbuf_collective *group, Fill &&fill)
    {
        return filled<T>(fill, [this, group](hostbuf_fill_function function, void *argument, void **root) {
            return hostbuf_initialize_job(own_, group, function, argument, root);
        });
    }

    /// Returns the root object, or null while the buffer is not filled.
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

    /// Makes the buffer permanently read-only in all ranks. Collective.
    hostbuf_proof freeze(const hostbuf_collective *group)
    {
        hostbuf_proof proof;
        check(hostbuf_freeze(own_, group, &proof));
        return proof;
    }

private:
    template <class Fill>
    struct call {
        Fill &fill;
        std::exception_ptr thrown;
    };

    /// Calls `fill` and stores its exception, since no exception may pass through hostbuf.
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
            hostbuf_arena_fail(own, "the fill function has thrown an object that is no std::exception");
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

/// A device for the registration of memory: "mlock", "cuda", "cuda:1", "rdma", "rdma:mlx5_0".
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

    /// Returns whether this process can use the device.
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

/// A registration of a part of a buffer with a device. The destructor ends it.
class registration {
public:
    registration(const buffer &of, const device &with, int access = HOSTBUF_READ, std::size_t offset = 0,
                 std::size_t length = 0)
    {
        check(hostbuf_register(of.get(), with.get(), offset, length, access, &own_));
    }
    registration(registration &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    registration &operator=(registration &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~registration()
    {
        if (own_) (void)hostbuf_deregister(own_);
    }

    /// Returns the key for requests to the device, or zeros if the registration was moved from.
    hostbuf_key key() const noexcept
    {
        hostbuf_key key = HOSTBUF_KEY_INIT;
        (void)hostbuf_registration_key(own_, &key);
        return key;
    }

private:
    hostbuf_registration *own_ = nullptr;
};

/// A lease of a registration in a cache. The destructor puts it back.
class lease {
public:
    explicit lease(const hostbuf_lease &own) noexcept : own_(own) {}
    lease(lease &&other) noexcept : own_(std::exchange(other.own_, hostbuf_lease HOSTBUF_LEASE_INIT)) {}
    lease &operator=(lease &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~lease() { hostbuf_cache_put(&own_); }

    hostbuf_key key() const noexcept
    {
        return {sizeof(hostbuf_key), own_.device_address, own_.local_key, own_.remote_key};
    }

private:
    hostbuf_lease own_;
};

/// A registration cache. Its leases must be destroyed before it.
class cache {
public:
    /// Makes a cache of at most `registrations` at a time, and of at most `bytes` registered bytes.
    /// A limit of 0 takes the value from the environment.
    explicit cache(const device &of, std::size_t registrations = 0, std::size_t bytes = 0,
                   hostbuf_monitor_mode monitor = HOSTBUF_MONITOR_DEFAULT)
    {
        check(hostbuf_cache_open(of.get(), registrations, bytes, monitor, &own_));
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
        hostbuf_lease held = HOSTBUF_LEASE_INIT;
        check(hostbuf_cache_get(own_, start, length, access, &held));
        return lease(held);
    }

    void invalidate(const void *start, std::size_t length) { check(hostbuf_cache_invalidate(own_, start, length)); }
    void flush() { check(hostbuf_cache_flush(own_)); }

    hostbuf_cache_stats stat() const
    {
        hostbuf_cache_stats stats = HOSTBUF_CACHE_STATS_INIT;
        check(hostbuf_cache_stat(own_, &stats));
        return stats;
    }

private:
    hostbuf_cache *own_ = nullptr;
};

#ifdef HOSTBUF_MPI_H
/// The ranks of an MPI communicator, of which it holds a duplicate. All ranks construct and destroy
/// it, before MPI_Finalize.
class mpi_group {
public:
    explicit mpi_group(MPI_Comm comm)
    {
        int code = hostbuf_mpi_collective(comm, &own_);
        if (code == MPI_SUCCESS) return;
        char text[MPI_MAX_ERROR_STRING + 1] = "";
        hostbuf_mpi_describe(nullptr, code, text, sizeof text);
        throw std::runtime_error(std::string("cannot make a group of this communicator (expected an intracommunicator): ") + text);
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
