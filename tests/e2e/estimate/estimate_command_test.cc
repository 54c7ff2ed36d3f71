#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "run_program.h"
#include "words.h"

namespace coupler {
namespace {

Words gpt(const Workplace& here) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "in the beginning was the word, and the word was number ";
  here.write("text.txt", text);
  return {"--",      GPT_PROGRAM, "--text", "text.txt", "--width",      "256", "--layers", "4",
          "--heads", "4",         "--seq",  "32",       "--batch-size", "2",   "--steps",  "4"};
}

bool err_says(const Outcome& outcome, const std::string& text) {
  return outcome.err.find(text) != std::string::npos;
}

TEST(EstimateCommand, Program_IsEstimatedAsConfigured) {
  const Workplace here;
  const Outcome outcome =
      here.coupler(with({"estimate", "--world", "4", "-o", "backend.use=deepspeed_like", "-o",
                         "backend.deepspeed_like.stage=1", "-o",
                         "backend.deepspeed_like.base=gloo_cpu", "--limit", "4GiB"},
                        gpt(here)));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* text :
       {"deepspeed_like, stage 1", "4 processes", "parameters", "gradients", "optimizer state",
        "activations", "the process itself", "It fits within 4.0 GiB."}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in\n" << outcome.out;
  }
}

TEST(EstimateCommand, All_ListsEveryBackendStageAndPrecision) {
  const Workplace here;
  const Outcome outcome =
      here.coupler(with({"estimate", "--world", "2", "--all", "--json"}, gpt(here)));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto rows = nlohmann::json::parse(outcome.out)["estimates"];
  EXPECT_EQ(rows.size(), 9u * 4u);
  const auto state = [&](const std::string& setting) {
    for (const auto& row : rows) {
      if (row["setting"] == setting) return row["most_bytes"]["optimizer"].get<double>();
    }
    return -1.0;
  };
  EXPECT_NEAR(state("ZeRO stage 1"), state("replicate") / 2, 0.02 * state("replicate"));
  EXPECT_LT(state("ZeRO stage 3, all on disk"), 1 << 20);  // parameters too small to shard
}

TEST(EstimateCommand, Recommend_PrintsAConfigurationThatIsRight) {
  const Workplace here;
  const Outcome outcome =
      here.coupler(with({"config", "recommend", "--limit", "4GiB", "--world", "2"}, gpt(here)));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("use = \"auto\""), std::string::npos) << outcome.out;
  here.write("train.toml", outcome.out);
  EXPECT_EQ(here.coupler({"config", "check"}).exit_code, 0);
  const Outcome none = here.coupler(
      with({"config", "recommend", "--limit", "20MiB", "--world", "2", "-o", "parallel.pipeline=1"},
           gpt(here)));
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_TRUE(
      err_says(none, "no setting fits within 20.0 MiB per rank with 2 processes: the smallest, "))
      << none.err;
}

// Bytes of a part of the estimate, by the name that JSON has for it.
double most(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out)["estimates"][0]["most_bytes"][part].get<double>();
}

TEST(EstimateCommand, DividedLayers_AreAPartOfTheModel) {
  const Workplace here;
  const Words program = gpt(here);
  const auto estimate = [&](const Words& options) {
    return here.coupler(with(
        with({"estimate", "--json", "--world", "4"}, with({"-o", "backend.use=gloo_cpu"}, options)),
        program));
  };
  const Outcome whole = estimate({});
  const Outcome divided = estimate({"-o", "parallel.tensor=2"});
  const auto row = nlohmann::json::parse(divided.out)["estimates"][0];
  EXPECT_EQ(row["mesh"]["data"], 2);
  EXPECT_EQ(row["mesh"]["tensor"], 2);
  const auto all = row["parameters"]["all"].get<double>();
  const auto own = row["parameters"]["after_division"].get<double>();
  EXPECT_LT(own, 0.6 * all);  // the embeddings of bytes stay whole
  for (const char* part : {"gradients", "optimizer"})
    EXPECT_NEAR(most(divided, part) / most(whole, part), own / all, 0.02) << part;
  const double activations = most(divided, "activations") / most(whole, "activations");
  EXPECT_LT(activations, 0.9);
  EXPECT_GT(activations, 0.4);
}

