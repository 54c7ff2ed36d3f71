#include "track/append_file.h"

#include <coupler/tracker.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace coupler {
namespace {

std::string reason(int number) { return std::generic_category().message(number); }

[[noreturn]] void throw_not_writable(const std::string& path, int number) {
  throw Error(ErrorCode::kIo, fmt::format("{} cannot be written: {}", path, reason(number)),
              {.subject = path,
               .hint = "set training.logging_dir or training.project_dir to a writable folder"});
}

}  // namespace

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

void AppendFile::open(const std::string& folder, const std::string& name) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_not_writable(folder, error.value());
  path_ = (std::filesystem::path(folder) / name).string();
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  struct stat status {};
  if (fd_ < 0 || ::fstat(fd_, &status) != 0) throw_not_writable(path_, errno);
  found_ = static_cast<size_t>(status.st_size);
  size_ = found_;
  // A process killed in the middle of a write leaves half a line.
  char last = '\n';
  if (found_ > 0 && ::pread(fd_, &last, 1, status.st_size - 1) == 1 && last != '\n') {
    pending_ += '\n';
  }
}

void AppendFile::flush() {
  size_t done = 0;
  while (done < pending_.size()) {
    const ssize_t written = ::write(fd_, pending_.data() + done, pending_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int number = written < 0 ? errno : ENOSPC;
      if (done > 0) restore_size();
      throw TrackerUnavailable(
          fmt::format("{} cannot be written: {}", path_, reason(number)),
          {.subject = path_,
           .hint = number == ENOSPC || number == EDQUOT ? "free some space on its disk" : ""});
    }
    done += static_cast<size_t>(written);
  }
  size_ += done;
  pending_.clear();
}

void AppendFile::restore_size() const {
  // If this fails too, the next attempt follows half a piece; nothing better can be done.
  if (::ftruncate(fd_, static_cast<off_t>(size_)) != 0) return;
}

void AppendFile::close() {
  if (fd_ < 0) return;
  flush();
  ::fsync(fd_);
  ::close(fd_);
  fd_ = -1;
}

}  // namespace coupler
