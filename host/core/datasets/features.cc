#include "datasets/features.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace coupler::datasets {
namespace {

Feature* find_feature(std::vector<Feature>& features, const std::string& name, size_t guess) {
  if (guess < features.size() && features[guess].name == name) return &features[guess];
  const auto found = std::find_if(features.begin(), features.end(),
                                  [&](const Feature& feature) { return feature.name == name; });
  return found == features.end() ? nullptr : &*found;
}

// Makes a feature that is null so far one of this type; false if it has a type that excludes it.
bool widen(Feature& into, FeatureType type) {
  const auto is_number = [](FeatureType each) {
    return each == FeatureType::kInt64 || each == FeatureType::kFloat64;
  };
  if (into.type == type || type == FeatureType::kNull) return true;
  if (into.type == FeatureType::kNull) {
    into.type = type;
    if (type == FeatureType::kList) into.of = {{"", FeatureType::kNull, {}}};
    return true;
  }
  if (!is_number(into.type) || !is_number(type)) return false;
  into.type = FeatureType::kFloat64;
  return true;
}

}  // namespace

bool merge(Feature& into, const Value& value) {
  if (!widen(into, value.type())) return false;
  return value.visit([&](const auto& held) {
    using T = std::decay_t<decltype(held)>;
    if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
      return widen(into.of[0], FeatureType::kInt64);
    } else if constexpr (std::is_same_v<T, std::vector<double>>) {
      return widen(into.of[0], FeatureType::kFloat64);
    } else if constexpr (std::is_same_v<T, Value::List>) {
      return std::all_of(held.begin(), held.end(),
                         [&](const Value& element) { return merge(into.of[0], element); });
    } else if constexpr (std::is_same_v<T, Row>) {
      return merge(into.of, held).merged;
    } else {
      return true;
    }
  });
}

Merged merge(std::vector<Feature>& into, const Row& row) {
  for (size_t i = 0; i < row.size(); ++i) {
    const std::string& name = row.column_names()[i];
    Feature* known = find_feature(into, name, i);
    if (known == nullptr) known = &into.emplace_back(Feature{name, FeatureType::kNull, {}});
    if (!merge(*known, row.value(i))) return {false, name};
  }
  return {};
}

Feature feature_of(const Value& value) {
  Feature feature;
  if (!merge(feature, value))
    fail_argument(
        fmt::format("the elements of a list differ in type: {}", for_message(to_string(value))),
        "list", "give all elements of a column's lists one type");
  return feature;
}

bool merge(Feature& into, const Feature& other) {
  if (other.type == FeatureType::kNull) return true;
  if (into.type == FeatureType::kNull) {
    into.type = other.type;
    into.of = other.of;
    return true;
  }
  if (!widen(into, other.type)) return false;
  if (into.type == FeatureType::kList) return merge(into.of[0], other.of[0]);
  if (into.type == FeatureType::kStruct) return merge(into.of, other.of).merged;
  return true;
}

Merged merge(std::vector<Feature>& into, const std::vector<Feature>& other) {
  for (size_t i = 0; i < other.size(); ++i) {
    Feature* const known = find_feature(into, other[i].name, i);
    if (known == nullptr) {
      into.push_back(other[i]);
    } else if (!merge(*known, other[i])) {
      return {false, other[i].name};
    }
  }
  return {};
}

namespace {

bool conform_list(Value& value, const Feature& element) {
  const auto fits = [&](FeatureType type) {
    return element.type == type || element.type == FeatureType::kNull;
  };
  const bool integers = value.visit([](const auto& held) {
    return std::is_same_v<std::decay_t<decltype(held)>, std::vector<int64_t>>;
  });
  const bool doubles = value.visit([](const auto& held) {
    return std::is_same_v<std::decay_t<decltype(held)>, std::vector<double>>;
  });
  if (doubles) return fits(FeatureType::kFloat64);
  if (integers) {
    if (element.type == FeatureType::kFloat64) {
      value = Value(value.get<std::vector<double>>());
      return true;
    }
    return fits(FeatureType::kInt64);
  }
  auto list = value.take<Value::List>();
  for (Value& each : list) {
    if (!conform(each, element)) return false;
  }
  value = Value(std::move(list));
  return true;
}

bool conform_struct(Value& value, const Feature& feature) {
  Row row = value.take<Row>();
  const bool fits = conform(row, feature.of,
                            std::make_shared<const std::vector<std::string>>(names_of(feature.of)))
                        .merged;
  value = Value(std::move(row));
  return fits;
}

}  // namespace

bool conform(Value& value, const Feature& feature) {
  if (value.is_null() || feature.type == FeatureType::kNull) return true;
  if (feature.type == FeatureType::kFloat64 && value.type() == FeatureType::kInt64) {
    value = Value(value.get<double>());
    return true;
  }
  if (value.type() != feature.type) return false;
  if (feature.type == FeatureType::kList) return conform_list(value, feature.of[0]);
  if (feature.type == FeatureType::kStruct) return conform_struct(value, feature);
  return true;
}

Merged conform(Row& row, const std::vector<Feature>& features,
               const std::shared_ptr<const std::vector<std::string>>& names) {
  std::vector<Value> values(features.size());
  const std::vector<std::string>& own = row.column_names();
  size_t taken = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto found = i < own.size() && own[i] == features[i].name
                           ? own.begin() + static_cast<std::ptrdiff_t>(i)
                           : std::find(own.begin(), own.end(), features[i].name);
    if (found == own.end()) continue;
    Value& value = row.value(static_cast<size_t>(found - own.begin()));
    if (!conform(value, features[i])) return {false, features[i].name};
    values[i] = std::move(value);
    ++taken;
  }
  if (taken != row.size()) {
    for (const std::string& name : own) {
      if (std::find(names->begin(), names->end(), name) == names->end()) return {false, name};
    }
  }
  row = Row(names, std::move(values));
  return {};
}

std::vector<std::string> names_of(const std::vector<Feature>& features) {
  std::vector<std::string> names;
  names.reserve(features.size());
  for (const Feature& feature : features) names.push_back(feature.name);
  return names;
}

namespace {

void check_features_below(const std::vector<Feature>& features, int level) {
  if (level > kMostNesting)
    fail_argument(fmt::format("features nest more than {} levels", kMostNesting), "features");
  std::set<std::string> names;
  for (const Feature& feature : features) {
    if (!names.insert(feature.name).second)
      fail_argument(
          fmt::format("column '{}' is given twice in features", for_message(feature.name)),
          "features");
    if (feature.type == FeatureType::kList && feature.of.size() != 1)
      fail_argument(fmt::format("the list '{}' in features has {} element types",
                                for_message(feature.name), feature.of.size()),
                    "features", "give one, such as {\"ids\", kList, {{\"\", kInt64}}}");
    check_features_below(feature.of, level + 1);
  }
}

}  // namespace

void check_features(const std::vector<Feature>& features) { check_features_below(features, 1); }

}  // namespace coupler::datasets
