// SyncScope: returned by Accelerator::accumulate, no_sync, join_uneven_inputs, profile and the
// checkpoint hooks, whose effect lasts while it is alive. Must not outlive the Accelerator; used by
// the training thread.
#pragma once

#include <functional>
#include <utility>

namespace coupler {

class SyncScope {
 public:
  // at_end runs once, when the scope ends; it may be empty.
  explicit SyncScope(std::function<void()> at_end) : at_end_(std::move(at_end)) {}
  SyncScope(SyncScope&& other) noexcept : at_end_(std::exchange(other.at_end_, nullptr)) {}
  SyncScope& operator=(SyncScope&&) = delete;
  ~SyncScope() {
    if (at_end_) at_end_();
  }

 private:
  std::function<void()> at_end_;
};

}  // namespace coupler