TEST(EstimateCommand, DividedSequences_HaveTheirPartOfTheActivations) {
  const Workplace here;
  const Words program = gpt(here);
  const auto activations = [&](const Words& options) {
    return most(
        here.coupler(with(
            with({"estimate", "--json", "--world", "2", "-o", "backend.use=gloo_cpu"}, options),
            program)),
        "activations");
  };
  const double whole = activations({});
  for (const char* method : {"ring", "all_to_all"}) {
    const double part = activations(
        {"-o", "parallel.context=2", "-o", std::string("parallel.context_method=") + method});
    EXPECT_LT(part, 0.9 * whole) << method;
  }
}

// features, inner, experts, layers
Words mixture(const Words& sizes) { return with({"--", MIXTURE_PROGRAM}, sizes); }

TEST(EstimateCommand, DividedExperts_AreAPartOfTheModel) {
  const Workplace here;
  // Above the MiB below which the tensors of a dry run are real.
  const Words program = mixture({"128", "512", "8", "2"});
  const auto estimate = [&](const Words& options) {
    return here.coupler(with(
        with({"estimate", "--json", "--world", "4"}, with({"-o", "backend.use=gloo_cpu"}, options)),
        program));
  };
  const Outcome whole = estimate({});
  const Outcome divided = estimate({"-o", "parallel.expert=4"});
  const double all = most(whole, "optimizer"), part = most(divided, "optimizer");
  const auto parameters = nlohmann::json::parse(divided.out)["estimates"][0]["parameters"];
  const double kept = parameters["after_division"].get<double>() / parameters["all"].get<double>();
  EXPECT_NEAR(kept, 0.25, 0.03);  // the router and the first layer stay whole
  EXPECT_NEAR(part / all, kept, 0.02);
  EXPECT_NEAR(most(divided, "gradients") / most(whole, "gradients"), kept, 0.02);
  // As many tokens as before: those that the others send, instead of those sent to them.
  const double activations = most(divided, "activations") / most(whole, "activations");
  EXPECT_GT(activations, 0.9);
  EXPECT_LT(activations, 1.6);
}

TEST(EstimateCommand, DividedExperts_AreSaidOrRefusedByName) {
  const Workplace here;
  const auto estimate = [&](const Words& options, const Words& program) {
    return here.coupler(with(with({"estimate", "--world", "4"}, options), program));
  };
  const Outcome said = estimate({"-o", "backend.use=gloo_cpu", "-o", "parallel.expert=2"},
                                mixture({"64", "256", "8", "2"}));
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_NE(said.out.find("expert     2      samples, and the experts of mixtures: "),
            std::string::npos)
      << said.out;
  const Outcome sharded = estimate({"-o", "backend.use=fsdp", "-o", "parallel.expert=2"},
                                   mixture({"8", "8", "4", "1"}));
  EXPECT_NE(sharded.exit_code, 0);
  EXPECT_TRUE(
      err_says(sharded, "parallel.expert is 2, but the backend 'fsdp' shards models itself"))
      << sharded.err;
  const Outcome odd = estimate({"-o", "parallel.expert=4"}, mixture({"8", "8", "6", "1"}));
  EXPECT_NE(odd.exit_code, 0);
  EXPECT_TRUE(err_says(odd, "the 6 experts of 'blocks.0.up' cannot be divided over 4 ranks"))
      << odd.err;
  const Outcome none = estimate({"-o", "parallel.expert=2"}, gpt(here));
  EXPECT_NE(none.exit_code, 0);
  EXPECT_TRUE(err_says(none, "has no coupler::MixtureOfExperts")) << none.err;
}

