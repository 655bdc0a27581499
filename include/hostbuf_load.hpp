/* hostbuf's loading of tensors for C++17: files that are read once per job into the memory that all
 * ranks share. Handles release themselves, and errors are exceptions.
 *
 *     #include <hostbuf_mpi.h>
 *     #include <hostbuf_load.hpp>
 *
 *     hostbuf::mpi_group group(MPI_COMM_WORLD);
 *     auto loaded = hostbuf::allocate_and_load(group, {"model.safetensors"});
 *     hostbuf::view<const float> weights = loaded.tensors.as<float>("weights");
 *     hostbuf::slice own = loaded.tensors.slice("weights", 0, rank, ranks);
 */
#ifndef HOSTBUF_LOAD_HPP
#define HOSTBUF_LOAD_HPP

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hostbuf.hpp"

namespace hostbuf {

/// A slice of a tensor, which keeps the buffer mapped.
class slice {
public:
    explicit slice(hostbuf_slice *own) noexcept : own_(own) {}
    slice(slice &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    slice &operator=(slice &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~slice() { hostbuf_slice_free(own_); }

    /// Returns the shape. Its array is valid as long as the slice.
    hostbuf_slice_info stat() const
    {
        hostbuf_slice_info info = HOSTBUF_SLICE_INFO_INIT;
        check(hostbuf_slice_stat(own_, &info));
        return info;
    }

    /// Returns the number of bytes, packed.
    std::uint64_t bytes() const { return stat().bytes; }

    std::vector<std::uint64_t> shape() const
    {
        const hostbuf_slice_info info = stat();
        return info.ndim == 0 ? std::vector<std::uint64_t>() : std::vector<std::uint64_t>(info.shape, info.shape + info.ndim);
    }

    /// Returns the parts: rows at equal distances in the buffer.
    std::vector<hostbuf_slice_part> parts() const
    {
        std::vector<hostbuf_slice_part> all(stat().part_count, hostbuf_slice_part HOSTBUF_SLICE_PART_INIT);
        for (std::size_t at = 0; at < all.size(); ++at) check(hostbuf_slice_part_at(own_, at, &all[at]));
        return all;
    }

    /// Copies the slice, packed, to memory that has exactly its bytes.
    void copy(void *memory, std::size_t size) const { check(hostbuf_slice_copy(own_, memory, size)); }

    /// Returns the elements, packed.
    template <class T>
    std::vector<T> copied() const
    {
        static_assert(std::is_trivially_copyable<T>::value, "bytes are no value of such a type");
        const std::uint64_t size = bytes();
        if (size % sizeof(T) != 0) throw std::invalid_argument("hostbuf::slice: the slice has no whole number of such elements");
        std::vector<T> all(static_cast<std::size_t>(size / sizeof(T)));
        copy(all.data(), static_cast<std::size_t>(size));
        return all;
    }

    /// Copies the slice, packed, to an address of a GPU, after the work that `stream` has now, and
    /// waits for the end.
    void copy_gpu(std::uint32_t gpu, std::uint64_t address, void *stream = nullptr) const
    {
        const hostbuf_slice *const own = own_;
        check(hostbuf_slices_copy_gpu(&own, &address, 1, gpu, stream, nullptr));
    }

    hostbuf_slice *get() const noexcept { return own_; }

private:
    hostbuf_slice *own_;
};

/// Copies slices of the same tensors to the addresses of a GPU, and returns the number of bytes.
/// One call for many slices is faster than many calls.
inline std::uint64_t copy_gpu(const std::vector<const slice *> &slices, const std::vector<std::uint64_t> &addresses, std::uint32_t gpu,
                              void *stream = nullptr)
{
    if (slices.size() != addresses.size()) throw std::invalid_argument("hostbuf::copy_gpu: expected one address for each slice");
    std::vector<const hostbuf_slice *> own;
    for (const slice *each : slices) own.push_back(each->get());
    std::uint64_t bytes = 0;
    check(hostbuf_slices_copy_gpu(own.data(), addresses.data(), own.size(), gpu, stream, &bytes));
    return bytes;
}

/// A tensor that lies behind others along a dimension of a fused one. With `shares` 0 each rank
/// takes a share of its own.
struct fused_part {
    std::uint64_t size;
    std::size_t shares = 0;
};

/// The descriptions of tensors, and their slices. Threads may share them.
class tensor_table {
public:
    std::size_t size() const noexcept { return hostbuf_tensors_count(own_); }

    /// Returns a tensor by its number, in the order of the names. Its pointers are valid as long as
    /// the tensors.
    hostbuf_tensor at(std::size_t index) const
    {
        hostbuf_tensor found = HOSTBUF_TENSOR_INIT;
        check(hostbuf_tensors_at(own_, index, &found));
        return found;
    }

    /// Returns a tensor, or throws an error with HOSTBUF_NOTHING if there is none of this name.
    hostbuf_tensor at(const std::string &name) const
    {
        hostbuf_tensor found = HOSTBUF_TENSOR_INIT;
        check(hostbuf_tensors_find(own_, name.c_str(), &found));
        return found;
    }

    /// Returns a tensor, or nothing if there is none of this name.
    std::optional<hostbuf_tensor> find(const std::string &name) const
    {
        hostbuf_tensor found = HOSTBUF_TENSOR_INIT;
        const hostbuf_status status = hostbuf_tensors_find(own_, name.c_str(), &found);
        if (status == HOSTBUF_NOTHING) return std::nullopt;
        check(status);
        return found;
    }

    /// Returns the slice of all elements.
    hostbuf::slice whole(const std::string &name) const
    {
        return made([&](hostbuf_slice **to) { return hostbuf_tensors_whole(own_, name.c_str(), to); });
    }

    /// Returns the part of a rank along a dimension, as torch.chunk divides it.
    hostbuf::slice slice(const std::string &name, std::size_t dim, std::size_t rank, std::size_t ranks) const
    {
        return made([&](hostbuf_slice **to) { return hostbuf_tensors_slice(own_, name.c_str(), dim, rank, ranks, to); });
    }

    /// Returns the shares of a rank of each part of a fused tensor.
    hostbuf::slice fused_slice(const std::string &name, std::size_t dim, const std::vector<fused_part> &parts, std::size_t rank,
                               std::size_t ranks) const
    {
        std::vector<std::uint64_t> sizes;
        std::vector<std::size_t> shares;
        for (const fused_part &part : parts) {
            sizes.push_back(part.size);
            shares.push_back(part.shares);
        }
        return made([&](hostbuf_slice **to) {
            return hostbuf_tensors_fused_slice(own_, name.c_str(), dim, sizes.data(), shares.data(), parts.size(), rank, ranks, to);
        });
    }

protected:
    explicit tensor_table(hostbuf_tensors *own = nullptr) noexcept : own_(own) {}

    hostbuf_tensors *own_;

private:
    template <class Make>
    static hostbuf::slice made(Make make)
    {
        hostbuf_slice *own;
        check(make(&own));
        return hostbuf::slice(own);
    }
};

/// The tensors that were loaded into a buffer, which stays mapped as long as they exist. Threads
/// may share them.
class tensors : public tensor_table {
public:
    /// Finds the tensors of a buffer into which any program of the job has loaded files.
    explicit tensors(const buffer &loaded) { check(hostbuf_tensors_open(loaded.get(), &own_)); }
    explicit tensors(hostbuf_tensors *own) noexcept : tensor_table(own) {}
    tensors(tensors &&other) noexcept : tensor_table(std::exchange(other.own_, nullptr)) {}
    tensors &operator=(tensors &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~tensors() { hostbuf_tensors_free(own_); }

    /// Returns the elements of a tensor in the buffer. The program states their type.
    template <class T>
    view<const T> as(const std::string &name) const
    {
        static_assert(std::is_trivially_copyable<T>::value, "bytes are no value of such a type");
        const hostbuf_tensor found = at(name);
        if (found.bytes % sizeof(T) != 0) throw std::invalid_argument("hostbuf::tensors: \"" + name + "\" has no whole number of such elements");
        if (reinterpret_cast<std::uintptr_t>(found.address) % alignof(T) != 0)
            throw std::invalid_argument("hostbuf::tensors: \"" + name + "\" is not aligned for such elements");
        return {static_cast<const T *>(found.address), static_cast<std::size_t>(found.bytes / sizeof(T))};
    }

    hostbuf_tensors *get() const noexcept { return own_; }
};

/// A new buffer, and the tensors that were loaded into it.
struct loaded_tensors {
    hostbuf::buffer buffer;
    hostbuf::tensors tensors;
};

/// Loads files, or folders of them, into an empty buffer. Collective.
inline tensors load(const buffer &into, const hostbuf_collective *group, const std::vector<std::string> &paths,
                    const hostbuf_load_options &options = HOSTBUF_LOAD_OPTIONS_INIT)
{
    std::vector<const char *> own;
    for (const std::string &path : paths) own.push_back(path.c_str());
    hostbuf_tensors *made;
    check(hostbuf_load(into.get(), group, own.data(), own.size(), &options, &made));
    return tensors(made);
}

/// Allocates a buffer of the size that the files need, and loads them. A null `group` is this
/// process alone. Collective.
inline loaded_tensors allocate_and_load(const hostbuf_collective *group, const std::vector<std::string> &paths,
                                        const hostbuf_load_options &options = HOSTBUF_LOAD_OPTIONS_INIT,
                                        const hostbuf_options &buffer_options = HOSTBUF_OPTIONS_INIT)
{
    std::vector<const char *> own;
    for (const std::string &path : paths) own.push_back(path.c_str());
    hostbuf_buffer *allocated;
    hostbuf_tensors *made;
    check(hostbuf_allocate_and_load(group, &buffer_options, own.data(), own.size(), &options, &allocated, &made));
    return {buffer(allocated), tensors(made)};
}

/// Returns the tensors that `hostbuf run --load` has loaded before `main`, and their buffer, or
/// nothing if it has loaded none. Not collective.
inline std::optional<loaded_tensors> loaded()
{
    hostbuf_buffer *own;
    hostbuf_tensors *found;
    const hostbuf_status status = hostbuf_tensors_loaded(&own, &found);
    if (status == HOSTBUF_NOTHING) return std::nullopt;
    check(status);
    return loaded_tensors{buffer(own), tensors(found)};
}

/// The places on a GPU of the tensors of a load, or of slices of them.
class slice_targets {
public:
    explicit slice_targets(hostbuf_slice_targets *own) noexcept : own_(own) {}

    /// Adds a slice, and the address on the GPU to which the load copies it, packed.
    void add(const slice &part, std::uint64_t address) { check(hostbuf_slice_targets_add(own_, part.get(), address)); }

private:
    hostbuf_slice_targets *own_;
};

namespace detail {

/// The descriptions of tensors that are being loaded. The library owns them.
class announced_tensors : public tensor_table {
public:
    explicit announced_tensors(const hostbuf_tensors *own) noexcept : tensor_table(const_cast<hostbuf_tensors *>(own)) {}
};

template <class Choose>
struct target_choice {
    Choose &choose;
    std::exception_ptr thrown;

    /// Calls `choose` and stores its exception, since no exception may pass through hostbuf.
    static int run(const hostbuf_tensors *own, hostbuf_slice_targets *targets, void *argument) noexcept
    {
        auto &made = *static_cast<target_choice *>(argument);
        try {
            const announced_tensors table(own);
            slice_targets to(targets);
            made.choose(static_cast<const tensor_table &>(table), to);
            return 0;
        } catch (...) {
            made.thrown = std::current_exception();
            return 1;
        }
    }
};

} // namespace detail

/// Loads files into an empty buffer, and copies the slices that
/// `choose(const tensor_table &, slice_targets &)` adds to a GPU of this rank meanwhile. The
/// function runs in a thread of the library, in which the GPU is current. An exception of it is
/// thrown again, after the load. Collective.
template <class Choose>
tensors load_to_gpu(const buffer &into, const hostbuf_collective *group, const std::vector<std::string> &paths, std::uint32_t gpu,
                    Choose choose, void *stream = nullptr, const hostbuf_load_options &options = HOSTBUF_LOAD_OPTIONS_INIT)
{
    std::vector<const char *> own;
    for (const std::string &path : paths) own.push_back(path.c_str());
    detail::target_choice<Choose> made{choose, nullptr};
    hostbuf_tensors *found;
    const hostbuf_status status = hostbuf_load_to_gpu(into.get(), group, own.data(), own.size(), &options, gpu, stream,
                                                      &detail::target_choice<Choose>::run, &made, &found);
    if (made.thrown) std::rethrow_exception(made.thrown);
    check(status);
    return tensors(found);
}

} // namespace hostbuf

#endif
