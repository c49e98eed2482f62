// Creates the shared memory of a rank and passes it to the other ranks of its host. Descriptors travel over abstract
// Unix sockets (SCM_RIGHTS), so nothing has a path, needs permissions in /dev/shm, or is left behind by a killed job.
#include "backends/gloo/shared_memory/links.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "reference/core/system/futex.hpp"
#include "reference/core/system/resource_limits.hpp"

namespace accel::gloo {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSegmentBytesMax = 16 << 20;
constexpr std::size_t kCapacityMin = 64 << 10, kCapacityMax = 1 << 20;
constexpr std::size_t kTokenSize = 32;  // characters

// Callers must not do anything that sets errno between the failed call and this.
[[noreturn]] void fail(const char* what) {
  throw CommError(fmt::format("shared memory: {}: {}", what, describe_system_error(errno)));
}

// Wraps the result of a system call that returns a descriptor or -1.
Descriptor checked(int number, const char* what) {
  if (number < 0) fail(what);
  return Descriptor(number);
}

std::string random_text() {
  std::array<unsigned char, kTokenSize / 2> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) fail("getrandom");
  std::string text;
  for (const auto byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

struct SocketName {
  sockaddr_un address{};
  socklen_t length = 0;
};

// A name in the abstract namespace begins with a zero byte and has no terminator, so its length matters.
SocketName abstract_name(const std::string& text) {
  SocketName name;
  name.address.sun_family = AF_UNIX;
  const auto size = std::min(text.size(), sizeof(name.address.sun_path) - 1);
  std::memcpy(name.address.sun_path + 1, text.data(), size);
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return name;
}

// The only message on a socket, one in each direction. SOCK_SEQPACKET keeps it in one piece, with its descriptor. It
// carries the descriptor of the sender's memory.
struct Hello {
  std::array<char, kTokenSize> token{};  // of the listener that is called
  int rank = 0;
};

// A hello with a control buffer for one descriptor, in the layout and alignment that sendmsg and recvmsg require.
class HelloMessage {
 public:
  explicit HelloMessage(Hello& hello) : part_{.iov_base = &hello, .iov_len = sizeof(hello)} {
    message_.msg_iov = &part_;
    message_.msg_iovlen = 1;
    message_.msg_control = control_.data();
    message_.msg_controllen = control_.size();
  }
  HelloMessage(const HelloMessage&) = delete;
  [[nodiscard]] msghdr* get() { return &message_; }

 private:
  iovec part_;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
  msghdr message_{};
};

void send_hello(const Descriptor& socket, Hello hello, const Descriptor& memory) {
  HelloMessage message(hello);
  auto* const header = CMSG_FIRSTHDR(message.get());
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = memory.get();
  std::memcpy(CMSG_DATA(header), &number, sizeof(number));
  if (sendmsg(socket.get(), message.get(), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello))) fail("sendmsg");
}

// One deadline for the complete handshake. poll() waits in slices of a second, since its argument is an int.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout) : end_(std::chrono::steady_clock::now() + timeout) {}

  void await(const Descriptor& socket) const {
    for (;;) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now()).count();
      if (left <= 0) throw CommError("shared memory: a rank on this host did not connect within the timeout");
      pollfd entry{.fd = socket.get(), .events = POLLIN, .revents = 0};
      if (poll(&entry, 1, static_cast<int>(std::min<long>(left, 1000))) > 0) return;
    }
  }

 private:
  std::chrono::steady_clock::time_point end_;
};

struct Answer {
  Hello hello;
  Descriptor memory;
};

// A message of another size or without a descriptor leaves `memory` empty: the caller decides whether that is an error.
Answer receive_hello(const Descriptor& socket, const Deadline& deadline) {
  deadline.await(socket);
  Answer answer;
  HelloMessage message(answer.hello);
  const auto size = recvmsg(socket.get(), message.get(), MSG_CMSG_CLOEXEC);
  if (size < 0) fail("recvmsg");
  const auto* const header = CMSG_FIRSTHDR(message.get());
  if (size == sizeof(answer.hello) && header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof(number));
    answer.memory = Descriptor(number);
  }
  return answer;
}

std::string token_of(const std::string& address) { return address.substr(address.size() - kTokenSize); }

Hello hello_to(const std::string& address, int rank) {
  Hello hello{.rank = rank};
  const auto token = token_of(address);
  std::copy(token.begin(), token.end(), hello.token.begin());
  return hello;
}

// Maps only what this rank writes to: the other rank's doorbell and the ring to it.
SegmentLink link_over(Descriptor socket, const Descriptor& memory, const SegmentLayout& layout, int rank) {
  return {.socket = std::move(socket),
          .doorbell = Mapping(memory, 0, kPage),
          .outgoing = Mapping(memory, layout.ring_offset(rank), layout.ring_bytes())};
}

}  // namespace

// See Note [No lost wake-up].
void Doorbell::ring() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake(rings, FutexScope::kProcesses);
}