TEST(EstimateCommand, Recommend_DividesExpertsIfNothingElseFits) {
  const Workplace here;
  const Words program = mixture({"512", "2048", "8", "1"});  // 25 million parameters in one layer
  const auto recommend = [&](const std::string& limit) {
    return here.coupler(with({"config", "recommend", "--limit", limit, "--world", "2"}, program));
  };
  const Outcome roomy = recommend("16GiB");
  ASSERT_EQ(roomy.exit_code, 0) << roomy.err;
  EXPECT_NE(roomy.out.find("# Not needed: expert 2, with which tokens travel"), std::string::npos)
      << roomy.out;
  const Outcome divided = here.coupler(with(
      {"estimate", "--json", "--world", "2", "-o", "backend.use=auto", "-o", "parallel.expert=2"},
      program));
  ASSERT_EQ(divided.exit_code, 0) << divided.err;
  const auto peak =
      nlohmann::json::parse(divided.out)["estimates"][0]["peak_bytes"].get<uint64_t>();
  const Outcome tight = recommend(std::to_string(peak / 20 * 21));
  ASSERT_EQ(tight.exit_code, 0) << tight.err;
  for (const char* text :
       {"# Chosen: expert 2, since no mesh that exchanges less fits with a setting as fast.",
        "# Rejected: data 2, of which a rank needs ",
        "# Rejected: pipeline 2: parallel.pipeline is 2, but prepare does not divide",
        "\n[parallel]\ndata = 1\nexpert = 2\n"}) {
    EXPECT_NE(tight.out.find(text), std::string::npos) << text << " in\n" << tight.out;
  }
  here.write("train.toml", tight.out);
  EXPECT_EQ(here.coupler({"config", "check"}).exit_code, 0);
  // Models without experts have no use for the dimension.
  const Outcome plain =
      here.coupler(with({"config", "recommend", "--limit", "16GiB", "--world", "2"}, gpt(here)));
  EXPECT_EQ(plain.out.find("expert"), std::string::npos) << plain.out;
}

TEST(EstimateCommand, Mesh_SaysWhichDimensionDividesWhat) {
  const Workplace here;
  const Outcome outcome = here.coupler(
      with({"estimate", "--world", "8", "-o", "backend.use=fsdp", "-o",
            "backend.fsdp.base=gloo_cpu", "-o", "parallel.tensor=2", "-o", "parallel.shard=2"},
           gpt(here)));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* text : {"what it divides", "data       2      samples", "shard      2",
                           "tensor     2      layers: "}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in\n" << outcome.out;
  }
}

TEST(EstimateCommand, Recommend_ChoosesAMeshAndSaysWhy) {
  const Workplace here;
  Words program = gpt(here);
  // Activations are most of what it needs.
  std::replace(program.begin(), program.end(), std::string("32"), std::string("128"));
  std::replace(program.begin(), program.end(), std::string("2"), std::string("32"));
  const auto recommend = [&](const std::string& limit) {
    return here.coupler(with({"config", "recommend", "--limit", limit, "--world", "4"}, program));
  };
  const Outcome roomy = recommend("16GiB");
  ASSERT_EQ(roomy.exit_code, 0) << roomy.err;
  for (const char* text : {"# Chosen: data 4, the mesh that exchanges least, and it fits.",
                           "# Not needed: tensor 2, 4, with which activations are exchanged twice",
                           "# Not needed: context 2, 4, with which keys and values travel"}) {
    EXPECT_NE(roomy.out.find(text), std::string::npos) << text << " in\n" << roomy.out;
  }
  EXPECT_EQ(roomy.out.find("[parallel]"), std::string::npos) << roomy.out;

  // A tenth less than whole layers need, however they are sharded.
  const Outcome all = here.coupler(with({"estimate", "--world", "4", "--all", "--json"}, program));
  ASSERT_EQ(all.exit_code, 0) << all.err;
  uint64_t least = UINT64_MAX;
  const auto parsed = nlohmann::json::parse(all.out);
  for (const auto& row : parsed["estimates"]) {
    const bool disk = row["setting"].get<std::string>().find("disk") != std::string::npos;
    if (!disk && row["mixed_precision"] == "no")
      least = std::min(least, row["peak_bytes"].get<uint64_t>());
  }
  const Outcome tight = recommend(std::to_string(least / 10 * 9));
  ASSERT_EQ(tight.exit_code, 0) << tight.err;
  for (const char* text :
       {"# Chosen: ", "x tensor 2, since no mesh that exchanges less fits with a setting as fast.",
        "# Rejected: data 4, of which a rank needs ", "# Rejected: shard 4, of which a rank needs ",
        "# Not needed: pipeline 2, 4, with which ranks wait while it fills and drains.",
        "\n[parallel]\ndata = ", "\ntensor = 2\n", "\nprocesses = 4\n"}) {
    EXPECT_NE(tight.out.find(text), std::string::npos) << text << " in\n" << tight.out;
  }
  here.write("train.toml", tight.out);
  EXPECT_EQ(here.coupler({"config", "check"}).exit_code, 0);
  const Outcome explained = here.coupler({"config", "--explain"});
  EXPECT_NE(explained.out.find("Mesh of 4 ranks"), std::string::npos) << explained.out;
}

