#include "sharding/flat_layout.h"

#include <iterator>
#include <map>

namespace coupler::sharding {
namespace {

// Parameters start at multiples of 64 bytes, so kernels on a view are as fast as on a separate
// tensor.
constexpr int64_t kSlotAlignment = 64;

int64_t padded_elements(int64_t numel, int64_t element_size) {
  const int64_t unit = kSlotAlignment / element_size;
  return (numel + unit - 1) / unit * unit;
}

}  // namespace

std::vector<FlatLayout> lay_out_flat(const std::vector<FlatParameter>& parameters,
                                     int64_t most_elements) {
  std::map<int, std::vector<FlatLayout>> by_type;
  std::map<int, int64_t> elements;  // in the last group of the dtype, without padding
  for (size_t i = parameters.size(); i-- > 0;) {
    const FlatParameter& parameter = parameters[i];
    std::vector<FlatLayout>& groups = by_type[parameter.dtype];
    int64_t& in_group = elements[parameter.dtype];
    if (groups.empty() || parameter.numel > most_elements - in_group) {
      groups.emplace_back();
      in_group = 0;
    }
    in_group += parameter.numel;
    FlatLayout& group = groups.back();
    group.parameters.push_back(i);
    group.offsets.push_back(group.numel);
    group.numel += padded_elements(parameter.numel, parameter.element_size);
  }
  std::vector<FlatLayout> result;
  for (auto& [type, groups] : by_type) {
    std::move(groups.begin(), groups.end(), std::back_inserter(result));
  }
  if (!result.empty()) result.back().flags = static_cast<int64_t>(parameters.size());
  return result;
}

}  // namespace coupler::sharding