// The wait returns at once if `rings` is no longer `seen`. It may also return early for a signal; callers check
// again.
void Doorbell::sleep(std::uint32_t seen, std::chrono::nanoseconds timeout) {
  if (timeout <= std::chrono::nanoseconds::zero()) return;
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  futex_wait(rings, seen, FutexScope::kProcesses, timeout);
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

// Swapping is enough: the old descriptor is closed with `other`, a temporary at every call.
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

int Descriptor::release() { return std::exchange(number_, -1); }

Mapping::Mapping(const Descriptor& memory, std::size_t offset, std::size_t num_bytes) : num_bytes_(num_bytes) {
  auto* const place =
      mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), static_cast<off_t>(offset));
  if (place == MAP_FAILED) fail("mmap");
  data_ = static_cast<std::byte*>(place);
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, num_bytes_);
}

Mapping::Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), num_bytes_(other.num_bytes_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

// A segment consists of one page with the doorbell, then per rank one page with the ring's state and the ring's bytes.
// All parts are complete pages, because a peer maps only the doorbell and its own ring.
std::size_t SegmentLayout::ring_bytes() const { return kPage + capacity; }
std::size_t SegmentLayout::ring_offset(int from) const { return kPage + static_cast<std::size_t>(from) * ring_bytes(); }

SegmentLayout segment_layout(int num_ranks) {
  // A power of two of at least a page, since mappings start at page boundaries.
  const auto share = std::bit_floor(kSegmentBytesMax / static_cast<std::size_t>(num_ranks));
  return {.num_ranks = num_ranks, .capacity = std::clamp(share, kCapacityMin, kCapacityMax)};
}

RingState& ring_state(std::byte* ring) { return *std::launder(reinterpret_cast<RingState*>(ring)); }
std::byte* ring_data(std::byte* ring) { return ring + kPage; }

SegmentListener::SegmentListener(int num_ranks)
    : layout_(segment_layout(num_ranks)), memory_(checked(memfd_create("accel-gloo", MFD_CLOEXEC), "memfd_create")) {
  if (ftruncate(memory_.get(), static_cast<off_t>(layout_.num_bytes())) != 0) fail("ftruncate");
  segment_ = Mapping(memory_, 0, layout_.num_bytes());
  // Constructed before the address is published, so every peer maps initialized atomics.
  new (segment_.data()) Doorbell{};
  for (int from = 0; from < num_ranks; ++from) new (segment_.data() + layout_.ring_offset(from)) RingState{};
  socket_ = checked(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), "socket");
  // Any process of this network namespace can connect to an abstract name. The token, known only to those who can read
  // the job's store, keeps strangers out.
  const auto name = "accel-gloo-" + random_text();
  const auto bound = abstract_name(name);
  if (bind(socket_.get(), reinterpret_cast<const sockaddr*>(&bound.address), bound.length) != 0) fail("bind");
  if (listen(socket_.get(), num_ranks) != 0) fail("listen");
  address_ = name + "/" + random_text();
}

// Each rank connects to the lower ranks and accepts the higher ones. A connection waits in the listener's queue (whose
// length is the group size), so no order of arrival can deadlock.
Links connect(SegmentListener listener, const std::vector<std::string>& addresses, int rank,
              std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  const auto& layout = listener.layout_;
  Links links{.layout = layout};
  links.peers.resize(addresses.size());
  std::vector<Descriptor> called(static_cast<std::size_t>(rank));
  for (int peer = 0; peer < rank; ++peer) {
    const auto& address = addresses[peer];
    called[peer] = checked(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), "socket");
    const auto name = abstract_name(address.substr(0, address.size() - kTokenSize - 1));
    if (connect(called[peer].get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0)
      fail("connect");
    send_hello(called[peer], hello_to(address, rank), listener.memory_);
  }
  for (int missing = static_cast<int>(addresses.size()) - 1 - rank; missing > 0;) {
    deadline.await(listener.socket_);
    Descriptor socket = checked(accept4(listener.socket_.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept");
    const auto caller = receive_hello(socket, deadline);
    const std::string token(caller.hello.token.begin(), caller.hello.token.end());
    if (token != token_of(listener.address_) || caller.memory.get() < 0) continue;  // not a rank of this group
    const int peer = caller.hello.rank;
    ensure(peer > rank && peer < static_cast<int>(addresses.size()),
           "shared memory: a rank outside the group connected");
    send_hello(socket, hello_to(addresses[peer], rank), listener.memory_);
    links.peers[peer] = link_over(std::move(socket), caller.memory, layout, rank);
    --missing;
  }
  for (int peer = 0; peer < rank; ++peer) {
    const auto answer = receive_hello(called[peer], deadline);
    if (answer.memory.get() < 0) throw CommError(fmt::format("shared memory: rank {} closed the connection", peer));
    links.peers[peer] = link_over(std::move(called[peer]), answer.memory, layout, rank);
  }
  links.segment = std::move(listener.segment_);
  return links;
}

}  // namespace accel::gloo
