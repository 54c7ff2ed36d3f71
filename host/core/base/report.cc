#include "base/report.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>

namespace coupler {
namespace {

constexpr std::string_view kPrefix = "coupler: error: ";

std::atomic<bool> line_open{false};

iovec piece(std::string_view text) {
  // writev only reads, but its struct has no const.
  return {const_cast<char*>(text.data()), text.size()};
}

}  // namespace

void report_error(std::string_view text) noexcept {
  const int saved_errno = errno;
  std::array<iovec, 4> pieces = {piece("\n"), piece(kPrefix), piece(text), piece("\n")};
  size_t first = line_open.exchange(false) ? 0 : 1;
  while (first < pieces.size()) {
    ssize_t written =
        writev(STDERR_FILENO, &pieces[first], static_cast<int>(pieces.size() - first));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;  // standard error is gone
    while (first < pieces.size() && static_cast<size_t>(written) >= pieces[first].iov_len) {
      written -= static_cast<ssize_t>(pieces[first].iov_len);
      ++first;
    }
    if (first == pieces.size()) break;
    pieces[first].iov_base = static_cast<char*>(pieces[first].iov_base) + written;
    pieces[first].iov_len -= static_cast<size_t>(written);
  }
  errno = saved_errno;
}

void set_error_line_open(bool open) noexcept { line_open.store(open, std::memory_order_relaxed); }

}  // namespace coupler
