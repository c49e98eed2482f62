// Weights that are streamed to a device while it computes.
#include <gmock/gmock.h>
#include <torch/nn/modules/container/sequential.h>

#include "reference/offload/module_tensors.hpp"
#include "reference/offload/streamed_model.hpp"
#include "tests/support/fake_device/device.hpp"
#include "tests/support/fake_device/execution.hpp"
#include "tests/support/fake_device/memory.hpp"
#include "tests/support/fake_device/race_detector.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using ::testing::IsEmpty;

// Returns its input, after noting on which stream the weight was allocated.
struct NoteImpl : torch::nn::Module {
  explicit NoteImpl(at::Tensor weight, std::vector<fake_device::StreamKey>& streams)
      : weight(register_parameter("weight", std::move(weight), /*requires_grad=*/false)), streams(&streams) {}
  at::Tensor forward(const at::Tensor& x) {
    streams->push_back(fake_device::stream_of_memory(weight));
    return x.mm(weight);
  }
  at::Tensor weight;
  std::vector<fake_device::StreamKey>* streams;
};
TORCH_MODULE(Note);

// A freed weight gives its memory to a later one, which must not arrive before the device has read the first.
TEST(StreamedDeviceTest, WeightsArriveBesideComputation) {
  fake_device::races().clear();
  const auto device = fake_device::device(0);
  std::vector<fake_device::StreamKey> streams;
  torch::nn::Sequential net;
  std::vector<offload::Slot> slots;
  std::vector<offload::StreamedUnit> units;
  auto expected = torch::ones({4, 4});
  for (int layer = 0; layer < 4; ++layer) {
    const auto host = torch::full({4, 4}, layer + 1.0);
    expected = expected.mm(host);
    Note note(torch::empty({4, 4}), streams);
    slots.push_back(
        {.name = "weight", .tensor = note->weight, .away = offload::meta_like(host), .load = [host, device] {
           return host.to(device);
         }});
    units.push_back({.module = note.ptr(), .slots = {slots.size() - 1}, .input_device = device});
    net->push_back(note);
  }
  const offload::StreamedModel model(net.ptr(), std::move(slots), std::move(units), /*prefetch=*/true);
  const torch::NoGradGuard no_grad;
  for (int pass = 0; pass < 3; ++pass)
    EXPECT_TRUE(torch::equal(net->forward(torch::ones({4, 4}).to(device)).cpu(), expected));
  EXPECT_GT(model.statistics().num_prefetched, 0);
  EXPECT_EQ(std::count_if(streams.begin(), streams.end(), [](const auto& key) { return key.stream != 0; }),
            model.statistics().num_prefetched);
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
}

}  // namespace
}  // namespace accel::testing
