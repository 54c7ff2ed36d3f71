// HubClient: what the Hugging Face Hub has at a commit, and its files. Follows redirects, and sends
// the token to no other server. Waits and tries again if the Hub is busy. Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "http/http_client.h"
#include "hub/settings.h"

namespace coupler::hub {

// Called at least once a second while something waits.
using Beat = std::function<void()>;

struct RemoteFile {
  std::string name;
  std::string commit;
  std::string etag;              // of the contents: SHA-256, or git's SHA-1; a plain file name
  std::optional<uint64_t> size;  // if the server says so
  std::string url;
};

class HubClient {
 public:
  HubClient(const HubSettings& settings, ModelName model, Beat beat);

  struct Answer {
    std::optional<RemoteFile> file;  // none: the model has no such file
    std::string commit;              // "" if the server does not say
  };
  // revision: a branch, a tag or a commit. Throws Error(kIo) if there is no such model or revision,
  // if it may not be read, or if the Hub cannot be reached.
  Answer find(const std::string& file, const std::string& revision);

  // Receives the bytes from `first` on. `restart` is called if the server sends all of them
  // instead. Returns "" if the reply was complete, or what broke it, which may work again. Throws
  // Error(kIo) for what does not, and what sink throws.
  using Sink = std::function<void(std::string_view)>;
  std::string receive(const RemoteFile& file, uint64_t first, const Sink& sink,
                      const std::function<void()>& restart);

  // Waits before attempt number `attempt`, from 1.
  void pause(int attempt);

 private:
  http::HttpReply ask(const std::string& method, std::string& url, const http::HttpHeaders& headers,
                      std::chrono::milliseconds timeout, bool follow_away,
                      const http::HttpClient::BodySink& sink);
  [[noreturn]] void refuse(const std::string& file, const http::HttpReply& reply) const;
  void wait(std::chrono::milliseconds time);
  // Waits as long as the server asks for, or throws.
  void wait_for_turn(const http::HttpReply& reply, int attempt, const std::string& url);

  HubSettings settings_;
  ModelName model_;
  http::HttpAddress endpoint_;
  Beat beat_;
};

}  // namespace coupler::hub
