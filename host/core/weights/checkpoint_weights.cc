#include "weights/checkpoint_weights.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/file_text.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/piece_files.h"
#include "checkpoint/piece_name.h"
#include "checkpoint/refuse.h"

namespace coupler {
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
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: model {} does not exist: it has {}", folder, model, models->size()),
        {.subject = folder, .hint = "count models from 0: --model 0"});
  return (*models)[model];
}

// Checks that elements 0 to numel exist, each once.
void check_parts(const PieceFiles& files, const std::string& folder, const std::string& name,
                 int64_t numel) {
  const auto found = files.tensors().find(name);
  const auto missing = [&](int64_t begin, int64_t end) {
    refuse_checkpoint(folder,
                      fmt::format("tensor '{}': elements {} to {} are missing from its files",
                                  shown(name), begin, end));
  };
  if (found == files.tensors().end()) return missing(0, numel);
  const std::vector<PieceFiles::Part>& parts = found->second.parts;
  const PieceFiles::Part* before = &parts.front();
  int64_t at = 0;
  for (const PieceFiles::Part& part : parts) {
    if (part.begin > at) missing(at, part.begin);
    if (part.end > numel)
      refuse_checkpoint(files.path(part),
                        fmt::format("it has elements {} to {} of tensor '{}', which has {}",
                                    part.begin, part.end, shown(name), numel));
    // Several ranks may write a part without elements.
    if (part.begin < at && part.begin < part.end)
      refuse_checkpoint(
          files.path(part),
          fmt::format("it has elements {} to {} of tensor '{}', but {} has {} to {}", part.begin,
                      part.end, shown(name), files.path(*before), before->begin, before->end));
    at = part.end;
    before = &part;
  }
  if (at < numel) missing(at, numel);
}

// Whole bytes, also for elements smaller than a byte.
int64_t elements_of_chunk(safetensors::DType dtype) {
  return static_cast<int64_t>(kWeightChunk / safetensors::bits(dtype) * 8);
}

WeightTensor joined_weight(const std::shared_ptr<PieceFiles>& files, const std::string& name,
                           std::vector<int64_t> shape, int64_t numel) {
  const auto dtype = files->tensors().find(name)->second.dtype;
  return {name, dtype, std::move(shape), [files, name, numel, dtype](const ByteSink& sink) {
            const int64_t step = elements_of_chunk(dtype);
            std::vector<char> chunk;
            for (int64_t at = 0; at < numel; at += step) {
              const int64_t end = std::min(numel, at + step);
              chunk.resize(static_cast<size_t>(end - at) * safetensors::bits(dtype) / 8);
              files->read(name, at, end, chunk.data());
              sink(chunk.data(), chunk.size());
            }
          }};
}

// As take_snapshot describes a model: {"tensors": {NAME: [dtype, shape]}, "aliases": {NAME: NAME}}.
void add_tensors(const json& state, const std::shared_ptr<PieceFiles>& files,
                 const std::string& folder, WeightSource& source) {
  const json& tensors = state.at("tensors");
  for (const auto& [name, description] : tensors.items()) {
    auto shape = description.at(1).get<std::vector<int64_t>>();
    // One byte per element: the number of elements.
    const auto numel = safetensors::tensor_bytes(safetensors::DType::kU8, shape);
    if (!numel) refuse_checkpoint(folder, fmt::format("tensor '{}' has no shape", shown(name)));
    check_parts(*files, folder, name, static_cast<int64_t>(*numel));
    const auto dtype = files->tensors().find(name)->second.dtype;
    if (!safetensors::tensor_bytes(dtype, shape))
      refuse_checkpoint(folder, fmt::format("tensor '{}' is too large", shown(name)));
    source.tensors.push_back(
        joined_weight(files, name, std::move(shape), static_cast<int64_t>(*numel)));
  }
  for (const auto& [name, tensor] : files->tensors()) {
    if (!tensors.contains(name))
      refuse_checkpoint(
          files->path(tensor.parts.front()),
          fmt::format("it has tensor '{}', which the manifest does not describe", shown(name)));
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

}  // namespace coupler
