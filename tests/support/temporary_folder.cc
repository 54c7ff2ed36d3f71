#include "temporary_folder.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <system_error>

namespace coupler {
namespace {

// Tries twice, because processes that end with the owner, or a moment later, may still be writing.
// If the owner has removed the folder, there is nothing to do.
constexpr const char* kRemover =
    "exec 3<&0; { read -r line; rm -rf -- \"$0\" || { sleep 1; rm -rf -- \"$0\"; }; } <&3 3<&- &";

// A background shell of this shell waits: the outer shell exits at once, so the waiting one is not
// a child of this process, nor in its process group or session.
void start_remover(const std::string& path, int lifeline) {
  std::array<std::string, 4> words = {"/bin/sh", "-c", kRemover, path};
  std::array<char*, 5> arguments = {words[0].data(), words[1].data(), words[2].data(),
                                    words[3].data(), nullptr};
  std::string search = "PATH=/usr/bin:/bin";
  std::array<char*, 2> environment = {search.data(), nullptr};
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, lifeline, 0);
  posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&files, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t shell = -1;
  const int error =
      posix_spawn(&shell, arguments[0], &files, &attributes, arguments.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) throw std::runtime_error("cannot start /bin/sh");
  waitpid(shell, nullptr, 0);
}

}  // namespace

TemporaryFolder::TemporaryFolder(const std::string& name) {
  std::string path = (std::filesystem::temp_directory_path() / (name + "-XXXXXX")).string();
  std::array<int, 2> ends{};
  if (mkdtemp(path.data()) == nullptr || pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error("cannot make the folder " + path);
  }
  path_ = path;
  lifeline_ = ends[1];
  start_remover(path, ends[0]);
  close(ends[0]);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // harmless: it is a temporary folder
  std::filesystem::remove_all(path_, ignored);
  close(lifeline_);
}

}  // namespace coupler
