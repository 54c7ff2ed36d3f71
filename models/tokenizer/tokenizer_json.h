// What the parts of a tokenizer.json share: they reject what is not supported, read patterns and
// run in sequence. And the same description made from CLIP's vocab.json and merges.txt, which
// Stable Diffusion has instead. Plain functions; safe to call from any thread. Do not depend on
// LibTorch.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json_file.h"
#include "unicode.h"

namespace coupler {

// Throws Error(kUnsupported): "FILE: normalizer: 'Nmt' is not supported; supported: …".
[[noreturn]] void refuse_kind(const JsonObject& description, const std::string& those_that_are);

// Applies stages one after the other.
template <class Stage>
Stage in_sequence(std::vector<Stage> stages) {
  return [stages = std::move(stages)](auto value) {
    for (const Stage& stage : stages) value = stage(std::move(value));
    return value;
  };
}

// The stages of a part of type "Sequence", which are listed under `key`.
template <class Stage>
Stage make_sequence(const JsonObject& description, const char* key,
                    Stage (*make)(const std::optional<JsonObject>&)) {
  std::vector<Stage> stages;
  for (const JsonObject& stage : description.objects(key)) stages.push_back(make(stage));
  return in_sequence(std::move(stages));
}

// The "pattern" of a part: {"String": "…"} or {"Regex": "…"}. Throws Error(kInvalidArgument) naming
// the part, if the pattern is missing or invalid.
inline unicode::Pattern pattern_of(const JsonObject& description) {
  const JsonObject pattern = description.object("pattern");
  if (pattern.has("String")) return unicode::Pattern::literal(pattern.text("String"));
  return unicode::Pattern::regex(pattern.text("Regex"), pattern.where());
}

// Marks the end of a text for CLIP.
inline constexpr const char* kClipEnd = "<|endoftext|>";

// The tokenizer.json that is equivalent to CLIP's files: lower-case words in byte-level BPE that
// end with "</w>", between <|startoftext|> and <|endoftext|>. Nothing if a file is missing or the
// files are another tokenizer's. Throws Error(kIo) and Error(kInvalidArgument) for damaged files.
std::optional<nlohmann::json> read_clip_files(const std::string& folder);

}  // namespace coupler
