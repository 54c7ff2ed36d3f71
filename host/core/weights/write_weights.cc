#include "weights/write_weights.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "formats/safetensors_writer.h"
#include "formats/weight_shards.h"
#include "weights/weight_target.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_target(const std::string& target, const std::string& problem,
                                const char* hint) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{} {}", target, problem),
              {.subject = target, .hint = hint});
}

fs::path real(const std::string& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path.empty() ? "." : path, error).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // a '/' at the end
  const fs::path result = fs::weakly_canonical(absolute, error);
  return error ? absolute : result;
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

void refuse_overlap(const WeightSource& source, const std::string& target) {
  const fs::path to = real(target);
  if (!source.folder.empty() && is_inside(to, real(source.folder)))
    refuse_target(target, fmt::format("is in {}, which is being read", source.folder),
                  "write to a path outside of it");
  for (const std::string& file : source.files) {
    // In a folder the name is replaced, even if it is a link.
    const fs::path from(file);
    const bool replaced = is_one_file(target) ? real(file) == to
                                              : real(from.parent_path().string()) == to &&
                                                    is_weight_file(from.filename().string());
    if (replaced)
      refuse_target(target, fmt::format("would replace {}, which is being read", file),
                    "write to another path");
  }
}

}  // namespace

bool is_one_file(const std::string& target) { return target.ends_with(".safetensors"); }

WrittenWeights write_weights(const WeightSource& source, const std::string& target,
                             std::optional<uint64_t> max_shard_size) {
  const bool alone = is_one_file(target);
  if (alone && max_shard_size)
    refuse_target(target, "is one file, which cannot be divided",
                  "name a folder, or omit the shard size");
  refuse_overlap(source, target);

  std::map<std::string_view, const WeightTensor*> tensors;
  std::vector<SizedTensor> sizes;
  for (const WeightTensor& tensor : source.tensors) {
    tensors.emplace(tensor.name, &tensor);
    sizes.push_back({tensor.name, tensor.bytes(), {}});
  }
  constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
  WeightFiles files = divide_weights(sizes, max_shard_size.value_or(kNoLimit));
  if (alone) files.files.front().name = fs::path(target).filename().string();

  const auto place = [&] {
    return alone ? WeightTarget::file(target) : WeightTarget(target, files);
  };
  WeightTarget made = place();
  for (const WeightFile& file : files.files) {
    std::vector<safetensors::TensorEntry> entries;
    safetensors::Metadata metadata{{"format", "pt"}};
    for (const std::string& name : file.tensors) {
      const WeightTensor& tensor = *tensors.at(name);
      entries.push_back({tensor.name, tensor.dtype, tensor.shape});
    }
    const std::set<std::string_view> own(file.tensors.begin(), file.tensors.end());
    for (const auto& [alias, name] : source.aliases) {
      if (own.count(name) != 0) metadata[alias] = name;
    }
    safetensors::Writer writer(made.unfinished(file), std::move(entries), metadata);
    for (const safetensors::TensorInfo& info : writer.tensors()) {
      tensors.at(info.name)->read(
          [&](const char* bytes, size_t size) { writer.write(info.name, bytes, size); });
    }
    writer.finish();
  }
  made.finish();
  return {files.files.size(), source.tensors.size(), files.total_size};
}

}  // namespace coupler
