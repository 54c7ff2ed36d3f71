#include "weights/offload_folder.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "formats/weight_index.h"
#include "weights/open_weights.h"

namespace coupler::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using safetensors::DType;

// numpy's names, or torch's if numpy has none.
constexpr std::array<std::pair<std::string_view, DType>, 14> kTypes = {{
    {"bool", DType::kBool},
    {"uint8", DType::kU8},
    {"int8", DType::kI8},
    {"int16", DType::kI16},
    {"int32", DType::kI32},
    {"int64", DType::kI64},
    {"float16", DType::kF16},
    {"bfloat16", DType::kBF16},
    {"float32", DType::kF32},
    {"float64", DType::kF64},
    {"complex64", DType::kC64},
    {"uint16", DType::kU16},
    {"uint32", DType::kU32},
    {"uint64", DType::kU64},
}};

[[noreturn]] void refuse_offload_folder(const std::string& path, const std::string& problem) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", path, problem),
              {.subject = path,
               .hint = "the folder is incomplete or damaged: offload the model to an empty one"});
}

std::string path_in(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

std::string data_file(const std::string& folder, const std::string& name) {
  // Tensor names are dotted module paths; one with a slash would lead to another folder.
  if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
    refuse_offload_folder(path_in(folder, kOffloadIndex),
                          fmt::format("tensor name '{}' cannot be a file name", for_message(name)));
  return path_in(folder, name + ".dat");
}

json read_index(const std::string& folder) {
  const std::string path = path_in(folder, kOffloadIndex);
  const auto file = MappedFile::open(path);
  if (file->size() > formats::kMaxIndexBytes)
    refuse_offload_folder(path, fmt::format("its {} bytes exceed the limit of {}", file->size(),
                                            formats::kMaxIndexBytes));
  try {
    return parse_strict_json({reinterpret_cast<const char*>(file->data()), file->size()},
                             formats::kMaxIndexDepth);
  } catch (const JsonProblem& problem) {
    refuse_offload_folder(path, problem.key.empty()
                                    ? problem.rule
                                    : fmt::format("'{}' {}", problem.key, problem.rule));
  }
}

bool is_index(const json& document) {
  return document.is_object() &&
         std::any_of(document.begin(), document.end(), [](const json& entry) {
           return entry.is_object() && entry.contains("dtype");
         });
}

std::string text_of(const json& entry, const char* key, const std::string& where) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_string())
    refuse_offload_folder(where, fmt::format("it has no string '{}'", key));
  return found->get<std::string>();
}

DType type_of(const json& entry, const std::string& where) {
  const std::string name = text_of(entry, "dtype", where);
  for (const auto& [known, type] : kTypes) {
    if (name == known) return type;
  }
  refuse_offload_folder(where, fmt::format("its dtype '{}' is unknown", for_message(name)));
}

std::string_view name_of(DType type, const std::string& where) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return name;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: offload folders cannot hold {}, which numpy does not have", where,
                          safetensors::to_string(type)),
              {.subject = where, .hint = "keep the tensor in host memory"});
}

