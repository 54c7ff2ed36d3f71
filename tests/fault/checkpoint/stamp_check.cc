#include "stamp_check.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "checkpoint/piece_files.h"

namespace coupler::testing_checkpoint {
namespace {

constexpr int64_t kElements[] = {7, 165, 2000};
constexpr std::string_view kParameters[] = {"a", "b", "c"};

}  // namespace

std::string check_stamps(const std::string& path, const checkpoint::Manifest& manifest) {
  const auto t = static_cast<double>(manifest.steps);
  for (const auto& [kind, prefix, expected] : {std::tuple("model", "", t * (t + 1) / 2),
                                               std::tuple("optimizer", "momentum_buffer/", -t)}) {
    std::vector<std::string> names;
    for (const checkpoint::ManifestFile& file : manifest.files) {
      if (file.name.starts_with(kind)) names.push_back(file.name);
    }
    if (names.empty()) return fmt::format("there is no file of the {}", kind);
    checkpoint::PieceFiles files(path, manifest, names);
    for (size_t i = 0; i < std::size(kParameters); ++i) {
      const std::string name = prefix + std::string(kParameters[i]);
      std::vector<float> values(static_cast<size_t>(kElements[i]));
      files.read(name, 0, kElements[i], values.data());
      for (size_t at = 0; at < values.size(); ++at) {
        if (values[at] != static_cast<float>(expected)) {
          return fmt::format("element {} of {} is {}, not {} as after step {}", at, name,
                             values[at], expected, manifest.steps);
        }
      }
    }
  }
  return "";
}

}  // namespace coupler::testing_checkpoint
