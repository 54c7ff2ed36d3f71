#include "checkpoint/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

#include "base/sha256.h"
#include "base/text.h"

namespace coupler::checkpoint {
namespace {

constexpr std::string_view kWord = "checkpoint_";
constexpr std::string_view kPartial = ".partial";
constexpr std::string_view kRemoved = ".removed";
constexpr size_t kMaxDigits = 18;
constexpr size_t kIdentityDigits = 32;

}  // namespace

std::string new_save_identity() { return to_hex(random_bytes32()).substr(0, kIdentityDigits); }

bool is_save_identity(std::string_view text) {
  return text.size() == kIdentityDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string name_of(const Name& name) {
  const std::string_view end = name.kind == NameKind::kPartial   ? kPartial
                               : name.kind == NameKind::kRemoved ? kRemoved
                                                                 : std::string_view();
  return fmt::format("{}{}{}{}{}{}", end.empty() ? "" : ".", kWord, name.number,
                     name.save.empty() ? "" : ".", name.save, end);
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
    if (const auto dot = text.find('.'); dot != std::string_view::npos) {
      if (!is_save_identity(text.substr(dot + 1))) return std::nullopt;
      name.save = text.substr(dot + 1);
      text = text.substr(0, dot);
    }
  }
  if (!text.starts_with(kWord)) return std::nullopt;
  text.remove_prefix(kWord.size());
  if (text.size() > kMaxDigits) return std::nullopt;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), name.number);
  if (status != std::errc() || name.number < 0 || name_of(name) != whole) return std::nullopt;
  return name;
}

std::string numbered(const std::string& kind, size_t index) {
  return index == 0 ? kind : kind + "_" + std::to_string(index);
}

std::vector<std::string> files_of(const Manifest& manifest, const std::string& base) {
  std::vector<std::string> names;
  for (const ManifestFile& file : manifest.files) {
    if (!manifest.save.empty() && file.rank < 0) continue;
    if (file.name == base + kExtension ||
        (file.name.starts_with(base + "-") && file.name.ends_with(kExtension))) {
      names.push_back(file.name);
    }
  }
  return names;
}

std::string part_name(const std::string& tensor, int64_t begin, int64_t end,
                      const sharding::Division& division) {
  if (division.is_whole()) return fmt::format("{}[{}:{}]", tensor, begin, end);
  return fmt::format("{}[{}:{}|{}*{}+{}]", tensor, begin, end, division.run, division.ranks,
                     division.rank);
}

namespace {

// Numbers of a text such as "3:9|4*2+1", each after its separator.
class Numbers {
 public:
  explicit Numbers(std::string_view text) : text_(text) {}
  // The next one, up to `separator`; '\0': up to the end. Unset if there is none.
  template <class Number>
  std::optional<Number> next(char separator) {
    const size_t end = separator == '\0' ? text_.size() : text_.find(separator);
    if (end == std::string_view::npos) return std::nullopt;
    const auto number = to_number<Number>(text_.substr(0, end));
    text_.remove_prefix(std::min(text_.size(), end + 1));
    return number;
  }

 private:
  std::string_view text_;
};

std::optional<sharding::Division> read_division(std::string_view text) {
  Numbers numbers(text);
  const auto run = numbers.next<int64_t>('*');
  const auto ranks = numbers.next<int>('+');
  const auto rank = numbers.next<int>('\0');
  // Products of element numbers and ranks must not overflow.
  constexpr int64_t kMost = int64_t{1} << 60;
  if (!run || !ranks || !rank || *ranks < 2 || *rank < 0 || *rank >= *ranks || *run < 1 ||
      *run > kMost / *ranks)
    return std::nullopt;
  return sharding::Division{*run, *ranks, *rank};
}

}  // namespace

EntryRange read_entry_name(const std::string& entry) {
  EntryRange whole{entry};
  const size_t open = entry.rfind('[');
  if (entry.empty() || entry.back() != ']' || open == std::string::npos) return whole;
  EntryRange result{entry.substr(0, open)};
  const std::string_view inside = std::string_view(entry).substr(open + 1, entry.size() - open - 2);
  const size_t bar = inside.find('|');
  Numbers numbers(inside.substr(0, bar));
  const auto begin = numbers.next<int64_t>(':');
  const auto end = numbers.next<int64_t>('\0');
  if (!begin || !end || *begin < 0 || *end <= *begin) return whole;
  result.begin = *begin;
  result.end = *end;
  if (bar == std::string_view::npos) return result;
  const auto division = read_division(inside.substr(bar + 1));
  if (!division) return whole;
  result.division = *division;
  return result;
}

}  // namespace coupler::checkpoint
