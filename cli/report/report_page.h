// A run as one HTML page with inline SVG plots, which needs no network. Pure functions.
#pragma once

#include <string>

#include "cli/report/run_record.h"

namespace coupler::cli {

std::string html_page(const RunRecord& run);
// The same facts in a few lines, for a terminal.
std::string summary_text(const RunRecord& run);

}  // namespace coupler::cli
