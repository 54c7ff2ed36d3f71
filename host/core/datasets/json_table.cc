#include "datasets/json_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "datasets/features.h"

namespace coupler::datasets {
namespace {

constexpr std::string_view kBlank = " \t\r\n";
constexpr const char* kJsonHint = "give one object a line, or an array of objects";

// Builds a Value of the parser's events.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_array(std::size_t) override { return open(true); }
  bool start_object(std::size_t) override { return open(false); }
  bool key(string_t& name) override {
    frames_.back().names.push_back(std::move(name));
    return true;
  }
  bool end_array() override {
    Value list(std::move(frames_.back().values));
    frames_.pop_back();
    return add(std::move(list));
  }
  bool end_object() override {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    if (!check_names(frame.names)) return false;
    return add(Row(std::make_shared<const std::vector<std::string>>(std::move(frame.names)),
                   std::move(frame.values)));
  }
  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::json::exception& error) override {
    problem_ = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error while …"
    for (const std::string_view mark : {"] ", ": "}) {
      const size_t found = problem_.find(mark);
      if (found != std::string::npos) problem_.erase(0, found + mark.size());
    }
    byte_ = byte == 0 ? 0 : byte - 1;
    return false;
  }

  Value result_;
  std::string problem_;
  size_t byte_ = 0;

 private:
  struct Frame {
    bool is_list;
    Value::List values;
    std::vector<std::string> names;
  };

  bool add(Value value) {
    if (frames_.empty()) {
      result_ = std::move(value);
    } else {
      frames_.back().values.push_back(std::move(value));
    }
    return true;
  }

  bool open(bool is_list) {
    if (frames_.size() >= static_cast<size_t>(kMostNesting)) {
      problem_ = fmt::format("has more than {} levels of brackets", kMostNesting);
      return false;
    }
    frames_.push_back({is_list, {}, {}});
    return true;
  }

  // The last of two equal keys would win.
  bool check_names(const std::vector<std::string>& names) {
    std::vector<std::string_view> sorted(names.begin(), names.end());
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice == sorted.end()) return true;
    problem_ = fmt::format("has the key '{}' twice", for_message(*twice));
    return false;
  }

  std::vector<Frame> frames_;
};

// The bytes of a row.
std::string_view text_of(const JsonFile& json, size_t row) {
  const std::string_view text = json.file->text();
  const uint64_t start = json.starts[row];
  if (!json.array) {
    const size_t newline = text.find('\n', start);
    return text.substr(start, newline == std::string_view::npos ? newline : newline - start);
  }
  // Up to the comma or bracket before what follows.
  const size_t limit = row + 1 < json.starts.size() ? json.starts[row + 1] : text.size();
  const size_t last = text.find_last_not_of(kBlank, limit - 1);
  return text.substr(start, last - start);
}

Row parse_row(const JsonFile& json, size_t row) {
  const std::string_view text = text_of(json, row);
  const uint64_t start = json.starts[row];
  // The parser would take it for the end and ignore what follows.
  if (const size_t found = text.find('\0'); found != std::string_view::npos)
    json.file->refuse(start + found, "contains a NUL byte", kJsonHint, true);
  ValueBuilder builder;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    if (!valid_utf8(text))
      json.file->refuse(start + builder.byte_, "is not valid UTF-8", "convert the file to UTF-8",
                        true);
    json.file->refuse(start + builder.byte_, for_message(builder.problem_), kJsonHint, true);
  }
  if (builder.result_.type() != FeatureType::kStruct)
    json.file->refuse(start,
                      fmt::format("is not an object: {}", for_message(to_string(builder.result_))),
                      kJsonHint);
  return builder.result_.take<Row>();
}

// Widens the features by the rows of a range.
void scan_rows(const JsonFile& json, RowRange range, std::vector<Feature>& features) {
  for (size_t row = range.begin; row < range.end; ++row) {
    const Row parsed = parse_row(json, row);
    if (const Merged result = merge(features, parsed); !result.merged) {
      const auto known =
          std::find_if(features.begin(), features.end(),
                       [&](const Feature& feature) { return feature.name == result.column; });
      json.file->refuse(
          json.starts[row],
          fmt::format("column '{}' is {} so far, but here it has {}", for_message(result.column),
                      to_string(*known), for_message(to_string(parsed[result.column]))),
          "give a column one type, or null, in all rows");
    }
  }
}

