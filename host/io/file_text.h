// Text that comes from files, whose writers are strangers. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// For messages: short, without control characters, cut between characters, and without bytes of
// 0x80 and more where it is no valid UTF-8.
std::string shown(std::string_view text);

// Whether the bytes are UTF-8 as RFC 3629 has it: no surrogates, no overlong forms.
bool valid_utf8(std::string_view bytes);

}  // namespace coupler
