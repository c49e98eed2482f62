#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "backends/gloo/shared_memory/links.hpp"

/// Exchanges messages between the ranks of one host and matches them by slot, like Gloo's transports.
///
///     Exchange::Buffer buffer;
///     exchange.receive(buffer, {1}, slot, bytes, num_bytes);
///     exchange.wait(buffer, Exchange::Direction::kReceive, &rank, timeout);
///
/// Thread rule: any thread, at any time. The caller must not touch the bytes of an operation until wait() has returned
/// for it, or forget() for its buffer.
namespace accel::gloo {

/// An operation failed. The message uses the words of Gloo's TCP transport. Like Gloo's own exceptions it is not an
/// accel::Error; Group converts it to one that names the rank and the call.
class LinkError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Note [Who moves the bytes]
// The waiting thread moves them: it empties the rings to this rank, writes outgoing messages, and sleeps on this rank's
// doorbell when there is nothing to do. If several threads wait, one is the leader; the others (followers) sleep until
// the leader reports that their operation is done, or until the leader leaves and one of them takes over. No other
// thread wakes for a message. The watcher moves operations that nobody waits for: a thread that polls every few
// milliseconds while there are any, and otherwise sleeps until a process at the other end of a link ends.
//
// Messages of up to a quarter of a ring are sent at once (kEager). Longer messages and messages of send() are offered
// first (kOffer) and written (kData) after the receiver has accepted them (kAccept). So messages that a rank has not
// asked for use bounded memory, and send() completes only when its peer receives, as over Gloo's TCP.
class Exchange {
 public:
  enum class Direction { kSend, kReceive };

  /// The counts of finished operations of one Gloo buffer. Guarded by the mutex of the exchange.
  struct Buffer {
    struct Side {
      int num_done = 0;
      int peer = -1;  ///< of the last operation that finished
      bool is_aborted = false;
    };
    Side send, receive;
    std::string error;
    std::condition_variable changed;
  };

  Exchange(int rank, Links links);
  /// Closes all links. No operation may be pending.
  ~Exchange();
  Exchange(const Exchange&) = delete;

  /// Throws LinkError if the link is closed.
  void send(Buffer& buffer, int to, std::uint64_t slot, const void* bytes, std::size_t num_bytes);
  /// Receives from whichever rank in `from` sends first. A message may be shorter than `num_bytes`, but not longer.
  void receive(Buffer& buffer, std::vector<int> from, std::uint64_t slot, void* bytes, std::size_t num_bytes);

  /// Waits for the next operation in this direction to finish and stores its peer. Returns false if the wait was
  /// aborted. Throws LinkError if the peer has exited, or after the timeout, which also closes all links.
  bool wait(Buffer& buffer, Direction direction, int* peer, std::chrono::milliseconds timeout);
  /// Makes one wait() of this buffer and direction return false.
  void abort(Buffer& buffer, Direction direction);
  /// Drops the buffer's operations. Afterwards no operation touches the buffer or its bytes.
  void forget(Buffer& buffer);
  /// Closes the link to a rank. Later operations with that rank fail, on both sides.
  void close(int peer);

 private:
  enum class Kind : std::uint32_t { kEager, kOffer, kAccept, kData };
  struct Header {
    Kind kind = Kind::kEager;
    std::uint32_t id = 0;  // of an offer
    std::uint64_t slot = 0;
    std::uint64_t num_bytes = 0;
  };
  struct Outgoing {
    Header header;
    const std::byte* bytes = nullptr;
    Buffer* buffer = nullptr;
    bool is_begun = false;
    std::size_t num_sent = 0;
  };
  struct Incoming {
    Buffer* buffer = nullptr;  // null: forgotten; the bytes are dropped
    std::byte* bytes = nullptr;
    std::size_t num_left = 0;
  };
  struct Posted {
    Buffer* buffer;
    std::vector<int> from;
    std::uint64_t slot;
    std::byte* bytes;
    std::size_t num_bytes;
  };
  struct Early {  // arrived before its receive()
    int from;
    Header header;
    std::unique_ptr<std::byte[]> bytes;  // of an eager message
  };
  struct Peer {
    RingWriter writer;
    RingReader reader;
    Doorbell* doorbell = nullptr;
    std::deque<Outgoing> outgoing;
    std::unordered_map<std::uint32_t, Outgoing> offered;
    std::unordered_map<std::uint32_t, Incoming> accepted;
    Incoming incoming;
    bool is_streaming = false;
    std::uint32_t num_offers = 0;
    bool has_ended = false;
    std::string error;
  };

  void watch();
  void arm_watcher();
  bool progress();
  bool pull(int from);
  bool push(int to);
  bool take_message(int from, std::size_t available);
  void deliver(int from, const Header& header, const Posted& posted);
  void accept(int from, const Header& header, const Posted& posted);
  bool take_posted(int from, std::uint64_t slot, Posted& posted);
  void send_control(int to, const Header& header);
  void done(Buffer* buffer, Direction direction, int peer);
  void fail(int peer, const std::string& error);
  void fail_all(const std::string& error);
  void tell(Buffer* buffer, const std::string& error);
  void changed(Buffer* buffer);
  void lead(std::unique_lock<std::mutex>& lock, Buffer& buffer, const Buffer::Side& side,
            std::chrono::steady_clock::time_point deadline);
  bool is_over(const Buffer& buffer, const Buffer::Side& side) const;
  bool has_work() const;
  bool has_no_sender(const Posted& posted) const;

  const int rank_;
  Links links_;
  Doorbell& doorbell_;
  std::mutex mutex_;  // guards the members below, except alarm_ and watcher_
  std::vector<Peer> peers_;
  std::vector<Posted> posted_;
  std::list<Early> early_;
  Buffer* leading_ = nullptr;  // the buffer that the leader waits for; null if the watcher leads
  bool has_leader_ = false;
  std::list<Buffer*> followers_;
  std::uint64_t num_operations_ = 0;
  bool is_armed_ = false;
  bool is_ending_ = false;
  Descriptor alarm_;  // wakes the watcher
  std::thread watcher_;
};

}  // namespace accel::gloo
