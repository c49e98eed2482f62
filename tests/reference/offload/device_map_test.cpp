// Device maps: which module goes to which device within memory limits. The maps must be those of
// accelerate/utils/modeling.py, which live comparisons check on random models; the cases here are Accelerate's own
// tests.
#include "reference/offload/device_map.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/offload/module_sizes.hpp"
#include "tests/reference/offload/module_trees.hpp"
#include "tests/support/message_of.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using ::testing::Not;
using ::testing::Pair;

// A float parameter of one dimension.
ParameterDescription floats(const std::string& name, std::int64_t count) {
  return {.shape = {name, {count}}, .dtype = "Float"};
}

// The ModelForTest of Accelerate: linear1 (3x4 + 4), norm (4 + 4, two buffers of 4 and one of a long), linear2 (4x5
// + 5).
ModelDescription model_for_test() {
  ModelDescription model;
  model.parameters = {floats("linear1.weight", 12), floats("linear1.bias", 4),    floats("norm.weight", 4),
                      floats("norm.bias", 4),       floats("linear2.weight", 20), floats("linear2.bias", 5)};
  model.buffers = {
      floats("norm.mean", 4), floats("norm.var", 4), {.shape = {"norm.count", {}}, .dtype = "Long", .element_size = 8}};
  model.root = {
      .name = "",
      .class_name = "ModelForTest",
      .children = {{.name = "linear1", .class_name = "LinearImpl", .parameters = {0, 1}, .keys = {"weight", "bias"}},
                   {.name = "norm",
                    .class_name = "BatchNormImpl",
                    .parameters = {2, 3},
                    .keys = {"weight", "bias"},
                    .buffers = {{"mean", 0}, {"var", 1}, {"count", 2}}},
                   {.name = "linear2", .class_name = "LinearImpl", .parameters = {4, 5}, .keys = {"weight", "bias"}}}};
  return model;
}

