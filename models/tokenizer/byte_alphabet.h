// GPT-2's printable characters for bytes, as byte-level tokenizers use them. Pure functions; safe
// to call from any thread. Do not depend on LibTorch.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace coupler {

// Replaces each byte with its character.
std::string to_byte_alphabet(std::string_view bytes);

// The inverse; nothing if the text has any other character.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace coupler
