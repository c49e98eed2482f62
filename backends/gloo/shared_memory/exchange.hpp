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

/// Messages between the ranks of one host, matched by slot as Gloo's transports match them.
///
///     Exchange::Buffer buffer;
///     exchange.receive(buffer, {1}, slot, bytes, num_bytes);
///     exchange.wait(buffer, Exchange::Direction::kReceive, &rank, timeout);
///
/// Thread rule: any thread, at any time; the bytes of an operation belong to it until it is waited for, or its buffer
/// is forgotten.
namespace accel::gloo {

/// What went wrong with an operation, in the words of Gloo's TCP. As Gloo's own exceptions it is no accel::Error: Group
/// makes one of it, which names the rank and the call.
class LinkError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Note [Who moves the bytes]
// The thread that waits moves them: it empties the rings to this rank, writes what is to go out, and sleeps on this
// rank's doorbell when there is nothing to do. Of several that wait, one leads; the others sleep until it tells them
// that their operation is done, or hands the lead over. No other thread wakes for a message. Operations that nobody
// waits for are moved by the watcher, a thread that looks every few milliseconds while there are any and else sleeps
// until a process at the other end of a link ends.
//
// Messages of up to a quarter of a ring go at once (kEager). What is longer, or a rank's own send(), is offered first
// and written when the receiver has accepted it, so what a rank has not asked for takes bounded memory, and send() of a
// rank returns when its peer receives, as over Gloo's TCP.
class Exchange {
 public:
  enum class Direction { kSend, kReceive };

  /// Where operations of one Gloo buffer are counted. Guarded by the exchange.
  struct Buffer {
    struct Side {
      int num_done = 0;
      int peer = -1;  ///< of the last that is done
      bool is_aborted = false;
    };
    Side send, receive;
    std::string error;
    std::condition_variable changed;
  };

  Exchange(int rank, Links links);
  /// Closes all links. No operation may be under way.
  ~Exchange();
  Exchange(const Exchange&) = delete;

  /// Throws LinkError if the link is closed.
  void send(Buffer& buffer, int to, std::uint64_t slot, const void* bytes, std::size_t num_bytes);
  /// From whichever of the ranks sends first. A message may be shorter than `num_bytes`; a longer one is an error.
  void receive(Buffer& buffer, std::vector<int> from, std::uint64_t slot, void* bytes, std::size_t num_bytes);

  /// True when one more operation is done, false if it was aborted. Throws LinkError: the peer has gone, or the timeout
  /// is over, which closes all links.
  bool wait(Buffer& buffer, Direction direction, int* peer, std::chrono::milliseconds timeout);
  void abort(Buffer& buffer, Direction direction);
  /// After that no operation touches the buffer or its bytes.
  void forget(Buffer& buffer);
  /// Operations with that rank fail from now on, here and there.
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
    Buffer* buffer = nullptr;  // null: nobody wants it any more
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
  struct Early {  // came before it was asked for
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
  bool is_hopeless(const Posted& posted) const;

  const int rank_;
  Links links_;
  Doorbell& doorbell_;
  std::mutex mutex_;  // guards all below
  std::vector<Peer> peers_;
  std::vector<Posted> posted_;
  std::list<Early> early_;
  Buffer* leading_ = nullptr;  // the buffer that the leader waits for
  bool has_leader_ = false;
  std::list<Buffer*> followers_;
  std::uint64_t num_operations_ = 0;
  bool is_armed_ = false;
  bool is_ending_ = false;
  Descriptor alarm_;  // wakes the watcher
  std::thread watcher_;
};

}  // namespace accel::gloo
