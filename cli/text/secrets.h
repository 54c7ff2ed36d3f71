// Keeps secrets out of reports that users paste into public places. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace coupler::cli {

// Whether a variable or option of that name may hold a password, a key or similar.
bool may_be_secret(std::string_view name);

// Whether `coupler env` lists the variable, because it affects how ranks find each other or run.
bool is_reported_variable(std::string_view name);

// Shows control characters as \xNN, so that the string is safe to print.
std::string printable(std::string_view text);

}  // namespace coupler::cli
