// Downloads from a Hub that misbehaves, and processes that download at the same time.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "fake_hub.h"
#include "hub/file_lock.h"
#include "hub/model_cache.h"
#include "hub/model_files.h"
#include "refusal.h"
#include "temporary_folder.h"

namespace coupler::hub {
namespace {

namespace fs = std::filesystem;
using Request = FakeHub::Request;
using Reply = FakeHub::Reply;
using std::chrono::milliseconds;

constexpr const char* kName = "org/tiny";

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Download : public ::testing::Test {
 protected:
  explicit Download(std::optional<http::TestCertificate> certificate = {})
      : hub(kName, std::move(certificate)) {
    settings.cache = (folder.path() / "hub").string();
    settings.endpoint = hub.url();
    settings.first_pause = milliseconds(1);
    settings.answer_timeout = milliseconds(2000);
    settings.download_timeout = milliseconds(300);
    settings.progress = false;
    hub.files = {{"config.json", "{\"model_type\": \"gpt2\"}"}, {"tokenizer.json", "{}"}};
    hub.large = {{"model.safetensors", weights()}};
  }

  // Larger than one piece of a reply.
  static std::string weights() {
    std::string text(1'500'000, '\0');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761U >> 13);
    return text;
  }
  std::string get(ModelUse use = ModelUse::kWeights, const std::string& name = kName) {
    return model_folder(name, use, settings);
  }
  std::string refusal(ModelUse use = ModelUse::kWeights, const std::string& name = kName) {
    return testing::message_of([&] { get(use, name); });
  }
  fs::path model() const { return fs::path(settings.cache) / "models--org--tiny"; }
  fs::path blob(const std::string& etag) const { return model() / "blobs" / etag; }
  void expect_weights(const std::string& found) {
    EXPECT_TRUE(contents(fs::path(found) / "model.safetensors") == weights());
  }

  const TemporaryFolder folder{"coupler-hub"};
  HubSettings settings;
  FakeHub hub;
};

TEST_F(Download, Model_ArrivesInPythonsLayout) {
  const std::string found = get(ModelUse::kLanguageModel);
  EXPECT_EQ(found, (model() / "snapshots" / FakeHub::kCommit).string());
  expect_weights(found);
  EXPECT_EQ(contents(fs::path(found) / "config.json"), hub.files["config.json"]);
  EXPECT_EQ(contents(model() / "refs/main"), FakeHub::kCommit);
  EXPECT_EQ(fs::read_symlink(fs::path(found) / "model.safetensors"),
            "../../blobs/" + sha256_of(weights()));
  EXPECT_EQ(fs::read_symlink(fs::path(found) / "config.json"),
            "../../blobs/" + git_hash_of(hub.files["config.json"]));
  EXPECT_TRUE(fs::exists(model() / ".no_exist" / FakeHub::kCommit / "generation_config.json"));
  EXPECT_FALSE(ModelCache(settings.cache, kName).has_incomplete());
  const size_t requests = hub.asked().size();
  EXPECT_EQ(get(ModelUse::kLanguageModel), found);
  EXPECT_EQ(hub.asked().size(), requests) << "a cached model takes no request";
}

TEST_F(Download, NestedFiles_HaveTheirFolders) {
  hub.files = {{"scheduler/scheduler_config.json", "{}"},
               {"tokenizer/vocab.json", "{}"},
               {"tokenizer/merges.txt", "x"},
               {"text_encoder/config.json", "{}"},
               {"unet/config.json", "{ }"},
               {"vae/config.json", "{  }"}};
  hub.large = {{"text_encoder/model.safetensors", "a"},
               {"unet/diffusion_pytorch_model.fp16.safetensors", "b"},
               {"vae/diffusion_pytorch_model.safetensors", "c"}};
  const fs::path found = get(ModelUse::kTextToImage);
  EXPECT_EQ(contents(found / "unet/diffusion_pytorch_model.fp16.safetensors"), "b");
  EXPECT_EQ(contents(found / "tokenizer/merges.txt"), "x");
}

TEST_F(Download, SeveralFilesOfWeights_AreThoseOfTheIndex) {
  hub.large = {{"model-1.safetensors", "one"}, {"model-2.safetensors", "two"}};
  hub.files["model.safetensors.index.json"] =
      R"({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})";
  hub.files["pytorch_model.bin"] = "not needed";
  const fs::path found = get();
  EXPECT_EQ(contents(found / "model-2.safetensors"), "two");
  EXPECT_FALSE(fs::exists(found / "pytorch_model.bin"));
}

TEST_F(Download, IndexThatLeavesTheFolder_IsRefused) {
  hub.files["model.safetensors.index.json"] = R"({"weight_map": {"a": "../../../../evil"}})";
  hub.large.clear();
  EXPECT_TRUE(mentions(refusal(), "../../../../evil"));
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    EXPECT_NE(entry.path().filename(), "evil");
  }
}

