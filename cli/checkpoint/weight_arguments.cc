#include "cli/checkpoint/weight_arguments.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <system_error>

#include "base/text.h"
#include "base/units.h"

namespace coupler::cli {
namespace {

constexpr size_t kMostModels = 1'000'000;

// The paths and flags of one command line.
class Reader {
 public:
  Reader(const std::string& command, const std::vector<WeightFlag>& flags)
      : command_(command), flags_(flags) {}

  [[noreturn]] void fail(const std::string& problem, const std::string& subject) const {
    throw Error(ErrorCode::kUsage, fmt::format("{}: {}", command_, problem),
                {.subject = subject, .hint = fmt::format("see 'coupler {} --help'", command_)});
  }

  void read(const std::vector<std::string>& arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& argument = arguments[i];
      if (!argument.starts_with('-') || argument == "-") {
        paths_.push_back(argument);
        continue;
      }
      const size_t equals = std::min(argument.find('='), argument.size());
      const WeightFlag& flag = find(argument.substr(0, equals));
      std::string value;
      if (equals < argument.size()) {
        if (!flag.has_value) fail(fmt::format("{} takes no value", flag.name), argument);
        value = argument.substr(equals + 1);
      } else if (flag.has_value) {
        if (++i == arguments.size()) fail(fmt::format("{} needs a value", flag.name), argument);
        value = arguments[i];
      }
      if (!values_.emplace(flag.name, value).second)
        fail(fmt::format("{} is given twice", flag.name), argument);
    }
  }

  const std::vector<std::string>& paths() const { return paths_; }
  const std::map<std::string, std::string>& values() const { return values_; }

 private:
  const WeightFlag& find(const std::string& given) const {
    std::string name = given;
    std::replace(name.begin(), name.end(), '_', '-');
    std::vector<std::string> known = {"--help"};
    for (const WeightFlag& flag : flags_) {
      if (flag.name == name) return flag;
      known.emplace_back(flag.name);
    }
    const std::string nearest = nearest_name(name, known);
    fail(fmt::format("unknown argument '{}'{}", given,
                     nearest.empty() ? "" : "; did you mean '" + nearest + "'?"),
         given);
  }

  const std::string& command_;
  const std::vector<WeightFlag>& flags_;
  std::vector<std::string> paths_;
  std::map<std::string, std::string> values_;
};

}  // namespace

WeightArguments read_weight_arguments(const std::string& command,
                                      const std::vector<std::string>& arguments,
                                      const std::vector<WeightFlag>& flags) {
  Reader reader(command, flags);
  reader.read(arguments);
  WeightArguments result;
  for (const auto& [name, value] : reader.values()) {
    if (name == "--max-shard-size") {
      try {
        result.max_shard_size = parse_byte_size(value, name);
      } catch (const Error& error) {
        throw Error(ErrorCode::kUsage, fmt::format("{}: {}", command, error.what()));
      }
    } else if (name == "--model") {
      const char* const end = value.data() + value.size();
      const auto [stop, status] = std::from_chars(value.data(), end, result.model);
      if (status != std::errc() || stop != end || result.model > kMostModels)
        reader.fail(fmt::format("--model must be a number, counted from 0, not '{}'", value),
                    value);
    } else if (name == "--key") {
      if (value.empty()) reader.fail("--key is empty", name);
      result.key = value;
    } else {
      result.switches.insert(name);
    }
  }
  const auto& paths = reader.paths();
  if (paths.size() < 2)
    reader.fail(paths.empty() ? "SOURCE and TARGET are missing"
                              : fmt::format("TARGET is missing after '{}'", paths[0]),
                paths.empty() ? command : paths[0]);
  if (paths.size() > 2) reader.fail(fmt::format("unexpected third path '{}'", paths[2]), paths[2]);
  result.source = paths[0];
  result.target = paths[1];
  if (result.source.empty() || result.target.empty()) reader.fail("a path is empty", command);
  if (is_one_file(result.target) && result.max_shard_size)
    reader.fail(
        fmt::format("'{}' is a single file, which --max-shard-size cannot split; name a folder",
                    result.target),
        result.target);
  return result;
}

std::string written_text(const std::string& target, const WrittenWeights& written) {
  const auto counted = [](size_t count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  return fmt::format("{}: {}, {} in {}", target, counted(written.tensors, "tensor"),
                     format_byte_size(written.bytes), counted(written.files, "file"));
}

}  // namespace coupler::cli
