#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace accel::checkpoint {

/// XXH3, 64 bits, of bytes given piece by piece: finds damage, not malice.
class Checksum {
 public:
  Checksum();
  void update(std::string_view bytes);
  /// 16 hexadecimal digits.
  [[nodiscard]] std::string hex() const;

 private:
  std::shared_ptr<void> state_;
};

}  // namespace accel::checkpoint
