#include "plugin/check.h"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"

namespace coupler::test {
namespace {

std::string check_refusal(const std::string& path, const std::string& sha256 = "") {
  return message_of(ErrorCode::kPlugin, [&] { plugin::check_plugin_file(path, sha256); });
}

TEST(PluginCheck_GoodFile, ReturnsItsRealPath) {
  const Folder folder;
  const std::string file = folder.add("good");
  std::filesystem::create_symlink(file, folder.path("link.so"));
  EXPECT_EQ(plugin::check_plugin_file(file, ""), file);
  EXPECT_EQ(plugin::check_plugin_file(folder.path("link.so"), ""), file);
}

TEST(PluginCheck_MissingFile, IsNamed) {
  const Folder folder;
  const std::string message = check_refusal(folder.path("absent.so"));
  expect_text(message, folder.path("absent.so") + " cannot be opened: No such file or directory");
}

TEST(PluginCheck_FolderInsteadOfFile, IsRefused) {
  const Folder folder;
  expect_text(check_refusal(folder.path()), "is a folder");
}

TEST(PluginCheck_FifoInsteadOfFile, IsRefusedWithoutWaiting) {
  const Folder folder;
  ASSERT_EQ(mkfifo(folder.path("fifo.so").c_str(), 0600), 0);
  expect_text(check_refusal(folder.path("fifo.so")), "is not a regular file");
}

TEST(PluginCheck_TextFile, IsNoElfFile) {
  const Folder folder;
  const std::string message = check_refusal(folder.write("text.so", "int main() { return 0; }\n"));
  expect_text(message, "is not an ELF file");
  expect_text(message, "hint: name the compiled library");
}

TEST(PluginCheck_EmptyFile, IsNamed) {
  const Folder folder;
  expect_text(check_refusal(folder.write("empty.so", "")), "is an empty file");
}

TEST(PluginCheck_OtherMachine, NamesBoth) {
  const Folder folder;
  const std::string file = folder.add("good");
  patch(file, 18, std::string("\xF3\x00", 2));  // e_machine: RISC-V
  const std::string message = check_refusal(file);
  expect_text(message, "is built for another machine: RISC-V, but this one is ");
  expect_text(message, "build it on or for this machine");
}

TEST(PluginCheck_Library32Bits, IsAnotherMachine) {
  const Folder folder;
  const std::string file = folder.add("good");
  patch(file, 4, "\x01");  // EI_CLASS: 32 bits
  patch(file, 18, std::string("\x03\x00", 2));
  expect_text(check_refusal(file), "is built for another machine: 32-bit x86, 32 bits");
}

TEST(PluginCheck_ObjectFile, IsNoSharedLibrary) {
  const Folder folder;
  const std::string file = folder.add("good");
  patch(file, 16, std::string("\x01\x00", 2));  // e_type: relocatable
  expect_text(check_refusal(file), "is an ELF file but not a shared library");
}

TEST(PluginCheck_TruncatedAnywhere, SaysSo) {
  const Folder folder;
  const std::string file = folder.add("good");
  const auto whole = std::filesystem::file_size(file);
  for (const auto size : {whole - 1, whole / 2, whole / 10, uintmax_t{100}, uintmax_t{40}}) {
    std::filesystem::resize_file(file, size);
    expect_text(check_refusal(file),
                "is truncated: the file has " + std::to_string(size) + " bytes");
  }
}

TEST(PluginCheck_GarbageInHeaders, IsRefusedWithoutCrash) {
  const Folder folder;
  const std::string file = folder.add("good");
  patch(file, 32, std::string(8, '\xff'));  // e_phoff
  expect_text(check_refusal(file), "is truncated");
}

TEST(PluginCheck_NoEntrySymbol, IsKnownWithoutLoading) {
  const Folder folder;
  const std::string message = check_refusal(folder.add("no_entry"));
  expect_text(message, "does not export coupler_distributed_backend_v1");
  expect_text(message, "DB_EXPORT");
}

TEST(PluginCheck_FileWritableByAll, IsRefusedWithTheCommandThatMends) {
  const Folder folder;
  const std::string file = folder.add("good");
  ASSERT_EQ(chmod(file.c_str(), 0777), 0);
  const std::string message = check_refusal(file);
  expect_text(message, "the file is writable by everyone (mode 0777)");
  expect_text(message, "chmod o-w " + file);
}

TEST(PluginCheck_FolderWritableByAll, IsRefusedEvenIfSticky) {
  const Folder folder;
  const std::string file = folder.add("good");
  ASSERT_EQ(chmod(folder.path().c_str(), 01777), 0);
  expect_text(check_refusal(file), "its folder " + folder.path() + " is writable by everyone");
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
}

TEST(PluginCheck_FolderAboveWritableByAll, IsRefusedUnlessSticky) {
  const Folder folder;
  const std::string below = folder.path("open/own");
  std::filesystem::create_directories(below);
  const std::string file = below + "/" + Folder::file_name("good");
  std::filesystem::copy_file(folder.add("good"), file);
  ASSERT_EQ(chmod(folder.path("open").c_str(), 0777), 0);
  expect_text(check_refusal(file),
              "the folder " + folder.path("open") + " above it is writable by every");
  ASSERT_EQ(chmod(folder.path("open").c_str(), 01777), 0);
  EXPECT_EQ(plugin::check_plugin_file(file, ""), file);
}

TEST(PluginCheck_FileOfAForeignGroupWritable, IsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to any group";
  const Folder folder;
  const std::string file = folder.add("good");
  ASSERT_EQ(chown(file.c_str(), 0, 1), 0);
  ASSERT_EQ(chmod(file.c_str(), 0775), 0);
  expect_text(check_refusal(file), "the file is writable by group 1 (mode 0775)");
}

TEST(PluginCheck_FileOfAnotherUser, IsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const Folder folder;
  const std::string file = folder.add("good");
  ASSERT_EQ(chown(file.c_str(), 12345, 12345), 0);
  const std::string message = check_refusal(file);
  expect_text(message, "the file belongs to user 12345, neither root nor this user (0)");
  expect_text(message, "chown 0 " + file);
}

TEST(PluginCheck_PinThatFits, Passes) {
  const Folder folder;
  const std::string file = folder.add("good");
  const std::string message = check_refusal(file, std::string(64, 'a'));
  const std::string marker = "its SHA-256 is ";
  const std::string real = message.substr(message.find(marker) + marker.size(), 64);
  EXPECT_EQ(plugin::check_plugin_file(file, real), file);
}

TEST(PluginCheck_PinThatDiffers, NamesBothHashes) {
  const Folder folder;
  const std::string message = check_refusal(folder.add("good"), std::string(64, 'A'));
  expect_text(message, "is not the file that backend.sha256 pins: its SHA-256 is ");
  expect_text(message, "expected " + std::string(64, 'a'));
}

TEST(PluginCheck_PinThatIsNoHash, IsAConfigurationError) {
  const Folder folder;
  const std::string file = folder.add("good");
  const std::string message =
      message_of(ErrorCode::kConfig, [&] { plugin::check_plugin_file(file, "abc"); });
  expect_text(message, "backend.sha256 = \"abc\" is not a SHA-256");
  expect_text(message, "sha256sum " + file);
}

}  // namespace
}  // namespace coupler::test
