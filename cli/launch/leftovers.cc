#include "cli/launch/leftovers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "base/process.h"
#include "cli/launch/host_file.h"
#include "cli/launch/mpi_folder.h"
#include "cli/launch/open_mpi_folders.h"
#include "cli/machine/text_values.h"
#include "cli/process/folder_use.h"
#include "rendezvous/job_file.h"
#include "store/link.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

// Whether this user owns it and it has that type (S_IFDIR, S_IFREG …); does not follow links.
bool is_own(const fs::path& path, unsigned type) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && (status.st_mode & S_IFMT) == type &&
         status.st_uid == ::geteuid();
}

uint64_t bytes_of(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    return 0;
  }
  uint64_t bytes = static_cast<uint64_t>(status.st_blocks) * 512;
  if (S_ISDIR(status.st_mode)) {
    for (const auto& entry : entries_of(path)) {
      bytes += bytes_of(entry);
    }
  }
  return bytes;
}

// Lists the path, and removes it with Then::kRemove.
void add_leftover(Leftovers& found, const fs::path& path, std::string what, Then then) {
  Leftover one{.path = path.string(), .what = std::move(what), .bytes = bytes_of(path)};
  if (then == Then::kRemove) {
    std::error_code failure;
    fs::remove_all(path, failure);
    one.failure = failure ? failure.message() : "";
  }
  found.push_back(std::move(one));
}

// What Open MPI leaves in its own folders when its processes are killed: session folders in the
// temporary folder and shared-memory segments in /dev/shm. It uses these folders if the user chose
// them, if /dev/shm cannot hold the launcher's folder (mpi_folder.h), and on the other machines of
// a job.

constexpr std::string_view kUserPrefix = "ompi.";  // of Open MPI 4; followed by machine, ".", user
constexpr const char* kSessionFolder = "a session folder of Open MPI";

struct Candidate {
  fs::path path;
  const char* what;
};

// With and without the domain, which Open MPI can be configured to keep.
std::set<std::string> names_of_machine() {
  const std::string name = host_name();
  return {name, name.substr(0, name.find('.'))};
}

// The canonical paths of `usual` and of the folders that the variables name.
std::set<fs::path> folders_of(const std::vector<std::string>& variables, const char* usual) {
  std::vector<fs::path> named = {usual};
  for (const std::string& variable : variables) {
    if (const char* value = std::getenv(variable.c_str())) named.emplace_back(value);
  }
  std::set<fs::path> folders;
  for (const auto& folder : named) {
    std::error_code absent;
    const auto path = fs::canonical(folder, absent);
    if (!absent) folders.insert(path);
  }
  return folders;
}

// "pid.4711" is mpirun's; a daemon's folder is named after the job.
bool is_of_the_dead(const fs::path& session) {
  const auto name = session.filename().string();
  return !name.starts_with("pid.") || status_of(std::atol(name.c_str() + 4)).state == 0;
}

std::vector<Candidate> session_folders(const std::string& machine) {
  std::vector<Candidate> candidates;
  std::vector<std::string> variables{"TMPDIR", "TEMP", "TMP"};
  variables.insert(variables.end(), kSessionBases.begin(), kSessionBases.end());
  for (const auto& folder : folders_of(variables, "/tmp")) {
    // Of Open MPI 5; followed by mpirun's process, ".", user.
    const auto newer = fmt::format("prterun.{}.", machine);
    for (const auto& path : entries_of(folder, newer)) {
      const long process = std::atol(path.filename().c_str() + newer.size());
      if (is_own(path, S_IFDIR) && process > 0 && status_of(process).state == 0) {
        candidates.push_back({path, kSessionFolder});
      }
    }
    const auto sessions = folder / fmt::format("{}{}.{}", kUserPrefix, machine, ::geteuid());
    for (const char* kind : {"pid.", "jf."}) {
      for (const auto& path : entries_of(sessions, kind)) {
        if (is_own(path, S_IFDIR) && is_of_the_dead(path)) {
          candidates.push_back({path, kSessionFolder});
        }
      }
    }
  }
  return candidates;
}

