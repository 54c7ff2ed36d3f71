#include "cli/process/input_relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "cli/process/output_relay.h"

namespace coupler::cli {

InputRelay::InputRelay() {
  if (::isatty(0) == 0) {
    return;
  }
  Pipe pipe = make_output_pipe();
  ::fcntl(pipe.reading.get(), F_SETFL, 0);  // the rank's end blocks; ours does not
  ::fcntl(pipe.writing.get(), F_SETFL, O_NONBLOCK);
  child_end_ = std::move(pipe.reading);
  writing_ = std::move(pipe.writing);
}

bool InputRelay::add_poll(std::vector<pollfd>& entries) const {
  if (!writing_) {
    return false;
  }
  if (!buffer_.empty()) {
    entries.push_back({writing_.get(), POLLOUT, 0});
    return true;
  }
  if (std::chrono::steady_clock::now() < pause_until_) {
    return false;
  }
  entries.push_back({0, POLLIN, 0});
  return true;
}

void InputRelay::pump(const pollfd& entry) {
  if (entry.revents == 0) {
    return;
  }
  if (entry.fd == 0) {
    if (::tcgetpgrp(0) != ::getpgrp()) {
      // In the background, the terminal's input belongs to another program: check again later.
      pause_until_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      return;
    }
    char text[4096];
    const ssize_t size = ::read(0, text, sizeof text);
    if (size > 0) {
      buffer_.assign(text, static_cast<size_t>(size));
    } else if (size == 0 || errno != EINTR) {
      writing_.reset();  // passes the end of file on to the rank
    }
    return;
  }
  const ssize_t size = ::write(writing_.get(), buffer_.data(), buffer_.size());
  if (size >= 0) {
    buffer_.erase(0, static_cast<size_t>(size));
  } else if (errno != EAGAIN && errno != EINTR) {
    writing_.reset();  // rank 0 has stopped reading
  }
}

}  // namespace coupler::cli
