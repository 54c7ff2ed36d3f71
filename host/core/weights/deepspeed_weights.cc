#include "weights/deepspeed_weights.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/durable_file.h"
#include "base/file_text.h"
#include "weights/torch_weights.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "module";
constexpr std::string_view kStates = "_model_states.pt";
constexpr std::string_view kDivided = "zero_pp_rank_";  // of ZeRO 3
constexpr const char* kJoin =
    "join them with the zero_to_fp32.py that DeepSpeed saved next to the checkpoints: python "
    "zero_to_fp32.py FOLDER pytorch_model.bin; then convert pytorch_model.bin";

// The sorted names of the model states files.
std::vector<std::string> states_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(kStates) && (name.starts_with("mp_rank_") || name.starts_with(kDivided)))
      names.push_back(name);
  }
  if (error) throw_io("read", folder, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

bool has_parameters(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(fs::path(folder) / "zero", error), end; !error && entry != end;
       entry.increment(error)) {
    if (fs::exists(entry->path() / "fp32.pt", error)) return true;
  }
  return false;
}

[[noreturn]] void refuse_deepspeed(const std::string& folder, const std::string& problem,
                                   const char* hint) {
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", folder, problem),
              {.subject = folder, .hint = hint});
}

// The only model states file, if it has all weights.
std::string only_states(const std::string& folder) {
  const auto names = states_in(folder);
  if (names.front().starts_with(kDivided) || names.back().starts_with(kDivided))
    refuse_deepspeed(
        folder,
        fmt::format("its weights are sharded by ZeRO 3 ({}), and the shards are in files that "
                    "contain Python classes, which are not supported",
                    names.back()),
        kJoin);
  if (names.size() > 1)
    refuse_deepspeed(
        folder,
        fmt::format("its weights are divided among {} files, {} to {} (tensor parallel), which do "
                    "not say how",
                    names.size(), names.front(), names.back()),
        "join them with DeepSpeed's ds_to_universal.py, then convert the folder it writes");
  return (fs::path(folder) / names.front()).string();
}

// Adds the tensors of `states` that `source` does not have under any of their names.
void add_missing(WeightSource states, WeightSource& source) {
  std::set<std::string> there;
  for (const WeightTensor& tensor : source.tensors) there.insert(tensor.name);
  std::map<std::string, std::vector<std::string>> names;  // all of each tensor
  for (const WeightTensor& tensor : states.tensors) names[tensor.name] = {tensor.name};
  for (const auto& [alias, name] : states.aliases) names.at(name).push_back(alias);
  for (WeightTensor& tensor : states.tensors) {
    const auto& own = names.at(tensor.name);
    const auto known = std::find_if(
        own.begin(), own.end(), [&](const std::string& name) { return there.count(name) != 0; });
    const std::string kept = known == own.end() ? tensor.name : *known;
    for (const std::string& name : own) {
      if (name != kept && there.count(name) == 0) source.aliases.emplace(name, kept);
    }
    if (known == own.end()) source.tensors.push_back(std::move(tensor));
  }
}

}  // namespace

DeepSpeedLayout deepspeed_layout(const std::string& folder) {
  if (has_parameters(folder)) return DeepSpeedLayout::kUniversal;
  return states_in(folder).empty() ? DeepSpeedLayout::kNone : DeepSpeedLayout::kStep;
}

std::string deepspeed_latest(const std::string& folder) {
  for (const char* file : {"latest", "latest_universal"}) {
    const std::string path = (fs::path(folder) / file).string();
    std::error_code error;
    if (!fs::is_regular_file(path, error)) continue;
    std::ifstream in(path, std::ios::binary);
    std::string name(256, '\0');
    in.read(name.data(), static_cast<std::streamsize>(name.size()));
    name.resize(static_cast<size_t>(in.gcount()));
    while (!name.empty() && (name.back() == '\n' || name.back() == '\r' || name.back() == ' '))
      name.pop_back();
    const bool plain = !name.empty() && name != "." && name != ".." &&
                       name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
    std::string found = (fs::path(folder) / name).string();
    if (!plain || !fs::is_directory(found, error))
      throw Error(ErrorCode::kIo,
                  fmt::format("{} names '{}', which is not a folder next to it", path, shown(name)),
                  {.subject = path, .hint = "name the step's folder itself"});
    return found;
  }
  return "";
}

WeightSource open_deepspeed(const std::string& folder, const std::string& key) {
  return open_torch(only_states(folder), key.empty() ? kModule : key);
}

WeightSource open_deepspeed_universal(const std::string& folder, const std::string& key) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(folder) / "zero")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  WeightSource source;
  for (const std::string& name : names) {
    const fs::path path = fs::path(folder) / "zero" / name / "fp32.pt";
    if (!fs::exists(path))
      throw Error(ErrorCode::kIo, fmt::format("{} is missing", path.string()),
                  {.subject = path.string(), .hint = "copy the checkpoint again"});
    WeightSource one = open_torch_tensor(path.string(), "param", name);
    std::move(one.tensors.begin(), one.tensors.end(), std::back_inserter(source.tensors));
    std::move(one.files.begin(), one.files.end(), std::back_inserter(source.files));
  }
  if (states_in(folder).empty()) return source;
  WeightSource states = open_deepspeed(folder, key);
  source.files.insert(source.files.end(), states.files.begin(), states.files.end());
  add_missing(std::move(states), source);
  return source;
}

}  // namespace coupler
