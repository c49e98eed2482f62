#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <functional>
#include <string>

#include "tests/support/fake_device/race_detector.hpp"

/// What the device's operators need of its guard. Thread rule: any thread.
namespace accel::testing::fake_device {

constexpr auto kType = c10::DeviceType::PrivateUse1;

c10::DeviceIndex current_index();
StreamKey key_of(const c10::Stream& stream);
StreamKey current_key(c10::DeviceIndex index);

/// This thread waits; copies to the host that are done by then happen.
void host_waits_for(const Clock& event);
void copy_when_host_waits(Clock done, std::function<void()> copy);

/// A copy reads pinned host memory until `done`; a change before that is reported as a race.
void watch_pinned_memory(Clock done, const void* data, std::size_t bytes);
/// Ends the watch of memory that is freed: LibTorch keeps pinned memory until copies from it are done.
void forget_pinned_memory(const void* data, std::size_t bytes);

void count_operator();
void count_pageable_copy();
void resize_storage(const c10::Storage& storage, std::size_t bytes);

/// The running operation of the current stream accesses the tensor. `place` names it in reports.
void read(const at::Tensor& tensor, const std::string& place);
void write(const at::Tensor& tensor, const std::string& place);
/// A CPU tensor over the same memory; `tensor` itself if it is not the device's.
at::Tensor on_cpu(const at::Tensor& tensor);

/// Whether operators.cpp has registered its operators. device.cpp refers to it, so that the linker keeps both.
extern const bool has_operators;

}  // namespace accel::testing::fake_device
