#include "formats/torch_archive.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace coupler::formats {
namespace {

using namespace std::string_view_literals;

// A pickle of protocol 2 with one long number, the magic number of PyTorch's format before 1.6.
constexpr auto kOldFormat = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."sv;
constexpr auto kZip = "PK\x03\x04"sv;
constexpr auto kTar = "ustar"sv;
constexpr uint64_t kTarAt = 257;
constexpr auto kPointer = "version https://git-lfs"sv;

constexpr const char* kConvert =
    "if you trust its author, load it with PyTorch and torch.save its state_dict() again with "
    "PyTorch 1.6 or newer";

// Returns `bytes` if they may be a zip archive; otherwise throws an Error that says what they are
// and how to get one: kUnsupported for PyTorch formats that are not supported, kIo for others.
const uint8_t* checked_kind(const uint8_t* bytes, uint64_t size, const std::string& file) {
  const std::string_view all(reinterpret_cast<const char*>(bytes), size);
  const auto problem = [&](ErrorCode code, std::string_view what, const char* hint) {
    return Error(code, fmt::format("{}: {}", file, what), {.subject = file, .hint = hint});
  };
  if (all.starts_with(kZip)) return bytes;
  if (all.empty()) throw problem(ErrorCode::kIo, "the file is empty", "copy or write it again");
  if (all.starts_with(kOldFormat))
    throw problem(
        ErrorCode::kUnsupported,
        "it is in the format that torch.save wrote before PyTorch 1.6, which is not supported",
        kConvert);
  if (size > kTarAt && all.substr(kTarAt).starts_with(kTar))
    throw problem(
        ErrorCode::kUnsupported,
        "it is a tar file, as the first versions of PyTorch wrote, which is not supported",
        kConvert);
  if (all.starts_with(kPointer))
    throw problem(ErrorCode::kIo, "it is a Git LFS pointer to a file, not the file",
                  "fetch the file itself: git lfs pull");
  if (size > 1 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5)
    throw problem(ErrorCode::kUnsupported,
                  "it is a bare pickle, not an archive written by torch.save", kConvert);
  throw problem(ErrorCode::kIo, "it is not a PyTorch file: torch.save writes zip archives",
                "name a file written by torch.save");
}

constexpr int kNewestVersion = 10;  // of the archive's format, readable by PyTorch 2
constexpr uint64_t kMaxSmallEntry = 64;
constexpr uint64_t kMaxFolderBytes = 256;  // a file name and a '/'

// The end of the last element, in bytes from the start of the storage, for a tensor that has
// elements. Nothing if it does not fit 64 bits.
std::optional<uint64_t> storage_end(const pickle::Tensor& tensor) {
  uint64_t last = tensor.offset;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    uint64_t distance = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(tensor.shape[i] - 1),
                               static_cast<uint64_t>(tensor.strides[i]), &distance) ||
        __builtin_add_overflow(last, distance, &last))
      return std::nullopt;
  }
  uint64_t end = 0;
  if (__builtin_add_overflow(last, uint64_t{1}, &last) ||
      __builtin_mul_overflow(last, tensor.type->bytes, &end))
    return std::nullopt;
  return end;
}

}  // namespace

TorchArchive TorchArchive::open(const std::string& path) {
  auto mapped = MappedFile::open(path);
  TorchArchive archive(mapped->data(), mapped->size(), path);
  archive.mapped_ = std::move(mapped);
  return archive;
}

TorchArchive::TorchArchive(const uint8_t* bytes, uint64_t size, std::string file)
    : bytes_(checked_kind(bytes, size, file)),
      file_(std::move(file)),
      zip_(bytes, size, file_),
      folder_(find_folder()) {
  check_version();
  check_byte_order();
  root_ = pickle::read(small_entry("data.pkl", pickle::kMaxBytes), file_);
}

void TorchArchive::fail(const std::string& rule) const {
  throw Error(
      ErrorCode::kIo, fmt::format("{}: {}", file_, rule),
      {.subject = file_,
       .hint = "the file is damaged or was not written by torch.save; copy or write it again"});
}

// All entries are in one folder, whose name the writer chooses. A TorchScript program is detected
// before compression, since parts of it are compressed.
std::string TorchArchive::find_folder() const {
  if (zip_.entries().empty()) fail("the archive is empty");
  const std::string_view first = zip_.entries().begin()->first;
  std::string folder(first.substr(0, first.find('/') + 1));
  if (folder.empty() || folder.size() > kMaxFolderBytes)
    fail(fmt::format("entry '{}' is not in a folder as torch.save writes it", for_message(first)));
  for (const auto& [name, entry] : zip_.entries()) {
    if (!name.starts_with(folder))
      fail(fmt::format("entry '{}' is outside the folder '{}'", for_message(name),
                       for_message(folder)));
    const std::string_view inside = name.substr(folder.size());
    if (inside == "constants.pkl" || inside.starts_with("code/"))
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: it is a TorchScript program (it has '{}'), not a state dict",
                              file_, for_message(name)),
                  {.subject = file_,
                   .hint = "if you trust its author, load it with torch.jit.load and torch.save "
                           "its state_dict()"});
  }
  for (const auto& [name, entry] : zip_.entries()) zip_.check_stored(name, entry);
  return folder;
}

