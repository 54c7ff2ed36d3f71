#include "base/duration.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace coupler {
namespace {

struct TimeUnit {
  std::string_view name;
  double nanoseconds;
};
constexpr std::array<TimeUnit, 7> kTimeUnits = {
    {{"", 1e9}, {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}}};

std::optional<std::chrono::nanoseconds> from_nanoseconds(double count) {
  // Half of what int64_t holds, so that adding it to a clock's "now" cannot overflow.
  if (!std::isfinite(count) || std::abs(count) > 4.6e18) return std::nullopt;
  return std::chrono::nanoseconds(std::llround(count));
}

}  // namespace

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (unit.size() > 1 && unit.front() == ' ') unit.remove_prefix(1);
  for (const TimeUnit& known : kTimeUnits) {
    if (known.name == unit) return from_nanoseconds(number * known.nanoseconds);
  }
  return std::nullopt;
}

std::optional<std::chrono::nanoseconds> duration_of_seconds(double seconds) {
  return from_nanoseconds(seconds * 1e9);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const auto count = duration.count();
  constexpr std::array<std::pair<int64_t, const char*>, 4> kSteps = {
      {{1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "us"}, {1, "ns"}}};
  for (const auto& [size, unit] : kSteps) {
    if (count % size == 0) return std::to_string(count / size) + unit;
  }
  return std::to_string(count) + "ns";
}

}  // namespace coupler
