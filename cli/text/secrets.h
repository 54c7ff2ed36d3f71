// What a report that users paste into public places must not show. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace coupler::cli {

// Whether a variable or option of that name may hold a password, a key or the like.
bool may_be_secret(std::string_view name);

// Whether `coupler env` lists the variable: what decides how ranks find each other and run.
bool is_reported_variable(std::string_view name);

// Control characters as \xNN, so that printing the text is harmless.
std::string printable(std::string_view text);

}  // namespace coupler::cli
