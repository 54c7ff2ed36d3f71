#include "cli/launch/open_mpi_leftovers.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/process_identity.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSessions = "ompi.";  // followed by machine, ".", user

struct Candidate {
  fs::path path;
  const char* what;
};

// With and without the domain, which Open MPI can be configured to keep.
std::set<std::string> names_of_machine() {
  std::array<char, 256> bytes{};
  ::gethostname(bytes.data(), bytes.size() - 1);
  const std::string name(bytes.data());
  return {name, name.substr(0, name.find('.'))};
}

// The canonical paths of `usual` and of the folders that the variables name.
std::set<fs::path> folders_of(std::initializer_list<const char*> variables, const char* usual) {
  std::vector<fs::path> named = {usual};
  for (const char* variable : variables) {
    if (const char* value = std::getenv(variable)) named.emplace_back(value);
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
  for (const auto& folder :
       folders_of({"TMPDIR", "TEMP", "TMP", "OMPI_MCA_orte_tmpdir_base",
                   "OMPI_MCA_orte_local_tmpdir_base", "OMPI_MCA_orte_remote_tmpdir_base"},
                  "/tmp")) {
    const auto sessions = folder / fmt::format("{}{}.{}", kSessions, machine, ::geteuid());
    for (const char* kind : {"pid.", "jf."}) {
      for (const auto& path : entries_of(sessions, kind)) {
        if (is_own(path, S_IFDIR) && is_of_the_dead(path)) {
          candidates.push_back({path, "a session folder of Open MPI"});
        }
      }
    }
  }
  return candidates;
}

std::vector<Candidate> segments(const std::string& machine) {
  std::vector<Candidate> candidates;
  for (const auto& folder : folders_of({"OMPI_MCA_btl_vader_backing_directory"}, "/dev/shm")) {
    for (const auto& path :
         entries_of(folder, fmt::format("vader_segment.{}.{}.", machine, ::geteuid()))) {
      if (is_own(path, S_IFREG)) candidates.push_back({path, "shared memory of Open MPI"});
    }
  }
  return candidates;
}

void add_used(std::set<std::string>& used, const fs::path& process) {
  for (const auto& descriptor : entries_of(process / "fd", "")) {
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
  for (const auto& process : entries_of("/proc", "")) {
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

}  // namespace

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
    if (then == Then::kRemove && parent.filename().string().starts_with(kSessions)) {
      ::rmdir(parent.c_str());  // succeeds if this was the last one
    }
  }
}

}  // namespace coupler::cli
