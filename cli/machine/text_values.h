// Reads facts from folders and small text files of the kernel and of programs; a missing one has
// none. Plain functions, callable from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace coupler::cli {

// The folder's entries whose names start with prefix, sorted; empty if it cannot be read.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder,
                                              std::string_view prefix = "");

std::optional<std::string> first_line_of(const std::string& file);
// The first line, if it is a number and nothing else (unlike the "max" of cgroups).
std::optional<uint64_t> number_in(const std::string& file);
// What follows `start` in the first line that begins with it, stripped of blanks, colons, equals
// signs and quotes: for lines like NAME=value or "name : value".
std::optional<std::string> value_in(const std::string& file, std::string_view start);

// "5.1.2" from three lines like "#define NAME 5" in a C header; "" if one of them is missing.
std::string version_in(const std::string& header, const std::array<const char*, 3>& names);

// The value of a line of /proc/meminfo, such as MemTotal, in bytes.
std::optional<uint64_t> meminfo(const char* name);

}  // namespace coupler::cli
