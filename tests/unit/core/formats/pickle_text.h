// Prints the content of a pickle as Python would, for tests to compare.
#pragma once

#include <fmt/format.h>

#include <string>

#include "formats/pickle.h"

namespace coupler::testing {

inline std::string hex(char byte) { return fmt::format("{:02x}", static_cast<uint8_t>(byte)); }

inline std::string text_of(const pickle::Value& value) {
  using pickle::Kind;
  const auto join = [&](std::string open, const std::string& close) {
    bool first = true;
    for (const auto* item : value.items()) {
      if (!first) open += ", ";
      first = false;
      open += text_of(*item);
    }
    return open + close;
  };
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.boolean() ? "True" : "False";
    case Kind::kInt:
      return std::to_string(value.integer());
    case Kind::kDouble:
      return fmt::format("{}", value.real());
    case Kind::kString:
      return fmt::format("'{}'", value.text());
    case Kind::kBytes: {
      std::string bytes = "b'";
      for (const char c : value.text())
        bytes += c >= 0x20 && c < 0x7f ? std::string(1, c) : "\\x" + hex(c);
      return bytes + "'";
    }
    case Kind::kList:
      return join("[", "]");
    case Kind::kTuple:
      return join("(", value.items().size() == 1 ? ",)" : ")");
    case Kind::kDict: {
      std::string text = "{";
      for (size_t i = 0; i < value.items().size(); i += 2)
        text += (i == 0 ? "" : ", ") + text_of(*value.items()[i]) + ": " +
                text_of(*value.items()[i + 1]);
      return text + "}";
    }
    case Kind::kGlobal:
      return fmt::format("<{}>", value.text());
    case Kind::kStorage: {
      const auto& storage = value.storage();
      return fmt::format("<storage {} on {}: {} bytes of {}>", storage.key, storage.location,
                         storage.bytes, storage.type ? storage.type->name : "anything");
    }
    case Kind::kTensor: {
      const auto& tensor = value.tensor();
      return fmt::format("<{} ({}) by ({}) from {} in {}>", tensor.type->name,
                         fmt::join(tensor.shape, ", "), fmt::join(tensor.strides, ", "),
                         tensor.offset, tensor.storage->key);
    }
  }
  return "?";
}

}  // namespace coupler::testing
