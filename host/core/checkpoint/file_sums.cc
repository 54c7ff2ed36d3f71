#include "checkpoint/file_sums.h"

#include <fmt/format.h>

#include <charconv>

#include "checkpoint/refuse.h"

namespace coupler::checkpoint {
namespace {

constexpr size_t kDigits = 16;

}  // namespace

std::string encode_sums(const std::vector<uint64_t>& sums) {
  std::string text;
  for (const uint64_t sum : sums) text += fmt::format("{:016x}", sum);
  return text;
}

std::vector<uint64_t> sums_of(const Manifest& manifest, const std::string& name,
                              const std::string& path) {
  const auto all = manifest.state.find("sums");
  if (all == manifest.state.end() || !all->is_object() || !all->contains(name) ||
      !(*all)[name].is_string()) {
    refuse_checkpoint(path, "the manifest has no checksums of it");
  }
  const auto& text = (*all)[name].get_ref<const std::string&>();
  if (text.size() % kDigits != 0)
    refuse_checkpoint(path, "its checksums in the manifest are truncated");
  std::vector<uint64_t> sums(text.size() / kDigits);
  for (size_t i = 0; i < sums.size(); ++i) {
    const char* const begin = text.data() + i * kDigits;
    const auto [end, error] = std::from_chars(begin, begin + kDigits, sums[i], 16);
    if (error != std::errc() || end != begin + kDigits) {
      refuse_checkpoint(path, "its checksums in the manifest are not hexadecimal numbers");
    }
  }
  return sums;
}

}  // namespace coupler::checkpoint