// The closing quote of the string that opens here; npos if there is none.
size_t string_end(std::string_view text, size_t at) {
  ++at;
  while (at < text.size()) {
    at = text.find_first_of("\"\\", at);
    if (at == std::string_view::npos || text[at] == '"') return at;
    at += 2;  // with what is escaped
  }
  return std::string_view::npos;
}

// Finds the starts of an array's elements; `at` is its opening bracket.
void index_array(JsonFile& json, size_t at) {
  const std::string_view text = json.file->text();
  const size_t opened = at++;
  const auto incomplete = [&] {
    json.file->refuse(opened, "the array that begins here is not closed",
                      "the file may be cut off");
  };
  while (true) {
    at = text.find_first_not_of(kBlank, at);
    if (at == std::string_view::npos) incomplete();
    if (text[at] == ']' && json.starts.empty()) break;
    if (text[at] != '{') json.file->refuse(at, "an object is expected here", kJsonHint, true);
    json.starts.push_back(at);
    int64_t depth = 0;
    while (true) {
      at = text.find_first_of("\"{}[],", at);
      if (at == std::string_view::npos) incomplete();
      const char c = text[at];
      if (depth == 0 && (c == ',' || c == ']')) break;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      if (c == '"') at = string_end(text, at);
      if (at == std::string_view::npos) incomplete();
      ++at;
    }
    if (text[at] == ']') break;
    ++at;
  }
  const size_t after = text.find_first_not_of(kBlank, at + 1);
  if (after != std::string_view::npos)
    json.file->refuse(after, "text after the array's end", kJsonHint, true);
}

class JsonTable : public Table {
 public:
  JsonTable(JsonFile json, std::vector<Feature> features)
      : json_(std::move(json)),
        features_(std::move(features)),
        names_(std::make_shared<const std::vector<std::string>>(names_of(features_))) {}

  const std::vector<Feature>& features() const override { return features_; }
  size_t size() const override { return json_.starts.size(); }
  std::string place(size_t row) const override { return json_.file->place(json_.starts[row]); }

  Row read(size_t row) const override {
    json_.file->check_unchanged();
    Row parsed = parse_row(json_, row);
    const Merged result = conform(parsed, features_, names_);
    if (!result.merged) refuse_value(row, result.column);
    return parsed;
  }

 private:
  [[noreturn]] void refuse_value(size_t row, const std::string& column) const {
    const auto found = std::find_if(features_.begin(), features_.end(),
                                    [&](const Feature& feature) { return feature.name == column; });
    if (found == features_.end())
      json_.file->refuse(json_.starts[row],
                         fmt::format("there is no column '{}' in features", for_message(column)),
                         "add it to features, or load the file without them");
    json_.file->refuse(
        json_.starts[row],
        fmt::format("column '{}' is not {}: {}", for_message(column), to_string(*found),
                    for_message(to_string(parse_row(json_, row)[column]))),
        "change features, or the file");
  }

  JsonFile json_;
  std::vector<Feature> features_;
  std::shared_ptr<const std::vector<std::string>> names_;
};

}  // namespace

JsonFile open_json(const std::string& path) {
  JsonFile json{WatchedFile::open(path), {}, false};
  const std::string_view text = json.file->text();
  size_t at = text.find_first_not_of(kBlank);
  if (at == std::string_view::npos) return json;
  if (text[at] == '[') {
    json.array = true;
    index_array(json, at);
    return json;
  }
  for (at = 0; at < text.size();) {
    const size_t newline = text.find('\n', at);
    const size_t end = newline == std::string_view::npos ? text.size() : newline;
    if (text.substr(at, end - at).find_first_not_of(kBlank) != std::string_view::npos)
      json.starts.push_back(at);
    at = end + 1;
  }
  return json;
}

std::vector<Feature> infer_json(const JsonFile& json) {
  std::vector<std::vector<Feature>> found(scan_threads());
  std::vector<RowRange> ranges(found.size());
  const size_t count =
      for_each_range(json.starts.size(), found.size(), [&](size_t index, RowRange range) {
        ranges[index] = range;
        scan_rows(json, range, found[index]);
      });
  std::vector<Feature> features = found[0];
  for (size_t i = 1; i < count; ++i) {
    std::vector<Feature> merged = features;
    // If they exclude each other, the range is read again for the line at which they do.
    if (!merge(merged, found[i]).merged) scan_rows(json, ranges[i], features);
    features = std::move(merged);
  }
  return features;
}

std::shared_ptr<const Table> json_table(JsonFile json, std::vector<Feature> features) {
  return std::make_shared<JsonTable>(std::move(json), std::move(features));
}

}  // namespace coupler::datasets
