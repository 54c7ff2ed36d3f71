// FailureNotifier: how the ranks of one communicator share the first error, what they are doing,
// and which ranks are absent: through the flight recorder if they share a machine, else through the
// store. Every function is [any-thread]; with a store, each may take a round trip.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/flight_recorder.h"
#include "store/store.h"

namespace coupler::comm {

class FailureNotifier {
 public:
  // recorder may be null; the store's keys are the communicator's own.
  FailureNotifier(FlightRecorder* recorder, std::shared_ptr<store::Store> store, int rank,
                  int world_size)
      : recorder_(recorder), store_(std::move(store)), rank_(rank), world_size_(world_size) {}

  bool through_store() const { return recorder_ == nullptr; }

  // Returns the error in effect: this one, or that of the first rank to publish.
  SharedError publish(const SharedError& shared_error);
  std::optional<SharedError> shared_error() const;

  // Sentences about the ranks that have not entered operation `sequence`, or are stopped or gone;
  // *rank: the first of them, -1 if none. Through the store, takes up to half a second.
  std::string describe_missing(uint64_t sequence, int* rank) const;

  // The place in the program that last called from this rank, for describe_missing() on the other
  // ranks.
  void publish_place(const std::string& place) const;

  // Without a recorder: keeps this rank's last operations and shows them to the others.
  void record(uint64_t sequence, const Fingerprint& operation, uint64_t chain);
  void publish_operations() const;
  // Compares with what the others have published; an error naming both ranks if they disagree.
  std::optional<SharedError> find_disagreement() const;

 private:
  struct RecentOperation {
    uint64_t sequence = 0;
    Fingerprint operation;
    uint64_t chain = 0;
  };
  static std::vector<RecentOperation> parse_operations(const std::optional<std::string>& text);
  Progress progress(int rank) const;
  std::string place(int rank) const;
  void await_others(uint64_t sequence) const;  // at most half a second

  FlightRecorder* recorder_;
  std::shared_ptr<store::Store> store_;
  int rank_, world_size_;
  mutable std::mutex mutex_;  // of recent_
  std::array<RecentOperation, 16> recent_;
};

// "rank 0 called all_reduce f32 x3 sum and rank 1 called barrier"
std::string describe_disagreement(int rank, const Fingerprint& mine, const Disagreement& other);

}  // namespace coupler::comm
