// Tokenizer: texts to tokens and back, as the file tokenizer.json says that Python's tokenizers and
// transformers write: byte-level BPE (GPT-2, GPT-J, Llama 3, CLIP), sentencepiece-style BPE (Llama
// 2) and WordPiece (BERT). Immutable, any thread; cheap to copy. Sees no LibTorch.
//
//   const auto tokenizer = coupler::Tokenizer::open("gpt2");
//   std::vector<int64_t> ids = tokenizer.encode("Hello, my name is");
//   std::string text = tokenizer.decode(ids);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace coupler {

class Tokenizer {
 public:
  // A tokenizer.json, or the folder it lies in, or one with the vocab.json and merges.txt of a
  // CLIP (Stable Diffusion's tokenizer/). Throws Error(kIo) where there is none, with what to
  // do; Error(kUnsupported) where it is of another kind, with those that are read;
  // Error(kInvalidArgument) naming the key where it is damaged.
  static Tokenizer open(const std::string& path);

  // Bytes that are no UTF-8 count as U+FFFD. special: whether the tokens are added that the model
  // wants around each text (a beginning, [CLS] and [SEP]); those in the text itself are found in
  // either case. most: where there would be more tokens, the end of the text is left out. What
  // tokenizer.json says of truncation and padding is not heeded: models know their own limits.
  std::vector<int64_t> encode(const std::string& text, bool special = true,
                              std::optional<size_t> most = std::nullopt) const;

  // skip_special: whether special tokens are left out. Numbers that no token has are left out in
  // either case. Always UTF-8: U+FFFD stands for characters of which only a part is there.
  std::string decode(const std::vector<int64_t>& ids, bool skip_special = true) const;

  // One token by itself; nothing where there is none.
  std::optional<int64_t> id_of(const std::string& token) const;
  std::optional<std::string> token_of(int64_t id) const;
  // Added tokens included.
  int64_t size() const;

 private:
  struct State;
  explicit Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

// The text of tokens that come one by one, in pieces that are final: a character comes once all of
// its bytes are there. Used by one thread.
class TextStream {
 public:
  // tokenizer: the one that the tokens are of.
  explicit TextStream(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  // What the token adds to the text; often all of a word, sometimes nothing yet.
  std::string add(int64_t id);
  // What is left at the end: of characters that stay incomplete U+FFFD.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  std::vector<int64_t> ids_;  // those whose text may still change, and some before them
  size_t told_ = 0;           // of ids_: how many the text so far is of
};

}  // namespace coupler
