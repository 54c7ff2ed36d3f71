#include "slurm_cluster.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <thread>

namespace coupler::testing_launch {
namespace {

using namespace std::chrono_literals;

// Both at once, so that they differ.
std::array<int, 2> free_ports() {
  std::array<int, 2> sockets{};
  std::array<int, 2> ports{};
  for (size_t i = 0; i < sockets.size(); ++i) {
    sockets[i] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(sockets[i], reinterpret_cast<sockaddr*>(&address), size);
    ::getsockname(sockets[i], reinterpret_cast<sockaddr*>(&address), &size);
    ports[i] = ntohs(address.sin_port);
  }
  for (const int fd : sockets) {
    ::close(fd);
  }
  return ports;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const std::string text = name.data();
  return text.substr(0, text.find('.'));
}

bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    std::this_thread::sleep_for(50ms);
  }
  return true;
}

}  // namespace

bool SlurmCluster::is_installed() {
  for (const char* path :
       {"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged", "/usr/bin/srun"}) {
    if (::access(path, X_OK) != 0) {
      return false;
    }
  }
  return true;
}

SlurmCluster::SlurmCluster() {
  char name[] = "/tmp/coupler-slurm-XXXXXX";
  folder_ = ::mkdtemp(name);
  ::chmod(folder_.c_str(), 0711);  // munge requires its socket to be reachable by all users
  write_configuration();
  start("/usr/sbin/munged",
        {"--foreground", "--key-file=" + folder_ + "/key", "--socket=" + folder_ + "/munge.socket",
         "--pid-file=" + folder_ + "/munge.pid", "--log-file=" + folder_ + "/munge.log",
         "--seed-file=" + folder_ + "/munge.seed", "--num-threads=1"});
  comes_true([&] { return std::filesystem::exists(folder_ + "/munge.socket"); });
  start("/usr/sbin/slurmctld", {"-D", "-f", folder_ + "/slurm.conf"});
  start("/usr/sbin/slurmd", {"-D", "-f", folder_ + "/slurm.conf"});
}

SlurmCluster::~SlurmCluster() {
  run("scancel --user=$(id -un)");
  is_empty();
  for (size_t i = daemons_.size(); i-- > 0;) {  // munge last: the others need it while they end
    ::kill(daemons_[i], SIGTERM);
    const bool ended =
        comes_true([&] { return ::waitpid(daemons_[i], nullptr, WNOHANG) == daemons_[i]; });
    if (!ended) {
      ::kill(daemons_[i], SIGKILL);
      ::waitpid(daemons_[i], nullptr, 0);
    }
  }
  std::filesystem::remove_all(folder_);
}

void SlurmCluster::write_configuration() const {
  std::filesystem::create_directories(folder_ + "/state");
  std::filesystem::create_directories(folder_ + "/spool");
  {
    std::ofstream key(folder_ + "/key");
    ::chmod((folder_ + "/key").c_str(), 0600);
    std::random_device random;
    for (int i = 0; i < 128; ++i) {
      key << static_cast<char>(random());
    }
  }
  const auto ports = free_ports();
  const auto host = host_name();
  const passwd* user = ::getpwuid(::geteuid());
  const std::string name = user == nullptr ? "root" : user->pw_name;
  std::ofstream(folder_ + "/slurm.conf")
      << "ClusterName=coupler\nSlurmctldHost=" << host << "(127.0.0.1)\nSlurmctldPort=" << ports[0]
      << "\nSlurmdPort=" << ports[1] << "\nSlurmUser=" << name << "\nSlurmdUser=" << name
      << "\nAuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket=" << folder_
      << "/munge.socket\nCommunicationParameters=NoCtldInAddrAny,NoInAddrAny\nStateSaveLocation="
      << folder_ << "/state\nSlurmdSpoolDir=" << folder_ << "/spool\nSlurmctldPidFile=" << folder_
      << "/ctld.pid\nSlurmdPidFile=" << folder_ << "/slurmd.pid\n"
      << "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n"
      << "SelectTypeParameters=CR_CPU\nMpiDefault=none\nReturnToService=2\nKillWait=1\n"
         "SchedulerParameters=batch_sched_delay=0\n"
      << "SlurmdParameters=config_overrides\nNodeName=" << host
      << " NodeAddr=127.0.0.1 CPUs=" << kProcessors
      << " State=UNKNOWN\nPartitionName=all Nodes=ALL Default=YES State=UP\n";
}

void SlurmCluster::start(const std::string& name, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {name};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  const auto log = folder_ + "/" + std::filesystem::path(name).filename().string() + ".out";
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) {
      ::_exit(1);
    }
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  daemons_.push_back(pid);
}

bool SlurmCluster::is_up() const {
  return comes_true([&] { return run("sinfo --noheader --format=%T").output == "idle\n"; });
}

bool SlurmCluster::is_empty() const {
  return comes_true([&] {
    const auto jobs = run("squeue --noheader");
    return jobs.code != 0 || jobs.output.empty();
  });
}

std::string SlurmCluster::logs() const {
  std::string text;
  for (const char* name : {"munged", "slurmctld", "slurmd"}) {
    std::ifstream file(folder_ + "/" + name + ".out");
    text += std::string(name) + ":\n" + std::string(std::istreambuf_iterator<char>(file), {});
  }
  return text;
}

SlurmCluster::Result SlurmCluster::run(const std::string& command) const {
  const auto script = folder_ + "/command";
  std::ofstream(script) << "cd " << folder_ << "\nexport SLURM_CONF=" << folder_ << "/slurm.conf\n"
                        << command << "\n";
  Result result;
  FILE* pipe = ::popen(("timeout -k 5 60 sh " + script + " 2>&1 </dev/null").c_str(), "r");
  std::array<char, 4096> buffer{};
  while (const size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    result.output.append(buffer.data(), size);
  }
  const int status = ::pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace coupler::testing_launch