TEST(EstimateCommand, Recommend_KeepsTheConfiguredSizes) {
  const Workplace here;
  const Outcome outcome = here.coupler(
      with({"config", "recommend", "--limit", "4GiB", "--world", "4", "-o", "parallel.tensor=2"},
           gpt(here)));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\n[parallel]\ndata = 2\ntensor = 2\n"), std::string::npos)
      << outcome.out;
}

TEST(EstimateCommand, Recommend_RejectsWhatDoesNotDivideHeads) {
  const Workplace here;
  // 4 heads over 8 ranks.
  const Outcome outcome = here.coupler(
      with({"config", "recommend", "--limit", "30MiB", "--world", "8", "-o", "parallel.pipeline=1"},
           gpt(here)));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(err_says(outcome, "tensor 8 is not possible: ")) << outcome.err;
  EXPECT_TRUE(err_says(outcome, "cannot be divided over 8 ranks")) << outcome.err;
}

TEST(EstimateCommand, ModelConfiguration_IsDividedAsItsModelIs) {
  const Workplace here;
  here.write("config.json",
             R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_positions": 1024,
                 "vocab_size": 50257, "n_head": 12})");
  const auto estimate = [&](const Words& options) {
    return here.coupler(with({"estimate", "--world", "4", "--json", "config.json"}, options));
  };
  const double part = most(estimate({"-o", "parallel.tensor=2"}), "optimizer");
  EXPECT_GT(part / most(estimate({}), "optimizer"), 0.5);  // 50,257 tokens do not divide
  EXPECT_LT(part / most(estimate({}), "optimizer"), 0.7);
  const Outcome odd = estimate({"-o", "parallel.tensor=2", "-o",
                                "parallel.tensor_plan=[\"transformer.h.*.attn.c_attn = shard\"]"});
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_TRUE(err_says(odd, "'shard' is not a style of a layer")) << odd.err;
}

TEST(EstimateCommand, ModelConfiguration_NeedsNoWeights) {
  const Workplace here;
  here.write("config.json",
             R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_positions": 1024,
                 "vocab_size": 50257})");
  const Outcome outcome = here.coupler({"estimate", "--world", "2", "config.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* text : {"gpt2: 124439808 parameters; the largest layer, transformer.h.0, has "
                           "7087872",
                           "474.7 MiB", "ZeRO stage 3", "Activations are not counted"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << " in\n" << outcome.out;
  }
}

TEST(EstimateCommand, NameOnTheHub_IsReadFromTheCache) {
  const Workplace here;
  const std::string commit(40, 'a');
  const auto model = here.path() / "hf/hub/models--org--small";
  std::filesystem::create_directories(model / "refs");
  std::filesystem::create_directories(model / "snapshots" / commit);
  here.write("hf/hub/models--org--small/refs/main", commit);
  here.write("hf/hub/models--org--small/snapshots/" + commit + "/config.json",
             R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_positions": 1024,
                 "vocab_size": 50257, "n_head": 12})");
  const std::map<std::string, std::string> variables = {{"HF_HOME", (here.path() / "hf").string()},
                                                        {"HF_HUB_OFFLINE", "1"}};
  const Outcome found = here.coupler({"estimate", "org/small"}, variables);
  EXPECT_EQ(found.exit_code, 0) << found.err;
  EXPECT_NE(found.out.find("124439808 parameters"), std::string::npos) << found.out;
  const Outcome none = here.coupler({"estimate", "org/none"}, variables);
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_TRUE(
      err_says(none, "there is no folder 'org/none', and HF_HUB_OFFLINE allows no download"))
      << none.err;
  const Outcome typo = here.coupler({"estimate", "no.safetensors"}, variables);
  EXPECT_TRUE(err_says(typo, "no.safetensors does not exist")) << typo.err;
}

