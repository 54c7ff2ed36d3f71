// The files vocab.json and merges.txt that CLIP's tokenizer is stored in where there is no
// tokenizer.json, as Stable Diffusion's is. Plain functions, any thread. See no LibTorch.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace coupler {

// Ends a text.
inline constexpr const char* kClipEnd = "<|endoftext|>";

// What tokenizer.json would say: lower-cased words of byte-level BPE that end with "</w>", between
// <|startoftext|> and <|endoftext|>. Nothing where the folder has not both files, or where they are
// another tokenizer's. Throws Error(kIo) and Error(kInvalidArgument) for damaged files.
std::optional<nlohmann::json> read_clip_files(const std::string& folder);

}  // namespace coupler
