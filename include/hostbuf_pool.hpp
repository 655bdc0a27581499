/* hostbuf's pool for C++17: blocks of memory that one process writes and other processes of the
 * host read in place. Handles release themselves, and errors are exceptions.
 *
 *     #include <hostbuf_pool.hpp>
 *
 *     hostbuf::pool pool("camera");                      // in the process of the camera
 *     auto frames = pool.producer(8294400);
 *     hostbuf::block block = frames.take();
 *     capture(block.data(), block.size());
 *     send(block.publish());                             // a hostbuf_token, by any transport
 *
 *     hostbuf::pool pool("viewer");                      // in another process
 *     hostbuf::block_ref frame = pool.acquire(token);
 *     for (auto pixel : frame.as<const std::uint16_t>()) use(pixel);
 */
#ifndef HOSTBUF_POOL_HPP
#define HOSTBUF_POOL_HPP

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "hostbuf.hpp"

namespace hostbuf {

/// A reader's hold on a published block. The destructor releases it, and the producer does not
/// reuse the block before. It may outlive its pool.
class block_ref {
public:
    explicit block_ref(hostbuf_block_ref *own) noexcept : own_(own) {}
    /// Adds a hold on the same block.
    block_ref(const block_ref &other)
    {
        if (other.own_) check(hostbuf_block_ref_clone(other.own_, &own_));
    }
    block_ref(block_ref &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    block_ref &operator=(block_ref other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~block_ref() { hostbuf_block_ref_release(&own_); }

    const void *data() const noexcept { return hostbuf_block_ref_data(own_); }
    /// Returns the number of bytes of the content.
    std::size_t size() const noexcept { return hostbuf_block_ref_size(own_); }
    hostbuf_block_ref *get() const noexcept { return own_; }

    /// Returns the content as objects of one type, which is const.
    template <class T = const std::byte>
    view<T> as() const
    {
        static_assert(std::is_const<T>::value, "a published block is read-only");
        static_assert(std::is_trivially_copyable<typename std::remove_cv<T>::type>::value, "bytes are no value of such a type");
        return {static_cast<T *>(data()), data() ? size() / sizeof(T) : 0};
    }

    /// Returns the address at which a device reads the content while the block is held, or nothing
    /// if the program has to copy it; hostbuf_message() is then the reason.
    std::optional<std::uint64_t> dma(const char *device = "cuda") const
    {
        std::uint64_t address;
        const hostbuf_status status = hostbuf_block_ref_dma(own_, device, &address);
        if (status == HOSTBUF_UNSUPPORTED) return std::nullopt;
        check(status);
        return address;
    }

    /// Releases the hold when `is_complete(argument)` is not 0. It does not wait: a thread calls
    /// the function.
    void release_after(hostbuf_completion_function is_complete, void *argument)
    {
        check(hostbuf_block_ref_release_after(&own_, is_complete, argument));
    }

    hostbuf_block_header header() const
    {
        hostbuf_block_header header = HOSTBUF_BLOCK_HEADER_INIT;
        check(hostbuf_block_ref_header(own_, &header));
        return header;
    }

private:
    hostbuf_block_ref *own_ = nullptr;
};

/// A block that its producer writes. The destructor frees it unless it was published. It may
/// outlive its producer and its pool.
class block {
public:
    explicit block(hostbuf_block *own) noexcept : own_(own) {}
    block(block &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    block &operator=(block &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~block() { hostbuf_block_free(&own_); }

    void *data() const noexcept { return hostbuf_block_data(own_); }
    std::size_t size() const noexcept { return hostbuf_block_size(own_); }
    /// Returns false once the block is published.
    explicit operator bool() const noexcept { return own_ != nullptr; }
    hostbuf_block *get() const noexcept { return own_; }

    /// Returns the whole block as objects of one type.
    template <class T = std::byte>
    view<T> as() const
    {
        static_assert(std::is_trivially_copyable<typename std::remove_cv<T>::type>::value, "bytes are no value of such a type");
        return {static_cast<T *>(data()), data() ? size() / sizeof(T) : 0};
    }

    /// Publishes the content and returns its token. Nothing may write to the block afterwards.
    /// After an exception the block is not published.
    hostbuf_token publish(const hostbuf_content &content)
    {
        hostbuf_token token;
        check(hostbuf_block_publish(&own_, &content, &token));
        return token;
    }

    /// Publishes the whole block as bytes.
    hostbuf_token publish() { return publish(HOSTBUF_CONTENT_INIT); }

private:
    hostbuf_block *own_;
};

namespace detail {

/// The functions of hostbuf.h for a request of a block on the host.
struct host_request {
    using block = hostbuf::block;
    using native_block = hostbuf_block;
    using native = hostbuf_pending_block;
    static hostbuf_status get(const native *pending, native_block **to) { return hostbuf_pending_block_get(pending, to); }
    static void close(native *pending) { hostbuf_pending_block_close(pending); }
};

}    // namespace detail

/// A block that a program waits for, from producer::take_async() or gpu_producer::take_async(). It
/// is used as a std::future. The destructor cancels the request: it gives up its place, and the
/// block that it has got meanwhile is free. If the producer is closed before, the request ends with
/// an error, HOSTBUF_CLOSED.
template <class Request>
class basic_pending_block {
public:
    using block_type = typename Request::block;

    /// Makes a request by `start(ready, argument, to)`, which calls `ready(argument)` once there is
    /// a result.
    template <class Start, class = std::enable_if_t<!std::is_same<std::decay_t<Start>, basic_pending_block>::value>>
    explicit basic_pending_block(const Start &start) : own_(std::make_unique<request>())
    {
        hostbuf_ready_function ready = [](void *argument) {
            auto *own = static_cast<request *>(argument);
            const std::lock_guard<std::mutex> lock(own->mutex);
            own->is_ready = true;
            own->changed.notify_all();
        };
        check(start(ready, static_cast<void *>(own_.get()), &own_->native));
    }

    /// Returns false once get() was called.
    bool valid() const noexcept { return own_ != nullptr; }

    /// Waits until there is a result.
    void wait() const
    {
        auto lock = locked();
        own_->changed.wait(lock, [this] { return own_->is_ready; });
    }

    /// Waits until there is a result, at most for `limit`.
    template <class Rep, class Period>
    std::future_status wait_for(const std::chrono::duration<Rep, Period> &limit) const
    {
        return wait_until(std::chrono::steady_clock::now() + limit);
    }

    /// Waits until there is a result, at most until `end`.
    template <class Clock, class Duration>
    std::future_status wait_until(const std::chrono::time_point<Clock, Duration> &end) const
    {
        auto lock = locked();
        const bool is_ready = own_->changed.wait_until(lock, end, [this] { return own_->is_ready; });
        return is_ready ? std::future_status::ready : std::future_status::timeout;
    }

    /// Waits until there is a result, and returns the block. Throws an error with HOSTBUF_CLOSED if
    /// the producer was closed before. It can be called once.
    block_type get()
    {
        if (!own_) throw std::future_error(std::future_errc::no_state);
        const std::unique_ptr<request> ended = std::move(own_);
        typename Request::native_block *taken;
        hostbuf_status status = Request::get(ended->native, &taken);
        if (status == HOSTBUF_NOTHING) {
            std::unique_lock<std::mutex> lock(ended->mutex);
            ended->changed.wait(lock, [&ended] { return ended->is_ready; });
            lock.unlock();
            status = Request::get(ended->native, &taken);
        }
        check(status);
        return block_type(taken);
    }

private:
    struct request {
        std::mutex mutex;
        std::condition_variable changed;
        bool is_ready = false;
        typename Request::native *native = nullptr;

        request() = default;
        request(const request &) = delete;
        request &operator=(const request &) = delete;
        /// Nobody has the lock afterwards, since it waits for a call of the function.
        ~request() { Request::close(native); }
    };

    std::unique_lock<std::mutex> locked() const
    {
        if (!own_) throw std::future_error(std::future_errc::no_state);
        return std::unique_lock<std::mutex>(own_->mutex);
    }

    std::unique_ptr<request> own_;
};

/// A block that a program waits for, from producer::take_async().
using pending_block = basic_pending_block<detail::host_request>;

/// A producer of blocks, with memory of its own.
class producer {
public:
    explicit producer(hostbuf_producer *own) noexcept : own_(own) {}
    producer(producer &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    producer &operator=(producer &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~producer() { hostbuf_producer_close(own_); }

    std::uint64_t block_bytes() const noexcept { return hostbuf_producer_block_bytes(own_); }
    std::uint32_t blocks() const noexcept { return hostbuf_producer_blocks(own_); }
    hostbuf_producer *get() const noexcept { return own_; }

    /// Takes a free block, for which it waits.
    block take() const
    {
        hostbuf_block *taken;
        check(hostbuf_producer_take(own_, &taken));
        return block(taken);
    }

    /// Takes a free block, if there is one.
    std::optional<block> try_take() const
    {
        hostbuf_block *taken;
        return taken_or(hostbuf_producer_try_take(own_, &taken), taken, HOSTBUF_NOTHING);
    }

    /// Takes a free block, if one becomes free within `limit`; hostbuf_message() then states who
    /// holds the blocks. A negative limit is 0.
    template <class Rep, class Period>
    std::optional<block> take_for(std::chrono::duration<Rep, Period> limit) const
    {
        using std::chrono::nanoseconds;
        const auto left = limit > limit.zero() ? std::chrono::duration_cast<nanoseconds>(limit) : nanoseconds(0);
        hostbuf_block *taken;
        return taken_or(hostbuf_producer_take_timeout(own_, static_cast<std::uint64_t>(left.count()), &taken), taken, HOSTBUF_TIMEOUT);
    }

    /// Takes a free block without waiting for it: the result does, or a thread of hostbuf.
    pending_block take_async() const
    {
        return pending_block([this](auto... request) { return hostbuf_producer_take_async(own_, request...); });
    }

private:
    static std::optional<block> taken_or(hostbuf_status status, hostbuf_block *const &taken, hostbuf_status none)
    {
        if (status == none) return std::nullopt;
        check(status);
        return std::optional<block>(std::in_place, taken);
    }

    hostbuf_producer *own_;
};

/// A reader's hold on a published block on a GPU. The destructor releases it at once, also if the
/// GPU still reads the content; release_after() waits for the GPU. It may outlive its pool.
class gpu_block_ref {
public:
    explicit gpu_block_ref(hostbuf_gpu_block_ref *own) noexcept : own_(own) {}
    /// Adds a hold on the same block.
    gpu_block_ref(const gpu_block_ref &other)
    {
        if (other.own_) check(hostbuf_gpu_block_ref_clone(other.own_, &own_));
    }
    gpu_block_ref(gpu_block_ref &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    gpu_block_ref &operator=(gpu_block_ref other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~gpu_block_ref() { hostbuf_gpu_block_ref_release(&own_); }

    /// Returns the GPU's address of the content, for this process.
    std::uint64_t address() const noexcept { return hostbuf_gpu_block_ref_address(own_); }
    /// Returns the number of bytes of the content.
    std::size_t size() const noexcept { return hostbuf_gpu_block_ref_size(own_); }
    hostbuf_gpu_block_ref *get() const noexcept { return own_; }

    /// Makes all later work on `stream` (a CUstream or cudaStream_t) wait until the GPU has written
    /// the content. Throws an error with HOSTBUF_GONE if its producer has ended before that.
    void wait_ready(void *stream) const { check(hostbuf_gpu_block_ref_wait_ready(own_, stream)); }

    /// Returns whether the GPU has written the content. It does not wait.
    bool is_ready() const
    {
        bool ready;
        check(hostbuf_gpu_block_ref_is_ready(own_, &ready));
        return ready;
    }

    /// Releases the hold when the GPU has completed all work that `stream` has now. It does not
    /// wait.
    void release_after(void *stream) { check(hostbuf_gpu_block_ref_release_after(&own_, stream)); }

    hostbuf_block_header header() const
    {
        hostbuf_block_header header = HOSTBUF_BLOCK_HEADER_INIT;
        check(hostbuf_gpu_block_ref_header(own_, &header));
        return header;
    }

private:
    hostbuf_gpu_block_ref *own_ = nullptr;
};

/// A block on a GPU that its producer writes. The destructor frees it unless it was published; all
/// work that writes it has ended then. It may outlive its producer and its pool.
class gpu_block {
public:
    explicit gpu_block(hostbuf_gpu_block *own) noexcept : own_(own) {}
    gpu_block(gpu_block &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    gpu_block &operator=(gpu_block &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~gpu_block() { hostbuf_gpu_block_free(&own_); }

    /// Returns the GPU's address of the first byte, for this process.
    std::uint64_t address() const noexcept { return hostbuf_gpu_block_address(own_); }
    std::size_t size() const noexcept { return hostbuf_gpu_block_size(own_); }
    /// Returns false once the block is published.
    explicit operator bool() const noexcept { return own_ != nullptr; }
    hostbuf_gpu_block *get() const noexcept { return own_; }

    /// Publishes the content after the work that `stream` (a CUstream or cudaStream_t) has now, and
    /// returns its token. It does not wait. After an exception the block is not published.
    hostbuf_token publish_after(void *stream, const hostbuf_content &content = HOSTBUF_CONTENT_INIT)
    {
        hostbuf_token token;
        check(hostbuf_gpu_block_publish_after(&own_, &content, stream, &token));
        return token;
    }

    /// Publishes the content. All work that writes it has ended.
    hostbuf_token publish(const hostbuf_content &content = HOSTBUF_CONTENT_INIT)
    {
        hostbuf_token token;
        check(hostbuf_gpu_block_publish(&own_, &content, &token));
        return token;
    }

private:
    hostbuf_gpu_block *own_;
};

namespace detail {

/// The functions of hostbuf.h for a request of a block on a GPU.
struct gpu_request {
    using block = gpu_block;
    using native_block = hostbuf_gpu_block;
    using native = hostbuf_pending_gpu_block;
    static hostbuf_status get(const native *pending, native_block **to) { return hostbuf_pending_gpu_block_get(pending, to); }
    static void close(native *pending) { hostbuf_pending_gpu_block_close(pending); }
};

}    // namespace detail

/// A block on a GPU that a program waits for, from gpu_producer::take_async().
using pending_gpu_block = basic_pending_block<detail::gpu_request>;

/// A producer of blocks on a GPU. The destructor waits for the work that writes published blocks,
/// unless blocks that are not published outlive it.
class gpu_producer {
public:
    explicit gpu_producer(hostbuf_gpu_producer *own) noexcept : own_(own) {}
    gpu_producer(gpu_producer &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    gpu_producer &operator=(gpu_producer &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~gpu_producer() { hostbuf_gpu_producer_close(own_); }

    std::uint64_t block_bytes() const noexcept { return hostbuf_gpu_producer_block_bytes(own_); }
    std::uint32_t blocks() const noexcept { return hostbuf_gpu_producer_blocks(own_); }
    hostbuf_gpu_producer *get() const noexcept { return own_; }

    /// Takes a free block, for which it waits.
    gpu_block take() const
    {
        hostbuf_gpu_block *taken;
        check(hostbuf_gpu_producer_take(own_, &taken));
        return gpu_block(taken);
    }

    /// Takes a free block, if there is one.
    std::optional<gpu_block> try_take() const
    {
        hostbuf_gpu_block *taken;
        return taken_or(hostbuf_gpu_producer_try_take(own_, &taken), taken, HOSTBUF_NOTHING);
    }

    /// Takes a free block, if one becomes free within `limit`, as producer::take_for().
    template <class Rep, class Period>
    std::optional<gpu_block> take_for(std::chrono::duration<Rep, Period> limit) const
    {
        using std::chrono::nanoseconds;
        const auto left = limit > limit.zero() ? std::chrono::duration_cast<nanoseconds>(limit) : nanoseconds(0);
        hostbuf_gpu_block *taken;
        return taken_or(hostbuf_gpu_producer_take_timeout(own_, static_cast<std::uint64_t>(left.count()), &taken), taken, HOSTBUF_TIMEOUT);
    }

    /// Takes a free block without waiting for it, as producer::take_async().
    pending_gpu_block take_async() const
    {
        return pending_gpu_block([this](auto... request) { return hostbuf_gpu_producer_take_async(own_, request...); });
    }

private:
    static std::optional<gpu_block> taken_or(hostbuf_status status, hostbuf_gpu_block *const &taken, hostbuf_status none)
    {
        if (status == none) return std::nullopt;
        check(status);
        return std::optional<gpu_block>(std::in_place, taken);
    }

    hostbuf_gpu_producer *own_;
};

/// A connection to a pool of blocks. It ends with its last producer and its last block.
class pool {
public:
    explicit pool(const hostbuf_pool_options &options) { check(hostbuf_pool_connect(&options, &own_)); }

    /// Connects as a client with a name to the pool that the variable HOSTBUF_POOL states.
    explicit pool(const char *name, hostbuf_pool_mode mode = HOSTBUF_POOL_DEFAULT)
    {
        hostbuf_pool_options options = HOSTBUF_POOL_OPTIONS_INIT;
        options.name = name;
        options.mode = mode;
        check(hostbuf_pool_connect(&options, &own_));
    }
    pool(pool &&other) noexcept : own_(std::exchange(other.own_, nullptr)) {}
    pool &operator=(pool &&other) noexcept
    {
        std::swap(own_, other.own_);
        return *this;
    }
    ~pool() { hostbuf_pool_close(own_); }

    /// Returns whether other processes share the pool.
    bool shared() const noexcept { return hostbuf_pool_is_shared(own_); }
    hostbuf_pool *get() const noexcept { return own_; }

    hostbuf::producer producer(const hostbuf_producer_options &options) const
    {
        hostbuf_producer *made;
        check(hostbuf_pool_producer(own_, &options, &made));
        return hostbuf::producer(made);
    }

    /// Makes a producer of `blocks` blocks of `block_bytes` bytes.
    hostbuf::producer producer(std::uint64_t block_bytes, std::uint32_t blocks = 0) const
    {
        hostbuf_producer_options options = HOSTBUF_PRODUCER_OPTIONS_INIT;
        options.block_bytes = block_bytes;
        options.blocks = blocks;
        return producer(options);
    }

    /// Acquires the block of a token. Throws an error with HOSTBUF_GONE if its content is gone.
    block_ref acquire(const hostbuf_token &token) const
    {
        hostbuf_block_ref *held;
        check(hostbuf_pool_acquire(own_, &token, &held));
        return block_ref(held);
    }

    /// Makes a producer of blocks on the GPU with the number `gpu` in this process.
    hostbuf::gpu_producer gpu_producer(const hostbuf_producer_options &options, std::uint32_t gpu = 0) const
    {
        hostbuf_gpu_producer *made;
        check(hostbuf_pool_gpu_producer(own_, &options, gpu, &made));
        return hostbuf::gpu_producer(made);
    }

    /// Acquires the block of a token that lies on a GPU. Throws an error with HOSTBUF_UNSUPPORTED
    /// if this process does not see the GPU, and with HOSTBUF_INVALID for a block on the host.
    gpu_block_ref acquire_gpu(const hostbuf_token &token) const
    {
        hostbuf_gpu_block_ref *held;
        check(hostbuf_pool_acquire_gpu(own_, &token, &held));
        return gpu_block_ref(held);
    }

    void skip(const hostbuf_token &token) const { check(hostbuf_pool_skip(own_, &token)); }

    /// Returns the state of the pool as JSON.
    std::string status() const
    {
        char *text;
        check(hostbuf_pool_status_text(own_, &text));
        std::unique_ptr<char, void (*)(char *)> owner(text, hostbuf_text_free);
        return text;
    }

private:
    hostbuf_pool *own_ = nullptr;
};

} // namespace hostbuf

#endif
