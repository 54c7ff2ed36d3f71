#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <coupler/text.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/durable_file.h"
#include "base/text.h"
#include "generation/pretrained.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

// The files of tokenizers and of generation settings.
constexpr const char* kFiles[] = {"tokenizer.json",
                                  "tokenizer_config.json",
                                  "special_tokens_map.json",
                                  "added_tokens.json",
                                  "vocab.json",
                                  "merges.txt",
                                  "tokenizer.model",
                                  "chat_template.jinja",
                                  "generation_config.json"};

}  // namespace

TextGeneration pipeline(const std::string& task, const std::string& folder,
                        const PretrainedOptions& options) {
  if (task != "text-generation")
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("pipeline: task '{}' is not supported", for_message(task)),
                {.subject = task,
                 .hint = "use \"text-generation\"; for sentence embeddings, use SentenceEncoder"});
  ModelConfig config = ModelConfig::open(folder);
  std::shared_ptr<LanguageModel> model;
  {
    const EmptyWeights empty;
    model = make_language_model(config);
  }
  model->eval();
  DispatchedModel placed = load_pretrained(*model, folder, config, options, model->block_class(),
                                           checkpoint_names(*model));
  return {folder, std::move(config), std::move(model), std::move(placed)};
}

const Tokenizer& TextGeneration::tokenizer() const {
  if (!tokenizer_) tokenizer_ = Tokenizer::open(folder_);
  return *tokenizer_;
}

GeneratedText TextGeneration::operator()(const std::string& prompt,
                                         const GenerationOptions& options) {
  return std::move((*this)(std::vector<std::string>{prompt}, options).front());
}

std::vector<GeneratedText> TextGeneration::operator()(const std::vector<std::string>& prompts,
                                                      const GenerationOptions& options) {
  std::vector<std::vector<int64_t>> tokens;
  for (const std::string& prompt : prompts) tokens.push_back(tokenizer().encode(prompt));
  tokenizer();
  return continue_tokens(tokens, options);
}

std::vector<GeneratedText> TextGeneration::continue_tokens(
    const std::vector<std::vector<int64_t>>& prompts, const GenerationOptions& options) {
  time_ = {};
  std::vector<GeneratedText> results;
  const size_t step = std::max<size_t>(options.batch_size, 1);
  for (size_t first = 0; first < prompts.size(); first += step) {
    const size_t last = std::min(first + step, prompts.size());
    const std::vector<std::vector<int64_t>> part(
        prompts.begin() + static_cast<std::ptrdiff_t>(first),
        prompts.begin() + static_cast<std::ptrdiff_t>(last));
    GenerationOptions own = options;
    if (own.end_tokens.empty()) own.end_tokens = config_.end_tokens();
    if (own.seed) *own.seed += first;
    std::vector<TextStream> streams;
    if (options.on_text) streams.assign(part.size(), TextStream(tokenizer()));
    own.on_token = [&](size_t text, int64_t token) {
      if (options.on_token) options.on_token(first + text, token);
      if (!options.on_text) return;
      const std::string piece = streams[text].add(token);
      if (!piece.empty()) options.on_text(first + text, piece);
    };
    std::vector<GeneratedTokens> generated = generate(*model_, part, own, &time_);
    for (size_t i = 0; i < generated.size(); ++i) {
      const std::string rest = options.on_text ? streams[i].finish() : "";
      if (!rest.empty()) options.on_text(first + i, rest);
      results.push_back({tokenizer_ ? tokenizer_->decode(generated[i].tokens) : "",
                         std::move(generated[i].tokens), generated[i].ended});
    }
  }
  return results;
}

void TextGeneration::save_pretrained(const std::string& folder,
                                     const std::string& max_shard_size) const {
  coupler::save_pretrained(*model_, config_, folder, max_shard_size);
  for (const char* name : kFiles) {
    const fs::path from = fs::path(folder_) / name, to = fs::path(folder) / name;
    std::error_code missing;
    if (!fs::exists(from) || fs::equivalent(from, to, missing)) continue;
    std::ifstream in(from, std::ios::binary);
    replace_file(to.string(), {std::istreambuf_iterator<char>(in), {}});
  }
}

}  // namespace coupler