TEST_F(Download, ModuleThatLeavesTheFolder_IsRefused) {
  hub.files["modules.json"] = R"([{"path": "../.."}])";
  EXPECT_TRUE(mentions(refusal(ModelUse::kEncoder), "names a file outside of its folder"));
}

TEST_F(Download, BinFile_OnlyWithoutSafetensors) {
  hub.large = {{"pytorch_model.bin", "pickle"}};
  EXPECT_EQ(contents(fs::path(get()) / "pytorch_model.bin"), "pickle");
}

TEST_F(Download, Token_GoesOnlyToTheHub) {
  hub.token = settings.token = "hf_secret";
  expect_weights(get());
  ASSERT_FALSE(hub.away_requests().empty());
  for (const Request& request : hub.away_requests()) {
    EXPECT_EQ(request.headers.count("authorization"), 0U);
  }
}

TEST_F(Download, Token_StaysAwayAfterARedirectBack) {
  settings.token = "hf_secret";
  std::vector<std::string> tokens;
  hub.files["back"] = weights();
  hub.spoil_away = [&](const std::string&, const Request&, Reply& reply) {
    reply = {.status = 302, .headers = {{"Location", hub.url() + "/org/tiny/resolve/main/back"}}};
  };
  hub.spoil = [&](const std::string& file, const Request& request, Reply&) {
    if (file == "back") tokens.push_back(std::to_string(request.headers.count("authorization")));
  };
  expect_weights(get());
  EXPECT_EQ(tokens, std::vector<std::string>{"0"});
}

TEST_F(Download, BrokenConnection_IsResumed) {
  int breaks = 0;
  hub.spoil_away = [&](const std::string&, const Request&, Reply& reply) {
    if (++breaks <= 7) reply.cut_after = 100'000;  // more often than without new bytes
  };
  expect_weights(get());
  const auto requests = hub.away_requests();
  ASSERT_EQ(requests.size(), 8U);
  EXPECT_EQ(requests[0].headers.count("range"), 0U);
  EXPECT_EQ(requests[1].headers.at("range"), "bytes=100000-");
  EXPECT_EQ(requests[7].headers.at("range"), "bytes=700000-");
}

