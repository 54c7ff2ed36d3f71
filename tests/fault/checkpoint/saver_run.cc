#include "saver_run.h"

#include <coupler/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <tuple>

#include "base/durable_file.h"
#include "checkpoint/folder.h"
#include "checkpoint/names.h"
#include "operation_log.h"
#include "saved_content.h"

namespace coupler::testing_checkpoint {
namespace {

namespace fs = std::filesystem;

const std::string kPrograms = COUPLER_BINARY_DIR "/bin/tests/";

// The digest of what was saved. Cached: thousands of faults examine the same few checkpoints.
const Bytes32& saved_digest(int64_t number, size_t file, size_t bytes) {
  static std::map<std::tuple<int64_t, size_t, size_t>, Bytes32> known;
  const auto [entry, is_new] = known.try_emplace({number, file, bytes});
  if (is_new) entry->second = Digest().update(saved_content(number, file, bytes)).finish();
  return entry->second;
}

}  // namespace

bool is_full() { return std::getenv("COUPLER_TEST_DISK_FULL") != nullptr; }

SaverFolder::SaverFolder(bool in_memory) {
  const bool has_memory = in_memory && ::access("/dev/shm", W_OK) == 0;
  std::string path = (has_memory ? fs::path("/dev/shm") : fs::temp_directory_path()).string() +
                     "/coupler-disk-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = path;
  base_ = path + "/base";
  fs::create_directory(base_);
}

SaverFolder::~SaverFolder() { fs::remove_all(path_); }

void SaverFolder::clear() const {
  fs::remove_all(base_);
  fs::create_directory(base_);
  fs::remove(log());
}

Saver::Saver(const SaverFolder& folder, const SaverArguments& arguments,
             const std::map<std::string, std::string>& variables) {
  int pipe[2] = {-1, -1};
  if (::pipe2(pipe, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  const std::string program = kPrograms + "checkpoint_saver";
  const std::array<std::string, 4> words = {folder.checkpoints(), std::to_string(arguments.count),
                                            std::to_string(arguments.limit),
                                            std::to_string(arguments.bytes)};
  std::vector<std::string> environment;
  if (!variables.empty()) {
    environment = {"LD_PRELOAD=" + kPrograms + "libdisk_faults.so",
                   "DISK_FAULTS_FOLDER=" + folder.base(), "DISK_FAULTS_REPORT=3"};
  }
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  std::vector<char*> pointers;
  for (std::string& variable : environment) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    // Descriptor 3 stays open across exec. If the pipe already is 3, dup2 would keep its flag.
    if (pipe[1] == 3 ? ::fcntl(3, F_SETFD, 0) < 0 : ::dup2(pipe[1], 3) < 0) ::_exit(9);
    const char* const argv[] = {program.c_str(),  words[0].c_str(), words[1].c_str(),
                                words[2].c_str(), words[3].c_str(), nullptr};
    ::execve(program.c_str(), const_cast<char**>(argv), pointers.data());
    ::_exit(127);
  }
  ::close(pipe[1]);
  reports_ = pipe[0];
}

SaverEnd Saver::wait() {
  SaverEnd end;
  std::array<char, 4096> bytes{};
  for (ssize_t count = 0; (count = ::read(reports_, bytes.data(), bytes.size())) > 0;)
    end.reports.append(bytes.data(), static_cast<size_t>(count));
  ::close(reports_);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  end.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return end;
}

std::string examine(const std::string& checkpoints, long long reported, size_t bytes) {
  if (!fs::exists(checkpoints)) return reported < 0 ? "" : "the folder of checkpoints is lost";
  long long newest = -1;
  for (const checkpoint::Entry& entry : checkpoint::list(checkpoints)) {
    const std::string name = fmt::format("checkpoint_{}", entry.number);
    if (!entry.manifest) return fmt::format("{} is not valid: {}", name, entry.reason);
    const auto differences = checkpoint::verify(entry.path);
    if (!differences.empty())
      return fmt::format("{}: {} {}", name, differences[0].file, differences[0].reason);
    for (size_t i = 0; i < kFileNames.size(); ++i) {
      const auto& file = entry.manifest->files.at(i);
      if (file.name != kFileNames.at(i) || file.sha256 != saved_digest(entry.number, i, bytes))
        return fmt::format("{}: {} is not what was saved", name, file.name);
    }
    newest = entry.number;
  }
  const auto found = checkpoint::newest(checkpoints).entry;
  if ((found ? found->number : -1) != newest) return "newest() is not the last of list()";
  if (newest < reported)
    return fmt::format("the newest is checkpoint_{}, but checkpoint_{} was reported", newest,
                       reported);
  return "";
}

std::string go_on(const SaverFolder& folder, const SaverArguments& arguments, long long reported) {
  SaverArguments once = arguments;
  once.count = 1;
  const SaverEnd end = Saver(folder, once, {}).wait();
  if (end.code != 0) return fmt::format("the next run exited with {}: {}", end.code, end.reports);
  const long long saved = last_committed(end.reports);
  if (saved <= reported)
    return fmt::format("the next run saved checkpoint_{}, but {} was already saved", saved,
                       reported);
  if (std::string problem = examine(folder.checkpoints(), saved, arguments.bytes); !problem.empty())
    return "after the next run: " + problem;
  if (const auto left = leftovers(folder.checkpoints()); !left.empty())
    return "the next run left behind " + left.front();
  const auto count = static_cast<int>(checkpoint::list(folder.checkpoints()).size());
  if (count > arguments.limit) return fmt::format("{} checkpoints are left", count);
  return "";
}

std::vector<std::string> leftovers(const std::string& checkpoints) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const std::string text = entry.path().filename().string();
    const auto name = checkpoint::read_name(text);
    if (text != checkpoint::kLockName && (!name || name->kind != checkpoint::NameKind::kCommitted))
      names.push_back(text);
  }
  return names;
}

}  // namespace coupler::testing_checkpoint