TEST(EstimateCommand, WrongInput_EndsWithItsMessage) {
  const Workplace here;
  here.write("config.json", R"({"model_type": "mamba"})");
  here.write("bert.json", R"({"model_type": "bert", "hidden_size": 64, "intermediate_size": 256,
      "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 512,
      "type_vocab_size": 2})");
  const struct {
    Words words;
    int code;
    std::string message;
  } cases[] = {
      {{"estimate", "--jsn", "x"}, 2, "unknown argument '--jsn'; did you mean '--json'?"},
      {{"estimate", "--world", "0", "x"}, 2, "--world is '0' but must be a whole number"},
      {{"estimate", "--world"}, 2, "--world needs a value"},
      {{"estimate", "--limit", "4gb", "x"}, 2, "'4gb' is not a size"},
      {{"estimate", "config.json"}, 1, "model_type is 'mamba'; known are bert"},
      {{"estimate", "missing.json"}, 1, "cannot open missing.json: No such file"},
      {{"estimate", "--", "./no-such-program"}, 2, "no-such-program"},
      {{"estimate", "--", "true"}, 2, "'true' ended without a dry run of two optimizer steps"},
      {{"estimate", "--", "false"}, 1, "'false' ended with code 1 in its dry run"},
      {{"estimate", "--world", "4", "-o", "parallel.tensor=3", "--", "true"},
       2,
       "[parallel] has data \"rest\" x tensor 3, which needs a multiple of 3 ranks"},
      {{"estimate", "--world", "4", "-o", "parallel.pipeline=2", "bert.json"},
       1,
       "parallel.pipeline is 2, but 'bert.json' does not say which layers follow one another"},
      {{"estimate", "--world", "2", "-o", "parallel.expert=2", "-o", "parallel.data=1",
        "bert.json"},
       1,
       "parallel.expert is 2, but 'bert.json' does not say which parameters are experts"},
      {{"estimate", "--world", "2", "-o", "parallel.tensor=2", "bert.json"},
       2,
       "parallel.tensor is 2, but nothing says how the layers of 'bert.json' are divided"},
      {{"config", "recommend", "--", "true"}, 2, "--limit SIZE is missing"},
      {{"config", "check", "-o", "memory.limit=4gb"}, 2, "'4gb' is not a size"},
  };
  for (const auto& wrong : cases) {
    const Outcome outcome = here.coupler(wrong.words);
    EXPECT_EQ(outcome.exit_code, wrong.code) << wrong.message << "\n" << outcome.err;
    EXPECT_TRUE(err_says(outcome, wrong.message)) << wrong.message << " in\n" << outcome.err;
  }
}

TEST(EstimateCommand, WrongMeshes_EndWithTheProgramsMessage) {
  const Workplace here;
  const Words program = gpt(here);
  const struct {
    Words options;
    std::string message;
  } cases[] = {
      {{"-o", "parallel.tensor=8"}, "cannot be divided over 8 ranks"},
      {{"-o", "parallel.tensor=2", "-o", "parallel.tensor_plan=[\"layers.* = colwise\"]"},
       "\"layers.* = colwise\" matches no module of the model"},
      {{"-o", "parallel.shard=2", "-o", "backend.use=gloo_cpu"},
       "parallel.shard is 2, but the backend 'gloo_cpu' shards no model"},
      {{"-o", "parallel.context=8", "-o", "parallel.context_method=all_to_all"},
       "attention of 4 heads cannot be divided over the 8 ranks of the context group"},
  };
  for (const auto& wrong : cases) {
    const Outcome outcome =
        here.coupler(with(with({"estimate", "--world", "8"}, wrong.options), program));
    EXPECT_NE(outcome.exit_code, 0) << wrong.message;
    EXPECT_TRUE(err_says(outcome, wrong.message)) << wrong.message << " in\n" << outcome.err;
  }
}

TEST(EstimateCommand, DryRunOfSeveralProcesses_IsRefused) {
  const Workplace here;
  Words words = gpt(here);
  words.erase(words.begin());
  const Outcome outcome =
      here.coupler(with({"launch", "-n", "2", "-o", "backend.use=gloo_cpu"}, words),
                   {{"COUPLER_ESTIMATE", "log"}});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(err_says(outcome, "COUPLER_ESTIMATE is set in a job of 2 processes")) << outcome.err;
}

}  // namespace
}  // namespace coupler
