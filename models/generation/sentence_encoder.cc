#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <coupler/text.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "generation/pretrained.h"
#include "json_file.h"
#include "nets/bert.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder =
    "use a folder saved by sentence-transformers: tokenizer.json, config.json, weights";

[[noreturn]] void refuse_encoder(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: {} is not supported", where, what),
              {.subject = where,
               .hint = "use an encoder with a Transformer, a Pooling of mean, cls or max, and "
                       "optionally Normalize"});
}

// Newer files have "pooling_mode"; older ones have a flag for each mode.
std::string pooling_in(const fs::path& folder) {
  const std::string path = (folder / "config.json").string();
  const nlohmann::json document = read_json_file(path, kFolder);
  const JsonObject config(document, path);
  if (config.has("pooling_mode")) return config.text("pooling_mode");
  std::string mode;
  for (const auto& [key, value] : document.items()) {
    constexpr std::string_view kStart = "pooling_mode_";
    if (!std::string_view(key).starts_with(kStart) || !value.is_boolean() || !value.get<bool>())
      continue;
    if (!mode.empty()) refuse_encoder(path, "more than one pooling mode at once");
    mode = key.substr(kStart.size());
  }
  return mode;
}

}  // namespace

SentenceEncoder::EncodingOptions SentenceEncoder::read_encoding_options(const std::string& folder,
                                                                        int64_t positions) {
  EncodingOptions encoding;
  const fs::path root(folder);
  if (fs::exists(root / "modules.json")) {
    const std::string path = (root / "modules.json").string();
    const nlohmann::json modules = read_json_file(path, kFolder);
    for (const nlohmann::json& module : modules) {
      const JsonObject part(module, path);
      const std::string type = part.text("type");
      const std::string kind = type.substr(type.rfind('.') + 1);
      if (kind == "Normalize") {
        encoding.normalize = true;
      } else if (kind == "Pooling") {
        const std::string mode = pooling_in(root / part.text("path"));
        if (mode == "cls" || mode == "cls_token") {
          encoding.pooling = Pooling::kFirst;
        } else if (mode == "max" || mode == "max_tokens") {
          encoding.pooling = Pooling::kMax;
        } else if (mode != "mean" && mode != "mean_tokens") {
          refuse_encoder(path, "pooling mode '" + for_message(mode) + "'");
        }
      } else if (kind != "Transformer") {
        refuse_encoder(path, "module '" + for_message(type) + "'");
      }
    }
  }
  int64_t most = positions;
  for (const auto& [name, key] : {std::pair{"tokenizer_config.json", "model_max_length"},
                                  std::pair{"sentence_bert_config.json", "max_seq_length"}}) {
    const std::string path = (root / name).string();
    if (!fs::exists(path)) continue;
    const nlohmann::json document = read_json_file(path, kFolder);
    // transformers writes 10^30 for "no limit".
    const double limit = JsonObject(document, path).number(key, double(positions));
    if (limit >= 1 && limit < double(most)) most = static_cast<int64_t>(limit);
  }
  encoding.max_tokens = static_cast<size_t>(most);
  return encoding;
}

SentenceEncoder SentenceEncoder::open(const std::string& folder, const PretrainedOptions& options) {
  const ModelConfig config = ModelConfig::open(folder);
  std::shared_ptr<BertModel> model;
  {
    const EmptyWeights empty;
    model = std::make_shared<BertModel>(config);
  }
  model->eval();
  const EncodingOptions encoding = read_encoding_options(folder, model->positions());
  Tokenizer tokenizer = Tokenizer::open(folder);
  DispatchedModel placed =
      load_pretrained(*model, folder, config, options, "BertLayer", bert_checkpoint_name);
  return {std::move(tokenizer), std::move(model), std::move(placed), encoding};
}

int64_t SentenceEncoder::width() const { return model_->width(); }

at::Tensor SentenceEncoder::encode(const std::vector<std::string>& sentences,
                                   size_t batch_size) const {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<int64_t>> tokens;
  for (const std::string& sentence : sentences)
    tokens.push_back(tokenizer_.encode(sentence, /*special=*/true, encoding_.max_tokens));
  // Longest first, so that batches need little padding.
  std::vector<size_t> order(sentences.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tokens[a].size() > tokens[b].size(); });
  at::Tensor result = at::empty({static_cast<int64_t>(sentences.size()), width()}, at::kFloat);
  batch_size = std::max<size_t>(batch_size, 1);
  for (size_t first = 0; first < order.size(); first += batch_size) {
    const size_t last = std::min(first + batch_size, order.size());
    const auto rows = static_cast<int64_t>(last - first);
    const auto longest = std::max<int64_t>(static_cast<int64_t>(tokens[order[first]].size()), 1);
    const at::Tensor ids = at::zeros({rows, longest}, at::kLong);
    const at::Tensor text = at::zeros({rows, longest}, at::kBool);
    for (int64_t row = 0; row < rows; ++row) {
      const auto& own = tokens[order[first + static_cast<size_t>(row)]];
      std::copy(own.begin(), own.end(), ids.mutable_data_ptr<int64_t>() + row * longest);
      text[row].narrow(0, 0, static_cast<int64_t>(own.size())).fill_(true);
    }
    const at::Tensor hidden = model_->forward(ids, text).to(at::kCPU, at::kFloat);
    const at::Tensor some = text.unsqueeze(-1);
    at::Tensor pooled;
    switch (encoding_.pooling) {
      case Pooling::kFirst:
        pooled = hidden.select(1, 0);
        break;
      case Pooling::kMax:
        pooled =
            hidden.masked_fill(some.logical_not(), -std::numeric_limits<float>::infinity()).amax(1);
        break;
      case Pooling::kMean:
        pooled = hidden.mul(some).sum(1).div(some.sum(1).clamp_min(1));
        break;
    }
    if (encoding_.normalize) pooled = pooled.div(pooled.norm(2, -1, true).clamp_min(1e-12));
    for (int64_t row = 0; row < rows; ++row)
      result[static_cast<int64_t>(order[first + static_cast<size_t>(row)])].copy_(pooled[row]);
  }
  return result;
}

}  // namespace coupler
