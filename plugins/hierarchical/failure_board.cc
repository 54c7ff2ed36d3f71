#include "hierarchical/failure_board.h"

#include <sstream>
#include <string>

namespace db::hierarchical {
namespace {

constexpr int64_t kPatienceNs = 2'000'000'000;  // the first rank writes at once, or has died

std::string encode(const Failure& failure, int32_t rank) {
  std::ostringstream text;
  text << failure.status << ' ' << failure.native_code << ' ' << failure.failed_rank << ' ' << rank
       << ' ' << failure.message;
  return text.str();
}

bool decode(const std::string& text, Failure* failure, int32_t* rank) {
  std::istringstream words(text);
  if (!(words >> failure->status >> failure->native_code >> failure->failed_rank >> *rank))
    return false;
  std::getline(words >> std::ws, failure->message);
  return failure->status < 0;
}

}  // namespace

Failure FailureBoard::settle(const Failure& own) const {
  int64_t number = 0;
  if (!store_.add("failures", 1, &number).ok()) return own;
  if (number == 1) {
    // If it cannot be written, the others report what they saw themselves.
    static_cast<void>(store_.set("failure", encode(own, rank_)));
    return own;
  }
  std::string text;
  Failure first;
  int32_t reporter = 0;
  if (!store_.get("failure", kPatienceNs, &text).ok() || !decode(text, &first, &reporter))
    return own;
  first.flags = uint32_t{DB_ERROR_COMM_DEAD} | uint32_t{DB_ERROR_REMOTE};
  first.message = "rank " + std::to_string(reporter) + " reported: " + first.message;
  // A rank that lost no other is itself what the others have lost.
  if (first.failed_rank < 0 || first.failed_rank == rank_) first.failed_rank = reporter;
  return first;
}

}  // namespace db::hierarchical
