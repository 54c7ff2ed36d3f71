#include "rendezvous/hosted_store.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "base/fail.h"
#include "base/log.h"
#include "base/process_identity.h"
#include "rendezvous/job_file.h"
#include "store/served_store.h"

namespace coupler {
namespace {

// Reads which process wrote a job file; false if the file is incomplete.
bool read_host(const std::string& path, ProcessIdentity& host) {
  std::ifstream file(path);
  std::string line;
  for (int i = 0; i < 6; ++i) {
    if (!std::getline(file, line)) {
      return false;
    }
  }
  return static_cast<bool>(std::istringstream(line) >> host.pid >> host.started);
}

std::string job_path(const std::string& job_id) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(job_id.data());
  const auto name = to_hex(hmac_sha256(Bytes32{}, {bytes, job_id.size()})).substr(0, 24);
  return private_runtime_folder() + "/job-" + name;
}

void write_private_file(const std::string& path, const std::string& text) {
  const UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write the job file {}: {}", path, last_failure()),
                {.subject = path, .hint = "check the folder's space and owner"});
  }
}

// Puts the file in place but never replaces that of a living job.
void publish(const std::string& path, const std::string& text) {
  const auto draft = fmt::format("{}.{}", path, ::getpid());
  ::unlink(draft.c_str());
  write_private_file(draft, text);
  int failure = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    failure = ::link(draft.c_str(), path.c_str()) == 0 ? 0 : errno;
    ProcessIdentity host;
    if (failure != EEXIST || (read_host(path, host) && is_alive(host))) {
      break;
    }
    log(LogLevel::kInfo, "rendezvous", "replaced a stale job file: " + path);
    ::unlink(path.c_str());
  }
  ::unlink(draft.c_str());
  if (failure == EEXIST) {
    ProcessIdentity host;
    read_host(path, host);
    throw Error(
        ErrorCode::kConfig,
        fmt::format("process {} already hosts the store of a job with the same address", host.pid),
        {.subject = path, .hint = "start this job with another MASTER_PORT, or end the other one"});
  }
  if (failure != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write the job file {}: {}", path,
                            std::generic_category().message(failure)),
                {.subject = path, .hint = "check the folder's space and owner"});
  }
}

StoreServerOptions in_private_folder(StoreServerOptions options) {
  options.host = private_runtime_folder();
  return options;
}

// Rank 0's store; the job file exists as long as it does.
class HostedStore : public ServedStore {
 public:
  HostedStore(const std::string& path, const Bytes32& secret, const BackendConfig& backend)
      : ServedStore(secret, in_private_folder(server_options(backend)), backend.timeout),
        path_(path) {
    const ProcessIdentity host = own_identity();
    publish(path_,
            fmt::format("{}{} {}\n", format_job_file({server().host(), server().port(), secret}),
                        host.pid, host.started));
  }
  ~HostedStore() override { ::unlink(path_.c_str()); }
  HostedStore(const HostedStore&) = delete;
  HostedStore& operator=(const HostedStore&) = delete;

 private:
  const std::string path_;
};

}  // namespace

std::string private_runtime_folder() {
  const auto setting = [](const char* name) {
    const char* value = ::secure_getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const auto session = setting("XDG_RUNTIME_DIR");
  const auto temporary = setting("TMPDIR");
  auto folder = !session.empty() ? session + "/coupler"
                                 : fmt::format("{}/coupler-{}",
                                               temporary.empty() ? "/tmp" : temporary, ::geteuid());
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot create the folder {}: {}", folder, last_failure()),
                {.subject = folder, .hint = "set TMPDIR to a folder you can write to"});
  }
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
      status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("{} is not a folder that you own and no one else can enter", folder),
                {.subject = folder, .hint = "remove it, or set TMPDIR to a folder of your own"});
  }
  return folder;
}

std::shared_ptr<Store> host_or_join_store(const std::string& job_id, int rank,
                                          const BackendConfig& backend) {
  const auto path = job_path(job_id);
  const auto timeout = backend.timeout;
  if (rank == 0) {
    return std::make_shared<HostedStore>(path, random_bytes32(), backend);
  }
  const auto deadline = deadline_after(timeout);
  while (true) {
    ProcessIdentity host;
    if (read_host(path, host) && is_alive(host)) {
      const JobAddress job = read_job_file(path);
      auto store = std::make_shared<StoreClient>(job.host, job.port, job.secret, timeout);
      store->join(rank);
      return store;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(ErrorCode::kTimeout,
                  fmt::format("rank 0 did not open the job's store within {} s ({} is missing)",
                              std::chrono::duration<double>(timeout).count(), path),
                  {.rank = 0,
                   .subject = path,
                   .hint = "look at rank 0's messages; all ranks must run on one machine, as the "
                           "same user and with the same TMPDIR"});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace coupler
