#include "placement/tensor_type.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/file_text.h"
#include "base/nearest.h"

namespace coupler {
namespace {

constexpr std::array<TensorType, 21> kTypes = {{{"float32", 32, 4, true},
                                                {"float64", 64, 8, true},
                                                {"float16", 16, 2, true},
                                                {"bfloat16", 16, 2, true},
                                                {"float8_e4m3fn", 8, 1, true},
                                                {"float8_e5m2", 8, 1, true},
                                                {"float8_e4m3fnuz", 8, 1, true},
                                                {"float8_e5m2fnuz", 8, 1, true},
                                                {"float8_e8m0fnu", 8, 1, true},
                                                {"complex32", 32, 4, true},
                                                {"complex64", 64, 8, true},
                                                {"complex128", 128, 16, true},
                                                {"int4", 4, 1, false},
                                                {"int8", 8, 1, false},
                                                {"int16", 16, 2, false},
                                                {"int32", 32, 4, false},
                                                {"int64", 64, 8, false},
                                                {"uint8", 8, 1, false},
                                                {"uint16", 16, 2, false},
                                                {"uint32", 32, 4, false},
                                                {"bool", 1, 1, false}}};

}  // namespace

const TensorType& tensor_type(std::string_view name, const std::string& what) {
  std::string_view rest = name;
  if (rest.starts_with("torch.")) rest.remove_prefix(6);
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const TensorType& t) { return t.name == rest; });
  if (type != kTypes.end()) return *type;
  std::vector<std::string> names;
  names.reserve(kTypes.size());
  for (const TensorType& known : kTypes) names.emplace_back(known.name);
  const std::string near = nearest_name(rest, names);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: unknown dtype '{}'{}", what, shown(name),
                          near.empty() ? "" : fmt::format("; did you mean '{}'?", near)),
              {.subject = what, .hint = "give a dtype such as float32, float16, bfloat16 or int8"});
}

}  // namespace coupler
