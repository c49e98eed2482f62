#pragma once

#include <exception>
#include <string>

namespace accel {

/// The message of an error. LibTorch appends the stack frames of its own code, which this leaves out.
inline std::string text_of(const std::exception& error) {
  std::string text = error.what();
  const auto frames = text.find("Exception raised from ");
  if (frames != std::string::npos && (frames == 0 || text[frames - 1] == '\n')) text.resize(frames);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace accel
