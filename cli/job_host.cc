#include "job_host.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utility>

namespace coupler::cli {

JobHost::JobHost(const JobHostOptions& options) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  StoreServerOptions server;
  server.on_set = [this](const std::string& key, const std::string& value) { on_set(key, value); };
  server.tls = options.tls;
  server.members = static_cast<size_t>(options.processes);
  address_ = {.host = server.host, .secret = random_bytes32(), .tls = options.tls};
  server_.emplace(address_.secret, server);
  address_.port = server_->port();
  memory_file_ = make_job_memory_file(address_);
  job_file_ = fmt::format("/proc/{}/fd/{}", ::getpid(), memory_file_.get());
}

void JobHost::on_set(const std::string& key, const std::string& value) {
  const auto rank = rank_of_end_key(key);
  if (!rank) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    reports_.push_back(decode_end(*rank, value));
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);  // fails only when it is readable already
}

std::vector<RankEnd> JobHost::take_reports() {
  uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);  // empties it; whether it was empty is the same
  const std::lock_guard lock(mutex_);
  return std::exchange(reports_, {});
}

void JobHost::tell_shims(ShimOrder order) {
  if (!client_) {
    client_ = std::make_unique<StoreClient>(address_.host, address_.port, address_.secret,
                                            std::chrono::seconds(2), address_.tls);
  }
  client_->set(order_key(told_++), encode(order));
}

}  // namespace coupler::cli
