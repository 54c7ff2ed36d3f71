// LaunchCall: what coupler::launch and the ranks that it starts say to each other: the function's
// name and arguments in, rank 0's result and errors out. Anonymous memory files (memfd) of the
// program that launches: on no disk, and gone with that program in whatever way it ends. Ranks open
// theirs through /proc/<program>/fd/<n>, since mpirun closes inherited descriptors. One thread of
// each process uses it; ranks may write at the same time, and are read once they have ended.
#pragma once

#include <coupler/error.h>
#include <coupler/objects.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/unique_fd.h"

namespace coupler {

// The variable that names the file to the ranks.
inline constexpr const char* kCallFile = "COUPLER_CALL_FILE";

// What a rank ended in.
struct RankFailure {
  int rank = 0;
  int64_t when = 0;  // nanoseconds of a clock that the ranks of a machine share
  Error error;

  // Of another rank's end, most likely.
  bool is_consequence() const {
    return error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kTimeout;
  }
};

class LaunchCall {
 public:
  LaunchCall(const std::string& function, const detail::ObjectBytes& arguments);
  // Of a process that was started for it. Throws Error(kIo) where the path leads to none.
  explicit LaunchCall(const std::string& path);

  // While the call of the program lives.
  std::string path() const;
  // For --outcome of `coupler launch`: an empty file; -1 in a rank.
  int outcome_file() const { return outcome_.get(); }

  std::string function() const;
  detail::ObjectBytes arguments() const;
  void write_result(const detail::ObjectBytes& result) const;
  void write_failure(const RankFailure& failure) const;

  std::string outcome() const;                        // "": the launcher had nothing to say
  std::optional<detail::ObjectBytes> result() const;  // none: rank 0 has not written it
  // The one that is to blame, as far as ranks could tell: the first that did not merely lose a
  // peer.
  std::optional<RankFailure> failure() const;

 private:
  // The file is a title and records; what a rank was killed in the middle of is no record.
  enum class Kind : uint64_t { kFunction, kArguments, kResult, kFailure };
  struct Header {
    Kind kind;
    uint64_t size;
  };
  // Calls it with the header and the place of each record; the end of the last.
  int64_t walk(const std::function<void(const Header& header, int64_t at)>& found) const;
  std::optional<std::string> last(Kind kind) const;
  void append(Kind kind, std::string_view bytes) const;

  UniqueFd file_, outcome_;
};

}  // namespace coupler
