#include "weights/write_weights.h"

#include <coupler/error.h>
#include <sys/resource.h>

#include <csignal>

#include "formats/weight_index.h"
#include "weight_files.h"

namespace coupler::weights {
namespace {

namespace fs = std::filesystem;
using coupler::testing::file_text;
using coupler::testing::plain;
using coupler::testing::PlainTensors;
using coupler::testing::refusal_of;

class WriteWeights : public coupler::testing::WeightFilesTest {
 protected:
  std::string write_refusal(const std::string& source, const std::string& target, ErrorCode code,
                            std::optional<uint64_t> limit = {}) const {
    return without_folder(
        refusal_of(code, [&] { write_weights(open(at(source)), at(target), limit); }));
  }
};

TEST_F(WriteWeights, AnyWeights_ToFilesAndBack_AreTheSameBytes) {
  for (int round = 0; round < 60; ++round) {
    const std::string one = fmt::format("{}.safetensors", round);
    const PlainTensors tensors = random_tensors(static_cast<size_t>(random(1, 30)), round == 0);
    safetensors::Metadata metadata{{"format", "pt"}};
    if (round % 2 == 0) metadata["tied"] = tensors.begin()->first;
    write(one, tensors, metadata);
    const auto limit = static_cast<uint64_t>(random(1, 4000));
    const std::string folder = fmt::format("folder_{}", round);
    const WrittenWeights written = write_weights(open(at(one)), at(folder), limit);
    EXPECT_EQ(written.tensors, tensors.size());
    const WeightSource divided = open(at(folder));
    EXPECT_EQ(plain(divided), tensors);
    EXPECT_EQ(divided.aliases.size(), metadata.size() - 1);
    const bool indexed = fs::exists(at(folder + "/model.safetensors.index.json"));
    EXPECT_EQ(indexed, written.files > 1);
    EXPECT_EQ(divided.files.size(), written.files + (indexed ? 1 : 0));
    if (indexed) {
      EXPECT_EQ(plain(open(at(folder + "/model.safetensors.index.json"))), tensors);
    }
    const std::string back = fmt::format("back_{}.safetensors", round);
    write_weights(divided, at(back), {});
    EXPECT_TRUE(file_text(at(back)) == file_text(at(one))) << round;
    EXPECT_EQ(names_in(folder).find(".new"), std::string::npos);
  }
}

// Files from Python's safetensors, whose strings may be in another order.
TEST_F(WriteWeights, OfPythonsFiles_HaveTheSameTensors) {
  for (const char* name : {"written_dtypes", "written_names", "python_0_8"}) {
    const std::string path =
        fmt::format("{}/tests/unit/core/formats/fixtures/{}.safetensors", COUPLER_SOURCE_DIR, name);
    const WeightSource source = open(path);
    write_weights(source, at("out"), {});
    EXPECT_EQ(plain(open(at("out"))), plain(source)) << name;
  }
}

TEST_F(WriteWeights, WithoutASize_MakeOneFileOfAFolder) {
  write("in.safetensors", random_tensors(5));
  const WrittenWeights written = write_weights(open(at("in.safetensors")), at("a/b/out/"), {});
  EXPECT_EQ(written.files, 1u);
  EXPECT_EQ(names_in("a/b/out"), "model.safetensors");
  EXPECT_EQ(file_text(at("a/b/out/model.safetensors")), file_text(at("in.safetensors")));
}

TEST_F(WriteWeights, WhatASaveLeftBefore_Goes_AndOtherFilesStay) {
  const PlainTensors tensors = random_tensors(12);
  write("in.safetensors", tensors);
  const WeightSource source = open(at("in.safetensors"));
  const size_t many = write_weights(source, at("out"), 1).files;
  ASSERT_GT(many, 2u);
  for (const char* mine : {"model-mine.safetensors", "config.json", "model-1-of-2.safetensors",
                           "other.safetensors.new"})
    put(std::string("out/") + mine, "mine");
  put("out/model-00001-of-00099.safetensors.new", "of a process that was killed");
  write_weights(source, at("out"), {});
  EXPECT_EQ(names_in("out"),
            "config.json model-1-of-2.safetensors model-mine.safetensors model.safetensors "
            "other.safetensors.new");
  EXPECT_EQ(plain(open(at("out"))), tensors);
  EXPECT_EQ(write_weights(source, at("out"), 1).files, many);
  EXPECT_FALSE(fs::exists(at("out/model.safetensors")));
  EXPECT_EQ(plain(open(at("out"))), tensors);
}

TEST_F(WriteWeights, AFailureWhileReading_LeavesTheTargetAsItWas) {
  write("old.safetensors", random_tensors(3));
  for (const bool alone : {true, false}) {
    const std::string target = alone ? "out.safetensors" : "out";
    write_weights(open(at("old.safetensors")), at(target), {});
    const std::string kept = alone ? target : "out/model.safetensors";
    WeightSource source = open(at("old.safetensors"));
    source.tensors.push_back({"zz", safetensors::DType::kU8, {4}, [](const ByteSink& sink) {
                                sink("ab", 2);
                                throw Error(ErrorCode::kIo, "the disk is gone");
                              }});
    EXPECT_THROW(write_weights(source, at(target), alone ? std::optional<uint64_t>() : 1), Error);
    EXPECT_EQ(file_text(at(kept)), file_text(at("old.safetensors")));
    EXPECT_EQ(names_in(alone ? "." : "out"),
              alone ? "old.safetensors out.safetensors" : "model.safetensors");
  }
}

// A file size limit stands for a full disk: the same calls fail.
TEST_F(WriteWeights, WhereNoMoreCanBeWritten_LeavesTheTargetAsItWas) {
  write("old.safetensors", {{"w", {safetensors::DType::kU8, {3}, "abc"}}});
  PlainTensors large;
  for (const char* name : {"a", "b", "c"})
    large[name] = {safetensors::DType::kU8, {1 << 20}, std::string(1 << 20, 'x')};
  large["c"] = {safetensors::DType::kU8, {3 << 20}, std::string(3 << 20, 'x')};
  write("large.safetensors", large);
  write_weights(open(at("old.safetensors")), at("out"), {});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{2 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string message = [&] {
    try {
      write_weights(open(at("large.safetensors")), at("out"), 1 << 20);
    } catch (const Error& error) {
      return without_folder(error.what());
    }
    return std::string("written");
  }();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, "cannot write out/model-00002-of-00003.safetensors.new: File too large");
  EXPECT_EQ(names_in("out"), "model.safetensors");
  EXPECT_EQ(file_text(at("out/model.safetensors")), file_text(at("old.safetensors")));
}

TEST_F(WriteWeights, WhereAFoldersNameIsInTheWay_LeaveTheTargetAsItWas) {
  const PlainTensors tensors = random_tensors(6);
  write("in.safetensors", tensors);
  const WeightSource source = open(at("in.safetensors"));
  const size_t files = write_weights(source, at("out"), 1).files;
  const std::string last = fmt::format("out/model-{0:05}-of-{0:05}.safetensors", files);
  const std::string index = file_text(at("out/model.safetensors.index.json"));
  fs::remove(at(last));
  put(last + "/mine");
  const std::string names = names_in("out");
  EXPECT_EQ(
      without_folder(refusal_of(ErrorCode::kIo, [&] { write_weights(source, at("out"), 1); })),
      last + " is a folder, not a file");
  EXPECT_EQ(names_in("out"), names);
  EXPECT_EQ(file_text(at("out/model.safetensors.index.json")), index);
}

TEST_F(WriteWeights, ATargetInTheSource_IsRefused) {
  write("m/model.safetensors", random_tensors(2));
  const auto code = ErrorCode::kInvalidArgument;
  EXPECT_EQ(write_refusal("m/model.safetensors", "m/model.safetensors", code),
            "m/model.safetensors would replace m/model.safetensors, which is being read");
  EXPECT_EQ(write_refusal("m/model.safetensors", "m", code),
            "m would replace m/model.safetensors, which is being read");
  EXPECT_EQ(write_refusal("m", "m", code), "m is in m, which is being read");
  EXPECT_EQ(write_refusal("m", "m/deep/er", code), "m/deep/er is in m, which is being read");
  fs::create_directory_symlink(at("m"), at("link"));
  EXPECT_EQ(write_refusal("m", "link/x.safetensors", code),
            "link/x.safetensors is in m, which is being read");
  fs::create_directory(at("links"));
  fs::create_symlink(at("m/model.safetensors"), at("links/model.safetensors"));
  EXPECT_EQ(write_refusal("links/model.safetensors", "links", code),
            "links would replace links/model.safetensors, which is being read");
  EXPECT_EQ(write_refusal("links/model.safetensors", "m/model.safetensors", code),
            "m/model.safetensors would replace links/model.safetensors, which is being read");
  EXPECT_EQ(names_in("m"), "model.safetensors");
  write_weights(open(at("m/model.safetensors")), at("m/other.safetensors"), {});
  write_weights(open(at("m")), at("m2"), {});
}

TEST_F(WriteWeights, ATargetThatCannotBe_IsRefused) {
  write("in.safetensors", random_tensors(2));
  put("file", "text");
  fs::create_directory(at("folder.safetensors"));
  EXPECT_EQ(write_refusal("in.safetensors", "file", ErrorCode::kIo),
            "file is a file, not a folder");
  EXPECT_EQ(write_refusal("in.safetensors", "folder.safetensors", ErrorCode::kIo),
            "folder.safetensors is a folder, not a file");
  EXPECT_EQ(write_refusal("in.safetensors", "o.safetensors", ErrorCode::kInvalidArgument, 5),
            "o.safetensors is one file, which cannot be divided");
}

}  // namespace
}  // namespace coupler::weights
