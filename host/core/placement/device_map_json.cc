#include <coupler/device_map.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file_text.h"
#include "base/json_text.h"

namespace coupler {
namespace {

[[noreturn]] void refuse_json(const std::string& subject, const std::string& problem) {
  throw Error(ErrorCode::kInvalidArgument, "device map: " + problem,
              {.subject = subject,
               .hint = "give one JSON object of paths and devices: the number of an accelerator, "
                       "\"cpu\" or \"disk\""});
}

// Accepts one object of scalars; any other event ends the parse with an error.
class MapEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  DeviceMap map;

  bool null() override { return no_device("null"); }
  bool boolean(bool) override { return no_device("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override { return no_device(text); }
  bool binary(binary_t&) override { return no_device("binary data"); }
  bool number_integer(number_integer_t value) override { return no_device(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (!inside_ || value > std::numeric_limits<int>::max())
      return no_device(std::to_string(value));
    return take(static_cast<int>(value));
  }
  bool string(string_t& value) override {
    if (value == "cpu" || value == "disk")
      return inside_ ? take(MapDevice(value)) : no_device(value);
    return no_device("'" + shown(value) + "'");
  }

  bool start_object(std::size_t) override {
    if (inside_) return no_device("an object");
    return inside_ = true;
  }
  bool key(string_t& name) override {
    key_ = name;
    if (!met_.insert(key_).second)
      refuse_json(key_, fmt::format("'{}' is given twice", shown(key_)));
    return true;
  }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return no_device("a list"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    refuse_json("", fmt::format("not valid JSON at byte {}", position));
  }

 private:
  bool take(MapDevice device) {
    map.set(key_, device);
    return true;
  }
  bool no_device(const std::string& what) const {
    if (!inside_) refuse_json("", fmt::format("it must be an object, not {}", what));
    refuse_json(key_, fmt::format("'{}': {} is not a device", shown(key_), what));
  }

  std::string key_;
  std::set<std::string> met_;
  bool inside_ = false;
};

}  // namespace

std::string DeviceMap::to_json() const {
  std::string text = "{";
  for (const auto& [path, device] : entries_) {
    const auto quoted = json_string(path);
    if (!quoted) refuse_json(shown(path), fmt::format("'{}' is not UTF-8", shown(path)));
    text += fmt::format(
        "{}\n  {}: {}", text.size() > 1 ? "," : "", *quoted,
        device.is_accelerator() ? device.to_string() : "\"" + device.to_string() + "\"");
  }
  return text + (entries_.empty() ? "}" : "\n}");
}

DeviceMap DeviceMap::from_json(std::string_view text) {
  // The parser would take it for the end and ignore what follows.
  if (text.find('\0') != std::string_view::npos) refuse_json("", "it contains a NUL byte");
  MapEvents events;
  nlohmann::json::sax_parse(text, &events);
  return std::move(events.map);
}

}  // namespace coupler
