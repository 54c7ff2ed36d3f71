// Reading folders of checkpoints.
#include "checkpoint/folder.h"

#include "checkpoint/names.h"
#include "checkpoint_files.h"

namespace coupler::checkpoint {
namespace {

namespace fs = std::filesystem;

class CheckpointFolder : public CheckpointFiles {};

TEST_F(CheckpointFolder, Names_AreReadInOneSpellingOnly) {
  EXPECT_EQ(read_name("checkpoint_0")->number, 0);
  EXPECT_EQ(read_name("checkpoint_120")->kind, NameKind::kCommitted);
  EXPECT_EQ(read_name(".checkpoint_12.partial")->kind, NameKind::kPartial);
  EXPECT_EQ(read_name(".checkpoint_12.removed")->kind, NameKind::kRemoved);
  const std::string save = new_save_identity();
  EXPECT_TRUE(is_save_identity(save)) << save;
  EXPECT_NE(save, new_save_identity());
  for (const NameKind kind : {NameKind::kPartial, NameKind::kRemoved}) {
    const auto name = read_name(name_of({kind, 12, save}));
    ASSERT_TRUE(name);
    EXPECT_EQ(name->kind, kind);
    EXPECT_EQ(name->number, 12);
    EXPECT_EQ(name->save, save);
  }
  for (const std::string& text : std::vector<std::string>{
           "checkpoint_1." + save, ".checkpoint_1." + save, ".checkpoint_1." + save + "0.partial",
           ".checkpoint_1..partial", ".checkpoint_1." + std::string(32, 'A') + ".partial",
           ".checkpoint_1." + save + ".x.partial"}) {
    EXPECT_FALSE(read_name(text)) << text;
  }
  for (const char* other :
       {"checkpoint_", "checkpoint_01", "checkpoint_-1", "checkpoint_+1", "checkpoint_1x",
        "checkpoint_1234567890123456789", "checkpoint_1.partial", ".checkpoint_1",
        ".checkpoint.lock", "checkpoint", ""})
    EXPECT_FALSE(read_name(other)) << other;
}

TEST_F(CheckpointFolder, List_ShowsEach_WithWhyItIsNotValid) {
  FolderWriter writer(checkpoints());
  for (int64_t number = 0; number < 11; ++number) save(writer, number);
  fs::remove(at("checkpoints/checkpoint_1/manifest.json"));
  put(at("checkpoints/checkpoint_2/manifest.json"), "{");
  fs::remove(at("checkpoints/checkpoint_3/model.bin"));
  put(at("checkpoints/checkpoint_4/model.bin"), "short");
  fs::remove_all(at("checkpoints/checkpoint_5"));
  put(at("checkpoints/checkpoint_5"), "a file");
  fs::rename(at("checkpoints/checkpoint_6"), at("checkpoints/checkpoint_66"));
  fs::create_directory(at("checkpoints/best"));
  writer.begin(70);
  const char* const expected[] = {
      "",
      "has no manifest.json: it is an unfinished checkpoint or something else",
      "manifest.json: is not valid JSON in UTF-8 at byte 2",
      "model.bin is missing",
      "model.bin has 5 bytes, but 10 were written",
      "is a file, not a folder",
      "",
      "",
      "",
      "",
      "was renamed: its manifest says checkpoint_6"};
  const auto entries = list(checkpoints());
  ASSERT_EQ(entries.size(), std::size(expected));
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].reason, expected[i]);
    EXPECT_EQ(entries[i].manifest.has_value(), entries[i].reason.empty());
    EXPECT_EQ(entries[i].path, at("checkpoints/checkpoint_" + std::to_string(entries[i].number)));
  }
  EXPECT_EQ(entries[0].manifest->steps, 0);
  EXPECT_EQ(entries[9].number, 10);
}

TEST_F(CheckpointFolder, Newest_SkipsWhatIsNotValid_AndSaysWhy) {
  FolderWriter writer(checkpoints());
  EXPECT_FALSE(newest(checkpoints()).entry);
  for (int64_t number = 8; number < 12; ++number) save(writer, number);
  EXPECT_EQ(newest(checkpoints()).entry->number, 11);
  fs::remove(at("checkpoints/checkpoint_8/model.bin"));
  fs::remove(at("checkpoints/checkpoint_10/model.bin"));
  fs::remove(at("checkpoints/checkpoint_11/manifest.json"));
  const Newest found = newest(checkpoints());
  EXPECT_EQ(found.entry->number, 9);
  ASSERT_EQ(found.skipped.size(), 2u);
  EXPECT_EQ(found.skipped[0].path, at("checkpoints/checkpoint_11"));
  EXPECT_EQ(found.skipped[1].reason, "model.bin is missing");
}

