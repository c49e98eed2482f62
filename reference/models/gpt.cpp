#include "reference/models/gpt.hpp"

#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>

#include "reference/context_parallel/token_mean.hpp"
#include "reference/core/errors.hpp"
#include "reference/models/gpt_layers.hpp"
#include "reference/models/sequence_parts.hpp"
#include "reference/modules/call.hpp"
#include "reference/modules/linear_cross_entropy.hpp"
#include "reference/tensor_parallel/operators.hpp"

// As in properties/oracle/gpt.py, with which tests compare it. Submodules are created and called in the same order as
// there: creation decides which random numbers a weight gets, calls decide the order of gradients. Submodules are
// called with accel::call, so that blocks can be sharded, recomputed and offloaded.
namespace accel::models {
namespace {

namespace nn = torch::nn;

using parallel::ColumnParallelLinearImpl, parallel::Copied, parallel::Sharded, parallel::VocabParallelEmbedding;

VocabParallelEmbedding token_embedding(const GptOptions& options, const Group& group) {
  return VocabParallelEmbedding(
      nn::EmbeddingOptions(options.vocab_size, options.width).padding_idx(options.padding_token), group);
}

// Names and their order, which is that of an optimizer's state, depend on the positions.
class BlockImpl : public nn::Module {
 public:
  BlockImpl(const GptOptions& options, const DeviceMesh& mesh) {
    if (options.positions == "rotary") {
      attention_ = register_module("self_attn", make_attention(options, mesh));
      feed_forward_ = register_module("mlp", make_feed_forward(options, mesh));
      attention_norm_ = register_module("input_layernorm", make_norm(options, mesh));
      feed_forward_norm_ = register_module("post_attention_layernorm", make_norm(options, mesh));
    } else {
      attention_norm_ = register_module("attention_norm", make_norm(options, mesh));
      attention_ = register_module("attention", make_attention(options, mesh));
      feed_forward_norm_ = register_module("feed_forward_norm", make_norm(options, mesh));
      feed_forward_ = register_module("feed_forward", make_feed_forward(options, mesh));
    }
  }
  LayerOutput forward(const HiddenStates& values, const Rotation& rotation) {
    // Pre-norm, as in GPT-2: the residual stream itself is never normalized.
    const HiddenStates attended{values.local + call(attention_, call(attention_norm_, values), rotation).local};
    auto output = call(feed_forward_, call(feed_forward_norm_, attended));
    output.values.local = attended.local + output.values.local;
    return output;
  }

 private:
  std::shared_ptr<HiddenLayer> attention_norm_, feed_forward_norm_;
  std::shared_ptr<AttentionLayer> attention_;
  std::shared_ptr<FeedForwardLayer> feed_forward_;
};
TORCH_MODULE(Block);

// Filled after it is registered: the module list is shared, so later blocks are registered with it.
void add_blocks(nn::ModuleList& blocks, const GptOptions& options, const DeviceMesh& mesh) {
  for (std::int64_t layer = 0; layer < options.layers; ++layer) blocks->push_back(Block(options, mesh));
}

// The result of the last block and `norm`, and the auxiliary losses of all blocks.
LayerOutput call_blocks(const nn::ModuleList& blocks, const std::shared_ptr<HiddenLayer>& norm,
                        const HiddenStates& values, const Rotation& rotation) {
  LayerOutput output{values};
  for (const auto& block : *blocks) {
    auto [next, losses] = call(block->as<BlockImpl>(), output.values, rotation);
    output.values = std::move(next);
    output.auxiliary_losses.insert(output.auxiliary_losses.end(), losses.begin(), losses.end());
  }
  output.values = call(norm, output.values);
  return output;
}

// Draws the complete tensor, so that weights and later random numbers do not depend on how it is divided.
void draw_normal(at::Tensor& parameter, double std, const parallel::ParameterCut* cut) {
  if (cut == nullptr) {
    parameter.normal_(0.0, std);
  } else {
    parameter.copy_(cut->part_of(at::empty(cut->whole_sizes(parameter), parameter.options()).normal_(0.0, std)));
  }
}

bool joins_residual(const std::string& name) {
  return name.ends_with("projection.weight") || name.ends_with("down_proj.weight") ||
         name.ends_with("experts.down_proj");
}

// Redrawn after construction in the order of named_parameters, as in the oracle.
void draw_weights(const nn::Module& module, double std, double std_of_residual) {
  const c10::NoGradGuard no_grad;
  const auto cuts = parallel::parameter_cuts(module);
  for (auto& item : module.named_parameters()) {
    const bool is_bias = item.key().ends_with("bias");  // those of experts have two dimensions
    if (is_bias) item.value().zero_();
    if (is_bias || item.value().dim() == 1) continue;
    const auto cut = cuts.find(item.key());
    draw_normal(item.value(), joins_residual(item.key()) ? std_of_residual : std,
                cut == cuts.end() ? nullptr : &cut->second);
  }
}

void clear_padding(const VocabParallelEmbedding& embedding, const GptOptions& options, const Group& group) {
  const c10::NoGradGuard no_grad;
  const auto range = part_of_length(options.vocab_size, {.index = group.rank(), .num_parts = group.size()});
  const auto row = options.padding_token.value_or(-1) - range.begin;
  if (row >= 0 && row < range.size()) embedding->weight[row].zero_();
}

// The output layer's vocabulary, which ranks divide.
struct Vocabulary {
  std::int64_t size = 0;
  Group group = {};
  Group context = {};  // the ranks that hold parts of a sequence, which may count different numbers of targets, or none

