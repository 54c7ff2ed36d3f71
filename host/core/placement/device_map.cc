#include "placement/device_map.h"

#include <coupler/device_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"
#include "placement/module_tree.h"

namespace coupler {

DeviceMap::DeviceMap(std::initializer_list<Entry> entries) {
  for (const auto& [path, device] : entries) {
    if (index_.find(path) != index_.end())
      fail_argument(fmt::format("the device map has '{}' twice", for_message(path)), path,
                    "give each path once");
    set(path, device);
  }
}

void DeviceMap::set(const std::string& path, MapDevice device) {
  const auto [place, fresh] = index_.try_emplace(path, entries_.size());
  if (fresh)
    entries_.emplace_back(path, device);
  else
    entries_[place->second].second = device;
}

std::optional<MapDevice> DeviceMap::device_of(std::string_view path) const {
  const auto found = placement::find_nearest(index_, path);
  return found == index_.end() ? std::nullopt : std::optional(entries_[found->second].second);
}

MapDevice::MapDevice(int index) : index_(index) {
  if (index < 0)
    fail_argument(fmt::format("there is no accelerator {}", index), std::to_string(index),
                  "number accelerators from 0");
}

MapDevice::MapDevice(const char* name) : MapDevice(std::string_view(name)) {}

MapDevice::MapDevice(std::string_view name) : index_(static_cast<int>(Place::kCpu)) {
  if (name == "cpu") return;
  if (name == "disk") {
    index_ = static_cast<int>(Place::kDisk);
    return;
  }
  std::string_view digits = name;
  if (digits.starts_with("cuda:")) digits.remove_prefix(5);
  index_ = to_number<int>(digits).value_or(-1);
  if (index_ < 0)
    fail_argument(fmt::format("'{}' is not a device", for_message(name)), for_message(name),
                  "give the number of an accelerator from 0, \"cpu\" or \"disk\"");
}

std::string MapDevice::to_string() const {
  if (is_cpu()) return "cpu";
  return is_disk() ? "disk" : std::to_string(index_);
}

namespace {

[[noreturn]] void refuse_json(const std::string& subject, const std::string& problem) {
  fail_argument("device map: " + problem, subject,
                "give one JSON object of paths and devices: the number of an accelerator, \"cpu\" "
                "or \"disk\"");
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
    return no_device("'" + for_message(value) + "'");
  }

