#include "big_model/load_weights.h"

#include <ATen/ops/from_blob.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "empty_weights/empty_weights.h"
#include "hub/model_files.h"
#include "strategy/model.h"
#include "tensors/safetensors.h"
#include "weights/offload_folder.h"
#include "weights/open_weights.h"
#include "weights/weight_source.h"

namespace coupler::big_model {

namespace {

// Matches a checkpoint's tensors with a model's by name, including the names of tied tensors.
class Matcher {
 public:
  Matcher(const strategy::Model& model, const weights::WeightSource& source) {
    for (const weights::WeightTensor& tensor : source.tensors)
      by_name_.emplace(tensor.name, &tensor);
    for (const auto& [alias, name] : source.aliases) {
      if (const auto found = by_name_.find(name); found != by_name_.end())
        by_name_.emplace(alias, found->second);
    }
    for (const auto& [alias, name] : model.aliases) other_names_[name].push_back(alias);
  }

  // Null if it is not in the checkpoint.
  const weights::WeightTensor* find(const std::string& name, const std::vector<int64_t>& sizes) {
    const weights::WeightTensor* found = named(name);
    for (const std::string& other : other_names_[name]) {
      const weights::WeightTensor* const tied = named(other);
      if (found == nullptr) found = tied;
    }
    if (found == nullptr) {
      missing_.push_back(name);
    } else if (sizes != found->shape) {
      wrong_.push_back(fmt::format("{} is [{}], but the model's is [{}]", for_message(name),
                                   fmt::join(found->shape, ", "), fmt::join(sizes, ", ")));
    }
    return found;
  }