TEST_F(Download, AnotherRun_Resumes) {
  hub.spoil_away = [&](const std::string&, const Request& request, Reply& reply) {
    reply.cut_after = request.headers.count("range") == 0 ? 400'000 : 0;
  };
  EXPECT_TRUE(mentions(refusal(), "model.safetensors of 'org/tiny' could not be downloaded: "));
  EXPECT_EQ(fs::file_size(blob(sha256_of(weights()) + ".incomplete")), 400'000U);
  EXPECT_FALSE(fs::exists(model() / "refs/main")) << "a revision is known only with its files";
  hub.spoil_away = nullptr;
  expect_weights(get());
  EXPECT_EQ(hub.away_requests().back().headers.at("range"), "bytes=400000-");
}

TEST_F(Download, SilentServer_IsGivenUp) {
  hub.spoil_away = [](const std::string&, const Request&, Reply& reply) {
    reply.cut_after = 0;
    reply.stall = true;
  };
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(mentions(refusal(), "no answer in 300 ms"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_F(Download, ServerThatIgnoresRange_StartsAgain) {
  hub.spoil_away = [&](const std::string&, const Request& request, Reply& reply) {
    if (request.headers.count("range") == 0) {
      reply.cut_after = 300'000;
    } else {
      reply = {.body = weights()};
    }
  };
  expect_weights(get());
}

TEST_F(Download, WrongRange_IsRefused) {
  hub.spoil_away = [&](const std::string&, const Request& request, Reply& reply) {
    if (request.headers.count("range") == 0) {
      reply.cut_after = 300'000;
    } else {
      reply.headers["Content-Range"] = "bytes 0-1499999/1500000";
    }
  };
  EXPECT_TRUE(
      mentions(refusal(), "asked for the bytes from 300000 on, the server sends 'bytes 0-"));
}

TEST_F(Download, WrongContents_AreRemoved) {
  hub.spoil_away = [](const std::string&, const Request&, Reply& reply) { reply.body[7] ^= 1; };
  const std::string text = refusal();
  EXPECT_TRUE(mentions(text, "arrived damaged and was removed: its hash is ")) << text;
  EXPECT_FALSE(fs::exists(blob(sha256_of(weights()))));
  EXPECT_FALSE(ModelCache(settings.cache, kName).has_incomplete());
  hub.spoil_away = nullptr;
  expect_weights(get());
}

TEST_F(Download, WrongContentsOfASmallFile_AreFoundByGitsHash) {
  hub.spoil = [](const std::string& file, const Request& request, Reply& reply) {
    if (file == "config.json" && request.method == "GET") reply.body[0] = '[';
  };
  EXPECT_TRUE(mentions(refusal(ModelUse::kConfig), "config.json of 'org/tiny' arrived damaged"));
}

TEST_F(Download, WrongEarlierPart_IsDroppedOnce) {
  fs::create_directories(model() / "blobs");
  std::ofstream(blob(sha256_of(weights()) + ".incomplete")) << "not the beginning";
  expect_weights(get());
  EXPECT_EQ(hub.away_requests().size(), 2U);
}

TEST_F(Download, EarlierPartThatIsTooLong_IsDropped) {
  fs::create_directories(model() / "blobs");
  std::ofstream(blob(sha256_of(weights()) + ".incomplete")) << weights() + "more";
  expect_weights(get());
}

TEST_F(Download, LongerReply_IsCut) {
  hub.spoil_away = [](const std::string&, const Request&, Reply& reply) { reply.body += "more"; };
  EXPECT_TRUE(mentions(refusal(), "is longer than the announced 1500000 bytes"));
}

TEST_F(Download, ShorterReply_IsNoFile) {
  hub.spoil_away = [](const std::string&, const Request& request, Reply& reply) {
    if (request.headers.count("range") == 0)
      reply.body.resize(1000);
    else
      reply = {.status = 206, .headers = {{"Content-Range", "bytes 1000-1499999/1500000"}}};
  };
  EXPECT_TRUE(mentions(refusal(), "the reply ended after 1000 of 1500000 bytes"));
}

TEST_F(Download, BusyHub_IsAskedAgain) {
  int busy = 0;
  hub.spoil = [&](const std::string&, const Request&, Reply& reply) {
    if (++busy <= 2) reply = {.status = busy == 1 ? 503U : 429U, .headers = {{"Retry-After", "0"}}};
  };
  EXPECT_NO_THROW(get(ModelUse::kConfig));
  EXPECT_GE(busy, 3);
}

TEST_F(Download, HubThatStaysBusy_IsGivenUp) {
  hub.spoil = [](const std::string&, const Request&, Reply& reply) { reply = {.status = 500}; };
  EXPECT_TRUE(mentions(refusal(), "answers 500 after 5 attempts"));
  hub.spoil = [](const std::string&, const Request&, Reply& reply) {
    reply = {.status = 429, .headers = {{"Retry-After", "86400"}}};
  };
  const std::string text = refusal();
  EXPECT_TRUE(mentions(text, "answers 429 and asks to come back in 86400 s")) << text;
  EXPECT_TRUE(mentions(text, "HF_TOKEN")) << text;
}

TEST_F(Download, UnknownModel_IsNamed) {
  const std::string text = refusal(ModelUse::kWeights, "org/none");
  EXPECT_TRUE(mentions(text,
                       "there is no folder 'org/none', and the model of this name could not "
                       "be downloaded: the Hub has no model 'org/none', or it is private "
                       "(401)"))
      << text;
  EXPECT_TRUE(mentions(text, "hint: check the name; for a private model set HF_TOKEN")) << text;
}

TEST_F(Download, GatedModel_SaysHowToGetIt) {
  hub.token = "hf_other";
  const std::string text = refusal();
  EXPECT_TRUE(mentions(text, "the Hub does not give 'org/tiny' to users without a token (401)"))
      << text;
  EXPECT_TRUE(mentions(text, "ask for access at https://huggingface.co/org/tiny")) << text;
  settings.token = "hf_secret";
  const std::string with_token = refusal();
  EXPECT_TRUE(mentions(with_token, "to this token's user")) << with_token;
  EXPECT_FALSE(mentions(with_token, "hf_secret"));
}

TEST_F(Download, UnknownRevision_IsNamed) {
  EXPECT_TRUE(mentions(refusal(ModelUse::kConfig, "org/tiny@v9"),
                       "the model 'org/tiny' has no revision 'v9' on the Hub"));
}

TEST_F(Download, ModelWithoutWeights_SaysWhichAreLookedFor) {
  hub.large.clear();
  EXPECT_TRUE(mentions(refusal(), "on the Hub it has no weights (model.safetensors, "));
}

TEST_F(Download, Redirects_EndSomewhere) {
  hub.spoil = [](const std::string&, const Request& request, Reply& reply) {
    reply = {.status = 307, .headers = {{"Location", request.target}}};
  };
  EXPECT_TRUE(mentions(refusal(), "redirects more than 10 times"));
  hub.spoil = [&](const std::string& file, const Request& request, Reply& reply) {
    // As the Hub answers for a model that was renamed.
    if (file == "config.json" && !request.target.ends_with("?renamed")) {
      reply = {.status = 307, .headers = {{"Location", request.target + "?renamed"}}};
    }
    if (request.target.ends_with("?renamed")) {
      reply = {.headers = {{"ETag", "\"" + git_hash_of("{}") + "\""},
                           {"X-Repo-Commit", FakeHub::kCommit}},
               .body = "{}"};
    }
  };
  EXPECT_EQ(contents(fs::path(get(ModelUse::kConfig)) / "config.json"), "{}");
}

TEST_F(Download, OtherServer_IsNoHub) {
  hub.spoil = [](const std::string&, const Request&, Reply& reply) {
    reply = {.body = "<html>log in to the network</html>"};
  };
  EXPECT_TRUE(mentions(refusal(), "is not a Hugging Face Hub"));
  hub.spoil = [](const std::string&, const Request&, Reply& reply) {
    reply.headers["X-Linked-Etag"] = "\"../../../evil\"";
  };
  EXPECT_TRUE(mentions(refusal(), "is not a Hugging Face Hub"));
}

TEST_F(Download, UnreachableHub_IsNamedWithTheModel) {
  settings.endpoint = "http://127.0.0.1:9";
  const std::string text = refusal();
  EXPECT_TRUE(mentions(text,
                       "there is no folder 'org/tiny', and the model of this name could not "
                       "be downloaded: http://127.0.0.1:9 cannot be reached: "))
      << text;
}

TEST_F(Download, CacheThatCannotBeWritten_IsNamed) {
  std::ofstream(folder.path() / "file") << "x";
  settings.cache = (folder.path() / "file").string();
  const std::string text = refusal();
  EXPECT_TRUE(mentions(text, "cannot create the folder " + settings.cache)) << text;
}

TEST_F(Download, DanglingLink_IsDownloadedAgain) {
  const std::string found = get();
  fs::remove(blob(sha256_of(weights())));
  EXPECT_EQ(get(), found);
  expect_weights(found);
}

// Runs in `count` processes at once; their results in any order.
std::vector<std::string> in_processes(int count, const std::function<std::string()>& action) {
  std::vector<int> pipes;
  for (int i = 0; i < count; ++i) {
    int ends[2];
    if (::pipe(ends) != 0) ADD_FAILURE();
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string text = action();
      const ssize_t written = ::write(ends[1], text.data(), text.size());
      ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    pipes.push_back(ends[0]);
  }
  std::vector<std::string> results;
  for (const int end : pipes) {
    std::string& text = results.emplace_back();
    char piece[4096];
    for (ssize_t size = 0; (size = ::read(end, piece, sizeof piece)) > 0;) {
      text.append(piece, static_cast<size_t>(size));
    }
    ::close(end);
  }
  while (::wait(nullptr) > 0) {
  }
  return results;
}

TEST_F(Download, SeveralProcesses_DownloadOnce) {
  hub.spoil_away = [](const std::string&, const Request&, Reply&) {
    std::this_thread::sleep_for(milliseconds(150));
  };
  const auto results = in_processes(4, [&] { return testing::message_of([&] { get(); }); });
  EXPECT_EQ(results, std::vector<std::string>(4));
  EXPECT_EQ(hub.away_requests().size(), 1U);
  expect_weights(get());
}

TEST_F(Download, FailureOfOneProcess_ReachesThoseThatWait) {
  hub.spoil = [](const std::string&, const Request&, Reply& reply) {
    std::this_thread::sleep_for(milliseconds(800));
    reply = {.status = 404, .headers = {{"X-Error-Code", "RepoNotFound"}}};
  };
  const auto results = in_processes(3, [&] { return testing::message_of([&] { get(); }); });
  for (const std::string& text : results) {
    EXPECT_TRUE(mentions(text, "the Hub has no model 'org/tiny'")) << text;
    EXPECT_TRUE(mentions(text, "hint: check the name")) << text;
  }
  EXPECT_EQ(hub.asked().size(), 1U);
}

TEST_F(Download, HolderWithoutSignOfLife_IsGivenUp) {
  settings.patience = milliseconds(300);
  const ModelCache cache(settings.cache, kName);
  cache.make_folders();
  const FileLock held(cache.lock_path("coupler"), "", milliseconds(1000));
  const std::string text = refusal();
  EXPECT_TRUE(mentions(text, "another process downloads org/tiny, but has given no sign of life"))
      << text;
}

class DownloadOverTls : public Download {
 protected:
  DownloadOverTls() : DownloadOverTls(http::TestCertificate::make("IP:127.0.0.1")) {}
  explicit DownloadOverTls(const http::TestCertificate& certificate) : Download(certificate) {
    std::ofstream(path) << certificate.certificate;
    ::setenv("SSL_CERT_FILE", path.c_str(), 1);
  }
  ~DownloadOverTls() override { ::unsetenv("SSL_CERT_FILE"); }
  const fs::path path = folder.path() / "trusted.pem";
};

TEST_F(DownloadOverTls, TrustedHub_Serves) {
  settings.token = hub.token = "hf_secret";
  expect_weights(get());
}

TEST_F(DownloadOverTls, AnotherCertificate_IsRefusedAtOnce) {
  std::ofstream(path) << http::TestCertificate::make("IP:127.0.0.1").certificate;
  settings.token = "hf_secret";
  EXPECT_TRUE(mentions(refusal(), "its certificate is not trusted"));
  EXPECT_TRUE(hub.asked().empty());
}

TEST_F(DownloadOverTls, RedirectToPlainHttp_IsRefused) {
  FakeHub plain(kName);
  hub.spoil = [&](const std::string&, const Request& request, Reply& reply) {
    reply = {.status = 302, .headers = {{"Location", plain.url() + request.target}}};
  };
  EXPECT_TRUE(mentions(refusal(), "which is not encrypted"));
  EXPECT_TRUE(plain.asked().empty());
}

}  // namespace
}  // namespace coupler::hub
