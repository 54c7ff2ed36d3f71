#include "datasets/arrow_values.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"

namespace coupler::datasets {
namespace {

[[noreturn]] void refuse_arrow_type(const ArrowSchema& schema) {
  const std::string name = schema.name == nullptr ? "" : schema.name;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("column '{}' has a type that rows cannot have: '{}' in Arrow's notation",
                          for_message(name), for_message(schema.format)),
              {.subject = name,
               .hint = "write the file without the column, or convert it to numbers or strings"});
}

bool is_list(std::string_view format) {
  return format == "+l" || format == "+L" || format == "+m" || format.starts_with("+w:");
}

// The units per second of "tsu:UTC" and "ttu"; a date in milliseconds is "tdm".
int64_t units_per_second(char unit) {
  switch (unit) {
    case 'm':
      return 1000;
    case 'u':
      return 1000000;
    case 'n':
      return 1000000000;
    default:
      return 1;
  }
}

std::optional<FeatureType> scalar_type(std::string_view format) {
  using enum FeatureType;
  if (format.size() == 1) {
    switch (format[0]) {
      case 'n':
        return kNull;
      case 'b':
        return kBool;
      case 'c':
      case 'C':
      case 's':
      case 'S':
      case 'i':
      case 'I':
      case 'l':
      case 'L':
        return kInt64;
      case 'e':
      case 'f':
      case 'g':
        return kFloat64;
      case 'u':
      case 'U':
      case 'z':
      case 'Z':
        return kString;
      default:
        return std::nullopt;
    }
  }
  const bool is_time =
      format.starts_with("td") || format.starts_with("ts") || format.starts_with("tt");
  return is_time || format.starts_with("w:") ? std::optional(kString) : std::nullopt;
}

// An array's elements of a fixed size, from its first.
template <class T>
const T* elements(const ArrowArray& array) {
  return static_cast<const T*>(array.buffers[1]) + array.offset;
}

double half_to_double(uint16_t bits) {
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value;
  if (exponent == 31) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = fraction / 16777216.0;
  } else {
    value = std::bit_cast<float>((exponent + 112) << 23 | fraction << 13);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

int64_t signed_number(uint64_t number) {
  if (number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return static_cast<int64_t>(number);
  throw Error(ErrorCode::kUnsupported,
              fmt::format("the unsigned number {} exceeds 2^63 - 1", number),
              {.subject = "uint64", .hint = "store such numbers as strings"});
}

// Calls use(pointer, convert) with the elements of a type of integers.
template <class Use>
auto with_integers(char format, const ArrowArray& array, const Use& use) {
  const auto plain = [](auto number) { return static_cast<int64_t>(number); };
  switch (format) {
    case 'c':
      return use(elements<int8_t>(array), plain);
    case 'C':
      return use(elements<uint8_t>(array), plain);
    case 's':
      return use(elements<int16_t>(array), plain);
    case 'S':
      return use(elements<uint16_t>(array), plain);
    case 'i':
      return use(elements<int32_t>(array), plain);
    case 'I':
      return use(elements<uint32_t>(array), plain);
    case 'L':
      return use(elements<uint64_t>(array), signed_number);
    default:
      return use(elements<int64_t>(array), plain);
  }
}

template <class Use>
auto with_doubles(char format, const ArrowArray& array, const Use& use) {
  const auto plain = [](auto number) { return static_cast<double>(number); };
  if (format == 'e') return use(elements<uint16_t>(array), half_to_double);
  if (format == 'f') return use(elements<float>(array), plain);
  return use(elements<double>(array), plain);
}

bool is_null_at(const ArrowSchema& schema, const ArrowArray& array, int64_t position) {
  if (schema.format[0] == 'n') return true;
  if (array.null_count == 0 || array.n_buffers == 0 || array.buffers[0] == nullptr) return false;
  const int64_t bit = array.offset + position;
  return (static_cast<const uint8_t*>(array.buffers[0])[bit / 8] >> (bit % 8) & 1) == 0;
}

template <class Offset>
std::string_view bytes_at(const ArrowArray& array, int64_t position) {
  const Offset* const offsets = elements<Offset>(array) + position;
  return {static_cast<const char*>(array.buffers[2]) + offsets[0],
          static_cast<size_t>(offsets[1] - offsets[0])};
}

int64_t floor_divide(int64_t value, int64_t by) { return value / by - (value % by < 0 ? 1 : 0); }

// "2026-11-30", "2026-11-30T12:00:00.123", "12:00:00", of UTC.
std::string time_text(std::string_view format, const ArrowArray& array, int64_t position) {
  const bool narrow = format == "tdD" || format == "tts" || format == "ttm";
  const int64_t count =
      narrow ? elements<int32_t>(array)[position] : elements<int64_t>(array)[position];
  const char kind = format[1];
  const int64_t per_second = format == "tdD" ? 1 : units_per_second(format[2]);
  const int64_t seconds = format == "tdD" ? count * 86400 : floor_divide(count, per_second);
  const auto moment = static_cast<time_t>(seconds);
  std::tm parts{};
  if (::gmtime_r(&moment, &parts) == nullptr) return fmt::format("{}", count);
  std::string text;
  if (kind != 't')
    text = fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
  if (kind == 'd') return text;
  text += fmt::format("{}{:02}:{:02}:{:02}", kind == 's' ? "T" : "", parts.tm_hour, parts.tm_min,
                      parts.tm_sec);
  if (per_second == 1) return text;
  const int digits = per_second == 1000 ? 3 : per_second == 1000000 ? 6 : 9;
  return text + fmt::format(".{:0{}}", count - seconds * per_second, digits);
}

Value string_at(std::string_view format, const ArrowArray& array, int64_t position) {
  if (format[0] == 't') return time_text(format, array, position);
  if (format == "u" || format == "z") return bytes_at<int32_t>(array, position);
  if (format == "U" || format == "Z") return bytes_at<int64_t>(array, position);
  const int64_t width = to_number<int64_t>(format.substr(2)).value_or(0);  // "w:16"
  return std::string_view(
      static_cast<const char*>(array.buffers[1]) + (array.offset + position) * width,
      static_cast<size_t>(width));
}

struct ElementRange {
  int64_t begin, end;
};

ElementRange list_range(std::string_view format, const ArrowArray& array, int64_t position) {
  if (format.starts_with("+w:")) {
    const int64_t width = to_number<int64_t>(format.substr(3)).value_or(0);
    return {(array.offset + position) * width, (array.offset + position + 1) * width};
  }
  if (format == "+L") {
    const int64_t* const offsets = elements<int64_t>(array) + position;
    return {offsets[0], offsets[1]};
  }
  const int32_t* const offsets = elements<int32_t>(array) + position;
  return {offsets[0], offsets[1]};
}

Value list_at(const ArrowSchema& schema, const ArrowArray& array, int64_t position) {
  const auto [begin, end] = list_range(schema.format, array, position);
  const ArrowSchema& type = *schema.children[0];
  const ArrowArray& child = *array.children[0];
  bool some_null = type.dictionary != nullptr;
  for (int64_t i = begin; !some_null && i < end; ++i) some_null = is_null_at(type, child, i);
  const auto feature = scalar_type(type.format);
  const auto take = [&, first = begin, last = end](const auto* from, const auto& convert) {
    using Number = decltype(convert(*from));
    std::vector<Number> numbers;
    numbers.reserve(static_cast<size_t>(last - first));
    for (int64_t i = first; i < last; ++i) numbers.push_back(convert(from[i]));
    return Value(std::move(numbers));
  };
  if (!some_null && feature == FeatureType::kInt64)
    return with_integers(type.format[0], child, take);
  if (!some_null && feature == FeatureType::kFloat64)
    return with_doubles(type.format[0], child, take);
  Value::List list;
  list.reserve(static_cast<size_t>(end - begin));
  for (int64_t i = begin; i < end; ++i) list.push_back(value_of_arrow(type, child, i));
  return list;
}

Value struct_at(const ArrowSchema& schema, const ArrowArray& array, int64_t position) {
  std::vector<std::string> names;
  std::vector<Value> values;
  for (int64_t i = 0; i < schema.n_children; ++i) {
    names.emplace_back(schema.children[i]->name);
    values.push_back(
        value_of_arrow(*schema.children[i], *array.children[i], array.offset + position));
  }
  return Row(std::make_shared<const std::vector<std::string>>(std::move(names)), std::move(values));
}

}  // namespace

Feature feature_of_arrow(const ArrowSchema& schema) {
  Feature feature{schema.name == nullptr ? "" : schema.name, FeatureType::kNull, {}};
  const std::string_view format = schema.format;
  if (schema.dictionary != nullptr) {
    if (scalar_type(format) != FeatureType::kInt64) refuse_arrow_type(schema);
    const Feature values = feature_of_arrow(*schema.dictionary);
    feature.type = values.type;
    feature.of = values.of;
  } else if (is_list(format)) {
    feature.type = FeatureType::kList;
    feature.of = {feature_of_arrow(*schema.children[0])};
    feature.of[0].name.clear();
  } else if (format == "+s") {
    feature.type = FeatureType::kStruct;
    for (int64_t i = 0; i < schema.n_children; ++i)
      feature.of.push_back(feature_of_arrow(*schema.children[i]));
  } else if (const auto scalar = scalar_type(format)) {
    feature.type = *scalar;
  } else {
    refuse_arrow_type(schema);
  }
  return feature;
}

Value value_of_arrow(const ArrowSchema& schema, const ArrowArray& array, int64_t position) {
  if (is_null_at(schema, array, position)) return {};
  const std::string_view format = schema.format;
  if (schema.dictionary != nullptr) {
    const int64_t index = with_integers(
        format[0], array,
        [&](const auto* from, const auto& convert) -> int64_t { return convert(from[position]); });
    return value_of_arrow(*schema.dictionary, *array.dictionary, index);
  }
  if (is_list(format)) return list_at(schema, array, position);
  if (format == "+s") return struct_at(schema, array, position);
  const auto take = [&](const auto* from, const auto& convert) {
    return Value(convert(from[position]));
  };
  switch (scalar_type(format).value_or(FeatureType::kString)) {
    case FeatureType::kInt64:
      return with_integers(format[0], array, take);
    case FeatureType::kFloat64:
      return with_doubles(format[0], array, take);
    case FeatureType::kBool: {
      const int64_t bit = array.offset + position;
      return (static_cast<const uint8_t*>(array.buffers[1])[bit / 8] >> (bit % 8) & 1) != 0;
    }
    default:
      return string_at(format, array, position);
  }
}

}  // namespace coupler::datasets
