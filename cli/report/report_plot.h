// A plot of `coupler report`: lines over steps as a figure with inline SVG. It needs no script:
// points show their values as tooltips. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/report/run_record.h"

namespace coupler::cli {

struct Line {
  std::string name;  // in the points' tooltips; may be empty
  std::vector<Point> points;
  bool aside = false;  // drawn gray, under the others
};

// lines: at least one, each with at least one point. The caption shows the last value of the first
// line that is not aside. unit: of the steps.
std::string plot(const std::string& title, const std::vector<Line>& lines, const std::string& unit);

// The CSS of all plots.
extern const char* const kPlotStyle;

// The text with HTML's special characters escaped.
std::string escaped(const std::string& text);
// With four significant digits.
std::string short_number(double value);

}  // namespace coupler::cli
