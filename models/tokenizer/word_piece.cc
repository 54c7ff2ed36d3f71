// WordPiece: repeatedly takes the longest token that the rest of the word starts with.
#include "base/file_text.h"
#include "tokenizer/unicode.h"
#include "tokenizer/vocabulary.h"

namespace coupler {
namespace {

class WordPiece : public WordModel {
 public:
  explicit WordPiece(const JsonObject& model)
      : vocabulary_(model),
        prefix_(model.text("continuing_subword_prefix", "##")),
        longest_(static_cast<size_t>(model.size("max_input_chars_per_word", 100))) {
    const std::string unknown = model.text("unk_token", "[UNK]");
    const auto id = vocabulary_.id(unknown);
    if (!id)
      model.refuse("unk_token", "names '" + shown(unknown) + "', which is not in the vocabulary",
                   "save the tokenizer again; this file is damaged");
    unknown_ = *id;
  }

  const Vocabulary& vocabulary() const override { return vocabulary_; }

  void tokenize(const std::string& word, std::vector<int64_t>& ids) const override {
    const auto characters = unicode::characters(word);
    const size_t before = ids.size();
    size_t first = characters.size() > longest_ ? characters.size() : 0;
    bool known = characters.size() <= longest_;
    while (first < characters.size()) {
      size_t last = characters.size();
      for (; last > first; --last) {
        const size_t begin = characters[first].span.begin;
        std::string piece = word.substr(begin, characters[last - 1].span.end - begin);
        if (first > 0) piece.insert(0, prefix_);
        if (const auto id = vocabulary_.id(piece)) {
          ids.push_back(*id);
          break;
        }
      }
      if (last == first) {
        known = false;
        break;
      }
      first = last;
    }
    if (known) return;
    ids.resize(before);
    ids.push_back(unknown_);
  }

 private:
  const Vocabulary vocabulary_;
  const std::string prefix_;
  const size_t longest_;
  int64_t unknown_ = 0;
};

}  // namespace

std::unique_ptr<WordModel> make_word_piece(const JsonObject& model) {
  return std::make_unique<WordPiece>(model);
}

}  // namespace coupler
