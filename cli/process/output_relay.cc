#include "cli/process/output_relay.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace coupler::cli {

namespace {

constexpr size_t kMaxLines = 20;
constexpr size_t kLongestLine = 2000;
// A rank that writes endlessly must not keep the launcher from its other work.
constexpr int kReadsPerPump = 16;

}  // namespace

void LineTail::add(std::string_view text) {
  for (const char c : text) {
    if (c == '\n') {
      lines_.push_back(std::exchange(current_, {}));
      redraw_ = false;
      if (lines_.size() > kMaxLines) {
        lines_.pop_front();
      }
    } else if (c == '\r') {
      redraw_ = true;
    } else {
      if (std::exchange(redraw_, false)) {
        current_.clear();
      }
      if (current_.size() < kLongestLine) {
        current_ += c;
      }
    }
  }
}

std::deque<std::string> LineTail::lines() const {
  auto lines = lines_;
  if (!current_.empty()) {
    lines.push_back(current_);
  }
  return lines;
}

OutputRelay::OutputRelay(UniqueFd from, int to, std::string prefix, UniqueFd copy)
    : from_(std::move(from)), to_(to), copy_(std::move(copy)), prefix_(std::move(prefix)) {}

void OutputRelay::pump() {
  char buffer[65536];
  for (int i = 0; i < kReadsPerPump && from_; ++i) {
    const ssize_t size = ::read(from_.get(), buffer, sizeof buffer);
    if (size > 0) {
      const std::string_view text(buffer, static_cast<size_t>(size));
      tail_.add(text);
      if (copy_) {
        write_all(copy_.get(), text);
      }
      forward(text);
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      from_.reset();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void OutputRelay::finish() {
  pump();
  if (!partial_.empty()) {
    write_all(to_, prefix_ + std::exchange(partial_, {}) + "\n");
  }
}

void OutputRelay::forward(std::string_view text) {
  if (prefix_.empty()) {
    write_all(to_, text);
    return;
  }
  std::string out;
  while (true) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      partial_ += text;
      break;
    }
    out += prefix_;
    out += std::exchange(partial_, {});
    out += text.substr(0, end + 1);
    text.remove_prefix(end + 1);
  }
  write_all(to_, out);
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size >= 0) {
      text.remove_prefix(static_cast<size_t>(size));
    } else if (errno == EAGAIN) {
      pollfd entry{fd, POLLOUT, 0};  // we inherited a non-blocking descriptor
      ::poll(&entry, 1, 1000);
    } else if (errno != EINTR) {
      return;
    }
  }
}

UniqueFd open_log(const std::string& path) {
  if (path.empty()) {
    return {};
  }
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd) {
    throw Error(ErrorCode::kIo, fmt::format("cannot write the log {}: {}", path, errno_message()),
                {.subject = path, .hint = "choose another folder with --log-dir"});
  }
  return fd;
}

Pipe make_output_pipe() {
  Pipe pipe = make_pipe();
  ::fcntl(pipe.reading.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

void make_log_folder(const std::string& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (!failure && ::access(folder.c_str(), W_OK | X_OK) != 0) {
    failure.assign(errno, std::generic_category());
  }
  if (failure) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write logs to the folder {}: {}", folder, failure.message()),
                {.subject = folder, .hint = "choose another folder with --log-dir"});
  }
}

std::string log_path(const std::string& folder, int rank) {
  return folder.empty() ? "" : fmt::format("{}/rank-{}.log", folder, rank);
}

}  // namespace coupler::cli
