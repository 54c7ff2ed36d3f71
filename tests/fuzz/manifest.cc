// parse() of manifests on arbitrary bytes: unchanged, and with a correct checksum, so that the code
// after the checksum is reached. An accepted manifest must survive writing and reading unchanged.
#include "checkpoint/manifest.h"

#include <coupler/error.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

using coupler::checkpoint::Manifest;

void read(std::string_view text) {
  Manifest manifest;
  try {
    manifest = coupler::checkpoint::parse(text, "manifest.json");
  } catch (const coupler::Error& error) {
    if (error.code() != coupler::ErrorCode::kIo || *error.what() == '\0') std::abort();
    return;
  }
  if (coupler::checkpoint::parse(coupler::checkpoint::format(manifest), "again") != manifest)
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  read(text);
  read(coupler::checkpoint::with_checksum(
      std::string(text.substr(0, text.rfind(",\n  \"checksum\"")))));
  return 0;
}
