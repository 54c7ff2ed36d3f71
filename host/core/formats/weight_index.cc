#include "formats/weight_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/safetensors_header.h"

namespace coupler::formats {
namespace {

using safetensors::Problem;

constexpr const char* kMetadata = "metadata";
constexpr const char* kTotalSize = "total_size";
constexpr const char* kWeightMap = "weight_map";
constexpr size_t kMaxFileName = 255;

// Whether it names a file in the same folder, on this and on other systems, not a path elsewhere.
bool is_plain(std::string_view name) {
  return !name.empty() && name.size() <= kMaxFileName && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return c == '/' || c == '\\' || c == ':' || byte < 0x20 || byte == 0x7f;
         });
}

std::string not_plain(std::string_view name) {
  return fmt::format("its file '{}' is not the plain name of a file in the same folder",
                     for_message(name));
}

std::string too_many() {
  return fmt::format("{} names more than {} tensors", kWeightMap, safetensors::kMaxTensors);
}

// The events of one index. levels_ has an entry for each bracket that is open; every handler
// returns false after setting problem_, which ends the parse.
class IndexEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit IndexEvents(WeightIndex& index) : index_(index) {}

  std::optional<Problem> take_problem() {
    if (!problem_ && !mapped_) take_flat();
    return std::move(problem_);
  }

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool number_integer(number_integer_t) override { return scalar("a number"); }
  bool number_float(number_float_t, const string_t&) override { return scalar("a number"); }
  bool binary(binary_t&) override { return scalar("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (levels_.size() == 2 && top_key_ == kMetadata && key_ == kTotalSize)
      index_.total_size = value;
    return scalar("a number");
  }

  bool string(string_t& value) override {
    const bool maybe_flat = levels_.size() == 1 && !mapped_ && top_key_ != kWeightMap;
    if (!in_map() && !maybe_flat) return scalar("a string");
    auto& map = maybe_flat ? flat_ : index_.weight_map;
    if (map.size() == safetensors::kMaxTensors) return fail("", too_many());
    if (!maybe_flat && !is_plain(value)) return fail(key_, not_plain(value));
    map.emplace(key_, std::move(value));
    return true;
  }

  bool start_object(std::size_t) override {
    const bool is_map = levels_.size() == 1 && top_key_ == kWeightMap;
    mapped_ = mapped_ || is_map;
    return open("an object", is_map || levels_.empty());
  }
  bool start_array(std::size_t) override { return open("an array", false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (!levels_.back().insert(name).second)
      return fail(in_map() ? name : "", fmt::format("'{}' is given twice", for_message(name)));
    key_ = std::move(name);
    if (levels_.size() == 1) top_key_ = key_;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // Byte positions count from 1.
    return fail("", fmt::format("it is not valid JSON in UTF-8, at its byte {}: {:.200}", position,
                                error.what()));
  }

 private:
  bool in_map() const { return levels_.size() == 2 && top_key_ == kWeightMap; }

  // A value that is not allowed at its position, or is ignored.
  bool scalar(const char* what) {
    if (levels_.empty()) return fail("", fmt::format("it must be one JSON object, not {}", what));
    if (levels_.size() == 1 && top_key_ == kWeightMap)
      return fail("", fmt::format("{} must be an object, not {}", kWeightMap, what));
    if (in_map()) return fail(key_, fmt::format("its file must be a string, not {}", what));
    other_values_ = other_values_ || levels_.size() == 1;
    return true;
  }

  bool open(const char* what, bool allowed) {
    if (!allowed && !scalar(what)) return false;
    other_values_ = other_values_ || levels_.size() == 1;
    if (levels_.size() == kMaxIndexDepth)
      return fail("", fmt::format("it nests deeper than {} levels", kMaxIndexDepth));
    levels_.emplace_back();
    key_.clear();
    return true;
  }

  bool close() {
    levels_.pop_back();
    key_.clear();
    return true;
  }

  // The older format: the object itself maps tensors to files and holds nothing else.
  void take_flat() {
    if (flat_.empty() || other_values_) {
      fail("", fmt::format("{} is missing", kWeightMap));
      return;
    }
    for (const auto& [tensor, name] : flat_) {
      if (!is_plain(name)) {
        fail(tensor, not_plain(name));
        return;
      }
    }
    index_.weight_map = std::move(flat_);
  }

  bool fail(std::string tensor, std::string rule) {
    problem_ = Problem{std::move(tensor), std::move(rule)};
    return false;
  }

  WeightIndex& index_;
  std::optional<Problem> problem_;
  std::vector<std::set<std::string, std::less<>>> levels_;  // the keys seen; none for arrays
  std::string top_key_;
  std::string key_;  // of the next value; empty in arrays
  bool mapped_ = false;
  std::map<std::string, std::string, std::less<>> flat_;  // strings outside weight_map
  bool other_values_ = false;                             // in the top-level object
};

}  // namespace

