/* hostbuf's GPU sections for C++17. hostbuf.hpp includes it.
 *
 *     hostbuf::gpu_section table = buffer.gpu_section("table");
 *     auto values = reinterpret_cast<double *>(table.address());    // in kernels and copies only
 */
#ifndef HOSTBUF_GPU_SECTION_HPP
#define HOSTBUF_GPU_SECTION_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hostbuf.h"
#include "hostbuf_error.hpp"

namespace hostbuf {

/// The part of a section on one GPU.
struct gpu_piece {
    /// The number of the GPU on its host, in the order of the PCI addresses.
    std::uint32_t gpu;
    std::uint64_t bytes;
};

/// A section of a buffer on one or several GPUs, valid as long as the buffer.
class gpu_section {
public:
    gpu_section(hostbuf_buffer *own, const char *name) : own_(own) { check(hostbuf_gpu_section(own, name, &info_)); }

    /// Returns the name, valid as long as the buffer.
    const char *name() const noexcept { return info_.name; }

    /// Returns the address of the first byte on the GPUs, a device pointer: the same in every rank
    /// of every host that uses GPUs.
    std::uint64_t address() const noexcept { return info_.address; }

    /// Returns the number of bytes: the requested size, rounded up to a multiple of 2 MiB, and at
    /// least 2 MiB for each entry of gpu=.
    std::size_t bytes() const noexcept { return info_.bytes; }

    /// Returns the pieces, in the order of their addresses.
    std::vector<gpu_piece> pieces() const
    {
        std::vector<gpu_piece> all;
        for (std::uint32_t at = 0; at < info_.piece_count; ++at) all.push_back({info_.piece_gpus[at], info_.piece_bytes[at]});
        return all;
    }

    /// Returns whether the section has been frozen on this host.
    bool frozen() const
    {
        hostbuf_gpu_section_info now = HOSTBUF_GPU_SECTION_INFO_INIT;
        check(hostbuf_gpu_section(own_, info_.name, &now));
        return now.frozen;
    }

    /// Makes the section permanently read-only for the GPUs of all ranks of `group`. Finish all
    /// work that writes to it first. The proof is always HOSTBUF_WEAKER; hostbuf_message() returns
    /// the reason. Collective over all ranks that use GPUs.
    hostbuf_proof freeze(const hostbuf_collective *group)
    {
        hostbuf_proof proof;
        check(hostbuf_gpu_section_freeze(own_, info_.name, group, &proof));
        return proof;
    }

private:
    hostbuf_buffer *own_;
    hostbuf_gpu_section_info info_ = HOSTBUF_GPU_SECTION_INFO_INIT;
};

} // namespace hostbuf

#endif