  // `weight` has the rank's part.
  [[nodiscard]] Sharded<-1> logits(const Copied& hidden, const at::Tensor& weight) const {
    return {at::linear(hidden.local, weight), size % group.size() == 0 ? 0 : size};
  }
  [[nodiscard]] at::Tensor loss(const Copied& hidden, const at::Tensor& weight, const at::Tensor& targets) const {
    if (context.size() == 1) return reduced(hidden, weight, targets, "mean");
    return parallel::token_mean(reduced(hidden, weight, targets, "sum"), targets.ne(-100).sum(), context);
  }
  [[nodiscard]] at::Tensor reduced(const Copied& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                   const std::string& reduction) const {
    if (group.size() == 1) return linear_cross_entropy(hidden.local, weight, targets, {.reduction = reduction});
    auto all = logits(hidden, weight);
    all.local = all.local.flatten(0, -2);
    return parallel::vocab_parallel_cross_entropy(all, targets.flatten(), group, {.reduction = reduction}).local;
  }
};

// The output layer. In a class of its own, since a sharded weight exists only while its module is called.
class OutputImpl : public ColumnParallelLinearImpl {
 public:
  OutputImpl(const GptOptions& options, Vocabulary vocabulary)
      : ColumnParallelLinearImpl({.in = options.width, .out = options.vocab_size, .bias = false}, vocabulary.group),
        vocabulary_(std::move(vocabulary)) {}
  using ColumnParallelLinearImpl::forward;
  at::Tensor forward(const Copied& hidden, const at::Tensor& targets) {
    return vocabulary_.loss(hidden, weight, targets);
  }

 private:
  Vocabulary vocabulary_;
};
TORCH_MODULE(Output);

// Of the sequences that a model accepts.
struct LengthLimits {
  std::int64_t block_size = 0;
  int num_parts = 1;          // ranks that hold parts of one sequence
  std::int64_t multiple = 1;  // of a rank's length: the ranks of "tp" under sequence_parallel

  void check(const at::Tensor& tokens) const {
    const auto length = tokens.size(1), complete_length = length * num_parts;
    check_argument(complete_length <= block_size, "gpt: sequence of {} tokens; expected at most {}, the block_size",
                   complete_length, block_size);
    check_argument(length % multiple == 0,
                   "gpt: sequence_parallel: sequence of {} tokens does not divide over {} tensor-parallel ranks; "
                   "expected a multiple of {}",
                   length, multiple, multiple);
  }
};

// From tokens to the logits or the loss, for both namings of modules.
class Gpt : public LanguageModel {
 public:
  at::Tensor forward(const at::Tensor& tokens) override {
    const auto hidden = stream_.enter(checked_output(tokens).values);
    // Weight tying: the embedding's gradient is the sum of both uses.
    const auto logits = output_ ? call(output_, hidden) : vocabulary_.logits(hidden, embedding_->weight);
    return parallel::gather(logits, stream_.group()).local;
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) override {
    const auto [values, auxiliary_losses] = checked_output(tokens);
    const auto hidden = stream_.enter(values);
    auto loss = output_ ? call(output_, hidden, targets) : vocabulary_.loss(hidden, embedding_->weight, targets);
    for (const auto& auxiliary : auxiliary_losses) loss = loss + auxiliary;
    return loss;
  }

