#include "common/model.h"

#include <algorithm>
#include <string>

#include "common/op.h"

namespace db {
namespace {

Failure wrong(const char* what, uint64_t index, const char* problem) {
  return Failure::invalid("model description: " + std::string(what) + " number " +
                          std::to_string(index) + " " + problem);
}

Failure read_module(const db_module* given, uint64_t index, ModelModule* module) {
  if (given == nullptr || !DB_HAS(given, db_module, parent) || given->name == nullptr ||
      given->type == nullptr)
    return wrong("module", index, "is NULL, lacks a name or type, or has too small a struct_size");
  if (given->parent < -1 || given->parent >= static_cast<int64_t>(index))
    return wrong("module", index, "does not come after its parent");
  *module = {given->name, given->type, given->parent};
  return {};
}

Failure read_parameter(const db_parameter* given, uint64_t index, uint64_t modules,
                       ModelParameter* parameter) {
  if (given == nullptr || !DB_HAS(given, db_parameter, trainable) || given->name == nullptr ||
      (given->sizes == nullptr && given->dimensions > 0))
    return wrong("parameter", index,
                 "is NULL, lacks a name or sizes, or has too small a struct_size");
  if (given->module >= modules)
    return wrong("parameter", index, "belongs to a module that does not exist");
  if (dtype_size(given->dtype) == 0) return wrong("parameter", index, "has an unknown type");
  uint64_t elements = 1;
  for (uint32_t i = 0; i < given->dimensions; ++i)
    if (__builtin_mul_overflow(elements, given->sizes[i], &elements))
      return wrong("parameter", index, "has more elements than 64 bits can count");
  *parameter = {given->name,           static_cast<size_t>(given->module),          given->dtype,
                given->trainable != 0, given->dimensions > 0 ? given->sizes[0] : 1, elements};
  return {};
}

}  // namespace

Failure Model::read(const db_model* described, Model* model) {
  if (described == nullptr || !DB_HAS(described, db_model, parameter_count) ||
      (described->modules == nullptr && described->module_count > 0) ||
      (described->parameters == nullptr && described->parameter_count > 0))
    return Failure::invalid("the model description is NULL or its struct_size is too small");
  uint64_t total = 0;
  for (uint64_t i = 0; i < described->module_count; ++i) {
    Failure failure = read_module(described->modules[i], i, &model->modules.emplace_back());
    if (!failure.ok()) return failure;
  }
  for (uint64_t i = 0; i < described->parameter_count; ++i) {
    ModelParameter& parameter = model->parameters.emplace_back();
    Failure failure =
        read_parameter(described->parameters[i], i, described->module_count, &parameter);
    if (!failure.ok()) return failure;
    // After this check, sums over parameters cannot overflow.
    if (__builtin_add_overflow(total, parameter.elements, &total))
      return wrong("parameter", i, "brings the total to more elements than 64 bits can count");
  }
  return {};
}

std::vector<std::string> split_list(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::vector<std::string> items;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    item.remove_prefix(std::min(item.find_first_not_of(kBlanks), item.size()));
    item = item.substr(0, item.find_last_not_of(kBlanks) + 1);
    if (!item.empty()) items.emplace_back(item);
  }
  return items;
}

bool matches(std::string_view pattern, std::string_view name) {
  // fits[i]: the part of the pattern read so far matches the first i characters of the name.
  // A table, because trying the stars one after another can take exponential time.
  std::vector<bool> fits(name.size() + 1, false);
  fits[0] = true;
  for (size_t p = 0; p < pattern.size(); ++p) {
    if (pattern[p] != '*') {
      for (size_t i = name.size(); i > 0; --i) fits[i] = fits[i - 1] && name[i - 1] == pattern[p];
      fits[0] = false;
      continue;
    }
    const bool any = p + 1 < pattern.size() && pattern[p + 1] == '*';
    if (any) ++p;
    for (size_t i = 1; i <= name.size(); ++i)
      if (fits[i - 1] && (any || name[i - 1] != '.')) fits[i] = true;
  }
  return fits[name.size()];
}

std::string list_some(const std::vector<std::string_view>& names) {
  constexpr size_t kMost = 6;
  std::string text;
  const size_t shown = std::min(names.size(), kMost);
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) text += ", ";
    text += names[i];
  }
  if (names.size() > shown) text += " and " + std::to_string(names.size() - shown) + " more";
  return text.empty() ? "none" : text;
}

}  // namespace db
