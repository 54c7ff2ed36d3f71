// Chat templates against what transformers renders from the same messages, single expressions of
// Jinja against its results for them, and templates that are wrong or do not end.
#include <coupler/chat_template.h>
#include <coupler/error.h>
#include <coupler/text.h>
#include <coupler/tokenizer.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fixture.h"

namespace coupler {
namespace {

using Json = nlohmann::ordered_json;

Json read_ordered(const std::string& path) {
  std::ifstream in(path);
  return Json::parse(in);
}

std::string template_text(const std::string& name) {
  std::ifstream in(MODEL_TESTS "/chat_templates/" + name + ".jinja");
  return {std::istreambuf_iterator<char>(in), {}};
}

const std::vector<std::pair<std::string, std::string>> kTokens = {{"bos_token", "<s>"},
                                                                  {"eos_token", "</s>"}};

ChatMessage message_of(Json json) {
  ChatMessage message;
  message.role = json["role"];
  if (json["content"].is_string()) {
    message.content = json["content"];
    json.erase("content");
  }
  json.erase("role");
  if (!json.empty()) message.more = json.dump();
  return message;
}

TEST(ChatTemplates, Families_RenderAsTransformersDoes) {
  const Json rows = read_ordered(fixture("chat/chats.json"));
  size_t rendered = 0, refused = 0;
  for (const Json& row : rows) {
    const auto chat = ChatTemplate::parse(template_text(row["template"]), row["template"], kTokens);
    std::vector<ChatMessage> messages;
    for (const Json& json : row["messages"]) messages.push_back(message_of(json));
    ChatOptions options{.add_generation_prompt = row["add_generation_prompt"]};
    if (!row["tools"].is_null()) options.tools = row["tools"].dump();
    if (!row["variables"].empty()) options.variables = row["variables"].dump();
    if (row["text"].is_null()) {
      EXPECT_THROW((void)chat.apply(messages, options), Error) << row.dump();
      ++refused;
    } else {
      EXPECT_EQ(chat.apply(messages, options), row["text"].get<std::string>()) << row.dump();
      ++rendered;
    }
  }
  EXPECT_GT(rendered, 80U);
  EXPECT_GT(refused, 10U);
}

TEST(ChatTemplates, Expressions_GiveWhatJinjaGives) {
  const Json rows = read_ordered(fixture("chat/snippets.json"));
  std::ifstream in(fixture("chat/variables.json"));
  const std::string variables{std::istreambuf_iterator<char>(in), {}};
  size_t refused = 0;
  for (const Json& row : rows) {
    const std::string source = row["source"];
    const auto rendered = [&] {
      return ChatTemplate::parse(source).apply({{"user", "hi"}}, {.variables = variables});
    };
    if (row["text"].is_null()) {
      EXPECT_THROW((void)rendered(), Error) << source;
      ++refused;
      continue;
    }
    try {
      EXPECT_EQ(rendered(), row["text"].get<std::string>()) << source;
    } catch (const Error& error) {
      ADD_FAILURE() << source << "\n" << error.what();
    }
  }
  EXPECT_GT(rows.size() - refused, 40U);
  EXPECT_GT(refused, 15U);
}

TEST(ChatTemplates, Time_IsNow) {
  const auto chat = ChatTemplate::parse("{{ strftime_now('%Y-%m-%d') }}");
  const auto today = [] {
    const std::time_t now = std::time(nullptr);
    char text[20];
    std::strftime(text, sizeof text, "%Y-%m-%d", std::localtime(&now));
    return std::string(text);
  };
  const std::string before = today(), given = chat.apply({{"user", "hi"}});
  EXPECT_TRUE(given == before || given == today()) << given;  // midnight may lie between
}

TEST(ChatTemplates, WrongTemplates_AreRefusedWithTheLine) {
  const struct {
    std::string source;
    std::vector<std::string> message;
  } cases[] = {
      {"a\n{% include 'b' %}", {"t.jinja: line 2: 'include' is not supported", "write the prompt"}},
      {"\n\n{{ name | urlize }}", {"line 3: the filter 'urlize' is not supported"}},
      {"{{ name is nice }}", {"line 1: the test 'nice' is not supported"}},
      {"{% for x in y recursive %}{% endfor %}", {"'recursive' is not supported"}},
      {"{% if a %}\n{% for b in c %}\n{% endfor %}", {"line 1: 'endif' is missing"}},
      {"{% frobnicate %}", {"the tag 'frobnicate' is not expected"}},
      {"{% endif %}", {"the tag 'endif' is not expected"}},
      {"\n{{ 'open }}", {"line 2: a string does not end"}},
      {"{{ (1 }}", {"line 1: '}' closes nothing"}},
      {"{{ a b }}", {"'}}' is expected before 'b'"}},
      {"{# never", {"a comment does not end"}},
      {"{% raw %}x", {"'raw' has no 'endraw'"}},
      {"{{ 1 & 2 }}", {"'&' is not expected in a tag"}},
      {"{{ 99999999999999999999 }}", {"is not valid or too large"}},
      {"{{ '\\ud800' }}", {"must be followed by 4 hexadecimal digits"}},
      {"{% break %}", {"'break' is not in a loop"}},
      {"{% for i in x %}{% macro f() %}{% endmacro %}{% endfor %}", {"is not supported"}},
      {"{{ f(*x) }}", {"arguments with * are not supported"}},
      {"{{ " + std::string(10000, '(') + "1" + std::string(10000, ')') + " }}",
       {"it nests more than 50 deep"}},
      {"{{ " + std::string(10000, '-') + "1 }}", {"it nests more than 50 deep"}},
      {[] {
         std::string text;
         for (int i = 0; i < 1000; ++i) text += "{% if x %}";
         return text;
       }(),
       {"it nests more than 50 deep"}},
  };
  for (const auto& wrong : cases)
    expect_message([&] { (void)ChatTemplate::parse(wrong.source, "t.jinja"); }, wrong.message);
}

TEST(ChatTemplates, FailingTemplates_SayWhyAndWhere) {
  const struct {
    std::string source;
    std::vector<std::string> message;
  } cases[] = {
      {"\n{{ raise_exception('only users') }}", {"t.jinja: line 2", "refuses these", "only users"}},
      {"{{ messages[0].tool.name }}", {"line 1: it reads 'name' of 'tool', which is undefined"}},
      {"{% set x = 1 %}\n{{ x + 'a' }}", {"line 2: it adds an integer and a string"}},
      {"{{ messages.append(1) }}", {"it calls 'append', which is undefined"}},
      {"{{ 9223372036854775807 + 1 }}", {"a number is too large"}},
      {"{{ 10 ** 100 }}", {"a number is too large"}},
      {"{{ 'x' * 100000000 }}", {"a text of more than 64 MiB"}},
      {"{{ range(100001) }}", {"range has more than 100000 numbers"}},
      {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
       {"it takes too many steps"}},
      {"{% set n = namespace(s='xxxxxxxx') %}{% for a in range(100) %}{% set n.s = n.s + n.s %}"
       "{% endfor %}",
       {"a text of more than 64 MiB"}},
      {"{% set n = namespace(s=[1]) %}{% for a in range(100) %}{% set n.s = n.s + n.s %}"
       "{% endfor %}",
       {"it takes too many steps"}},
      {"{% set n = namespace(s=[]) %}{% for a in range(100000) %}{% set n.s = [n.s] %}{% endfor %}",
       {"it nests values more than 100 deep"}},
      // Small, but large when written.
      {"{% set n = namespace(s=['x']) %}{% for a in range(60) %}{% set n.s = [n.s, n.s] %}"
       "{% endfor %}{{ n.s | tojson }}",
       {"line 1"}},
      {"{% set n = namespace(s=['x']) %}{% for a in range(60) %}{% set n.s = [n.s, n.s] %}"
       "{% endfor %}{{ n.s == n.s }}",
       {"it takes too many steps"}},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", {"calls itself more than 20 deep"}},
      {"{% set n = namespace() %}{% set n.me = [n] %}{{ n.me }}", {"it prints a namespace"}},
      {"{% set n = namespace(next=1) %}{% for a in range(100000) %}"
       "{% set n.next = namespace(next=n.next) %}{% endfor %}{{ n.next | tojson }}",
       {"tojson cannot write a namespace"}},
  };
  for (const auto& wrong : cases) {
    const auto chat = ChatTemplate::parse(wrong.source, "t.jinja");
    expect_message([&] { (void)chat.apply({{"user", "hi"}}); }, wrong.message);
  }
  const auto chat = ChatTemplate::parse("{{ messages | length }}", "t.jinja");
  expect_message([&] { (void)chat.apply({}); }, {"there are no messages"});
  expect_message(
      [&] {
        (void)chat.apply({{"user", "hi", "[1]"}});
      },
      {"messages[0].more is not a JSON object: [1]"});
  expect_message(
      [&] {
        (void)chat.apply({{"user", "hi"}}, {.tools = "{"});
      },
      {"options.tools is not a JSON list: {"});
  expect_message(
      [&] {
        (void)chat.apply({{"user", "hi"}}, {.variables = "no"});
      },
      {"options.variables is not a JSON object"});
  expect_message(
      [&] {
        (void)chat.apply(
            {{"user", "hi", "{\"a\": " + std::string(200, '[') + std::string(200, ']') + "}"}});
      },
      {"nests values more than 100 deep"});
}

// Templates with parts removed, repeated and exchanged.
TEST(ChatTemplates, Mutations_EndInATextOrAnError) {
  std::mt19937 random(5);
  const auto below = [&](size_t count) { return static_cast<size_t>(random() % count); };
  size_t rendered = 0, refused = 0;
  for (const char* name : {"qwen3", "llama3", "mistral", "gemma"}) {
    const std::string whole = template_text(name);
    for (int round = 0; round < 150; ++round) {
      std::string text = whole;
      for (size_t changes = 1 + below(4); changes > 0; --changes) {
        const size_t at = below(text.size()),
                     size = below(std::min<size_t>(text.size() - at, 30) + 1);
        const std::string part = text.substr(at, size);
        if (below(2) == 0) text.erase(at, size);
        if (below(2) == 0) text.insert(below(text.size() + 1), part);
      }
      try {
        (void)ChatTemplate::parse(text).apply({{"user", "hi"}, {"assistant", "ho"}});
        ++rendered;
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(rendered, 10U);
  EXPECT_GT(refused, 100U);
}

TEST(ChatTemplates, Folders_HaveThemInSeveralPlaces) {
  const std::vector<ChatMessage> hello = {{"user", "hi"}};
  const TestFolder folder;
  folder.copy("tokenizers/byte-level");
  const auto rendered = [&](const ChatOptions& options = {}) {
    return Tokenizer::open(folder.path()).apply_chat_template(hello, options);
  };
  expect_message([&] { (void)rendered(); }, {"has no chat template", "write the prompt as text"});
  folder.write("tokenizer_config.json",
               R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
                   "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}"})");
  EXPECT_EQ(rendered(), "<s>hi</s>");
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "default", "template": "plain{{ bos_token }}"},
                                     {"name": "tool_use", "template": "tools"}]})");
  folder.write("special_tokens_map.json", R"({"bos_token": "<b>"})");
  EXPECT_EQ(rendered(), "plain<b>");
  EXPECT_EQ(rendered({.tools = "[]"}), "tools");
  folder.write("chat_template.jinja", "file");
  EXPECT_EQ(rendered(), "file");
  folder.write("chat_template.jinja", "{% bad");
  expect_message([&] { (void)rendered(); }, {"chat_template.jinja: line 1"});
  folder.write("tokenizer_config.json", "[]");
  expect_message([&] { (void)rendered(); }, {"tokenizer_config.json is not a JSON object"});
}

TEST(ChatTemplates, Chat_ContinuesTheRenderedText) {
  const TestFolder folder;
  folder.copy("llama");
  folder.write("chat_template.jinja",
               "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"
               "{% if add_generation_prompt %} You may{% endif %}");
  auto generator = pipeline("text-generation", folder.path());
  const GenerationOptions options{.max_new_tokens = 8};
  // The template writes the start token, which a prompt as text gets by itself.
  EXPECT_EQ(generator.chat({{"user", "reproduce"}}, options).tokens,
            generator
                .continue_tokens(
                    {generator.tokenizer().encode("<s>[INST] reproduce [/INST] You may", false)},
                    options)[0]
                .tokens);
}

}  // namespace
}  // namespace coupler
