// The options of `accelerate launch`, made of the table that `coupler config import` also uses
// (cli/import/accelerate_words.h): an option of ours, configuration keys, nothing (it is so
// anyway), or an error that gives the reason.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "cli/import/accelerate_words.h"
#include "cli/launch/launch_options.h"
#include "config/validate.h"
#include "config/value.h"

namespace coupler::cli {
namespace {

constexpr std::string_view kAccelerate = "options of accelerate launch";

// Those that say something about the backend; backend_overrides() needs the configuration for it.
constexpr std::array<std::pair<std::string_view, bool BackendFlags::*>, 4> kBackendFlags = {
    {{"--cpu", &BackendFlags::cpu},
     {"--multi_gpu", &BackendFlags::multi_gpu},
     {"--use_fsdp", &BackendFlags::use_fsdp},
     {"--use_deepspeed", &BackendFlags::use_deepspeed}}};

// Whether messages must not repeat the value.
bool repeats_no_value(const AccelerateWord& word) {
  return word.option.starts_with("--aws_") || Option{word.option, {}}.is("--env");
}

// In the order of the table, so that the order of options does not matter. Of one that is repeated,
// the last counts.
void keep_setting(LaunchOptions& options, const AccelerateWord& word, const std::string& value,
                  const std::string& as_written) {
  auto& settings = options.settings;
  std::erase_if(settings, [&](const auto& one) { return one.word == &word; });
  const auto at = std::find_if(settings.begin(), settings.end(),
                               [&](const auto& one) { return one.word > &word; });
  settings.insert(at, {&word, value, as_written});
}

std::string written_as(const LaunchOptions::Setting& setting) {
  return setting.value.empty() ? setting.as_written
                               : fmt::format("{} {}", setting.as_written, setting.value);
}

// The key of a file, by which resolve_import() knows it.
std::string key_of(const LaunchOptions::Setting& setting) {
  return std::string(setting.word->keys.empty() ? setting.word->option : setting.word->keys[0]);
}

void refuse_unfit(const LaunchOptions::Setting& setting, const Answer& answer) {
  if (answer.kind == Answer::Kind::kUnsupported) {
    refuse_option(setting.as_written, repeats_no_value(*setting.word) ? "" : setting.value,
                  answer.why, answer.instead.empty() ? "omit it" : answer.instead);
  }
  if (answer.kind == Answer::Kind::kWrong)
    refuse_option(setting.as_written, setting.value, answer.why, "correct the value");
}

void apply_word(const AccelerateWord& word, LaunchOptions& options, const std::string& value,
                const std::string& as_written) {
  for (const auto& [name, flag] : kBackendFlags) {
    if (!Option{word.option, {}}.is(name)) continue;
    options.backend.*flag = true;
    return;
  }
  if (word.launch_words.empty()) {
    keep_setting(options, word, value, as_written);
  } else {
    apply_words(options, word.launch_words, value, as_written);
  }
}

[[noreturn]] void refuse_replaced(const std::vector<LaunchOptions::Setting>& settings,
                                  const LaunchOptions::Setting& setting,
                                  const std::string& key_of_other) {
  const auto other = std::find_if(settings.begin(), settings.end(),
                                  [&](const auto& one) { return key_of(one) == key_of_other; });
  fail_usage(
      fmt::format("{} and {} contradict each other", written_as(setting), written_as(*other)),
      setting.as_written, "omit one of them");
}

// What a file, a variable or -o gives the key, or the option that chooses the backend.
std::string value_elsewhere(const std::string& key, const LaunchOptions& options,
                            const config::Config& config) {
  if (key == "backend.use") {
    return options.backend.use_fsdp        ? "fsdp"
           : options.backend.use_deepspeed ? "deepspeed_like"
                                           : config.backend.use;
  }
  for (const auto& [plugin, given] : config.backend.options) {
    for (const config::PluginOption& option : given) {
      if (fmt::format("backend.{}.{}", plugin, option.key) == key)
        return config::render(option.value);
    }
  }
  return "";
}

// " (train.toml:3:1)"; "" for a default.
std::string place_of(const config::Config& config, const std::string& key) {
  const auto source = config.sources.find(key);
  return source == config.sources.end() ? "" : fmt::format(" ({})", source->second.text);
}

// Whether our own table or another launcher's has an option of this name.
bool is_elsewhere(const AccelerateWord& word) {
  const std::string name = Option{word.option, {}}.names()[0];
  for (const auto* table : {&own_launch_options(), &torchrun_options(), &deepspeed_options()}) {
    if (std::any_of(table->begin(), table->end(),
                    [&](const LaunchOption& one) { return one.option.is(name); }))
      return true;
  }
  return false;
}

}  // namespace

const std::vector<LaunchOption>& accelerate_options() {
  static const std::vector<LaunchOption> options = [] {
    std::vector<LaunchOption> made;
    for (const AccelerateWord& word : accelerate_words()) {
      if (word.option.empty() || is_elsewhere(word)) continue;
      made.push_back(
          {{.spec = word.option, .doc = word.doc, .group = kAccelerate, .more = true},
           [&word](LaunchOptions& o, const std::string& value, const std::string& written) {
             apply_word(word, o, value, written);
           }});
    }
    return made;
  }();
  return options;
}

void apply_settings(LaunchOptions& options, const config::Config& config) {
  Import import;
  for (const LaunchOptions::Setting& setting : options.settings) {
    const bool is_switch = Option{setting.word->option, {}}.value().empty();
    apply_rule(setting.word->rule, key_of(setting), is_switch ? "true" : setting.value, import);
    refuse_unfit(setting, import.keys.back().answer);
  }
  resolve_import(import,
                 [&](const std::string& key) { return value_elsewhere(key, options, config); });
  options.ranks_of_sizes = ranks_of_sizes(import);
  for (size_t i = 0; i < import.keys.size(); ++i) {
    const LaunchOptions::Setting& setting = options.settings[i];
    const ImportedKey& theirs = import.keys[i];
    const std::string text = written_as(setting);
    if (is_size_of_ranks(theirs.key))
      options.sizes += (options.sizes.empty() ? "" : " and ") + text;
    refuse_unfit(setting, theirs.answer);
    if (theirs.answer.kind == Answer::Kind::kReplaced)
      refuse_replaced(options.settings, setting, theirs.answer.why);
    if (theirs.answer.kind == Answer::Kind::kNoEffect)
      options.remarks.push_back(fmt::format("{} has no effect: {}", text, theirs.answer.why));
    for (const std::string& key : theirs.ours) {
      const std::string& set = *import.draft.find(key);
      const bool quoted = set.size() > 1 && set.front() == '"';
      note_setter(options, key,
                  {setting.as_written, quoted ? set.substr(1, set.size() - 2) : set, text});
      options.request.overrides.push_back(fmt::format("{}={}", key, set));
    }
  }
}

void check_keys_are_read(const LaunchOptions& options, const config::Config& config) {
  struct Reader {
    std::string_view start;  // of the keys
    const char *key, *needed, *hint;
    const std::string& value;
  };
  const std::string& use = config.backend.use;
  if (use.find('/') != std::string::npos) return;  // a plugin's file has any name
  const std::string chooser = options.backend.use_fsdp        ? " (--use_fsdp)"
                              : options.backend.use_deepspeed ? " (--use_deepspeed)"
                                                              : place_of(config, "backend.use");
  const std::array readers = {Reader{"backend.fsdp.", "backend.use", "fsdp", "add --use_fsdp", use},
                              Reader{"backend.deepspeed_like.", "backend.use", "deepspeed_like",
                                     "add --use_deepspeed", use},
                              Reader{"training.fp8_", "training.mixed_precision", "fp8",
                                     "add --mixed_precision fp8", config.training.mixed_precision}};
  for (const auto& [key, setter] : options.setters) {
    for (const Reader& reader : readers) {
      if (setter.name == "-o" || !key.starts_with(reader.start) || reader.value == reader.needed)
        continue;
      fail_usage(fmt::format("{} has an effect only if {} is \"{}\", but it is \"{}\"{}",
                             setter.text, reader.key, reader.needed, reader.value,
                             &reader.value == &use ? chooser : place_of(config, reader.key)),
                 setter.name, fmt::format("{}, or omit {}", reader.hint, setter.name));
    }
  }
}

namespace {

void check_unlike(const char* word, const std::string& key, const std::string& value,
                  const std::string& wanted, const config::Config& config) {
  if (value != "auto" && value != wanted) {
    fail_usage(fmt::format("{} means {} = \"{}\", but the configuration has \"{}\"{}", word, key,
                           wanted, value, place_of(config, key)),
               key, fmt::format("omit {}, or change {}", word, key));
  }
}

}  // namespace

std::vector<std::string> backend_overrides(const BackendFlags& words,
                                           const config::Config& config) {
  if (words.use_fsdp && words.use_deepspeed) {
    fail_usage("--use_fsdp and --use_deepspeed cannot be combined", "--use_deepspeed",
               "omit one of them");
  }
  if (words.cpu && words.multi_gpu) {
    fail_usage("--cpu and --multi_gpu cannot be combined", "--multi_gpu", "omit one of them");
  }
  std::vector<std::string> overrides;
  std::string use = config.backend.use;
  if (words.use_fsdp || words.use_deepspeed) {
    const char* word = words.use_fsdp ? "--use_fsdp" : "--use_deepspeed";
    const std::string wrapper = words.use_fsdp ? "fsdp" : "deepspeed_like";
    check_unlike(word, "backend.use", use, wrapper, config);
    use = wrapper;
    overrides.push_back(text_override("backend.use", wrapper));
  }
  if (!words.cpu && !words.multi_gpu) {
    return overrides;
  }
  overrides.push_back(text_override("training.device", words.cpu ? "cpu" : "cuda"));
  // The transport: the wrapper's base if there is a wrapper, else the backend itself.
  const bool wraps = use == "fsdp" || use == "deepspeed_like";
  const std::string key = wraps ? fmt::format("backend.{}.base", use) : "backend.use";
  const std::string transport = wraps ? config::wrapper_base(config.backend, use) : use;
  if (words.multi_gpu) {
    check_unlike("--multi_gpu", key, transport, "nccl", config);
    overrides.push_back(text_override(key, "nccl"));
  } else if (transport == "nccl") {
    fail_usage(fmt::format("--cpu needs a CPU transport, but {} is \"nccl\"", key), key,
               fmt::format("omit --cpu, or set {} to gloo_cpu or mpi", key));
  } else if (transport == "auto") {
    overrides.push_back(text_override(key, "gloo_cpu"));
  }
  return overrides;
}

}  // namespace coupler::cli
