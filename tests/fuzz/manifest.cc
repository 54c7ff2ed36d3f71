// parse() of manifests on arbitrary bytes: as they are, and with a checksum that fits, so that what
// lies behind it is reached. What is accepted has to be written and read back the same.
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
