// LaunchCall: what coupler::launch and its ranks exchange: the function's name and arguments in,
// rank 0's result and errors out. It uses anonymous memory files (memfd) of the launching program,
// which are not on disk and vanish with that program however it ends. Ranks open theirs through
// /proc/<program>/fd/<n>, since mpirun closes inherited descriptors. One thread of each process
// uses it. Ranks may write at the same time; the program reads after they have exited.
#pragma once

#include <coupler/error.h>
#include <coupler/objects.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace coupler {

// The environment variable that gives ranks the path of the file.
inline constexpr const char* kCallFile = "COUPLER_CALL_FILE";

// The error that ended a rank.
struct RankFailure {
  int rank = 0;
  int64_t when = 0;  // nanoseconds of a clock shared by the ranks of a machine
  Error error;

  // Whether it most likely results from another rank's failure.
  bool is_consequence() const {
    return error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kTimeout;
  }
};

class LaunchCall {
 public:
  LaunchCall(const std::string& function, const detail::ObjectBytes& arguments);
  // In a rank: opens the call at path. Throws Error(kIo) if there is no call.
  explicit LaunchCall(const std::string& path);

  // Valid while the launching program's LaunchCall is alive.
  std::string path() const;
  // The descriptor of an empty file for `coupler launch --outcome`; -1 in a rank.
  int outcome_file() const { return outcome_.get(); }

  std::string function() const;
  detail::ObjectBytes arguments() const;
  void write_result(const detail::ObjectBytes& result) const;
  void write_failure(const RankFailure& failure) const;

  std::string outcome() const;                        // "": the launcher reported nothing
  std::optional<detail::ObjectBytes> result() const;  // empty: rank 0 did not write it
  // The failure most likely to be the cause: the first that is not just the loss of a peer.
  std::optional<RankFailure> failure() const;

 private:
  // The file is a title and records. A record that a killed rank left incomplete does not count.
  enum class Kind : uint64_t { kFunction, kArguments, kResult, kFailure };
  struct Header {
    Kind kind;
    uint64_t size;
  };
  // Calls found with each record's header and offset. Returns the end of the last record.
  int64_t walk(const std::function<void(const Header& header, int64_t at)>& found) const;
  std::optional<std::string> last(Kind kind) const;
  void append(Kind kind, std::string_view bytes) const;

  UniqueFd file_, outcome_;
};

}  // namespace coupler
