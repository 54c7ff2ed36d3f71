#include <coupler/chat_template.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "jinja/template.h"
#include "json_file.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;
using jinja::Value;
using Variables = jinja::Template::Variables;

constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

[[noreturn]] void fail(const std::string& where, const jinja::ProblemInLine& problem) {
  throw Error(
      problem.unsupported ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
      fmt::format("{}: line {}: {}", where, problem.line, for_message(problem.what())),
      {.subject = where,
       .hint = problem.unsupported ? "write the prompt as text, or simplify a copy of the template"
                                   : "check the messages and options against the template"});
}

// A JSON text of options or messages; nothing if it is empty.
std::optional<nlohmann::ordered_json> json_of(const std::string& text, const std::string& what,
                                              bool is_list) {
  if (text.empty()) return std::nullopt;
  auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (is_list ? !json.is_array() : !json.is_object())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is not a JSON {}: {}", what, is_list ? "list" : "object",
                            for_message(text)),
                {.subject = what, .hint = "pass the JSON text that Python's json.dumps writes"});
  return json;
}

std::string file_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw Error(ErrorCode::kIo, path.string() + " cannot be read",
                {.subject = path.string(), .hint = "check the file's permissions"});
  return {std::istreambuf_iterator<char>(in), {}};
}

// "<s>" or {"content": "<s>", …}; null: none.
void add_special_tokens(const nlohmann::json& config, Variables& variables) {
  for (const char* name : kSpecialTokens) {
    const bool known = std::any_of(variables.begin(), variables.end(),
                                   [&](const auto& variable) { return variable.first == name; });
    const auto found = config.find(name);
    if (known || found == config.end()) continue;
    const nlohmann::json& token =
        found->is_object() && found->contains("content") ? found->at("content") : *found;
    if (token.is_string()) variables.emplace_back(name, token.get<std::string>());
  }
}

// As transformers: keys without a value are left out, and reasoning has all names that templates
// read.
Value message_value(const ChatMessage& message, size_t index) {
  nlohmann::ordered_json json;
  json["role"] = message.role;
  json["content"] = message.content;
  if (const auto more = json_of(message.more, fmt::format("messages[{}].more", index), false)) {
    for (const auto& [key, value] : more->items()) {
      if (value.is_null()) {
        json.erase(key);
      } else {
        json[key] = value;
      }
    }
  }
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!json.contains(name)) continue;
    const nlohmann::ordered_json reasoning = json[name];
    if (!json.contains("thinking")) json["thinking"] = reasoning;
    json["reasoning_content"] = reasoning;
    break;
  }
  return Value::of_json(json);
}

}  // namespace

struct ChatTemplate::State {
  std::string where;
  jinja::Template compiled;
  std::optional<jinja::Template> with_tools;  // if the tokenizer has another for them
  Variables special_tokens;
};

namespace {

jinja::Template compiled(const std::string& text, const std::string& where) {
  try {
    return jinja::Template(text);
  } catch (const jinja::ProblemInLine& problem) {
    fail(where, problem);
  }
}

// A tokenizer's templates: the default one, and one for tools.
struct Sources {
  std::string where, text;
  std::optional<std::string> with_tools;
};

Sources sources_in(const fs::path& folder, const nlohmann::json& config) {
  Sources sources;
  const fs::path file = folder / "chat_template.jinja";
  const fs::path tools = folder / "additional_chat_templates" / "tool_use.jinja";
  if (fs::exists(tools)) sources.with_tools = file_text(tools);
  if (fs::exists(file)) {
    sources.where = file.string();
    sources.text = file_text(file);
    return sources;
  }
  sources.where = (folder / "tokenizer_config.json").string() + ": chat_template";
  const auto found = config.find("chat_template");
  bool has_default = found != config.end() && found->is_string();
  if (has_default) sources.text = found->get<std::string>();
  if (found != config.end() && found->is_array()) {
    for (const nlohmann::json& named : *found) {
      const JsonObject entry(named, sources.where);
      const std::string name = entry.text("name");
      if (name == "tool_use") sources.with_tools = entry.text("template");
      if (name != "default") continue;
      sources.text = entry.text("template");
      has_default = true;
    }
  }
  if (!has_default)
    throw Error(ErrorCode::kIo,
                folder.string() +
                    " has no chat template: no chat_template.jinja, and none in "
                    "tokenizer_config.json",
                {.subject = folder.string(),
                 .hint = "use a model that was trained on chats, or write the prompt as text"});
  return sources;
}

}  // namespace

ChatTemplate ChatTemplate::open(const std::string& folder_of) {
  const fs::path folder(folder_of);
  const auto read = [&](const char* name) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) return nlohmann::json(nlohmann::json::object());
    nlohmann::json json = read_json_file(path.string(), "copy the tokenizer's files again");
    (void)JsonObject(json, path.string());  // throws if it is not an object
    return json;
  };
  const nlohmann::json config = read("tokenizer_config.json");
  const Sources sources = sources_in(folder, config);
  State state{sources.where, compiled(sources.text, sources.where), std::nullopt, {}};
  if (sources.with_tools)
    state.with_tools = compiled(*sources.with_tools, sources.where + " (tool_use)");
  add_special_tokens(config, state.special_tokens);
  add_special_tokens(read("special_tokens_map.json"), state.special_tokens);
  return ChatTemplate(std::make_shared<const State>(std::move(state)));
}

ChatTemplate ChatTemplate::parse(
    const std::string& text, const std::string& where,
    const std::vector<std::pair<std::string, std::string>>& special_tokens) {
  State state{where, compiled(text, where), std::nullopt, {}};
  for (const auto& [name, token] : special_tokens) state.special_tokens.emplace_back(name, token);
  return ChatTemplate(std::make_shared<const State>(std::move(state)));
}

std::string ChatTemplate::apply(const std::vector<ChatMessage>& messages,
                                const ChatOptions& options) const {
  if (messages.empty())
    throw Error(ErrorCode::kInvalidArgument, state_->where + ": there are no messages",
                {.subject = "messages", .hint = "pass at least one message"});
  const auto tools = json_of(options.tools, "options.tools", true);
  const auto own = json_of(options.variables, "options.variables", false);
  try {
    std::vector<Value> values;
    for (size_t i = 0; i < messages.size(); ++i) values.push_back(message_value(messages[i], i));
    Variables variables = {{"messages", Value::list(std::move(values))},
                           {"tools", tools ? Value::of_json(*tools) : Value(nullptr)},
                           {"documents", nullptr},
                           {"add_generation_prompt", options.add_generation_prompt}};
    if (own) {
      for (const auto& [name, value] : own->items())
        variables.insert(variables.begin(), {name, Value::of_json(value)});
    }
    variables.insert(variables.end(), state_->special_tokens.begin(), state_->special_tokens.end());
    const bool with_tools = tools && state_->with_tools;
    return (with_tools ? *state_->with_tools : state_->compiled).render(variables);
  } catch (const jinja::ProblemInLine& problem) {
    fail(state_->where, problem);
  } catch (const jinja::Problem& problem) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: the messages cannot be used: {}", state_->where, problem.what()),
                {.subject = "messages", .hint = "pass values that are nested less deeply"});
  }
}

}  // namespace coupler
