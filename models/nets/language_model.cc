#include <coupler/error.h>
#include <coupler/language_model.h>
#include <fmt/format.h>

#include "nets/layers.h"

namespace coupler {
namespace {

// Masks and frequencies; the model computes its own.
bool is_computed(const std::string& name) {
  for (const char* end : {".attn.bias", ".attn.masked_bias", ".attention.bias",
                          ".attention.masked_bias", ".rotary_emb.inv_freq"}) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

}  // namespace

void LanguageModel::require_tokens(const at::Tensor& tokens, int64_t seen) const {
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong || tokens.size(1) == 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        "a language model takes int64 tokens of shape [batch, positions], at least one each",
        {.subject = "tokens", .hint = "unsqueeze(0) makes a batch of one text"});
  const int64_t all = tokens.size(1) + seen;
  if (all > context_)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} tokens exceed the model's context of {}", all, context_),
        {.subject = "tokens", .hint = "shorten the text, or use a model with a longer context"});
}

at::Tensor LanguageModel::hidden(const at::Tensor& tokens, KeyValueCache* cache) {
  require_tokens(tokens, cache == nullptr ? 0 : cache->length());
  AttentionPass pass = begin_pass(tokens, cache);
  at::Tensor x = tokens;
  for (const Part& part : parts_) {
    x = part.compute(x, pass);
    if (cache != nullptr && x.size(1) != tokens.size(1))
      throw Error(ErrorCode::kUnsupported,
                  "text cannot be generated while the ranks of a tensor group divide the sequence",
                  {.subject = "parallel.sequence",
                   .hint = "set parallel.sequence to false in the job that generates"});
  }
  if (cache != nullptr) cache->advance(tokens.size(1));
  return x;
}

std::vector<PipelineLayer> LanguageModel::pipeline_layers() {
  std::vector<PipelineLayer> layers;
  for (const Part& part : parts_) {
    layers.emplace_back(part.name, part.modules, [this, &part](const at::Tensor& x) {
      const bool first = &part == &parts_.front();
      if (first) require_tokens(x, 0);
      // Only uses the shape [batch, positions].
      AttentionPass pass = begin_pass(x, nullptr, first ? 1 : sequence_ranks());
      const at::Tensor y = part.compute(x, pass);
      return &part == &parts_.back() ? logits(y) : y;
    });
  }
  return layers;
}

std::function<std::string(const std::string&)> checkpoint_names(const LanguageModel& model) {
  const std::string prefix = model.base_prefix(), head = model.head_name();
  return [prefix, head](const std::string& name) {
    if (is_computed(name)) return std::string();
    // GPT-NeoX's head has another name in newer versions of transformers.
    for (const char* other : {"lm_head.", "embed_out."}) {
      if (name.starts_with(other)) return head + name.substr(name.find('.'));
    }
    return name.starts_with(prefix) ? name : prefix + name;
  };
}

}  // namespace coupler