// An entry that is read when the archive is opened, with its checksum verified.
std::string_view TorchArchive::small_entry(std::string_view name, uint64_t most) const {
  const std::string full = folder_ + std::string(name);
  const auto* entry = zip_.find(full);
  if (entry == nullptr)
    fail(
        fmt::format("entry '{}' is missing: this is a zip archive, but torch.save did not write it",
                    for_message(full)));
  if (entry->end - entry->begin > most)
    fail(fmt::format("entry '{}' has {} bytes, more than {}", for_message(full),
                     entry->end - entry->begin, most));
  return zip_.checked(full, *entry);
}

void TorchArchive::check_version() const {
  std::string_view text = small_entry("version", kMaxSmallEntry);
  if (text.ends_with('\n')) text.remove_suffix(1);
  const int version = to_number<int>(text).value_or(0);
  if (version < 1)
    fail(fmt::format("its version is '{}', which is not a number", for_message(text)));
  if (version > kNewestVersion)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: its format has version {}; only versions up to {} are supported",
                            file_, version, kNewestVersion),
                {.subject = file_, .hint = "write it with an older PyTorch"});
}

void TorchArchive::check_byte_order() const {
  // Archives from before PyTorch 2.1 do not have it; they are little-endian.
  if (zip_.find(folder_ + "byteorder") == nullptr) return;
  const std::string_view order = small_entry("byteorder", kMaxSmallEntry);
  if (order == "little") return;
  if (order != "big") fail(fmt::format("its byte order is '{}'", for_message(order)));
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: its numbers are big-endian, which is not supported", file_),
              {.subject = file_, .hint = "torch.save it on a little-endian machine"});
}

std::vector<TorchTensor> TorchArchive::tensors(const pickle::Value& state_dict) const {
  if (state_dict.kind() != pickle::Kind::kDict)
    fail(fmt::format("{} where a state dict is expected", to_string(state_dict.kind())));
  const auto items = state_dict.items();
  if (items.size() / 2 > pickle::kMaxTensors)
    fail(fmt::format("the state dict has more than {} tensors", pickle::kMaxTensors));
  std::vector<TorchTensor> result;
  result.reserve(items.size() / 2);
  for (size_t i = 0; i < items.size(); i += 2) {
    if (items[i]->kind() != pickle::Kind::kString)
      fail(fmt::format("it is not a state dict: {} where a tensor's name is expected",
                       to_string(items[i]->kind())));
    const std::string_view name = items[i]->text();
    if (items[i + 1]->kind() != pickle::Kind::kTensor)
      fail(fmt::format("it is not a state dict: '{}' is {}, not a tensor", for_message(name),
                       to_string(items[i + 1]->kind())));
    result.push_back(place(std::string(name), items[i + 1]->tensor()));
  }
  return result;
}

TorchTensor TorchArchive::place(std::string name, const pickle::Tensor& tensor) const {
  const auto wrong = [&](const std::string& rule) {
    fail(fmt::format("tensor '{}': {}", for_message(name), rule));
  };
  if (!tensor.type->dtype)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: tensor '{}': its type {} is not supported", file_,
                            for_message(name), tensor.type->name),
                {.subject = for_message(name),
                 .hint = "convert it with PyTorch, for example to complex64"});
  const ByteRange storage = place(*tensor.storage);
  const uint64_t storage_bytes = storage.end - storage.begin;
  const auto bytes = safetensors::tensor_bytes(*tensor.type->dtype, tensor.shape);
  if (!bytes) wrong("its shape has more than 2^63 bytes");
  uint64_t offset = 0;
  if (__builtin_mul_overflow(tensor.offset, tensor.type->bytes, &offset) || offset > storage_bytes)
    wrong(fmt::format("it begins at element {}, outside its storage of {} bytes", tensor.offset,
                      storage_bytes));
  uint64_t end = offset;
  if (*bytes > 0) {
    const auto last = storage_end(tensor);
    if (!last || *last > storage_bytes)
      wrong(fmt::format("its shape and strides leave its storage of {} bytes", storage_bytes));
    const uint64_t elements = *bytes / tensor.type->bytes;
    if (elements > storage_bytes / tensor.type->bytes)
      wrong(
          fmt::format("it has {} elements, more than its storage, which is not supported: call "
                      "contiguous() before saving it",
                      elements));
    end = *last;
  }
  return {std::move(name),
          *tensor.type->dtype,
          tensor.shape,
          tensor.strides,
          std::string(tensor.storage->key),
          storage,
          offset,
          {storage.begin + offset, storage.begin + end}};
}

ByteRange TorchArchive::place(const pickle::Storage& storage) const {
  const std::string name = fmt::format("{}data/{}", folder_, storage.key);
  const auto* entry = zip_.find(name);
  if (entry == nullptr)
    fail(fmt::format("storage '{}': entry '{}' is missing", for_message(storage.key),
                     for_message(name)));
  if (entry->end - entry->begin != storage.bytes)
    fail(fmt::format("storage '{}': it should have {} bytes, but entry '{}' has {}",
                     for_message(storage.key), storage.bytes, for_message(name),
                     entry->end - entry->begin));
  return {entry->begin, entry->end};
}

void TorchArchive::verify() const {
  for (const auto& [name, entry] : zip_.entries()) zip_.checked(name, entry);
}

}  // namespace coupler::formats
