#include "tokenizer/tokenizer_json.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "base/text.h"

namespace coupler {
namespace {

constexpr const char* kStart = "<|startoftext|>";
constexpr const char* kWords =
    R"(<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)";

// One merge per line; the first line may be a version comment.
nlohmann::json read_merges(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    throw Error(ErrorCode::kIo, fmt::format("{} cannot be read", path),
                {.subject = path, .hint = "copy the tokenizer/ folder again"});
  nlohmann::json merges = nlohmann::json::array();
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  return merges;
}

nlohmann::json added(const nlohmann::json& vocabulary, const char* token) {
  return {{"id", vocabulary.at(token)}, {"content", token}, {"special", true}};
}

}  // namespace

void refuse_kind(const JsonObject& description, const std::string& those_that_are) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{}: '{}' is not supported; supported: {}", description.where(),
                  for_message(description.text("type", "")), those_that_are),
      {.subject = description.where(),
       .hint = "use BPE, Unigram or WordPiece with these parts; for models with another tokenizer, "
               "pass tokens made by transformers' AutoTokenizer"});
}

std::optional<nlohmann::json> read_clip_files(const std::string& folder) {
  const std::string vocab = (std::filesystem::path(folder) / "vocab.json").string();
  const std::string merges = (std::filesystem::path(folder) / "merges.txt").string();
  if (!std::filesystem::exists(vocab) || !std::filesystem::exists(merges)) return std::nullopt;
  nlohmann::json vocabulary = read_json_file(vocab, "copy the tokenizer/ folder again");
  if (!vocabulary.is_object() || !vocabulary.contains(kStart) || !vocabulary.contains(kClipEnd))
    return std::nullopt;
  nlohmann::json document;
  document["added_tokens"] = {added(vocabulary, kStart), added(vocabulary, kClipEnd)};
  document["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "NFC"}},
        {{"type", "Replace"}, {"pattern", {{"Regex", R"(\s+)"}}}, {"content", " "}},
        {{"type", "Lowercase"}}}}};
  document["pre_tokenizer"] = {{"type", "Sequence"},
                               {"pretokenizers",
                                {{{"type", "Split"},
                                  {"pattern", {{"Regex", kWords}}},
                                  {"behavior", "Removed"},
                                  {"invert", true}},
                                 {{"type", "ByteLevel"}, {"add_prefix_space", false}}}}};
  document["post_processor"]["type"] = "RobertaProcessing";
  document["post_processor"]["cls"] = nlohmann::json::array({kStart, vocabulary[kStart]});
  document["post_processor"]["sep"] = nlohmann::json::array({kClipEnd, vocabulary[kClipEnd]});
  document["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "ByteLevel"}},
        {{"type", "Replace"}, {"pattern", {{"String", "</w>"}}}, {"content", " "}},
        {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}}}}};
  document["model"] = {{"type", "BPE"},
                       {"unk_token", kClipEnd},
                       {"end_of_word_suffix", "</w>"},
                       {"merges", read_merges(merges)},
                       {"vocab", std::move(vocabulary)}};
  return document;
}

}  // namespace coupler
