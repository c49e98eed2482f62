// What AccelTorchProbe.cmake compiles and runs with a version of LibTorch whose tests nobody has run. The exit code is
// 1 if accel cannot work with it; a line of the output names what the version computes differently from LibTorch 2.11.
#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/randn.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "backends/gloo/device.hpp"
#include "reference/comm/collective_backend.hpp"
#include "reference/core/errors.hpp"
#include "reference/parallel/reduction_record.hpp"
#include "reference/parallel/resumable_reducer.hpp"
#include "reference/rank_local/random.hpp"

namespace accel::torch_probe {
namespace {

// Another thread, as another rank, clears its cache of cast weights between two uses of a weight on this thread.
void verify_autocast_cache() {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto weight = at::ones({2, 2}).set_requires_grad(true);
  const auto first = at::mm(at::ones({2, 2}), weight);
  std::thread([] { at::autocast::clear_cache(); }).join();
  const auto second = at::mm(at::ones({2, 2}), weight);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  const auto cast_of = [](const at::Tensor& product) { return product.grad_fn()->next_edge(1).function; };
  ensure(first.scalar_type() == at::kBFloat16 && cast_of(first) == cast_of(second),
         "autocast does not call at::autocast::cached_cast, which accel replaces, so ranks in one process would share "
         "its cache");
}

// The bytes of a tensor, as FNV-1a.
std::uint64_t hash_of(const at::Tensor& tensor) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
  for (std::size_t index = 0; index < tensor.nbytes(); ++index) hash = (hash ^ bytes[index]) * 0x100000001b3;
  return hash;
}

struct Draw {
  const char* name;
  std::function<at::Tensor()> draw;
  std::uint64_t hash;  // with LibTorch 2.11
};

// Few normal numbers, because from 16 on they depend on the vector instructions of the CPU.
std::vector<Draw> draws() {
  return {
      {"torch::rand", [] { return at::rand({100}); }, 0xbce2f386227c622e},
      {"torch::rand in float64", [] { return at::rand({100}, at::kDouble); }, 0x8d29b8698bdb457f},
      {"torch::rand in float16", [] { return at::rand({100}, at::kHalf); }, 0xa2edf42a54b1db18},
      {"torch::rand in bfloat16", [] { return at::rand({100}, at::kBFloat16); }, 0x76c1649cb13962b9},
      {"torch::randn", [] { return at::randn({10}); }, 0xcb9a4e3e3eab1c28},
      {"torch::randint", [] { return at::randint(1000, {100}, at::kLong); }, 0xb57c374b484c65db},
      {"torch::randperm", [] { return at::randperm(100, at::kLong); }, 0x72e0cd4e4796a345},
      {"torch::bernoulli", [] { return at::bernoulli(at::full({100}, 0.3)); }, 0x94f971d658571f78},
      {"torch::multinomial", [] { return at::multinomial(at::arange(1, 101).to(at::kFloat), 10); }, 0x0efc0c04ee8698a0},
      {"torch::dropout", [] { return at::dropout(at::ones({100}), 0.5, true); }, 0xf4a095ffa8f879e5}};
}

void print_other_random_numbers() {
  for (const auto& [name, draw, hash] : draws()) {
    const GeneratorScope scope(make_generator(42));
    if (hash_of(draw()) != hash) std::cout << name << " draws other numbers\n";
  }
}

int run() {
  bool is_usable = true;
  for (auto* const verify : {&verify_interposition, &verify_autocast_cache, &gloo::check_layout}) {
    try {
      verify();
    } catch (const std::exception& error) {
      std::cout << error.what() << "\n";
      is_usable = false;
    }
  }
  print_other_random_numbers();
  return is_usable ? 0 : 1;
}

}  // namespace
}  // namespace accel::torch_probe

int main() { return accel::torch_probe::run(); }
