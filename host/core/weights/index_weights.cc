#include "weights/index_weights.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file_text.h"
#include "base/mapped_file.h"
#include "formats/weight_index.h"
#include "weights/safetensors_weights.h"
#include "weights/torch_weights.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_index(const std::string& path, const std::string& problem,
                               const char* hint = "copy or write the index and its files again") {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", path, problem),
              {.subject = path, .hint = hint});
}

bool is_safetensors(std::string_view name) { return name.ends_with(".safetensors"); }

WeightSource open_part(const std::string& index, const std::string& name, const std::string& key) {
  const std::string path = (fs::path(index).parent_path() / name).string();
  std::error_code error;
  if (!fs::exists(path, error))
    refuse_index(index, fmt::format("its file '{}' is not in the same folder", shown(name)));
  if (!is_safetensors(name)) return open_torch(path, key);
  return open_safetensors(path);
}

}  // namespace

WeightSource open_index(const std::string& path, const std::string& key) {
  const auto file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  const WeightIndex index = parse_weight_index(text, path);
  std::map<std::string_view, std::set<std::string_view>> wanted;  // the tensors of each file
  for (const auto& [tensor, name] : index.weight_map) wanted[name].insert(tensor);
  WeightSource source;
  for (const auto& entry : wanted) {
    const std::string_view name = entry.first;
    WeightSource part = open_part(path, std::string(name), key);
    const auto check = [&](const std::string& tensor) {
      const auto place = index.weight_map.find(tensor);
      if (place == index.weight_map.end())
        refuse_index(path,
                     fmt::format("its file '{}' has tensor '{}', which the index does not list",
                                 shown(name), shown(tensor)));
      if (place->second != name)
        refuse_index(path, fmt::format("its file '{}' has tensor '{}', which should be in '{}'",
                                       shown(name), shown(tensor), shown(place->second)));
    };
    std::set<std::string_view> there;
    for (const WeightTensor& tensor : part.tensors) {
      check(tensor.name);
      there.insert(tensor.name);
    }
    for (const auto& [alias, tensor] : part.aliases) {
      // Tied names of a safetensors file are in its metadata, and need not be in the index.
      if (!is_safetensors(name)) check(alias);
      there.insert(alias);
    }
    for (const std::string_view tensor : entry.second) {
      if (there.count(tensor) == 0)
        refuse_index(path, fmt::format("tensor '{}' should be in its file '{}', but is not",
                                       shown(tensor), shown(name)));
    }
    std::move(part.tensors.begin(), part.tensors.end(), std::back_inserter(source.tensors));
    source.aliases.merge(part.aliases);
    std::move(part.files.begin(), part.files.end(), std::back_inserter(source.files));
  }
  source.files.push_back(path);
  return source;
}

}  // namespace coupler
