#include "dispatch/match_weights.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>
#include <string_view>

#include "base/file_text.h"

namespace coupler {
namespace {

class Matcher {
 public:
  Matcher(const Model& model, const WeightSource& source) {
    for (const WeightTensor& tensor : source.tensors) by_name_.emplace(tensor.name, &tensor);
    for (const auto& [alias, name] : source.aliases) {
      if (const auto found = by_name_.find(name); found != by_name_.end())
        by_name_.emplace(alias, found->second);
    }
    for (const auto& [alias, name] : model.aliases) other_names_[name].push_back(alias);
  }

  const WeightTensor* find(const std::string& name, const at::Tensor& tensor) {
    const WeightTensor* found = named(name);
    for (const std::string& other : other_names_[name]) {
      const WeightTensor* const tied = named(other);
      if (found == nullptr) found = tied;
    }
    if (found == nullptr) {
      missing_.push_back(name);
    } else if (tensor.sizes() != c10::IntArrayRef(found->shape)) {
      wrong_.push_back(fmt::format("{} is [{}], but the model's is [{}]", shown(name),
                                   fmt::join(found->shape, ", "), fmt::join(tensor.sizes(), ", ")));
    }
    return found;
  }

  void check(const WeightSource& source, const std::string& checkpoint, bool strict) const {
    std::vector<std::string> unexpected;
    for (const WeightTensor& tensor : source.tensors) {
      if (used_.count(&tensor) == 0) unexpected.push_back(shown(tensor.name));
    }
    std::string text;
    const auto list = [&](const char* what, const std::vector<std::string>& names) {
      if (!names.empty()) text += fmt::format("\n  {}: {}", what, fmt::join(names, ", "));
    };
    if (strict) {
      list("missing", missing_);
      list("unexpected", unexpected);
    }
    list("of another shape", wrong_);
    if (text.empty()) return;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} does not match the model:{}", checkpoint, text),
                {.subject = checkpoint,
                 .hint = "build the model that was saved; strict = false allows missing and "
                         "unexpected tensors, but not another shape"});
  }

 private:
  const WeightTensor* named(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    used_.insert(found->second);
    return found->second;
  }

  std::map<std::string_view, const WeightTensor*> by_name_;
  std::map<std::string, std::vector<std::string>> other_names_;
  std::set<const WeightTensor*> used_;
  std::vector<std::string> missing_, wrong_;
};

}  // namespace

MatchedWeights match_weights(const Model& model, const WeightSource& source,
                             const std::string& checkpoint, bool strict) {
  Matcher matcher(model, source);
  MatchedWeights result;
  for (const ModelParameter& parameter : model.parameters)
    result.parameters.push_back(matcher.find(parameter.name, parameter.tensor));
  for (const auto& [name, buffer] : model.buffers)
    result.buffers.push_back(matcher.find(name, buffer));
  matcher.check(source, checkpoint, strict);
  return result;
}

}  // namespace coupler
