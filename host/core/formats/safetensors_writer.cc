#include "formats/safetensors_writer.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace coupler::safetensors {
namespace {

constexpr uint64_t kHeaderAlignment = 8;
constexpr auto kMaxDataBytes = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

[[noreturn]] void refuse_tensors(const std::string& file, const std::string& rule,
                                 const char* hint) {
  fail_argument(fmt::format("{}: {}", file, rule), file, hint);
}

[[noreturn]] void refuse_tensors(const std::string& file, const TensorEntry& entry,
                                 const std::string& rule, const char* hint) {
  const std::string name = for_message(entry.name);
  fail_argument(fmt::format("{}: tensor '{}': {}", file, name, rule), name, hint);
}

uint64_t checked_bytes(const std::string& file, const TensorEntry& entry) {
  if (entry.name == kMetadataKey)
    refuse_tensors(file, entry, "the format reserves this name for its strings",
                   "rename the tensor");
  if (entry.shape.size() > kMaxRank)
    refuse_tensors(
        file, entry,
        fmt::format("shape has {} dimensions, more than {}", entry.shape.size(), kMaxRank),
        "reshape the tensor");
  for (const int64_t dimension : entry.shape)
    if (dimension < 0)
      refuse_tensors(file, entry, fmt::format("shape has the negative dimension {}", dimension),
                     "use dimensions of 0 or more");
  const auto bytes = tensor_bytes(entry.dtype, entry.shape);
  if (!bytes)
    refuse_tensors(file, entry,
                   fmt::format("shape [{}] × dtype {} is not a whole number of bytes below 2^63",
                               fmt::join(entry.shape, ", "), to_string(entry.dtype)),
                   "elements smaller than a byte must fill whole bytes together");
  return *bytes;
}

// Adds the members of the JSON object one by one, so that a header that grows too long is rejected
// before it takes time and memory.
class HeaderText {
 public:
  explicit HeaderText(const std::string& file) : file_(file) {}

  void add(const std::string& member) {
    text_ += text_.size() == 1 ? "" : ",";
    expect(member.size());
    text_ += member;
  }

  // Throws if this many more bytes would make the header too long.
  void expect(size_t bytes) const {
    if (bytes > kMaxHeaderBytes || text_.size() + bytes > kMaxHeaderBytes)
      refuse_tensors(
          file_, fmt::format("the header needs more than the format's {} bytes", kMaxHeaderBytes),
          "write the tensors to several files, or give them shorter names");
  }

  std::string take() {
    text_ += '}';
    while (text_.size() % kHeaderAlignment != 0) text_ += ' ';
    expect(0);
    return std::move(text_);
  }

 private:
  const std::string& file_;
  std::string text_ = "{";
};

std::string metadata_member(const std::string& file, const HeaderText& header,
                            const Metadata& metadata) {
  std::string strings;
  for (const auto& [key, value] : metadata) {
    header.expect(key.size() + value.size());
    const auto key_text = json_string(key);
    const auto value_text = json_string(value);
    if (!key_text || !value_text)
      refuse_tensors(file,
                     fmt::format("{}: the {} '{}' is not valid UTF-8", kMetadataKey,
                                 key_text ? "value of" : "key", for_message(key)),
                     "encode it as UTF-8");
    strings += fmt::format("{}{}:{}", strings.empty() ? "" : ",", *key_text, *value_text);
  }
  return fmt::format("\"{}\":{{{}}}", kMetadataKey, strings);
}

}  // namespace

Layout lay_out(std::vector<TensorEntry> entries, const Metadata& metadata,
               const std::string& file) {
  if (entries.size() > kMaxTensors)
    refuse_tensors(file,
                   fmt::format("{} tensors exceed the limit of {}", entries.size(), kMaxTensors),
                   "write them to several files");
  // DType has the reference's order, from narrow to wide.
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });

  Layout layout;
  layout.tensors.reserve(entries.size());
  std::set<std::string_view> names;
  HeaderText header(file);
  if (!metadata.empty()) header.add(metadata_member(file, header, metadata));
  for (const TensorEntry& entry : entries) {
    const uint64_t bytes = checked_bytes(file, entry);
    header.expect(entry.name.size());
    const auto name = json_string(entry.name);
    if (!name) refuse_tensors(file, entry, "the name is not valid UTF-8", "rename the tensor");
    if (!names.insert(entry.name).second)
      refuse_tensors(file, entry, "the name is given twice", "give each tensor a unique name");
    const uint64_t begin = layout.data_bytes;
    if (bytes > kMaxDataBytes - begin)
      refuse_tensors(file, entry, "with the preceding tensors, the data exceeds 2^63 - 1 bytes",
                     "write the tensors to several files");
    layout.data_bytes += bytes;
    header.add(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", *name,
                           to_string(entry.dtype), fmt::join(entry.shape, ","), begin,
                           layout.data_bytes));
    layout.tensors.push_back({entry.name, entry.dtype, entry.shape, begin, layout.data_bytes});
  }
  const std::string text = header.take();
  const uint64_t length = text.size();
  layout.head.resize(sizeof length);
  std::memcpy(layout.head.data(), &length, sizeof length);
  layout.head += text;
  return layout;
}

Writer::Writer(const std::string& path, std::vector<TensorEntry> entries, const Metadata& metadata)
    : layout_(lay_out(std::move(entries), metadata, path)), file_(path) {
  file_.write(layout_.head.data(), layout_.head.size());
}

void Writer::fail(const std::string& what) const {
  throw Error(
      ErrorCode::kInternal, fmt::format("{}: {}", file_.path(), what),
      {.subject = file_.path(), .hint = "write every tensor's bytes, in the order of the header"});
}

uint64_t Writer::missing() const { return layout_.tensors[current_].end - got_; }

void Writer::skip_written() {
  while (current_ < layout_.tensors.size() && missing() == 0) ++current_;
}

void Writer::write(std::string_view tensor, const void* data, size_t size) {
  if (size == 0) return;
  skip_written();
  if (current_ == layout_.tensors.size())
    fail(fmt::format("{} bytes were written for tensor '{}' after the last tensor was complete",
                     size, for_message(tensor)));
  const TensorInfo& due = layout_.tensors[current_];
  const uint64_t needed = due.end - due.begin;
  if (tensor != due.name)
    fail(
        fmt::format("bytes were written for tensor '{}', but tensor '{}' is due and has {} of its "
                    "{} bytes",
                    for_message(tensor), for_message(due.name), got_ - due.begin, needed));
  if (size > missing())
    fail(fmt::format("tensor '{}' has {} bytes, but {} were written", for_message(tensor), needed,
                     got_ - due.begin + size));
  file_.write(data, size);
  got_ += size;
}

WrittenFile Writer::finish() {
  skip_written();
  if (current_ < layout_.tensors.size()) {
    const TensorInfo& due = layout_.tensors[current_];
    fail(fmt::format("the file ends, but tensor '{}' has {} of its {} bytes", for_message(due.name),
                     got_ - due.begin, due.end - due.begin));
  }
  return file_.finish();
}

}  // namespace coupler::safetensors