 protected:
  Gpt(const GptOptions& options, const DeviceMesh& mesh)
      : stream_(options, mesh),
        parts_(mesh),
        limits_{options.block_size, parts_.size(), options.sequence_parallel ? stream_.group().size() : 1},
        vocabulary_{options.vocab_size, stream_.group(), parts_.group()},
        has_experts_(options.num_local_experts.has_value()) {}
  using Tensors = std::vector<at::Tensor>;
  using Named = std::pair<std::string, std::shared_ptr<nn::Module>>;
  using Rotate = std::function<Rotation(const at::Tensor& values)>;  // for hidden states

  void check_has_no_experts() const {
    check_config(!has_experts_, "gpt: pipeline_layers: experts (num_local_experts) are unsupported in a pipeline");
  }
  // `name` of the module list, and the rotation that a block needs.
  static void add_layers(std::vector<PipelineLayer>& layers, const std::string& name, const nn::ModuleList& blocks,
                         const Rotate& rotate) {
    for (std::size_t index = 0; index < blocks->size(); ++index) {
      const auto block = blocks->ptr<BlockImpl>(index);
      const auto own_name = fmt::format("{}.{}", name, index);
      layers.push_back(
          {.name = own_name, .modules = {{own_name, block}}, .forward = [block, rotate](const Tensors& in) {
             return Tensors{call(block, HiddenStates{in[0]}, rotate(in[0])).values.local};
           }});
    }
  }
  // From the last block's hidden states to the logits. `norm_name` and `output`: the modules, with their names.
  PipelineLayer output_layer(const std::string& norm_name, const std::shared_ptr<HiddenLayer>& norm,
                             Named output) const {
    return {.name = "output",
            .modules = {{norm_name, norm}, std::move(output)},
            .forward = [norm, stream = stream_, vocabulary = vocabulary_, embedding = embedding_,
                        output = output_](const Tensors& in) mutable {
              const auto hidden = stream.enter(call(norm, HiddenStates{in[0]}));
              const auto logits = output ? call(output, hidden) : vocabulary.logits(hidden, embedding->weight);
              return Tensors{parallel::gather(logits, stream.group()).local};
            }};
  }

  // The hidden states that enter the output layer.
  virtual LayerOutput output_of(const at::Tensor& tokens) = 0;

  ResidualStream stream_;
  SequenceParts parts_;
  LengthLimits limits_;
  Vocabulary vocabulary_;
  VocabParallelEmbedding embedding_{nullptr};
  Output output_{nullptr};  // null if it is the embedding

 private:
  LayerOutput checked_output(const at::Tensor& tokens) {
    limits_.check(tokens);
    return output_of(tokens);
  }

  bool has_experts_;
};

class LearnedPositionsGpt : public Gpt {
 public:
  LearnedPositionsGpt(const GptOptions& options, const DeviceMesh& mesh) : Gpt(options, mesh) {
    embedding_ = register_module("byte_embedding", token_embedding(options, stream_.group()));
    position_embedding_ = register_module("position_embedding", nn::Embedding(options.block_size, options.width));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
    register_module("blocks", blocks_);
    add_blocks(blocks_, options, mesh);
    norm_ = register_module("norm", make_norm(options, mesh));
    if (!options.tied_output) output_ = register_module("output", Output(options, vocabulary_));
    // GPT-2's initialization. Projections that are added to the residual stream start smaller, so that its variance
    // does not grow with depth.
    draw_weights(*this, options.initial_std, options.initial_std / std::sqrt(static_cast<double>(2 * options.layers)));
    clear_padding(embedding_, options, stream_.group());
  }

  std::vector<PipelineLayer> pipeline_layers() override {
    check_has_no_experts();
    std::vector<PipelineLayer> layers;
    layers.push_back({.name = "embedding",
                      .modules = {{"byte_embedding", embedding_.ptr()},
                                  {"position_embedding", position_embedding_.ptr()},
                                  {"dropout", dropout_.ptr()}},
                      .forward = [limits = limits_, stream = stream_, parts = parts_, bytes = embedding_,
                                  positions = position_embedding_, dropout = dropout_](const Tensors& in) mutable {
                        limits.check(in[0]);
                        return Tensors{embedded(stream, parts, bytes, positions, dropout, in[0]).local};
                      }});
    add_layers(layers, "blocks", blocks_, [](const at::Tensor&) { return Rotation(); });
    layers.push_back(output_layer(
        "norm", norm_, output_ ? Named("output", output_.ptr()) : Named("byte_embedding", embedding_.ptr())));
    return layers;
  }

