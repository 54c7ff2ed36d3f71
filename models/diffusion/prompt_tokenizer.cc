#include "diffusion/prompt_tokenizer.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/text.h"
#include "json_file.h"
#include "tokenizer/tokenizer.h"

namespace coupler::diffusion {
namespace {

// "pad_token": a string, or an object with "content". Defaults to CLIP's end token.
std::string filler_of(const std::filesystem::path& folder) {
  for (const char* const name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const std::string path = (folder / name).string();
    if (!std::filesystem::exists(path)) continue;
    const nlohmann::json document = read_json_file(path, "save the tokenizer again");
    const JsonObject keys(document, path);
    if (!keys.has("pad_token")) continue;
    return keys.raw("pad_token").is_object() ? keys.object("pad_token").text("content")
                                             : keys.text("pad_token");
  }
  return kClipEnd;
}

}  // namespace

PromptTokenizer::PromptTokenizer(const std::string& folder, int64_t length, int64_t vocabulary)
    : tokenizer_(Tokenizer::open(folder)), length_(static_cast<size_t>(length)) {
  const std::string filler = filler_of(folder);
  const auto id = tokenizer_.id_of(filler);
  if (!id)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: the pad token '{}' is not in the vocabulary", folder, for_message(filler)),
        {.subject = "pad_token", .hint = "save the tokenizer again; this one is damaged"});
  filler_ = *id;
  for (const int64_t last : tokenizer_.encode("")) {
    if (last < vocabulary) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: token {} is out of range; the text encoder has {} tokens", folder,
                            last, vocabulary),
                {.subject = folder, .hint = "use a folder whose parts belong to one model"});
  }
}

std::vector<int64_t> PromptTokenizer::tokens(const std::string& text, const char* what) const {
  std::vector<int64_t> ids = tokenizer_.encode(text);
  if (ids.size() > length_) {
    const std::vector<int64_t> plain = tokenizer_.encode(text, /*special=*/false);
    const size_t room = length_ - (ids.size() - plain.size());
    const std::string lost =
        tokenizer_.decode({plain.begin() + static_cast<std::ptrdiff_t>(room), plain.end()});
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the {} has {} tokens, and the text encoder takes {}: '{}' would be "
                            "lost",
                            what, ids.size(), length_, for_message(lost)),
                {.subject = what, .hint = "shorten it"});
  }
  ids.resize(length_, filler_);
  return ids;
}

}  // namespace coupler::diffusion
