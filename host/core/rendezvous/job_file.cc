#include "rendezvous/job_file.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <charconv>
#include <system_error>
#include <vector>

#include "base/fail.h"
#include "base/private_file.h"
#include "store/local_socket.h"

namespace coupler {
namespace {

constexpr std::string_view kTitle = "coupler job 2";

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const auto end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

}  // namespace

std::optional<JobAddress> parse_job_file(std::string_view text) {
  const auto lines = split_lines(text);
  if (lines.size() < 5 || lines[0] != kTitle || lines[1].empty()) {
    return std::nullopt;
  }
  JobAddress job;
  job.host = lines[1];
  job.tls = lines[4] == "tls";
  const auto* end = lines[2].data() + lines[2].size();
  const auto [stop, status] = std::from_chars(lines[2].data(), end, job.port);
  const bool is_port = is_local(job.host) ? job.port == 0 : job.port > 0 && job.port < 65536;
  const bool good = status == std::errc() && stop == end && is_port &&
                    from_hex(lines[3], job.secret) && (lines[4] == "plain" || job.tls);
  return good ? std::optional(job) : std::nullopt;
}

std::string format_job_file(const JobAddress& job) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n", kTitle, job.host, job.port, to_hex(job.secret),
                     job.tls ? "tls" : "plain");
}

UniqueFd make_job_memory_file(const JobAddress& job) {
  UniqueFd fd(::memfd_create("coupler-job", MFD_CLOEXEC));
  const auto text = format_job_file(job);
  // A new memory file is readable by everyone.
  if (!fd || ::fchmod(fd.get(), 0600) != 0 ||
      ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot create the job's memory file: {}", last_failure()));
  }
  return fd;
}

JobAddress read_job_file(const std::string& path) {
  constexpr size_t kMost = 512;
  const auto text = read_private_file(
      "the job file", path, kMost,
      "it exists while the job's launcher runs: start the program with `coupler launch`");
  const auto job = parse_job_file(text);
  if (!job) {
    throw Error(
        ErrorCode::kConfig,
        fmt::format("the job file {} does not hold a job's address and secret", path),
        {.subject = path, .hint = "start the program with `coupler launch` of the same version"});
  }
  return *job;
}

}  // namespace coupler
