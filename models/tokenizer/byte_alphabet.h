// The characters that byte-level tokenizers write for bytes: GPT-2's, which can all be seen. Pure
// functions, any thread. Sees no LibTorch.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace coupler {

// Each byte as its character.
std::string to_byte_alphabet(std::string_view bytes);

// The bytes that a text of such characters stands for; nothing where it has another character.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace coupler