std::vector<int64_t> shape_of(const json& entry, const std::string& where) {
  const auto found = entry.find("shape");
  if (found == entry.end() || !found->is_array())
    refuse_offload_folder(where, "it has no list 'shape'");
  std::vector<int64_t> shape;
  for (const json& size : *found) {
    if (!size.is_number_unsigned())
      refuse_offload_folder(where, "its shape contains an invalid size");
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

WeightTensor from_data(const std::string& folder, const std::string& name, const json& entry) {
  const std::string path = data_file(folder, name);
  std::error_code error;
  if (!fs::exists(path, error))
    refuse_offload_folder(path, "it is missing, but listed in index.json");
  const DType type = type_of(entry, path);
  const std::vector<int64_t> shape = shape_of(entry, path);
  const auto bytes = safetensors::tensor_bytes(type, shape);
  const auto file = MappedFile::open(path);
  // Files that numpy maps have at least one byte.
  const bool empty = bytes == 0u && file->size() <= safetensors::bits(type) / 8;
  if (!bytes || (file->size() != *bytes && !empty))
    refuse_offload_folder(
        path, fmt::format("it has {} bytes, but its tensor in index.json has {}", file->size(),
                          bytes ? fmt::format("{}", *bytes) : "too many"));
  return mapped_weight(name, type, shape, file, 0);
}

}  // namespace

bool is_offload_folder(const std::string& folder) {
  std::error_code error;
  return fs::exists(path_in(folder, kOffloadIndex), error) && is_index(read_index(folder));
}

WeightSource open_offload_folder(const std::string& folder) {
  const std::string index = path_in(folder, kOffloadIndex);
  std::error_code error;
  if (!fs::exists(index, error))
    refuse_offload_folder(folder, "it has no index.json, so it is not an offload folder");
  const json document = read_index(folder);
  if (!is_index(document))
    refuse_offload_folder(index, "it is not the index of an offloaded model");
  WeightSource source{.tensors = {}, .aliases = {}, .files = {index}, .folder = folder};
  std::map<std::string, WeightSource> opened;  // safetensors files
  for (const auto& [name, entry] : document.items()) {
    const std::string where = fmt::format("{}: '{}'", index, for_message(name));
    if (!entry.is_object()) refuse_offload_folder(where, "it is not an object");
    if (!entry.contains("safetensors_file")) {
      source.tensors.push_back(from_data(folder, name, entry));
      continue;
    }
    const fs::path named = text_of(entry, "safetensors_file", where);
    const std::string path = (named.is_absolute() ? named : fs::absolute(named)).string();
    auto found = opened.find(path);
    if (found == opened.end()) found = opened.emplace(path, open_safetensors(path)).first;
    const std::string inside = text_of(entry, "weight_name", where);
    const auto& tensors = found->second.tensors;
    const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                     [&](const WeightTensor& t) { return t.name == inside; });
    if (tensor == tensors.end())
      refuse_offload_folder(where, fmt::format("{} has no tensor '{}'", path, for_message(inside)));
    source.tensors.push_back(*tensor);
    source.tensors.back().name = name;
  }
  return source;
}

OffloadFolderWriter::OffloadFolderWriter(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) throw_io("make", folder_, error.value());
  const std::string index = path_in(folder_, kOffloadIndex);
  if (!fs::exists(index, error)) return;
  const json document = read_index(folder_);
  if (!is_index(document))
    fail_argument(
        fmt::format("{} is not the index of an offloaded model, and would be lost", index), index,
        "offload to another folder");
  for (const auto& [name, entry] : document.items()) entries_.emplace(name, entry.dump());
  if (::unlink(index.c_str()) != 0) throw_io("remove", index, errno);
}

void OffloadFolderWriter::add(const WeightTensor& tensor) {
  const std::string path = data_file(folder_, tensor.name);
  const json entry = {{"dtype", name_of(tensor.dtype, tensor.name)}, {"shape", tensor.shape}};
  // Existing mappings of the old file stay valid.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_io("replace", path, errno);
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) throw_io("make", path, errno);
  const auto write = [&](const char* bytes, size_t size) {
    while (size > 0) {
      const ssize_t done = ::write(file.get(), bytes, size);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) throw_io("write", path, errno);
      bytes += done;
      size -= static_cast<size_t>(done);
    }
  };
  tensor.read(write);
  if (tensor.bytes() == 0) {
    const std::array<char, 8> zeros{};  // as large as the widest type
    write(zeros.data(), safetensors::bits(tensor.dtype) / 8);
  }
  if (::fdatasync(file.get()) != 0) throw_io("write", path, errno);
  entries_[tensor.name] = entry.dump();
}

void OffloadFolderWriter::refer(const std::string& name, const std::string& safetensors_file,
                                const std::string& weight_name, DType dtype) {
  const json entry = {{"safetensors_file", fs::absolute(safetensors_file).string()},
                      {"weight_name", weight_name},
                      {"dtype", name_of(dtype, name)}};
  entries_[name] = entry.dump();
}

void OffloadFolderWriter::finish() {
  json document = json::object();
  for (const auto& [name, entry] : entries_) document[name] = json::parse(entry);
  replace_file(path_in(folder_, kOffloadIndex), document.dump(2) + "\n");
}

}  // namespace coupler::weights