WeightIndex parse_weight_index(std::string_view text, const std::string& file) {
  constexpr const char* kHint = "the file is damaged or not an index; copy or write it again";
  const auto broken = [&](const Problem& problem) {
    refuse_file(ErrorCode::kIo, file, problem, kHint);
  };
  if (text.size() > kMaxIndexBytes)
    broken({"", fmt::format("its {} bytes exceed the limit of {}", text.size(), kMaxIndexBytes)});
  // The JSON parser would take it for the end and ignore what follows.
  if (text.find('\0') != std::string_view::npos) broken({"", "it holds a NUL byte"});
  WeightIndex index;
  IndexEvents events(index);
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  if (const auto problem = events.take_problem()) broken(*problem);
  return index;
}

std::string format_weight_index(const WeightIndex& index, const std::string& file) {
  const auto wrong = [&](const Problem& problem) {
    refuse_file(ErrorCode::kInvalidArgument, file, problem,
                "name tensors and files in UTF-8, and files without a folder");
  };
  if (index.weight_map.size() > safetensors::kMaxTensors) wrong({"", too_many()});
  nlohmann::json metadata = nlohmann::json::object();
  if (index.total_size) metadata[kTotalSize] = *index.total_size;
  nlohmann::json weights = nlohmann::json::object();
  for (const auto& [tensor, name] : index.weight_map) {
    if (!json_string(tensor)) wrong({tensor, "the name is not valid UTF-8"});
    if (!is_plain(name) || !json_string(name)) wrong({tensor, not_plain(name)});
    weights[tensor] = name;
  }
  const nlohmann::json document = {{kMetadata, std::move(metadata)},
                                   {kWeightMap, std::move(weights)}};
  std::string text = document.dump(2, ' ', true) + "\n";
  if (text.size() > kMaxIndexBytes)
    wrong({"", fmt::format("its {} bytes exceed the limit of {}", text.size(), kMaxIndexBytes)});
  return text;
}

namespace {

[[noreturn]] void refuse_shard(const SizedTensor& tensor, const char* rule, const char* hint) {
  const std::string name = for_message(tensor.name);
  fail_argument(fmt::format("tensor '{}': {}", name, rule), name, hint);
}

}  // namespace

WeightFiles divide_weights(const std::vector<SizedTensor>& tensors, uint64_t limit) {
  WeightFiles weights;
  std::set<std::string_view> names;
  std::vector<std::string> open;
  uint64_t open_bytes = 0;  // never more than the limit
  for (const SizedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      refuse_shard(tensor, "the name is given twice", "give each tensor a unique name");
    if (tensor.bytes > std::numeric_limits<uint64_t>::max() - weights.total_size)
      refuse_shard(tensor, "with the preceding tensors there are more than 2^64 - 1 bytes",
                   "check the sizes of the tensors");
    weights.total_size += tensor.bytes;
    if (tensor.bytes > limit) {
      weights.files.push_back({"", {tensor.name}});
      continue;
    }
    if (tensor.bytes > limit - open_bytes) {
      weights.files.push_back({"", std::exchange(open, {})});
      open_bytes = 0;
    }
    open.push_back(tensor.name);
    open_bytes += tensor.bytes;
  }
  if (!open.empty()) weights.files.push_back({"", std::move(open)});
  const size_t count = weights.files.size();
  for (size_t i = 0; i < count; ++i)
    weights.files[i].name = count == 1
                                ? "model.safetensors"
                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
  return weights;
}

WeightIndex index_of(const WeightFiles& weights) {
  WeightIndex index;
  index.total_size = weights.total_size;
  for (const WeightFile& file : weights.files)
    for (const std::string& tensor : file.tensors) index.weight_map[tensor] = file.name;
  return index;
}

}  // namespace coupler::formats
