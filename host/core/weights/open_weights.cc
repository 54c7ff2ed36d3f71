#include "weights/open_weights.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"
#include "formats/weight_index.h"
#include "weights/offload_folder.h"
#include "weights/weight_source.h"

namespace coupler::weights {

void send_chunks(const uint8_t* bytes, uint64_t size, const ByteSink& sink) {
  for (uint64_t at = 0; at < size; at += kWeightChunk)
    sink(reinterpret_cast<const char*>(bytes) + at, std::min<uint64_t>(kWeightChunk, size - at));
}

void read_range(const WeightTensor& tensor, uint64_t begin, uint64_t end, const ByteSink& sink) {
  if (begin == end) return;
  if (tensor.read_range) return tensor.read_range(begin, end, sink);
  if (tensor.place.file != nullptr) {
    if (tensor.verify) tensor.verify();
    const uint8_t* const bytes = tensor.place.file->data() + tensor.place.begin;
    return send_chunks(bytes + begin, end - begin, sink);
  }
  uint64_t at = 0;  // of the chunk
  tensor.read([&](const char* bytes, size_t size) {
    const uint64_t from = std::clamp(begin, at, at + size), to = std::clamp(end, at, at + size);
    if (from < to) sink(bytes + (from - at), to - from);
    at += size;
  });
}

WeightTensor mapped_weight(const std::string& name, safetensors::DType dtype,
                           const std::vector<int64_t>& shape,
                           const std::shared_ptr<const MappedFile>& file, uint64_t begin) {
  WeightTensor tensor{.name = name, .dtype = dtype, .shape = shape, .read = {}};
  tensor.read = [file, begin, size = tensor.bytes()](const ByteSink& sink) {
    send_chunks(file->data() + begin, size, sink);
  };
  tensor.place = {file, begin};
  return tensor;
}

WeightSource open_safetensors(const std::string& path) {
  const auto file = MappedFile::open(path);
  const auto header = safetensors::parse_header(file->data(), file->size(), path);
  WeightSource source{.tensors = {}, .aliases = {}, .files = {path}, .folder = {}};
  for (const safetensors::TensorInfo& info : header.tensors)
    source.tensors.push_back(
        mapped_weight(info.name, info.dtype, info.shape, file, header.data_offset + info.begin));
  for (const auto& [key, value] : header.metadata) {
    if (key != "format" && header.index.count(value) != 0 && header.index.count(key) == 0)
      source.aliases.emplace(key, value);
  }
  return source;
}

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
    refuse_index(index, fmt::format("its file '{}' is not in the same folder", for_message(name)));
  if (!is_safetensors(name)) return open_torch(path, key);
  return open_safetensors(path);
}

// The weights in the numbered files of an index, model.safetensors.index.json or
// pytorch_model.bin.index.json. `key`: see open_torch; applies to each file. Throws Error(kIo) if a
// file is missing, lacks a tensor that the index assigns to it, or has one that the index does not
// list.
WeightSource open_index(const std::string& path, const std::string& key) {
  const auto file = MappedFile::open(path);
  const std::string_view text(reinterpret_cast<const char*>(file->data()), file->size());
  const formats::WeightIndex index = formats::parse_weight_index(text, path);
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
                                 for_message(name), for_message(tensor)));
      if (place->second != name)
        refuse_index(
            path, fmt::format("its file '{}' has tensor '{}', which should be in '{}'",
                              for_message(name), for_message(tensor), for_message(place->second)));
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
                                       for_message(tensor), for_message(name)));
    }
    std::move(part.tensors.begin(), part.tensors.end(), std::back_inserter(source.tensors));
    source.aliases.merge(part.aliases);
    std::move(part.files.begin(), part.files.end(), std::back_inserter(source.files));
  }
  source.files.push_back(path);
  return source;
}

constexpr const char* kKnown =
    "name a .safetensors file, a .bin, .pt or .pth file written by torch.save, their .index.json, "
    "or a folder with model.safetensors, pytorch_model.bin or a checkpoint of Coupler, Accelerate "
    "or DeepSpeed";

