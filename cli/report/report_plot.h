// A plot of `coupler report`: lines over steps as a figure with SVG in it, which needs no script:
// points say their values where a pointer rests on them. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/report/run_record.h"

namespace coupler::cli {

struct Line {
  std::string name;  // in the points' tooltips; may be empty
  std::vector<Point> points;
  bool aside = false;  // drawn thin and grey: others matter more
};

// Lines with at least one point each; at least one line. The first that is not aside says its last
// value in the caption. unit: of the steps.
std::string plot(const std::string& title, const std::vector<Line>& lines, const std::string& unit);

// The CSS of all plots.
extern const char* const kPlotStyle;

// Text as HTML shows it.
std::string escaped(const std::string& text);
// Four digits.
std::string short_number(double value);

}  // namespace coupler::cli
