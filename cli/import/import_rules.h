// ImportRule: what a setting of another program becomes here: it sets our keys, or an Answer says
// why there are none. Rules serve the importer of files and the options of `coupler launch`. Pure
// functions.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/import/config_draft.h"

namespace coupler::cli {

// What became of a setting. In a file every setting but a taken one is only listed; on a command
// line one that is unsupported or wrong is an error.
struct Answer {
  // kUnchanged: it asks for what is so without it, such as "off". kReplaced: another setting of
  // theirs, named by `why`, sets the same key to something else.
  enum class Kind { kTaken, kNoEffect, kUnchanged, kUnsupported, kWrong, kReplaced };
  Kind kind = Kind::kTaken;
  std::string why;      // kTaken: what else to do, or ""
  std::string instead;  // what to do instead, or ""

  Answer() = default;
  Answer(Kind what, std::string reason, std::string other = {})
      : kind(what), why(std::move(reason)), instead(std::move(other)) {}
  // A reason: "" if a key was set, else there was nothing to set.
  Answer(std::string reason)
      : kind(reason.empty() ? Kind::kTaken : Kind::kNoEffect), why(std::move(reason)) {}
  Answer(const char* reason) : Answer(std::string(reason)) {}

  std::string text() const;  // for a list of what was imported
};
Answer unsupported(const std::string& why, const std::string& instead = {});
Answer unchanged(const std::string& why);

// Imports a value, given as a string ("true", "3", "FULL_SHARD"), into the draft.
using ImportRule = std::function<Answer(ConfigDraft& draft, const std::string& value)>;

// Sets one key to a string, one of a few words, an integer (from `least` to `most`) or a boolean.
// "auto" and "none" leave it at its default.
ImportRule as_text(const std::string& key);
ImportRule as_word(const std::string& key, const std::vector<std::string>& words);
ImportRule as_integer(const std::string& key, int64_t least = 0, int64_t most = INT64_MAX);
ImportRule as_boolean(const std::string& key);
// Sets the size of a dimension of the mesh; 1 leaves it at that.
ImportRule as_mesh_size(const std::string& key);
// We have no such key, and need none, for this reason.
ImportRule without(const std::string& why);
// Not supported, unless the value means "off" (false, no, 0), or is the one given.
ImportRule without_unless_off(const std::string& why, const std::string& instead = {});
ImportRule without_unless(const std::string& usual, const std::string& why,
                          const std::string& instead = {});

// The values of DeepSpeed's offload_optimizer.device and offload_param.device.
inline const std::vector<std::string> kOffloadDevices = {"none", "cpu", "nvme"};

// The answers for a value that is unspecified, is off, or is not `what` ("a whole number").
Answer left_open();
Answer switched_off();
Answer refused(const std::string& value, const std::string& what);

bool is_left_open(const std::string& value);  // auto, null, none, or empty
bool is_off(const std::string& value);
bool is_on(const std::string& value);
std::optional<int64_t> integer_of(const std::string& value);

}  // namespace coupler::cli