 private:
  static HiddenStates embedded(const ResidualStream& stream, const SequenceParts& parts, VocabParallelEmbedding& bytes,
                               nn::Embedding& positions, nn::Dropout& dropout, const at::Tensor& tokens) {
    // Two statements, not two arguments of one call: the embeddings must be called in this order.
    const auto of_bytes = stream.embed(bytes, tokens);
    const auto of_positions = call(positions, parts.positions(tokens.size(1), tokens.device()));
    return stream.drop(dropout, {of_bytes.local + stream.own_positions(of_positions)});
  }
  LayerOutput output_of(const at::Tensor& tokens) override {
    return call_blocks(blocks_, norm_, embedded(stream_, parts_, embedding_, position_embedding_, dropout_, tokens),
                       Rotation());
  }

  nn::Embedding position_embedding_{nullptr};
  nn::Dropout dropout_{nullptr};
  nn::ModuleList blocks_;
  std::shared_ptr<HiddenLayer> norm_;
};

// transformers' LlamaModel.
class DecoderImpl : public nn::Module {
 public:
  DecoderImpl(const GptOptions& options, const DeviceMesh& mesh)
      : stream_(options, mesh), parts_(mesh), rotary_(sizes_of(options).head_width, options.rope_parameters) {
    embedding = register_module("embed_tokens", token_embedding(options, stream_.group()));
    dropout = register_module("dropout", nn::Dropout(options.dropout));
    register_module("layers", layers);
    add_blocks(layers, options, mesh);
    norm = register_module("norm", make_norm(options, mesh));
  }

  [[nodiscard]] const RotaryEmbedding& rotary() const { return rotary_; }

  LayerOutput forward(const at::Tensor& tokens) {
    const auto values = stream_.drop(dropout, stream_.embed(embedding, tokens));
    const auto rotation = rotary_.of_positions(parts_.positions(tokens.size(1), tokens.device()), values.local);
    return call_blocks(layers, norm, values, rotation);
  }

  VocabParallelEmbedding embedding{nullptr};
  nn::Dropout dropout{nullptr};
  nn::ModuleList layers;
  std::shared_ptr<HiddenLayer> norm;

 private:
  ResidualStream stream_;
  SequenceParts parts_;
  RotaryEmbedding rotary_;
};
TORCH_MODULE(Decoder);

// transformers' LlamaForCausalLM.
class RotaryGpt : public Gpt {
 public:
  RotaryGpt(const GptOptions& options, const DeviceMesh& mesh) : Gpt(options, mesh) {
    const auto std = options.initial_std;
    model_ = register_module("model", Decoder(options, mesh));
    embedding_ = model_->embedding;
    draw_weights(*model_, std, std);
    // After the decoder's weights, and also if it is tied, as transformers draws them.
    auto output = Output(options, vocabulary_);
    draw_weights(*output, std, std);
    if (!options.tied_output) output_ = register_module("lm_head", output);
    clear_padding(embedding_, options, stream_.group());
  }

  std::vector<PipelineLayer> pipeline_layers() override {
    check_has_no_experts();
    std::vector<PipelineLayer> layers;
    layers.push_back({.name = "embedding",
                      .modules = {{"model.embed_tokens", embedding_.ptr()}, {"model.dropout", model_->dropout.ptr()}},
                      .forward = [limits = limits_, stream = stream_, embedding = embedding_,
                                  dropout = model_->dropout](const Tensors& in) mutable {
                        limits.check(in[0]);
                        return Tensors{stream.drop(dropout, stream.embed(embedding, in[0])).local};
                      }});
    add_layers(
        layers, "model.layers", model_->layers,
        [rotary = model_->rotary(), parts = parts_, multiple = limits_.multiple](const at::Tensor& values) mutable {
          return rotary.of_positions(parts.positions(values.size(1) * multiple, values.device()), values);
        });
    layers.push_back(
        output_layer("model.norm", model_->norm,
                     output_ ? Named("lm_head", output_.ptr()) : Named("model.embed_tokens", embedding_.ptr())));
    return layers;
  }

 private:
  LayerOutput output_of(const at::Tensor& tokens) override { return call(model_, tokens); }

  Decoder model_{nullptr};
};

}  // namespace

std::shared_ptr<LanguageModel> gpt(const GptOptions& options) { return gpt(options, DeviceMesh()); }

std::shared_ptr<LanguageModel> gpt(const GptOptions& options, const DeviceMesh& mesh) {
  check(options, mesh);
  std::shared_ptr<LanguageModel> network;
  if (options.positions == "rotary") {
    network = std::make_shared<RotaryGpt>(options, mesh);
  } else {
    network = std::make_shared<LearnedPositionsGpt>(options, mesh);
  }
  // After the weights are drawn: those of both dtypes are the same numbers.
  if (options.dtype == "float64") network->to(at::kDouble);
  return network;
}

}  // namespace accel::models
