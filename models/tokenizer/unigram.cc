// Unigram: of all ways to divide a word into tokens, the one with the largest sum of scores
// (Viterbi's algorithm), with the results of tokenizers' Unigram for the same vocabulary. Parts
// without a token are unknown, or fall back to bytes.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "tokenizer/vocabulary.h"
#include "unicode.h"

namespace coupler {
namespace {

constexpr const char* kDamaged = "save the tokenizer again; this file is damaged";

class Unigram : public WordModel {
 public:
  explicit Unigram(const JsonObject& model)
      : vocabulary_(model),
        where_(model.where()),
        byte_fallback_(model.flag("byte_fallback", false)) {
    read_scores(model);
    if (model.has("unk_id")) {
      unknown_ = model.integer("unk_id");
      if (*unknown_ < 0 || *unknown_ >= static_cast<int64_t>(scores_.size()))
        model.refuse("unk_id",
                     fmt::format("is {}, but there are {} tokens", *unknown_, scores_.size()),
                     kDamaged);
    }
    for (int byte = 0; byte < 256; ++byte)
      bytes_.push_back(vocabulary_.id(fmt::format("<0x{:02X}>", byte)));
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(const std::string& word, std::vector<int64_t>& ids) const override {
    const std::vector<Step> best = best_path(word);
    std::vector<std::pair<size_t, size_t>> parts;
    bool was_unknown = false;
    for (size_t end = word.size(); end > 0; end = best[end].begin) {
      const bool is_unknown = unknown_ && best[end].id == *unknown_;
      // Neighboring unknown parts become one.
      if (is_unknown && was_unknown) {
        parts.back().first = best[end].begin;
      } else {
        parts.emplace_back(best[end].begin, end);
      }
      was_unknown = is_unknown;
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part)
      append(std::string_view(word).substr(part->first, part->second - part->first), ids);
  }

 private:
  // The end of the best path to a byte: its last token and where that begins.
  struct Step {
    bool reached = false;
    double score = 0;
    size_t begin = 0;
    int64_t id = -1;
  };

  void read_scores(const JsonObject& model) {
    double least = 0;
    for (const nlohmann::json& entry : model.raw("vocab")) {
      // Vocabulary has checked that these are pairs.
      if (!entry[1].is_number() || !std::isfinite(entry[1].get<double>()))
        model.refuse(
            "vocab",
            fmt::format("gives '{}' the score {}", for_message(entry[0].get<std::string>()),
                        for_message(entry[1].dump())),
            kDamaged);
      scores_.push_back(entry[1].get<double>());
      least = scores_.size() == 1 ? scores_[0] : std::min(least, scores_.back());
    }
    constexpr double kPenalty = 10.0;
    unknown_score_ = least - kPenalty;
    sorted_.resize(scores_.size());
    std::iota(sorted_.begin(), sorted_.end(), int64_t{0});
    std::sort(sorted_.begin(), sorted_.end(), [&](int64_t a, int64_t b) {
      return std::pair(std::string_view(text(a)), a) < std::pair(std::string_view(text(b)), b);
    });
  }

  const std::string& text(int64_t id) const { return *vocabulary_.text(id); }

  // Calls `found` with the id and the size of each token that the text starts with, the shortest
  // first. Narrows the sorted tokens byte by byte.
  template <class Found>
  void each_prefix(std::string_view given, const Found& found) const {
    auto first = sorted_.begin(), last = sorted_.end();
    const auto byte_at = [&](int64_t id, size_t at) {
      return static_cast<unsigned char>(text(id)[at]);
    };
    for (size_t at = 0; at < given.size() && first != last; ++at) {
      const auto wanted = static_cast<unsigned char>(given[at]);
      while (first != last && text(*first).size() <= at) ++first;  // shorter ones come first
      first =
          std::partition_point(first, last, [&](int64_t id) { return byte_at(id, at) < wanted; });
      last =
          std::partition_point(first, last, [&](int64_t id) { return byte_at(id, at) == wanted; });
      if (first == last || text(*first).size() != at + 1) continue;
      // The last of equal texts is the one that its text names.
      auto same = first;
      while (same + 1 != last && text(*(same + 1)).size() == at + 1) ++same;
      found(*same, at + 1);
    }
  }

  std::vector<Step> best_path(const std::string& word) const {
    std::vector<Step> best(word.size() + 1);
    best[0].reached = true;
    const auto offer = [&](size_t begin, size_t size, double score, int64_t id) {
      Step& step = best[begin + size];
      const double all = best[begin].score + score;
      if (!step.reached || all > step.score) step = {true, all, begin, id};
    };
    for (const unicode::Character& character : unicode::characters(word)) {
      const size_t begin = character.span.begin, size = character.span.end - begin;
      bool alone = false;  // whether a token is this character
      each_prefix(std::string_view(word).substr(begin), [&](int64_t id, size_t length) {
        offer(begin, length, scores_[static_cast<size_t>(id)], id);
        alone = alone || length == size;
      });
      if (!alone) offer(begin, size, unknown_score_, unknown());
    }
    return best;
  }

  int64_t unknown() const {
    if (!unknown_)
      throw Error(ErrorCode::kInvalidArgument,
                  where_ + ": a text has a character without a token, and there is no 'unk_id'",
                  {.subject = "unk_id", .hint = "leave such characters out of the text"});
    return *unknown_;
  }

  void append(std::string_view part, std::vector<int64_t>& ids) const {
    if (const auto id = vocabulary_.id(part)) {
      ids.push_back(*id);
      return;
    }
    const auto known = [&](char byte) {
      return bytes_[static_cast<unsigned char>(byte)].has_value();
    };
    if (byte_fallback_ && std::all_of(part.begin(), part.end(), known)) {
      for (const char byte : part) ids.push_back(*bytes_[static_cast<unsigned char>(byte)]);
    } else {
      ids.push_back(unknown());
    }
  }

  const Vocabulary vocabulary_;
  const std::string where_;
  const bool byte_fallback_;
  std::optional<int64_t> unknown_;
  double unknown_score_ = 0;
  std::vector<double> scores_;   // by id
  std::vector<int64_t> sorted_;  // ids in the order of their texts
  std::vector<std::optional<int64_t>> bytes_;
};

}  // namespace

std::unique_ptr<WordModel> make_unigram(const JsonObject& model) {
  return std::make_unique<Unigram>(model);
}

}  // namespace coupler
