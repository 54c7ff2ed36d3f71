#include "rendezvous/host_store.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/network.h"
#include "base/process.h"
#include "plugin/resolve.h"
#include "rendezvous/job_file.h"
#include "store/server.h"

namespace coupler::rendezvous {
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
  return private_runtime_folder() + "/job-" + to_hex(hmac_sha256({}, job_id)).substr(0, 24);
}

void write_private_file(const std::string& path, const std::string& text) {
  const UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd || !write_fully(fd.get(), text)) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write the job file {}: {}", path, errno_message()),
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
    fail_config(
        fmt::format("process {} already hosts the store of a job with the same address", host.pid),
        path, "start this job with another MASTER_PORT, or end the other one");
  }
  if (failure != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write the job file {}: {}", path,
                            std::generic_category().message(failure)),
                {.subject = path, .hint = "check the folder's space and owner"});
  }
}

store::StoreServerOptions in_private_folder(store::StoreServerOptions options) {
  options.host = private_runtime_folder();
  return options;
}

// Rank 0's store; the job file exists as long as it does.
class HostedStore : public store::RankZeroStore {
 public:
  HostedStore(const std::string& path, const Bytes32& secret, const config::BackendConfig& backend)
      : store::RankZeroStore(secret, in_private_folder(server_options(backend)), backend.timeout),
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
                fmt::format("cannot create the folder {}: {}", folder, errno_message()),
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

std::shared_ptr<store::Store> host_or_join_store(const std::string& job_id, int rank,
                                                 const config::BackendConfig& backend) {
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
      auto store = std::make_shared<store::StoreClient>(job.host, job.port, job.secret, timeout);
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

namespace {

constexpr size_t kMinSecretBytes = 32;
constexpr size_t kMaxSecretBytes = 65536;

constexpr const char* kMakeSecret =
    "make one, `(umask 077; head -c 32 /dev/urandom > job.secret)`, and copy it to every machine, "
    "or start the job with torchrun";

std::string of_several(const ProcessInfo& process) {
  return fmt::format("{} of {} ranks run on this machine", process.local_world_size,
                     process.world_size);
}

void check_interface_is_set(const ProcessInfo& process, const config::BackendConfig& backend) {
  if (backend.interface.empty()) {
    fail_config(
        fmt::format("{}, but backend.interface, through which they reach each other, is not set",
                    of_several(process)),
        "backend.interface",
        fmt::format("name the interface that the machines share; this machine has {}",
                    list_network_addresses()));
  }
}

// Ranks of a restarted job must not meet those left over from an earlier start.
Bytes32 secret_of_this_start(const std::string& path) {
  const char* count = std::getenv("COUPLER_RESTART_COUNT");
  return read_secret_file(path, fmt::format("start {}", count == nullptr ? "0" : count));
}

// Where rank 0 listens.
std::string listening_address(const ProcessInfo& process, const config::Config& config) {
  if (!config.backend.interface.empty()) return bind_address(config.backend.interface);
  if (config.launch.all_interfaces) return "0.0.0.0";
  const auto found =
      look_up_host(process.store_host, process.store_port, deadline_after(config.backend.timeout));
  if (!found.list) {
    fail_config(fmt::format("MASTER_ADDR={} cannot be resolved on this machine: {}",
                            process.store_host, found.failure),
                "MASTER_ADDR", "set it to the address of rank 0's machine");
  }
  const auto own = network_addresses();
  for (const addrinfo* host = found.list.get(); host != nullptr; host = host->ai_next) {
    auto address = numeric_address(host->ai_addr);
    if (std::any_of(own.begin(), own.end(),
                    [&](const NetworkAddress& entry) { return entry.address == address; })) {
      return address;
    }
  }
  fail_config(fmt::format("MASTER_ADDR={} is not an address of rank 0's machine, which has {}",
                          process.store_host, list_network_addresses()),
              "MASTER_ADDR", "set it to an address of the machine that runs rank 0");
}

}  // namespace

Bytes32 read_secret_file(const std::string& path, std::string_view purpose) {
  const std::string text =
      read_private_file("launch.secret_file", path, kMaxSecretBytes, kMakeSecret);
  if (text.size() < kMinSecretBytes) {
    fail_config(fmt::format("launch.secret_file {} holds {} bytes, but a secret needs at least {}",
                            path, text.size(), kMinSecretBytes),
                "launch.secret_file", kMakeSecret);
  }
  return derive_key(Digest().update(text).finish(), purpose);
}

std::shared_ptr<store::Store> host_or_join_through(store::Store& agent, const ProcessInfo& process,
                                                   const config::Config& config) {
  check_interface_is_set(process, config.backend);
  const std::string key = "coupler/store";
  const bool has_file = !config.launch.secret_file.empty();
  if (process.rank == 0) {
    const Bytes32 secret =
        has_file ? secret_of_this_start(config.launch.secret_file) : random_bytes32();
    store::StoreServerOptions options = store::RankZeroStore::server_options(config.backend);
    options.host = bind_address(config.backend.interface);
    options.tls = config.launch.tls;
    options.members = static_cast<size_t>(process.world_size);
    auto store = std::make_shared<store::RankZeroStore>(secret, options, config.backend.timeout);
    agent.set(key, format_job_file({.host = options.host,
                                    .port = store->server().port(),
                                    .secret = has_file ? Bytes32{} : secret,
                                    .tls = options.tls}));
    return store;
  }
  const auto text = agent.get(key, config.backend.timeout);
  const auto job = text ? parse_job_file(*text) : std::nullopt;
  if (!job) {
    throw Error(ErrorCode::kTimeout,
                "rank 0 did not publish the address of the job's store in torchrun's store",
                {.rank = 0,
                 .subject = key,
                 .hint = "look at rank 0's messages; raise backend.timeout if startup takes "
                         "longer"});
  }
  const Bytes32 secret = has_file ? secret_of_this_start(config.launch.secret_file) : job->secret;
  auto store = std::make_shared<store::StoreClient>(job->host, job->port, secret,
                                                    config.backend.timeout, job->tls);
  store->join(process.rank);
  return store;
}

std::shared_ptr<store::Store> host_or_join_network_store(const ProcessInfo& process,
                                                         const config::Config& config) {
  if (process.store_host.empty()) {
    fail_config(fmt::format("{}, but MASTER_ADDR and MASTER_PORT, where they meet, are not set",
                            of_several(process)),
                "MASTER_ADDR",
                "set both on every machine: an address of rank 0's machine and a free port");
  }
  if (config.launch.secret_file.empty()) {
    fail_config(
        fmt::format("{}, but launch.secret_file, which lets them trust each other, is not set",
                    of_several(process)),
        "launch.secret_file", kMakeSecret);
  }
  // The processes of an MPI launch reach each other by themselves.
  if (config.backend.interface.empty() && !plugin::needs_mpi_launch(config.backend)) {
    check_interface_is_set(process, config.backend);
  }
  const Bytes32 secret = secret_of_this_start(config.launch.secret_file);
  if (process.rank != 0) {
    auto store = std::make_shared<store::StoreClient>(
        process.store_host, process.store_port, secret, config.backend.timeout, config.launch.tls,
        store::StoreClient::Start::kWhenItListens);
    store->join(process.rank);
    return store;
  }
  store::StoreServerOptions options = store::RankZeroStore::server_options(config.backend);
  options.host = listening_address(process, config);
  options.all_interfaces = config.launch.all_interfaces;
  options.port = process.store_port;
  options.tls = config.launch.tls;
  options.members = static_cast<size_t>(process.world_size);
  return std::make_shared<store::RankZeroStore>(secret, options, config.backend.timeout,
                                                is_wildcard(options.host) ? "127.0.0.1" : "");
}

}  // namespace coupler::rendezvous
