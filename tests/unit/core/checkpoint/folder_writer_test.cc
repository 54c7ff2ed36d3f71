// Writing folders of checkpoints. Kills and failing disks are tested in tests/fault/checkpoint.
#include "checkpoint/folder_writer.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "checkpoint_files.h"

namespace coupler::checkpoint {
namespace {

namespace fs = std::filesystem;

class CheckpointWriter : public CheckpointFiles {};

TEST_F(CheckpointWriter, ACheckpoint_IsThereOnceCommitted) {
  FolderWriter writer(checkpoints());
  EXPECT_EQ(writer.next_number(), 0);
  const Manifest manifest = fill(writer, 0);
  EXPECT_EQ(entries(), ".checkpoint_0." + writer.save() + ".partial");
  EXPECT_EQ(writer.next_number(), 1);
  EXPECT_TRUE(list(checkpoints()).empty());
  const std::string path = writer.commit(manifest);
  EXPECT_EQ(path, writer.folder() + "/checkpoint_0");
  EXPECT_EQ(entries(), "checkpoint_0");
  EXPECT_EQ(open_checkpoint(path), manifest);
  EXPECT_TRUE(verify(path).empty());
  EXPECT_EQ(writer.next_number(), 1);
}

TEST_F(CheckpointWriter, WhatIsNotCommitted_IsRemoved) {
  {
    FolderWriter writer(checkpoints());
    fill(writer, 0);
    writer.abandon();
    EXPECT_EQ(entries(), "");
    fill(writer, 0);
  }
  EXPECT_EQ(entries(), "");
}

TEST_F(CheckpointWriter, LeftoversOfKilledJobs_AreRemovedByTheNextBegin) {
  const std::string save(32, 'a');
  put(at("checkpoints/.checkpoint_3.partial/model.bin"), "x");
  put(at("checkpoints/.checkpoint_3.removed/model.bin"), "x");
  put(at("checkpoints/.checkpoint_3." + save + ".partial/model.bin"), "x");
  put(at("checkpoints/.checkpoint_0." + save + ".removed/model.bin"), "x");
  put(at("checkpoints/.checkpoint_1.removed/model.bin"), "x");
  put(at("checkpoints/.other/model.bin"), "x");
  put(at("elsewhere/manifest.json"), "x");
  fs::create_directory_symlink(at("elsewhere"), at("checkpoints/.checkpoint_2.removed"));
  FolderWriter writer(checkpoints());
  EXPECT_EQ(writer.next_number(), 4);
  const std::string path = writer.begin(3);
  EXPECT_EQ(entries(), ".checkpoint_3." + writer.save() + ".partial .other");
  EXPECT_EQ(path, writer.folder() + "/.checkpoint_3." + writer.save() + ".partial");
  EXPECT_TRUE(fs::is_empty(path));
  EXPECT_TRUE(fs::exists(at("elsewhere/manifest.json")));
}

TEST_F(CheckpointWriter, FilesThatAreNotAsListed_AreNotCommitted) {
  FolderWriter writer(checkpoints());
  Manifest manifest = fill(writer, 0);
  manifest.files[1].bytes += 1;
  const std::string partial = writer.folder() + "/.checkpoint_0." + writer.save() + ".partial";
  EXPECT_TRUE(error_of([&] {
                writer.commit(manifest);
              }).starts_with(partial + "/optimizer.bin has 14 bytes, but 15 were written"));
  manifest.files[1].name = "other.bin";
  EXPECT_TRUE(
      error_of([&] { writer.commit(manifest); }).starts_with(partial + "/other.bin is missing"));
  EXPECT_TRUE(list(checkpoints()).empty());
}

TEST_F(CheckpointWriter, WrongOrder_IsRefused) {
  FolderWriter writer(checkpoints());
  Manifest manifest;
  EXPECT_NE(error_of([&] { writer.commit(manifest); }, ErrorCode::kUsage), "no error");
  EXPECT_NE(error_of([&] { writer.prune(1); }, ErrorCode::kUsage), "no error");
  EXPECT_NE(error_of([&] { writer.begin(-1); }, ErrorCode::kInvalidArgument), "no error");
  manifest = fill(writer, 4);
  EXPECT_TRUE(error_of([&] { writer.begin(5); }, ErrorCode::kUsage)
                  .starts_with("begin(checkpoint_5) was called while checkpoint_4 is in progress"));
  manifest.number = 5;
  EXPECT_EQ(
      error_of([&] { writer.commit(manifest); }, ErrorCode::kInvalidArgument),
      fmt::format(
          "the manifest is for checkpoint_5, save '{0}', but checkpoint_4, save '{0}', was begun",
          writer.save()));
  manifest.number = 4;
  manifest.save = std::string(32, 'a');
  EXPECT_NE(error_of([&] { writer.commit(manifest); }, ErrorCode::kInvalidArgument), "no error");
  manifest.save = writer.save();
  writer.commit(manifest);
  EXPECT_NE(error_of([&] { writer.prune(0); }, ErrorCode::kInvalidArgument), "no error");
  EXPECT_TRUE(error_of([&] {
                writer.begin(4);
              }).starts_with(writer.folder() + "/checkpoint_4 already exists"));
}

TEST_F(CheckpointWriter, ACheckpointThatIsThere_IsNeverReplaced) {
  FolderWriter writer(checkpoints());
  const Manifest manifest = fill(writer, 0);
  fs::create_directory(at("checkpoints/checkpoint_0"));  // created in the meantime
  EXPECT_TRUE(error_of([&] {
                writer.commit(manifest);
              }).starts_with(writer.folder() + "/checkpoint_0 already exists"));
  EXPECT_TRUE(fs::is_empty(at("checkpoints/checkpoint_0")));
}

TEST_F(CheckpointWriter, Pruning_RemovesTheOldest) {
  FolderWriter writer(checkpoints());
  for (int64_t number = 0; number < 6; ++number) save(writer, number);
  fs::remove(at("checkpoints/checkpoint_2/model.bin"));  // left alone, not counted
  writer.prune(9);
  EXPECT_EQ(list(checkpoints()).size(), 6u);
  put(at("checkpoints/.checkpoint_9.removed/x"), "x");
  writer.prune(3);
  EXPECT_EQ(entries(), "checkpoint_2 checkpoint_3 checkpoint_4 checkpoint_5");
  writer.prune(1);
  EXPECT_EQ(entries(), "checkpoint_2 checkpoint_5");
}

TEST_F(CheckpointWriter, WhatWasJustCommitted_StaysWhateverItsNumber) {
  FolderWriter writer(checkpoints());
  save(writer, 8);
  save(writer, 3);
  writer.prune(1);
  EXPECT_EQ(entries(), "checkpoint_3");
}

TEST_F(CheckpointWriter, ASecondWriter_IsRefused_NamingTheFirst) {
  FolderWriter writer(checkpoints());
  const std::string message = error_of([&] { FolderWriter second(checkpoints()); });
  EXPECT_TRUE(message.starts_with(writer.folder() + " is in use by process " +
                                  std::to_string(::getpid()) + " on host "))
      << message;
  EXPECT_NE(message.find(", since 20"), std::string::npos) << message;
}

TEST_F(CheckpointWriter, AWriterThatWasKilled_LeavesNoLock) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderWriter writer(checkpoints());
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_NE(error_of([&] {
              FolderWriter second(checkpoints());
            }).find("by process " + std::to_string(child) + " on host "),
            std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  FolderWriter writer(checkpoints());
  save(writer, 0);
}

TEST_F(CheckpointWriter, AFolderBelowFoldersThatAreMissing_IsMade_AsTheUmaskSays) {
  const mode_t before = ::umask(027);
  FolderWriter writer(at("a/b/checkpoints/"));
  const std::string path = save(writer, 0);
  ::umask(before);
  EXPECT_EQ(writer.folder(), fs::canonical(at("a/b/checkpoints")).string());
  EXPECT_EQ(static_cast<int>(fs::status(path).permissions()), 0750);
  EXPECT_EQ(static_cast<int>(fs::status(path + "/manifest.json").permissions()), 0640);
}

TEST_F(CheckpointWriter, ALinkToAFolder_IsFollowed_OneToNothing_IsRefused) {
  fs::create_directory(at("large"));
  fs::create_directory_symlink("large", at("checkpoints"));
  {
    FolderWriter writer(checkpoints());
    save(writer, 0);
    EXPECT_NE(error_of([&] { FolderWriter second(at("large")); }), "no error");
  }
  EXPECT_TRUE(fs::exists(at("large/checkpoint_0/manifest.json")));
  fs::create_directory_symlink("nothing", at("link"));
  EXPECT_TRUE(error_of([&] {
                FolderWriter writer(at("link"));
              }).starts_with(at("link") + " is a dangling link"));
}

TEST_F(CheckpointWriter, AFileInTheWay_IsNamed) {
  put(at("file"), "");
  for (const char* path : {"file", "file/checkpoints"}) {
    EXPECT_TRUE(error_of([&] {
                  FolderWriter writer(at(path));
                }).starts_with(at("file") + " is a file, not a folder"));
  }
}

TEST_F(CheckpointWriter, AFolderThatMayNotBeWrittenTo_IsNamed) {
  fs::create_directory(checkpoints());
  fs::permissions(folder_, fs::perms(0755));
  fs::permissions(checkpoints(), fs::perms(0555));
  const pid_t child = ::fork();
  if (child == 0) {
    // File permissions do not restrict root.
    if (::geteuid() == 0 && ::seteuid(65534) != 0) ::_exit(3);
    const std::string lock = error_of([&] { FolderWriter writer(checkpoints()); });
    const std::string make = error_of([&] { FolderWriter writer(at("checkpoints/new")); });
    const bool good =
        lock.starts_with("cannot open " + checkpoints() + "/.checkpoint.lock: Permission denied") &&
        make.starts_with("cannot create " + checkpoints() + "/new: Permission denied") &&
        lock.ends_with("write to a folder that this user may write to");
    if (!good) std::fprintf(stderr, "%s\n%s\n", lock.c_str(), make.c_str());
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace coupler::checkpoint