// The units are those of Accelerate, including its difference between KB and KiB.
TEST(MemoryLimitsTest, SizesAreParsedLikeAccelerates) {
  EXPECT_EQ(convert_file_size_to_int("1KB"), 1000);
  EXPECT_EQ(convert_file_size_to_int("1KiB"), 1024);
  EXPECT_EQ(convert_file_size_to_int("1.5 gib"), 3 << 29);
  // A small b means bits, as in accelerate/utils/modeling.py.
  EXPECT_EQ(convert_file_size_to_int("8Gb"), 1'000'000'000);
  EXPECT_EQ(convert_file_size_to_int("8gB"), 8'000'000'000);
  for (const auto* text : {"", "GB", "5", "5TB", "-1GB", "x MB", "nanKB", "1e30GB"})
    EXPECT_THROW(convert_file_size_to_int(text), ArgumentError) << text;
}

// The order is that in which devices are filled.
TEST(MemoryLimitsTest, DevicesAreGpuNumbersCpuAndDisk) {
  EXPECT_TRUE(MapDevice(1).is_gpu());
  EXPECT_EQ(MapDevice("cuda:3"), MapDevice(3));
  EXPECT_LT(MapDevice(7), MapDevice("cpu"));
  EXPECT_LT(MapDevice("cpu"), MapDevice("disk"));
  for (const auto* name : {"", "mps", "cuda:x", "-1", "cuda:"}) EXPECT_THROW(MapDevice{name}, ArgumentError) << name;
  EXPECT_GT(get_max_memory().at("cpu").bytes, 1 << 20);
}

// Counted by hand. Integer buffers keep their size in another dtype.
TEST(ModuleSizesTest, TheSizeOfAModuleIsThatOfItsTensors) {
  const auto sizes = compute_module_sizes(model_for_test());
  EXPECT_EQ(sizes.of(""), 64 + 72 + 100);
  EXPECT_EQ(sizes.of("norm"), 72);
  EXPECT_EQ(sizes.of("linear2.bias"), 20);
  EXPECT_EQ(compute_module_sizes(model_for_test(), {.dtype = at::kHalf}).of(""), 32 + 40 + 50);  // the long stays one
  EXPECT_EQ(compute_module_sizes(model_for_test(), {.dtype = at::kDouble}).of(""), 236);  // never larger than stored
  EXPECT_EQ(
      compute_module_sizes(model_for_test(), {.dtype = at::kHalf, .special_dtypes = {{"linear1.weight", at::kFloat}}})
          .of("linear1"),
      56);
  EXPECT_EQ(compute_module_sizes(model_for_test(), {.buffers_only = true}).of("norm"), 40);
  EXPECT_EQ(calculate_maximum_sizes(model_for_test()), (MaximumSizes{236, 100, {"linear2"}}));
}

// Room is reserved until the last of the largest layers has its place.
TEST(ModuleSizesTest, AllLayersOfTheLargestSizeAreListed) {
  auto model = model_for_test();
  model.parameters[0] = floats("linear1.weight", 20);
  model.parameters[1] = floats("linear1.bias", 5);
  EXPECT_EQ(calculate_maximum_sizes(model), (MaximumSizes{272, 100, {"linear1", "linear2"}}));
}

// "layer10" begins with "layer1" but is not within it.
TEST(DeviceMapTest, AnEntryCoversOnlyWhatIsWithinItsModule) {
  EXPECT_TRUE(offload::is_within("layer1.weight", "layer1"));
  EXPECT_TRUE(offload::is_within("layer1", "layer1"));
  EXPECT_FALSE(offload::is_within("layer10.weight", "layer1"));
  EXPECT_TRUE(offload::is_within("layer10.weight", ""));
}

// Source: accelerate/tests/test_modeling_utils.py, test_infer_auto_device_map.
TEST(DeviceMapTest, EqualsTheMapsOfAcceleratesTests) {
  const auto map_of = [](MaxMemory limits) {
    return infer_auto_device_map(model_for_test(), {.max_memory = std::move(limits)});
  };
  // The first device reserves room for the largest layer; the others do not.
  EXPECT_EQ(map_of({{0, 200}, {1, 200}}), (DeviceMap{{"linear1", 0}, {"norm", 1}, {"linear2", 1}}));
  EXPECT_EQ(map_of({{0, 200}, {1, 172}, {2, 200}}), (DeviceMap{{"linear1", 0}, {"norm", 1}, {"linear2", 1}}));
  EXPECT_EQ(map_of({{0, 200}, {1, 150}, {2, 200}}), (DeviceMap{{"linear1", 0}, {"norm", 1}, {"linear2", 2}}));
  EXPECT_EQ(map_of({{0, 336}}), (DeviceMap{{"", 0}}));
}

// A misspelled module leaves its tensors without a place, so both the name and the tensors are listed.
TEST(DeviceMapTest, ProblemsAreReportedTogether) {
  const auto message = message_of<ArgumentError>([] {
    check_device_map(model_for_test(), {{"linear1", 0}, {"norm.weight", "cpu"}, {"liner2", "disk"}});
  });
  EXPECT_THAT(message, AllOf(HasSubstr("'liner2'"), HasSubstr("'norm.bias'"), HasSubstr("'norm.count'"),
                             HasSubstr("'linear2.weight'"), Not(HasSubstr("'norm.weight'"))));
  EXPECT_NO_THROW(check_device_map(model_for_test(), {{"", "disk"}}));
}

// "ab" begins with "a" but is not a part of it.
TEST(DeviceMapTest, PartsOnOneDeviceBecomeOneEntry) {
  EXPECT_THAT(clean_device_map({{"a.x", 0}, {"a.y", 0}, {"ab", 0}, {"b.x", 1}, {"b.y.z", 0}, {"b.y.w", 0}}),
              ElementsAre(Pair("a", MapDevice(0)), Pair("ab", MapDevice(0)), Pair("b.x", MapDevice(1)),
                          Pair("b.y", MapDevice(0))));
  EXPECT_THAT(clean_device_map({{"a.x", "disk"}, {"b", "disk"}}), ElementsAre(Pair("", MapDevice("disk"))));
  // Another tensor of "a" has no entry, so "a" must not get one.
  EXPECT_EQ(clean_device_map({{"a.x", 0}, {"b", 1}}), (DeviceMap{{"a.x", 0}, {"b", 1}}));
}

// --- properties ---
// --- laws ------------------------------------------------------------------------------------------------------------

using testing::AnyModel;
using testing::pick;

// Random limits, some of which are too small for any module.
MaxMemory any_limits() {
  MaxMemory limits;
  for (int gpu = pick(0, 4); gpu > 0; --gpu) limits.emplace(pick(0, 5), pick(0, 4000));
  if (limits.empty() || pick(0, 2) == 0) limits.emplace("cpu", pick(0, 4000));
  return limits;
}

DeviceMapOptions any_options() {
  DeviceMapOptions options{
      .max_memory = any_limits(), .clean_result = pick(0, 2) == 0, .fallback_allocation = pick(0, 2) == 0};
  if (pick(0, 2) == 0)
    options.no_split_module_classes = {*rc::gen::element(std::string("Block"), std::string("Layer"))};
  if (pick(0, 3) == 0) options.dtype = at::kHalf;
  return options;
}

// A plan with what it was made from, and the laws that it must obey.
struct Laws {
  ModelDescription model;
  DeviceMapOptions options;
  DeviceMap map;

  // Every tensor is under exactly one entry, and no entry is within another one.
  void each_tensor_is_placed_once() const {
    try {
      check_device_map(model, map);
    } catch (const Error& error) {
      RC_FAIL(error.what());
    }
    for (const auto& [name, device] : map) {
      for (const auto& [other, of_other] : map) RC_ASSERT(name == other || !offload::is_within(name, other));
    }
  }
  void limits_hold() const {
    const auto sizes = compute_module_sizes(model, {.dtype = options.dtype});
    std::map<MapDevice, std::int64_t> used;
    for (const auto& tensor : model.parameters) used[device_of(map, tensor.shape.name)] += sizes.of(tensor.shape.name);
    for (const auto& tensor : model.buffers) used[device_of(map, tensor.shape.name)] += sizes.of(tensor.shape.name);
    for (const auto& [device, bytes] : used) {
      if (!device.is_disk()) RC_ASSERT(bytes <= options.max_memory->at(device).bytes);
    }
  }
  void tied_are_together() const {
    for (const auto& names : find_tied_parameters(model)) {
      for (const auto& name : names) RC_ASSERT(device_of(map, name) == device_of(map, names.front()));
    }
  }
  void unsplit_modules_have_one_device(const ModuleDescription& module) const {
    const auto& classes = options.no_split_module_classes;
    const bool is_whole = std::any_of(classes.begin(), classes.end(),
                                      [&](const auto& name) { return is_class(module.class_name, name); });
    if (is_whole && !module.name.empty()) {
      std::set<MapDevice> devices;
      for (const auto& [name, bytes] : compute_module_sizes(model).entries()) {
        const bool is_tensor = std::any_of(model.parameters.begin(), model.parameters.end(),
                                           [&](const auto& tensor) { return tensor.shape.name == name; });
        if (is_tensor && offload::is_within(name, module.name)) devices.insert(device_of(map, name));
      }
      RC_ASSERT(devices.size() <= 1u);
    }
    for (const auto& child : module.children) unsplit_modules_have_one_device(child);
  }
  void hold() const {
    each_tensor_is_placed_once();
    limits_hold();
    tied_are_together();
    unsplit_modules_have_one_device(model.root);
  }
};

Laws any_plan() {
  Laws laws{.model = AnyModel().model, .options = any_options(), .map = {}};
  laws.map = infer_auto_device_map(laws.model, laws.options);
  return laws;
}

// A tensor without a place would stay empty, and one beyond a limit would end in an allocation error.
TEST(DeviceMapLaws, EveryTensorIsPlacedOnceWithinTheLimits) {
  testing::expect_property(2000, [] { any_plan().hold(); });
}

// Bugs in a plan: a limit that is ignored, a tensor without a place, a class that is split.
TEST(DeviceMapLaws, EveryPlantedBugIsCaught) {
  testing::expect_property_fails("a limit that is forgotten", 300, [] {
    auto laws = any_plan();
    for (auto& [name, device] : laws.map) device = laws.options.max_memory->begin()->first;
    laws.hold();
  });
  testing::expect_property_fails("an entry that is lost", 300, [] {
    auto laws = any_plan();
    if (!laws.map.empty()) laws.map.erase(laws.map.begin());
    laws.hold();
  });
  testing::expect_property_fails("tied parameters apart", 300, [] {
    auto laws = any_plan();
    const auto tied = find_tied_parameters(laws.model);
    if (!tied.empty()) laws.map.insert_or_assign(tied[0][0], "disk");
    laws.tied_are_together();
  });
  testing::expect_property_fails("a class that is split", 300, [] {
    auto laws = any_plan();
    laws.options.no_split_module_classes = {"Block", "Layer", "Part"};
    laws.unsplit_modules_have_one_device(laws.model.root);
  });
}

// With room for a complete model and its largest layer, everything goes to the first device.
TEST(DeviceMapLaws, AModelThatFitsIsNotSpread) {
  testing::expect_property(300, [] {
    const auto model = AnyModel().model;
    const auto bytes = 2 * compute_module_sizes(model).of("") + 1;
    const auto map = infer_auto_device_map(model, {.max_memory = MaxMemory{{0, bytes}, {"cpu", bytes}}});
    for (const auto& [name, device] : map) RC_ASSERT(device == MapDevice(0));
  });
}

// The numbers follow Accelerate's rule, computed by hand.
TEST(BalancedMemoryTest, LimitsSpreadTheModel) {
  const auto limits = get_balanced_memory(model_for_test(), {.max_memory = MaxMemory{{0, 1000}, {1, 1000}}});
  EXPECT_EQ(limits, (MaxMemory{{0, 236 / 2 + 97}, {1, 1000}}));  // half, and a quarter more than the mean layer of 78
  EXPECT_EQ(get_balanced_memory(model_for_test(), {.max_memory = MaxMemory{{0, 1000}, {1, 200}}, .low_zero = true}),
            (MaxMemory{{0, 36}, {1, 200}}));
  EXPECT_EQ(get_balanced_memory(model_for_test(), {.max_memory = MaxMemory{{0, 100}}}), (MaxMemory{{0, 100}}));
}

}  // namespace
}  // namespace accel
