#include "formats/weight_shards.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/file_text.h"

namespace coupler {
namespace {

using Names = std::vector<std::string>;

[[noreturn]] void refuse_shard(const SizedTensor& tensor, const char* rule, const char* hint) {
  const std::string name = shown(tensor.name);
  throw Error(ErrorCode::kInvalidArgument, fmt::format("tensor '{}': {}", name, rule),
              {.subject = name, .hint = hint});
}

void check(const std::vector<SizedTensor>& tensors) {
  std::set<std::string_view> names;
  for (const SizedTensor& tensor : tensors)
    if (!names.insert(tensor.name).second)
      refuse_shard(tensor, "the name is given twice", "give each tensor a unique name");
}

// The tensors that share memory with an earlier one, by the storage's number, in the order in which
// the storages first occur.
class SharedTensors {
 public:
  // False if it is the first of its storage or does not share.
  bool add(const SizedTensor& tensor) {
    if (!tensor.storage) return false;
    const auto [found, first] = places_.try_emplace(*tensor.storage, groups_.size());
    if (first)
      groups_.push_back({tensor.name});
    else
      groups_[found->second].push_back(tensor.name);
    return !first;
  }

  // Appends each group's other tensors to the file that has its first one.
  void join(std::vector<Names>& files) const {
    std::map<std::string_view, size_t> file_of;
    for (const Names& group : groups_)
      if (group.size() > 1) file_of.emplace(group.front(), 0);
    for (size_t i = 0; i < files.size(); ++i)
      for (const std::string& name : files[i])
        if (const auto first = file_of.find(name); first != file_of.end()) first->second = i;
    for (const Names& group : groups_) {
      if (group.size() == 1) continue;
      Names& file = files[file_of.at(group.front())];
      file.insert(file.end(), group.begin() + 1, group.end());
    }
  }

 private:
  std::map<uint64_t, size_t> places_;
  std::vector<Names> groups_;
};

}  // namespace

WeightFiles divide_weights(const std::vector<SizedTensor>& tensors, uint64_t limit) {
  check(tensors);
  WeightFiles weights;
  SharedTensors shared;
  std::vector<Names> files;
  Names open;
  uint64_t open_bytes = 0;  // never more than the limit
  for (const SizedTensor& tensor : tensors) {
    if (shared.add(tensor)) continue;
    if (tensor.bytes > std::numeric_limits<uint64_t>::max() - weights.total_size)
      refuse_shard(tensor, "with the preceding tensors there are more than 2^64 - 1 bytes",
                   "check the sizes of the tensors");
    weights.total_size += tensor.bytes;
    if (tensor.bytes > limit) {
      files.push_back({tensor.name});
      continue;
    }
    if (tensor.bytes > limit - open_bytes) {
      files.push_back(std::exchange(open, {}));
      open_bytes = 0;
    }
    open.push_back(tensor.name);
    open_bytes += tensor.bytes;
  }
  if (!open.empty()) files.push_back(std::move(open));
  shared.join(files);

  for (size_t i = 0; i < files.size(); ++i) {
    std::string name = files.size() == 1
                           ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    weights.files.push_back({std::move(name), std::move(files[i])});
  }
  return weights;
}

WeightIndex index_of(const WeightFiles& weights) {
  WeightIndex index;
  index.total_size = weights.total_size;
  for (const WeightFile& file : weights.files)
    for (const std::string& tensor : file.tensors) index.weight_map[tensor] = file.name;
  return index;
}

}  // namespace coupler
