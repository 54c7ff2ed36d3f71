// Byte-pair encoding: merges the characters of a word pair by pair, in the order in which pairs
// were learned. Byte-level tokenizers have words in GPT-2's byte alphabet; sentencepiece-style ones
// fall back to tokens such as <0x0A> for unknown characters.
#include <fmt/format.h>

#include <queue>
#include <tuple>

#include "base/text.h"
#include "tokenizer/vocabulary.h"
#include "unicode.h"

namespace coupler {
namespace {

struct Merge {
  int64_t rank = 0;
  int64_t id = 0;  // of the merged token
};

struct PairHash {
  size_t operator()(const std::pair<int64_t, int64_t>& pair) const {
    return std::hash<int64_t>()(pair.first * 0x9E3779B97F4A7C15 + pair.second);
  }
};
using Merges = std::unordered_map<std::pair<int64_t, int64_t>, Merge, PairHash>;

// The tokens of a word as a linked list; merging removes the right one.
class Symbols {
 public:
  Symbols(const std::vector<int64_t>& ids, const Merges& merges) : merges_(merges) {
    symbols_.reserve(ids.size());
    for (size_t i = 0; i < ids.size(); ++i)
      symbols_.push_back({ids[i], static_cast<int>(i) - 1,
                          i + 1 < ids.size() ? static_cast<int>(i) + 1 : -1, true});
    for (size_t i = 0; i + 1 < ids.size(); ++i) offer(static_cast<int>(i));
  }

  void join_all() {
    while (!waiting_.empty()) {
      const auto [rank, left, id] = waiting_.top();
      waiting_.pop();
      Symbol& symbol = symbols_[left];
      if (!symbol.there || symbol.next < 0) continue;
      // The pair may have changed since it was offered.
      const auto merge = merges_.find({symbol.id, symbols_[symbol.next].id});
      if (merge == merges_.end() || merge->second.id != id) continue;
      Symbol& right = symbols_[symbol.next];
      right.there = false;
      symbol.id = id;
      symbol.next = right.next;
      if (symbol.next >= 0) symbols_[symbol.next].previous = left;
      if (symbol.previous >= 0) offer(symbol.previous);
      if (symbol.next >= 0) offer(left);
    }
  }

  void append_to(std::vector<int64_t>& ids) const {
    for (const Symbol& symbol : symbols_) {
      if (symbol.there) ids.push_back(symbol.id);
    }
  }

 private:
  struct Symbol {
    int64_t id = 0;
    int previous = -1, next = -1;
    bool there = true;
  };
  using Offer = std::tuple<int64_t, int, int64_t>;  // rank, position, merged token

  void offer(int left) {
    const Symbol& symbol = symbols_[left];
    const auto merge = merges_.find({symbol.id, symbols_[symbol.next].id});
    if (merge != merges_.end()) waiting_.emplace(merge->second.rank, left, merge->second.id);
  }

  const Merges& merges_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> waiting_;
};

class Bpe : public WordModel {
 public:
  explicit Bpe(const JsonObject& model)
      : vocabulary_(model),
        prefix_(model.text("continuing_subword_prefix", "")),
        suffix_(model.text("end_of_word_suffix", "")),
        fuse_unknown_(model.flag("fuse_unk", false)),
        byte_fallback_(model.flag("byte_fallback", false)),
        ignore_merges_(model.flag("ignore_merges", false)) {
    if (model.has("unk_token")) unknown_ = require(model, "unk_token", model.text("unk_token"));
    for (int byte = 0; byte < 256; ++byte)
      bytes_.push_back(vocabulary_.id(fmt::format("<0x{:02X}>", byte)));
    read_merges(model);
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(const std::string& word, std::vector<int64_t>& ids) const override {
    if (ignore_merges_) {
      if (const auto id = vocabulary_.id(word)) {
        ids.push_back(*id);
        return;
      }
    }
    Symbols symbols(first_tokens(word), merges_);
    symbols.join_all();
    symbols.append_to(ids);
  }

 private:
  int64_t require(const JsonObject& model, const char* key, const std::string& text) const {
    const auto id = vocabulary_.id(text);
    if (!id)
      model.refuse(key,
                   fmt::format("names '{}', which is not in the vocabulary", for_message(text)),
                   "save the tokenizer again; this file is damaged");
    return *id;
  }

  // Two formats: the older ["a b", …] and [["a", "b"], …].
  void read_merges(const JsonObject& model) {
    const nlohmann::json& merges = model.raw("merges");
    int64_t rank = 0;
    for (const nlohmann::json& merge : merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const size_t blank = text.find(' ');
        left = text.substr(0, blank);
        right = blank == std::string::npos ? "" : text.substr(blank + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      }
      if (left.empty() || right.size() <= prefix_.size())
        model.refuse("merges",
                     fmt::format("has {}, which is not a pair", for_message(merge.dump())),
                     "save the tokenizer again; this file is damaged");
      const std::string joined = left + right.substr(prefix_.empty() ? 0 : prefix_.size());
      merges_.emplace(std::pair(require(model, "merges", left), require(model, "merges", right)),
                      Merge{rank++, require(model, "merges", joined)});
    }
  }

  std::vector<int64_t> first_tokens(const std::string& word) const {
    std::vector<int64_t> ids;
    bool unknown = false;  // an unknown token is pending, to be fused with following ones
    const auto characters = unicode::characters(word);
    for (size_t i = 0; i < characters.size(); ++i) {
      std::string text = characters[i].span.of(word);
      if (i > 0) text.insert(0, prefix_);
      if (i + 1 == characters.size()) text += suffix_;
      if (const auto id = vocabulary_.id(text)) {
        if (unknown) ids.push_back(*unknown_);
        unknown = false;
        ids.push_back(*id);
      } else if (!append_bytes(text, ids) && unknown_) {
        if (unknown && !fuse_unknown_) ids.push_back(*unknown_);
        unknown = true;
      }
    }
    if (unknown) ids.push_back(*unknown_);
    return ids;
  }

  bool append_bytes(const std::string& text, std::vector<int64_t>& ids) const {
    if (!byte_fallback_) return false;
    for (const char byte : text) {
      if (!bytes_[static_cast<unsigned char>(byte)]) return false;
    }
    for (const char byte : text) ids.push_back(*bytes_[static_cast<unsigned char>(byte)]);
    return true;
  }

  const Vocabulary vocabulary_;
  const std::string prefix_, suffix_;
  const bool fuse_unknown_, byte_fallback_, ignore_merges_;
  std::optional<int64_t> unknown_;
  std::vector<std::optional<int64_t>> bytes_;
  Merges merges_;
};

}  // namespace

std::unique_ptr<WordModel> make_bpe(const JsonObject& model) {
  return std::make_unique<Bpe>(model);
}

}  // namespace coupler
