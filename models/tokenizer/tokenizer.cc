#include <coupler/error.h>
#include <coupler/tokenizer.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <utility>

#include "hub/model_files.h"
#include "json_file.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/vocabulary.h"
#include "unicode.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConvert =
    "save it with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)";

// Explains which other library's tokenizer a folder holds instead.
fs::path file_of(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  fs::path file = path / "tokenizer.json";
  if (fs::exists(file)) return file;
  for (const char* other :
       {"tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "sentencepiece.bpe.model"}) {
    if (fs::exists(path / other))
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{} holds another kind of tokenizer ({}) but no tokenizer.json",
                              path.string(), other),
                  {.subject = path.string(), .hint = kConvert});
  }
  throw Error(ErrorCode::kIo, fmt::format("{} has no tokenizer.json", path.string()),
              {.subject = path.string(), .hint = kConvert});
}

}  // namespace

struct Tokenizer::State {
  State(const JsonObject& file, fs::path folder_of)
      : folder(std::move(folder_of)),
        normalizer(make_normalizer(file.maybe_object("normalizer"))),
        pre_tokenizer(make_pre_tokenizer(file.maybe_object("pre_tokenizer"))),
        model(make_word_model(file.object("model"))),
        decoder(make_decoder(file.maybe_object("decoder"))),
        post_processor(make_post_processor(file.maybe_object("post_processor"))),
        added(file.objects("added_tokens"), normalizer) {}

  void encode_piece(std::string text, bool at_start, std::vector<int64_t>& ids) const {
    text = normalizer(std::move(text));
    for (const AddedTokens::Piece& piece : added.find_in_normalized(text)) {
      if (piece.token != nullptr) {
        ids.push_back(piece.token->id);
        continue;
      }
      Word word{piece.span.of(text), at_start && piece.span.begin == 0};
      for (const Word& part : pre_tokenizer({std::move(word)})) model->tokenize(part.text, ids);
    }
  }

  const fs::path folder;  // of the chat template
  mutable std::once_flag chat_once;
  mutable std::optional<ChatTemplate> chat;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<WordModel> model;
  Decoder decoder;
  PostProcessor post_processor;
  AddedTokens added;
};

Tokenizer Tokenizer::open(const std::string& given) {
  const std::string path = hub::model_folder(given, hub::ModelUse::kTokenizer);
  if (fs::is_directory(path) && !fs::exists(fs::path(path) / "tokenizer.json")) {
    if (const auto clip = read_clip_files(path))
      return Tokenizer(std::make_shared<State>(JsonObject(*clip, path), path));
  }
  const std::string file = file_of(path).string();
  const nlohmann::json document = read_json_file(file, kConvert);
  return Tokenizer(
      std::make_shared<State>(JsonObject(document, file), fs::path(file).parent_path()));
}

std::vector<int64_t> Tokenizer::encode(const std::string& given, bool special,
                                       std::optional<size_t> most) const {
  const std::string text = unicode::repaired(given);
  std::vector<int64_t> ids;
  if (special) ids = state_->post_processor.before;
  for (const AddedTokens::Piece& piece : state_->added.find_in_raw(text)) {
    if (piece.token != nullptr) {
      ids.push_back(piece.token->id);
    } else {
      state_->encode_piece(piece.span.of(text), piece.span.begin == 0, ids);
    }
  }
  const auto& after = state_->post_processor.after;
  const size_t around = special ? after.size() : 0;
  if (most && ids.size() + around > *most) ids.resize(*most - std::min(*most, around));
  if (special) ids.insert(ids.end(), after.begin(), after.end());
  return ids;
}

std::string Tokenizer::decode(const std::vector<int64_t>& ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const int64_t id : ids) {
    if (const AddedToken* const added = state_->added.by_id(id)) {
      if (!skip_special || !added->special) tokens.push_back(added->text);
    } else if (const std::string* const text = state_->model->vocabulary().text(id)) {
      tokens.push_back(*text);
    }
  }
  std::string text;
  for (const std::string& piece : state_->decoder(std::move(tokens))) text += piece;
  return text;
}

std::string Tokenizer::apply_chat_template(const std::vector<ChatMessage>& messages,
                                           const ChatOptions& options) const {
  std::call_once(state_->chat_once,
                 [&] { state_->chat = ChatTemplate::open(state_->folder.string()); });
  return state_->chat->apply(messages, options);
}

std::optional<int64_t> Tokenizer::id_of(const std::string& token) const {
  if (const AddedToken* const added = state_->added.by_content(token)) return added->id;
  return state_->model->vocabulary().id(token);
}

std::optional<std::string> Tokenizer::token_of(int64_t id) const {
  if (const AddedToken* const added = state_->added.by_id(id)) return added->text;
  const std::string* const text = state_->model->vocabulary().text(id);
  if (text == nullptr) return std::nullopt;
  return *text;
}

int64_t Tokenizer::size() const {
  int64_t size = state_->model->vocabulary().size();
  for (const auto& [id, token] : state_->added.all())
    size += state_->model->vocabulary().text(id) == nullptr ? 1 : 0;
  return size;
}

// A token's text depends on its neighbors (spaces between words, bytes of one character). So this
// compares the text with and without the new token, starting where nothing was pending.
std::string TextStream::add(int64_t id) {
  const std::string before =
      tokenizer_.decode({ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(emitted_)});
  ids_.push_back(id);
  // A run of single bytes is decoded as a whole: the next byte may change the ones before it.
  const std::string token = tokenizer_.token_of(id).value_or("");
  if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>')) return "";
  const std::string all = tokenizer_.decode(ids_);
  if (all.size() <= before.size() || all.ends_with("\uFFFD")) return "";
  std::string more = all.substr(before.size());
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(emitted_));
  emitted_ = ids_.size();
  return more;
}

std::string TextStream::finish() {
  const std::string before =
      tokenizer_.decode({ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(emitted_)});
  const std::string all = tokenizer_.decode(ids_);
  ids_.clear();
  emitted_ = 0;
  return all.size() > before.size() ? all.substr(before.size()) : "";
}

}  // namespace coupler
