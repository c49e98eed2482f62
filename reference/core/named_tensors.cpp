#include "reference/core/named_tensors.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/resolve_conj.h>
#include <ATen/ops/resolve_neg.h>

#include <functional>
#include <set>
#include <tuple>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

// Compares TensorImpl addresses: two tensors are "the same" here only if they are the same object, as with
// Python's `is`. Views of one storage are different tensors.
template <typename Item, typename TensorOf>
std::vector<Item> first_of_each(std::vector<Item> items, TensorOf tensor_of) {
  std::set<const c10::TensorImpl*> known;
  std::erase_if(items, [&](const Item& item) {
    return !known.insert(std::invoke(tensor_of, item).unsafeGetTensorImpl()).second;
  });
  return items;
}

}  // namespace

// Two tensors are equal views if all of these agree. The data pointer includes the storage offset. The conjugate
// and negative bits belong to the key because they change the values without changing the storage. Empty and meta
// tensors have no address that identifies them, so each is kept.
DeduplicatedTensors deduplicate_shared(const NamedTensors& tensors) {
  using View = std::tuple<c10::DeviceType, int, const void*, at::ScalarType, std::vector<std::int64_t>,
                          std::vector<std::int64_t>, bool, bool>;
  std::map<View, std::string> first;
  DeduplicatedTensors result;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.numel() > 0 && tensor.device() != at::kMeta && tensor.has_storage()) {
      const View view{tensor.device().type(), tensor.device().index(), tensor.const_data_ptr(), tensor.scalar_type(),
                      tensor.sizes().vec(),   tensor.strides().vec(),  tensor.is_conj(),        tensor.is_neg()};
      const auto [found, is_new] = first.emplace(view, name);
      if (!is_new) {
        result.same_as[name] = found->second;
        continue;
      }
    }
    result.tensors.emplace_back(name, tensor);
  }
  return result;
}

std::vector<at::Tensor> unique_tensors(std::vector<at::Tensor> tensors) {
  return first_of_each(std::move(tensors), std::identity());
}

NamedTensors unique_tensors(NamedTensors tensors) {
  return first_of_each(std::move(tensors), &NamedTensors::value_type::second);
}

at::Tensor contiguous_on_cpu(const at::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
}

std::string_view bytes_of(const at::Tensor& tensor) {
  ensure(tensor.is_cpu() && tensor.is_contiguous(), "bytes_of: expected a contiguous tensor on the CPU");
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace accel
