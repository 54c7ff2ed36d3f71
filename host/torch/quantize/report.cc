#include <coupler/quantize.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/byte_size.h"

namespace coupler {

std::string to_table(const QuantizationReport& report, size_t most) {
  const size_t shown = most == 0 ? report.layers.size() : std::min(most, report.layers.size());
  size_t width = 6;
  uint64_t before = 0, after = 0;
  for (size_t i = 0; i < shown; ++i) width = std::max(width, report.layers[i].name.size());
  for (const QuantizedLayer& layer : report.layers) {
    before += layer.bytes_before;
    after += layer.bytes_after;
  }
  std::string table =
      fmt::format("{:{}}  relative error  largest error       bytes\n", "weight", width);
  for (size_t i = 0; i < shown; ++i) {
    const QuantizedLayer& layer = report.layers[i];
    fmt::format_to(std::back_inserter(table), "{:{}}  {:13.4f}%  {:13.3g}  {:>10}\n", layer.name,
                   width, 100 * layer.relative_error, layer.max_error,
                   format_byte_size(layer.bytes_after));
  }
  if (shown < report.layers.size())
    fmt::format_to(std::back_inserter(table), "and {} more\n", report.layers.size() - shown);
  const std::string group =
      report.group_size == 0 ? "" : fmt::format(", groups of {}", report.group_size);
  fmt::format_to(std::back_inserter(table), "{} weights of {} bits{}: {} instead of {}\n",
                 report.layers.size(), report.bits, group, format_byte_size(after),
                 format_byte_size(before));
  return table;
}

}  // namespace coupler
