// ChatTemplate: turns the messages of a chat into the text that a model was trained on, by the
// Jinja template that its tokenizer has, as transformers' apply_chat_template does. Immutable, any
// thread; cheap to copy. Independent of LibTorch.
//
//   const auto tokenizer = coupler::Tokenizer::open("Qwen3-0.6B");
//   std::string text = tokenizer.apply_chat_template({{"user", "Why is the sky blue?"}},
//                                                    {.add_generation_prompt = true});
//   auto ids = tokenizer.encode(text, /*special=*/false);  // the text has the special tokens
//
// Templates are programs that come with a model. Coupler runs a part of Jinja, which has no access
// to anything outside of the messages, and stops a template that computes too much. Other
// constructs are refused by name and line.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace coupler {

// One message of a conversation.
struct ChatMessage {
  std::string role;     // "system", "user", "assistant" or "tool"
  std::string content;  // UTF-8
  // A JSON object with further keys that the template reads, such as
  // {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]}.
  // It may have "content", too: parts of several kinds.
  std::string more;
};

// For ChatTemplate::apply.
struct ChatOptions {
  // Whether to end with the beginning of an answer, for the model to continue.
  bool add_generation_prompt = false;
  // A JSON list of tools, described by JSON schemas; empty: none.
  std::string tools;
  // A JSON object of the template's own variables, such as {"enable_thinking": false}.
  std::string variables;
};

class ChatTemplate {
 public:
  // Reads chat_template.jinja or tokenizer_config.json's "chat_template" from a folder, and the
  // special tokens. Throws Error(kIo) if there is none, Error(kInvalidArgument) or
  // Error(kUnsupported) with the line for a template that is not valid or outside of the supported
  // part.
  static ChatTemplate open(const std::string& folder);
  // text: the template; where: its name, for messages; special_tokens: variables such as
  // {"bos_token", "<s>"}.
  static ChatTemplate parse(
      const std::string& text, const std::string& where = "chat template",
      const std::vector<std::pair<std::string, std::string>>& special_tokens = {});

  // Throws Error(kInvalidArgument) with the line if the template refuses the messages, fails or
  // does not end, and for options that are not JSON. There must be at least one message.
  std::string apply(const std::vector<ChatMessage>& messages,
                    const ChatOptions& options = {}) const;

 private:
  struct State;
  explicit ChatTemplate(std::shared_ptr<const State> state) : state_(std::move(state)) {}

  std::shared_ptr<const State> state_;
};

}  // namespace coupler
