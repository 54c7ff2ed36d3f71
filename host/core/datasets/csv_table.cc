#include "datasets/csv_table.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "datasets/features.h"

namespace coupler::datasets {
namespace {

// The fields of a record; they refer to the file's text or to `unescaped`.
struct Record {
  std::vector<std::string_view> fields;
  std::deque<std::string> unescaped;
};

// Finds the record that starts at `at`, and returns where the next one does. record: null if only
// that is wanted; its memory is reused.
uint64_t parse_record(const WatchedFile& file, const CsvDialect& dialect, uint64_t at,
                      Record* record) {
  const std::string_view text = file.text();
  const auto ends_field = [&](char c) { return c == dialect.delimiter || c == '\n' || c == '\r'; };
  if (record != nullptr) {
    record->fields.clear();
    record->unescaped.clear();
  }
  while (true) {
    size_t start = at;
    size_t end;
    std::string* joined = nullptr;
    if (at < text.size() && text[at] == dialect.quote) {
      ++start;
      for (at = start;; at += 2) {
        at = text.find(dialect.quote, at);
        if (at == std::string_view::npos)
          file.refuse(start - 1, "a quote is not closed", "double a quote inside of quotes", true);
        if (at + 1 >= text.size() || text[at + 1] != dialect.quote) break;
        if (record == nullptr) continue;
        if (joined == nullptr) joined = &record->unescaped.emplace_back();
        joined->append(text.substr(start, at + 1 - start));
        start = at + 2;
      }
      end = at++;
      const size_t tail = at;  // text after the closing quote belongs to the field, as in Arrow
      while (at < text.size() && !ends_field(text[at])) ++at;
      if (record != nullptr && (joined != nullptr || at > tail)) {
        if (joined == nullptr) joined = &record->unescaped.emplace_back();
        joined->append(text.substr(start, end - start));
        joined->append(text.substr(tail, at - tail));
      }
    } else {
      while (at < text.size() && !ends_field(text[at])) ++at;
      end = at;
    }
    if (record != nullptr)
      record->fields.push_back(joined != nullptr ? std::string_view(*joined)
                                                 : text.substr(start, end - start));
    if (at >= text.size()) return text.size();
    if (text[at++] == dialect.delimiter) continue;
    if (text[at - 1] == '\r' && at < text.size() && text[at] == '\n') ++at;
    return at;
  }
}

// Also skips blank lines.
uint64_t next_record(const WatchedFile& file, uint64_t at) {
  const std::string_view text = file.text();
  while (at < text.size() && (text[at] == '\n' || text[at] == '\r')) ++at;
  return at;
}

// Those of Arrow, whose list follows pandas'.
bool is_null_text(std::string_view text) {
  constexpr std::array<std::string_view, 17> kNulls = {
      "",        "#N/A", "#N/A N/A", "#NA",  "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND",
      "1.#QNAN", "N/A",  "NA",       "NULL", "NaN",     "n/a",      "nan",  "null"};
  return text.size() <= 8 && std::find(kNulls.begin(), kNulls.end(), text) != kNulls.end();
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

std::optional<bool> to_bool(std::string_view text) {
  for (const std::string_view yes : {"1", "true", "True", "TRUE"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"0", "false", "False", "FALSE"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

// What the values of a column may be, in the order of preference.
constexpr unsigned kMayBeInt64 = 1, kMayBeBool = 2, kMayBeFloat64 = 4, kSeen = 8;
constexpr unsigned kAnything = kMayBeInt64 | kMayBeBool | kMayBeFloat64;

void look_at(std::string_view field, unsigned& may_be) {
  if ((may_be & kAnything) == 0 || is_null_text(field)) return;
  may_be |= kSeen;
  const std::string_view text = trimmed(field);
  if ((may_be & kMayBeInt64) != 0 && !to_number<int64_t>(text)) may_be &= ~kMayBeInt64;
  if ((may_be & kMayBeBool) != 0 && !to_bool(text)) may_be &= ~kMayBeBool;
  // An integer is a number, too, and needs no second look.
  if ((may_be & kMayBeInt64) == 0 && (may_be & kMayBeFloat64) != 0 && !to_number<double>(text))
    may_be &= ~kMayBeFloat64;
}

FeatureType type_of(unsigned may_be) {
  if ((may_be & kSeen) == 0) return FeatureType::kNull;
  if ((may_be & kMayBeInt64) != 0) return FeatureType::kInt64;
  if ((may_be & kMayBeBool) != 0) return FeatureType::kBool;
  return (may_be & kMayBeFloat64) != 0 ? FeatureType::kFloat64 : FeatureType::kString;
}

// The value of a field, none if it is not of the type.
std::optional<Value> value_of(std::string_view field, FeatureType type) {
  if (type == FeatureType::kString) return Value(field);
  if (is_null_text(field)) return Value();
  const std::string_view text = trimmed(field);
  switch (type) {
    case FeatureType::kInt64:
      if (const auto number = to_number<int64_t>(text)) return Value(*number);
      break;
    case FeatureType::kFloat64:
      if (const auto number = to_number<double>(text)) return Value(*number);
      break;
    case FeatureType::kBool:
      if (const auto flag = to_bool(text)) return Value(*flag);
      break;
    default:
      break;
  }
  return std::nullopt;
}

// Fills the record with row's fields, as many as there are columns, all UTF-8.
void read_fields(const CsvFile& csv, size_t row, Record& record) {
  const uint64_t start = csv.starts[row];
  const uint64_t end = parse_record(*csv.file, csv.dialect, start, &record);
  const std::string_view text = csv.file->text().substr(start, end - start);
  const size_t columns = csv.dialect.column_names.size();
  if (record.fields.size() != columns) {
    const auto lines = std::count(text.begin(), text.end(), '\n') - (text.ends_with('\n') ? 1 : 0);
    csv.file->refuse(
        start,
        fmt::format("has {} fields{}, but there are {} columns", record.fields.size(),
                    lines > 0 ? fmt::format(" on {} lines, joined by quotes", lines + 1) : "",
                    columns),
        "give every row one field for each column; the options delimiter and quote say what "
        "separates fields");
  }
  if (!valid_utf8(text)) csv.file->refuse(start, "is not valid UTF-8", "convert the file to UTF-8");
}

class CsvTable : public Table {
 public:
  CsvTable(CsvFile csv, std::vector<Feature> features)
      : csv_(std::move(csv)),
        features_(std::move(features)),
        names_(std::make_shared<const std::vector<std::string>>(names_of(features_))) {}

  const std::vector<Feature>& features() const override { return features_; }
  size_t size() const override { return csv_.starts.size(); }
  std::string place(size_t row) const override { return csv_.file->place(csv_.starts[row]); }

  Row read(size_t row) const override {
    csv_.file->check_unchanged();
    Record record;
    read_fields(csv_, row, record);
    std::vector<Value> values;
    values.reserve(features_.size());
    for (size_t i = 0; i < features_.size(); ++i) {
      auto value = value_of(record.fields[i], features_[i].type);
      if (!value)
        csv_.file->refuse(csv_.starts[row],
                          fmt::format("column '{}' is not {}: {}", for_message(features_[i].name),
                                      to_string(features_[i]), for_message(record.fields[i])),
                          "change features, or the file");
      values.push_back(std::move(*value));
    }
    return {names_, std::move(values)};
  }

 private:
  CsvFile csv_;
  std::vector<Feature> features_;
  std::shared_ptr<const std::vector<std::string>> names_;
};

}  // namespace

CsvFile open_csv(const std::string& path, const CsvDialect& dialect) {
  CsvFile csv{WatchedFile::open(path), dialect, {}};
  uint64_t at = next_record(*csv.file, 0);
  if (csv.dialect.column_names.empty()) {
    if (at >= csv.file->text().size())
      throw Error(ErrorCode::kIo, fmt::format("{} is empty", path),
                  {.subject = path,
                   .hint = "a CSV file needs a row with the names of its columns, or the option "
                           "column_names"});
    Record header;
    const uint64_t start = at;
    at = parse_record(*csv.file, dialect, at, &header);
    std::set<std::string_view> names;
    for (const std::string_view name : header.fields) {
      if (!names.insert(name).second)
        csv.file->refuse(start, fmt::format("the column '{}' occurs twice", for_message(name)),
                         "rename one, or give column_names");
      if (!valid_utf8(name))
        csv.file->refuse(start, "is not valid UTF-8", "convert the file to UTF-8");
      csv.dialect.column_names.emplace_back(name);
    }
  }
  while ((at = next_record(*csv.file, at)) < csv.file->text().size()) {
    csv.starts.push_back(at);
    at = parse_record(*csv.file, dialect, at, nullptr);
  }
  return csv;
}

std::vector<Feature> infer_csv(const CsvFile& csv) {
  const std::vector<std::string>& names = csv.dialect.column_names;
  std::vector<std::vector<unsigned>> found(scan_threads(),
                                           std::vector<unsigned>(names.size(), kAnything));
  for_each_range(csv.starts.size(), found.size(), [&](size_t index, RowRange range) {
    std::vector<unsigned> may_be = found[index];
    Record record;
    for (size_t row = range.begin; row < range.end; ++row) {
      read_fields(csv, row, record);
      for (size_t i = 0; i < may_be.size(); ++i) look_at(record.fields[i], may_be[i]);
    }
    found[index] = std::move(may_be);
  });
  std::vector<Feature> features;
  for (size_t i = 0; i < names.size(); ++i) {
    unsigned all = kAnything, seen = 0;
    for (const auto& may_be : found) {
      all &= may_be[i];
      seen |= may_be[i] & kSeen;
    }
    features.push_back({names[i], type_of((all & kAnything) | seen), {}});
  }
  return features;
}

FeatureType merge_csv(FeatureType one, FeatureType other) {
  Feature merged{"", one, {}};
  return merge(merged, Feature{"", other, {}}) ? merged.type : FeatureType::kString;
}

std::shared_ptr<const Table> csv_table(CsvFile csv, std::vector<Feature> features) {
  return std::make_shared<CsvTable>(std::move(csv), std::move(features));
}

}  // namespace coupler::datasets