  // After find() of each of the model's tensors.
  void check(const weights::WeightSource& source, const std::string& checkpoint,
             bool strict) const {
    std::vector<std::string> unexpected;
    for (const weights::WeightTensor& tensor : source.tensors) {
      if (used_.count(&tensor) == 0) unexpected.push_back(for_message(tensor.name));
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
  const weights::WeightTensor* named(const std::string& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    used_.insert(found->second);
    return found->second;
  }

  std::map<std::string_view, const weights::WeightTensor*> by_name_;
  std::map<std::string, std::vector<std::string>> other_names_;
  std::set<const weights::WeightTensor*> used_;
  std::vector<std::string> missing_, wrong_;
};

// Takes the values from constructors for tensors that are not in the checkpoint.
void take_constructed(std::vector<PlacedTensor*>& missing) {
  std::vector<empty_weights::MetaTensor> wanted;
  std::vector<PlacedTensor*> takers;
  for (PlacedTensor* const tensor : missing) {
    log(LogLevel::kWarning, "checkpoint",
        fmt::format("'{}' is not in the checkpoint and keeps its initial value", tensor->name));
    if (!tensor->variable.is_meta()) {
      tensor->value = host_value(tensor->variable);
    } else if (empty_weights::has_recording(tensor->variable)) {
      wanted.push_back({tensor->name, tensor->variable});
      takers.push_back(tensor);
    }
  }
  empty_weights::materialize(wanted, [&](size_t index, const at::Tensor& value) {
    takers[index]->value = host_value(value);
  });
}

// The tensor as written to an offload folder: with the model's dtype.
weights::WeightTensor as_weight(const PlacedTensor& tensor) {
  const HostValue value = tensor.value;
  const at::ScalarType type = tensor.type;
  return {
      tensor.name, safetensors::dtype_of(type, tensor.name), tensor.variable.sizes().vec(),
      [value, type](const weights::ByteSink& sink) {
        if (value.tensor.defined()) {
          const auto* const data = static_cast<const char*>(value.tensor.const_data_ptr());
          const size_t size = value.tensor.nbytes();
          for (size_t at = 0; at < size; at += weights::kWeightChunk)
            sink(data + at, std::min(weights::kWeightChunk, size - at));
          return;
        }
        const auto stored = safetensors::scalar_type(value.weight->dtype, value.weight->name);
        value.weight->read([&](const char* bytes, size_t size) {
          const auto count = static_cast<int64_t>(size / c10::elementSize(stored));
          const at::Tensor chunk =
              at::from_blob(const_cast<char*>(bytes), {count}, at::TensorOptions(stored)).to(type);
          sink(static_cast<const char*>(chunk.const_data_ptr()), chunk.nbytes());
        });
      }};
}

bool is_in_safetensors(const PlacedTensor& tensor) {
  const auto& file = tensor.value.place.file;
  return file != nullptr && std::string_view(file->path()).ends_with(".safetensors");
}

}  // namespace

void apply_names(const Rename& rename, weights::WeightSource& source, const std::string& where) {
  std::vector<weights::WeightTensor> tensors;
  for (weights::WeightTensor& tensor : source.tensors) {
    tensor.name = rename(tensor.name);
    if (!tensor.name.empty()) tensors.push_back(std::move(tensor));
  }
  source.tensors = std::move(tensors);
  decltype(source.aliases) aliases;
  for (const auto& [alias, name] : source.aliases) {
    const std::string from = rename(alias), to = rename(name);
    if (!from.empty() && !to.empty()) aliases.emplace(from, to);
  }
  source.aliases = std::move(aliases);
  weights::check_source(source, where);
}

std::vector<const weights::WeightTensor*> match_tensors(const strategy::Model& model,
                                                        const weights::WeightSource& source,
                                                        const std::string& where, bool strict) {
  Matcher matcher(model, source);
  std::vector<const weights::WeightTensor*> found;
  for (const strategy::ModelParameter& parameter : model.parameters)
    found.push_back(matcher.find(parameter.name, parameter.whole_sizes()));
  for (const auto& [name, buffer] : model.buffers)
    found.push_back(matcher.find(name, buffer.sizes().vec()));
  matcher.check(source, where, strict);
  return found;
}

std::shared_ptr<const weights::WeightSource> take_values(const strategy::Model& model,
                                                         std::vector<PlacedTensor>& tensors,
                                                         const std::string& checkpoint, bool strict,
                                                         const Rename& rename) {
  const auto source = std::make_shared<weights::WeightSource>(
      weights::open_weights(hub::model_folder(checkpoint, hub::ModelUse::kWeights), {}));
  if (rename) apply_names(rename, *source, checkpoint);
  const auto found = match_tensors(model, *source, checkpoint, strict);
  std::vector<PlacedTensor*> missing;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (found[i] != nullptr) {
      tensors[i].value = host_value(*found[i], tensors[i].type);
    } else {
      missing.push_back(&tensors[i]);
    }
  }
  take_constructed(missing);
  return source;
}

void take_own_values(std::vector<PlacedTensor>& tensors) {
  for (PlacedTensor& tensor : tensors) {
    if (!tensor.variable.is_meta()) tensor.value = host_value(tensor.variable);
  }
}

std::shared_ptr<const weights::WeightSource> offload_to(const std::string& folder,
                                                        std::vector<PlacedTensor>& tensors,
                                                        bool only_foreign) {
  std::vector<PlacedTensor*> written;
  for (PlacedTensor& tensor : tensors) {
    if (!tensor.stored_on.is_disk() || tensor.packed != nullptr) continue;
    if (!tensor.value.exists()) continue;
    if (only_foreign && tensor.value.place.file != nullptr) continue;
    written.push_back(&tensor);
  }
  if (written.empty()) return nullptr;
  if (folder.empty()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "the device map puts '{}' and {} more on the disk, but offload_folder is not set",
            written[0]->name, written.size() - 1),
        {.subject = "offload_folder", .hint = "name a folder on a local disk with room for them"});
  }
  weights::OffloadFolderWriter writer(folder);
  for (const PlacedTensor* const tensor : written) {
    if (is_in_safetensors(*tensor)) {
      writer.refer(tensor->name, tensor->value.place.file->path(), tensor->value.weight->name,
                   tensor->value.weight->dtype);
    } else {
      writer.add(as_weight(*tensor));
    }
  }
  writer.finish();
  for (PlacedTensor* const tensor : written) tensor->value = {};
  return take_offloaded(folder, tensors);
}

std::shared_ptr<const weights::WeightSource> take_offloaded(const std::string& folder,
                                                            std::vector<PlacedTensor>& tensors) {
  const auto source = std::make_shared<weights::WeightSource>(weights::open_offload_folder(folder));
  std::map<std::string_view, const weights::WeightTensor*> by_name;
  for (const weights::WeightTensor& weight : source->tensors) by_name.emplace(weight.name, &weight);
  for (PlacedTensor& tensor : tensors) {
    if (tensor.value.exists()) continue;
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end()) continue;
    const weights::WeightTensor& weight = *found->second;
    if (tensor.variable.sizes() != c10::IntArrayRef(weight.shape)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format(
              "{}: '{}' has another shape than in the model: the folder belongs to another model",
              folder, tensor.name),
          {.subject = folder, .hint = "name the folder to which this model was offloaded"});
    }
    tensor.value = host_value(weight, tensor.type);
  }
  return source;
}

}  // namespace coupler::big_model
