// The Hugging Face Hub as this machine's variables describe it: the cache, the address, the token.
// They have the names and meanings that huggingface_hub's constants.py gives them. Plain values and
// functions, [any-thread].
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace coupler::hub {

struct HubSettings {
  std::string cache;     // HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, or HF_HOME/hub
  std::string endpoint;  // HF_ENDPOINT, or https://huggingface.co; without a trailing slash
  std::string token;     // HF_TOKEN, or the contents of HF_TOKEN_PATH; "": none
  bool offline = false;  // HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE
  bool progress = true;  // not HF_HUB_DISABLE_PROGRESS_BARS
  std::chrono::milliseconds answer_timeout{10'000};    // HF_HUB_ETAG_TIMEOUT
  std::chrono::milliseconds download_timeout{10'000};  // HF_HUB_DOWNLOAD_TIMEOUT, without new bytes
  // Between attempts, doubled each time.
  std::chrono::milliseconds first_pause{1'000};
  // The time without a sign of life after which another process that downloads is given up.
  std::chrono::milliseconds patience{60'000};
};

// The hint if the cache cannot be written.
inline constexpr const char* kOwnCache =
    "set HF_HOME or HF_HUB_CACHE to a folder that this user may write to";

// Throws Error(kConfig) naming the variable at fault.
HubSettings hub_settings();

// A model on the Hub: "gpt2", "EleutherAI/gpt-j-6B", each also with "@REVISION".
struct ModelName {
  std::string id;
  std::string revision = "main";  // a branch, a tag or a commit

  std::string text() const;  // as a user writes it
};

// Nothing if the text cannot be such a name: with huggingface_hub's rules for ids, and for
// revisions a path without "..". Names that end like files (.safetensors, .json) are none.
std::optional<ModelName> parse_model_name(std::string_view text);

// Whether the text is a whole commit: 40 lower-case hexadecimal digits.
bool is_commit(std::string_view text);

// Whether the text is a relative path of plain names: nothing in it leaves its folder.
bool is_inside(std::string_view path);

}  // namespace coupler::hub