[[noreturn]] void refuse_path(ErrorCode code, const std::string& path, const std::string& problem,
                              std::string hint) {
  throw Error(code, fmt::format("{} {}", path, problem),
              {.subject = path, .hint = std::move(hint)});
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

void refuse_key(const std::string& path, const OpenWeights& options) {
  if (!options.key.empty())
    refuse_path(ErrorCode::kInvalidArgument, path, "has no dictionaries for --key to choose from",
                "omit --key; it is for files written by torch.save");
}

WeightSource open_file(const std::string& path, const OpenWeights& options) {
  if (options.model != 0)
    refuse_path(ErrorCode::kInvalidArgument, path,
                "is a file with one model: --model is for folders", "omit --model");
  const std::string_view name = path;
  if (name.ends_with(".safetensors")) {
    refuse_key(path, options);
    return open_safetensors(path);
  }
  if (name.ends_with(".index.json") || fs::path(path).filename() == "index.json")
    return open_index(path, options.key);
  for (const char* end : {".bin", ".pt", ".pth"}) {
    if (name.ends_with(end)) return open_torch(path, options.key);
  }
  refuse_path(ErrorCode::kInvalidArgument, path, "does not have the name of a weights file",
              kKnown);
}

// Rejects what Accelerate's FSDP and torch.distributed.checkpoint write: their .metadata is a
// pickle of Python classes.
void refuse_distributed(const std::string& folder) {
  constexpr const char* kFolder = "pytorch_model_fsdp_0";
  const bool itself = is_there(fs::path(folder) / ".metadata");
  if (!itself && !is_there(fs::path(folder) / kFolder)) return;
  const std::string which = itself ? folder : (fs::path(folder) / kFolder).string();
  refuse_path(
      ErrorCode::kUnsupported, which,
      "is a torch.distributed.checkpoint, as Accelerate writes with FSDP: the positions of its "
      "tensors are in a pickle of Python classes, which is not supported",
      fmt::format("join it with accelerate merge-weights {} FOLDER, then convert FOLDER", which));
}

// The file of the folder's model of that number; "" if there is none.
std::string model_file(const std::string& folder, size_t model) {
  constexpr std::array<std::pair<const char*, const char*>, 5> kNames = {
      {{"model", ".safetensors"},
       {"model", ".safetensors.index.json"},
       {"pytorch_model", ".bin"},
       {"pytorch_model", ".bin.index.json"},
       {"pytorch_model_fsdp", ".bin"}}};
  for (const auto& [base, extension] : kNames) {
    const fs::path path = fs::path(folder) / (checkpoint::numbered(base, model) + extension);
    if (is_there(path)) return path.string();
  }
  return "";
}

// An index with another name than those above: the only one with that extension, or index.json, the
// older format. "" if there is none.
std::string other_index(const std::string& folder) {
  std::string found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.ends_with(".index.json")) continue;
    if (!found.empty())
      refuse_path(
          ErrorCode::kInvalidArgument, folder,
          fmt::format("has several indices, {} and {}", fs::path(found).filename().string(), name),
          "name one of them");
    found = entry->path().string();
  }
  const fs::path older = fs::path(folder) / "index.json";
  return found.empty() && is_there(older) ? older.string() : found;
}

WeightSource open_folder(const std::string& folder, const OpenWeights& options) {
  if (is_there(fs::path(folder) / checkpoint::kManifestName)) {
    refuse_key(folder, options);
    return open_checkpoint_weights(folder, options.model);
  }
  if (const std::string file = model_file(folder, options.model); !file.empty())
    return open_file(file, {.model = 0, .key = options.key});
  if (is_offload_folder(folder)) {
    refuse_key(folder, options);
    return open_offload_folder(folder);
  }
  if (const std::string index = other_index(folder); !index.empty())
    return open_index(index, options.key);
  refuse_distributed(folder);
  if (options.model != 0 && !model_file(folder, 0).empty())
    refuse_path(ErrorCode::kInvalidArgument, folder,
                fmt::format("has no model {}, only lower numbers", options.model),
                "count models from 0: model.safetensors, model_1.safetensors");
  if (is_deepspeed(folder)) {
    if (options.model != 0)
      refuse_path(ErrorCode::kInvalidArgument, folder, "is a DeepSpeed checkpoint of one model",
                  "omit --model");
    return open_deepspeed(folder, options.key);
  }
  const std::string foreign = checkpoint::foreign_layout(folder);
  if (foreign.empty())
    refuse_path(ErrorCode::kInvalidArgument, folder, "has no weights in a known format", kKnown);
  refuse_path(ErrorCode::kInvalidArgument, folder,
              "is " + foreign + ", but its weights are not where they should be",
              "name the folder or file with the weights");
}

WeightSource open_named(const std::string& path, const OpenWeights& options) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) refuse_path(ErrorCode::kIo, path, "does not exist", "check the path");
  if (!fs::is_directory(status)) return open_file(path, options);
  const bool is_step = is_there(fs::path(path) / checkpoint::kManifestName) ||
                       !model_file(path, options.model).empty();
  const std::string latest = is_step ? "" : deepspeed_latest(path);
  WeightSource source = open_folder(latest.empty() ? path : latest, options);
  source.folder = path;
  return source;
}

}  // namespace

WeightSource open_weights(const std::string& path, const OpenWeights& options) {
  WeightSource source = open_named(path, options);
  check_source(source, path);
  return source;
}

void check_source(const WeightSource& source, const std::string& path) {
  const auto refuse = [&](const std::string& problem) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {}", path, problem),
                {.subject = path,
                 .hint = "the files do not belong together, or are damaged; copy "
                         "or write them again"});
  };
  if (source.tensors.empty()) refuse("it contains no tensors");
  std::set<std::string_view> names;
  for (const WeightTensor& tensor : source.tensors)
    if (!names.insert(tensor.name).second)
      refuse(fmt::format("tensor '{}' occurs twice", for_message(tensor.name)));
  for (const auto& [alias, name] : source.aliases) {
    if (names.count(alias) != 0)
      refuse(fmt::format("'{}' is both a tensor and an alias of tensor '{}'", for_message(alias),
                         for_message(name)));
    if (names.count(name) == 0)
      refuse(fmt::format("'{}' is an alias of '{}', which is not a tensor", for_message(alias),
                         for_message(name)));
  }
}

}  // namespace coupler::weights
