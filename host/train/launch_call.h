// LaunchCall: the folder through which coupler::launch and the ranks that it starts speak: the
// function's name and arguments in, rank 0's result and errors out. Files of a folder that only its
// owner can enter, gone with the call. One side is written by one thread, the other read once the
// ranks have ended.
#pragma once

#include <coupler/error.h>
#include <coupler/objects.h>

#include <cstdint>
#include <optional>
#include <string>

namespace coupler {

// The variable that names the folder to the ranks.
inline constexpr const char* kCallFolder = "COUPLER_CALL_FOLDER";

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
  // In the folder for temporary files, to be removed by this.
  static LaunchCall make(const std::string& function, const detail::ObjectBytes& arguments);
  // Of a process that was started for it.
  explicit LaunchCall(std::string folder) : folder_(std::move(folder)) {}
  ~LaunchCall();
  LaunchCall(LaunchCall&& other) noexcept;
  LaunchCall& operator=(LaunchCall&&) = delete;

  const std::string& folder() const { return folder_; }
  std::string outcome_file() const;  // for --outcome of `coupler launch`

  std::string function() const;
  detail::ObjectBytes arguments() const;
  void write_result(const detail::ObjectBytes& result) const;
  void write_failure(const RankFailure& failure) const;

  std::optional<detail::ObjectBytes> result() const;  // none: rank 0 has not written it
  // The one that is to blame, as far as ranks could tell: the first that did not merely lose a
  // peer.
  std::optional<RankFailure> failure() const;

 private:
  std::string folder_;
  bool owned_ = false;
};

}  // namespace coupler
