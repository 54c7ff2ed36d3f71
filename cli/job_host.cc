#include "job_host.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/eventfd.h>

#include <utility>

#include "rendezvous/job_file.h"

namespace coupler::cli {

JobHost::JobHost() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), secret_(random_bytes32()) {
  StoreServerOptions options;
  options.on_set = [this](const std::string& key, const std::string& value) { on_set(key, value); };
  server_.emplace(secret_, std::move(options));
  memory_file_ = make_job_memory_file({server_->host(), server_->port(), secret_});
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
    client_ = std::make_unique<StoreClient>(server_->host(), server_->port(), secret_,
                                            std::chrono::seconds(2));
  }
  client_->set(order_key(told_++), encode(order));
}

}  // namespace coupler::cli
