// Every name that the guide writes with `accel::` is reachable through the public headers: each is compiled here, and
// the guide is searched for names that are not.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <accel/all.hpp>
#include <accel/metrics.hpp>
#include <accel/models.hpp>
#include <accel/pipeline.hpp>
#include <accel/sync_batch_norm.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

namespace {

#define REACHABLE(name)            \
  {                                \
    using accel::name;             \
    names.insert("accel::" #name); \
  }

std::set<std::string> reachable_names() {
  std::set<std::string> names;
  REACHABLE(infer_auto_device_map);
  REACHABLE(PartialState);
  REACHABLE(AcceleratorState);
  REACHABLE(AcceleratorOptions);
  REACHABLE(DistributedDataParallelKwargs);
  REACHABLE(from_torch_loader);
  REACHABLE(convert_sync_batchnorm);
  REACHABLE(TextLines);
  REACHABLE(TokenBlocks);
  REACHABLE(Tokenizer);
  REACHABLE(tokenize_files);
  REACHABLE(ProfileKwargs);
  REACHABLE(ImageFolder);
  REACHABLE(AORecipeKwargs);
  REACHABLE(Accelerator);
  REACHABLE(CallValues);
  REACHABLE(CsvDataset);
  REACHABLE(AlignDevicesHook);
  REACHABLE(DataLoader);
  REACHABLE(DeepSpeedPlugin);
  REACHABLE(Float8LinearConfig);
  REACHABLE(DistributedCheckpoint);
  REACHABLE(FullyShardedDataParallelPlugin);
  REACHABLE(GeneralTracker);
  REACHABLE(GradientAccumulationPlugin);
  REACHABLE(Group);
  REACHABLE(IdxDataset);
  REACHABLE(LabelledCsvTensors);
  REACHABLE(Launchable);
  REACHABLE(LocalSGD);
  REACHABLE(MaxMemory);
  REACHABLE(ModelHook);
  REACHABLE(PadCollate);
  REACHABLE(PadCollateWithMask);
  REACHABLE(MegatronLMPlugin);
  REACHABLE(ParallelismConfig);
  REACHABLE(Profiler);
  REACHABLE(RankContext);
  REACHABLE(ReduceLROnPlateau);
  REACHABLE(SafetensorsDataset);
  REACHABLE(SequentialHook);
  REACHABLE(StepLR);
  REACHABLE(TarShards);
  REACHABLE(TensorDataset);
  REACHABLE(Value);
  REACHABLE(add_hook_to_module);
  REACHABLE(align_module_device);
  REACHABLE(attach_layerwise_casting_hooks);
  REACHABLE(broadcast_object_list);
  REACHABLE(read_distributed_checkpoint);
  REACHABLE(write_distributed_checkpoint);
  REACHABLE(calculate_maximum_sizes);
  REACHABLE(call);
  REACHABLE(clear_environment);
  REACHABLE(cpu_offload);
  REACHABLE(cpu_offload_with_hook);
  REACHABLE(current_rank);
  REACHABLE(debug_launcher);
  REACHABLE(decode_image);
  REACHABLE(decode_integer);
  REACHABLE(disk_offload);
  REACHABLE(dispatch_model);
  REACHABLE(expand_braces);
  REACHABLE(find_device);
  REACHABLE(get_data_structure);
  REACHABLE(initialize_tensors);
  REACHABLE(find_executable_batch_size);
  REACHABLE(from_torch);
  REACHABLE(gather_object);
  REACHABLE(get_balanced_memory);
  REACHABLE(get_cosine_schedule_with_warmup);
  REACHABLE(get_scheduler);
  REACHABLE(init_empty_weights);
  REACHABLE(init_on_device);
  REACHABLE(is_bf16_available);
  REACHABLE(is_cuda_available);
  REACHABLE(launch);
  REACHABLE(linear_cross_entropy);
  REACHABLE(load_checkpoint_and_dispatch);
  REACHABLE(load_checkpoint_in_model);
  REACHABLE(logging::get_logger);
  REACHABLE(make_generator);
  REACHABLE(models::gpt);
  REACHABLE(models::read_llama_config);
  REACHABLE(models::resnet50);
  REACHABLE(notebook_launcher);
  REACHABLE(optim::Adafactor);
  REACHABLE(optim::AdamW);
  REACHABLE(optim::Lion);
  REACHABLE(optim::SGD);
  REACHABLE(optim::SparseAdam);
  REACHABLE(pack);
  REACHABLE(patch_environment);
  REACHABLE(progress);
  REACHABLE(read_torch_file);
  REACHABLE(remove_hook_from_module);
  REACHABLE(run);
  REACHABLE(run_launched);
  REACHABLE(send_to_device);
  REACHABLE(set_seed);
  REACHABLE(sharded::plan_memory);
  REACHABLE(shared);
  REACHABLE(transformed);
  REACHABLE(tree_conversion);
  REACHABLE(tree_members);
  REACHABLE(metrics::FBeta);
  REACHABLE(metrics::over_ranks);
  REACHABLE(metrics::own_rows);
  REACHABLE(ElasticRun);
  REACHABLE(ElasticStep);
  REACHABLE(pipeline_layer);
  REACHABLE(pipeline_layers);
  REACHABLE(pipeline_model);
  REACHABLE(unpack);
  REACHABLE(write_torch_file);
  return names;
}

// Members of classes count as their class. `accel::accel` and `accel::parquet` are CMake targets; names in
// accel::testing and accel::sim are in <accel/testing.hpp>, and ParquetDataset in <accel/parquet.hpp>.
std::set<std::string> names_in_the_guide() {
  const auto folder = std::filesystem::path(std::getenv("ACCEL_SOURCE_DIR")) / "reference/guide";
  const std::regex name("accel::([a-z_]+::)*[A-Za-z_0-9]+");
  std::set<std::string> names;
  for (const auto& page : std::filesystem::directory_iterator(folder)) {
    if (page.path().extension() != ".md") continue;
    std::ostringstream text;
    text << std::ifstream(page.path()).rdbuf();
    const auto content = text.str();
    for (std::sregex_iterator found(content.begin(), content.end(), name), end; found != end; ++found) {
      const auto word = found->str();
      const bool is_elsewhere = word.starts_with("accel::testing") || word.starts_with("accel::sim::");
      const bool is_target = word == "accel::accel" || word == "accel::parquet";
      const bool is_namespace = word == "accel::logging" || word == "accel::optim";
      if (!is_elsewhere && !is_target && !is_namespace && word != "accel::ParquetDataset") names.insert(word);
    }
  }
  return names;
}

TEST(PublicNamesTest, NamesOfTheGuideAreReachable) {
  const auto reachable = reachable_names(), written = names_in_the_guide();
  EXPECT_GT(written.size(), 50U);
  for (const auto& name : written) EXPECT_TRUE(reachable.contains(name)) << name << " is not compiled in this test";
}

TEST(PublicNamesTest, DevicesArePlannedForAModule) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));  // 80 bytes each
  EXPECT_EQ(accel::calculate_maximum_sizes(net).largest_layer_bytes, 80);
  const auto limits = accel::MaxMemory{{"cpu", 200}};
  EXPECT_EQ(accel::device_of(accel::infer_auto_device_map(net, {.max_memory = limits}), "0"), accel::MapDevice("cpu"));
  EXPECT_FALSE(accel::get_balanced_memory(net.ptr(), {.max_memory = limits}).empty());
}

}  // namespace
