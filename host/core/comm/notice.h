// Notice: how the ranks of one communicator share the first error, what they are doing, and which
// ranks are absent: through the order board if they share a machine, else through the store. Every
// function is [any-thread]; with a store, each may take a round trip.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/flight_recorder.h"
#include "store/store.h"

namespace coupler {

class Notice {
 public:
  // board may be null; the store's keys are the communicator's own.
  Notice(OrderBoard* board, std::shared_ptr<Store> store, int rank, int world)
      : board_(board), store_(std::move(store)), rank_(rank), world_(world) {}

  bool through_store() const { return board_ == nullptr; }

  // Returns the mark in effect: this one, or that of the first rank to publish.
  Mark publish(const Mark& mark);
  std::optional<Mark> mark() const;

  // Sentences about the ranks that have not entered operation `sequence`, or are stopped or gone;
  // *rank: the first of them, -1 if none. Through the store, takes up to half a second.
  std::string absent(uint64_t sequence, int* rank) const;

  // The place in the program that last called from this rank, for absent() on the other ranks.
  void show_place(const std::string& place) const;

  // Without a board: keeps this rank's last operations and shows them to the others.
  void remember(uint64_t sequence, const Fingerprint& operation, uint64_t chain);
  void show() const;
  // Compares with what the others have shown; a mark naming both ranks if they disagree.
  std::optional<Mark> compare() const;

 private:
  struct Remembered {
    uint64_t sequence = 0;
    Fingerprint operation;
    uint64_t chain = 0;
  };
  std::vector<Remembered> shown_by(int rank) const;
  static std::vector<Remembered> shown(const std::optional<std::string>& text);
  Progress progress(int rank) const;
  std::string place(int rank) const;
  void await_others(uint64_t sequence) const;  // at most half a second

  OrderBoard* board_;
  std::shared_ptr<Store> store_;
  int rank_, world_;
  mutable std::mutex mutex_;  // of recent_
  std::array<Remembered, 16> recent_;
};

// "rank 0 called all_reduce f32 x3 sum and rank 1 called barrier"
std::string describe_disagreement(int rank, const Fingerprint& mine, const Disagreement& other);

}  // namespace coupler
