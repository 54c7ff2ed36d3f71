#include "cli/estimate/estimate_words.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "base/text.h"
#include "base/units.h"

namespace coupler::cli {
namespace {

int64_t whole_number(const std::string& command, const std::string& word,
                     const std::string& value) {
  int64_t number = 0;
  const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (failed == std::errc() && end == value.data() + value.size() && number >= 1 &&
      number <= 65536) {
    return number;
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("{}: {} is '{}' but must be a whole number from 1 to 65536", command,
                          word, value),
              {.subject = word, .hint = "give the number of processes of the job"});
}

}  // namespace

EstimateWords read_estimate_words(const std::string& command, int argc, char** argv) {
  EstimateWords result;
  int own = argc;  // words before "--"
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") {
      own = i;
      result.program.assign(argv + i + 1, argv + argc);
      break;
    }
    if (word == "--help" || word == "-h") {
      result.help = true;
      return result;
    }
  }
  std::vector<char*> words(argv, argv + own);
  words.push_back(nullptr);
  result.config = take_config_arguments(own, words.data());
  for (int i = 1; i < own; ++i) {
    std::string word = words[static_cast<size_t>(i)];
    const size_t equals = word.rfind("--", 0) == 0 ? word.find('=') : std::string::npos;
    std::string value;
    const bool takes_value = word.rfind("--world", 0) == 0 || word.rfind("--limit", 0) == 0 ||
                             word.rfind("--disk", 0) == 0;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
      word.resize(equals);
    } else if (takes_value) {
      if (i + 1 >= own) {
        throw Error(ErrorCode::kUsage, fmt::format("{}: {} needs a value", command, word),
                    {.subject = word, .hint = fmt::format("see 'coupler {} --help'", command)});
      }
      value = words[static_cast<size_t>(++i)];
    }
    if (word == "--json") {
      result.json = true;
    } else if (word == "--all") {
      result.all = true;
    } else if (word == "--world") {
      result.world = whole_number(command, word, value);
    } else if (word == "--limit") {
      result.limit = parse_byte_size(value, command + ": --limit");
    } else if (word == "--disk") {
      result.disk = value;
    } else if (word.rfind('-', 0) == 0 || !result.path.empty()) {
      const std::string nearest = nearest_name(
          word, {"--json", "--all", "--world", "--limit", "--disk", "--config", "-o", "--help"});
      throw Error(ErrorCode::kUsage,
                  fmt::format("{}: unknown argument '{}'{}", command, word,
                              nearest.empty() ? "" : "; did you mean '" + nearest + "'?"),
                  {.subject = word,
                   .hint = fmt::format("a program comes after --: coupler {} -- ./program; "
                                       "see 'coupler {} --help'",
                                       command, command)});
    } else {
      result.path = word;
    }
  }
  if (!result.path.empty() && !result.program.empty()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{}: both '{}' and a program are given", command, result.path),
                {.subject = result.path, .hint = "estimate them one at a time"});
  }
  return result;
}

}  // namespace coupler::cli
