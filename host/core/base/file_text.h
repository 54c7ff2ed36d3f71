// Text from untrusted files. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

namespace coupler {

// For messages: shortened between characters, with control characters escaped, and bytes of 0x80
// and above too unless the text is valid UTF-8.
std::string shown(std::string_view text);

// Whether the bytes are UTF-8 according to RFC 3629: no surrogates, no overlong forms.
bool valid_utf8(std::string_view bytes);

}  // namespace coupler
