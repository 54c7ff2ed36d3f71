#include "formats/torch_file_kind.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <string_view>

namespace coupler {
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

}  // namespace

void check_torch_file_kind(const uint8_t* bytes, uint64_t size, const std::string& file) {
  const std::string_view all(reinterpret_cast<const char*>(bytes), size);
  const auto fail = [&](ErrorCode code, std::string_view what, const char* hint) {
    throw Error(code, fmt::format("{}: {}", file, what), {.subject = file, .hint = hint});
  };
  if (all.starts_with(kZip)) return;
  if (all.empty()) fail(ErrorCode::kIo, "the file is empty", "copy or write it again");
  if (all.starts_with(kOldFormat))
    fail(ErrorCode::kUnsupported,
         "it is in the format that torch.save wrote before PyTorch 1.6, which is not supported",
         kConvert);
  if (size > kTarAt && all.substr(kTarAt).starts_with(kTar))
    fail(ErrorCode::kUnsupported,
         "it is a tar file, as the first versions of PyTorch wrote, which is not supported",
         kConvert);
  if (all.starts_with(kPointer))
    fail(ErrorCode::kIo, "it is a Git LFS pointer to a file, not the file",
         "fetch the file itself: git lfs pull");
  if (size > 1 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5)
    fail(ErrorCode::kUnsupported, "it is a bare pickle, not an archive written by torch.save",
         kConvert);
  fail(ErrorCode::kIo, "it is not a PyTorch file: torch.save writes zip archives",
       "name a file written by torch.save");
}

}  // namespace coupler
