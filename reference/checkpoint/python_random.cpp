// Seeding of the Mersenne Twister MT19937, with the names of its reference implementation (mt19937ar.c). std::mt19937
// offers init_genrand only; Python seeds by init_by_array.
#include "reference/checkpoint/python_random.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace accel::checkpoint {
namespace {

constexpr std::size_t kSize = 624;
using Words = std::array<std::uint32_t, kSize>;

// init_genrand of mt19937ar.c.
Words seeded(std::uint32_t seed) {
  Words words;
  words[0] = seed;
  for (std::uint32_t i = 1; i < kSize; ++i) words[i] = 1812433253U * (words[i - 1] ^ (words[i - 1] >> 30)) + i;
  return words;
}

// init_by_array of mt19937ar.c.
Words seeded(const std::vector<std::uint32_t>& key) {
  auto words = seeded(19650218U);
  std::size_t i = 1, j = 0;
  const auto advance = [&] {
    if (++i < kSize) return;
    words[0] = words[kSize - 1];
    i = 1;
  };
  for (auto count = std::max(kSize, key.size()); count > 0; --count) {
    words[i] = (words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * 1664525U)) + key[j] + static_cast<std::uint32_t>(j);
    advance();
    j = (j + 1) % key.size();
  }
  for (auto count = kSize - 1; count > 0; --count) {
    words[i] = (words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * 1566083941U)) - static_cast<std::uint32_t>(i);
    advance();
  }
  words[0] = 0x80000000U;
  return words;
}

Value::List list_of(const Words& words) {
  Value::List list;
  for (const auto word : words) list.emplace_back(static_cast<std::int64_t>(word));
  return list;
}

}  // namespace

Value python_random_state(std::uint64_t seed) {
  // CPython drops leading zero words of the key: a small seed has a key of one word.
  std::vector<std::uint32_t> key{static_cast<std::uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<std::uint32_t>(seed >> 32));
  auto state = list_of(seeded(key));
  state.emplace_back(static_cast<std::int64_t>(kSize));
  return Value::List{3, std::move(state), Value()};
}

// (name, words, position, has Gaussian, cached Gaussian). The position 624 means that all words are used up, so the
// next number generates new ones, as after seeding.
Value numpy_random_state(std::uint64_t seed) {
  return Value::List{"MT19937", list_of(seeded(static_cast<std::uint32_t>(seed))), static_cast<std::int64_t>(kSize), 0,
                     0.0};
}

}  // namespace accel::checkpoint
