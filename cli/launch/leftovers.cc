#include "cli/launch/leftovers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/process_identity.h"
#include "base/unique_fd.h"
#include "cli/launch/mpi_folder.h"
#include "cli/launch/open_mpi_leftovers.h"
#include "cli/process/folder_use.h"
#include "rendezvous/job_file.h"
#include "store/local_socket.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

// Prefixes from store/local_socket.h, followed by the machine, process, start time and a
// number. The hidden sockets have a name only for a moment.
constexpr std::string_view kSocket = "store-", kHiddenSocket = ".coupler-store-";
constexpr std::string_view kJobFile = "job-";  // from rendezvous/hosted_store.h

// A process that has ended does not run, even if it has not been reaped yet.
bool is_running(const ProcessIdentity& process) {
  const char state = process.started.empty() ? '\0' : state_of(process);
  return state != 0 && state != 'Z' && state != 'X';
}

// Reads the process from a name that ends in a process id, "-" and a start time.
ProcessIdentity process_in(const std::string& name) {
  const auto start = name.rfind('-');
  const auto id = start == std::string::npos || start == 0 ? start : name.rfind('-', start - 1);
  if (id == std::string::npos) {
    return {};
  }
  return {std::atol(name.c_str() + id + 1), name.substr(start + 1)};
}

uint64_t bytes_of(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    return 0;
  }
  uint64_t bytes = static_cast<uint64_t>(status.st_blocks) * 512;
  if (S_ISDIR(status.st_mode)) {
    for (const auto& entry : entries_of(path, "")) {
      bytes += bytes_of(entry);
    }
  }
  return bytes;
}

// Connects through the descriptor, as the path may be too long for a socket address.
bool somebody_listens(const fs::path& path) {
  const UniqueFd file(::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!file) {
    return errno != ENOENT;
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  fmt::format_to_n(address.sun_path, sizeof address.sun_path - 1, "/proc/self/fd/{}", file.get());
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
             0 ||
         errno != ECONNREFUSED;
}

// Skips the folder of a running launcher, which may have created it but not locked it yet.
void look_at_mpi_folder(Leftovers& found, const fs::path& path, Then then) {
  const auto owner = process_in(path.filename().string());
  if (is_running(owner)) {
    return;
  }
  const UniqueFd use = use_folder(path);
  if (use && is_last_user(use, Others::kLook)) {
    add_leftover(found, path, fmt::format("Open MPI's files of the launcher {}", owner.pid), then);
  }
}

void look_at_socket(Leftovers& found, const fs::path& path, Then then) {
  const auto name = path.filename().string();
  const auto owner = process_in(name.substr(0, name.rfind('-')));
  if (is_own(path, S_IFSOCK) && owner.pid > 0 && !is_running(owner) && !somebody_listens(path)) {
    add_leftover(found, path, fmt::format("the socket of a store of process {}", owner.pid), then);
  }
}

std::string last_line(const std::string& text) {
  const auto end = text.find_last_not_of('\n') + 1;  // 0: there is none
  const auto begin = end == 0 ? 0 : text.rfind('\n', end - 1) + 1;
  return text.substr(begin, end - begin);
}

// An unfinished job file has its writer's process id as its extension.
void look_at_job_file(Leftovers& found, const fs::path& path, Then then) {
  if (!is_own(path, S_IFREG)) {
    return;
  }
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto job = parse_job_file(text);
  ProcessIdentity host;
  std::istringstream(last_line(text)) >> host.pid >> host.started;
  if (!job || host.started.empty()) {
    const auto draft = path.extension().string();
    host = draft.size() < 2 ? own_identity() : identity_of(std::atol(draft.c_str() + 1));
  }
  if (!is_running(host) && !(job && is_local(job->host) && somebody_listens(job->host))) {
    add_leftover(found, path, fmt::format("the job file of a store of process {}", host.pid), then);
  }
}

std::string setting(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

// The folders that private_runtime_folder() may have used; does not create them.
std::set<fs::path> runtime_folders() {
  const auto own = fmt::format("coupler-{}", ::geteuid());
  std::set<fs::path> folders = {fs::path("/tmp") / own};
  if (const auto session = setting("XDG_RUNTIME_DIR"); !session.empty()) {
    folders.insert(fs::path(session) / "coupler");
  }
  if (const auto temporary = setting("TMPDIR"); !temporary.empty()) {
    folders.insert(fs::path(temporary) / own);
  }
  return folders;
}

}  // namespace

std::vector<fs::path> entries_of(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> entries;
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    if (entry->path().filename().string().starts_with(prefix)) {
      entries.push_back(entry->path());
    }
  }
  return entries;
}

bool is_own(const fs::path& path, unsigned type) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && (status.st_mode & S_IFMT) == type &&
         status.st_uid == ::geteuid();
}

void add_leftover(Leftovers& found, const fs::path& path, std::string what, Then then) {
  Leftover one{.path = path.string(), .what = std::move(what), .bytes = bytes_of(path)};
  if (then == Then::kRemove) {
    std::error_code failure;
    fs::remove_all(path, failure);
    one.failure = failure ? failure.message() : "";
  }
  found.push_back(std::move(one));
}

Leftovers leftovers_of_launchers(Then then) {
  Leftovers found;
  for (const auto& path : entries_of(MpiFolder::kParent, "")) {
    const auto name = path.filename().string();
    if (name.starts_with(MpiFolder::kPrefix)) {
      look_at_mpi_folder(found, path, then);
    } else if (name.starts_with(kHiddenSocket)) {
      look_at_socket(found, path, then);
    }
  }
  return found;
}

Leftovers all_leftovers(Then then) {
  Leftovers found = leftovers_of_launchers(then);
  std::set<fs::path> passing = {"/tmp", setting("TMPDIR"), setting("XDG_RUNTIME_DIR")};
  passing.erase("");
  passing.erase(MpiFolder::kParent);
  for (const auto& folder : passing) {
    for (const auto& path : entries_of(folder, kHiddenSocket)) {
      look_at_socket(found, path, then);
    }
  }
  for (const auto& folder : runtime_folders()) {
    if (!is_own(folder, S_IFDIR)) {
      continue;
    }
    for (const auto& path : entries_of(folder, kJobFile)) {  // first: they name the sockets
      look_at_job_file(found, path, then);
    }
    for (const auto& path : entries_of(folder, kSocket)) {
      look_at_socket(found, path, then);
    }
  }
  add_open_mpi_leftovers(found, then);
  return found;
}

}  // namespace coupler::cli
