#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "reference/elastic/membership.hpp"

/// What the processes of an elastic job send each other, as bytes.
namespace accel::elastic {

/// The sender runs. `is_done`: it has completed the whole training, as all others have.
struct Alive {
  bool is_done = false;
};

struct Datagram {
  std::uint64_t job = 0;  ///< a number that the job has drawn
  MemberId from = -1;
  std::variant<Alive, Message> content = {};
};

/// 8 bytes of the job, then CBOR (RFC 8949).
std::vector<std::uint8_t> bytes_of(const Datagram& datagram);
/// Nothing if the bytes are no datagram of this job. Those of others are not parsed.
std::optional<Datagram> datagram_of(std::uint64_t job, std::span<const std::uint8_t> bytes);

}  // namespace accel::elastic
