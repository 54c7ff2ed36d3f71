// Tokenizer: converts text to tokens and back according to a tokenizer.json written by Python's
// tokenizers or transformers: byte-level BPE (GPT-2, GPT-J, Llama 3, Qwen, CLIP),
// sentencepiece-style BPE (Llama 2, Mistral, Gemma), Unigram (T5, XLM-RoBERTa) and WordPiece
// (BERT). Immutable, any thread; cheap to copy. Independent of LibTorch.
//
//   const auto tokenizer = coupler::Tokenizer::open("gpt2");
//   std::vector<int64_t> ids = tokenizer.encode("Hello, my name is");
//   std::string text = tokenizer.decode(ids);
#pragma once

#include <coupler/chat_template.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace coupler {

class Tokenizer {
 public:
  // path: a tokenizer.json, its folder, a folder with the vocab.json and merges.txt of CLIP (Stable
  // Diffusion's tokenizer/), or a model's name on the Hugging Face Hub (see coupler/text.h). Throws
  // Error(kIo) if there is none; Error(kUnsupported) for another kind, listing the supported ones;
  // Error(kInvalidArgument) naming the key if the file is malformed.
  static Tokenizer open(const std::string& path);

  // Invalid UTF-8 becomes U+FFFD. special: whether to add the special tokens that the model expects
  // around each text (a start token, [CLS] and [SEP]); special tokens in the text itself are
  // recognized in either case. most: the maximum number of tokens; longer text is truncated at the
  // end. The truncation and padding settings of tokenizer.json are ignored: models know their own
  // limits.
  std::vector<int64_t> encode(const std::string& text, bool special = true,
                              std::optional<size_t> most = std::nullopt) const;

  // skip_special: whether to omit special tokens. Unknown ids are always omitted. Always returns
  // valid UTF-8; incomplete characters become U+FFFD.
  std::string decode(const std::vector<int64_t>& ids, bool skip_special = true) const;

  // Returns the text for a chat, by the template of the tokenizer's folder
  // (coupler/chat_template.h), which is read in the first call. encode it with special = false:
  // templates write special tokens. Throws as ChatTemplate::open and apply do.
  std::string apply_chat_template(const std::vector<ChatMessage>& messages,
                                  const ChatOptions& options = {}) const;

  // Look up a single token; nullopt if there is none.
  std::optional<int64_t> id_of(const std::string& token) const;
  std::optional<std::string> token_of(int64_t id) const;
  // The number of tokens, including added ones.
  int64_t size() const;

 private:
  struct State;
  explicit Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

// Decodes tokens that arrive one by one into final pieces of text: a character is returned once all
// of its bytes have arrived. Used by one thread.
class TextStream {
 public:
  // tokenizer: the tokenizer of the tokens.
  explicit TextStream(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  // Returns the text that the token adds; often a whole word, sometimes nothing yet.
  std::string add(int64_t id);
  // Returns the rest at the end; incomplete characters become U+FFFD.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  std::vector<int64_t> ids_;  // tokens whose text may still change, and some before them
  size_t emitted_ = 0;        // how many of ids_ the returned text covers
};

}  // namespace coupler
