// CLIP's tokenizer as vocab.json and merges.txt, without tokenizer.json, as in Stable Diffusion.
// Plain functions; safe to call from any thread. Do not depend on LibTorch.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace coupler {

// Marks the end of a text.
inline constexpr const char* kClipEnd = "<|endoftext|>";

// The equivalent tokenizer.json: lower-case words in byte-level BPE that end with "</w>", between
// <|startoftext|> and <|endoftext|>. Nothing if a file is missing or the files are another
// tokenizer's. Throws Error(kIo) and Error(kInvalidArgument) for damaged files.
std::optional<nlohmann::json> read_clip_files(const std::string& folder);

}  // namespace coupler
