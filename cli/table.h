// A table of texts with aligned columns, for people to read. Pure function.
#pragma once

#include <string>
#include <vector>

namespace coupler::cli {

// The first row is the heading; the last column is not padded.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace coupler::cli
