#include "cli/launch/launch_options.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace coupler::cli {
namespace {

// "--num_processes" and "--num-processes" are the same; "-n" and "-o" stay as they are.
std::string normalized(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

const LaunchWord* find_word(const std::string& name) {
  for (const auto* table : {&launch_words(), &accelerate_words()}) {
    for (const LaunchWord& word : *table) {
      if (name == word.name) {
        return &word;
      }
    }
  }
  return nullptr;
}

[[noreturn]] void fail_unknown_option(const std::string& name) {
  std::vector<std::string> known;
  for (const auto* table : {&launch_words(), &accelerate_words()}) {
    for (const LaunchWord& word : *table) {
      known.emplace_back(word.name);
    }
  }
  const std::string nearest = nearest_name(normalized(name), known);
  fail_usage(fmt::format("unknown option '{}'{}", name,
                         nearest.empty() ? "" : "; did you mean '" + nearest + "'?"),
             name);
}

// A word of the command line, split if its value is attached: "--config=F", "-n4".
struct Argument {
  std::string name;
  std::optional<std::string> value;
};

Argument split_argument(const std::string& text) {
  if (text.rfind("--", 0) != 0) {
    return text.size() > 2 ? Argument{text.substr(0, 2), text.substr(2)} : Argument{text, {}};
  }
  const auto equals = text.find('=');
  return equals == std::string::npos ? Argument{text, {}}
                                     : Argument{text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace

void fail_usage(const std::string& message, const std::string& subject, const std::string& hint) {
  throw Error(ErrorCode::kUsage, message,
              {.subject = subject,
               .hint = hint.empty() ? "`coupler launch --help` lists the options" : hint});
}

int parse_number(const std::string& text, int least, int most, const std::string& word,
                 const std::string& meaning) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, number);
  if (status != std::errc() || stop != end || number < least || number > most) {
    fail_usage(
        fmt::format("{}: '{}' is not a valid {} ({} to {})", word, text, meaning, least, most),
        word);
  }
  return number;
}

std::string text_override(const std::string& key, const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    quoted += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  }
  return fmt::format("{}=\"{}\"", key, quoted);
}

LaunchOptions parse_launch_options(int argc, char** argv) {
  LaunchOptions options;
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    const std::string text = argv[i];
    if (text == "--") {
      ++i;
      break;
    }
    const Argument argument = split_argument(text);
    const bool is_long = argument.name.rfind("--", 0) == 0;
    const LaunchWord* word = find_word(is_long ? normalized(argument.name) : argument.name);
    if (word == nullptr) {
      fail_unknown_option(is_long ? argument.name : text);
    }
    if (!word->takes_value && argument.value) {
      fail_usage(
          fmt::format("{} takes no value, but '{}' was given", argument.name, *argument.value),
          argument.name);
    }
    std::string value = argument.value.value_or("");
    if (word->takes_value && !argument.value) {
      if (i + 1 >= argc) {
        fail_usage(fmt::format("{} needs a value", argument.name), argument.name);
      }
      value = argv[++i];
    }
    word->apply(options, value, argument.name);
    if (options.help) {
      return options;
    }
  }
  options.program = i;
  if (i >= argc) {
    fail_usage("no program was given: coupler launch -n 2 ./program", "program");
  }
  return options;
}

}  // namespace coupler::cli
