#include "formats/weight_index.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "formats/safetensors_header.h"

namespace coupler::formats {
namespace {

constexpr const char* kMetadata = "metadata";
constexpr const char* kTotalSize = "total_size";
constexpr const char* kWeightMap = "weight_map";
constexpr size_t kMaxFileName = 255;

// What is wrong with an index: the tensor concerned (may be empty) and the rule it breaks.
struct Problem {
  std::string tensor;
  std::string rule;
};

[[noreturn]] void refuse_index(ErrorCode code, const std::string& file, const Problem& problem,
                               const char* hint) {
  const std::string tensor = for_message(problem.tensor);
  throw Error(code,
              tensor.empty() ? fmt::format("{}: {}", file, problem.rule)
                             : fmt::format("{}: tensor '{}': {}", file, tensor, problem.rule),
              {.subject = tensor.empty() ? file : tensor, .hint = hint});
}

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
    refuse_index(ErrorCode::kIo, file, problem, kHint);
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
    refuse_index(ErrorCode::kInvalidArgument, file, problem,
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

using Names = std::vector<std::string>;

[[noreturn]] void refuse_shard(const SizedTensor& tensor, const char* rule, const char* hint) {
  const std::string name = for_message(tensor.name);
  throw Error(ErrorCode::kInvalidArgument, fmt::format("tensor '{}': {}", name, rule),
              {.subject = name, .hint = hint});
}

void check(const std::vector<SizedTensor>& tensors) {
  std::set<std::string_view> names;
  for (const SizedTensor& tensor : tensors)
    if (!names.insert(tensor.name).second)
      refuse_shard(tensor, "the name is given twice", "give each tensor a unique name");
}

// The tensors that share memory with an earlier one, by the storage's number, in the order in which
// the storages first occur.
class SharedTensors {
 public:
  // False if it is the first of its storage or does not share.
  bool add(const SizedTensor& tensor) {
    if (!tensor.storage) return false;
    const auto [found, first] = places_.try_emplace(*tensor.storage, groups_.size());
    if (first)
      groups_.push_back({tensor.name});
    else
      groups_[found->second].push_back(tensor.name);
    return !first;
  }

  // Appends each group's other tensors to the file that has its first one.
  void join(std::vector<Names>& files) const {
    std::map<std::string_view, size_t> file_of;
    for (const Names& group : groups_)
      if (group.size() > 1) file_of.emplace(group.front(), 0);
    for (size_t i = 0; i < files.size(); ++i)
      for (const std::string& name : files[i])
        if (const auto first = file_of.find(name); first != file_of.end()) first->second = i;
    for (const Names& group : groups_) {
      if (group.size() == 1) continue;
      Names& file = files[file_of.at(group.front())];
      file.insert(file.end(), group.begin() + 1, group.end());
    }
  }

 private:
  std::map<uint64_t, size_t> places_;
  std::vector<Names> groups_;
};

}  // namespace

WeightFiles divide_weights(const std::vector<SizedTensor>& tensors, uint64_t limit) {
  check(tensors);
  WeightFiles weights;
  SharedTensors shared;
  std::vector<Names> files;
  Names open;
  uint64_t open_bytes = 0;  // never more than the limit
  for (const SizedTensor& tensor : tensors) {
    if (shared.add(tensor)) continue;
    if (tensor.bytes > std::numeric_limits<uint64_t>::max() - weights.total_size)
      refuse_shard(tensor, "with the preceding tensors there are more than 2^64 - 1 bytes",
                   "check the sizes of the tensors");
    weights.total_size += tensor.bytes;
    if (tensor.bytes > limit) {
      files.push_back({tensor.name});
      continue;
    }
    if (tensor.bytes > limit - open_bytes) {
      files.push_back(std::exchange(open, {}));
      open_bytes = 0;
    }
    open.push_back(tensor.name);
    open_bytes += tensor.bytes;
  }
  if (!open.empty()) files.push_back(std::move(open));
  shared.join(files);

  for (size_t i = 0; i < files.size(); ++i) {
    std::string name = files.size() == 1
                           ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    weights.files.push_back({std::move(name), std::move(files[i])});
  }
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
