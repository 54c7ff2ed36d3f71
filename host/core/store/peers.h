// Peers: what this process knows about the other ranks of its job: which are lost, and how. The
// job's store reports it, independently of every backend. [any-thread]; any_lost() costs one load.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace coupler::store {

struct PeerLoss {
  // kLeft: it left the job in an orderly way; kFailed: while an exception was propagating. Such
  // ranks may come back, the others may not.
  enum class Reason { kLeft, kFailed, kGone, kStopped, kUnreachable };
  bool is_for_good() const { return reason > Reason::kFailed; }
  int rank = -1;  // of the job
  Reason reason = Reason::kGone;
  std::string text;                              // "rank 1 (process 77) is stopped"
  std::chrono::steady_clock::time_point when{};  // when this process learned of it
};

// The form on the wire and in the launcher; decode_loss() returns nullopt if it is malformed.
std::string encode(const PeerLoss& loss);
std::optional<PeerLoss> decode_loss(const std::string& text);

class Peers {
 public:
  bool any_lost() const { return lost_count_.load(std::memory_order_acquire) != 0; }
  std::optional<PeerLoss> loss_of(int rank) const;
  // Of these ranks, the one lost first; ranks that merely left count last. nullopt: none is lost.
  // Waits until a loss is known, at most that long.
  std::optional<PeerLoss> await_lost(const std::vector<int>& ranks,
                                     std::chrono::milliseconds most) const;

  // What this rank is doing, for the launcher's report about a lost one. Each function contributes
  // a part; it runs on the store's thread and must return at once. The caller chooses the key.
  void add_activity(const void* key, std::function<std::string()> activity);
  void remove_activity(const void* key);
  std::string activity() const;

  // What the store reports. The first loss of a rank stays, unless the rank had only left.
  void lose(PeerLoss loss);
  void came_back(int rank);

 private:
  std::optional<PeerLoss> first_of(const std::vector<int>& ranks) const;  // with mutex_

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<int, PeerLoss> lost_;  // by rank; guarded by mutex_
  std::atomic<size_t> lost_count_{0};
  mutable std::mutex activities_mutex_;
  std::map<const void*, std::function<std::string()>> activities_;  // guarded by activities_mutex_
};

}  // namespace coupler::store
