#include <coupler/checkpoint.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.h"

namespace coupler {

size_t CheckpointContents::index_of(const detail::ModelRef& model) const {
  const auto found = std::find_if(
      models_.begin(), models_.end(),
      [&](const detail::ModelContents& known) { return known.identity == model.identity; });
  if (found != models_.end()) return static_cast<size_t>(found - models_.begin());
  throw Error(ErrorCode::kUsage, "a hook of a checkpoint names a model that is not prepared",
              {.subject = "CheckpointContents",
               .hint = "pass a model given to accelerator.prepare; only those are saved under "
                       "their own names"});
}

std::vector<std::string> CheckpointContents::tensors_of(const detail::ModelRef& model) const {
  const detail::ModelContents& known = models_[index_of(model)];
  std::vector<std::string> names;
  for (const std::string& name : known.tensors) {
    if (known.left_out.count(name) == 0) names.push_back(name);
  }
  return names;
}

void CheckpointContents::leave_out_of(const detail::ModelRef& model,
                                      const std::vector<std::string>* names) {
  detail::ModelContents& known = models_[index_of(model)];
  const std::vector<std::string>& chosen = names == nullptr ? known.tensors : *names;
  std::vector<std::string> first_names, unknown;
  for (const std::string& name : chosen) {
    const auto alias = std::find_if(known.aliases.begin(), known.aliases.end(),
                                    [&](const auto& pair) { return pair.first == name; });
    const std::string& first = alias == known.aliases.end() ? name : alias->second;
    const bool exists =
        std::find(known.tensors.begin(), known.tensors.end(), first) != known.tensors.end();
    (exists ? first_names : unknown).push_back(exists ? first : for_message(name));
  }
  if (!unknown.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("leave_out: the model '{}' has no {}", known.type, fmt::join(unknown, ", ")),
        {.subject = unknown.front(), .hint = "tensors(model) lists the names"});
  }
  for (const std::string& name : first_names) {
    known.left_out.insert(name);
    for (const auto& [alias, first] : known.aliases) {
      if (first == name) known.left_out.insert(alias);
    }
  }
}

}  // namespace coupler
