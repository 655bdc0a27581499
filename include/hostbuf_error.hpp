/* The errors of hostbuf's calls in C++17. hostbuf.hpp includes it. */
#ifndef HOSTBUF_ERROR_HPP
#define HOSTBUF_ERROR_HPP

#include <stdexcept>

#include "hostbuf.h"

namespace hostbuf {

/// The error of a call; what() returns its message, one line.
class error : public std::runtime_error {
public:
    explicit error(hostbuf_status status) : std::runtime_error(hostbuf_message()), status_(status) {}

    hostbuf_status status() const noexcept { return status_; }

private:
    hostbuf_status status_;
};

/// Throws an `error` unless `status` is HOSTBUF_OK.
inline void check(hostbuf_status status)
{
    if (status != HOSTBUF_OK) throw error(status);
}

} // namespace hostbuf

#endif
