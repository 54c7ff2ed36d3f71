#include "datasets/watched_file.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace coupler::datasets {

std::shared_ptr<const WatchedFile> WatchedFile::open(const std::string& path) {
  auto file = MappedFile::open(path);
  UniqueFd descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor)
    throw Error(ErrorCode::kIo, fmt::format("cannot open {}: {}", path, errno_message()),
                {.subject = path, .hint = {}});
  return std::shared_ptr<const WatchedFile>(
      new WatchedFile(std::move(file), std::move(descriptor)));
}

WatchedFile::WatchedFile(std::shared_ptr<const MappedFile> file, UniqueFd descriptor)
    : file_(std::move(file)),
      guard_(guard_mapping(file_)),
      descriptor_(std::move(descriptor)),
      stamp_(stamp()),
      text_(reinterpret_cast<const char*>(file_->data()), file_->size()) {
  // The two were opened one after the other.
  stamp_.size = file_->size();
  check_unchanged();
  if (text_.starts_with("\xef\xbb\xbf")) text_.remove_prefix(3);
}

WatchedFile::Stamp WatchedFile::stamp() const {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0)
    throw Error(ErrorCode::kIo, fmt::format("cannot examine {}: {}", path(), errno_message()),
                {.subject = path(), .hint = {}});
  return {static_cast<uint64_t>(status.st_size), status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

void WatchedFile::check_unchanged() const {
  if (stamp() == stamp_) return;
  throw Error(ErrorCode::kIo, fmt::format("{} was changed after it was opened", path()),
              {.subject = path(),
               .hint = "start again; to change a file while it is read, write a new one and rename "
                       "it"});
}

std::string WatchedFile::place(uint64_t offset) const {
  return fmt::format(
      "{}:{}", path(),
      1 + std::count(text_.begin(), text_.begin() + static_cast<int64_t>(offset), '\n'));
}

void WatchedFile::refuse(uint64_t offset, const std::string& problem, const std::string& hint,
                         bool with_column) const {
  std::string where = place(offset);
  if (with_column) {
    const size_t newline = offset == 0 ? std::string_view::npos : text_.rfind('\n', offset - 1);
    const uint64_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    where += fmt::format(":{}", offset - line_start + 1);
  }
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", where, problem),
              {.subject = path(), .hint = hint});
}

size_t scan_threads() { return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 8); }

size_t for_each_range(size_t rows, size_t most,
                      const std::function<void(size_t, RowRange)>& function) {
  constexpr size_t kLeastRows = 4096;  // fewer are not worth a thread
  const size_t ranges = std::clamp<size_t>(rows / kLeastRows, 1, most);
  std::vector<std::exception_ptr> errors(ranges);
  const auto run = [&](size_t index) {
    try {
      function(index, {rows * index / ranges, rows * (index + 1) / ranges});
    } catch (...) {
      errors[index] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;  // joined at the end of this block
    for (size_t i = 1; i < ranges; ++i) threads.emplace_back(run, i);
    run(0);
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return ranges;
}

}  // namespace coupler::datasets
