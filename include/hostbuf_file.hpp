/* hostbuf's files for C++17: transfers between files and memory of the host or of a GPU. Handles
 * release themselves, and errors are exceptions.
 *
 *     #include <hostbuf_file.hpp>
 *
 *     hostbuf::file file("model.bin");
 *     std::vector<float> weights(file.size() / sizeof(float));
 *     hostbuf::transfer transfer = file.pread(weights.data(), weights.size() * sizeof(float));
 *     prepare();                                         // meanwhile
 *     transfer.wait();
 */
#ifndef HOSTBUF_FILE_HPP
#define HOSTBUF_FILE_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "hostbuf.hpp"

namespace hostbuf {

/// A transfer. The destructor cancels it if it has not ended, and waits until nothing accesses its
/// memory. It may outlive its file.
class transfer {
public:
    explicit transfer(hostbuf_transfer *own) noexcept : own_(own) {}
    transfer(transfer &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    transfer &operator=(transfer &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~transfer() { hostbuf_transfer_free(own_); }

    /// Waits until the transfer has ended, and returns the number of its bytes.
    std::uint64_t wait() const
    {
        std::uint64_t bytes;
        check(hostbuf_transfer_wait(own_, &bytes));
        return bytes;
    }

    /// Returns what wait() returns, or nothing if the transfer has not ended.
    std::optional<std::uint64_t> test() const
    {
        std::uint64_t bytes;
        const hostbuf_status status = hostbuf_transfer_test(own_, &bytes);
        if (status == HOSTBUF_NOTHING) return std::nullopt;
        check(status);
        return bytes;
    }

    /// Cancels the transfer. Its memory is in use until wait() has returned or thrown.
    void cancel() const noexcept { hostbuf_transfer_cancel(own_); }
    /// Returns the number of bytes at the beginning that have landed.
    std::uint64_t landed() const noexcept { return hostbuf_transfer_landed(own_); }
    hostbuf_transfer *get() const noexcept { return own_; }

private:
    hostbuf_transfer *own_;
};

/// A file for transfers. Threads may share it.
class file {
public:
    explicit file(const std::string &path, hostbuf_file_mode mode = HOSTBUF_FILE_READ, const char *backend = nullptr)
    {
        hostbuf_file_options options = HOSTBUF_FILE_OPTIONS_INIT;
        options.mode = mode;
        options.backend = backend;
        check(hostbuf_file_open(path.c_str(), &options, &own_));
    }
    file(file &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    file &operator=(file &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~file() { hostbuf_file_close(own_); }

    std::uint64_t size() const
    {
        std::uint64_t bytes;
        check(hostbuf_file_size(own_, &bytes));
        return bytes;
    }

    /// Writes what the page cache has of the file to the disk.
    void sync() const { check(hostbuf_file_sync(own_)); }
    /// Returns the name of the backend, and the reason for it.
    std::string backend() const { return hostbuf_file_backend(own_); }
    std::string backend_reason() const { return hostbuf_file_backend_reason(own_); }
    hostbuf_file *get() const noexcept { return own_; }

    /// Starts to read into memory of the host, which stays until the transfer has ended.
    transfer pread(void *memory, std::size_t size, std::uint64_t offset = 0) const
    {
        return started([&](hostbuf_transfer **to) { return hostbuf_file_pread(own_, memory, size, offset, to); });
    }

    /// Starts to write memory of the host.
    transfer pwrite(const void *memory, std::size_t size, std::uint64_t offset = 0) const
    {
        return started([&](hostbuf_transfer **to) { return hostbuf_file_pwrite(own_, memory, size, offset, to); });
    }

    /// Starts to read into memory of a GPU, after the work that `stream` has now.
    transfer pread_gpu(std::uint32_t gpu, std::uint64_t address, std::size_t size, std::uint64_t offset = 0, void *stream = nullptr) const
    {
        return started([&](hostbuf_transfer **to) { return hostbuf_file_pread_gpu(own_, gpu, address, size, offset, stream, to); });
    }

    /// Starts to write memory of a GPU, after the work that `stream` has now.
    transfer pwrite_gpu(std::uint32_t gpu, std::uint64_t address, std::size_t size, std::uint64_t offset = 0, void *stream = nullptr) const
    {
        return started([&](hostbuf_transfer **to) { return hostbuf_file_pwrite_gpu(own_, gpu, address, size, offset, stream, to); });
    }

    /// Starts to read in the order of `stream`: later work of the stream waits for the transfer.
    transfer pread_on(void *stream, std::uint32_t gpu, std::uint64_t address, std::size_t size, std::uint64_t offset = 0) const
    {
        return started([&](hostbuf_transfer **to) { return hostbuf_file_pread_on(own_, gpu, address, size, offset, stream, to); });
    }

    /// Starts to write in the order of `stream`: later work of the stream waits for the transfer.
    transfer pwrite_on(void *stream, std::uint32_t gpu, std::uint64_t address, std::size_t size, std::uint64_t offset = 0) const
    {
        return started([&](hostbuf_transfer **to) { return hostbuf_file_pwrite_on(own_, gpu, address, size, offset, stream, to); });
    }

private:
    template <class Start>
    static transfer started(Start start)
    {
        hostbuf_transfer *made;
        check(start(&made));
        return transfer(made);
    }

    hostbuf_file *own_ = nullptr;
};

} // namespace hostbuf

#endif
