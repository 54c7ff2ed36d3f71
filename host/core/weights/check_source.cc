#include <coupler/error.h>
#include <fmt/format.h>

#include <set>
#include <string_view>

#include "base/file_text.h"
#include "weights/weight_source.h"

namespace coupler {

void check_source(const WeightSource& source, const std::string& path) {
  const auto refuse = [&](const std::string& problem) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {}", path, problem),
                {.subject = path,
                 .hint = "the files do not belong together, or are damaged; copy "
                         "or write them again"});
  };
  if (source.tensors.empty()) refuse("it contains no tensors");
  std::set<std::string_view> names;
  for (const WeightTensor& tensor : source.tensors)
    if (!names.insert(tensor.name).second)
      refuse(fmt::format("tensor '{}' occurs twice", shown(tensor.name)));
  for (const auto& [alias, name] : source.aliases) {
    if (names.count(alias) != 0)
      refuse(fmt::format("'{}' is both a tensor and an alias of tensor '{}'", shown(alias),
                         shown(name)));
    if (names.count(name) == 0)
      refuse(fmt::format("'{}' is an alias of '{}', which is not a tensor", shown(alias),
                         shown(name)));
  }
}

}  // namespace coupler