TEST_F(CheckpointFolder, Verify_FindsWhatChanged_InTheFilesAskedFor) {
  FolderWriter writer(checkpoints());
  const std::string path = save(writer, 0);
  EXPECT_TRUE(verify(path).empty());
  put(path + "/model.bin", "model Of 0");  // of the same length
  const auto differences = verify(path);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].file, "model.bin");
  EXPECT_TRUE(differences[0].reason.starts_with("differs: its SHA-256 is "));
  EXPECT_TRUE(verify(path, {"optimizer.bin"}).empty());
  EXPECT_EQ(verify(path, {"model.bin"}).size(), 1u);
  EXPECT_TRUE(error_of([&] { verify(path, {"other"}); }, ErrorCode::kInvalidArgument)
                  .starts_with(path + " has no file 'other'"));
  fs::remove(path + "/optimizer.bin");
  EXPECT_EQ(verify(path)[1].reason, "is missing");
}

TEST_F(CheckpointFolder, OpeningWhatIsNone_SaysWhatItIs) {
  EXPECT_TRUE(
      error_of([&] { open_checkpoint(at("none")); }).starts_with(at("none") + " does not exist"));
  EXPECT_TRUE(error_of([&] { list(at("none")); }).starts_with(at("none") + " does not exist"));
  put(at("file"), "");
  EXPECT_TRUE(error_of([&] {
                open_checkpoint(at("file"));
              }).starts_with(at("file") + " is a file, not a folder"));
  fs::create_directory(at("empty"));
  EXPECT_TRUE(
      error_of([&] { open_checkpoint(at("empty")); })
          .starts_with(at("empty") +
                       " has no manifest.json: it is an unfinished checkpoint or something else"));
  FolderWriter writer(checkpoints());
  const std::string path = save(writer, 3);
  EXPECT_TRUE(error_of([&] {
                open_checkpoint(checkpoints());
              }).ends_with("hint: it is a folder of checkpoints; the newest is " + path));
  fs::rename(path, at("best"));
  EXPECT_EQ(open_checkpoint(at("best")).number, 3);
  fs::create_directory_symlink(".", at("checkpoints/checkpoint_0"));  // links in a circle
  fs::create_directory_symlink("..", at("checkpoints/checkpoint_1"));
  EXPECT_NE(error_of([&] { open_checkpoint(checkpoints()); }), "no error");
}

TEST_F(CheckpointFolder, OtherProgramsCheckpoints_AreRecognised) {
  const auto refused = [&](const std::string& name) {
    const std::string text = error_of([&] { open_checkpoint(at(name)); });
    EXPECT_TRUE(text.ends_with(std::string("\n  hint: ") + kForeignHint)) << text;
    return text.substr(at(name).size(), text.find('\n') - at(name).size());
  };
  put(at("accelerate/model.safetensors"), "");
  put(at("accelerate/optimizer.bin"), "");
  EXPECT_EQ(refused("accelerate"),
            " is an Accelerate checkpoint (model.safetensors next to optimizer.bin)");
  put(at("deepspeed/latest"), "global_step10");
  put(at("deepspeed/global_step10/mp_rank_00_model_states.pt"), "");
  EXPECT_EQ(refused("deepspeed"),
            " is a folder of DeepSpeed checkpoints (it contains global_step10)");
  EXPECT_EQ(refused("deepspeed/global_step10"),
            " is a DeepSpeed checkpoint (it contains …mp_rank_00_model_states.pt)");
  put(at("checkpoints/checkpoint_0/model.safetensors"), "");
  put(at("checkpoints/checkpoint_0/random_states_0.pkl"), "");
  EXPECT_EQ(list(checkpoints())[0].reason,
            "is an Accelerate checkpoint (model.safetensors next to random_states_0.pkl)");
}

}  // namespace
}  // namespace coupler::checkpoint
