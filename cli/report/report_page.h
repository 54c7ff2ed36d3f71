// A run as one HTML page that needs no network: plots are SVG in it. Pure functions.
#pragma once

#include <string>

#include "cli/report/run_record.h"

namespace coupler::cli {

std::string html_page(const RunRecord& run);
// The same facts in a few lines, for a terminal.
std::string summary_text(const RunRecord& run);

}  // namespace coupler::cli