  bool start_object(std::size_t) override {
    if (inside_) return no_device("an object");
    return inside_ = true;
  }
  bool key(string_t& name) override {
    key_ = name;
    if (!met_.insert(key_).second)
      refuse_json(key_, fmt::format("'{}' is given twice", for_message(key_)));
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
    refuse_json(key_, fmt::format("'{}': {} is not a device", for_message(key_), what));
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
    if (!quoted)
      refuse_json(for_message(path), fmt::format("'{}' is not UTF-8", for_message(path)));
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

namespace {

struct TableRow {
  std::string first, last;  // paths; last is empty for a single entry
  MapDevice device;
  uint64_t bytes = 0, each = 0;
};

bool all_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "a.b.7" as "a.b." and 7.
std::optional<std::pair<std::string, int64_t>> split_number(const std::string& path) {
  const size_t dot = path.rfind('.');
  const size_t begin = dot == std::string::npos ? 0 : dot + 1;
  if (!all_digits(std::string_view(path).substr(begin)) || path.size() - begin > 9)
    return std::nullopt;
  return std::pair(path.substr(0, begin), std::stoll(path.substr(begin)));
}

bool follows(const TableRow& row, const TableRow& next) {
  const auto a = split_number(row.last.empty() ? row.first : row.last),
             b = split_number(next.first);
  return a && b && a->first == b->first && a->second + 1 == b->second &&
         row.device == next.device && row.each == next.each;
}

std::string name_of(const TableRow& row) {
  if (row.first.empty()) return "(the model)";
  return row.last.empty() ? row.first
                          : fmt::format("{} … {}", row.first, split_number(row.last)->second);
}

// The width in characters, not bytes ("…" counts as one).
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string bar(double share) {
  constexpr int kCells = 24;
  const int full = std::clamp(static_cast<int>(std::lround(share * kCells)), 0, kCells);
  std::string text;
  for (int i = 0; i < kCells; ++i) text += i < full ? "█" : "░";
  return text;
}

}  // namespace

std::string placement::table_of(const placement::ModuleTree& tree, const DeviceMap& map,
                                const DeviceMapOptions& options) {
  placement::check_map(tree, map);
  const placement::TreeSizes sizes(tree, options);
  std::map<std::string, uint64_t> bytes;  // of each entry
  for (const auto& entry : map.entries()) bytes[entry.first] = 0;
  std::map<MapDevice, uint64_t> used;
  for (const auto& [device, most] : options.max_memory.devices()) used[device] = 0;
  for (size_t t = 0; t < tree.tensors.size(); ++t) {
    if (sizes.owner(t) != t) continue;
    placement::find_nearest(bytes, tree.tensors[t].name)->second += sizes.bytes(t);
    used[*map.device_of(tree.tensors[t].name)] += sizes.bytes(t);
  }

  std::vector<TableRow> rows;
  for (const auto& [path, device] : map.entries()) {
    const TableRow row{path, "", device, bytes[path], bytes[path]};
    if (!rows.empty() && follows(rows.back(), row)) {
      rows.back().last = path;
      rows.back().bytes += row.bytes;
    } else {
      rows.push_back(row);
    }
  }
  size_t width = 4;
  for (const TableRow& row : rows) width = std::max(width, width_of(name_of(row)));
  std::string text = fmt::format("{:<{}}  device  {:>10}\n", "part", width, "size");
  for (const TableRow& row : rows)
    text += fmt::format("{:<{}}  {:<6}  {:>10}\n", name_of(row), width, row.device.to_string(),
                        format_byte_size(row.bytes));
  text += "\n";
  uint64_t fullest = 1;
  for (const auto& [device, taken] : used) fullest = std::max(fullest, taken);
  for (const auto& [device, taken] : used) {
    const auto most = device.is_disk() ? std::nullopt : options.max_memory.of(device);
    const double share = static_cast<double>(taken) /
                         static_cast<double>(std::max<uint64_t>(most ? *most : fullest, 1));
    text += fmt::format("{:<4}  {}  {:>10}{}\n", device.to_string(), bar(share),
                        format_byte_size(taken),
                        most ? fmt::format(" of {}", format_byte_size(*most)) : "");
  }
  return text;
}

namespace {

// parse_byte_size rejects 0; here it turns a device off.
uint64_t parse_limit(std::string_view text) {
  const std::string what = "max_memory";
  const size_t digits = std::min(text.find_first_not_of('0'), text.size());
  const bool zero = digits > 0 && (digits == text.size() || text[digits] == ' ' ||
                                   (text[digits] >= 'A' && text[digits] <= 'T'));
  if (!zero) return parse_byte_size(text, what);
  parse_byte_size("1" + std::string(text.substr(digits)), what);  // its unit
  return 0;
}

std::optional<uint64_t> number_in(const char* file) {
  std::ifstream in(file);
  uint64_t number = 0;
  return in >> number ? std::optional(number) : std::nullopt;
}

std::optional<uint64_t> mem_available() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  for (uint64_t number = 0; in >> key >> number; std::getline(in, unit))
    if (key == "MemAvailable:") return number * 1024;
  return std::nullopt;
}

}  // namespace

ByteCount::ByteCount(const char* text) : bytes_(parse_limit(text)) {}
ByteCount::ByteCount(const std::string& text) : bytes_(parse_limit(text)) {}

uint64_t ByteCount::checked(bool negative, uint64_t bytes) {
  if (negative || bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    fail_argument(fmt::format("max_memory: {} bytes is not a valid amount of memory",
                              static_cast<int64_t>(bytes)),
                  "max_memory", "give a number from 0, or a string such as 10GiB");
  return bytes;
}

MaxMemory::MaxMemory(std::initializer_list<std::pair<MapDevice, ByteCount>> devices) {
  for (const auto& [device, bytes] : devices)
    if (!bytes_.emplace(device, bytes.bytes()).second)
      fail_argument(fmt::format("max_memory: device {} is given twice", device.to_string()),
                    device.to_string(), "give each device once");
}

std::optional<uint64_t> MaxMemory::of(MapDevice device) const {
  const auto found = bytes_.find(device);
  return found == bytes_.end() ? std::nullopt : std::optional(found->second);
}

uint64_t available_memory() {
  uint64_t available = mem_available().value_or(0);
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, *limit - std::min(*limit, *used));
  return available;
}

MaxMemory get_max_memory(const std::vector<std::pair<int, uint64_t>>& free_accelerator_memory) {
  MaxMemory result;
  for (const auto& [index, bytes] : free_accelerator_memory) result.set(index, bytes);
  result.set(MapDevice::cpu(), available_memory());
  return result;
}

}  // namespace coupler
