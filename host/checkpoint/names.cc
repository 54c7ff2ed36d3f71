#include "checkpoint/names.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

namespace coupler::checkpoint {
namespace {

constexpr std::string_view kWord = "checkpoint_";
constexpr std::string_view kPartial = ".partial";
constexpr std::string_view kRemoved = ".removed";
constexpr size_t kMaxDigits = 18;

}  // namespace

std::string name_of(const Name& name) {
  switch (name.kind) {
    case NameKind::kCommitted:
      return fmt::format("{}{}", kWord, name.number);
    case NameKind::kPartial:
      return fmt::format(".{}{}{}", kWord, name.number, kPartial);
    case NameKind::kRemoved:
      return fmt::format(".{}{}{}", kWord, name.number, kRemoved);
  }
  return "";
}

std::optional<Name> read_name(std::string_view text) {
  const std::string_view whole = text;
  Name name{NameKind::kCommitted, 0};
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    name.kind = text.ends_with(kPartial) ? NameKind::kPartial : NameKind::kRemoved;
    const std::string_view end = name.kind == NameKind::kPartial ? kPartial : kRemoved;
    if (!text.ends_with(end)) return std::nullopt;
    text.remove_suffix(end.size());
  }
  if (!text.starts_with(kWord)) return std::nullopt;
  text.remove_prefix(kWord.size());
  if (text.size() > kMaxDigits) return std::nullopt;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), name.number);
  if (status != std::errc() || name.number < 0 || name_of(name) != whole) return std::nullopt;
  return name;
}

}  // namespace coupler::checkpoint
