#include "checkpoint/piece_reader.h"

#include <ATen/Functions.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "checkpoint/file_sums.h"
#include "io/mapped_file.h"
#include "io/safetensors_types.h"

namespace coupler::checkpoint {
namespace {

[[noreturn]] void refuse(const std::string& file, const std::string& problem) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", file, problem),
              {.subject = file, .hint = "use another checkpoint"});
}

int64_t numel_of(const std::vector<int64_t>& shape) {
  int64_t result = 1;
  for (const int64_t size : shape) result *= size;  // of a checked header: no overflow
  return result;
}

}  // namespace

bool StatePiece::whole() const { return begin == 0 && end == numel_of(shape); }

std::string entry_name(const StatePiece& piece) {
  return piece.whole() ? piece.name : fmt::format("{}[{}:{}]", piece.name, piece.begin, piece.end);
}

EntryRange read_entry_name(const std::string& entry) {
  const EntryRange whole{entry};
  const size_t open = entry.rfind('[');
  if (entry.empty() || entry.back() != ']' || open == std::string::npos) return whole;
  EntryRange result{entry.substr(0, open)};
  const char* const last = entry.data() + entry.size() - 1;
  const auto begin = std::from_chars(entry.data() + open + 1, last, result.begin);
  if (begin.ec != std::errc() || begin.ptr == last || *begin.ptr != ':') return whole;
  const auto end = std::from_chars(begin.ptr + 1, last, result.end);
  const bool valid =
      end.ec == std::errc() && end.ptr == last && result.begin >= 0 && result.end > result.begin;
  return valid ? result : whole;
}

PieceReader::PieceReader(const std::string& folder, const Manifest& manifest,
                         const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    const auto known = std::find_if(manifest.files.begin(), manifest.files.end(),
                                    [&](const ManifestFile& file) { return file.name == name; });
    if (known == manifest.files.end()) refuse(path, "the manifest does not list it");
    auto sums = sums_of(manifest, name, path);
    files_.push_back(std::make_unique<CheckedFile>(path, known->bytes, std::move(sums)));
    const auto mapped = MappedFile::open(path);
    const auto header = safetensors::parse_header(mapped->data(), mapped->size(), path);
    metadata_.push_back(header.metadata);
    for (const safetensors::TensorInfo& info : header.tensors) {
      const EntryRange range = read_entry_name(info.name);
      const int64_t numel = numel_of(info.shape);
      const int64_t end = range.end < 0 ? numel : range.end;
      if (end - range.begin != numel) {
        refuse(path, fmt::format("entry '{}' has {} elements", info.name, numel));
      }
      tensors_[range.name].push_back({.file = files_.size() - 1,
                                      .begin = range.begin,
                                      .end = end,
                                      .offset = header.data_offset + info.begin,
                                      .dtype = info.dtype,
                                      .shape = info.shape});
    }
  }
  for (auto& [name, entries] : tensors_) {
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
  }
}

void PieceReader::read(const std::string& tensor, const StatePiece& piece) {
  const at::Tensor& values = piece.values;
  if (values.is_contiguous() && values.device().is_cpu()) {
    read_elements(tensor, piece, values);
    return;
  }
  const at::Tensor room = at::empty(values.sizes(), values.options().device(at::kCPU));
  read_elements(tensor, piece, room);
  values.copy_(room);
}

void PieceReader::read_all(
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  for (const auto& [name, entries] : tensors_) {
    const Entry& first = entries.front();
    const at::Tensor value =
        at::empty(first.shape, at::TensorOptions(safetensors::scalar_type(first.dtype, name)));
    read(name,
         {.name = name, .shape = first.shape, .begin = 0, .end = value.numel(), .values = value});
    visit(name, value);
  }
}

void PieceReader::read_elements(const std::string& tensor, const StatePiece& piece,
                                const at::Tensor& into) {
  if (piece.numel() == 0) return;
  const auto found = tensors_.find(tensor);
  const auto size = static_cast<int64_t>(into.element_size());
  int64_t at = piece.begin;
  if (found != tensors_.end()) {
    for (const Entry& entry : found->second) {
      if (entry.begin > at) break;
      const int64_t end = std::min(entry.end, piece.end);
      if (end <= at) continue;
      CheckedFile& file = *files_[entry.file];
      const auto dtype = safetensors::scalar_type(entry.dtype, tensor);
      if (dtype != into.scalar_type()) {
        throw Error(
            ErrorCode::kInvalidArgument,
            fmt::format("{}: tensor '{}' is {}, the program's is {}", file.path(), tensor,
                        c10::toString(dtype), c10::toString(into.scalar_type())),
            {.subject = tensor, .hint = "load it into a model of the dtypes it was saved with"});
      }
      file.read(entry.offset + static_cast<uint64_t>((at - entry.begin) * size),
                static_cast<char*>(into.mutable_data_ptr()) + (at - piece.begin) * size,
                static_cast<size_t>((end - at) * size));
      at = end;
      if (at == piece.end) return;
    }
  }
  refuse(tensor,
         fmt::format("elements {} to {} are in none of the checkpoint's files", at, piece.end));
}

}  // namespace coupler::checkpoint
