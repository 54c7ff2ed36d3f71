#include "cli/launch/job_host.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <sstream>
#include <utility>

#include "store/store.h"

namespace coupler::cli {

JobHostOptions job_host_options(const config::Config& config, int processes) {
  return {.processes = processes,
          .tls = config.launch.tls,
          .peer_timeout = config.backend.peer_timeout};
}

JobHost::JobHost(const JobHostOptions& options) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  store::StoreServerOptions server;
  server.on_set = [this](const std::string& key, const std::string& value) { on_set(key, value); };
  server.on_lost = [this](const store::PeerLoss& loss) { on_lost(loss); };
  server.peer_timeout = std::chrono::ceil<std::chrono::milliseconds>(options.peer_timeout);
  server.tls = options.tls;
  server.members = static_cast<size_t>(options.processes);
  server.host = options.host;
  address_ = {.secret = options.secret ? *options.secret : random_bytes32(), .tls = options.tls};
  server_.emplace(address_.secret, server);
  address_.host = server_->host();
  address_.port = server_->port();
  memory_file_ = rendezvous::make_job_memory_file(address_);
  job_file_ = fmt::format("/proc/{}/fd/{}", ::getpid(), memory_file_.get());
}

void JobHost::on_set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  if (const auto activity = rank_in(store::kActivityPrefix, key)) {
    activities_[*activity] = value;
    return;
  }
  if (const auto started = rank_in(kStartPrefix, key)) {
    starts_.emplace_back(*started, value);
  } else if (const auto ended = rank_in(kEndPrefix, key)) {
    reports_.push_back(decode_exit(*ended, value));
  } else {
    return;
  }
  wake();
}

void JobHost::on_lost(const store::PeerLoss& loss) {
  if (loss.reason != store::PeerLoss::Reason::kStopped &&
      loss.reason != store::PeerLoss::Reason::kUnreachable) {
    return;
  }
  const std::lock_guard lock(mutex_);
  losses_.push_back(loss);
  wake();
}

void JobHost::wake() const {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);  // fails only if it is already readable
}

std::map<int, std::string> JobHost::activities() const {
  const std::lock_guard lock(mutex_);
  return activities_;
}

void JobHost::watch(int rank, long pid) { server_->watch(rank, identity_of(pid)); }

void JobHost::await_end(int rank, long pid) {
  UniqueFd end(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (end) {  // otherwise the process has already ended
    ends_.add(static_cast<size_t>(rank), end.get());
    watched_.push_back(std::move(end));
  }
}

std::vector<int> JobHost::take_ended() {
  const auto ranks = ends_.take();
  return {ranks.begin(), ranks.end()};
}

JobEvents JobHost::take_events() {
  // Must come first: news from here on wakes the caller again.
  uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);  // drains it; may already be empty
  std::vector<std::pair<int, std::string>> starts;
  JobEvents news;
  {
    const std::lock_guard lock(mutex_);
    starts.swap(starts_);
    news = {.reports = std::exchange(reports_, {}), .losses = std::exchange(losses_, {})};
  }
  for (const auto& [rank, text] : starts) {
    long pid = 0;
    std::string machine;
    std::istringstream(text) >> pid >> machine;
    if (machine == machine_identity()) {  // on other machines, the shim reports the end
      watch(rank, pid);
      await_end(rank, pid);
    }
  }
  return news;
}

void JobHost::tell_shims(int signal) {
  if (!client_) {
    client_ = std::make_unique<store::StoreClient>(address_.host, address_.port, address_.secret,
                                                   std::chrono::seconds(2), address_.tls);
  }
  client_->set(order_key(orders_sent_++), std::to_string(signal));
}

}  // namespace coupler::cli
