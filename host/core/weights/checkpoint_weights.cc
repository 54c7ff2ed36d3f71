#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "checkpoint/piece_files.h"
#include "weights/open_weights.h"

namespace coupler::weights {
namespace {

using checkpoint::Manifest;
using checkpoint::PieceFiles;
using checkpoint::refuse_checkpoint;
using nlohmann::json;

const json& model_state(const Manifest& manifest, const std::string& folder, size_t model) {
  const auto models = manifest.state.find("models");
  if (models == manifest.state.end() || !models->is_array() || models->empty())
    refuse_checkpoint(folder, "its manifest describes no model");
  if (model >= models->size())
    fail_argument(
        fmt::format("{}: model {} does not exist: it has {}", folder, model, models->size()),
        folder, "count models from 0: --model 0");
  return (*models)[model];
}

// Checks that elements 0 to numel exist, each once. All parts of a tensor are of one division.
void check_parts(const PieceFiles& files, const std::string& folder, const std::string& name,
                 int64_t numel) {
  const auto found = files.tensors().find(name);
  const sharding::Division division =
      found == files.tensors().end() ? sharding::Division() : found->second.parts[0].division;
  const auto missing = [&](int64_t begin, int64_t end, int rank) {
    const std::string of_rank =
        division.is_whole() ? "" : fmt::format(" of part {} of {}", rank, division.ranks);
    refuse_checkpoint(folder,
                      fmt::format("tensor '{}': elements {} to {}{} are missing from its files",
                                  for_message(name), begin, end, of_rank));
  };
  if (found == files.tensors().end()) return missing(0, numel, 0);
  const std::vector<PieceFiles::Part>& parts = found->second.parts;
  if (!division.is_whole() && numel % (division.run * division.ranks) != 0)
    refuse_checkpoint(files.path(parts[0]),
                      fmt::format("it has runs of {} elements of tensor '{}', which has {}",
                                  division.run, for_message(name), numel));
  const PieceFiles::Part* before = &parts.front();
  size_t next = 0;
  for (int rank = 0; rank < division.ranks; ++rank) {
    int64_t at = 0;
    for (; next < parts.size() && parts[next].division.rank <= rank; ++next) {
      const PieceFiles::Part& part = parts[next];
      if (part.division != sharding::Division{division.run, division.ranks, rank})
        refuse_checkpoint(files.path(part),
                          fmt::format("it divides tensor '{}' in another way than {}",
                                      for_message(name), files.path(parts[0])));
      if (part.begin > at) missing(at, part.begin, rank);
      if (part.end > numel / division.ranks)
        refuse_checkpoint(
            files.path(part),
            fmt::format("it has elements {} to {} of tensor '{}', which has {}", part.begin,
                        part.end, for_message(name), numel / division.ranks));
      // Several ranks may write a part without elements.
      if (part.begin < at && part.begin < part.end)
        refuse_checkpoint(
            files.path(part),
            fmt::format("it has elements {} to {} of tensor '{}', but {} has {} to {}", part.begin,
                        part.end, for_message(name), files.path(*before), before->begin,
                        before->end));
      at = part.end;
      before = &part;
    }
    if (at < numel / division.ranks) missing(at, numel / division.ranks, rank);
  }
}

// Whole bytes, also for elements smaller than a byte.
int64_t elements_of_chunk(safetensors::DType dtype) {
  return static_cast<int64_t>(kWeightChunk / safetensors::bits(dtype) * 8);
}

WeightTensor joined_weight(const std::shared_ptr<PieceFiles>& files, const std::string& name,
                           std::vector<int64_t> shape, int64_t numel) {
  const auto dtype = files->tensors().find(name)->second.dtype;
  const auto read = [files, name, dtype](int64_t begin, int64_t end, const ByteSink& sink) {
    const int64_t step = elements_of_chunk(dtype);
    std::vector<char> chunk;
    for (int64_t at = begin; at < end; at += step) {
      const int64_t next = std::min(end, at + step);
      chunk.resize(static_cast<size_t>(next - at) * safetensors::bits(dtype) / 8);
      files->read(name, at, next, chunk.data());
      sink(chunk.data(), chunk.size());
    }
  };
  WeightTensor weight{name, dtype, std::move(shape),
                      [read, numel](const ByteSink& sink) { read(0, numel, sink); }};
  const uint64_t bytes = safetensors::bits(dtype) / 8;  // 0: smaller elements
  if (bytes > 0) {
    weight.read_range = [read, bytes](uint64_t begin, uint64_t end, const ByteSink& sink) {
      read(static_cast<int64_t>(begin / bytes), static_cast<int64_t>(end / bytes), sink);
    };
  }
  return weight;
}

// As take_snapshot describes a model: {"tensors": {NAME: [dtype, shape]}, "aliases": {NAME: NAME}}.
void add_tensors(const json& state, const std::shared_ptr<PieceFiles>& files,
                 const std::string& folder, WeightSource& source) {
  const json& tensors = state.at("tensors");
  for (const auto& [name, description] : tensors.items()) {
    auto shape = description.at(1).get<std::vector<int64_t>>();
    // One byte per element: the number of elements.
    const auto numel = safetensors::tensor_bytes(safetensors::DType::kU8, shape);
    if (!numel)
      refuse_checkpoint(folder, fmt::format("tensor '{}' has no shape", for_message(name)));
    check_parts(*files, folder, name, static_cast<int64_t>(*numel));
    const auto dtype = files->tensors().find(name)->second.dtype;
    if (!safetensors::tensor_bytes(dtype, shape))
      refuse_checkpoint(folder, fmt::format("tensor '{}' is too large", for_message(name)));
    source.tensors.push_back(
        joined_weight(files, name, std::move(shape), static_cast<int64_t>(*numel)));
  }
  for (const auto& [name, tensor] : files->tensors()) {
    if (!tensors.contains(name))
      refuse_checkpoint(files->path(tensor.parts.front()),
                        fmt::format("it has tensor '{}', which the manifest does not describe",
                                    for_message(name)));
  }
  for (const auto& [alias, name] : state.at("aliases").items())
    source.aliases.emplace(alias, name.get<std::string>());
}

}  // namespace

WeightSource open_checkpoint_weights(const std::string& folder, size_t model) {
  const Manifest manifest = checkpoint::open_checkpoint(folder);
  const json& state = model_state(manifest, folder, model);
  const auto names = checkpoint::files_of(manifest, checkpoint::numbered("model", model));
  const auto files = std::make_shared<PieceFiles>(folder, manifest, names);
  WeightSource source{.tensors = {}, .aliases = {}, .files = {}, .folder = folder};
  for (const std::string& name : names)
    source.files.push_back((std::filesystem::path(folder) / name).string());
  try {
    add_tensors(state, files, folder, source);
  } catch (const json::exception& problem) {
    refuse_checkpoint(folder, fmt::format("its manifest's entry for model {} cannot be read: {}",
                                          model, problem.what()));
  }
  return source;
}

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

WeightSource open_states(const std::string& folder, const std::string& key) {
  return open_torch(only_states(folder), key.empty() ? kModule : key);
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

bool is_deepspeed(const std::string& folder) {
  return has_parameters(folder) || !states_in(folder).empty();
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
      throw Error(
          ErrorCode::kIo,
          fmt::format("{} names '{}', which is not a folder next to it", path, for_message(name)),
          {.subject = path, .hint = "name the step's folder itself"});
    return found;
  }
  return "";
}

WeightSource open_deepspeed(const std::string& folder, const std::string& key) {
  if (!has_parameters(folder)) return open_states(folder, key);
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
  WeightSource states = open_states(folder, key);
  source.files.insert(source.files.end(), states.files.begin(), states.files.end());
  add_missing(std::move(states), source);
  return source;
}

}  // namespace coupler::weights
