#include "comm/options.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/wrapper_base.h"

namespace coupler {
namespace {

std::string_view type_name(db_option_type type) {
  switch (type) {
    case DB_OPTION_STRING:
      return "a string";
    case DB_OPTION_I64:
      return "an integer";
    case DB_OPTION_F64:
      return "a number";
    default:
      return "true or false";
  }
}

db_option convert(const PluginOption& option) {
  db_option result{};
  result.struct_size = sizeof(result);
  if (std::holds_alternative<int64_t>(option.value)) {
    result.type = DB_OPTION_I64;
    result.i64 = std::get<int64_t>(option.value);
  } else if (std::holds_alternative<double>(option.value)) {
    result.type = DB_OPTION_F64;
    result.f64 = std::get<double>(option.value);
  } else if (std::holds_alternative<bool>(option.value)) {
    result.type = DB_OPTION_BOOL;
    result.boolean = std::get<bool>(option.value) ? 1 : 0;
  } else {
    result.type = DB_OPTION_STRING;
  }
  return result;
}

std::string place(const PluginOption& option) {
  return option.source.text.empty() ? "" : option.source.text + ": ";
}

const std::vector<PluginOption>* table_of(const std::string& plugin, const BackendConfig& backend) {
  const auto found = backend.options.find(plugin);
  return found == backend.options.end() ? nullptr : &found->second;
}

}  // namespace

PluginOptions::PluginOptions(const DistributedBackend& plugin, const BackendConfig& backend,
                             const std::string& taken)
    : name_(plugin.name) {
  uint64_t count = 0;
  const db_option* const* known = plugin.default_options(&count);
  const std::vector<PluginOption>* table = table_of(name_, backend);
  if (table == nullptr) return;
  for (const PluginOption& option : *table) {
    if (!taken.empty() && option.key == taken) continue;
    const std::string key = fmt::format("backend.{}.{}", name_, option.key);
    const auto* const* found = std::find_if(
        known, known + count, [&](const db_option* other) { return option.key == other->key; });
    if (found == known + count) {
      std::string valid;
      for (uint64_t i = 0; i < count; ++i) {
        valid += fmt::format("{}{}", valid.empty() ? "" : ", ", known[i]->key);
      }
      throw Error(ErrorCode::kConfig,
                  fmt::format("{}{}: the backend '{}' has no such option; {}", place(option), key,
                              name_, valid.empty() ? "it has no options" : "it has: " + valid),
                  {.subject = key, .hint = "correct or remove the option"});
    }
    db_option converted = convert(option);
    if ((*found)->type == DB_OPTION_F64 && converted.type == DB_OPTION_I64) {
      converted.type = DB_OPTION_F64;
      converted.f64 = static_cast<double>(converted.i64);
    }
    if (converted.type != (*found)->type) {
      throw Error(ErrorCode::kConfig,
                  fmt::format("{}{} must be {}, not {}", place(option), key,
                              type_name((*found)->type), type_name(converted.type)),
                  {.subject = key, .hint = "write a value of that type"});
    }
    converted.key = texts_.emplace_back(option.key).c_str();
    if (converted.type == DB_OPTION_STRING) {
      converted.string = texts_.emplace_back(std::get<std::string>(option.value)).c_str();
    }
    pointers_.push_back(&options_.emplace_back(converted));
  }
}

std::vector<std::pair<std::string, std::string>> PluginOptions::facts() const {
  std::vector<std::pair<std::string, std::string>> facts;
  for (const db_option& option : options_) {
    std::string value;
    switch (option.type) {
      case DB_OPTION_STRING:
        value = option.string;
        break;
      case DB_OPTION_I64:
        value = fmt::format("{}", option.i64);
        break;
      case DB_OPTION_F64:
        value = fmt::format("{}", option.f64);
        break;
      default:
        value = option.boolean != 0 ? "true" : "false";
    }
    facts.emplace_back(fmt::format("backend.{}.{}", name_, option.key), value);
  }
  return facts;
}

std::string base_option(const std::string& plugin, const BackendConfig& backend) {
  const PluginOption* option = find_base(backend, plugin);
  if (option == nullptr) return {};
  if (const auto* text = std::get_if<std::string>(&option->value)) return *text;
  throw Error(ErrorCode::kConfig,
              fmt::format("{}backend.{}.base must be a string: the name or path of a transport",
                          place(*option), plugin),
              {.subject = "backend." + plugin + ".base", .hint = "write base = \"gloo_cpu\""});
}

}  // namespace coupler