std::vector<Candidate> segments(const std::string& machine) {
  std::vector<Candidate> candidates;
  for (const char* transport : kSegmentTransports) {
    const auto name = fmt::format("{}_segment.{}.{}.", transport, machine, ::geteuid());
    for (const auto& folder : folders_of({segment_folder_setting(transport)}, "/dev/shm")) {
      for (const auto& path : entries_of(folder, name)) {
        if (is_own(path, S_IFREG)) candidates.push_back({path, "shared memory of Open MPI"});
      }
    }
  }
  return candidates;
}

void add_used(std::set<std::string>& used, const fs::path& process) {
  for (const auto& descriptor : entries_of(process / "fd")) {
    std::error_code gone;
    used.insert(fs::read_symlink(descriptor, gone).string());
  }
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    if (const auto path = line.find('/'); path != std::string::npos) used.insert(line.substr(path));
  }
}

// All paths that this user's processes have open or mapped.
std::set<std::string> used_paths() {
  std::set<std::string> used;
  for (const auto& process : entries_of("/proc")) {
    const auto name = process.filename().string();
    if (std::atol(name.c_str()) > 0 && is_own(process, S_IFDIR)) add_used(used, process);
  }
  return used;
}

bool is_used(const fs::path& path, const std::set<std::string>& used) {
  const auto below = path.string() + "/";
  const auto next = used.lower_bound(below);
  return used.count(path.string()) != 0 || (next != used.end() && next->starts_with(below));
}

// Adds leftovers of this user whose names contain this machine's name and that no process has open.
void add_open_mpi_leftovers(Leftovers& found, Then then) {
  std::vector<Candidate> candidates;
  for (const auto& machine : names_of_machine()) {
    for (const auto& some : {session_folders(machine), segments(machine)}) {
      candidates.insert(candidates.end(), some.begin(), some.end());
    }
  }
  if (candidates.empty()) {
    return;
  }
  const auto used = used_paths();
  for (const auto& [path, what] : candidates) {
    if (is_used(path, used)) {
      continue;
    }
    add_leftover(found, path, what, then);
    const auto parent = path.parent_path();
    if (then == Then::kRemove && parent.filename().string().starts_with(kUserPrefix)) {
      ::rmdir(parent.c_str());  // succeeds if this was the last one
    }
  }
}

// Prefixes from store/link.h, followed by the machine, process, start time and a
// number. The hidden sockets have a name only for a moment.
constexpr std::string_view kSocket = "store-", kHiddenSocket = ".coupler-store-";
constexpr std::string_view kJobFile = "job-";  // from rendezvous/host_store.h

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

// Connects through the descriptor, as the path may be too long for a socket address.
bool has_listener(const fs::path& path) {
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
  if (use && is_last_user(use, WaitMode::kLook)) {
    add_leftover(found, path, fmt::format("Open MPI's files of the launcher {}", owner.pid), then);
  }
}

void look_at_socket(Leftovers& found, const fs::path& path, Then then) {
  const auto name = path.filename().string();
  const auto owner = process_in(name.substr(0, name.rfind('-')));
  if (is_own(path, S_IFSOCK) && owner.pid > 0 && !is_running(owner) && !has_listener(path)) {
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
  const auto job = rendezvous::parse_job_file(text);
  ProcessIdentity host;
  std::istringstream(last_line(text)) >> host.pid >> host.started;
  if (!job || host.started.empty()) {
    const auto draft = path.extension().string();
    host = draft.size() < 2 ? own_identity() : identity_of(std::atol(draft.c_str() + 1));
  }
  if (!is_running(host) && !(job && store::is_local(job->host) && has_listener(job->host))) {
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

Leftovers leftovers_of_launchers(Then then) {
  Leftovers found;
  for (const auto& path : entries_of(MpiFolder::kParent)) {
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
