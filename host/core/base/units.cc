#include "base/units.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "base/text.h"

namespace coupler {
namespace {

struct ByteUnit {
  std::string_view name;
  uint64_t bytes;
};
constexpr std::array<ByteUnit, 10> kByteUnits = {{{"", 1},
                                                  {"B", 1},
                                                  {"KB", 1'000},
                                                  {"KiB", uint64_t{1} << 10},
                                                  {"MB", 1'000'000},
                                                  {"MiB", uint64_t{1} << 20},
                                                  {"GB", 1'000'000'000},
                                                  {"GiB", uint64_t{1} << 30},
                                                  {"TB", 1'000'000'000'000},
                                                  {"TiB", uint64_t{1} << 40}}};
constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

}  // namespace

uint64_t parse_byte_size(std::string_view text, const std::string& what) {
  const auto refuse = [&](const std::string& rule) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' is not a size: {}", what, for_message(text), rule),
                {.subject = what,
                 .hint = "give a number of bytes, or a number with one of B, KB, MB, GB, TB, KiB, "
                         "MiB, GiB and TiB, such as 10GB"});
  };
  uint64_t count = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (status == std::errc::invalid_argument)
    refuse(text.starts_with('-') ? "it is negative" : "it does not begin with a digit");
  std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  std::string_view fraction;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    fraction = rest.substr(0, rest.find_first_not_of("0123456789"));
    rest.remove_prefix(fraction.size());
    if (fraction.empty()) refuse("no digit follows the decimal point");
  }
  if (rest.size() > 1 && rest.front() == ' ') rest.remove_prefix(1);
  const auto* unit = std::find_if(kByteUnits.begin(), kByteUnits.end(),
                                  [&](const ByteUnit& u) { return u.name == rest; });
  if (unit == kByteUnits.end())
    refuse(fmt::format("its unit '{}' is not one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB",
                       for_message(rest)));
  if (!fraction.empty() && unit->bytes == 1) refuse("bytes cannot be fractional");

  // From the last digit to the first, so that it is exact for any number of digits.
  uint64_t part = 0;
  std::for_each(fraction.rbegin(), fraction.rend(), [&](char digit) {
    part = (static_cast<uint64_t>(digit - '0') * unit->bytes + part) / 10;
  });
  if (status == std::errc::result_out_of_range || count > (kMax - part) / unit->bytes)
    refuse("it exceeds 2^63 - 1 bytes");
  const uint64_t bytes = count * unit->bytes + part;
  if (bytes == 0) refuse("it is less than a byte");
  return bytes;
}

std::string format_byte_size(uint64_t bytes) {
  constexpr std::array<std::string_view, 7> kSteps = {"B",   "KiB", "MiB", "GiB",
                                                      "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t step = 0;
  // 1024.0 becomes 1.0 of the next unit.
  for (; value >= 1023.95 && step + 1 < kSteps.size(); ++step) value /= 1024;
  return step == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kSteps[step]);
}

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
  constexpr std::array<std::pair<int64_t, const char*>, 3> kSteps = {
      {{1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "us"}}};
  for (const auto& [size, unit] : kSteps) {
    if (count % size == 0) return std::to_string(count / size) + unit;
  }
  return std::to_string(count) + "ns";
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace coupler
