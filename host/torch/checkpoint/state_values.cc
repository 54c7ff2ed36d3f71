#include "checkpoint/state_values.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

namespace coupler::checkpoint {

using nlohmann::json;

std::string values_as_json(const StateDict& state) {
  json values = json::object();
  for (const auto& [key, value] : state.values()) {
    std::visit(
        [&, &key = key](const auto& it) {
          if constexpr (std::is_same_v<std::decay_t<decltype(it)>, double>) {
            values[key] = std::isfinite(it) ? json(it) : json{{"number", fmt::format("{}", it)}};
          } else {
            values[key] = it;
          }
        },
        value);
  }
  return values.dump();
}

void set_values(StateDict& state, const std::string& text) {
  const json saved = json::parse(text);
  for (const auto& [key, value] : saved.items()) {
    if (value.is_boolean()) {
      state.set(key, value.get<bool>());
    } else if (value.is_number_integer()) {
      state.set(key, value.get<int64_t>());
    } else if (value.is_number()) {
      state.set(key, value.get<double>());
    } else if (value.is_object()) {
      const auto number = value.at("number").get<std::string>();
      state.set(key, std::strtod(number.c_str(), nullptr));
    } else {
      state.set(key, value.get<std::string>());
    }
  }
}

}  // namespace coupler::checkpoint
