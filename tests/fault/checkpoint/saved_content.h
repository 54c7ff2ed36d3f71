// The content that checkpoint_saver saves, computed from the checkpoint's number so tests know it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace coupler::testing_checkpoint {

inline constexpr std::array<std::string_view, 2> kFileNames = {"model.bin", "optimizer.bin"};

inline std::string saved_content(int64_t number, size_t file, size_t bytes) {
  uint64_t state = static_cast<uint64_t>(number) * 1000003 + file + 1;
  std::string text(bytes, '\0');
  for (size_t at = 0; at < bytes; at += sizeof state) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = state ^ state >> 32;
    std::memcpy(text.data() + at, &word, std::min(sizeof word, bytes - at));
  }
  return text;
}

}  // namespace coupler::testing_checkpoint
