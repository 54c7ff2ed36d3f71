#include "sharding/tensor_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <regex>
#include <string_view>

#include "base/error.h"
#include "base/name_pattern.h"
#include "base/text.h"

namespace coupler::sharding {
namespace {

constexpr const char* kKey = "parallel.tensor_plan";

struct Word {
  std::string_view word;
  LayerStyle style;
};

// Ours, then those of transformers' tp_plan for the same.
constexpr std::array<Word, 10> kWords = {{
    {"colwise", {TensorStyle::kColwise}},
    {"colwise_gather", {TensorStyle::kColwiseGather}},
    {"rowwise", {TensorStyle::kRowwise}},
    {"rowwise_split", {TensorStyle::kRowwiseSplit}},
    {"vocab", {TensorStyle::kVocab}},
    {"replicate", {TensorStyle::kReplicate}},
    {"sum_gradients", {TensorStyle::kSumGradients}},
    {"shared", {TensorStyle::kShared}},
    {"sequence", {TensorStyle::kSequence}},
    {"gather_sequence", {TensorStyle::kGatherSequence}},
}};
constexpr std::array<Word, 9> kOtherWords = {{
    {"colwise_rep", {TensorStyle::kColwiseGather}},
    {"colwise_gather_output", {TensorStyle::kColwiseGather}},
    {"rowwise_rep", {TensorStyle::kRowwiseSplit}},
    {"rowwise_split_input", {TensorStyle::kRowwiseSplit}},
    {"embedding_rowwise", {TensorStyle::kVocab}},
    {"packed_colwise", {TensorStyle::kColwise, /*blocks=*/2}},
    {"replicated_with_grad_allreduce", {TensorStyle::kSumGradients}},
    {"replicated", {TensorStyle::kReplicate}},
    {"sequence_parallel", {TensorStyle::kSequence}},
}};

std::string known_words() {
  std::vector<std::string_view> words;
  words.reserve(kWords.size());
  for (const Word& known : kWords) words.push_back(known.word);
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string some_of(const std::vector<std::string>& modules) {
  constexpr size_t kShown = 12;
  std::vector<std::string> named;
  for (const std::string& name : modules) {
    if (!name.empty() && named.size() < kShown) named.push_back(name);
  }
  return fmt::format("{}{}", fmt::join(named, ", "), modules.size() > kShown ? ", …" : "");
}

}  // namespace

LayerStyle layer_style(const std::string& word, const std::string& where) {
  const std::vector<std::string> parts = split(word, '/');
  std::optional<int64_t> blocks = 1;
  if (parts.size() == 2) blocks = to_number<int64_t>(parts[1]);
  const auto is_it = [&](const Word& known) { return known.word == parts[0]; };
  const auto ours = std::find_if(kWords.begin(), kWords.end(), is_it);
  const auto other = std::find_if(kOtherWords.begin(), kOtherWords.end(), is_it);
  const bool known = ours != kWords.end() || other != kOtherWords.end();
  if (!known || parts.size() > 2 || !blocks || *blocks < 1) {
    fail_config(fmt::format("{}: '{}' is not a style of a layer", where, for_message(word)), kKey,
                fmt::format("use one of {}; \"colwise/3\" if the outputs are three blocks, such as "
                            "queries, keys and values",
                            known_words()));
  }
  LayerStyle style = ours != kWords.end() ? ours->style : other->style;
  if (parts.size() == 2) style.blocks = *blocks;
  const bool divides =
      style.style == TensorStyle::kColwise || style.style == TensorStyle::kColwiseGather ||
      style.style == TensorStyle::kRowwise || style.style == TensorStyle::kRowwiseSplit;
  if (style.blocks > 1 && !divides)
    fail_config(fmt::format("{}: '{}' has no blocks", where, for_message(word)), kKey,
                "give blocks to colwise and rowwise layers only");
  return style;
}

PlannedLayers planned_layers(const std::string& line) {
  const size_t equals = line.rfind('=');
  const auto trimmed = [](std::string_view text) {
    const size_t first = text.find_first_not_of(' ');
    if (first == std::string_view::npos) return std::string();
    return std::string(text.substr(first, text.find_last_not_of(' ') + 1 - first));
  };
  const std::string where = fmt::format("{}: \"{}\"", kKey, for_message(line));
  if (equals == std::string::npos || trimmed(line.substr(0, equals)).empty()) {
    fail_config(fmt::format("{} is not PATTERN=STYLE", where), kKey,
                "write lines such as \"layers.*.mlp.up = colwise\"");
  }
  return {trimmed(line.substr(0, equals)), layer_style(trimmed(line.substr(equals + 1)), where),
          where};
}

std::vector<const PlannedLayers*> match_plan(const std::vector<PlannedLayers>& plan,
                                             const std::vector<std::string>& modules) {
  std::vector<const PlannedLayers*> result(modules.size(), nullptr);
  for (const PlannedLayers& line : plan) {
    const std::regex pattern = name_pattern(line.pattern);
    bool matches = false;
    for (size_t m = 0; m < modules.size(); ++m) {
      if (!std::regex_match(modules[m], pattern)) continue;
      matches = true;
      if (result[m] != nullptr && result[m]->style != line.style) {
        fail_config(fmt::format("the module '{}' is named by two lines that contradict: {} and {}",
                                modules[m], result[m]->text, line.text),
                    kKey, "leave one of them out, or make its pattern narrower");
      }
      result[m] = &line;
    }
    if (matches) continue;
    fail_config(fmt::format("{} matches no module of the model", line.text), kKey,
                fmt::format("name modules that the model has: {}", some_of(modules)));
  }
  return result;
}

}  // namespace coupler::sharding
