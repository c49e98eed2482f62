// Implements Gloo's transport interface (Device, Context, Pair, UnboundBuffer) on top of Exchange. These adapters are
// all that Gloo's algorithms and PyTorch's ProcessGroupGloo see of the shared memory. They hold no state of their own
// beyond references; Exchange does the locking.
#include "backends/gloo/device.hpp"

#include <algorithm>

#include "backends/gloo/shared_memory/exchange.hpp"
#include "backends/gloo/third_party/gloo/transport.hpp"
#include "reference/core/errors.hpp"

namespace accel::gloo {
namespace {

namespace transport = ::gloo::transport;

// Only for messages: nothing connects by address, so there are no bytes.
class SharedAddress : public transport::Address {
 public:
  explicit SharedAddress(int rank) : rank_(rank) {}
  std::string str() const override { return fmt::format("shared memory of rank {}", rank_); }
  std::vector<char> bytes() const override { return {}; }

 private:
  int rank_;
};

class SharedBuffer : public transport::UnboundBuffer {
 public:
  SharedBuffer(std::shared_ptr<Exchange> exchange, std::chrono::milliseconds timeout, void* bytes,
               std::size_t num_bytes)
      : UnboundBuffer(bytes, num_bytes), exchange_(std::move(exchange)), timeout_(timeout) {}
  // Gloo destroys a buffer while operations on it may be pending, for example after a time-out. No operation may touch
  // its memory afterwards.
  ~SharedBuffer() override { exchange_->forget(state_); }

  // An unset time-out means that of the context, as in gloo/transport/tcp/unbound_buffer.cc.
  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    return exchange_->wait(state_, Exchange::Direction::kReceive, rank,
                           timeout == transport::kUnsetTimeout ? timeout_ : timeout);
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    return exchange_->wait(state_, Exchange::Direction::kSend, rank,
                           timeout == transport::kUnsetTimeout ? timeout_ : timeout);
  }
  void abortWaitRecv() override { exchange_->abort(state_, Exchange::Direction::kReceive); }
  void abortWaitSend() override { exchange_->abort(state_, Exchange::Direction::kSend); }

  void send(int to, std::uint64_t slot, std::size_t offset, std::size_t num_bytes) override {
    num_bytes = checked(offset, num_bytes);
    exchange_->send(state_, to, slot, static_cast<const char*>(ptr) + offset, num_bytes);
  }
  void recv(int from, std::uint64_t slot, std::size_t offset, std::size_t num_bytes) override {
    recv(std::vector<int>{from}, slot, offset, num_bytes);
  }
  void recv(std::vector<int> from, std::uint64_t slot, std::size_t offset, std::size_t num_bytes) override {
    num_bytes = checked(offset, num_bytes);
    exchange_->receive(state_, std::move(from), slot, static_cast<char*>(ptr) + offset, num_bytes);
  }

 private:
  // The rule and the words of Gloo's TCP transport. The comparison avoids offset + num_bytes, which may overflow.
  std::size_t checked(std::size_t offset, std::size_t num_bytes) const {
    if (num_bytes == kUnspecifiedByteCount) num_bytes = size - std::min(offset, size);
    if (num_bytes > 0 && (offset > size || num_bytes > size - offset)) {
      throw LinkError(
          fmt::format("[enforce fail] nbytes <= tbuf->size - offset. {} bytes at {} of {}", num_bytes, offset, size));
    }
    return num_bytes;
  }

  std::shared_ptr<Exchange> exchange_;
  std::chrono::milliseconds timeout_;
  Exchange::Buffer state_;
};

// Gloo's newer algorithms use only unbound buffers, so bound buffers and the synchronous mode are not implemented.
class SharedPair : public transport::Pair {
 public:
  SharedPair(Exchange& exchange, int peer) : exchange_(exchange), peer_(peer), address_(peer) {}
  const transport::Address& address() const override { return address_; }
  void connect(const std::vector<char>&) override {}
  void close() override { exchange_.close(peer_); }
  void setSync(bool, bool) override { transport::refuse("setSync"); }
  std::unique_ptr<transport::Buffer> createSendBuffer(int, void*, std::size_t) override {
    transport::refuse("createSendBuffer");
  }
  std::unique_ptr<transport::Buffer> createRecvBuffer(int, void*, std::size_t) override {
    transport::refuse("createRecvBuffer");
  }
  bool isConnected() override { return true; }
  void send(transport::UnboundBuffer* buffer, std::uint64_t slot, std::size_t offset, std::size_t num_bytes) override {
    buffer->send(peer_, slot, offset, num_bytes);
  }
  void recv(transport::UnboundBuffer* buffer, std::uint64_t slot, std::size_t offset, std::size_t num_bytes) override {
    buffer->recv(peer_, slot, offset, num_bytes);
  }

 private:
  Exchange& exchange_;
  int peer_;
  SharedAddress address_;
};

class SharedContext : public transport::Context {
 public:
  // Pairs borrow the exchange. Buffers share it, since Gloo may destroy a context before its last buffer.
  SharedContext(int rank, int size, Links links)
      : Context(rank, size), exchange_(std::make_shared<Exchange>(rank, std::move(links))) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) pairs_.at(peer) = std::make_unique<SharedPair>(*exchange_, peer);
    }
  }
  std::unique_ptr<transport::Pair>& createPair(int peer) override { return getPair(peer); }
  // Does nothing: agree_on_shared_memory has connected the ranks before this device was created.
  void createAndConnectAllPairs(std::shared_ptr<::gloo::IStore>) override {}
  std::unique_ptr<transport::UnboundBuffer> createUnboundBuffer(void* bytes, std::size_t num_bytes) override {
    return std::make_unique<SharedBuffer>(exchange_, timeout_, bytes, num_bytes);
  }

 private:
  std::shared_ptr<Exchange> exchange_;
};

class SharedDevice : public transport::Device {
 public:
  SharedDevice(int rank, Links links) : rank_(rank), links_(std::move(links)) {}
  std::string str() const override { return "shared memory"; }
  const std::string& getPCIBusID() const override { return no_bus_; }
  // ProcessGroupGloo creates one context per device. The links move into it, so a second one must fail loudly.
  std::shared_ptr<transport::Context> createContext(int rank, int size) override {
    ensure(rank == rank_ && size == static_cast<int>(links_.peers.size()),
           "shared memory device of rank {}: created for another rank or size than rank {} of {}, or used twice", rank_,
           rank, size);
    return std::make_shared<SharedContext>(rank, size, std::exchange(links_, Links{}));
  }

 private:
  int rank_;
  Links links_;
  std::string no_bus_;
};

}  // namespace

std::shared_ptr<transport::Device> make_device(int rank, Links links) {
  return std::make_shared<SharedDevice>(rank, std::move(links));
}

}  // namespace accel::gloo
