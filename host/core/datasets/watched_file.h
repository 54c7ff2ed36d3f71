// WatchedFile: a mapped file that notices if it is changed, and what the readers of files share.
// Immutable; any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.h"
#include "base/mapped_file.h"

namespace coupler::datasets {

class WatchedFile {
 public:
  // Throws Error(kIo) if it cannot be opened or mapped.
  static std::shared_ptr<const WatchedFile> open(const std::string& path);

  const std::string& path() const { return file_->path(); }

  // The bytes; as text, without a UTF-8 byte order mark at the start.
  const uint8_t* bytes() const { return file_->data(); }
  uint64_t size() const { return file_->size(); }
  std::string_view text() const { return text_; }

  // Throws Error(kIo) if the file was changed in place since it was opened; one that was replaced
  // or removed is still read as it was. If it is truncated in this instant, the process ends with
  // an error that names it: see guard_mapping.
  void check_unchanged() const;

  // Throws Error(kIo) "path:line[:column]: problem" for a position in the text.
  [[noreturn]] void refuse(uint64_t offset, const std::string& problem, const std::string& hint,
                           bool with_column = false) const;

  // "path:line" of a position in the text.
  std::string place(uint64_t offset) const;

 private:
  struct Stamp {
    uint64_t size = 0;
    int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };

  WatchedFile(std::shared_ptr<const MappedFile> file, UniqueFd descriptor);
  Stamp stamp() const;

  std::shared_ptr<const MappedFile> file_;
  std::shared_ptr<const void> guard_;
  UniqueFd descriptor_;
  Stamp stamp_;
  std::string_view text_;
};

// A range of rows, from begin to before end.
struct RowRange {
  size_t begin = 0, end = 0;
};

// Cuts `rows` rows into ranges, and calls function(index, range) for each on a thread of its own.
// Returns the number of ranges, at least 1. The exception of the first range that has one is
// thrown.
size_t for_each_range(size_t rows, size_t most,
                      const std::function<void(size_t, RowRange)>& function);

// The number of threads with which a file is scanned.
size_t scan_threads();

}  // namespace coupler::datasets
