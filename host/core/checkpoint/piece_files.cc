#include "checkpoint/piece_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <tuple>
#include <utility>

#include "base/mapped_file.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"

namespace coupler::checkpoint {
namespace {

// Each open file has a descriptor and keeps a chunk of 4 MiB, and a job of thousands of ranks has
// thousands of files.
constexpr size_t kMaxOpenFiles = 128;

int64_t numel_of(const std::vector<int64_t>& shape) {
  int64_t result = 1;
  for (const int64_t size : shape) result *= size;  // of a checked header: no overflow
  return result;
}

// The size of `elements` elements. Elements narrower than a byte must fill whole bytes.
uint64_t bytes_of(const std::string& tensor, int64_t elements, safetensors::DType dtype) {
  const uint64_t bits = static_cast<uint64_t>(elements) * safetensors::bits(dtype);
  if (bits % 8 != 0)
    refuse_checkpoint(for_message(tensor),
                      fmt::format("a part of {} elements of {} is not a whole number of bytes",
                                  elements, safetensors::to_string(dtype)));
  return bits / 8;
}

// How many of the tensor's elements the part has one after another from this one on.
int64_t elements_from(const PieceFiles::Part& part, int64_t element) {
  const int64_t at = part.division.in_part(element);
  return at >= part.begin && at < part.end ? part.division.together(at, part.end) : 0;
}

}  // namespace

PieceFiles::PieceFiles(const std::string& folder, const Manifest& manifest,
                       const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    const auto known = std::find_if(manifest.files.begin(), manifest.files.end(),
                                    [&](const ManifestFile& file) { return file.name == name; });
    if (known == manifest.files.end()) refuse_checkpoint(path, "it is not in the manifest");
    if (!manifest.save.empty() && known->rank < 0)
      refuse_checkpoint(path, "no rank wrote it as a piece of the save");
    files_.push_back({.path = path,
                      .bytes = known->bytes,
                      .sums = sums_of(manifest, name, path),
                      .open = nullptr});
    add_entries(files_.size() - 1);
    if (const std::string problem = piece_problem(metadata_.back(), manifest, *known);
        !problem.empty())
      refuse_checkpoint(path, problem);
  }
  for (auto& [name, tensor] : tensors_) {
    std::sort(tensor.parts.begin(), tensor.parts.end(), [](const Part& a, const Part& b) {
      return std::tuple(a.division.rank, a.begin, a.end) <
             std::tuple(b.division.rank, b.begin, b.end);
    });
  }
}

void PieceFiles::add_entries(size_t index) {
  const std::string& path = files_[index].path;
  opened(index);  // reports a damaged file before any state is restored from it
  const auto mapped = MappedFile::open(path);
  const auto header = safetensors::parse_header(mapped->data(), mapped->size(), path);
  metadata_.push_back(header.metadata);
  for (const safetensors::TensorInfo& info : header.tensors) {
    EntryRange range = read_entry_name(info.name);
    const int64_t numel = numel_of(info.shape);
    const int64_t end = range.end < 0 ? numel : range.end;
    if (end - range.begin != numel)
      refuse_checkpoint(path,
                        fmt::format("entry '{}' has {} elements", for_message(info.name), numel));
    const auto [found, first] = tensors_.try_emplace(std::move(range.name));
    Tensor& tensor = found->second;
    if (first) tensor.dtype = info.dtype;
    if (tensor.dtype != info.dtype)
      refuse_checkpoint(
          path,
          fmt::format("entry '{}' is {}, but {} has a part of the tensor that is {}",
                      for_message(info.name), safetensors::to_string(info.dtype),
                      this->path(tensor.parts.front()), safetensors::to_string(tensor.dtype)));
    tensor.parts.push_back({.file = index,
                            .begin = range.begin,
                            .end = end,
                            .offset = header.data_offset + info.begin,
                            .shape = info.shape,
                            .division = range.division});
  }
}

CheckedFile& PieceFiles::opened(size_t index) {
  File& file = files_[index];
  if (file.open != nullptr) return *file.open;
  if (open_ == kMaxOpenFiles) {
    for (File& other : files_) other.open.reset();
    open_ = 0;
  }
  file.open = std::make_unique<CheckedFile>(file.path, file.bytes, file.sums);
  ++open_;
  return *file.open;
}

void PieceFiles::read(const std::string& tensor, int64_t begin, int64_t end, void* into) {
  const auto found = tensors_.find(tensor);
  const std::vector<Part> none;
  const std::vector<Part>& parts = found == tensors_.end() ? none : found->second.parts;
  size_t at_part = 0;
  for (int64_t at = begin; at < end;) {
    // Most often the part that had the elements before, or the one after it.
    size_t tried = 0;
    while (tried < parts.size() && elements_from(parts[at_part], at) == 0) {
      at_part = (at_part + 1) % parts.size();
      ++tried;
    }
    if (tried == parts.size()) {
      refuse_checkpoint(
          for_message(tensor),
          fmt::format("none of the checkpoint's files contains elements {} to {}", at, end));
    }
    const Part& part = parts[at_part];
    const safetensors::DType dtype = found->second.dtype;
    const int64_t count = std::min(elements_from(part, at), end - at);
    const int64_t in_part = part.division.in_part(at) - part.begin;
    opened(part.file).read(part.offset + bytes_of(tensor, in_part, dtype),
                           static_cast<char*>(into) + bytes_of(tensor, at - begin, dtype),
                           bytes_of(tensor, count, dtype));
    at += count;
  }
}

}  // namespace coupler::checkpoint
